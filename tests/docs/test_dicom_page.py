"""What docs/dicom.md prints is run, on a tiny study."""

import re
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import scantune
from scantune.cli.main import main
from tests.toy_dicom import write_series

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
        assert names["result"].prediction.shape == (48, 40, 4)
