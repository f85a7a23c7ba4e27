"""The scan on its page: what is packed, how it is cropped and how small it gets, and pictures of slices."""

import base64
import gzip
import io

import nibabel
import numpy as np
import pytest

from scantune.pages import viewer
from scantune.pages.case import case_page
from scantune.pages.viewer import CHANGED, DIFFERENCES, colour_tables, middle_slice, slice_pictures
from tests.page_cases import case_view, shells


def unpacked(text):
    """The volume of a page, read by nibabel."""
    return nibabel.Nifti1Image.from_bytes(gzip.decompress(base64.b64decode(text)))


def test_what_is_packed_is_the_scan_turned_as_nibabel_turns_it():
    view = case_view()
    packed = viewer.pack(view)
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
    monkeypatch.setattr(viewer, "MAX_TABLE_KEYS", limit)
    rows = np.random.default_rng(0).choice([1, 2, 5], (50, 3)).astype(np.int64)
    combinations, codes = viewer._coded(rows)
    assert np.array_equal(combinations[codes], rows)
    assert [tuple(row) for row in combinations] == sorted({(0, 0, 0), *map(tuple, rows)})


def test_nothing_of_a_header_is_in_it_and_the_same_scan_gives_the_same_page():
    header = unpacked(viewer.pack(case_view()).image).header
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
    cutout = viewer.pack(view).cutout
    assert cutout.image.shape == (10 + 2 * 50, 6 + 2 * 25, 10)
    assert int((cutout.labels(0) == 1).sum()) == 10 * 6 * 2
    assert not cutout.whole


def test_large_scans_are_shown_coarser_until_they_fit(monkeypatch):
    monkeypatch.setattr(viewer, "MAX_VOXELS", 3000)
    packed = viewer.pack(case_view())
    assert packed.cutout.image.size <= 3000
    assert packed.cutout.downsampling == (2, 2, 1)  # slices are thick already
    monkeypatch.setattr(viewer, "MAX_BYTES", 2500)
    smaller = viewer.pack(case_view())
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
    cutout = viewer.pack(view).cutout
    assert cutout.codes.dtype == np.uint16
    for number, labels in enumerate(view.maps.values()):
        turned = nibabel.as_closest_canonical(nibabel.Nifti1Image(labels, view.affine))
        assert np.array_equal(cutout.labels(number), np.asarray(turned.dataobj))


def test_differences_are_those_of_a_plain_comparison():
    view = case_view()
    cutout = viewer.pack(view).cutout
    table = np.array(colour_tables(view, cutout)["Differences"])
    before, after, true = (cutout.labels(n) for n in range(3))
    shown = table[cutout.codes]
    assert np.array_equal(shown == DIFFERENCES["repaired"], (before != true) & (after == true))
    assert np.array_equal(shown == DIFFERENCES["made worse"], (before == true) & (after != true))
    assert np.array_equal(shown == DIFFERENCES["still wrong"], (before != true) & (after != true))
    without = case_view(reference=None)
    cutout = viewer.pack(without).cutout
    shown = np.array(colour_tables(without, cutout)["Differences"])[cutout.codes]
    assert np.array_equal(shown == CHANGED["changed"], cutout.labels(0) != cutout.labels(1))


def test_a_picture_is_the_slice_as_radiologists_see_it():
    from matplotlib.image import imread

    labels = np.zeros((30, 20, 3), np.uint8)
    labels[25:, 15:, 1] = 1  # right, anterior
    view = case_view(
        image=labels.astype(float), before=labels, after=labels, reference=None, labels={"a": 1}, affine=np.eye(4)
    )
    cutout = viewer.pack(view).cutout
    assert middle_slice(cutout, "axial") == 1
    pictures = slice_pictures(cutout, colour_tables(view, cutout), "axial", 1)
    drawn = imread(io.BytesIO(base64.b64decode(pictures["Scan"].partition(",")[2])))[..., 0]
    assert drawn[0, 0] == 1  # anterior up, the patient's right on the left
    assert drawn[-1, -1] == 0
    assert drawn.shape == (20, 30)
