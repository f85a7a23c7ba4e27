"""Steps of training, taken or replayed: the same numbers, by a graph that stands in for the GPU's."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from scantune.training.step import WARM_UP, ReplayedStep, Step, step_for
from scantune.training.trainer import TrainingModule, run_training
from tests.methods.test_dae import toy_training
from tests.training.test_segmentation import (
    SETTINGS,
    InterruptionError,
    assert_same_run,
    interrupt_after,
    run,
    toy_network,
)

CPU = torch.device("cpu")


class Rerun:
    """Does recorded work again: on the same tensors, as a CUDA graph would."""

    def __init__(self, hindrance=""):
        self.hindrance, self.replays = hindrance, 0

    def run(self, work):
        return work()

    def rehearse(self, work):
        return work(), self.hindrance

    def record(self, work):
        self.work, self.result = work, torch.full((), torch.nan)
        return self.result

    def replay(self):
        self.replays += 1
        self.result.copy_(self.work())


def steps(take, network, batches):
    """Takes steps of Adam on the mean square of the network's answers; gives the losses."""
    torch.manual_seed(0)
    losses = []
    for batch in batches:
        losses.append(float(take((batch,))))
    return losses, copy.deepcopy(network.state_dict())


def setting():
    network = toy_network()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    return network, lambda drawn: network(drawn[0]).square().mean(), optimizer


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(2, 1, 8, 8, generator=generator) for _ in range(8)]


def test_replayed_steps_are_the_plain_ones(batches):
    network, loss, optimizer = setting()
    expected = steps(Step(loss, optimizer), network, batches)
    network, loss, optimizer = setting()
    graph = Rerun()
    replayed = steps(ReplayedStep(loss, optimizer, graph), network, batches)
    assert graph.replays == len(batches) - WARM_UP
    assert replayed[0] == expected[0]
    assert all(torch.equal(value, replayed[1][name]) for name, value in expected[1].items())


def test_what_is_drawn_is_copied_and_not_kept(batches):
    """Whoever draws may use its tensors again."""
    network, loss, optimizer = setting()
    expected = steps(Step(loss, optimizer), network, batches)
    network, loss, optimizer = setting()
    place = torch.empty_like(batches[0])
    replayed = steps(ReplayedStep(loss, optimizer, Rerun()), network, (place.copy_(batch) for batch in batches))
    assert replayed[0] == expected[0]


def test_another_shape_gets_a_step_of_its_own(batches):
    batches[5] = batches[5][:1]
    network, loss, optimizer = setting()
    expected = steps(Step(loss, optimizer), network, batches)
    network, loss, optimizer = setting()
    graph = Rerun()
    assert steps(ReplayedStep(loss, optimizer, graph), network, batches)[0] == expected[0]
    assert graph.replays == len(batches) - WARM_UP - 1


def test_what_cannot_be_recorded_is_taken_plainly_and_said(batches):
    network, loss, optimizer = setting()
    expected = steps(Step(loss, optimizer), network, batches)
    network, loss, optimizer = setting()
    graph = Rerun("it waits")
    step = ReplayedStep(loss, optimizer, graph)
    assert steps(step, network, batches)[0] == expected[0]
    assert (graph.replays, step.remark) == (0, "it waits")


def test_on_a_cpu_steps_are_plain():
    network, loss, optimizer = setting()
    assert type(step_for(loss, optimizer, CPU, [network])) is Step


def test_a_layer_of_unknown_make_is_not_replayed():
    class Counts(nn.Module):
        def forward(self, images):
            return images

    network, loss, optimizer = setting()
    step = step_for(loss, optimizer, torch.device("cuda"), [network, nn.Sequential(Counts())])
    assert type(step) is Step
    assert step.remark.startswith("Counts is no layer that is known")


@pytest.fixture
def replaying(monkeypatch):
    """Modules on the CPU take their steps as on a GPU."""
    graphs = []

    def step(module):
        graphs.append(Rerun())
        return ReplayedStep(module.loss, module.optimizer, graphs[-1])

    monkeypatch.setattr(TrainingModule, "step", step)
    return graphs


def test_a_run_of_replayed_steps_is_the_plain_run(replaying, tmp_path, monkeypatch):
    """With augmentation, dropout, validation and an interruption: all randomness is seeded before each replay."""
    path = tmp_path / "run.safetensors"
    with pytest.raises(InterruptionError):
        run(checkpoint=path, on_progress=interrupt_after(12))
    resumed, whole = run(checkpoint=path), run()
    assert [graph.replays for graph in replaying] == [12 - WARM_UP, 12 - WARM_UP, 24 - WARM_UP]
    assert_same_run(whole, resumed)
    monkeypatch.undo()
    assert_same_run(whole, run())


def test_helper_networks_take_the_same_steps_replayed(replaying):
    ends = []
    for kind in (TrainingModule.step, lambda module: Step(module.loss, module.optimizer)):
        module, settings = toy_training()
        module.step = lambda module=module, kind=kind: kind(module)
        ends.append(run_training(module, replace(settings, iterations=8, validate_every=4), {}))
    assert replaying[0].replays == 8 - WARM_UP
    assert_same_run(*ends)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_replays_what_it_would_compute(precision, monkeypatch):
    settings = replace(SETTINGS, device="cuda", precision=precision)
    replayed = run(settings)
    monkeypatch.setattr("scantune.training.trainer.step_for", lambda loss, optimizer, *_: Step(loss, optimizer))
    assert_same_run(replayed, run(settings))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_network_that_waits_for_the_gpu_is_found_out_in_the_rehearsal():
    class Waits(nn.ReLU):
        def forward(self, images):
            return super().forward(images) if float(images.detach().sum()) < 1e30 else images

    Waits.__module__ = "torch.nn"
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), Waits()).cuda()
    optimizer = torch.optim.Adam(network.parameters(), 0.01, fused=True, capturable=True)
    step = step_for(lambda drawn: network(drawn[0]).square().mean(), optimizer, torch.device("cuda"), [network])
    losses = [float(step((torch.ones(1, 1, 8, 8, device="cuda"),))) for _ in range(WARM_UP + 2)]
    assert losses == sorted(losses, reverse=True)
    assert "waits for the GPU" in step.remark
