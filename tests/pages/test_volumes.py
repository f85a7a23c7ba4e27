"""Volumes in a page: what is packed, how it is cropped, and how small it gets."""

import base64
import gzip

import nibabel
import numpy as np
import pytest

from scantune.pages import volumes
from scantune.pages.case import case_page
from tests.page_cases import case_view, shells


def unpacked(text):
    """The volume of a page, read by nibabel."""
    return nibabel.Nifti1Image.from_bytes(gzip.decompress(base64.b64decode(text)))


def test_what_is_packed_is_the_scan_turned_as_nibabel_turns_it():
    view = case_view()
    packed = volumes.pack(view)
    image, codes = unpacked(packed.image), np.asarray(unpacked(packed.codes).dataobj)
    assert image.get_data_dtype() == np.uint8
    assert nibabel.aff2axcodes(image.affine) == ("R", "A", "S")
    for number, labels in enumerate(view.maps.values()):
        turned = nibabel.as_closest_canonical(nibabel.Nifti1Image(labels, view.affine))
        assert np.array_equal(packed.cutout.combinations[:, number][codes], np.asarray(turned.dataobj))
        assert image.header.get_zooms() == pytest.approx(turned.header.get_zooms())
    turned = np.asarray(nibabel.as_closest_canonical(nibabel.Nifti1Image(view.image, view.affine)).dataobj)
    assert np.corrcoef(turned.ravel(), np.asarray(image.dataobj).ravel())[0, 1] > 0.99


@pytest.mark.parametrize("limit", [1, 2**20])
def test_codes_are_rows_that_differ_in_order_looked_up_or_sorted(limit, monkeypatch):
    monkeypatch.setattr(volumes, "MAX_TABLE_KEYS", limit)
    rows = np.random.default_rng(0).choice([1, 2, 5], (50, 3)).astype(np.int64)
    combinations, codes = volumes._coded(rows)
    assert np.array_equal(combinations[codes], rows)
    assert [tuple(row) for row in combinations] == sorted({(0, 0, 0), *map(tuple, rows)})


def test_nothing_of_a_header_is_in_it_and_the_same_scan_gives_the_same_page():
    header = unpacked(volumes.pack(case_view()).image).header
    assert (header["descrip"], header["aux_file"], header["intent_name"]) == (b"", b"", b"")
    assert case_page(case_view()) == case_page(case_view())


def test_a_small_structure_is_cut_out_with_its_surroundings():
    small = np.zeros((200, 200, 10), np.uint8)
    small[90:100, 120:126, 4:6] = 1
    view = case_view(
        image=np.random.default_rng(0).random(small.shape, np.float32),
        affine=np.diag([0.5, 1.0, 8.0, 1.0]),
        before=small,
        after=small,
        reference=None,
        labels={"cord": 1},
    )
    cutout = volumes.pack(view).cutout
    assert cutout.image.shape == (10 + 2 * 50, 6 + 2 * 25, 10)
    assert int((cutout.labels(0) == 1).sum()) == 10 * 6 * 2
    assert not cutout.whole


def test_large_scans_are_shown_coarser_until_they_fit(monkeypatch):
    monkeypatch.setattr(volumes, "MAX_VOXELS", 3000)
    packed = volumes.pack(case_view())
    assert packed.cutout.image.size <= 3000
    assert packed.cutout.downsampling == (2, 2, 1)  # slices are thick already
    monkeypatch.setattr(volumes, "MAX_BYTES", 2500)
    smaller = volumes.pack(case_view())
    assert len(base64.b64decode(smaller.image)) + len(base64.b64decode(smaller.codes)) <= 2500
    assert "(the files are finer)" in case_page(case_view())


def test_a_page_of_noise_at_full_size_is_under_5_mb():
    shape = (256, 256, 80)
    labels = shells(shape=shape)
    noise = np.random.default_rng(0).random(shape, np.float32)
    view = case_view(image=noise, before=labels, after=labels, reference=labels, affine=np.eye(4))
    assert len(case_page(view).encode()) < 5e6


def test_an_empty_scan_and_many_structures_are_shown_too():
    nothing = np.zeros((8, 8, 4), np.uint8)
    view = case_view(before=nothing, after=nothing, reference=nothing, image=nothing.astype(float))
    assert "viewer" in case_page(view)
    rng = np.random.default_rng(0)
    many = {
        key: rng.integers(0, 40, (20, 20, 10)).astype(np.uint8) for key in ("before", "after", "reference", "image")
    }
    view = case_view(labels={f"s{n}": n for n in range(40)}, **many)
    cutout = volumes.pack(view).cutout
    assert cutout.codes.dtype == np.uint16
    for number, labels in enumerate(view.maps.values()):
        turned = nibabel.as_closest_canonical(nibabel.Nifti1Image(labels, view.affine))
        assert np.array_equal(cutout.labels(number), np.asarray(turned.dataobj))
