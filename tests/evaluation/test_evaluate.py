"""Matching of files, score rows, summaries and refusals of `evaluate`."""

import csv
import json
import math

import nibabel
import numpy as np
import pytest

from scantune.errors import InputError
from scantune.evaluation import metrics
from scantune.evaluation.evaluate import EVALUATION_COLUMNS, evaluate
from scantune.scans.io import read_scan
from scantune.scans.manifest import output_name, write_manifest
from scantune.scans.names import images_in, scan_name
from scantune.scans.pairing import pair_predictions


def labels(*values, shape=(8, 8, 8)):
    """A label map with one 3-voxel cube per value, at a place of its own."""
    volume = np.zeros(shape, np.uint8)
    for place, value in enumerate(values):
        start = 4 * place
        volume[start : start + 3, :3, :3] = value
    return volume


def write(path, volume, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(volume, np.diag([1.0, 2.0, 3.0, 1.0]) if affine is None else affine), path)
    return path


@pytest.fixture
def folders(tmp_path):
    return tmp_path / "pred", tmp_path / "ref"


@pytest.mark.parametrize("reference", ["a.nii.gz", "a_labels.nii.gz", "a_tissue.nii", "a_gt.nii.gz", "a_seg.nii"])
def test_a_reference_fits_under_its_usual_names(folders, reference):
    predictions, references = folders
    write(predictions / "a_seg.nii.gz", labels(1))
    write(references / reference, labels(1))
    (pair,) = pair_predictions(predictions, references).pairs
    assert (pair.name, pair.reference.name) == ("a", reference)


def test_similar_names_do_not_fit(folders):
    predictions, references = folders
    for name in ("a", "b"):
        write(predictions / f"{name}_seg.nii.gz", labels(1))
    for name in ("A_labels", "ab_labels", "b_labels"):
        write(references / f"{name}.nii.gz", labels(1))
    matches = pair_predictions(predictions, references)
    assert [pair.name for pair in matches.pairs] == ["b"]
    assert [path.name for path in matches.lone_predictions] == ["a_seg.nii.gz"]
    assert [path.name for path in matches.lone_references] == ["A_labels.nii.gz", "ab_labels.nii.gz"]


def test_a_deformation_is_no_label_map(folders):
    predictions, references = folders
    for name in ("a_seg", "a_deformation"):
        write(predictions / f"{name}.nii.gz", labels(1))
    write(references / "a.nii.gz", labels(1))
    matches = pair_predictions(predictions, references)
    assert ([pair.name for pair in matches.pairs], matches.lone_predictions) == (["a"], [])


def test_a_scan_beside_its_label_map_is_not_mistaken_for_it(folders):
    predictions, references = folders
    write(predictions / "a_seg.nii.gz", labels(1))
    write(references / "a.nii.gz", labels(1))
    write(references / "a_gt.nii.gz", labels(1))
    assert pair_predictions(predictions, references).pairs[0].reference.name == "a_gt.nii.gz"


def test_two_label_maps_of_one_scan_are_refused_by_name(folders):
    predictions, references = folders
    write(predictions / "a_seg.nii.gz", labels(1))
    write(references / "a_gt.nii.gz", labels(1))
    write(references / "a_mask.nii.gz", labels(1))
    with pytest.raises(InputError, match=r"a_gt\.nii\.gz and a_mask\.nii\.gz"):
        pair_predictions(predictions, references)


def test_no_fit_at_all_names_what_there_is(folders):
    predictions, references = folders
    write(predictions / "a_seg.nii.gz", labels(1))
    write(references / "b.nii.gz", labels(1))
    with pytest.raises(InputError, match=r"a_seg\.nii\.gz.*b\.nii\.gz"):
        evaluate(predictions, references)


def test_missing_paths_and_mixed_kinds_are_refused(folders):
    predictions, references = folders
    file = write(predictions / "a_seg.nii.gz", labels(1))
    with pytest.raises(InputError, match="does not exist"):
        evaluate(predictions, references)
    with pytest.raises(InputError, match="one is a file and the other a folder"):
        evaluate(file, predictions)


def test_scan_names_are_those_of_the_reader(tmp_path):
    volume = np.arange(27.0).reshape(3, 3, 3)
    for name in ("sub-01_T1w.nii.gz", "scan.v2.nii", "x.y.nii.gz"):
        path = write(tmp_path / name, volume)
        assert scan_name(path) == read_scan(path).name


def test_only_visible_image_files_count_as_images(tmp_path):
    for name in ("b.nii", "a.NII.GZ", "c.mha", ".hidden.nii.gz", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.nii").mkdir()
    assert [path.name for path in images_in(tmp_path)] == ["a.NII.GZ", "b.nii", "c.mha"]


def test_score_file_has_the_promised_columns_and_the_metrics_values(folders, tmp_path):
    prediction, reference = labels(1, 2), np.roll(labels(1, 2), 1, axis=2)
    write(folders[0] / "a_seg.nii.gz", prediction)
    write(folders[1] / "a.nii.gz", reference)
    out = tmp_path / "new" / "scores.csv"
    evaluate(*folders, structures={"background": 0, "csf": 1, "gm": 2}, out=out, cohort="toy", site="north")
    with out.open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0])[:8] == ["cohort", "site", "subject", "method", "seed", "structure", "dice", "hd95"]
    assert tuple(rows[0]) == EVALUATION_COLUMNS
    assert [row["structure"] for row in rows] == ["csf", "gm"]
    assert (rows[0]["cohort"], rows[0]["site"], rows[0]["subject"]) == ("toy", "north", "a")
    expected = metrics.score(prediction, reference, 2, (1.0, 2.0, 3.0))
    for column in ("dice", "hd95", "asd", "volume_ml", "reference_ml", "volume_difference_ml"):
        assert float(rows[1][column]) == pytest.approx(getattr(expected, column), rel=1e-6)
    assert [path.name for path in out.parent.iterdir()] == ["scores.csv"]


def test_absent_structures_are_left_out_of_the_mean_and_counted(folders):
    pairs = {"a": (labels(1), labels(1)), "b": (labels(1, 2), labels(1)), "c": (labels(2), labels(2))}
    for name, (prediction, reference) in pairs.items():
        write(folders[0] / f"{name}_seg.nii.gz", prediction)
        write(folders[1] / f"{name}.nii.gz", reference)
    evaluation = evaluate(*folders)
    assert [(row.subject, row.structure) for row in evaluation.rows] == [(n, s) for n in "abc" for s in "12"]
    first, second = evaluation.summary()
    assert (first.dice, first.scored, first.one_sided, first.left_out) == (1.0, 2, 0, 1)
    assert (second.dice, second.scored, second.one_sided, second.left_out) == (0.5, 2, 1, 1)
    assert second.hd95 == second.asd == 0.0
    assert math.isnan(evaluation.rows[1].score.dice)


def test_a_structure_in_no_scan_has_no_mean(folders):
    write(folders[0] / "a_seg.nii.gz", labels(1))
    write(folders[1] / "a.nii.gz", labels(1))
    summary = evaluate(*folders, structures={"csf": 1, "gm": 2}).summary()[1]
    assert math.isnan(summary.dice)
    assert (summary.scored, summary.left_out) == (0, 1)


def test_results_of_adapt_are_scored_by_method_under_the_manifests_names(folders):
    write(folders[0] / "a_seg.nii.gz", labels(1))
    write(folders[0] / "a_source_seg.nii.gz", labels(0, 1))
    write(folders[1] / "a_labels.nii.gz", labels(1))
    manifest = {
        "format": 1,
        "labels": {"background": 0, "gm": 1},
        "scans": {"a": {"method": "foe-cnn", "seed": 3}},
    }
    (folders[0] / "manifest.json").write_text(json.dumps(manifest))
    rows = evaluate(*folders).rows
    assert [(row.method, row.seed, row.structure, row.score.dice) for row in rows] == [
        ("foe-cnn", 3, "gm", 1.0),
        ("source", 3, "gm", 0.0),
    ]


@pytest.mark.parametrize("text", ["{broken", "[]", '{"labels": {"gm": 9}}'])
def test_a_manifest_of_another_program_is_ignored(folders, text):
    write(folders[0] / "a_seg.nii.gz", labels(1))
    write(folders[1] / "a.nii.gz", labels(1))
    (folders[0] / "manifest.json").write_text(text)
    assert [row.structure for row in evaluate(*folders).rows] == ["1"]


def test_two_files_are_compared_whatever_their_names(tmp_path):
    one, other = write(tmp_path / "x.nii.gz", labels(1)), write(tmp_path / "truth.nii", labels(1))
    (row,) = evaluate(one, other).rows
    assert (row.subject, row.score.dice) == ("x", 1.0)


@pytest.mark.parametrize(
    ("volume", "affine", "sentence"),
    [
        (labels(1, shape=(8, 8, 9)), None, "shape"),
        (labels(1), np.diag([1.0, 2.0, 3.5, 1.0]), "mm away"),
        (labels(7), None, "unknown labels"),
        (labels(1) * 0.5, None, "whole numbers"),
    ],
)
def test_a_pair_that_cannot_be_compared_is_told_and_the_others_are_scored(folders, tmp_path, volume, affine, sentence):
    for name in "ab":
        write(folders[0] / f"{name}_seg.nii.gz", labels(1))
    write(folders[1] / "a.nii.gz", volume, affine)
    out = tmp_path / "scores.csv"
    with pytest.raises(InputError, match=sentence):
        evaluate(folders[0] / "a_seg.nii.gz", folders[1] / "a.nii.gz", structures={"gm": 1}, out=out)
    assert not out.exists()
    write(folders[1] / "b.nii.gz", labels(1))
    evaluation = evaluate(*folders, structures={"gm": 1})
    assert [row.subject for row in evaluation.rows] == ["b"]
    assert list(evaluation.failures) == ["a_seg.nii.gz"]
    assert sentence in evaluation.failures["a_seg.nii.gz"]


def test_a_score_file_that_cannot_be_written_is_told_before_the_work(folders, tmp_path):
    write(folders[0] / "a_seg.nii.gz", labels(1))
    write(folders[1] / "a.nii.gz", labels(1))
    (tmp_path / "file").touch()
    done = []
    for out in (tmp_path, tmp_path / "file" / "scores.csv"):
        with pytest.raises(InputError, match=str(tmp_path)):
            evaluate(*folders, out=out, on_pair=lambda *counts: done.append(counts))
    assert not done


def test_progress_counts_every_pair(folders):
    for name in "ab":
        write(folders[0] / f"{name}_seg.nii.gz", labels(1))
        write(folders[1] / f"{name}.nii.gz", labels(1))
    seen = []
    evaluate(*folders, on_pair=lambda *counts: seen.append(counts))
    assert seen == [(1, 2), (2, 2)]


WHOLE, CORE = labels(1, 1), labels(1)
"""Masks of a region and of a part of it."""


@pytest.fixture
def regions(folders):
    """What `scantune adapt` writes for structures that may overlap: a file for each, and a manifest."""
    masks = {"segmentation": {"whole": WHOLE, "the core": CORE}, "source": {"whole": 0 * WHOLE, "the core": CORE}}
    files = {f"{kind} {name}": output_name("a", kind, name) for kind, each in masks.items() for name in each}
    for kind, each in masks.items():
        for name, mask in each.items():
            write(folders[0] / files[f"{kind} {name}"], mask)
    write(folders[0] / "a_seg.nii.gz", labels(9))  # a label map that a framework joins them to
    entry = {"method": "foe-cnn", "seed": 3, "outputs": {**files, "segmentation": "a_seg.nii.gz"}}
    write_manifest(folders[0], {"labels": {"whole": 1, "the core": 2}, "scans": {"a": entry}})
    return folders


def found(evaluation):
    return {(row.method, row.structure): row.score.dice for row in evaluation.rows}


ALL_SCORES = {
    ("foe-cnn", "whole"): 1.0,
    ("foe-cnn", "the core"): 1.0,
    ("source", "whole"): 0.0,
    ("source", "the core"): 1.0,
}


@pytest.mark.parametrize("names", [("a_whole", "a_the-core"), ("a_seg_whole", "a_seg_the-core_gt")])
def test_structures_that_may_overlap_are_compared_file_by_file(regions, names):
    for name, mask in zip(names, (WHOLE, 5 * CORE), strict=True):
        write(regions[1] / f"{name}.nii.gz", mask)
    evaluation = evaluate(*regions)
    assert found(evaluation) == ALL_SCORES
    assert evaluation.matches.lone_predictions == evaluation.matches.lone_references == []


def test_structures_that_may_overlap_are_compared_with_the_labels_that_they_are_made_of(regions):
    write(regions[1] / "a.nii.gz", labels(1, 2))
    assert found(evaluate(*regions, structures={"whole": (1, 2), "the core": 1})) == ALL_SCORES
    core = evaluate(*regions, structures={"the core": 1})
    assert {structure for _, structure in found(core)} == {"the core"}
    single = evaluate(regions[0] / "a_seg_whole.nii.gz", regions[1] / "a.nii.gz", structures={"whole": (1, 2)})
    assert found(single) == {("foe-cnn", "whole"): 1.0}


def test_references_of_structures_are_found_by_a_pattern(regions):
    for name, mask in (("whole", WHOLE), ("the core", CORE)):
        write(regions[1] / name / "truth of a.nii.gz", mask)
    assert found(evaluate(*regions, reference="{structure}/truth of {name}.nii.gz")) == ALL_SCORES


def test_structures_that_may_overlap_are_not_guessed_from_a_label_map(regions):
    write(regions[1] / "a.nii.gz", labels(1, 2))
    with pytest.raises(InputError, match="Say which of its values each structure is made of"):
        evaluate(*regions)
    with pytest.raises(InputError, match="has the structures whole, the core, but --labels names gm alone"):
        evaluate(*regions, structures={"gm": 1})


def test_a_structure_without_a_reference_has_no_row(regions):
    write(regions[1] / "a_whole.nii.gz", WHOLE)
    evaluation = evaluate(*regions)
    assert {structure for _, structure in found(evaluation)} == {"whole"}
    names = sorted(path.name for path in evaluation.matches.lone_predictions)
    assert names == ["a_seg_the-core.nii.gz", "a_source_seg_the-core.nii.gz"]


def test_a_structure_may_be_made_of_several_values_of_label_maps(folders):
    write(folders[0] / "a_seg.nii.gz", labels(1, 1))
    write(folders[1] / "a.nii.gz", labels(1, 2))
    assert found(evaluate(*folders, structures={"both": (1, 2), "two": 2})) == {("", "both"): 1.0, ("", "two"): 0.0}
