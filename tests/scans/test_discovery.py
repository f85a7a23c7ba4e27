"""Scans in the folders that people have, with names that are unique and reasons for what is left out."""

from pathlib import Path

import pytest

from scantune.errors import InputError
from scantune.scans.discovery import find_scans, unique_names

DICOM = b"\0" * 128 + b"DICM"


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DICOM if path.name.startswith("IM") else b"x")
    return folder


def found(*paths):
    return [path.relative_to(paths[0]).as_posix() for path in find_scans(paths).scans]


def reasons(folder):
    return {path.relative_to(folder).as_posix(): reason for path, reason in find_scans([folder]).left_out.items()}


def test_a_folder_of_images_stands_for_the_scans_in_it(tmp_path):
    names = ("b.nii", "a.nii.gz", "a_seg.nii.gz", "a_source_seg.nii.gz", "c_gt.nii", "a_deformation.nii.gz")
    folder = make(tmp_path, *names)
    assert found(folder) == ["a.nii.gz", "b.nii"]
    assert find_scans([folder / "a_seg.nii.gz"]).scans == [folder / "a_seg.nii.gz"]


def test_a_dicom_folder_stays_a_folder(tmp_path):
    folder = make(tmp_path, "IM1", "a.nii")
    assert find_scans([folder, tmp_path / "lost"]).scans == [folder, tmp_path / "lost"]


def test_folders_of_dicom_series_are_a_scan_each(tmp_path):
    assert found(make(tmp_path, "p1/DICOM/IM1", "p1/DICOM/IM2", "p2/DICOM/IM1")) == ["p1/DICOM", "p2/DICOM"]


def test_nested_folders_are_searched_without_labels_and_results(tmp_path):
    folder = make(
        tmp_path, "n1/x/a.nii", "n2/b.nii.gz", "n2/b_seg.nii.gz", "labelsTr/a.nii", ".git/c.nii", "out/manifest.json"
    )
    assert found(folder) == ["n1/x/a.nii", "n2/b.nii.gz"]
    assert set(reasons(folder)) == {"labelsTr", "out"}


def test_a_bids_data_set_gives_its_anatomical_images(tmp_path):
    names = ("dataset_description.json", "sub-1/anat/sub-1_T1w.nii.gz", "sub-2/ses-1/anat/sub-2_ses-1_FLAIR.nii.gz")
    folder = make(tmp_path, *names, "sub-1/func/sub-1_bold.nii.gz", "derivatives/x/sub-1_T1w.nii.gz")
    assert found(folder) == ["sub-1/anat/sub-1_T1w.nii.gz", "sub-2/ses-1/anat/sub-2_ses-1_FLAIR.nii.gz"]
    assert set(reasons(folder)) == {"sub-1/func/sub-1_bold.nii.gz", "derivatives"}


def test_links_to_missing_files_are_listed(tmp_path):
    folder = make(tmp_path, "a.nii")
    (folder / "b.nii.gz").symlink_to(".git/annex/b")
    assert found(folder) == ["a.nii"]
    assert "not there" in reasons(folder)["b.nii.gz"]
    (folder / "a.nii").unlink()
    with pytest.raises(InputError, match=r"holds none \(.*b.nii.gz: a link to a file that is not there"):
        find_scans([folder])


def test_files_that_cannot_be_read_are_listed(tmp_path, monkeypatch):
    folder = make(tmp_path, "p1/a.nii", "p2/IM1", "p2/IM2")
    monkeypatch.setattr("scantune.scans.discovery.os.access", lambda path, mode: not Path(path).name.startswith("IM"))
    assert found(folder) == ["p1/a.nii"]
    assert reasons(folder) == dict.fromkeys(["p2/IM1", "p2/IM2"], "it cannot be read; check its permissions")


def test_a_series_beside_images_is_listed_as_left_out(tmp_path):
    folder = make(tmp_path, "a.nii", "series/IM1")
    assert found(folder) == ["a.nii"]
    assert "name it, too" in reasons(folder)["series"]


def test_a_folder_with_label_maps_alone_or_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a_seg\.nii"):
        find_scans([make(tmp_path / "one", "a_seg.nii")])
    with pytest.raises(InputError, match="must hold images or DICOM files"):
        find_scans([make(tmp_path / "two", "notes.txt")])


def test_names_are_made_unique_by_the_folders_above(tmp_path):
    def names(*paths):
        named = unique_names((tmp_path / path,) for path in paths)
        return {name: path.relative_to(tmp_path).as_posix() for name, (path,) in named.items()}

    assert names("p1/DICOM", "p2/DICOM", "a.nii") == {"p1_DICOM": "p1/DICOM", "p2_DICOM": "p2/DICOM", "a": "a.nii"}
    assert names("x/1/a.nii", "y/1/a.nii") == {"x_1_a": "x/1/a.nii", "y_1_a": "y/1/a.nii"}
    assert names("a.nii", "A.nii.gz") == {"a_1": "a.nii", "A_2": "A.nii.gz"}
    assert names("a.nii", "in/../a.nii") in ({"a": "a.nii"}, {"a": "in/../a.nii"})


def test_all_scans_keep_their_place(tmp_path):
    scans = [(Path(f"{folder}/{name}.nii"),) for folder in "cab" for name in "zy"]
    assert list(unique_names(scans).values()) == scans


def test_a_scan_of_several_files_is_named_after_what_they_share(tmp_path):
    scans = [tuple(tmp_path / site / f"sub-1_{one}.nii" for one in ("T1w", "T2w")) for site in ("x", "y")]
    assert list(unique_names(scans)) == ["x_sub-1", "y_sub-1"]
    assert list(unique_names([*scans[:1], tuple(tmp_path / f"s/{one}.nii" for one in ("t1", "t2"))])) == ["sub-1", "s"]
