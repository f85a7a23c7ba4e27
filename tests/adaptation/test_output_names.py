"""Names of outputs: plain ones, and those of BIDS derivatives with what describes the data set."""

import json

import numpy as np
import pytest

from scantune.adaptation.output_names import BidsNames, PlainNames, require_unique
from scantune.cli.main import main
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.scans.io import read_labels, write_image
from tests.toy_dicom import STRAIGHT


@pytest.mark.parametrize(
    ("scan", "path"),
    [
        ("sub-01_T1w", "sub-01/anat/sub-01_desc-scantuneT1w_dseg.nii.gz"),
        ("sub-01_ses-2_run-1_FLAIR", "sub-01/ses-2/anat/sub-01_ses-2_run-1_desc-scantuneFLAIR_dseg.nii.gz"),
        ("sub-01_desc-preproc_T1w", "sub-01/anat/sub-01_desc-scantuneT1w_dseg.nii.gz"),
        ("patient 7", "sub-patient7/anat/sub-patient7_desc-scantune_dseg.nii.gz"),
        ("../x", "sub-x/anat/sub-x_desc-scantune_dseg.nii.gz"),
        ("sub-01_../T1w", "sub-sub01T1w/anat/sub-sub01T1w_desc-scantune_dseg.nii.gz"),
    ],
)
def test_scans_get_names_of_bids_derivatives(scan, path):
    assert BidsNames().path(scan, "segmentation") == path
    assert BidsNames().path(scan, "source") == path.replace("desc-scantune", "desc-source")
    assert BidsNames().path(scan, "page") == PlainNames().path(scan, "page") == f"{scan}_page.html"


def test_two_scans_of_one_name_are_refused_before_the_work():
    require_unique(PlainNames(), ["a b", "a_b"])
    with pytest.raises(InputError, match="a b and a_b would both be written as sub-ab/anat"):
        require_unique(BidsNames(), ["a b", "a_b", "c"])


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A BIDS data set of two tiny scans."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for subject in ("sub-01", "sub-02"):
        image = rng.integers(0, 1000, (48, 40, 4)).astype(np.float32)
        write_image(f"study/{subject}/anat/{subject}_T1w.nii.gz", image, Case(subject, image, STRAIGHT))
    (tmp_path / "study" / "dataset_description.json").write_text("{}")
    return tmp_path


def test_a_run_over_a_data_set_writes_derivatives_of_it(study, capsys):
    words = ["adapt", "study", "--model", "brain", "--out", "out", "--method", "source", "--no-page"]
    assert main(words) == 0
    plain = {path.name: path.read_bytes() for path in (study / "out").glob("*_seg.nii.gz")}
    assert main([*words, "--bids"]) == 0
    for subject in ("sub-01", "sub-02"):
        folder = study / "out" / subject / "anat"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"{subject}_desc-scantuneT1w_dseg.nii.gz",
            f"{subject}_desc-sourceT1w_dseg.nii.gz",
        ]
        assert (folder / f"{subject}_desc-scantuneT1w_dseg.nii.gz").read_bytes() == plain[f"{subject}_T1w_seg.nii.gz"]
    assert not list((study / "out").glob("*.nii.gz"))  # those under the other names are gone
    description = json.loads((study / "out" / "dataset_description.json").read_text(encoding="utf-8"))
    assert description["DatasetType"] == "derivative"
    rows = [line.split("\t") for line in (study / "out" / "dseg.tsv").read_text(encoding="utf-8").splitlines()]
    assert [row[:2] for row in rows] == [["index", "name"], ["1", "CSF"], ["2", "GM"], ["3", "WM"]]
    capsys.readouterr()
    assert main([*words, "--bids"]) == 0
    assert capsys.readouterr().out.count("earlier run") == 2
    assert read_labels(folder / "sub-02_desc-scantuneT1w_dseg.nii.gz").shape == (48, 40, 4)


def test_a_description_of_another_program_is_left_alone(study, capsys):
    (study / "out").mkdir()
    (study / "out" / "dataset_description.json").write_text('{"Name": "mine"}')
    words = ["adapt", "study/sub-01", "--model", "brain", "--out", "out", "--method", "source", "--no-page", "--bids"]
    assert main(words) == 0
    assert "dataset_description.json: not replaced, as another program made it." in capsys.readouterr().err
    assert "mine" in (study / "out" / "dataset_description.json").read_text(encoding="utf-8")
