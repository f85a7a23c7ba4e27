from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import scantune
from scantune import AdaptableNetwork, Case, FieldOfExperts, InputError, Model
from scantune.adaptation.guard.base import Decision
from scantune.adaptation.guard.stability import StabilityGuard
from scantune.adaptation.scan_guard import ScanGuard
from scantune.adaptation.schedules import PRESETS
from scantune.backends.slices import PreparedSlices, Preprocessing
from scantune.methods import OutputCache
from scantune.prior.calibration import EnergyLevels
from scantune.scans.volume import Volume
from tests.conftest import TOY_PATCHES, dice, toy_scan, train_toy


@pytest.fixture(scope="module")
def model(toy):
    return Model(
        network=toy.network,
        labels={"rim": 1, "core": 2},
        backend=Preprocessing(size=(48, 48)),
        architecture={"kind": "unet", "classes": 3, "width": 8},
        prior=toy.prior,
    )


def unread(prior):
    """A prior without home readings, as files of version 0.1 have it, so that the older guard decides."""
    known = prior.calibration
    return replace(prior, trained=None, calibration=None if known is None else replace(known, home=None))


def as_case(seed, name="scan", gamma=1.0):
    """A toy scan as a file would give it: `(x, y, z)` with slices last, and labels on the same grid."""
    images, labels = toy_scan(seed)
    affine = np.diag([-1.0, -1.0, 3.0, 1.0])
    turned = (images[:, 0] ** gamma).permute(2, 1, 0).numpy()
    return Case(name, 200 * turned, affine, reference=labels.permute(2, 1, 0).numpy().astype(np.uint8))


@pytest.mark.parametrize("gamma", [2.5, 0.6])
def test_a_gamma_shifted_scan_gains_dice(gamma, toy):
    images, labels = toy_scan(100)
    result = scantune.adapt(toy.network, images**gamma, prior=toy.prior, method="foe-cnn-pca")
    assert dice(toy.network(images).argmax(1), labels) > 0.95
    assert dice(result.prediction, labels) > dice(result.source_prediction, labels) + 0.1
    assert result.energy_after < 0.5 * result.energy_before
    assert result.decision.action == "adapted"
    assert result.facts["estimate"] == "agreement"
    assert result.facts["expected_range"] is None


def test_a_new_scan_of_home_is_left_alone_without_held_out_scans(toy):
    result = scantune.adapt(toy.network, toy_scan(100)[0], prior=toy.prior)
    assert result.decision.action == "left alone"
    assert result.trace == []


def monai_network(**settings):
    from monai.networks.nets import UNet

    return UNet(in_channels=1, out_channels=3, channels=(8, 16), strides=(2,), **settings)


def test_a_monai_network_with_instance_norm_is_adapted():
    torch.manual_seed(0)
    network = train_toy(monai_network(spatial_dims=2, norm="instance"), iterations=80)
    prior = FieldOfExperts.fit(network, [toy_scan(seed)[0] for seed in range(4)], patches=TOY_PATCHES)
    result = scantune.adapt(network, toy_scan(101)[0] ** 2.5, prior=prior, steps=20, guard=False)
    assert result.energy_after < 0.7 * result.energy_before
    assert torch.equal(result.source_prediction, network(toy_scan(101)[0] ** 2.5).argmax(1))


def test_a_3d_network_is_adapted():
    torch.manual_seed(0)
    network = monai_network(spatial_dims=3, norm="batch").eval()
    volumes = [toy_scan(seed, slices=16, size=24)[0].transpose(0, 1).unsqueeze(0) for seed in range(3)]
    prior = unread(FieldOfExperts.fit(network, volumes))
    result = scantune.adapt(network, volumes[0] ** 2.5, prior=prior, steps=10)
    assert result.prediction.shape == (1, 16, 24, 24)
    assert result.energy_after < result.energy_before


class SigmoidPair(nn.Module):
    """Two independent structures, as probabilities, beside something else."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.head(self.body(x)).sigmoid(), x.mean()


def test_a_network_with_sigmoid_outputs_in_a_tuple_is_adapted():
    torch.manual_seed(0)
    network = SigmoidPair()
    prior = FieldOfExperts.fit(network, [toy_scan(seed)[0] for seed in range(3)], layers=["body.0", "body.2"])
    result = scantune.adapt(network, toy_scan(102)[0] ** 2.5, prior=prior, steps=10, guard=False)
    assert result.energy_after < result.energy_before
    assert set(result.prediction.unique().tolist()) <= {0, 1, 2}


def test_a_case_is_predicted_on_its_own_grid(model):
    case = as_case(103, gamma=2.0)
    result = scantune.adapt(model, case, guard=False)
    assert result.prediction.shape == case.image.shape
    assert result.prediction.dtype == np.uint8
    before = dice(torch.from_numpy(result.source_prediction), torch.from_numpy(case.reference))
    after = dice(torch.from_numpy(result.prediction), torch.from_numpy(case.reference))
    assert after > before


def test_a_file_is_adapted_and_saved(model, tmp_path):
    import json

    import nibabel

    case = as_case(104)
    nibabel.save(nibabel.Nifti1Image(case.image, case.affine), tmp_path / "s1.nii.gz")
    result = scantune.adapt(model, tmp_path / "s1.nii.gz", steps=2)
    entry = result.save(tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "labels.ctbl",
        "labels.txt",
        "manifest.json",
        "s1_page.html",
        "s1_seg.nii.gz",
        "s1_source_seg.nii.gz",
        "statistics.json",
        "volumes.csv",
    ]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["decision"] == entry["decision"] == result.decision.action
    assert manifest["scans"]["s1"]["reason"] == result.decision.reason
    written = nibabel.load(tmp_path / "out" / "s1_seg.nii.gz")
    labels = np.asarray(written.dataobj)
    assert np.array_equal(labels, result.prediction)
    assert entry["volumes_ml"]["core"] == pytest.approx((labels == 2).sum() * 3 / 1000, abs=1e-3)


@pytest.mark.parametrize(("action", "times"), [("adapted", 2), ("unsolved", 1)])
def test_a_prediction_is_resampled_once_however_often_it_is_asked_for(model, monkeypatch, tmp_path, action, times):
    resampled = []
    to_native = PreparedSlices.to_native
    monkeypatch.setattr(PreparedSlices, "to_native", lambda *args: resampled.append(args) or to_native(*args))
    monkeypatch.setattr(ScanGuard, "decide", lambda *_, **__: Decision(action, "so it is."))
    result = scantune.adapt(replace(model, prior=unread(model.prior)), as_case(104), steps=1)
    result.save(tmp_path)
    assert result.prediction is result.prediction
    assert len(resampled) == times


def test_a_result_whose_page_cannot_be_written_is_saved_without_it(model, tmp_path, monkeypatch, caplog):
    import json

    def broken(*_):
        raise ValueError("no such colour")

    monkeypatch.setattr("scantune.pages.write_case", broken)
    entry = scantune.adapt(model, as_case(104), method="source").save(tmp_path)
    (written,) = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["scans"].values()
    for told in (entry["page_failure"], written["page_failure"], caplog.text):
        assert "_page.html could not be written, for an unforeseen reason (ValueError: no such colour)." in told
    assert all((tmp_path / name).is_file() for name in entry["outputs"].values())
    assert "page" not in entry["outputs"]


def test_a_tensor_has_no_grid_to_save_on(toy, tmp_path):
    result = scantune.adapt(toy.network, toy_scan(105)[0], method="source")
    with pytest.raises(InputError, match="Only a scan from a file"):
        result.save(tmp_path)


def test_a_rollback_returns_the_source(toy, monkeypatch):
    monkeypatch.setattr(StabilityGuard, "decision", lambda _: Decision("unsolved", "because."))
    scan = toy_scan(106)[0] ** 2
    result = scantune.adapt(toy.network, scan, prior=unread(toy.prior), steps=3, device="cpu")
    assert result.decision.reason == "because."
    assert torch.equal(result.prediction, result.source_prediction)
    assert torch.equal(result.network(scan), toy.network(scan))
    free = scantune.adapt(toy.network, scan, prior=toy.prior, steps=3, guard=False)
    assert free.decision.action == "adapted"
    assert free.energy_after < result.energy_after


@pytest.fixture(scope="module")
def calibrated(toy):
    """The toy prior, with eight subjects held out, without home readings, as files of version 0.1 have it.

    A typical scan has 0.002 nats, a gamma of 1.5 makes it 0.27.
    """
    return unread(toy.prior.calibrated(toy.network, [(toy_scan(seed)[0], None) for seed in range(200, 208)]))


@pytest.mark.parametrize("method", ["entropy", "foe-cnn", "foe-cnn-pca"])
def test_a_typical_scan_is_left_as_it_is(method, toy, calibrated):
    scan = toy_scan(100)[0]
    low = 2 * toy.prior.energy(toy.network, scan)
    calibrated = replace(calibrated, calibration=replace(calibrated.calibration, levels=EnergyLevels(low, low, 1.0)))
    result = scantune.adapt(toy.network, scan, prior=calibrated, method=method, device="cpu")
    assert result.decision.action == "left alone"
    assert result.decision.reason == (
        f"the scan is as typical as source subjects: energy {low / 2:.4g}, theirs from {low:.4g}."
    )
    assert result.trace == []
    assert torch.equal(result.network(scan), toy.network(scan))


@pytest.mark.parametrize("method", ["foe-cnn", "foe-cnn-pca"])
def test_a_shifted_scan_can_be_adapted_until_it_is_typical(method, toy, calibrated):
    images, labels = toy_scan(100)
    result = scantune.adapt(toy.network, images**1.5, prior=calibrated, method=method, stop="typical")
    typical = calibrated.calibration.typical
    *before, last = (row["cnn"] for row in result.trace)
    assert min(before) > typical >= last
    assert len(before) < PRESETS["fast"].steps
    assert result.facts["reading_before"] == "far out"
    assert result.decision.action == "adapted"
    assert dice(result.prediction, labels) > dice(result.source_prediction, labels) + 0.05


def test_the_most_stable_step_is_kept_and_its_numbers_are_told(toy, calibrated):
    images, labels = toy_scan(100)
    result = scantune.adapt(toy.network, images**1.5, prior=calibrated, method="foe-cnn")
    assert result.decision.action == "adapted"
    assert result.facts["guard"] == result.decision.numbers
    assert result.decision.numbers["stability_after"] > result.decision.numbers["stability_before"]
    chosen = result.trace[result.facts["best_step"]]
    assert result.energy_after == pytest.approx(chosen["cnn"], rel=1e-4)
    assert dice(result.prediction, labels) > dice(result.source_prediction, labels) + 0.05


@pytest.mark.parametrize("gamma", [0.4, 0.6])
def test_a_scan_on_which_the_source_failed_is_rescued_under_the_guard(gamma, toy, calibrated):
    """With a gamma of 0.4 the source is wrong, and as stable as can be; its proportions tell."""
    images, labels = toy_scan(100)
    result = scantune.adapt(toy.network, images**gamma, prior=calibrated, steps=40)
    assert dice(result.source_prediction, labels) < 0.6
    assert result.decision.action == "adapted"
    assert dice(result.prediction, labels) > 0.9


def judged(monkeypatch, *actions):
    """Lets the guard give these verdicts, and returns the looks that it was given."""
    looks = []

    def verdict(guard, look, _energy):
        looks.append(look)
        guard.looks += 1
        action = actions[min(len(looks), len(actions)) - 1]
        guard.best = look if action == "accepted" else guard.best
        return action

    monkeypatch.setattr(StabilityGuard, "verdict", verdict)
    return looks


def test_an_adaptation_that_strays_is_stopped_and_rolled_back(toy, calibrated, monkeypatch):
    looks = judged(monkeypatch, "strayed")
    scan = toy_scan(100)[0] ** 1.5
    result = scantune.adapt(toy.network, scan, prior=calibrated)
    assert len(looks) == 1
    better = [row["objective"] < result.trace[0]["objective"] for row in result.trace]
    assert better == [False] * (len(better) - 1) + [True]
    assert result.facts["best_step"] == 0
    assert result.decision.action == "unsolved"
    assert result.state == {}
    assert torch.equal(result.prediction, toy.network(scan).argmax(1))


def test_the_guard_sees_the_prediction_of_the_step_it_is_asked_about(toy, calibrated, monkeypatch):
    looks = judged(monkeypatch, "accepted", "strayed")
    result = scantune.adapt(toy.network, toy_scan(100)[0] ** 1.5, prior=calibrated)
    assert looks[0].counts == tuple(torch.bincount(result.prediction.flatten(), minlength=3)[1:].tolist())
    assert not torch.equal(result.prediction, result.source_prediction)


def test_a_look_at_a_step_does_not_predict_again_what_the_step_has_predicted(toy, monkeypatch):
    def run():
        """A result, and how many slices were shown to networks on the way."""
        shown = []
        with monkeypatch.context() as patch:
            call = AdaptableNetwork.forward
            patch.setattr(AdaptableNetwork, "forward", lambda self, x: shown.append(len(x)) or call(self, x))
            scan = toy_scan(100)[0] ** 1.5
            return scantune.adapt(toy.network, scan, prior=unread(toy.prior), steps=4, device="cpu"), sum(shown)

    result, few = run()
    monkeypatch.setattr(OutputCache, "output", lambda _latest: None)
    expected, many = run()
    assert many - few == result.decision.numbers["looks"] * len(toy_scan(100)[0])
    assert result.decision.numbers == pytest.approx(expected.decision.numbers)
    torch.testing.assert_close(result.adapted.probabilities, expected.adapted.probabilities)


@pytest.mark.parametrize(("verdict", "action"), [("accepted", "adapted"), ("refused", "unsolved")])
def test_in_the_papers_preset_the_guard_judges_the_end_alone(verdict, action, toy, calibrated, monkeypatch):
    looks = judged(monkeypatch, verdict)
    scan = toy_scan(100)[0] ** 1.5
    result = scantune.adapt(toy.network, scan, prior=calibrated, method="batchnorm", preset="paper", guard=True)
    assert len(looks) == 1
    assert result.decision.action == action


def test_without_a_prior_the_guard_judges_all_the_same(toy):
    result = scantune.adapt(toy.network, toy_scan(100)[0] ** 1.5, method="entropy", steps=3)
    assert result.decision.numbers["looks"] >= 1
    assert "reading_before" not in result.facts


@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_without_the_guard_nothing_is_skipped_or_stopped(gamma, toy, calibrated, monkeypatch):
    monkeypatch.setattr(StabilityGuard, "verdict", lambda *_: pytest.fail("the guard was asked"))
    result = scantune.adapt(toy.network, toy_scan(100)[0] ** gamma, prior=calibrated, steps=6, guard=False)
    assert len(result.trace) == 7
    assert result.decision.action == "adapted"


@pytest.mark.parametrize("preset", PRESETS)
def test_progress_is_told_step_by_step(preset, toy):
    told = []
    scan = toy_scan(108)[0] ** 2
    scantune.adapt(toy.network, scan, prior=toy.prior, preset=preset, steps=3, on_step=lambda *a: told.append(a))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_energies_are_told_only_of_experts_with_enough_samples(toy):
    full = scantune.adapt(toy.network, toy_scan(109)[0], prior=toy.prior, steps=0)
    empty = scantune.adapt(toy.network, torch.zeros(2, 1, 48, 48), prior=toy.prior, steps=0)
    assert set(full.source.energies) == {"cnn", "pca"}
    assert set(empty.source.energies) == {"cnn"}


def test_zero_steps_are_the_source(toy):
    result = scantune.adapt(toy.network, toy_scan(109)[0] ** 2, prior=toy.prior, steps=0)
    assert result.decision.action == "unsolved"
    assert torch.equal(result.prediction, result.source_prediction)


def test_zero_steps_are_the_source_for_methods_that_jump_too(toy):
    scan = toy_scan(109)[0] ** 2
    result = scantune.adapt(toy.network, scan, method="batchnorm", steps=0, guard=False, device="cpu")
    assert result.trace == []
    assert torch.equal(result.network(scan), toy.network(scan))


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, PRESETS["fast"].steps), ({"reference": "random"}, 50), ({"schedule": "bottom-up"}, 50)],
)
def test_the_fast_preset_takes_adams_steps_where_the_objective_changes(options, steps, toy):
    told = []
    settings = {"prior": toy.prior, "method": "foe-cnn", "guard": False}
    scan = toy_scan(109, slices=1, size=32)[0] ** 2
    scantune.adapt(toy.network, scan, options=options, on_step=lambda *told_: told.append(told_), **settings)
    assert told[0] == (1, steps)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"method": "magic"}, "Unknown method 'magic'. Available: source"),
        ({"preset": "slow"}, "Unknown preset 'slow'. Available: fast, paper, converged"),
        ({"steps": -1}, "steps must be 0 or more"),
        ({"device": "cuda"}, "cuda is not available"),
        ({"device": "toaster"}, "toaster is not available"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(arguments, complaint, toy):
    if arguments.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match=complaint):
        scantune.adapt(toy.network, toy_scan(110)[0], prior=toy.prior, **arguments)


@pytest.mark.parametrize(
    ("scan", "complaint"),
    [
        (torch.zeros(48, 48), "expected .slices, channels, height, width"),
        (torch.full((1, 1, 48, 48), float("inf")), "NaN or infinite"),
        ("scan.nii.gz", "needs a model"),
    ],
)
def test_scans_that_cannot_be_adapted_to_are_refused(scan, complaint, toy):
    with pytest.raises(InputError, match=complaint):
        scantune.adapt(toy.network, scan, prior=toy.prior)


def test_a_prior_of_another_network_is_refused(toy):
    other = AdaptableNetwork.default(classes=3, width=4)
    with pytest.raises(InputError, match="does not match the network"):
        scantune.adapt(other, toy_scan(111)[0], prior=toy.prior)


def test_the_paper_draws_as_many_slices_as_are_asked_for(toy, monkeypatch):
    drawn = []
    plain = Volume.draw
    monkeypatch.setattr(Volume, "draw", lambda self, count, g: (drawn.append(count), plain(self, count, g))[1])
    scantune.adapt(toy.network, toy_scan(3)[0], toy.prior, preset="paper", steps=1, batch=2, device="cpu")
    # Four slices are two batches of two, for the step and for the look after it.
    assert drawn == [2, 2, 2, 2]
    with pytest.raises(InputError, match="batch must be 1 or more"):
        scantune.adapt(toy.network, toy_scan(3)[0], toy.prior, batch=0, device="cpu")


def test_an_unknown_method_is_refused_before_the_scan_is_read(toy, tmp_path):
    model = scantune.Model(toy.network, {"rim": 1, "core": 2}, Preprocessing(size=(48, 48)), {"kind": "custom"})
    with pytest.raises(InputError, match="magic"):
        scantune.adapt(model, tmp_path / "missing.nii.gz", method="magic")


def test_a_result_is_described_in_a_line(toy):
    result = scantune.adapt(toy.network, toy_scan(100)[0], prior=toy.prior, method="source")
    assert repr(result).startswith("Result(a tensor, decision='left alone', reason='")
    assert len(repr(result)) < 300
