"""Contact sheets: their panels, scale, outlines and captions."""

import dataclasses

import numpy as np
import pytest

from scantune.plots.contact_sheet import CentreView, contact_sheet, scanner_summary
from tests.toy_cohort import noisy_box


@pytest.mark.parametrize("centres", [1, 3, 7])
def test_the_contact_sheet_has_a_pair_of_panels_for_every_centre(centres):
    views = [CentreView(f"centre {number}", "3 T, spin echo", noisy_box()) for number in range(centres)]
    figure = contact_sheet(views, {"core": 1, "rim": 2}, "toys")
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == [view.centre for view in views]
    assert len(figure.axes) == 2 * centres
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["core", "rim"]


def test_a_contact_sheet_shows_the_middle_of_the_largest_structure():
    figure = contact_sheet([CentreView("c", "", noisy_box())], {"core": 1, "rim": 2}, "")
    upper, lower = figure.axes
    np.testing.assert_array_equal(upper.images[0].get_array(), noisy_box().image[::-1, ::-1, 2].T)
    left, right = lower.get_xlim()
    assert right - left < 20 * 2.0  # the box is small, so the lower panel is a close-up
    outlines = [tuple(round(float(c), 3) for c in one.get_edgecolor()[0][:3]) for one in lower.collections]
    assert len(set(outlines)) == 2


def test_structures_that_fill_the_picture_have_no_close_up():
    upper, lower = contact_sheet([CentreView("c", "", noisy_box(at=slice(2, 18)))], {"core": 1, "rim": 2}, "").axes
    assert upper.get_xlim() == lower.get_xlim()
    assert not upper.patches


def test_all_centres_are_drawn_on_one_scale():
    views = [CentreView("small", "", noisy_box()), CentreView("large", "", noisy_box((40, 60, 3)))]
    panels = contact_sheet(views, {"core": 1, "rim": 2}, "").axes[::2]
    assert panels[0].get_xlim() == panels[1].get_xlim() == pytest.approx((-40, 40))
    assert panels[0].images[0].get_extent() == pytest.approx([-20, 20, -30, 30])


def test_a_scan_without_structures_can_be_drawn():
    empty = dataclasses.replace(noisy_box(), reference=np.zeros((20, 30, 3), np.uint8))
    upper, _ = contact_sheet([CentreView("c", "", empty)], {"core": 1}, "").axes
    np.testing.assert_array_equal(upper.images[0].get_array(), empty.image[::-1, ::-1, 1].T)


def test_captions_tell_vendor_field_sequence_and_coil(simulated):
    home, away = (scanner_summary(one.record) for one in simulated[0].centres)
    assert home == "Acme 3 T, MPRAGE, TR 2300, TI 1050, TE 3 ms, 9°, 4 mm, slices 1.5 mm"
    assert away == "1.5 T, spin echo, TR 500, TE 12 ms, surface coil, 5 mm, slices 1.5 mm"
