"""Scans of several channels: how they are named on the command line, and what comes of them."""

import json
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

import scantune
from scantune import AdaptableNetwork, InputError
from scantune.adaptation.channel_patterns import find_channels
from scantune.backends import Preprocessing
from scantune.cli import main
from scantune.config.settings import PriorSettings
from scantune.evaluation.evaluate import evaluate
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.training.fit import fit_prior

AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])


def channel(seed, number, shape=(24, 20, 4)):
    """A disc in noise, `(x, y, z)`; each channel has another contrast."""
    rng = np.random.default_rng((seed, number))
    x, y, _ = np.meshgrid(*(np.linspace(-1, 1, length) for length in shape), indexing="ij")
    disc = (x**2 + y**2 < 0.4).astype(np.float32)
    return ((40 - 90 * number) * disc + 60 + rng.normal(0, 2, shape)).astype(np.float32)


def write(path, *images, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(images[0] if len(images) == 1 else np.stack(images, -1), affine), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The file of a model of two channels."""
    torch.manual_seed(0)
    backend = Preprocessing(size=(24, 20), channels=2, scaling="z-score")
    architecture = {"kind": "unet", "classes": 2, "channels": 2, "width": 2}
    made = Model(AdaptableNetwork.default(2, 2, width=2).eval(), {"disc": 1}, backend, architecture)
    cases = [
        backend.prepare(Case(str(seed), channel(seed, 0), AFFINE, others=(channel(seed, 1),))) for seed in range(3)
    ]
    prior = fit_prior(made, cases, settings=PriorSettings(size=4, stride=2, components=2, threshold=0.1))
    path = tmp_path_factory.mktemp("model") / "two.safetensors"
    replace(made, prior=prior).save(path)
    return path


def adapt(model, out, *words):
    """Run the command; return its exit code and the scans of the manifest."""
    code = main.main(["adapt", *map(str, words), "--model", str(model), "--out", str(out), "--no-page", "--quiet"])
    manifest = out / "manifest.json"
    return code, json.loads(manifest.read_text(encoding="utf-8"))["scans"] if manifest.exists() else {}


def segmentation(out, entry):
    return nibabel.load(out / entry["outputs"]["segmentation"]).get_fdata()


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    for seed, name in ((7, "sub-1"), (8, "sub-2")):
        one, two = channel(seed, 0), channel(seed, 1)
        write(folder / "numbered" / f"{name}_0000.nii.gz", one)
        write(folder / "numbered" / f"{name}_0001.nii.gz", two)
        write(folder / "named" / f"{name}_T1w.nii.gz", one)
        write(folder / "named" / f"{name}_FLAIR.nii.gz", two)
        write(folder / "people" / name / "t1.nii.gz", one)
        write(folder / "people" / name / "flair.nii.gz", two)
        write(folder / "volumes" / f"{name}.nii.gz", one, two)
    return folder


@pytest.fixture(scope="module")
def expected(scans, model):
    loaded = scantune.load(model)
    return {
        name: scantune.adapt(
            loaded, [scans / "named" / f"{name}_{end}.nii.gz" for end in ("T1w", "FLAIR")], method="source"
        ).prediction
        for name in ("sub-1", "sub-2")
    }


class TestEveryWayToNameAScan:
    """All of them lead to the same segmentation."""

    @pytest.mark.parametrize(
        "words",
        [
            ["numbered"],
            ["numbered/sub-1_0001.nii.gz", "numbered/sub-2_0000.nii.gz"],
            ["volumes"],
            ["named", "--channels", "*_T1w.nii.gz", "*_FLAIR.nii.gz"],
            ["--channels", "people/*/t1.nii.gz", "people/*/flair.nii.gz"],
        ],
    )
    def test_two_scans(self, words, scans, model, expected, tmp_path, monkeypatch):
        monkeypatch.chdir(scans)
        code, entries = adapt(model, tmp_path, *words, "--method", "source")
        assert code == 0
        assert list(entries) == ["sub-1", "sub-2"]
        for name, entry in entries.items():
            np.testing.assert_array_equal(segmentation(tmp_path, entry), expected[name])

    @pytest.mark.parametrize("files", [["named/sub-1_T1w.nii.gz", "named/sub-1_FLAIR.nii.gz"]])
    def test_one_scan(self, files, scans, model, expected, tmp_path):
        code, entries = adapt(model, tmp_path, "--channels", *(scans / file for file in files), "--method", "source")
        assert (code, list(entries)) == (0, ["sub-1"])
        np.testing.assert_array_equal(segmentation(tmp_path, entries["sub-1"]), expected["sub-1"])

    @pytest.mark.parametrize("file", ["numbered/sub-1_0000.nii.gz", "volumes/sub-1.nii.gz"])
    def test_a_single_path_in_python(self, file, scans, model, expected):
        found = scantune.adapt(scantune.load(model), scans / file, method="source")
        assert found.case.name == "sub-1"
        np.testing.assert_array_equal(found.prediction, expected["sub-1"])

    def test_the_order_of_the_channels_counts(self, scans, model, expected):
        files = [scans / "named" / f"sub-1_{end}.nii.gz" for end in ("FLAIR", "T1w")]
        assert (scantune.adapt(scantune.load(model), files, method="source").prediction != expected["sub-1"]).any()


class TestTheManifest:
    @pytest.fixture
    def files(self, tmp_path):
        return [write(tmp_path / "in" / f"a_000{number}.nii.gz", channel(3, number)) for number in range(2)]

    def test_it_names_all_files_with_their_hashes(self, files, model, tmp_path):
        _, entries = adapt(model, tmp_path / "out", "--channels", *files, "--method", "source")
        entry = entries["a"]
        assert entry["input"] == "a_0000.nii.gz, a_0001.nii.gz"
        assert [one["input"] for one in entry["channels"]] == ["a_0000.nii.gz", "a_0001.nii.gz"]
        assert len({entry["input_hash"], *(one["input_hash"] for one in entry["channels"])}) == 3

    def test_a_change_of_any_channel_makes_another_scan(self, files, model, tmp_path):
        words = ("--channels", *files, "--method", "source")
        _, first = adapt(model, tmp_path / "out", *words)
        assert adapt(model, tmp_path / "out", *words) == (0, first)
        write(files[1], channel(4, 1))
        code, _ = adapt(model, tmp_path / "out", *words)
        assert code == 2  # results of another scan of this name are not replaced unasked
        _, again = adapt(model, tmp_path / "out", *words, "--overwrite")
        assert again["a"]["input_hash"] != first["a"]["input_hash"]

    def test_a_channel_is_no_reference_of_its_own_segmentation(self, files, model, tmp_path):
        adapt(model, tmp_path / "out", "--channels", *files, "--method", "source")
        with pytest.raises(InputError, match="reference"):
            evaluate(tmp_path / "out", tmp_path / "in")
        write(tmp_path / "labels" / "a.nii.gz", (channel(3, 0) > 80).astype(np.uint8))
        found = evaluate(tmp_path / "out", tmp_path / "labels")
        assert {pair.name for pair in found.matches.pairs} == {"a"}


def test_scans_of_a_site_have_channels_too(model, tmp_path):
    for seed in (1, 2):
        for number in range(2):
            write(tmp_path / "in" / f"{seed}_000{number}.nii.gz", channel(seed, number))
    words = ("--site", "--method", "foe-cnn", "--steps", "1")
    code, entries = adapt(model, tmp_path / "out", tmp_path / "in", *words)
    assert code == 0
    assert all("started_from" in entry for entry in entries.values())


def test_a_brain_mask_strips_all_channels_of_its_scan(model, tmp_path):
    files = [write(tmp_path / f"a_000{number}.nii.gz", channel(3, number)) for number in range(2)]
    write(tmp_path / "a_mask.nii.gz", (channel(3, 0) > 80).astype(np.uint8))
    _, entries = adapt(model, tmp_path / "out", files[0], "--brain-mask", "*_mask.nii.gz", "--method", "source")
    assert entries["a"]["brain_mask"] == "a_mask.nii.gz"


class TestErrors:
    def test_channels_on_different_grids_are_refused_in_mm(self, model, tmp_path):
        moved = AFFINE.copy()
        moved[0, 3] = 12
        files = [
            write(tmp_path / "t1.nii.gz", channel(1, 0)),
            write(tmp_path / "t2.nii.gz", channel(1, 1), affine=moved),
        ]
        with pytest.raises(InputError, match="t2 must lie on the grid of t1, but is up to 12 mm away from it"):
            scantune.adapt(scantune.load(model), files)

    def test_another_number_of_channels_is_refused(self, model, tmp_path):
        path = write(tmp_path / "a.nii.gz", *(channel(1, number) for number in range(3)))
        with pytest.raises(InputError, match="two takes scans of 2 channels, but a has 3"):
            scantune.adapt(scantune.load(model), path)

    def test_a_scan_without_a_channel_fails_and_the_next_is_done(self, model, tmp_path):
        for name, numbers in (("a", (1,)), ("b", (0, 1))):
            for number in numbers:
                write(tmp_path / "in" / f"{name}_000{number}.nii.gz", channel(1, number))
        code, entries = adapt(model, tmp_path / "out", tmp_path / "in", "--method", "source")
        assert code == 3
        assert "no channel 0: " in entries["a_0001"]["reason"]
        assert entries["b"]["status"] == "done"

    def test_patterns_say_which_scans_lack_a_channel(self, tmp_path):
        for name in ("1_T1w", "1_T2w", "2_T2w"):
            write(tmp_path / f"{name}.nii.gz", channel(1, 0))
        found = find_channels(["*_T1w.nii.gz", "*_T2w.nii.gz"], [tmp_path])
        assert found.scans == [(tmp_path / "1_T1w.nii.gz", tmp_path / "1_T2w.nii.gz")]
        assert found.left_out == {tmp_path / "2_T2w.nii.gz": "there is no file *_T1w.nii.gz of 2"}
        with pytest.raises(InputError, match=r"No scan in \S+ has a file of each pattern .* of 2"):
            find_channels(["*_PDw.nii.gz", "*_T2w.nii.gz"], [tmp_path])

    @pytest.mark.parametrize(
        ("channels", "folders", "sentence"),
        [
            (["t1.nii", "t2.nii"], ["in"], "are the channels of one scan, but in is given as well"),
            (["*_t1.nii", "t2.nii"], [], r"all be files, or all patterns .* \*_t1.nii, t2.nii"),
            (["*_t1.nii", "*_t2.nii"], ["nowhere"], "nowhere must be a folder"),
        ],
    )
    def test_files_and_patterns_are_not_mixed(self, channels, folders, sentence):
        with pytest.raises(InputError, match=sentence):
            find_channels(channels, [Path(folder) for folder in folders])
