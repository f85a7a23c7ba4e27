"""Threads that share the batches of a step come to what one thread comes to."""

from copy import deepcopy
from threading import Barrier

import pytest
import torch
from torch import nn

from scantune.adaptation.gradients import ThreadedGradients, VolumeGradients
from scantune.adaptation.guard.stability import PerturbedSlices
from scantune.adaptation.prediction import predict
from scantune.adaptation.sampling import WholeVolume
from scantune.experts import Recorder
from scantune.methods import METHODS, ModelParts
from scantune.networks import insert_default_adaptors, set_memory_layout
from scantune.runtime.threads import Threads, threads_for
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan
from tests.plain import Plain


@pytest.fixture
def cores():
    """As if the machine had two."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def evaluation(toy, images, padding=None, kept=None, method="foe-cnn-pca", network=None):
    """The gradients of a method on a scan, with the objective and the gradient at the start."""
    network = deepcopy(network or toy.network).requires_grad_(False)
    set_memory_layout(network, "channels last")
    runner = METHODS[method](ModelParts(Segmentation(), toy.prior, toy.helpers))
    moving = list(runner.parameters(network).values())
    runner.prepare(network)
    for parameter in moving:
        parameter.requires_grad_(True)
    gradients = WholeVolume(batch=1, kept=kept).gradients(runner, Volume(images, padding), torch.Generator())
    objective = float(gradients().objective.detach())
    return gradients, objective, torch.cat([parameter.grad.flatten() for parameter in moving])


def test_threads_predict_and_look_as_one_does(toy, cores):
    images = toy_scan(56, slices=5)[0]
    images = images.repeat(2, 1, 1, 1)
    found = []
    for number in (1, cores):
        torch.set_num_threads(number)
        found.append(
            (predict(toy.network, Volume(images), Segmentation(), toy.prior), threads_for(toy.network, images))
        )
    (one, alone), (two, abreast) = found
    assert alone is None and abreast is not None and abreast.number == cores
    torch.testing.assert_close(two.probabilities, one.probabilities, rtol=1e-4, atol=1e-5)
    assert two.energies["cnn"] == pytest.approx(one.energies["cnn"], rel=1e-5)
    looks = [
        PerturbedSlices(images, Segmentation(), threads=threads).probabilities(toy.network)
        for threads in (alone, abreast)
    ]
    torch.testing.assert_close(looks[1], looks[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kept", [None, 0], ids=["one pass", "two passes"])
def test_threads_come_to_the_plain_renderings_objective_and_gradient(kept, padded, toy, cores):
    images = 1 - toy_scan(55, slices=5)[0] ** 2
    padding = None
    if padded:
        padding = torch.zeros_like(images, dtype=torch.bool)
        padding[..., :7] = True
        padding[2, :, :9] = True  # every slice has its own
    objective, plain = Plain.of(toy.network, toy.prior).gradient(images, padding)
    gradients, found, gradient = evaluation(toy, images, padding, kept)
    assert isinstance(gradients, ThreadedGradients) and gradients.threads.number == cores
    assert found == pytest.approx(objective, rel=1e-4)
    alone = WholeVolume(batch=1).objective(gradients.method, gradients.volume, torch.Generator())
    assert float(alone.objective) == pytest.approx(objective, rel=1e-4)
    expected = torch.cat([one.flatten() for one in plain])
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_a_step_is_bit_for_bit_the_same_whichever_thread_is_first(toy, cores):
    images = toy_scan(56, slices=6)[0]
    evaluate, objective, gradient = evaluation(toy, images)
    for _ in range(4):
        evaluate.clear()
        assert float(evaluate().objective.detach()) == objective
        assert torch.equal(torch.cat([parameter.grad.flatten() for parameter in evaluate.moving]), gradient)


def test_threads_share_the_cores_and_other_threads_keep_theirs(cores):
    threads = Threads(cores)
    everyone = Barrier(cores)

    def tell(_):
        everyone.wait()
        return torch.get_num_threads()

    assert threads.each(tell, range(cores)) == [1, 1]
    assert torch.get_num_threads() == cores


def test_gradients_are_recorded_where_the_caller_records_them(cores):
    threads = Threads(cores)
    with torch.no_grad():
        assert not any(threads.each(lambda _: torch.is_grad_enabled(), range(4)))
    assert all(threads.each(lambda _: torch.is_grad_enabled(), range(4)))


def test_an_error_in_a_thread_is_the_callers(cores):
    def fail(number):
        raise ValueError(f"no such batch: {number}")

    with pytest.raises(ValueError, match="no such batch: 0"):
        Threads(cores).each(fail, range(3))


def test_each_thread_records_its_own_features(toy, cores):
    scans = [toy_scan(seed, slices=1)[0] for seed in (57, 58)]
    met = Barrier(cores)

    def meet(*_):
        met.wait()

    with torch.no_grad(), Recorder(toy.network, toy.prior.layers()) as record:
        expected = [record(scan) for scan in scans]
        first = toy.network.task.register_forward_pre_hook(meet)
        found = Threads(cores).each(record, scans)
        first.remove()
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one.features[layer], other.features[layer]) for layer in toy.prior.layers())


class Strange(nn.Identity):
    """A layer of unknown make, which may mind being called by two threads at once."""


def test_networks_of_unknown_make_and_other_methods_go_one_batch_at_a_time(toy, cores):
    images = toy_scan(59)[0]
    network = deepcopy(toy.network)
    network.task.add_module("strange", Strange())
    assert evaluation(toy, images, network=network)[0].__class__ is VolumeGradients
    assert evaluation(toy, images, network=insert_default_adaptors(toy.network))[0].__class__ is VolumeGradients
    assert evaluation(toy, images, method="entropy")[0].__class__ is VolumeGradients
    assert evaluation(toy, images[:1])[0].__class__ is VolumeGradients
