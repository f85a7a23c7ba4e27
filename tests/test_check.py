"""scantune check: what a data set holds, and every kind of trouble by name."""

import json
import os
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from scantune.check import check, open_data
from scantune.cli.main import main
from scantune.datasets.inspect import inspect_scan
from scantune.errors import InputError
from scantune.scans.case import LARGEST_SHIFT
from tests.datasets.test_datasets import ODD, image, labels

DATA = Path(os.environ.get("SCANTUNE_DATA", "nowhere"))
PATTERNS = {"images": "{site}_*_T1w.nii.gz", "labels": "{site}_*_seg.nii.gz"}
WORDS = [f"{name}={value}" for name, value in PATTERNS.items()]


@pytest.fixture
def folder(tmp_path):
    """Six sound scans of two sites."""
    root = tmp_path / "data"
    for seed, name in enumerate(("N_1", "N_2", "N_3", "S_1", "S_2", "S_3")):
        wide = np.diag([2.0, 1.0, 1.0, 1.0]) if name == "S_3" else np.eye(4)
        image(root / f"{name}_T1w.nii.gz", seed, affine=ODD @ wide)
        labels(root / f"{name}_seg.nii.gz", (0, 1, 0, 2), affine=ODD @ wide)
    return root


def test_a_sound_folder_is_summarised_by_site_and_split(folder):
    report = check(folder, options=PATTERNS | {"validation": 1 / 3, "structures": {"rim": 1, "core": 2}})
    groups = [(group.site, group.split, group.people, group.scans) for group in report.groups]
    assert groups == [("N", "train", 2, 2), ("N", "validation", 1, 1), ("S", "train", 2, 2), ("S", "validation", 1, 1)]
    assert report.problems == {}
    assert report.scans == 6
    assert report.groups[0].labels == {0: 0.5, 1: 0.25, 2: 0.25}
    assert report.groups[0].spacing == ((0.5, 0.5), (0.5, 0.5), (3.0, 3.0))
    assert report.groups[3].spacing == ((1.0, 1.0), (0.5, 0.5), (3.0, 3.0))
    assert report.groups[0].shape == ((6, 6), (5, 5), (4, 4))


def test_the_command_writes_a_report_and_a_contact_sheet(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        main(["check", str(folder), "--options", *WORDS, "structures.rim=1", "structures.core=2", "--out", str(out)])
        == 0
    )
    shown = capsys.readouterr().out
    for word in (
        "N",
        "train",
        "validation",
        "0.5 x 0.5 x 3",
        "1 x 0.5 x 3",
        "6 x 5 x 4",
        "1 rim: 25%",
        "No problems in 6 scans.",
    ):
        assert word in shown
    record = json.loads((out / "check.json").read_text(encoding="utf-8"))
    assert (record["dataset"], record["scans"], record["problems"]) == ("folder", 6, {})
    assert record["labels"] == {"rim": 1, "core": 2}
    from matplotlib.image import imread

    assert imread(out / "contact.png").shape[1] > 700  # two sites beside each other


def spoil(path, what):
    """A file of a sound data set made unsound."""
    if what == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif what == "grid":
        labels(path, shape=(6, 5, 3))
    elif what == "moved":
        labels(path, affine=ODD + np.pad([[2.0]], ((0, 3), (3, 0))))
    elif what == "fractions":
        labels(path, (0, 0.5, 1), kind=np.float32)
    elif what == "empty":
        labels(path, (0,))
    elif what == "constant":
        nibabel.save(nibabel.Nifti1Image(np.full((6, 5, 4), 7.0, np.float32), ODD), path)
    elif what == "unknown":
        labels(path, (0, 1, 9))


@pytest.mark.parametrize(
    ("file", "what", "said"),
    [
        ("N_2_T1w", "cut", "damaged, cut short or of another kind"),
        ("N_2_seg", "grid", "has shape (6, 5, 3), not (6, 5, 4)"),
        ("N_2_seg", "moved", "up to 2 mm away"),
        ("N_2_seg", "fractions", "whole numbers from 0 to 4294967295, but holds 0.5"),
        ("N_2_seg", "empty", "Its reference is empty"),
        ("N_2_T1w", "constant", "every voxel is 7"),
        ("N_2_seg", "unknown", "has unknown labels: expected only 0, 1, 2, but it also holds 9"),
    ],
)
def test_every_trouble_is_listed_by_name_and_the_exit_code_is_3(folder, capsys, file, what, said):
    spoil(folder / f"{file}.nii.gz", what)
    assert main(["check", str(folder), "--options", *WORDS, "structures={rim=1, core=2}"]) == 3
    shown = capsys.readouterr().out
    assert "1 problem in 6 scans:" in shown
    line = next(line for line in shown.splitlines() if line.startswith("  N_2_T1w: "))
    assert said in line


def test_troubles_do_not_hide_each_other(folder, tmp_path):
    spoil(folder / "N_1_T1w.nii.gz", "cut")
    spoil(folder / "S_2_seg.nii.gz", "empty")
    report = check(folder, options=PATTERNS, out=tmp_path / "out")
    assert list(report.problems) == ["N_1_T1w", "S_2_T1w"]
    assert json.loads((tmp_path / "out" / "check.json").read_text(encoding="utf-8"))["problems"] == report.problems
    assert (tmp_path / "out" / "contact.png").exists()


def test_copies_are_found_however_they_are_packed(folder):
    volume = nibabel.load(folder / "S_1_T1w.nii.gz")
    nibabel.save(nibabel.Nifti1Image(np.asarray(volume.dataobj, np.float64), ODD), folder / "S_9_T1w.nii.gz")
    shutil.copy(folder / "S_1_seg.nii.gz", folder / "S_9_seg.nii.gz")
    problems = check(folder, options=PATTERNS).problems
    assert problems == {
        "S_1_T1w, S_9_T1w": "These scans have the same voxels. Remove the copies, or correct the files."
    }


def test_people_in_two_splits_are_reported(folder, tmp_path, capsys):
    rows = ["image,labels,subject,split", "data/N_1_T1w.nii.gz,data/N_1_seg.nii.gz,Ann,train"]
    rows += [
        "data/N_2_T1w.nii.gz,data/N_2_seg.nii.gz,Bob,validation",
        "data/N_3_T1w.nii.gz,data/N_3_seg.nii.gz,Ann,test",
    ]
    (tmp_path / "scans.csv").write_text("\n".join(rows))
    assert main(["check", str(tmp_path / "scans.csv")]) == 3
    assert "the person Ann: Scans of this person are in more than one split: test, train." in capsys.readouterr().out


def test_notes_are_reported_and_are_no_problems(tmp_path):
    sheared = ODD.copy()
    sheared[0, 1] += 0.1
    sheared[0, 0] += 0.1
    image(tmp_path / "a.nii", affine=sheared)
    volume = np.random.default_rng(0).integers(0, 256, (6, 5, 4)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "b.nii")
    nibabel.save(nibabel.Nifti1Image(volume + 1000, np.diag([-1.0, 1, 1, 1])), tmp_path / "c.nii")
    nibabel.save(nibabel.Nifti1Image(volume + 2000, np.diag([1.0, 1, 1e-3, 1])), tmp_path / "d.nii")
    report = check(tmp_path, options={"images": "*.nii"}, out=tmp_path / "out")
    assert report.problems == {}
    assert report.notes["no reference"] == ["a", "b", "c", "d"]
    assert report.notes["grid"] == ["d"]
    assert report.notes["8 bit"] == ["b"]
    assert report.notes["oblique"] == ["a"]
    assert report.notes["left-handed"] == [name for name in "ac" if name == "c" or np.linalg.det(sheared[:3, :3]) < 0]
    assert (tmp_path / "out" / "contact.png").exists()


def test_a_reference_a_little_off_the_grid_is_noted_and_one_further_off_is_refused(folder):
    def moved(voxels):
        labels(folder / "N_2_seg.nii.gz", (0, 1, 0, 2), affine=ODD @ offset(voxels))
        return check(folder, options=PATTERNS)

    def offset(voxels):
        shift = np.eye(4)
        shift[2, 3] = voxels
        return shift

    assert moved(0.01).notes.keys() <= {"left-handed"}
    near = moved(LARGEST_SHIFT - 0.01)
    assert (near.problems, near.notes["shifted"]) == ({}, ["N_2_T1w"])
    far = moved(LARGEST_SHIFT + 0.01)
    assert "up to 0.78 mm away" in far.problems["N_2_T1w"]
    assert "shifted" not in far.notes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere must be a folder of scans, a CSV file"),
        (["."], "has no known layout"),
        (["."], "It holds *_T1w.nii.gz (6 files), *_seg.nii.gz (6 files)."),
        ([".", "--dataset", "magic"], "Unknown data set 'magic'. Available: folder, csv"),
        ([".", "--options", "images"], "--options takes NAME=VALUE"),
        ([".", "--options", "images=a", "images=b"], "images comes twice"),
        ([".", "--options", "images=a", "images.b=c"], "images.b comes twice"),
        ([".", "--dataset", "bids", "--options", "suffix=T1w"], "must hold images ending in _T1w, but holds none"),
        (["contrasts.toml"], "simulates its scans, so there are no files to check"),
        (["contrasts.toml", "--dataset", "csv"], "names its data set itself; leave out --dataset csv"),
    ],
)
def test_data_that_cannot_be_opened_are_the_users_fault(folder, monkeypatch, capsys, words, said):
    monkeypatch.chdir(folder)
    Path("contrasts.toml").write_text('[data]\ncohort = "contrasts"\n')
    assert main(["check", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_recipe_is_checked_by_the_data_it_names(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    data = '[data]\ndataset = "folder"\nroot = "data"\nimages = "{site}_*_T1w.nii.gz"\nlabels = "{site}_*_seg.nii.gz"\n'
    Path("mine.toml").write_text(f"{data}structures = {{ rim = 1, core = 2 }}\nsite = 'N'\n")
    assert main(["check", "mine.toml"]) == 0
    assert "2 core: 25%" in capsys.readouterr().out
    Path("short.toml").write_text(
        '[data]\nimages = "data/*_T1w.nii.gz"\nlabels = "data/*_seg.nii.gz"\nstructures.all = 1\n'
    )
    assert main(["check", "short.toml"]) == 3  # label 2 is not among the structures
    assert "6 problems in 6 scans" in capsys.readouterr().out
    assert len(open_data("mine.toml", options={"validation": 0.5}).entries()) == 6


def test_a_simulated_folder_is_checked_by_its_manifest(tmp_path):
    root = tmp_path / "made"
    scans = {}
    for number, split in enumerate(("train", "validation", "test")):
        name = f"home-{split}"
        files = {"image": f"home/{split}/{name}_image.nii.gz", "labels": f"home/{split}/{name}_labels.nii.gz"}
        image(root / files["image"], number)
        labels(root / files["labels"])
        scans[name] = files | {"subject": f"s{number}", "site": "home", "split": split, "number": 0}
    manifest = {"format": 1, "labels": {"rim": 1, "core": 2}, "centres": {"home": {}}, "scans": scans}
    (root / "manifest.json").write_text(json.dumps(manifest))
    report = check(root)
    assert (report.dataset, report.labels, report.problems) == ("simulated", {"rim": 1, "core": 2}, {})
    assert [(group.site, group.split) for group in report.groups] == [
        ("home", s) for s in ("train", "validation", "test")
    ]
    with pytest.raises(InputError, match="takes no options, got seed"):
        check(root, options={"seed": 1})
    (root / "manifest.json").write_text(json.dumps({"format": 1, "scans": {}}))
    with pytest.raises(InputError, match="holds results of another command"):
        check(root)


def test_other_processes_see_the_same(folder):
    alone, together = (check(folder, options=PATTERNS, workers=workers) for workers in (1, 2))
    assert alone == together


def test_progress_is_reported(folder):
    seen = []
    check(folder, options=PATTERNS, on_scan=lambda *at: seen.append(at))
    assert seen[0] == (0, 6, "")
    assert seen[-1] == (6, 6, "S_3_T1w")


def test_a_look_counts_every_voxel(folder):
    entry = open_data(folder, options=PATTERNS).entries()[0]
    summary = inspect_scan(entry)
    assert sum(summary.labels.values()) == 6 * 5 * 4
    assert summary.shape == (6, 5, 4)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="SCANTUNE_DATA names no folder of real scans")
@pytest.mark.parametrize(
    ("folder", "options", "scans"),
    [
        ("gm-challenge", ["masks.cord=*_seg-manual.nii.gz", "masks.GM=*_gmseg-manual.nii.gz"], 8),
        ("oasis", ["images=*_T1w.nii.gz", "labels=*_tissue.nii.gz"], 20),
        ("lgg", ["images={site}_*_FLAIR.nii.gz", "labels={site}_*_lesion.nii.gz"], 36),
        ("brain-labels", ["images=*.nii.gz", "labels=*.nii.gz"], 20),
    ],
)
def test_real_folders_are_checked(folder, options, scans, capsys, tmp_path):
    assert main(["check", str(DATA / folder), "--options", *options, "--out", str(tmp_path)]) == 0
    assert f"No problems in {scans} scans." in capsys.readouterr().out
    turned = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["notes"].get("shifted", [])
    assert turned == (["sub-9604_run-1_T2starw"] if folder == "gm-challenge" else [])  # an sform turned by 0.02 degrees
