"""Metrics against MONAI, scipy, plain loops and closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch

from scantune.errors import InputError
from scantune.evaluation import metrics


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def ball(shape, centre, radius, spacing=(1.0, 1.0, 1.0)):
    grid = np.meshgrid(*[np.arange(n) for n in shape], indexing="ij")
    squared = sum(((g - c) * s) ** 2 for g, c, s in zip(grid, centre, spacing, strict=True))
    return (squared <= radius**2).astype(np.uint8)


def box(shape, start, stop):
    labels = np.zeros(shape, np.uint8)
    labels[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = 1
    return labels


def surface_points(mask, spacing):
    """Voxels of the mask with a face neighbour outside it, in mm, by a plain loop."""
    points = []
    for index in map(tuple, np.argwhere(mask)):
        for axis, move in itertools.product(range(mask.ndim), (-1, 1)):
            near = list(index)
            near[axis] += move
            if not 0 <= near[axis] < mask.shape[axis] or not mask[tuple(near)]:
                points.append(np.array(index) * spacing)
                break
    return np.array(points)


def naive_surface_distances(prediction, reference, spacing):
    a, b = (surface_points(mask, np.array(spacing)) for mask in (prediction, reference))
    apart = np.linalg.norm(a[:, None] - b[None], axis=-1)
    one, other = apart.min(axis=1), apart.min(axis=0)
    return max(np.percentile(one, 95), np.percentile(other, 95)), np.concatenate([one, other]).mean()


def test_dice_agrees_with_monai(rng):
    from monai.metrics import compute_dice

    prediction, reference = rng.integers(0, 4, (2, 6, 5, 4))
    for structure in (1, 2, 3):
        pair = [torch.from_numpy(v == structure)[None, None] for v in (prediction, reference)]
        expected = float(compute_dice(*pair, include_background=True))
        assert metrics.dice(prediction, reference, structure) == pytest.approx(expected, abs=1e-6)


def test_dice_of_half_overlapping_boxes_is_one_half():
    assert metrics.dice(box((8, 4, 4), (0, 0, 0), (4, 4, 4)), box((8, 4, 4), (2, 0, 0), (6, 4, 4)), 1) == 0.5


def test_dice_does_not_overflow_small_integer_labels():
    labels = np.ones((40, 40, 40), np.uint8)
    assert metrics.dice(labels, labels, 1) == 1.0


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.5, 1.0, 3.0)])
def test_surface_distances_agree_with_a_plain_loop(rng, spacing):
    prediction = ball((11, 12, 9), (5, 5, 4), 3.6)
    reference = ball((11, 12, 9), (6, 6, 4), 2.9) | (rng.random((11, 12, 9)) > 0.99).astype(np.uint8)
    measured = metrics.surface_distances(prediction, reference, 1, spacing)
    expected = naive_surface_distances(prediction == 1, reference == 1, spacing)
    assert measured == pytest.approx(expected, abs=1e-4)


def test_surface_distances_agree_with_scipy_distance_transforms():
    from scipy.ndimage import binary_erosion, distance_transform_edt

    spacing = (0.8, 1.2, 2.0)
    prediction = ball((30, 24, 16), (14, 11, 8), 8.0, spacing)
    reference = ball((30, 24, 16), (17, 12, 7), 6.5, spacing)
    edges = [mask & ~binary_erosion(mask) for mask in (prediction == 1, reference == 1)]
    there = distance_transform_edt(~edges[1], sampling=spacing)[edges[0]]
    back = distance_transform_edt(~edges[0], sampling=spacing)[edges[1]]
    hd95, asd = metrics.surface_distances(prediction, reference, 1, spacing)
    assert hd95 == pytest.approx(max(np.percentile(there, 95), np.percentile(back, 95)), abs=1e-4)
    assert asd == pytest.approx(np.concatenate([there, back]).mean(), abs=1e-4)


def test_a_ball_inside_a_ball_lies_the_difference_of_radii_away():
    shape, centre = (33, 33, 33), (16, 16, 16)
    hd95, asd = metrics.surface_distances(ball(shape, centre, 8), ball(shape, centre, 14), 1, (0.5,) * 3)
    assert hd95 == pytest.approx(3.0, abs=0.5)
    assert asd == pytest.approx(3.0, abs=0.3)


def test_slabs_moved_along_z_lie_apart_by_the_slice_spacing():
    prediction, reference = np.zeros((2, 6, 6, 12), np.uint8)
    prediction[..., 3] = 1
    reference[..., 5] = 1
    hd95, asd = metrics.surface_distances(prediction, reference, 1, (1.0, 1.0, 4.0))
    assert (hd95, asd) == pytest.approx((8.0, 8.0))


def test_structures_elsewhere_in_the_volume_do_not_matter(rng):
    prediction, reference = ball((20, 20, 20), (8, 8, 8), 3), ball((20, 20, 20), (9, 8, 8), 3)
    alone = metrics.score(prediction, reference, 1, (1.0, 1.0, 1.0))
    for labels in (prediction, reference):
        labels[14:, 14:, 14:] = rng.integers(2, 5, (6, 6, 6))
    assert metrics.score(prediction, reference, 1, (1.0, 1.0, 1.0)) == alone


@pytest.mark.parametrize("flat", [0, 1, 2])
def test_one_slice_scans_are_measured_within_the_slice(flat):
    inner, outer = box((12, 12), (4, 4), (8, 8)), box((12, 12), (2, 2), (10, 10))
    spacing = [0.5, 0.5]
    expected = naive_surface_distances(inner == 1, outer == 1, spacing)
    spacing.insert(flat, 7.0)
    pair = [np.expand_dims(labels, flat) for labels in (inner, outer)]
    assert metrics.surface_distances(*pair, 1, spacing) == pytest.approx(expected, abs=1e-5)


def test_absent_from_both_is_nan():
    empty = np.zeros((4, 4, 4), np.uint8)
    scored = metrics.score(empty, empty, 1, (1.0, 1.0, 1.0))
    assert all(math.isnan(v) for v in (scored.dice, scored.hd95, scored.asd, scored.volume_difference_ml))
    assert scored.volume_ml == scored.reference_ml == 0.0


@pytest.mark.parametrize("swap", [False, True])
def test_absent_from_one_has_no_overlap_and_no_distance(swap):
    pair = [np.zeros((4, 4, 4), np.uint8), np.ones((4, 4, 4), np.uint8)]
    scored = metrics.score(*(reversed(pair) if swap else pair), 1, (10.0, 10.0, 10.0))
    assert scored.dice == 0.0
    assert math.isnan(scored.hd95)
    assert math.isnan(scored.asd)
    assert scored.volume_difference_ml == (64.0 if swap else -64.0)


def test_volumes_are_millilitres():
    labels = box((10, 10, 10), (0, 0, 0), (10, 10, 5))
    assert metrics.volume_ml(labels, 1, (1.0, 2.0, 0.5)) == pytest.approx(0.5)
    assert metrics.volume_difference(labels, labels * 0, 1, (1.0, 2.0, 0.5)) == pytest.approx(0.5)


def test_different_shapes_are_refused():
    with pytest.raises(InputError, match=r"\(4, 4, 4\).*\(4, 4, 5\)"):
        metrics.dice(np.zeros((4, 4, 4)), np.zeros((4, 4, 5)), 1)
