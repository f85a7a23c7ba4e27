"""Pictures of slices: their colours and orientation."""

import base64
import io

import numpy as np

from scantune.pages import volumes
from scantune.pages.slices import CHANGED, DIFFERENCES, colour_tables, middle_slice, slice_pictures
from tests.page_cases import case_view


def test_differences_are_those_of_a_plain_comparison():
    view = case_view()
    cutout = volumes.pack(view).cutout
    table = np.array(colour_tables(view, cutout)["Differences"])
    before, after, true = (cutout.labels(n) for n in range(3))
    shown = table[cutout.codes]
    assert np.array_equal(shown == DIFFERENCES["repaired"], (before != true) & (after == true))
    assert np.array_equal(shown == DIFFERENCES["made worse"], (before == true) & (after != true))
    assert np.array_equal(shown == DIFFERENCES["still wrong"], (before != true) & (after != true))
    without = case_view(reference=None)
    cutout = volumes.pack(without).cutout
    shown = np.array(colour_tables(without, cutout)["Differences"])[cutout.codes]
    assert np.array_equal(shown == CHANGED["changed"], cutout.labels(0) != cutout.labels(1))


def test_a_picture_is_the_slice_as_radiologists_see_it():
    from matplotlib.image import imread

    labels = np.zeros((30, 20, 3), np.uint8)
    labels[25:, 15:, 1] = 1  # right, anterior
    view = case_view(
        image=labels.astype(float), before=labels, after=labels, reference=None, labels={"a": 1}, affine=np.eye(4)
    )
    cutout = volumes.pack(view).cutout
    assert middle_slice(cutout, "axial") == 1
    pictures = slice_pictures(cutout, colour_tables(view, cutout), "axial", 1)
    drawn = imread(io.BytesIO(base64.b64decode(pictures["Scan"].partition(",")[2])))[..., 0]
    assert drawn[0, 0] == 1  # anterior up, the patient's right on the left
    assert drawn[-1, -1] == 0
    assert drawn.shape == (20, 30)
