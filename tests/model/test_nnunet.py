"""nnU-Net folders: trusted by word alone, fitted and adapted by two commands, and otherwise as nnU-Net predicts."""

import json
import os
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch

import scantune
from scantune import FieldOfExperts, InputError
from scantune.cli.main import main
from scantune.errors import ScanError
from scantune.scans.case import LabelMap
from scantune.scans.io import read_scan
from tests.cli.test_cli import error_line
from tests.toy_bundle import AFFINE, toy_volume
from tests.toy_nnunet import PATCHES, REGIONS, predict_by_hand, write_raw, write_results, write_scan

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: pip install 'scantune[nnunet]'")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained results folder of slices, with scans and its raw data beside it."""
    folder = tmp_path_factory.mktemp("nnunet")
    write_results(folder, "2d").rename(folder / "results")
    write_scan(folder, "home", toy_volume(7)[0])
    write_scan(folder, "shifted", 1 - 0.6 * toy_volume(8)[0])
    write_raw(folder / "raw", count=4)
    return folder


@pytest.fixture
def desk(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return trained


def voxels(path):
    image = nibabel.load(path)
    np.testing.assert_allclose(image.affine, AFFINE, atol=1e-5)
    return np.asarray(image.dataobj)


@pytest.mark.parametrize(
    ("configuration", "more"),
    [("2d", {}), ("3d_fullres", {}), ("2d", {"channels": 2})],
    ids=["2d", "3d_fullres", "two channels"],
)
def test_without_adaptation_every_voxel_is_that_of_nnunet(configuration, more, tmp_path):
    root = write_results(tmp_path / "results", configuration, **more)
    files = write_scan(tmp_path / "in", "ball", toy_volume(7)[0], more.get("channels", 1))
    model = scantune.load(root, trust=True)
    assert model.backend.window == PATCHES[configuration]
    assert model.backend.channels == len(files)
    ours = scantune.adapt(model, files[0], method="source", device="cpu").prediction
    theirs = predict_by_hand(root, files, tmp_path / "out")
    assert np.array_equal(ours, theirs)
    assert np.unique(ours).tolist() == [0, 1, 2]


def test_regions_are_masks_and_the_label_map_of_nnunet(tmp_path):
    root = write_results(tmp_path / "results", "3d_fullres", labels=REGIONS)
    (scan,) = write_scan(tmp_path / "in", "ball", toy_volume(7)[0])
    model = scantune.load(root, trust=True)
    result = scantune.adapt(model, scan, method="source", device="cpu")
    entry = result.save(tmp_path / "ours")
    theirs = predict_by_hand(root, [scan], tmp_path / "out")
    assert np.array_equal(voxels(tmp_path / "ours" / entry["outputs"]["segmentation"]), theirs)
    assert np.unique(theirs).tolist() == [0, 1, 2]
    whole, core = result.prediction
    assert np.array_equal(np.where(core, 2, whole), theirs)
    for name, mask in (("whole", whole), ("core", core)):
        assert np.array_equal(voxels(tmp_path / "ours" / entry["outputs"][f"segmentation {name}"]), mask)
        assert entry["volumes_ml"][name] == pytest.approx(mask.sum() * 4.5e-3, abs=1e-3)


def test_two_commands_adapt_an_nnunet_folder(desk, tmp_path, capsys):
    prior, out = str(tmp_path / "prior.safetensors"), tmp_path / "out"
    assert main(["fit", "results", "--data", "raw", "--out", prior, "--trust", "--device", "cpu"]) == 0
    scans = ["home_0000.nii.gz", "shifted_0000.nii.gz", "--model", "results", "--trust", "--device", "cpu"]
    assert main(["adapt", *scans, "--prior", prior, "--out", str(out), "--workers", "2", "--steps", "2"]) == 0
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["labels"] == {"organ": 1, "core": 2}
    home, shifted = (manifest["scans"][f"{name}_0000"] for name in ("home", "shifted"))
    assert shifted["energy_before"] > 5 * home["energy_before"]
    organ = (voxels(out / "home_0000_seg.nii.gz") == 1).sum()
    assert home["volumes_ml"]["organ"] == pytest.approx(organ * 4.5e-3, abs=1e-3)
    assert (out / "home_0000_page.html").exists()
    capsys.readouterr()
    assert main(["adapt", *scans, "--prior", prior, "--out", str(out), "--steps", "2"]) == 0
    assert "earlier run" in capsys.readouterr().out
    site = ["--site", "--steps", "1", "--no-page", "--out", str(tmp_path / "site")]
    assert main(["adapt", *scans, "--prior", prior, *site]) == 0


def test_info_describes_an_nnunet_folder(desk, capsys):
    assert main(["info", "results", "--trust"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Dataset501_Balls 2d" in shown
    assert "segmentation: organ = 1, core = 2" in shown
    assert "kind nnunet, network PlainConvUNet" in shown


@pytest.mark.parametrize("command", [["info"], ["fit", "--data", "raw", "--out", "prior.safetensors"], ["adapt"]])
def test_an_nnunet_folder_is_not_read_unless_it_is_trusted(command, desk, capsys):
    words = {"adapt": ["adapt", "home_0000.nii.gz", "--model", "results", "--out", "out"]}
    assert main(words.get(command[0], [command[0], "results", *command[1:]])) == 2
    told = error_line(capsys)
    assert "its checkpoints are pickles" in told
    assert "--trust" in told


def test_a_hostile_checkpoint_runs_nothing_unless_it_is_trusted(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    root = write_results(tmp_path, iterations=0)
    torch.save({"network_weights": Harm()}, root / "fold_0" / "checkpoint_final.pth")
    with pytest.raises(InputError, match="can run any code"):
        scantune.load(root)
    assert not (tmp_path / "ran").exists()


def test_a_fold_can_be_loaded_alone(tmp_path):
    root = write_results(tmp_path, folds=("0", "1"), iterations=0)
    images = torch.rand(1, 1, *PATCHES["2d"])
    one, two = (scantune.load(root / f"fold_{number}", trust=True) for number in (0, 1))
    assert one.provenance["folds"] == ["0"]
    assert not torch.equal(one.network(images), two.network(images))


def test_scans_that_nnunet_has_validated_on_are_held_out(tmp_path):
    root = write_results(tmp_path, iterations=0)
    write_scan(root / "fold_0" / "validation", "ball_2", toy_volume(2)[0])[0].rename(
        root / "fold_0" / "validation" / "ball_2.nii.gz"
    )
    model = scantune.load(root, trust=True)
    assert model.provenance["held_out"] == ["ball_2"]


def test_what_is_wrong_with_a_folder_is_told(tmp_path, desk):
    with pytest.raises(InputError, match="an nnU-Net folder has plans.json and fold_0/checkpoint_final.pth"):
        scantune.load(desk / "raw", trust=True)
    root = write_results(tmp_path, iterations=0)
    checkpoint = root / "fold_0" / "checkpoint_final.pth"
    # A cascade also sees the two structures that another network has found.
    wide = write_results(tmp_path / "wide", channels=3, iterations=0) / "fold_0" / "checkpoint_final.pth"
    plans = json.loads((root / "plans.json").read_text(encoding="utf-8"))
    plans["configurations"]["3d_cascade_fullres"] = plans["configurations"]["2d"] | {"previous_stage": "3d_lowres"}
    (root / "plans.json").write_text(json.dumps(plans), encoding="utf-8")
    content = torch.load(wide, weights_only=False) | {"init_args": {"configuration": "3d_cascade_fullres"}}
    torch.save(content, checkpoint)
    with pytest.raises(InputError, match="takes the prediction of another network; supported are 2d, 3d_fullres"):
        scantune.load(root, trust=True)
    checkpoint.write_bytes(b"no pickle")
    with pytest.raises(InputError, match="Does nnUNetv2_predict run with this folder"):
        scantune.load(root, trust=True)


def test_a_folder_is_not_stored_as_a_model_file(desk, tmp_path):
    with pytest.raises(InputError, match="Keep the folder, and store its prior alone"):
        scantune.load(desk / "results", trust=True).save(tmp_path / "m.safetensors")


class TestWhatTheNetworkSees:
    @pytest.fixture(params=PATCHES)
    def backend(self, request, tmp_path):
        return scantune.load(write_results(tmp_path / "r", request.param, iterations=0), trust=True).backend

    @pytest.fixture
    def case(self, tmp_path):
        image, labels = toy_volume(7)
        case = read_scan(write_scan(tmp_path, "ball", image)[0])
        return case.with_reference(LabelMap("labels", labels, AFFINE))

    def test_a_reference_is_where_the_image_is(self, backend, case):
        prepared = backend.prepare(replace(case, files=(), image=(case.reference > 0).astype(np.float32)))
        moved = prepared.volume[:, 0] > prepared.volume.mean()
        overlap = 2 * (moved & (prepared.reference > 0)).sum() / (moved.sum() + (prepared.reference > 0).sum())
        assert overlap > 0.95
        foreground = float((prepared.reference > 0).sum()) * backend.voxel_ml(prepared)
        assert foreground == pytest.approx((case.reference > 0).sum() * case.voxel_volume / 1000, rel=0.05)

    def test_windows_are_patches_with_their_labels(self, backend, case):
        prepared = backend.prepare(case)
        one, two = (backend.windows(prepared) for _ in range(2))
        assert torch.equal(one.images, two.images)
        assert tuple(one.images.shape[2:]) == backend.window == tuple(one.reference.shape[1:])
        covered = one.share * one.images[:, 0].numel()
        assert covered == pytest.approx(prepared.volume[:, 0].numel())

    def test_a_scan_without_files_or_in_another_format_is_the_same(self, backend, case, tmp_path):
        import SimpleITK

        own = backend.prepare(case)
        assert torch.allclose(backend.prepare(replace(case, files=())).volume, own.volume, atol=1e-5)
        SimpleITK.WriteImage(SimpleITK.ReadImage(str(case.files[0])), str(tmp_path / "ball.mha"))
        other = backend.prepare(read_scan(tmp_path / "ball.mha"))
        assert torch.allclose(other.volume, own.volume, atol=1e-5)

    def test_a_scan_that_nnunet_cannot_read_is_told(self, backend, case, tmp_path):
        broken = tmp_path / "broken_0000.nii.gz"
        broken.write_bytes(b"no image")
        with pytest.raises(ScanError, match="nnU-Net's preprocessing fails on ball"):
            backend.prepare(replace(case, files=(broken,)))


def test_a_prior_fits_networks_of_two_channels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path, channels=2, iterations=20).rename(tmp_path / "results")
    write_raw(tmp_path / "raw", count=3, channels=2)
    words = ["fit", "results", "--data", "raw", "--out", "prior.safetensors", "--trust", "--device", "cpu"]
    assert main(words) == 0
    assert FieldOfExperts.load("prior.safetensors").subjects == 2


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """Three trained folds, and a scan."""
    folder = tmp_path_factory.mktemp("folds")
    root = write_results(folder, folds=("0", "1", "3"), iterations=80)
    write_scan(folder, "ball", toy_volume(7)[0])
    write_raw(folder / "raw", count=3)
    return root


class TestFolds:
    def test_without_adaptation_folds_are_averaged_as_by_nnunet(self, folds, tmp_path):
        scan = folds.parents[1] / "ball_0000.nii.gz"
        model = scantune.load(folds, trust=True)
        assert model.provenance["folds"] == ["0", "1", "3"]
        ours = scantune.adapt(model, scan, method="source", device="cpu")
        assert np.array_equal(ours.prediction, predict_by_hand(folds, [scan], tmp_path / "out"))
        alone = [scantune.load(folds / f"fold_{fold}", trust=True) for fold in ("0", "1", "3")]
        labels = [scantune.adapt(one, scan, method="source", device="cpu") for one in alone]
        assert not np.array_equal(labels[0].prediction, labels[1].prediction)

    def test_the_agreement_of_folds_is_read(self, folds):
        model = scantune.load(folds, trust=True)
        case = read_scan(folds.parents[1] / "ball_0000.nii.gz")
        seen = model.backend.windows(model.backend.prepare(case))
        found = model.backend.readings(model.network, seen, model.task.probabilities)
        with torch.no_grad():
            labels = [
                torch.cat([m(w[None]).argmax(1) for w in seen.images]).numpy() for m in model.network.task.members
            ]
        pairs = [(labels[one] == k, labels[two] == k) for one, two in ((0, 1), (0, 2), (1, 2)) for k in (1, 2)]
        by_hand = [2 * (one & two).sum() / (one.sum() + two.sum()) for one, two in pairs if one.any() or two.any()]
        assert found == {"fold_agreement": pytest.approx(np.mean(by_hand))}
        single = scantune.load(folds / "fold_0", trust=True)
        assert single.backend.readings(single.network, seen, single.task.probabilities) == {}

    def test_every_fold_is_adapted_by_its_own_normaliser(self, folds, tmp_path, monkeypatch):
        monkeypatch.chdir(folds.parents[1])
        words = ["fit", str(folds), "--data", "raw", "--out", str(tmp_path / "p.safetensors"), "--trust"]
        assert main([*words, "--device", "cpu"]) == 0
        prior = FieldOfExperts.load(tmp_path / "p.safetensors")
        looked_at = {layer.split(".")[1] for layer in prior.layers()}
        assert looked_at == {"0", "1", "2"}
        assert not any(layer.endswith("seg_layers.0") for layer in prior.layers())
        model = scantune.load(folds, trust=True)
        shifted = write_scan(tmp_path, "shifted", 1 - 0.6 * toy_volume(7)[0])[0]
        how = {"method": "foe-cnn", "preset": "converged", "steps": 4, "guard": False, "device": "cpu"}
        result = scantune.adapt(model, shifted, prior=prior, **how)
        assert result.energy_after < result.energy_before
        assert 0 < result.facts["fold_agreement"] <= 1
        assert 0 < result.facts["fold_agreement_before"] <= 1
        moved = [member.normalizer.residual[4].weight for member in result.network.members]
        assert all(bool(weight.detach().any()) for weight in moved)
        assert not torch.equal(moved[0], moved[1])
