"""Degradations of a scan: in place, repeatable, and worse when they are more severe."""

import numpy as np
import pytest

from scantune.adaptation.calibration.degradations import CHANGES, COVERAGE, FAMILIES, Degradation, part_of
from scantune.scans.case import Case
from tests.conftest import toy_scan

AFFINE = np.diag([1.5, 2.0, 4.0, 1.0])


@pytest.fixture(scope="module")
def case() -> Case:
    images, labels = toy_scan(3)
    image, reference = (part.numpy().transpose(2, 1, 0) for part in (images[:, 0], labels))
    return Case("toy", 300 * image, AFFINE, reference.astype(np.uint8))


def correlation(one, other):
    return np.corrcoef(one.ravel(), other.ravel())[0, 1]


@pytest.mark.parametrize("family", CHANGES)
def test_a_change_keeps_the_grid_and_is_the_worse_the_more_severe(case, family):
    gentle, severe = (Degradation(family, severity).apply(case, "axial") for severity in (0.1, 1.0))
    assert gentle.image.shape == severe.image.shape == case.image.shape
    assert np.isfinite(severe.image).all()
    assert gentle.reference is case.reference
    assert correlation(case.image, gentle.image) > max(0.7, correlation(case.image, severe.image))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_degradation_is_the_same_scan(case, family):
    twice = [Degradation(family, 0.5, person=4).apply(case, "coronal").image for _ in range(2)]
    np.testing.assert_array_equal(*twice)


@pytest.mark.parametrize("family", CHANGES)
def test_what_is_outside_stays_0_and_what_is_inside_does_not(case, family):
    content = case.reference > 0
    changed = Degradation(family, 1.0).apply(case, "axial", content).image
    np.testing.assert_array_equal(changed > 0, content)


def test_the_severest_inversion_turns_all_intensities_round(case):
    image = Degradation("inverted", 1.0).apply(case, "axial").image
    low, high = np.percentile(case.image, (1, 99))
    np.testing.assert_allclose(image, 1 - np.clip((case.image - low) / (high - low), 0, 1), atol=1e-6)


def test_coverage_leaves_out_slices_with_their_truth_and_changes_nothing(case):
    cut = Degradation(COVERAGE, 1.0).apply(case, "axial")
    assert cut.shape == (48, 48, 1)
    first = round((cut.affine[2, 3] - case.affine[2, 3]) / 4.0)
    np.testing.assert_array_equal(cut.image[..., 0], case.image[..., first])
    np.testing.assert_array_equal(cut.reference[..., 0], case.reference[..., first])


def test_a_part_of_a_scan_lies_where_it_lay(case):
    part = part_of(case, 1, slice(2, None, 3))
    voxel = np.array([5, 4, 1, 1])
    there = np.array([5, 2 + 3 * 4, 1, 1])
    np.testing.assert_allclose(part.affine @ voxel, case.affine @ there)
    assert part.image[5, 4, 1] == case.image[5, 14, 1]
    assert part.spacing == (1.5, 6.0, 4.0)
