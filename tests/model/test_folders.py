"""Folders of other frameworks: how they are recognised, trusted, loaded and adapted, and what cannot be stored."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType

import nibabel
import numpy as np
import pytest

import scantune
from scantune.adaptation.batch import adapt_scans
from scantune.adaptation.settings import AdaptSettings
from scantune.backends import Preprocessing
from scantune.cli.main import main
from scantune.errors import InputError
from scantune.model import folders
from scantune.model.folders import FolderKind, require_trust
from scantune.model.source import ModelSource
from scantune.scans.manifest import read_manifest
from tests.conftest import toy_scan


@dataclass(frozen=True)
class Elsewhere:
    """A backend that no model file can record: scans become slices as usual."""

    inner: Preprocessing

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.fixture
def folder(tmp_path, monkeypatch, toy):
    """A folder of a kind of its own, which holds code."""
    module = ModuleType("toy_folders")

    def load_folder(path, trust):
        require_trust(path, trust, "its toys run code")
        model = replace(toy.model, prior=None, name=path.name)
        return replace(model, backend=Elsewhere(model.backend))

    module.load_folder = load_folder
    monkeypatch.setitem(sys.modules, "toy_folders", module)
    kind = FolderKind("a toy folder", "toys.txt", lambda path: (path / "toys.txt").is_file(), "toy_folders")
    monkeypatch.setattr(folders, "FOLDERS", (kind,))
    made = tmp_path / "toys"
    made.mkdir()
    (made / "toys.txt").write_text("toys")
    return made


@pytest.fixture
def scan(tmp_path):
    image = toy_scan(1)[0][:, 0].numpy().transpose(2, 1, 0)[::-1, ::-1]
    nibabel.save(nibabel.Nifti1Image(np.ascontiguousarray(image), np.eye(4)), tmp_path / "scan.nii.gz")
    return tmp_path / "scan.nii.gz"


def test_a_folder_of_no_known_kind_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match=r"is a folder, but not .*; a toy folder has toys.txt"):
        scantune.load(tmp_path)


def test_a_folder_with_code_needs_trust(folder):
    with pytest.raises(InputError, match=r"toys is not loaded, because its toys run code.*--trust, or trust=True"):
        scantune.load(folder)
    assert scantune.load(folder, trust=True).name == "toys"


def test_a_model_from_a_folder_cannot_be_stored(folder, tmp_path):
    with pytest.raises(InputError, match="Keep the folder, and store its prior alone"):
        scantune.load(folder, trust=True).save(tmp_path / "model.safetensors")


def test_a_prior_stored_alone_takes_the_place_of_the_models_own(folder, toy, tmp_path):
    toy.prior.save(tmp_path / "prior.safetensors")
    model = ModelSource(folder, prior=tmp_path / "prior.safetensors", trust=True).load()
    assert model.prior.record() == toy.prior.record()


@pytest.mark.parametrize("workers", [1])
def test_a_run_takes_folder_and_prior(folder, scan, toy, tmp_path, workers):
    toy.prior.save(tmp_path / "prior.safetensors")
    source = ModelSource(folder, prior=tmp_path / "prior.safetensors", trust=True)
    (outcome,) = adapt_scans([scan], source, tmp_path / "out", AdaptSettings(steps=1), pages=True, workers=workers)
    assert outcome.status == "done"
    entry = read_manifest(tmp_path / "out")["scans"]["scan"]
    assert entry["energy_before"] > 0
    assert (tmp_path / "out" / entry["outputs"]["page"]).is_file()


def test_the_command_line_passes_prior_and_trust_on(folder, scan, toy, tmp_path, capsys):
    toy.prior.save(tmp_path / "prior.safetensors")
    words = ["adapt", str(scan), "--model", str(folder), "--out", str(tmp_path / "out"), "--steps", "1", "--no-page"]
    assert main([*words, "--prior", str(tmp_path / "prior.safetensors")]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main([*words, "--prior", str(tmp_path / "prior.safetensors"), "--trust"]) == 0
    assert read_manifest(tmp_path / "out")["scans"]["scan"]["energy_before"] > 0
    assert main(["info", str(folder), "--trust"]) == 0
    assert "toys" in capsys.readouterr().out
