"""Summaries for other programs: volumes, statistics, label tables; and foreign files that stay."""

import csv
import json
import shlex

import nibabel
import numpy as np
import pytest

from scantune.adaptation.summary_files import VOLUME_COLUMNS, itk_snap_labels, slicer_colours, write_summary_files
from scantune.plots.colours import STRUCTURE_COLOURS, structure_colours

LABELS = {"background": 0, "GM": 1, 'left "ventricle"': 4}
SCANS = {
    "a": {
        "decision": "adapted",
        "verdict": "fine",
        "expected": 0.91234,
        "volumes_ml": {"GM": 2.5, 'left "ventricle"': 0.0},
        "source_volumes_ml": {"GM": 1.5, 'left "ventricle"': 0.25},
    },
    "broken": {"status": "failed", "decision": "failed"},
}


@pytest.fixture
def manifest():
    return {"scantune": "0.2.0", "labels": LABELS, "scans": SCANS}


def test_volumes_open_in_a_spreadsheet(manifest, tmp_path):
    assert write_summary_files(tmp_path, manifest) == []
    rows = list(csv.DictReader((tmp_path / "volumes.csv").open()))
    assert tuple(rows[0]) == VOLUME_COLUMNS
    assert [(row["scan"], row["structure"], float(row["volume_ml"])) for row in rows] == [
        ("a", "GM", 2.5),
        ("a", 'left "ventricle"', 0.0),
    ]
    assert (rows[0]["source_volume_ml"], rows[0]["decision"], rows[0]["expected_dice"]) == ("1.5", "adapted", "0.912")


def test_statistics_are_plain_json(manifest, tmp_path):
    write_summary_files(tmp_path, manifest)
    found = json.loads((tmp_path / "statistics.json").read_text(encoding="utf-8"))
    assert found["scans"]["a"]["structures"]["GM"] == {"volume_ml": 2.5, "source_volume_ml": 1.5}
    assert list(found["scans"]) == ["a"]


def test_label_tables_have_a_line_for_each_label_with_its_colour():
    colours = structure_colours(LABELS)
    for text in (slicer_colours(LABELS), itk_snap_labels(LABELS)):
        lines = [shlex.split(line) for line in text.replace("'", "").splitlines() if not line.startswith("#")]
        assert [int(line[0]) for line in lines] == [0, 1, 4]
        numbers = [[int(cell) for cell in line if cell.isdecimal()][1:4] for line in lines[1:]]
        assert ["#{:02x}{:02x}{:02x}".format(*colour) for colour in numbers] == list(colours.values())
        assert len({len(line) for line in lines}) == 1


def test_files_of_other_programs_stay(manifest, tmp_path):
    (tmp_path / "labels.txt").write_text("mine")
    (tmp_path / "volumes.csv").write_text("also,mine\n")
    assert write_summary_files(tmp_path, manifest) == ["volumes.csv", "labels.txt"]
    assert (tmp_path / "labels.txt").read_text(encoding="utf-8") == "mine"
    assert write_summary_files(tmp_path / "..", manifest) == []
    assert write_summary_files(tmp_path / "..", manifest) == []  # its own files are written anew


def test_common_structures_have_the_same_colour_in_every_model():
    brain = structure_colours({"background": 0, "CSF": 1, "GM": 2, "WM": 3})
    spine = structure_colours({"GM": 1, "WM": 2})
    assert {name: brain[name] for name in spine} == spine
    assert list(brain.values()) == list(STRUCTURE_COLOURS[:3])
    mixed = structure_colours({"left": 1, "gm": 2, "right": 3})
    assert mixed["gm"] == brain["GM"]
    assert len(set(mixed.values())) == 3
    assert len(set(structure_colours({"CSF": 1, "LV": 2}).values())) == 2


def test_a_broken_voxel_is_replaced_by_its_neighbours_with_a_remark(tmp_path):
    from scantune.scans.io import read_scan

    image = np.random.default_rng(0).random((12, 12, 12)).astype(np.float32)
    image[5, 5, 5] = np.nan
    around = image[4:7, 4:7, 4:7]
    expected = np.median(around[np.isfinite(around)])
    nibabel.save(nibabel.Nifti1Image(image, np.eye(4)), tmp_path / "a.nii")
    case = read_scan(tmp_path / "a.nii")
    assert case.image[5, 5, 5] == pytest.approx(expected)
    assert case.remarks == ("1 voxel was NaN or infinite, and replaced by the median of the neighbours.",)
