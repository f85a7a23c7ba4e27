"""Structures that pass through a scan are compared by their cross-section, others by their volume."""

import re
from dataclasses import replace

import pytest
import torch

from scantune.adaptation.prediction import Prediction
from scantune.adaptation.scan_warnings import prediction_warnings
from scantune.prior.assessment import assess
from scantune.prior.coverage import Coverage
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import Readings
from scantune.prior.passing import passing_structures
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.toy_labels import RADII, disc


def cord(slices, radius, thickness=5.0, tapered=False):
    """A cord of discs within discs; tapered, it ends within the scan."""
    one = disc(radius, radius / 2)[:1]
    labels = one.repeat(slices, 1, 1)
    if tapered:
        labels[0], labels[-1] = 0, 0
    moved = {"moved": labels, "mirrored": labels}
    return Readings.of(labels, moved, 2, thickness * 1e-3, slices * thickness)


@pytest.fixture
def home():
    return HomeReadings.fit([cord(12, radius) for radius in RADII], [[0.9, 0.9]] * len(RADII))


def test_a_structure_passes_if_it_is_about_as_large_at_both_ends_as_between():
    labels = torch.zeros(3, 4, 4, dtype=torch.long)
    labels[:, 0, :2] = 1
    labels[1:, 2] = 2
    assert passing_structures(labels, 3) == (True, False, False)
    labels[0, 0] = 0  # a third of the first slice is left of a mean of 1.33 pixels
    assert passing_structures(labels, 3) == (False, False, False)
    assert passing_structures(labels[1:2], 3) == (False, False, False)


def test_a_cord_of_three_slices_is_as_fine_as_one_of_twelve(home):
    found = assess(cord(3, RADII[len(RADII) // 2]), home)
    assert found.verdict == "fine"
    assert found.reasons == ()


def test_a_cord_that_is_half_as_thick_is_not_fine_and_its_usual_volume_is_that_of_its_length(home):
    found = assess(cord(3, 0.5 * RADII[0]), home, ["GM", "WM"])
    assert found.verdict == "failed"
    volumes = sorted(cord(3, radius).sizes[0] for radius in RADII)
    low, high = volumes[3], volumes[4]  # the median of eight is between them
    named = re.search(r"The GM is unusually small: .* mL, at home ([\d.]+) mL", " ".join(found.reasons))
    assert named is not None
    assert low - 0.01 <= float(named[1]) <= high + 0.01


def test_a_prediction_that_lacks_the_end_slices_is_too_small_for_its_length(home):
    whole, cut = (assess(cord(4, RADII[len(RADII) // 2], tapered=tapered), home) for tapered in (False, True))
    assert cut.expected < 0.8 * whole.expected


def test_structures_that_end_within_the_scan_are_compared_by_volume():
    home = HomeReadings.fit([cord(12, radius, tapered=True) for radius in RADII])
    assert home.section is None
    assert assess(cord(3, RADII[0], tapered=True), home).verdict == "failed"


def test_without_a_length_volumes_are_compared(home):
    short = replace(cord(3, RADII[len(RADII) // 2]), length=None)
    assert assess(short, home).verdict == "failed"
    unknown = HomeReadings.fit([replace(cord(12, radius), length=None) for radius in RADII])
    assert unknown.section is None


def test_cross_sections_survive_the_model_file(home):
    again = HomeReadings.from_tensors(home.tensors())
    assert again is not None
    torch.testing.assert_close(again.section, home.section, atol=1e-6, rtol=1e-6)
    older = {name: values for name, values in home.tensors().items() if name != "section"}
    assert HomeReadings.from_tensors(older).section is None


def test_no_size_counts_where_only_one_side_knows_the_volume_of_voxels(home):
    counted = replace(home, in_voxels=True)
    assert home.for_voxels(known=True) is home
    assert counted.for_voxels(known=False) is counted
    large = cord(3, 1.8 * RADII[0])
    for readings in (home.for_voxels(known=False), counted.for_voxels(known=True)):
        assert assess(large, readings).verdict == "fine"
    assert assess(large, home).verdict != "fine"


def test_no_size_counts_where_voxels_have_an_unknown_size(home):
    assert assess(cord(3, 1.2 * RADII[0]), home.without_sizes()).verdict == "fine"


def test_a_volume_knows_the_length_that_its_slices_cover():
    images = torch.zeros(4, 1, 2, 2)
    assert Volume(images, distance=2.5).length == 10
    assert Volume(images).length is None


def test_few_slices_are_no_partial_coverage_of_structures_that_pass_through(home):
    assert home.all_pass
    coverage = Coverage((12.0, 12.0), (1.0, 1.0))
    assert coverage.warnings(None, None) == []
    assert "The scan has 3 slices" in coverage.warnings(3, None)[0]


def test_a_volume_is_absurd_for_its_length(home):
    labels = disc(RADII[0], RADII[0] / 2)[:1].repeat(3, 1, 1)
    scores = torch.nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2).float()
    prediction = Prediction(scores, Segmentation(), {})
    assert prediction_warnings(prediction, home, 5e-3, ["GM", "WM"], length=15.0) == []
    assert "The GM is implausibly small" in prediction_warnings(prediction, home, 5e-3, ["GM", "WM"])[0]
