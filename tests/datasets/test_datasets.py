"""Layouts that fit any data, on miniature trees: scans, people, sites, splits, spacing and label values."""

import json
import os
import random
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK

from scantune.datasets import DATASETS, ScanEntry, find_layout
from scantune.datasets.layered_entry import LabelLayer, LayeredEntry
from scantune.datasets.subjects import assign_splits, find_subject, subjects_in_two_splits
from scantune.errors import InputError, ScanError
from scantune.scans.header import read_grid
from scantune.scans.io import read_scan

DATA = Path(os.environ.get("SCANTUNE_DATA", "nowhere"))
real = pytest.mark.skipif(not DATA.is_dir(), reason="SCANTUNE_DATA names no folder of real scans")

ODD = np.array([[0.0, -0.5, 0.0, 9.0], [-0.5, 0.0, 0.0, 4.0], [0.0, 0.0, 3.0, 2.0], [0.0, 0.0, 0.0, 1.0]])
"""Axes swapped and flipped, 0.5 x 0.5 x 3 mm."""


def image(path, seed=0, shape=(6, 5, 4), affine=ODD):
    """A made-up scan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    volume = np.random.default_rng(seed).normal(100, 10, shape).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(volume, affine), path)
    return path


def labels(path, values=(0, 1, 2), shape=(6, 5, 4), affine=ODD, kind=np.uint8):
    """A made-up label map that holds all of the values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    volume = np.resize(np.array(values, kind), shape)
    nibabel.save(nibabel.Nifti1Image(volume, affine), path)
    return path


def box(path, size, kind=np.float64):
    """A mask of the first voxels along x."""
    volume = np.zeros((6, 5, 4), kind)
    volume[:size] = 1
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(volume, ODD), path)


def told(dataset):
    """Names, people, sites and splits."""
    return [(entry.name, entry.subject, entry.site, entry.split) for entry in dataset.entries()]


def entry(name, subject, site="", split=""):
    return LayeredEntry(name, subject, site, split, image=Path(name))


# People and splits


@pytest.mark.parametrize(
    ("name", "file", "person"),
    [
        ("12", "", "12"),
        ("sub-12", "", "sub-12"),
        ("sub-12_ses-1_T1w", "", "sub-12"),
        ("sub-12_acq-b_run-2", "", "sub-12"),
        ("sub-9709Ses2_run-1_T2starw", "", "sub-9709"),
        ("9709Ses1", "", "9709"),
        ("P7_ses2", "", "P7"),
        ("P7_run-1", "", "P7"),
        ("CS_4941", "CS_4941_FLAIR", "CS_4941"),
        ("01_2_x", "sub-01_ses-2_T1w", "sub-01"),
        ("Sesame", "", "Sesame"),
        ("_ses-1", "", "_ses-1"),
    ],
)
def test_names_tell_the_person(name, file, person):
    assert find_subject(name, file=file) == person


def test_a_rule_of_ones_own_tells_the_person():
    assert find_subject("patient007_frame01", r"patient\d+") == "patient007"
    assert find_subject("x-7-b", r"x-(\d)-") == "7"
    with pytest.raises(InputError, match="must fit the name of every scan, but does not fit scan"):
        find_subject("scan", r"(\d+)")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("validation", "test"), [(0.2, 0.0), (0.25, 0.25), (0.1, 0.3), (0.5, 0.0), (1 / 3, 0.0)])
def test_nobody_is_in_two_splits_and_shares_hold(seed, validation, test):
    scans = [
        entry(f"{site}{n}_{run}", f"{site}{n}", site) for site in "ABC" for n in range(20) for run in range(1 + n % 3)
    ]
    splits = {}
    for one in assign_splits(scans, validation, test, seed):
        assert splits.setdefault(one.subject, one.split) == one.split
    for site in "ABC":
        own = [split for person, split in splits.items() if person.startswith(site)]
        assert abs(own.count("validation") - 20 * validation) <= 1
        assert abs(own.count("test") - 20 * test) <= 1


def test_splits_do_not_depend_on_the_order_of_files_but_on_the_seed():
    scans = [entry(f"{n:02d}", f"{n:02d}") for n in range(30)]
    first = {one.name: one.split for one in assign_splits(scans, 0.2, 0.2, 5)}
    shuffled = random.Random(0).sample(scans, len(scans))
    assert {one.name: one.split for one in assign_splits(shuffled, 0.2, 0.2, 5)} == first
    assert {one.name: one.split for one in assign_splits(scans, 0.2, 0.2, 6)} != first
    aside = [sorted(name for name, split in first.items() if split == part) for part in ("validation", "test")]
    assert aside == [["05", "07", "20", "21", "25", "28"], ["04", "13", "15", "19", "23", "26"]]  # on every machine


def test_someone_validates_where_there_are_two_people():
    assert [one.split for one in assign_splits([entry("a", "a"), entry("b", "b")], 0.1)] == ["train", "validation"]
    assert [one.split for one in assign_splits([entry("a", "a")], 0.5)] == ["train"]
    assert [one.split for one in assign_splits([entry("a", "a"), entry("b", "b")], 0.0)] == ["train", "train"]
    lonely = [entry(name, name, site=name) for name in "abc"]
    assert [one.split for one in assign_splits(lonely, 0.2)] == ["train", "train", "validation"]
    three = [entry(name, name) for name in "abc"]
    assert sorted(one.split for one in assign_splits(three, 0.1, 0.4)) == ["test", "train", "validation"]


def test_the_split_of_a_site_does_not_depend_on_the_others_and_travellers_stay_in_one():
    scans = [entry(f"{site}{n}", f"{site}{n}", site) for site in "AB" for n in range(7)]
    both = {one.name: one.split for one in assign_splits(scans, 0.3, 0.2)}
    assert {one.name: one.split for one in assign_splits(scans[7:], 0.3, 0.2)}.items() <= both.items()
    traveller = [entry(f"t{site}", "t", site) for site in "BA"]
    assert len({one.split for one in assign_splits(scans + traveller, 0.3, 0.2) if one.subject == "t"}) == 1


def test_splits_that_are_told_are_kept_and_training_scans_give_validation_where_there_is_none():
    scans = [entry("a", "a", split="train"), entry("b", "b", split="train"), entry("c", "c", split="test")]
    assert [one.split for one in assign_splits(scans, 0.5)] == ["train", "validation", "test"]
    scans.append(entry("d", "d", split="validation"))
    assert [one.split for one in assign_splits(scans, 0.5)] == ["train", "train", "test", "validation"]


def test_people_in_two_splits_are_found():
    scans = [entry("a1", "a", split="train"), entry("a2", "a", split="test"), entry("b", "b", split="train")]
    assert subjects_in_two_splits(scans) == {"a": ["test", "train"]}


# folder


def test_a_folder_tells_sites_and_keeps_the_sessions_of_a_person_together(tmp_path):
    for site, name in (("A", "1_ses-1"), ("A", "1_ses-2"), ("B", "2"), ("B", "3"), ("B", "4")):
        image(tmp_path / f"{site}_{name}_T1w.nii.gz")
        labels(tmp_path / f"{site}_{name}_seg.nii.gz")
    options = {"images": "{site}_*_T1w.nii.gz", "labels": "{site}_*_seg.nii.gz", "validation": 0.25}
    found = DATASETS["folder"].open(tmp_path, structures={"rim": 1, "core": 2}, **options)
    assert told(found) == [
        ("A_1_ses-1_T1w", "A_1", "A", "train"),
        ("A_1_ses-2_T1w", "A_1", "A", "train"),
        ("B_2_T1w", "B_2", "B", "train"),
        ("B_3_T1w", "B_3", "B", "train"),
        ("B_4_T1w", "B_4", "B", "validation"),
    ]
    assert found.labels == {"rim": 1, "core": 2}
    case = found.entries()[0].read()
    assert case.spacing == (0.5, 0.5, 3.0)
    assert (case.name, case.subject, case.site, case.split) == ("A_1_ses-1_T1w", "A_1", "A", "train")
    assert set(np.unique(case.reference)) == {0, 1, 2}


def test_a_folder_tells_splits_and_names_by_folders(tmp_path):
    for split, name in (("train", "a"), ("validation", "b"), ("test", "c")):
        image(tmp_path / split / name / "T1.nii")
        labels(tmp_path / split / name / "seg.nii")
    found = DATASETS["folder"].open(tmp_path, images="{split}/*/T1.nii", labels="{split}/*/seg.nii")
    assert told(found) == [("a", "a", "", "train"), ("b", "b", "", "validation"), ("c", "c", "", "test")]
    image(tmp_path / "test" / "a" / "T1.nii")
    labels(tmp_path / "test" / "a" / "seg.nii")
    with pytest.raises(InputError, match="have the same name a. Give every scan a name of its own"):
        found.entries()


def test_a_folder_of_images_alone_has_no_references(tmp_path):
    image(tmp_path / "[odd]" / "a.nii")
    (found,) = DATASETS["folder"].open(tmp_path / "[odd]", images="*.nii").entries()
    assert not found.labelled
    assert found.read().reference is None


def test_a_rule_keeps_scans_of_a_person_together(tmp_path):
    for name in ("p1a", "p1b", "p2a"):
        image(tmp_path / f"{name}.nii")
    found = DATASETS["folder"].open(tmp_path, images="*.nii", person=r"p\d")
    assert [one.subject for one in found.entries()] == ["p1", "p1", "p2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"has no known layout.* It holds \*_T1w.nii \(2 files\), \*_seg.nii \(1 files\)"),
        ({"images": "*_FLAIR.nii"}, r"No file matches \*_FLAIR.nii in /"),
        ({"images": "*_T1w.nii", "labels": "*_seg.nii"}, "no partner: b. Every image"),
        ({"images": "{site}_T1w.nii", "labels": "*_seg.nii"}, "must both have {site} or neither"),
        ({"images": "*.nii", "person": "("}, "is not a regular expression"),
        ({"images": "*.nii", "validation": 0.6, "test": 0.4}, "below 1 together"),
        ({"images": "*.nii", "structures": {"a": 1, "b": 1}}, "a label value of their own"),
        ({"images": "*.nii", "colour": "red"}, "Unknown setting 'colour' in the options of the data set"),
        ({"images": 3}, "must be text, got 3"),
    ],
)
def test_folders_that_cannot_be_right_are_told(tmp_path, options, said):
    for name in ("a_T1w", "b_T1w", "a_seg"):
        image(tmp_path / f"{name}.nii")
    with pytest.raises(InputError, match=said):
        DATASETS["folder"].open(tmp_path, **options).entries()


def test_images_are_kept_inside_a_mask_alone(tmp_path):
    for name in "ab":
        image(tmp_path / f"{name}_T1w.nii", seed=ord(name))
        labels(tmp_path / f"{name}_seg.nii")
        box(tmp_path / f"{name}_mask.nii", 4)
    patterns = {"images": "*_T1w.nii", "labels": "*_seg.nii"}
    whole, kept = (
        DATASETS["folder"].open(tmp_path, **patterns, **more).entries() for more in ({}, {"brain_mask": "*_mask.nii"})
    )
    for before, after in zip(whole, kept, strict=True):
        after.check()
        scan = after.read().image
        np.testing.assert_array_equal(scan[:4], before.read().image[:4])
        assert not scan[4:].any()
        assert after.files() == [*before.files(), tmp_path / f"{after.subject}_mask.nii"]
    box(tmp_path / "a_mask.nii", 0)
    with pytest.raises(ScanError, match="a_mask.nii must hold a picture"):
        kept[0].read()
    labels(tmp_path / "a_mask.nii", shape=(6, 5, 3))
    for look in (kept[0].check, kept[0].read):
        with pytest.raises(ScanError, match=r"a_mask must lie on the grid of a_T1w, but has shape \(6, 5, 3\)"):
            look()
    (tmp_path / "b_mask.nii").unlink()
    with pytest.raises(InputError, match=r"1 scans have no file of \*_mask.nii: b. Add the files"):
        DATASETS["folder"].open(tmp_path, **patterns, brain_mask="*_mask.nii").entries()
    with pytest.raises(InputError, match="images and brain_mask must both have {site} or neither"):
        DATASETS["folder"].open(tmp_path, **patterns, brain_mask="{site}_mask.nii")


def test_a_mask_that_leaves_nothing_of_the_image_is_told(tmp_path):
    volume = np.zeros((6, 5, 4), np.float32)
    volume[4:] = 7
    nibabel.save(nibabel.Nifti1Image(volume, ODD), tmp_path / "a.nii")
    box(tmp_path / "a_mask.nii", 4)
    one = LayeredEntry("a", "a", image=tmp_path / "a.nii", brain_mask=tmp_path / "a_mask.nii")
    with pytest.raises(ScanError, match="a_mask must be a brain mask of a, above 0 in the brain, but leaves nothing"):
        one.read()


def test_label_values_make_up_groups_and_the_others_are_background(tmp_path):
    image(tmp_path / "a.nii")
    stored = nibabel.load(labels(tmp_path / "a_seg.nii", (0, 1, 2, 5, 1035), kind=np.int16))
    patterns = {"images": "?.nii", "labels": "?_seg.nii"}
    found = DATASETS["folder"].open(tmp_path, **patterns, groups={"rim": [2, 1035], "core": [1]})
    assert found.labels == {"rim": 1, "core": 2}
    theirs, ours = np.asarray(stored.dataobj), found.entries()[0].read().reference
    for value, group in {0: 0, 1: 2, 2: 1, 5: 0, 1035: 1}.items():
        assert (ours[theirs == value] == group).all()
    for groups, said in (
        ({"rim": []}, "each have one or more label values"),
        ({"rim": [1], "core": [1, 2]}, "in no other group"),
        ({"rim": [0]}, "above 0"),
        ({"rim": 1}, "a list of a whole number each"),
    ):
        with pytest.raises(InputError, match=said):
            DATASETS["folder"].open(tmp_path, **patterns, groups=groups)
    with pytest.raises(InputError, match="by structures or by groups, not both"):
        DATASETS["folder"].open(tmp_path, **patterns, groups={"rim": [1]}, structures={"rim": 1})


# csv


@pytest.mark.parametrize("comma", [",", ";", "\t"])
def test_a_table_tells_everything(tmp_path, comma):
    for name in "abc":
        image(tmp_path / "scans" / f"{name}.nii.gz")
        labels(tmp_path / "scans" / f"{name}_seg.nii.gz")
    box(tmp_path / "scans" / "a_mask.nii.gz", 2)
    rows = [
        ["Image", "labels", "subject", "site", "split", "name", "remark", "brain_mask"],
        ["scans/a.nii.gz", "scans/a_seg.nii.gz", "p1", "north", "training", "first", "x", "scans/a_mask.nii.gz"],
        [str(tmp_path / "scans" / "b.nii.gz"), "", "", "south", "val", "", "", ""],
        ["scans/c.nii.gz", "scans/c_seg.nii.gz"],
    ]
    table = tmp_path / "scans.csv"
    table.write_text("\n".join(comma.join(row) for row in rows), encoding="utf-8-sig")
    found = DATASETS["csv"].open(table, structures={"rim": 1, "core": 2})
    assert told(found) == [
        ("b", "b", "south", "validation"),
        ("c", "c", "", "train"),
        ("first", "p1", "north", "train"),
    ]
    assert [one.labelled for one in found.entries()] == [False, True, True]
    first, other = found.entries()[2].read(), found.entries()[1].read()
    assert first.spacing == (0.5, 0.5, 3.0)
    assert first.image[:2].all() and not first.image[2:].any() and other.image.all()
    assert find_layout(table) == "csv"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scan,labels\na,b\n", "must have a column image .* but has scan, labels"),
        ("", "but has nothing"),
        ("image,labels\n,b\n", "Line 2 of .* names no image"),
        ("image,split\na.nii,holdout\n", "Line 2 .* has the split 'holdout'"),
        ("image\na/x.nii\nb/x.nii\n", "have the same name x"),
        ("image\n", "holds no scans"),
    ],
)
def test_tables_that_cannot_be_right_are_told(tmp_path, text, said):
    (tmp_path / "scans.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        DATASETS["csv"].open(tmp_path / "scans.csv").entries()


def test_a_table_in_another_encoding_is_told(tmp_path):
    (tmp_path / "scans.csv").write_bytes(b"image\n\xff\xfe.nii\n")
    with pytest.raises(InputError, match="cannot be read as a CSV file in UTF-8"):
        DATASETS["csv"].open(tmp_path / "scans.csv")


# BIDS


@pytest.fixture
def bids(tmp_path):
    """Three people: one in two sessions, one in two sessions written as subjects, one without labels."""
    root = tmp_path / "study"
    names = [
        "sub-1/ses-a/anat/sub-1_ses-a_T2w",
        "sub-1/ses-b/anat/sub-1_ses-b_T2w",
        "sub-2Ses1/anat/sub-2Ses1_run-1_T2w",
    ]
    names += ["sub-2Ses2/anat/sub-2Ses2_run-1_T2w", "sub-3/anat/sub-3_T2w"]
    for seed, name in enumerate(names):
        image(root / f"{name}.nii.gz", seed)
        image(root / f"{name.replace('T2w', 'T1w')}.nii.gz", seed)
        if "sub-3" not in name:
            box(root / "derivatives" / "labels" / f"{name}_seg-manual.nii.gz", 4)
            box(root / "derivatives" / "labels" / f"{name}_gmseg-manual.nii.gz", 2)
            box(root / "derivatives" / "labels" / f"{name.replace('T2w', 'T1w')}_seg-manual.nii.gz", 1)
    (root / "dataset_description.json").write_text('{"Name": "study", "BIDSVersion": "1.6.0"}')
    rows = [
        "participant_id\tage\tSite",
        "sub-1\t30\tnorth",
        "sub-2Ses1\tn/a\tsouth",
        "sub-2Ses2\tn/a\tsouth",
        "sub-3\t9\teast",
    ]
    (root / "participants.tsv").write_text("\n".join(rows))
    return root


MASKS = {"cord": "*_seg-manual.nii.gz", "GM": "*_gmseg-manual.nii.gz"}


def test_bids_sessions_stay_together_and_sites_are_those_of_the_participants(bids):
    found = DATASETS["bids"].open(bids, suffix="T2w", masks=MASKS, validation=0.4)
    assert find_layout(bids) == "bids"
    assert told(found) == [
        ("sub-1_ses-a_T2w", "sub-1", "north", "train"),
        ("sub-1_ses-b_T2w", "sub-1", "north", "train"),
        ("sub-2Ses1_run-1_T2w", "sub-2", "south", "validation"),
        ("sub-2Ses2_run-1_T2w", "sub-2", "south", "validation"),
        ("sub-3_T2w", "sub-3", "east", "train"),
    ]
    assert found.labels == {"cord": 1, "GM": 2}


@pytest.mark.parametrize(
    ("masks", "structures", "counts"),
    [
        (MASKS, {}, {0: 40, 1: 40, 2: 40}),
        (MASKS, {"GM": 1, "cord": 300}, {0: 40, 300: 40, 1: 40}),
        (dict(reversed(MASKS.items())), {}, {0: 40, 2: 80}),  # the cord goes over the grey matter
        ({"cord": MASKS["cord"]}, {}, {0: 40, 1: 80}),
    ],
)
def test_bids_masks_are_laid_over_each_other_in_order(bids, masks, structures, counts):
    found = DATASETS["bids"].open(bids, suffix="T2w", masks=masks, structures=structures)
    values, numbers = np.unique(found.entries()[0].read().reference, return_counts=True)
    assert dict(zip(values.tolist(), numbers.tolist(), strict=True)) == counts
    assert not found.entries()[-1].labelled


def test_bids_label_maps_are_found_by_a_pattern_or_alone(bids):
    by_pattern = DATASETS["bids"].open(bids, suffix="T2w", labels="*_gmseg-manual.nii.gz", structures={"GM": 1})
    assert by_pattern.entries()[0].read().reference.sum() == 40
    alone = DATASETS["bids"].open(bids, suffix="T1w")
    assert alone.entries()[0].read().reference.sum() == 20
    assert alone.hint() == ""
    several = DATASETS["bids"].open(bids, suffix="T2w")
    assert not any(one.labelled for one in several.entries())
    assert r"*_gmseg-manual.nii.gz (4), *_seg-manual.nii.gz (4)" in several.hint()


def test_a_mask_that_one_scan_lacks_is_told(bids):
    (bids / "derivatives/labels/sub-1/ses-a/anat/sub-1_ses-a_T2w_gmseg-manual.nii.gz").unlink()
    first = DATASETS["bids"].open(bids, suffix="T2w", masks=MASKS).entries()[0]
    with pytest.raises(ScanError, match=r"sub-1_ses-a_T2w_gmseg-manual.nii.gz does not exist"):
        first.check()


def test_bids_images_are_kept_inside_brain_masks_which_are_no_labels(bids):
    for path in sorted(bids.glob("sub-*/**/*_T1w.nii.gz")):
        box(bids / "derivatives" / "brains" / path.name.replace("T1w", "desc-brain_mask"), 3)
    found = DATASETS["bids"].open(bids, suffix="T1w", brain_mask="*_desc-brain_mask.nii.gz").entries()
    case = found[0].read()
    assert case.image[:3].all() and not case.image[3:].any()
    assert case.reference.sum() == 20
    assert not found[-1].labelled
    (bids / "derivatives/brains/sub-3_desc-brain_mask.nii.gz").unlink()
    lacking = DATASETS["bids"].open(bids, suffix="T1w", brain_mask="*_desc-brain_mask.nii.gz").entries()[-1]
    with pytest.raises(ScanError, match=r"sub-3_T1w_desc-brain_mask.nii.gz does not exist"):
        lacking.check()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"images of one contrast, named by suffix, but holds T1w \(5\), T2w \(5\)"),
        ({"suffix": "FLAIR"}, r"images ending in _FLAIR, but holds"),
        ({"suffix": "T2w", "site_column": "Centre"}, "must have a column Centre, but has participant_id, age, Site"),
        ({"suffix": "T2w", "masks": MASKS, "labels": "*_seg.nii.gz"}, "not both. Leave one out"),
        ({"suffix": "T2w", "masks": MASKS, "groups": {"GM": [1]}}, "each of the masks is one structure"),
        ({"suffix": "T2w", "masks": MASKS, "structures": {"WM": 1}}, "must have the same names, got cord, GM and WM"),
        ({"suffix": "T2w", "labels": "*.nii.gz"}, r"must have one file \*\.nii\.gz, but has"),
    ],
)
def test_bids_folders_that_cannot_be_right_are_told(bids, options, said):
    with pytest.raises(InputError, match=said):
        DATASETS["bids"].open(bids, **options).entries()


def test_bids_without_participants_has_no_sites(bids):
    (bids / "participants.tsv").unlink()
    assert {one.site for one in DATASETS["bids"].open(bids, suffix="T2w").entries()} == {""}
    with pytest.raises(InputError, match="does not exist, so there is no column Site"):
        DATASETS["bids"].open(bids, suffix="T2w", site_column="Site")


# nnU-Net and the decathlon


def nnunet(root, about, cases=("case_1", "case_2"), test=("case_9",), channels=2, ending=".nii.gz"):
    for case in cases:
        for channel in range(channels):
            image(root / "imagesTr" / f"{case}_{channel:04d}{ending}", channel)
        labels(root / "labelsTr" / f"{case}{ending}")
    for case in test:
        image(root / "imagesTs" / f"{case}_0000{ending}")
    (root / "dataset.json").write_text(json.dumps(about))
    return root


V1 = {"modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "background", "1": "TZ", "2": "PZ"}, "numTraining": 2}
V1 |= {"training": [{"image": "./imagesTr/case_1.nii.gz", "label": "./labelsTr/case_1.nii.gz"}], "test": []}
V2 = {"channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "TZ": 1, "PZ": 2}, "file_ending": ".nii.gz"}


@pytest.mark.parametrize("about", [V1, V2], ids=["v1", "v2"])
def test_nnunet_folders_of_both_versions(tmp_path, about):
    root = nnunet(tmp_path, about)
    found = DATASETS["nnunet"].open(root)
    assert find_layout(root) == "nnunet"
    assert told(found) == [
        ("case_1", "case_1", "", "train"),
        ("case_2", "case_2", "", "validation"),
        ("case_9", "case_9", "", "test"),
    ]
    assert found.labels == {"TZ": 1, "PZ": 2}
    assert [one.labelled for one in found.entries()] == [True, True, False]
    adc = DATASETS["nnunet"].open(root, channel="ADC").entries()[0].read()
    np.testing.assert_array_equal(adc.image, read_scan(root / "imagesTr" / "case_1_0001.nii.gz").image)
    assert set(np.unique(adc.reference)) == {0, 1, 2}
    with pytest.raises(InputError, match=r"has no channel 'DWI'. Available: 0 \(T2\), 1 \(ADC\)"):
        DATASETS["nnunet"].open(root, channel="DWI")


def test_nnunet_scans_are_read_with_several_channels(tmp_path):
    root = nnunet(tmp_path, V2)
    entry = DATASETS["nnunet"].open(root, channel=["ADC", 0]).entries()[0]
    paths = [root / "imagesTr" / f"case_1_000{number}.nii.gz" for number in (1, 0)]
    assert list(entry.files())[:2] == paths
    entry.check()
    case = entry.read()
    assert case.files == tuple(paths)
    for channel, path in zip(case.channels, paths, strict=True):
        np.testing.assert_array_equal(channel, read_scan(path).image)
    image(paths[1], shape=(6, 5, 3))
    with pytest.raises(ScanError, match="case_1_0000 must lie on the grid of case_1_0001"):
        entry.check()


def test_scans_that_a_network_was_not_trained_on_can_be_named(tmp_path):
    root = nnunet(tmp_path, V2)
    splits = {one.name: one.split for one in DATASETS["nnunet"].open(root, held_out=["case_1"]).entries()}
    assert splits == {"case_1": "validation", "case_2": "train", "case_9": "test"}
    named, usual = (DATASETS["nnunet"].open(root, **more) for more in ({"held_out": ["no such case"]}, {}))
    assert told(named) == told(usual)


def test_nnunet_frames_of_a_patient_stay_together(tmp_path):
    root = nnunet(tmp_path, V2, cases=("p1_frame01", "p1_frame12", "p2_frame01", "p2_frame09"), test=(), channels=1)
    found = DATASETS["nnunet"].open(root, person=r"p\d+", validation=0.5)
    assert [(one.subject, one.split) for one in found.entries()][:4] == [("p1", "train")] * 2 + [
        ("p2", "validation")
    ] * 2


def test_nnunet_cases_without_an_image_or_a_label_map_are_told(tmp_path):
    root = nnunet(tmp_path, V2)
    (root / "labelsTr" / "case_1.nii.gz").unlink()
    (root / "imagesTr" / "case_2_0000.nii.gz").unlink()
    (root / "imagesTr" / "case_2_0001.nii.gz").unlink()
    for one, missing in zip(
        DATASETS["nnunet"].open(root).entries(), ("labelsTr/case_1", "imagesTr/case_2_0000"), strict=False
    ):
        with pytest.raises(ScanError, match=f"{missing}.nii.gz does not exist"):
            one.check()


def test_nnunet_cases_may_be_listed_and_regions_are_no_labels(tmp_path):
    image(tmp_path / "elsewhere" / "t2.nii")
    labels(tmp_path / "elsewhere" / "seg.nii")
    about = V2 | {"dataset": {"a": {"images": ["elsewhere/t2.nii"], "label": "elsewhere/seg.nii"}}}
    about["labels"] = {"background": 0, "whole": [1, 2], "core": 2, "edge": 1, "ignore": 3}
    (tmp_path / "dataset.json").write_text(json.dumps(about))
    found = DATASETS["nnunet"].open(tmp_path)
    assert found.labels == {"core": 2, "edge": 1}
    assert found.entries()[0].read().reference is not None
    with pytest.raises(InputError, match="names no image of channel 1 of a"):
        DATASETS["nnunet"].open(tmp_path, channel=1).entries()


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read"), ("[]", "is something else"), ('{"labels": {}}', "must have a folder imagesTr")],
)
def test_descriptions_that_cannot_be_right_are_told(tmp_path, text, said):
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(InputError, match=said):
        DATASETS["nnunet"].open(tmp_path)


@pytest.fixture
def task(tmp_path):
    """A task of the decathlon, of two contrasts, with a test scan."""
    volumes = [image(tmp_path / "imagesTr" / f"prostate_{n:02d}.nii.gz", n, (6, 5, 4, 2)) for n in (0, 1, 2)]
    for path in volumes:
        labels(tmp_path / "labelsTr" / path.name)
    image(tmp_path / "imagesTs" / "prostate_09.nii.gz", 9, (6, 5, 4, 2))
    listed = [{"image": f"./imagesTr/{path.name}", "label": f"./labelsTr/{path.name}"} for path in volumes]
    about = {"labels": {"0": "background", "1": "PZ", "2": "TZ"}, "modality": {"0": "T2", "1": "ADC"}}
    about |= {"training": listed, "test": ["./imagesTs/prostate_09.nii.gz"]}
    (tmp_path / "dataset.json").write_text(json.dumps(about))
    return tmp_path


def test_a_task_of_the_decathlon_with_two_contrasts(task):
    found = DATASETS["decathlon"].open(task)
    assert find_layout(task) == "decathlon"
    assert [one[-1] for one in told(found)] == ["train", "train", "validation", "test"]
    assert found.labels == {"PZ": 1, "TZ": 2}
    both = np.asarray(nibabel.load(task / "imagesTr" / "prostate_01.nii.gz").dataobj)
    for channel, number in ((0, 0), (1, 1), ("ADC", 1)):
        one = DATASETS["decathlon"].open(task, channel=channel).entries()[1]
        one.check()
        case = one.read()
        np.testing.assert_array_equal(case.image, both[..., number])
        assert case.spacing == (0.5, 0.5, 3.0)
        assert case.reference.shape == (6, 5, 4)


def test_a_task_of_the_decathlon_is_read_with_several_channels(task):
    volumes = np.asarray(nibabel.load(task / "imagesTr" / "prostate_01.nii.gz").dataobj)
    entry = DATASETS["decathlon"].open(task, channel=[1, "T2"]).entries()[1]
    entry.check()
    case = entry.read()
    for channel, number in zip(case.channels, (1, 0), strict=True):
        np.testing.assert_array_equal(channel, volumes[..., number])
    assert case.files == ()


def test_a_task_without_lists_is_told(task):
    about = json.loads((task / "dataset.json").read_text(encoding="utf-8"))
    (task / "dataset.json").write_text(json.dumps(about | {"training": [{"label": "x"}]}))
    with pytest.raises(InputError, match="must name an image for each scan, but has the entry {'label': 'x'}"):
        DATASETS["decathlon"].open(task).entries()
    (task / "dataset.json").write_text(json.dumps(about | {"training": {}}))
    with pytest.raises(InputError, match="must have a list training"):
        DATASETS["decathlon"].open(task)


def test_a_layout_that_nothing_tells_is_a_folder(tmp_path):
    assert find_layout(tmp_path) == "folder"
    with pytest.raises(InputError, match="must be a folder of scans, a CSV file that lists them or a recipe"):
        find_layout(tmp_path / "x")


# All layouts


def as_folder(root, names):
    return {"images": "*_T1w.nii.gz", "labels": "*_seg.nii.gz"}, [
        (image(root / f"{name}_T1w.nii.gz", n), labels(root / f"{name}_seg.nii.gz")) for n, name in enumerate(names)
    ]


def as_csv(root, names):
    _, pairs = as_folder(root, names)
    rows = [f"{one.name},{other.name}" for one, other in pairs]
    (root / "scans.csv").write_text("\n".join(["image,labels", *rows]))
    return {}, pairs


def as_bids(root, names):
    (root / "dataset_description.json").write_text("{}")
    scans = [f"{name.split('_')[0]}/anat/{name}_T1w" for name in names]
    return {}, [
        (image(root / f"{scan}.nii.gz", n), labels(root / "derivatives" / "labels" / f"{scan}_dseg.nii.gz"))
        for n, scan in enumerate(scans)
    ]


def as_nnunet(root, names):
    nnunet(root, V2, cases=names, test=(), channels=1)
    parts = root / "imagesTr", root / "labelsTr"
    return {}, [(parts[0] / f"{name}_0000.nii.gz", parts[1] / f"{name}.nii.gz") for name in names]


def as_decathlon(root, names):
    parts = [(f"imagesTr/{name}.nii.gz", f"labelsTr/{name}.nii.gz") for name in names]
    about = {"labels": {"1": "a", "2": "b"}, "training": [{"image": one, "label": other} for one, other in parts]}
    (root / "dataset.json").write_text(json.dumps(about))
    return {}, [(image(root / one, n), labels(root / other)) for n, (one, other) in enumerate(parts)]


def as_simulated(root, names):
    scans = {
        name: {"image": f"{name}_T1w.nii.gz", "labels": f"{name}_seg.nii.gz", "subject": name.split("_")[0]}
        | {"site": "home", "split": "train" if name < "sub-5" else "validation"}
        for name in names
    }
    manifest = {"format": 1, "labels": {"a": 1, "b": 2}, "centres": {"home": {}}, "scans": scans}
    (root / "manifest.json").write_text(json.dumps(manifest))
    return as_folder(root, names)


LAYOUTS = {
    "folder": as_folder,
    "csv": as_csv,
    "bids": as_bids,
    "nnunet": as_nnunet,
    "decathlon": as_decathlon,
    "simulated": as_simulated,
}
TWICE = [f"sub-{person}_{scan}" for person in range(8) for scan in (["ses-1", "ses-2"] if person % 2 else ["run-1"])]


def opened(layout, root):
    options, pairs = LAYOUTS[layout](root, TWICE)
    place = root / "scans.csv" if layout == "csv" else root
    shares = {} if layout == "simulated" else {"validation": 0.3, "test": 0.2, "seed": 3}
    given = {} if layout == "simulated" else {"structures": {"a": 1, "b": 2}} | options | shares
    return DATASETS[layout].open(place, **given), pairs


@pytest.mark.parametrize("layout", LAYOUTS)
def test_people_stay_together_in_every_layout(layout, tmp_path):
    entries = opened(layout, tmp_path)[0].entries()
    assert len(entries) == len(TWICE)
    assert {one.subject for one in entries} == {f"sub-{person}" for person in range(8)}
    assert subjects_in_two_splits(entries) == {}
    assert {"train", "validation"} <= {one.split for one in entries}
    assert find_layout(tmp_path / "scans.csv" if layout == "csv" else tmp_path) == layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_that_are_damaged_or_missing_are_named_in_every_layout(layout, tmp_path):
    found, pairs = opened(layout, tmp_path)
    cut, text, gone, short = pairs[0][0], pairs[1][1], pairs[2][0], pairs[3][1]
    cut.write_bytes(cut.read_bytes()[:90])
    text.write_text("no labels")
    labels(short, shape=(6, 5, 3))
    entries = {one.image: one for one in found.entries()}
    gone.unlink()
    for number, word in ((0, cut), (1, text), (2, gone), (3, r"has shape \(6, 5, 3\), not \(6, 5, 4\)")):
        for look in (entries[pairs[number][0]].check, entries[pairs[number][0]].read):
            with pytest.raises(ScanError, match=str(word)):
                look()
    for image_path, _ in pairs[4:]:
        entries[image_path].check()
        assert set(np.unique(entries[image_path].read().reference)) == {0, 1, 2}


# Headers


@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".mha", ".mhd", ".nrrd"])
def test_a_header_tells_the_grid_that_reading_the_scan_does(tmp_path, ending):
    path = image(tmp_path / "a.nii")
    if ending != ".nii":
        SimpleITK.WriteImage(SimpleITK.ReadImage(str(path)), str(tmp_path / f"a{ending}"))
    grid, case = read_grid(tmp_path / f"a{ending}"), read_scan(tmp_path / f"a{ending}")
    assert (grid.shape, grid.name) == (case.shape, case.name)
    np.testing.assert_allclose(grid.affine, case.affine, atol=1e-6)


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_found_by_its_header(tmp_path, ending, share):
    path = image(tmp_path / f"a{ending}", shape=(20, 20, 20))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ScanError, match="cut short"):
        read_grid(path)


def test_headers_that_cannot_be_right_are_told_as_by_the_reader(tmp_path):
    (tmp_path / "a.nii").write_text("no image")
    flat = image(tmp_path / "flat.nii")
    header = bytearray(flat.read_bytes())
    header[252:256] = b"\0\0\2\0"  # the sform, whose rows are set to 0 below, is the grid
    header[280:328] = bytes(48)
    flat.write_bytes(header)
    for path in (tmp_path / "missing.nii", tmp_path / "a.nii", flat, image(tmp_path / "4d.nii", shape=(4, 4, 4, 2))):
        with pytest.raises(ScanError) as ours:
            read_grid(path)
        with pytest.raises(ScanError) as theirs:
            read_scan(path)
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(ScanError, match=r"one of number 2, counted from 0, but has shape \(4, 4, 4, 2\)"):
        read_grid(tmp_path / "4d.nii", 2)


def test_an_entry_by_default_is_checked_for_its_files(tmp_path):
    class Other(ScanEntry):
        def read(self):
            raise NotImplementedError

        def files(self):
            return [tmp_path, tmp_path / "a", tmp_path / "b"]

    (tmp_path / "a").touch()
    one = Other("x", "x")
    assert one.labelled
    with pytest.raises(ScanError, match="a is empty"):
        one.check()
    (tmp_path / "a").write_text("x")
    with pytest.raises(ScanError, match="b does not exist"):
        one.check()


def test_label_maps_that_do_not_fit_are_found_by_their_headers(tmp_path):
    one = LayeredEntry(
        "a", "a", image=image(tmp_path / "a.nii"), layers=(LabelLayer(labels(tmp_path / "b.nii", shape=(6, 5, 3))),)
    )
    with pytest.raises(ScanError, match=r"b must lie on the grid of a, but has shape \(6, 5, 3\)"):
        one.check()


# Real data


@real
def test_the_grey_matter_challenge_is_eight_sessions_of_six_people_at_six_sites():
    found = DATASETS["bids"].open(DATA / "gm-challenge", masks=MASKS)
    entries = found.entries()
    assert len(entries) == 8
    assert len({one.subject for one in entries}) == 6
    assert {one.site for one in entries} == {"UCL", "NWU", "Philips", "Juntendo", "Milan", "CEITEC"}
    assert subjects_in_two_splits(entries) == {}
    milan = next(one for one in entries if one.site == "Milan").read()
    values, counts = np.unique(milan.reference, return_counts=True)
    assert values.tolist() == [0, 1, 2]
    masks = DATA / "gm-challenge/derivatives/labels/sub-9709Ses1/anat/sub-9709Ses1_run-1_T2starw_gmseg-manual.nii.gz"
    assert counts[2] == np.count_nonzero(nibabel.load(masks).dataobj)


@real
@pytest.mark.parametrize(
    ("folder", "images", "labels", "sites"),
    [
        ("oasis", "*_T1w.nii.gz", "*_tissue.nii.gz", {"": 20}),
        ("lgg", "{site}_*_FLAIR.nii.gz", "{site}_*_lesion.nii.gz", {"CS": 8, "DU": 20, "HT": 8}),
    ],
)
def test_real_folders_are_listed_by_patterns(folder, images, labels, sites):
    entries = DATASETS["folder"].open(DATA / folder, images=images, labels=labels).entries()
    assert {site: sum(one.site == site for one in entries) for site in {one.site for one in entries}} == sites
    for one in entries:
        one.check()
    assert {one.split for one in entries} == {"train", "validation"}
