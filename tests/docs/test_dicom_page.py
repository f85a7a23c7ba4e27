"""What docs/dicom.md prints is run, on a tiny study."""

import gzip
import json
import re
import shlex
from functools import partial
from pathlib import Path

import highdicom
import numpy as np
import pytest

import scantune
from scantune.cli.main import main
from scantune.scans.io import read_labels
from tests.toy_dicom import PATIENT, write_series

PAGE = (Path(__file__).parents[2] / "docs" / "dicom.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with two series."""
    volume = np.random.default_rng(0).integers(0, 1000, (48, 40, 4)).astype(np.uint16)
    write_series(tmp_path / "DICOM", volume, number=2, description="T1 MPRAGE", series="1")
    write_series(tmp_path / "DICOM", volume[..., :3], number=5, description="FLAIR", series="2")
    monkeypatch.chdir(tmp_path)


def test_the_error_is_the_one_that_the_page_shows(study, capsys):
    assert main(["adapt", "DICOM", "--model", "brain", "--out", "out"]) == 2
    shown = " ".join(blocks("")[0].split())
    assert shown == " ".join(capsys.readouterr().err.split()[-len(shown.split()) :])
    assert "MPRAGE" not in Path("out/manifest.json").read_text(encoding="utf-8")


def test_the_commands_and_the_python_of_the_page_run(study, monkeypatch):
    commands = [line for block in blocks("console") for line in block.splitlines()]
    assert commands
    for line in commands:
        assert main([*shlex.split(line)[1:], "--method", "source", "--no-page", "--overwrite"]) == 0
    monkeypatch.setattr(scantune, "adapt", partial(scantune.adapt, method="source"))
    for block in blocks("python"):
        exec(compile(block, "dicom.md", "exec"), names := {})
        segments = highdicom.seg.segread("out/DICOM_seg.dcm").get_volume(combine_segments=True).array
        assert np.bincount(segments.ravel(), minlength=4)[1:].tolist() == sizes(names["result"].prediction)


def sizes(labels):
    return np.bincount(labels.ravel(), minlength=4)[1:].tolist()


def test_only_the_segmentation_in_dicom_names_the_patient(study):
    words = ["DICOM", "--model", "brain", "--out", "out", "--series", "2", "--method", "source", "--dicom-seg"]
    assert main(["adapt", *words]) == 0
    naming = set()
    for path in Path("out").iterdir():
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        naming |= {path.name} if PATIENT.encode() in data or b"MPRAGE" in data else set()
    assert naming == {"DICOM_seg.dcm"}
    entry = json.loads(Path("out/manifest.json").read_text(encoding="utf-8"))["scans"]["DICOM"]
    assert entry["outputs"]["dicom"] == "DICOM_seg.dcm"
    segments = highdicom.seg.segread("out/DICOM_seg.dcm").get_volume(combine_segments=True).array
    assert sizes(segments) == sizes(read_labels("out/DICOM_seg.nii.gz").labels)


def test_what_is_done_is_done_again_for_a_segmentation_in_dicom_alone(study, capsys):
    words = ["adapt", "DICOM", "--model", "brain", "--out", "out", "--series", "2", "--method", "source", "--no-page"]
    assert main(words) == 0
    assert not Path("out/DICOM_seg.dcm").exists()
    for again in ("s", "earlier run"):
        assert main([*words, "--dicom-seg"]) == 0
        assert again in capsys.readouterr().out
    assert Path("out/DICOM_seg.dcm").exists()
    assert main([*words[:-3], "--method", "source", "--no-page", "--series", "5"]) == 2
    assert "holds results of another scan" in capsys.readouterr().err
