"""3D networks that see windows: one prior for one window, all windows predicted, few of them read and stepped on."""

from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch
from monai.inferers import sliding_window_inference
from torch import nn
from torch.profiler import ProfilerActivity, profile

import scantune
from scantune import AdaptableNetwork, FieldOfExperts, InputError
from scantune.adaptation.guard.rescue import RESCUE_STEPS
from scantune.backends import Tiling, VolumePreprocessing
from scantune.experts import PatchSettings
from scantune.model.model import Model
from scantune.networks import Normalizer
from scantune.prior.prediction_reader import HomeScan, PredictionReader
from scantune.scans.case import Case
from scantune.scans.volume import Volume
from scantune.training.fit import fit_prior

WINDOW = (8, 8, 8)
PATCHES = PatchSettings(4, 2, 2, 0.1)


def volume(seed, shape=(20, 24, 16), channels=1):
    """A bright ball in noise, `(1, channels, depth, height, width)`, and its labels."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.meshgrid(*(torch.linspace(-1, 1, length) for length in shape), indexing="ij")
    ball = sum(axis**2 for axis in axes) < 0.4
    noise = 0.05 * torch.randn(1, channels, *shape, generator=generator)
    return (0.2 + 0.5 * ball + noise).clamp(0, 1), ball.long()[None]


@pytest.fixture(scope="module")
def network():
    """A tiny 3D network whose output follows the brightness of its input, with some texture."""
    torch.manual_seed(0)
    made = AdaptableNetwork.default(classes=2, dimensions=3, width=2).eval()
    with torch.no_grad():
        for parameter in made.normalizer.parameters():
            parameter.mul_(0.1)
    return made


@pytest.fixture(scope="module")
def prior(network):
    return FieldOfExperts.fit(network, [volume(seed)[0] for seed in range(3)], patches=PATCHES, window=WINDOW)


class TestThePriorsWindow:
    def test_it_survives_a_file_and_is_left_out_where_there_is_none(self, prior, network, toy, tmp_path):
        prior.save(tmp_path / "prior.safetensors")
        assert FieldOfExperts.load(tmp_path / "prior.safetensors").window == WINDOW
        assert "window" not in toy.prior.record()

    def test_energies_are_those_of_the_windows_at_home(self, prior, network):
        scan = volume(7)[0]
        part = Tiling(WINDOW).sample(scan)
        assert len(part.images) == 8
        assert prior.energy(network, scan) == pytest.approx(prior.energy(network, part.images), rel=1e-6)

    def test_a_model_of_another_window_is_refused(self, prior, network):
        case = Case("ball", volume(3)[0][0, 0].numpy(), np.eye(4))
        for window, seen in (((16, 8, 8), "windows of 16 x 8 x 8"), (None, "whole slices or volumes")):
            model = Model(network, {"ball": 1}, VolumePreprocessing(window=window), {"kind": "custom"}, prior=prior)
            with pytest.raises(InputError, match=f"fitted to windows of 8 x 8 x 8, but the network sees {seen}"):
                scantune.adapt(model, case)

    def test_a_volume_of_other_dimensions_is_refused(self, prior, network):
        with pytest.raises(InputError, match="windows of 3 dimensions, but the volume has shape"):
            scantune.adapt(network, torch.rand(2, 1, 16, 16), prior=prior)


def test_all_windows_of_a_tensor_are_predicted(prior, network):
    scan = volume(9)[0]
    result = scantune.adapt(network, scan, prior=prior, steps=1, guard=False)
    for survey, adapted in ((result.source, network), (result.adapted, result.network)):
        with torch.no_grad():
            expected = sliding_window_inference(scan, WINDOW, 1, lambda part: adapted(part).softmax(1), 0.5, "gaussian")  # noqa: B023
        torch.testing.assert_close(survey.probabilities, expected, rtol=1e-4, atol=1e-5)
    assert result.prediction.shape == (1, 20, 24, 16)


def test_a_file_is_adapted_in_windows_and_put_back_on_its_grid(prior, network, tmp_path):
    image = volume(9)[0][0, 0].permute(2, 1, 0).numpy()
    nibabel.save(nibabel.Nifti1Image(image, np.diag([1.0, 1.0, 2.0, 1.0])), tmp_path / "ball.nii.gz")
    backend = VolumePreprocessing(window=WINDOW, spacing=(1.0, 1.0, 1.0))
    model = Model(network, {"ball": 1}, backend, {"kind": "unet", "classes": 2, "dimensions": 3, "width": 2})
    cases = [backend.prepare(Case(str(seed), volume(seed)[0][0, 0].numpy(), np.eye(4))) for seed in range(3)]
    model = replace(model, prior=fit_prior(model, cases))
    model.save(tmp_path / "model.safetensors")
    again = scantune.load(tmp_path / "model.safetensors")
    assert again.backend == backend
    assert again.prior.window == WINDOW
    result = scantune.adapt(again, tmp_path / "ball.nii.gz", steps=1)
    entry = result.save(tmp_path / "out")
    assert nibabel.load(tmp_path / "out" / entry["outputs"]["segmentation"]).shape == image.shape
    assert (tmp_path / "out" / entry["outputs"]["page"]).is_file()
    assert result.source.probabilities.shape == (1, 2, 40, 24, 16)


def test_readings_stand_for_the_whole_scan(network, prior):
    scan, labels = volume(5)
    part = Tiling(WINDOW).sample(scan, reference=labels)
    reader = PredictionReader.of(part, scantune.tasks.Segmentation(), 1, voxel_ml=1.0)
    assert reader.voxel_ml * reader.images[:, 0].numel() == pytest.approx(scan.numel())


def test_sizes_count_for_tensors_that_are_seen_in_windows():
    """Their voxels have an unknown volume, as those at home have."""
    layers = nn.Sequential(nn.Conv3d(1, 2, 1), nn.Conv3d(2, 2, 1))
    with torch.no_grad():
        for layer, weights, bias in zip(layers, ([1, 1], [-1, 0, 1, 0]), ([0, 0], [0.45, -0.45]), strict=True):
            layer.weight.copy_(torch.tensor(weights).float().view_as(layer.weight))
            layer.bias.copy_(torch.tensor(bias))
    known = FieldOfExperts.fit(layers, [volume(seed)[0] for seed in range(3)], patches=PATCHES, window=WINDOW)
    known = known.calibrated(layers, [volume(seed)[0] for seed in (3, 4)])
    usual, bright = (scantune.adapt(layers, volume(5)[0] + more, prior=known, method="source") for more in (0, 0.5))
    assert not any("implausibly" in warning for warning in usual.warnings)
    assert any("implausibly large" in warning for warning in bright.warnings)
    assert bright.facts["verdict"] == "failed"
    in_ml = replace(known.calibration, home=replace(known.calibration.home, in_voxels=False))
    unlike = scantune.adapt(layers, volume(5)[0] + 0.5, prior=replace(known, calibration=in_ml), method="source")
    assert not any("implausibly" in warning for warning in unlike.warnings)


def calibrated(network, prior):
    """The prior with readings of held-out scans, which are the same whether windows or whole scans are given."""
    scans = [volume(seed) for seed in range(20, 26)]
    parts = [Tiling(WINDOW).sample(scan, reference=labels) for scan, labels in scans]
    known = prior.calibrated(network, map(HomeScan, parts), task=scantune.tasks.Segmentation())
    whole = [HomeScan(Volume(images, reference=labels)) for images, labels in scans]
    again = prior.calibrated(network, whole, task=scantune.tasks.Segmentation())
    assert torch.equal(known.calibration.home.dice, again.calibration.home.dice)
    return known


@pytest.mark.parametrize(
    ("known", "scan", "steps"),
    [
        (lambda _network, prior: prior, 1 - volume(11)[0], RESCUE_STEPS),
        (calibrated, 1 - volume(11)[0], RESCUE_STEPS),
        (lambda _network, prior: prior, volume(11)[0], 0),
    ],
    ids=["training subjects", "held-out subjects", "left alone"],
)
def test_the_assessment_costs_at_most_a_quarter_of_a_run(network, prior, monkeypatch, known, scan, steps):
    """Passes of windows through the network: one with a gradient costs as much as three without."""
    chosen = known(network, prior)
    spent = {"reading": 0, "all": 0}

    def count(module, inputs):
        spent["all"] += len(inputs[0]) * (3 if torch.is_grad_enabled() and inputs[0].requires_grad else 1)

    def counted(self, network, name=""):
        before = spent["all"]
        found = labels_of(self, network, name)
        spent["reading"] += spent["all"] - before
        return found

    labels_of = PredictionReader.labels
    monkeypatch.setattr(PredictionReader, "labels", counted)
    handle = network.task.register_forward_pre_hook(count)
    result = scantune.adapt(network, scan, prior=chosen)
    handle.remove()
    assert len(result.trace) == (steps + 1 if steps else 0)
    assert 0 < spent["reading"] <= spent["all"] / 4


def test_the_guard_of_a_prior_without_readings_costs_at_most_a_quarter_of_a_run(network, prior):
    """By the passes of a run with it, and of one without, which takes the same steps."""
    passes = {True: 0, False: 0}

    def count(module, inputs):
        passes[torch.is_grad_enabled() and inputs[0].requires_grad] += len(inputs[0])

    scan, old = 1 - volume(11)[0], replace(prior, trained=None)
    runs = {}
    for guard in (True, False):
        passes |= {True: 0, False: 0}
        handle = network.task.register_forward_pre_hook(count)
        scantune.adapt(network, scan, prior=old, guard=guard, stop="never")
        handle.remove()
        runs[guard] = passes[False] + 3 * passes[True]
    assert runs[False] > 0
    assert runs[True] - runs[False] <= runs[True] / 4


def peak_bytes(work):
    """The largest number of bytes that tensors have at once during some work, and its result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = work()
    held = most = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most, result


@pytest.mark.parametrize("how", [{"method": "source"}, {"steps": 1}, {"steps": 1, "guard": False}])
def test_memory_beside_the_scan_and_its_scores_does_not_grow_with_the_scan(how):
    """Of a network with so few features that a single map of all labels would show."""
    torch.manual_seed(0)
    layers = nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv3d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv3d(2, 2, 1)
    network = AdaptableNetwork(Normalizer.identity(1, hidden=1, dimensions=3), nn.Sequential(*layers)).eval()
    window = (16, 16, 16)
    with torch.no_grad():  # so that half of a volume is a structure
        layers[-1].bias[1] -= network(volume(1, window)[0]).diff(dim=1).median()
    known = FieldOfExperts.fit(network, [volume(1, window)[0]], patches=PATCHES, window=window)
    known = known.calibrated(network, [volume(2, window)[0]])
    beside = []
    for length in (32, 64):
        scan = 1 - volume(3, (length,) * 3)[0]
        most, result = peak_bytes(lambda: scantune.adapt(network, scan, prior=known, **how))  # noqa: B023
        assert len(result.trace) == 2 * ("steps" in how)  # its sizes are not those of a window, so that it has failed
        scores = {id(each): each.probabilities for each in (result.source, result.adapted)}.values()
        beside.append(most - sum(4 * part.numel() for part in scores))
    assert beside[1] <= 1.2 * beside[0]
