"""References that fit predictions: usual names, patterns, nnU-Net and BIDS, and never the scan itself."""

import json

import nibabel
import numpy as np
import pytest

from scantune.errors import InputError
from scantune.evaluation.evaluate import evaluate
from scantune.scans.data_files import content_hash
from scantune.scans.pairing import pair_predictions, short_name

CUBE = np.zeros((6, 6, 6), np.uint8)
CUBE[1:4, 1:4, 1:4] = 1
SCAN = (100 * np.random.default_rng(0).random((6, 6, 6))).astype(np.float32)


def write(path, volume=CUBE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), path)
    return path


def adapted(folder, name, scan, labels=None):
    """Write a prediction with a manifest, as `scantune adapt` does."""
    write(folder / f"{name}_seg.nii.gz")
    manifest = folder / "manifest.json"
    scans = json.loads(manifest.read_text(encoding="utf-8"))["scans"] if manifest.exists() else {}
    scans[name] = {"status": "done", "method": "foe-cnn-pca", "seed": 0, "input_hash": content_hash(scan)}
    manifest.write_text(json.dumps({"format": 1, "labels": labels or {"core": 1}, "scans": scans}))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("BR_1003_0000", "BR_1003"),
        ("1004_T1w", "1004"),
        ("sub-01_ses-2_space-MNI_desc-manual_T1w", "sub-01_ses-2"),
        ("sub-01_run-1_FLAIR", "sub-01_run-1"),
        ("left_desc-x", "left_desc-x"),
        ("patient7", "patient7"),
        ("_T1w", "_T1w"),
    ],
)
def test_a_short_name_lacks_what_only_says_which_image_it_is(name, short):
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("BR_1003_0000_seg", "BR_1003"),
        ("1004_T1w_seg", "1004_labels"),
        ("sub-01_T1w_seg", "sub-01/anat/sub-01_dseg"),
        ("sub-01_T1w_seg", "sub-01/anat/sub-01_desc-manual_dseg"),
    ],
)
def test_references_of_other_layouts_are_found(prediction, reference, tmp_path):
    write(tmp_path / "out" / f"{prediction}.nii.gz")
    path = write(tmp_path / "truth" / f"{reference}.nii.gz")
    (pair,) = pair_predictions(tmp_path / "out", tmp_path / "truth").pairs
    assert pair.reference == path


def test_both_predictions_of_a_scan_get_its_reference(tmp_path):
    for kind in ("seg", "source_seg"):
        write(tmp_path / "out" / f"a_T1w_{kind}.nii.gz")
    write(tmp_path / "truth" / "a_labels.nii.gz")
    pairs = pair_predictions(tmp_path / "out", tmp_path / "truth").pairs
    assert [(pair.source, pair.reference.name) for pair in pairs] == [
        (False, "a_labels.nii.gz"),
        (True, "a_labels.nii.gz"),
    ]


def test_an_exact_name_wins_over_a_short_one_and_a_suffix_over_none(tmp_path):
    write(tmp_path / "out" / "a_T1w_seg.nii.gz")
    for name in ("a_T1w_labels", "a_labels", "a_T1w", "a"):
        write(tmp_path / "truth" / f"{name}.nii.gz")
    found = []
    for name in ("a_T1w_labels", "a_labels", "a_T1w", "a"):
        (pair,) = pair_predictions(tmp_path / "out", tmp_path / "truth").pairs
        found.append(pair.reference.name.removesuffix(".nii.gz"))
        pair.reference.unlink()
        assert found[-1] == name


def test_two_equally_good_references_are_refused(tmp_path):
    write(tmp_path / "out" / "a_T1w_seg.nii.gz")
    for name in ("a_T2w_labels", "a_labels"):
        write(tmp_path / "truth" / f"{name}.nii.gz")
    with pytest.raises(
        InputError, match=r"both a_T2w_labels.nii.gz and a_labels.nii.gz fit .*--reference '\{name\}_labels"
    ):
        pair_predictions(tmp_path / "out", tmp_path / "truth")


def test_scans_beside_their_labels_are_scored_against_the_labels(tmp_path):
    for name in ("1004", "1005"):
        scan = write(tmp_path / "data" / f"{name}_T1w.nii.gz", SCAN)
        write(tmp_path / "data" / f"{name}_labels.nii.gz")
        adapted(tmp_path / "out", f"{name}_T1w", scan)
    scores = evaluate(tmp_path / "out", tmp_path / "data")
    assert [(row.subject, row.score.dice) for row in scores.rows] == [("1004_T1w", 1.0), ("1005_T1w", 1.0)]
    assert not scores.failures
    assert not scores.matches.lone_references


def test_a_scan_is_never_its_own_reference(tmp_path):
    scan = write(tmp_path / "data" / "a.nii.gz", CUBE)  # a scan that could pass for a label map
    adapted(tmp_path / "out", "a", scan)
    with pytest.raises(InputError, match="has a reference in"):
        evaluate(tmp_path / "out", tmp_path / "data")
    write(tmp_path / "labels" / "a.nii.gz", np.roll(CUBE, 1, 0))
    (row,) = evaluate(tmp_path / "out", tmp_path / "labels").rows
    assert row.score.dice == pytest.approx(2 / 3)


@pytest.mark.parametrize("pattern", ["{name}_truth.nii.gz", "{name}/final.nii.gz"])
def test_a_pattern_names_the_references(pattern, tmp_path):
    for name in ("a", "b_T1w", "c"):
        write(tmp_path / "out" / f"{name}_seg.nii.gz")
    for name in "ab":
        write(tmp_path / "truth" / pattern.replace("{name}", name))
    matches = pair_predictions(tmp_path / "out", tmp_path / "truth", pattern)
    assert [pair.name for pair in matches.pairs] == ["a", "b_T1w"]
    assert [path.name for path in matches.lone_predictions] == ["c_seg.nii.gz"]


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("truth.nii.gz", "must be a path inside"),
        ("/x/{name}.nii.gz", "must be a path inside"),
        ("{name}_no.nii", "fits no file"),
    ],
)
def test_a_pattern_that_cannot_fit_is_refused(pattern, sentence, tmp_path):
    write(tmp_path / "out" / "a_seg.nii.gz")
    write(tmp_path / "truth" / "a.nii.gz")
    with pytest.raises(InputError, match=sentence):
        pair_predictions(tmp_path / "out", tmp_path / "truth", pattern)


def test_one_structure_alone_is_scored_on_request(tmp_path):
    two = CUBE.copy()
    two[4:, 4:, 4:] = 2
    write(tmp_path / "a_seg.nii.gz", two)
    write(tmp_path / "a.nii.gz", np.where(two == 1, 3, two))
    (row,) = evaluate(tmp_path / "a_seg.nii.gz", tmp_path / "a.nii.gz", structures={"two": 2}).rows
    assert (row.structure, row.score.dice) == ("two", 1.0)
