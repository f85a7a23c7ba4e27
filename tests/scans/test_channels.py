"""Files of scans with several channels, and their names."""

from pathlib import Path

import pytest

from scantune.errors import ScanError
from scantune.scans.channels import channel_number, channel_siblings, grouped_channels, name_of_files


@pytest.fixture
def images(tmp_path):
    """Two scans of two channels in nnU-Net's numbering, and a file beside them."""
    for name in ("a_0000.nii.gz", "a_0001.nii.gz", "a_b_0000.nii.gz", "a_b_0001.nii.gz", "a_0001.nii", "a.nii.gz"):
        (tmp_path / name).touch()
    return tmp_path


def test_a_number_is_four_digits_at_the_end():
    assert channel_number(Path("in/la_007_0001.nii.gz")) == ("la_007", 1)
    assert channel_number(Path("la_007_0001.mha")) == ("la_007", 1)
    for other in ("la_007.nii.gz", "2024.nii.gz", "la_00011.nii.gz", "la0001.nii.gz"):
        assert channel_number(Path(other)) is None


def test_siblings_are_all_channels_of_one_scan_in_order(images):
    for given in ("a_0000.nii.gz", "a_0001.nii.gz"):
        assert channel_siblings(images / given) == (images / "a_0000.nii.gz", images / "a_0001.nii.gz")
    assert channel_siblings(images / "a.nii.gz") == (images / "a.nii.gz",)
    assert channel_siblings(images / "lost_0000.nii.gz") == (images / "lost_0000.nii.gz",)


def test_a_missing_channel_is_named(images):
    (images / "a_0003.nii.gz").touch()
    with pytest.raises(ScanError, match=r"a has \S+a_0003.nii.gz, but no channel 2: \S+a_0002.nii.gz does not"):
        channel_siblings(images / "a_0000.nii.gz")
    with pytest.raises(ScanError, match="no channel 0"):
        channel_siblings(images / "a_0001.nii")


def test_numbered_files_are_joined_for_networks_of_several_channels(images):
    files = sorted(images.glob("*.nii.gz"))
    assert [tuple(path.name for path in scan) for scan in grouped_channels(files, 2)] == [
        ("a.nii.gz",),
        ("a_0000.nii.gz", "a_0001.nii.gz"),
        ("a_b_0000.nii.gz", "a_b_0001.nii.gz"),
    ]
    assert grouped_channels(files, 1) == [(path,) for path in files]


def test_a_scan_without_one_of_its_channels_stays_alone(images):
    (images / "a_0000.nii.gz").unlink()
    assert grouped_channels([images / "a_0001.nii.gz"], 2) == [(images / "a_0001.nii.gz",)]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["a_0000.nii.gz"], "a_0000"),
        (["a_0000.nii.gz", "a_0001.nii.gz"], "a"),
        (["sub-1_T1w.nii.gz", "sub-1_FLAIR.nii"], "sub-1"),
        (["BraTS_001_t1.nii.gz", "BraTS_001_t1ce.nii.gz"], "BraTS_001"),
        (["in/sub-7/t1.nii.gz", "in/sub-7/t2.nii.gz"], "sub-7"),
        (["x/a.nii.gz", "y/a.nii.gz"], "a"),
    ],
)
def test_a_scan_is_named_after_what_its_files_share(files, name):
    assert name_of_files([Path(file) for file in files]) == name
