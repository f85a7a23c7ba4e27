"""Brain masks of scans that are adapted to: which file is whose, and that a scan is stripped as in training."""

import json
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch

import scantune
from scantune import AdaptableNetwork, InputError, Model
from scantune.adaptation.batch import masks_of
from scantune.backends.slices import Preprocessing
from scantune.cli.main import main
from scantune.config.recipe import recipe_from_tables
from scantune.datasets import DATASETS
from scantune.errors import ScanError
from scantune.scans.io import read_scan
from scantune.training.plan import TrainingPlan
from scantune.training.sources import DataSetSource
from scantune.training.train import train_model

SHAPE = (12, 10, 3)
BRAIN = np.zeros(SHAPE, np.uint8)
BRAIN[3:9, 2:8] = 1


def write(path, volume, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(volume, np.diag([1.0, 1.0, 3.0, 1.0]) if affine is None else affine), path)
    return path


def head(seed=0):
    return (1 + np.random.default_rng(seed).random(SHAPE)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    shape = {"classes": 2, "channels": 1, "dimensions": 2, "width": 2}
    network = AdaptableNetwork.default(**shape).eval()
    made = Model(network, {"brain": 1}, Preprocessing(size=(16, 16)), {"kind": "unet", **shape})
    made.save(tmp_path_factory.mktemp("model") / "m.safetensors")
    return made


class TestWhose:
    def test_masks_belong_to_scans_in_their_order(self, tmp_path):
        scans = [tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"]
        assert list(masks_of(scans, ["1.nii", "2.nii"]).items()) == [
            (scan, type(scan)(mask)) for scan, mask in zip(scans, ("1.nii", "2.nii"), strict=True)
        ]
        assert masks_of(scans, []) == {}
        with pytest.raises(InputError, match=r"3 brain masks for 2 scans: give one for each"):
            masks_of(scans, ["1.nii", "2.nii", "3.nii"])

    def test_a_pattern_finds_the_mask_beside_each_scan_that_has_most_of_its_name(self, tmp_path):
        names = ("sub-1_mask", "sub-1_T1w_mask", "sub-10_mask", "sub-1", "other_mask")
        for folder in ("one", "two"):
            for name in names:
                write(tmp_path / folder / f"{name}.nii.gz", BRAIN)
        scans = [tmp_path / "one" / "sub-1_T1w.nii.gz", tmp_path / "two" / "sub-1_T2w.nii.gz"]
        scans.append(tmp_path / "two" / "sub-10.nii.gz")
        found = masks_of(scans, ["*_mask.nii.gz"])
        assert [found[scan].relative_to(tmp_path).as_posix() for scan in scans] == [
            *("one/sub-1_T1w_mask.nii.gz", "two/sub-1_mask.nii.gz", "two/sub-10_mask.nii.gz")
        ]
        in_folder = write(tmp_path / "one" / "masks" / "sub-1_T1w.nii.gz", BRAIN)
        assert masks_of(scans[:1], ["masks/*.nii.gz"]) == {scans[0]: in_folder}

    def test_a_scan_without_a_mask_is_named(self, tmp_path):
        write(tmp_path / "sub-1_mask.nii.gz", BRAIN)
        with pytest.raises(InputError, match=r"sub-11.nii.gz has no brain mask: expected a file \*_mask.nii.gz"):
            masks_of([tmp_path / "sub-11.nii.gz"], ["*_mask.nii.gz"])


class TestStripped:
    @pytest.mark.parametrize("given", ["file", "case", "array"])
    def test_a_scan_is_adapted_to_as_if_it_had_been_0_outside(self, model, tmp_path, given):
        scan, mask = write(tmp_path / "a.nii.gz", head()), write(tmp_path / "a_mask.nii.gz", BRAIN)
        brain_mask = {"file": mask, "case": read_scan(mask), "array": BRAIN > 0}[given]
        found = scantune.adapt(model, scan, method="source", brain_mask=brain_mask)
        stripped = scantune.adapt(model, write(tmp_path / "b.nii.gz", head() * BRAIN), method="source")
        assert torch.equal(found.source.probabilities, stripped.source.probabilities)
        assert not torch.equal(
            found.source.probabilities, scantune.adapt(model, scan, method="source").source.probabilities
        )
        assert found.facts["brain_mask"] == {"file": "a_mask.nii.gz", "case": "a_mask", "array": "an array"}[given]
        assert "brain_mask" not in stripped.facts

    def test_it_is_stripped_as_in_training(self, tmp_path):
        scan, mask = write(tmp_path / "a_T1w.nii.gz", head()), write(tmp_path / "a_mask.nii.gz", BRAIN)
        options = {"images": "*_T1w.nii.gz", "brain_mask": "*_mask.nii.gz"}
        (entry,) = DATASETS["folder"].open(tmp_path, **options).entries()
        assert np.array_equal(entry.read().image, read_scan(scan).stripped(read_scan(mask)).image)
        assert np.array_equal(entry.read().image, head() * BRAIN)

    def test_a_mask_that_does_not_fit_says_what_to_do(self, model, tmp_path):
        scan = write(tmp_path / "a.nii.gz", head() * BRAIN)
        for mask, match in (
            (write(tmp_path / "moved.nii.gz", BRAIN, np.diag([2.0, 1.0, 3.0, 1.0])), "moved must lie on the grid of a"),
            (write(tmp_path / "air.nii.gz", 1 - BRAIN), "air must be a brain mask of a, above 0 in the brain"),
            (write(tmp_path / "empty.nii.gz", 0 * BRAIN), "every voxel is 0"),
            (BRAIN[:-1], r"The brain mask must lie on the grid of a, but has shape \(11, 10, 3\)"),
            (tmp_path / "none.nii.gz", "none.nii.gz does not exist"),
        ):
            with pytest.raises(ScanError, match=match):
                scantune.adapt(model, scan, method="source", brain_mask=mask)
        with pytest.raises(InputError, match="a tensor is taken as prepared"):
            scantune.adapt(model, torch.rand(1, 1, 16, 16), method="source", brain_mask=BRAIN)


class TestCommand:
    def run(self, model, out, *words):
        path = out.parent / "m.safetensors"
        if not path.exists():
            model.save(path)
        return main(["adapt", *words, "--model", str(path), "--out", str(out), "--method", "source", "--no-page"])

    def test_the_manifest_tells_the_mask_and_another_mask_makes_another_result(self, model, tmp_path, capsys):
        scans = [str(write(tmp_path / f"{name}.nii.gz", head(seed))) for seed, name in enumerate("ab")]
        for name in "ab":
            write(tmp_path / f"{name}_mask.nii.gz", BRAIN)
        pattern = ("--brain-mask", "*_mask.nii.gz")

        def told():
            entries = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["scans"]
            return {name: (entry["brain_mask"], entry["input"]) for name, entry in entries.items()}

        assert self.run(model, tmp_path / "out", *scans, *pattern) == 0
        assert told() == {name: (f"{name}_mask.nii.gz", f"{name}.nii.gz") for name in "ab"}
        capsys.readouterr()
        self.run(model, tmp_path / "out", *scans, *pattern)
        assert capsys.readouterr().out.count("earlier run") == 2
        write(tmp_path / "a_mask.nii.gz", 1 - BRAIN)
        self.run(model, tmp_path / "out", *scans, *pattern)
        assert capsys.readouterr().out.count("earlier run") == 1
        self.run(model, tmp_path / "out", *scans)
        assert "earlier run" not in capsys.readouterr().out
        assert told() == {name: (None, f"{name}.nii.gz") for name in "ab"}

    def test_a_scan_whose_mask_is_damaged_fails_alone(self, model, tmp_path):
        scans = [str(write(tmp_path / f"{name}.nii.gz", head())) for name in "ab"]
        masks = [str(write(tmp_path / f"{name}_mask.nii.gz", BRAIN * (name == "a"))) for name in "ab"]
        assert self.run(model, tmp_path / "out", *scans, "--brain-mask", *masks) == 3
        entries = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["scans"]
        assert (entries["a"]["status"], entries["b"]["status"]) == ("done", "failed")
        assert "b_mask.nii.gz must hold a picture, but every voxel is 0" in entries["b"]["reason"]


class TestWarning:
    def warnings(self, model, image, tmp_path, **how):
        scan = write(tmp_path / "a.nii.gz", image)
        return scantune.adapt(model, scan, method="source", **how).facts["warnings"]

    def test_a_head_is_warned_about_where_the_model_knows_brains_alone(self, model, tmp_path, capsys):
        knows = replace(model, provenance={"stripped": True})
        assert self.warnings(knows, head(), tmp_path) == [
            "The model was trained on scans that are 0 outside the brain, but 0% of this one is. "
            "Give a brain mask (--brain-mask)."
        ]
        assert self.warnings(knows, head() * BRAIN, tmp_path) == self.warnings(model, head(), tmp_path) == []
        assert self.warnings(knows, head(), tmp_path, brain_mask=BRAIN) == []
        knows.save(tmp_path / "m.safetensors")
        TestCommand().run(knows, tmp_path / "out", str(tmp_path / "a.nii.gz"))
        assert "a: warning: The model was trained on scans that are 0 outside" in capsys.readouterr().out

    @pytest.mark.parametrize("stripped", [True, False])
    def test_a_model_knows_whether_its_scans_were_stripped(self, tmp_path, stripped):
        for name in "abc":
            write(tmp_path / f"{name}_T1w.nii.gz", head())
            for word in ("seg", "mask"):
                write(tmp_path / f"{name}_{word}.nii.gz", BRAIN)
        data = {"dataset": "folder", "root": str(tmp_path), "images": "*_T1w.nii.gz", "labels": "*_seg.nii.gz"}
        data |= {"structures": {"brain": 1}} | ({"brain_mask": "*_mask.nii.gz"} if stripped else {})
        assert DataSetSource.read(data, "[data]").stripped() == stripped
        tables = {"data": data, "network": {"width": 2}, "preprocessing": {"size": [16, 16]}}
        tables["train"] = {"iterations": 1, "batch": 1, "validate_every": 1, "device": "cpu"}
        model = train_model(TrainingPlan.read(recipe_from_tables(tables, "mine")))
        assert model.provenance.get("stripped", False) == stripped
