"""The fast path computes what the plain rendering computes, on every way that it takes."""

import runpy
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import scantune
from scantune import FieldOfExperts
from scantune.adaptation.sampling import WholeVolume
from scantune.experts import Recorder, fused
from scantune.methods import ModelParts
from scantune.methods.foe import FoECNNPCA
from scantune.networks import set_memory_layout
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan
from tests.plain import Plain

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast(toy, prior, volume, sampling, layout="channels first"):
    """Objective and gradients of the fast path."""
    method = FoECNNPCA(ModelParts(Segmentation(), prior.to(DEVICE)))
    network = deepcopy(toy.network).to(DEVICE).requires_grad_(False)
    set_memory_layout(network, layout)
    moving = list(method.parameters(network).values())
    method.prepare(network)
    for parameter in moving:
        parameter.requires_grad_(True)
    terms = sampling.gradients(method, volume, torch.Generator())()
    method.finish()
    return float(terms.objective.detach()), [parameter.grad.cpu() for parameter in moving], terms


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sampling", [WholeVolume(), WholeVolume(batch=3), WholeVolume(batch=3, kept=0)])
def test_objective_and_gradient_are_those_of_the_plain_rendering(sampling, padded, layout, toy):
    images, _ = toy_scan(50)
    images = 1 - images**2
    padding = None
    if padded:
        padding = torch.zeros_like(images, dtype=torch.bool)
        padding[..., :11] = True
    objective, gradients = Plain.of(toy.network, toy.prior).gradient(images, padding)
    volume = Volume(images.to(DEVICE), None if padding is None else padding.to(DEVICE))
    found, its, terms = fast(toy, toy.prior, volume, sampling, layout)
    assert terms.valid
    assert found == pytest.approx(objective, rel=1e-4)
    scale = max(float(one.abs().max()) for one in gradients)
    for one, other in zip(gradients, its, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_features_lie_in_memory_as_the_weights_do(layout, toy):
    network = deepcopy(toy.network)
    set_memory_layout(network, layout)
    with torch.no_grad(), Recorder(network, toy.prior.layers()) as record:
        recording = record(toy_scan(51)[0])
    strides = {feature.stride(1) == 1 for feature in recording.features.values()}
    assert strides == {layout == "channels last"}
    with torch.no_grad():
        torch.testing.assert_close(recording.output, toy.network(toy_scan(51)[0]), rtol=1e-4, atol=1e-4)


def test_a_network_that_was_measured_with_padding_predicts_any_number_of_slices(toy):
    images, _ = toy_scan(54, slices=3)
    network = deepcopy(toy.network).requires_grad_(False)
    set_memory_layout(network, "channels last")
    method = FoECNNPCA(ModelParts(Segmentation(), toy.prior))
    method.prepare(network)
    with torch.no_grad():
        method.measure(next(Volume(images, images < 0.2).batches(2)))
        torch.testing.assert_close(network(images), toy.network(images), rtol=1e-4, atol=1e-4)
    method.finish()


def test_predictions_between_steps_are_not_measured(toy, monkeypatch):
    images, _ = toy_scan(55, slices=2)
    network = deepcopy(toy.network).requires_grad_(False)
    set_memory_layout(network, "channels last")
    method = FoECNNPCA(ModelParts(Segmentation(), toy.prior))
    method.prepare(network)
    measured = []
    apply = fused._Activate.apply
    monkeypatch.setattr(fused._Activate, "apply", lambda *args: measured.append(args) or apply(*args))
    with torch.no_grad():
        torch.testing.assert_close(network(images), toy.network(images), rtol=1e-4, atol=1e-4)
        assert not measured
        method.measure(next(Volume(images).batches(2)))
        assert len(measured) == len(method.statistics.fused.activations) > 0
        network(images)
        assert len(measured) == len(method.statistics.fused.activations)
    method.finish()


class Viewing(nn.Module):
    """Looks at its features in a way that only one layout allows."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(1, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x):
        h = self.one(x)
        return self.two(h.view(len(h), 2, -1).mean(1).view(len(h), 2, *h.shape[2:]).repeat(1, 2, 1, 1))


def test_a_network_that_cannot_have_channels_last_is_adapted_all_the_same():
    torch.manual_seed(0)
    network = Viewing().eval()
    prior = FieldOfExperts.fit(network, [toy_scan(seed, slices=2)[0] for seed in (1, 2)])
    result = scantune.adapt(network, 1 - toy_scan(52, slices=2)[0], prior, steps=2, device="cpu")
    assert result.trace[-1]["objective"] < result.trace[0]["objective"]


class Counted(FoECNNPCA):
    """Counts the slices that go through the network."""

    seen = 0

    def measure(self, batch):
        self.seen += len(batch.images)
        return super().measure(batch)


def test_what_is_kept_for_the_gradient_is_bounded_in_bytes(toy):
    images, _ = toy_scan(53, slices=6)
    seen = {}
    for kept in (0, 3_000_000, 300_000_000):
        method = Counted(ModelParts(Segmentation(), toy.prior))
        network = deepcopy(toy.network).requires_grad_(False)
        method.prepare(network)
        for parameter in method.parameters(network).values():
            parameter.requires_grad_(True)
        WholeVolume(batch=2, kept=kept).gradients(method, Volume(images), torch.Generator())()
        seen[kept] = method.seen
    # Features of 48 x 48 pixels, 8 channels wide: a few MB a slice.
    assert seen == {0: 12, 3_000_000: 12, 300_000_000: 6}


def test_stages_are_timed_without_those_that_they_call(monkeypatch):
    clock = iter(range(100))
    scan = runpy.run_path(str(Path(__file__).parents[2] / "speed" / "scan.py"))
    monkeypatch.setitem(sys.modules, "toy_work", work := ModuleType("toy_work"))
    work.inner = lambda: next(clock)
    work.outer = lambda: (work.inner(), work.inner(), next(clock))
    watch = scan["Stopwatch"](lambda: next(clock))
    with watch.watching("toy_work:outer", "outside"), watch.watching("toy_work:inner", "inside"):
        work.outer()
    work.outer()
    # Marks at 0 (start), 1 (outer), 2 and 4 (inner), 5 and 7 (inner), 9 (end of outer): what is left is outer's own.
    assert watch.spent == [{"the command": 1, "outside": 1 + 1 + 2, "inside": 2 + 2}]


def test_the_script_writes_a_table_of_what_it_measured(tmp_path):
    script = Path(__file__).parents[2] / "speed" / "speed.py"
    words = [
        "--quick",
        "--only",
        "scans",
        "--slices",
        "2",
        "--size",
        "64",
        "--device",
        "cpu",
        "--out",
        tmp_path / "t.md",
    ]
    subprocess.run([sys.executable, script, *words], check=True, capture_output=True)
    table = (tmp_path / "t.md").read_text(encoding="utf-8")
    assert "| a scan, default preset, 2 x 64 x 64 |" in table
    assert " an hour |" in table
    assert "| scans from file to files, 2 at once, 2 x 64 x 64 |" in table
