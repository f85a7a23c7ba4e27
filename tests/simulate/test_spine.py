"""The neck around the spinal cord: sizes as measured on public scans, and parts where they belong."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy import ndimage

from scantune.simulate.anatomies.neck import REGIONS
from scantune.simulate.anatomies.spine import ClearSpine, Spine, VariedSpine
from scantune.simulate.subject import FieldOfView, Subject

SMALL = FieldOfView(slices=5, height=44, width=44, in_plane=0.5, thickness=3.0, spacing=14.0, edges=0.2)
WHOLE = FieldOfView(slices=4, height=170, width=170, in_plane=2.0, thickness=3.0, spacing=20.0)
SEEDS = range(20)


@functools.cache
def subject(seed: int, view: FieldOfView = SMALL) -> Subject:
    return Spine().subject(np.random.default_rng(seed), view)


@functools.cache
def labels(seed: int) -> np.ndarray:
    return subject(seed).labels(Spine.labels).numpy()


def share(person: Subject, name: str) -> np.ndarray:
    place = [region.name for region in person.regions].index(name)
    return person.fractions[place].numpy()


def areas(mask: np.ndarray) -> np.ndarray:
    return mask.sum((1, 2)) * SMALL.in_plane**2


def test_the_same_seed_gives_the_same_neck_and_another_seed_another() -> None:
    again = Spine().subject(np.random.default_rng(0), SMALL)
    assert torch.equal(again.fractions, subject(0).fractions)
    assert not torch.allclose(subject(1).fractions, subject(0).fractions, atol=0.1)


def test_shares_lie_between_0_and_1_and_never_exceed_the_voxel() -> None:
    for view in (SMALL, WHOLE):
        fractions = subject(2, view).fractions
        assert fractions.shape == (len(REGIONS), *view.shape)
        assert fractions.min() >= 0 and fractions.sum(0).max() <= 1 + 1e-5


def test_every_slice_shows_grey_and_white_matter() -> None:
    for seed in SEEDS:
        for piece in labels(seed):
            assert {1, 2} <= set(np.unique(piece))


def test_cord_and_grey_matter_are_as_large_as_on_real_scans() -> None:
    cord = np.concatenate([areas(labels(seed) > 0) for seed in SEEDS])
    grey = np.concatenate([areas(labels(seed) == 1) for seed in SEEDS])
    # real: cord 63 to 102, site means 77 to 95; grey matter 11 to 22, site means 13 to 17
    assert cord.min() > 60 and cord.max() < 110 and 77 < cord.mean() < 95
    assert grey.min() > 9.5 and grey.max() < 24 and 13 < grey.mean() < 18


def test_the_cord_is_wider_than_deep() -> None:
    for seed in SEEDS:
        for piece in labels(seed):
            rows, columns = np.nonzero(piece)
            depth, width = (SMALL.in_plane * (np.ptp(axis) + 1) for axis in (rows, columns))
            assert 6.5 <= depth <= 10.5 and 10 <= width <= 17 and width > depth


def test_the_cord_is_larger_at_its_enlargement_than_at_the_top() -> None:
    mean = np.mean([areas(labels(seed) > 0) for seed in SEEDS], axis=0)
    grey = np.mean([areas(labels(seed) == 1) for seed in SEEDS], axis=0)
    assert mean[1] > 1.04 * mean[-1] and grey[1] > 1.1 * grey[-1]


def test_the_cord_is_one_piece_without_holes_near_the_middle_of_the_view() -> None:
    for seed in SEEDS:
        for piece in labels(seed) > 0:
            assert ndimage.label(piece)[1] == 1
            assert np.array_equal(ndimage.binary_fill_holes(piece), piece)
            middle = (np.array(ndimage.center_of_mass(piece)) - (len(piece) - 1) / 2) * SMALL.in_plane
            assert np.abs(middle).max() < 10


def test_grey_matter_lies_inside_white_matter() -> None:
    touching = total = 0
    for seed in SEEDS:
        for piece in labels(seed):
            beside = ndimage.binary_dilation(piece == 0)
            touching += int((beside & (piece == 1)).sum())
            total += int((piece == 1).sum())
    assert touching <= 0.02 * total


def test_grey_matter_has_two_horns_behind_and_a_bridge_between_its_sides() -> None:
    for seed in SEEDS:
        for piece in labels(seed):
            rows, columns = np.nonzero(piece == 1)
            behind = np.zeros_like(piece, dtype=bool)
            back = rows < np.quantile(rows, 0.2)
            behind[rows[back], columns[back]] = True
            assert ndimage.label(behind, np.ones((3, 3)))[1] >= 2
            assert ndimage.label(piece == 1, np.ones((3, 3)))[1] == 1


def test_both_sides_of_the_cord_are_about_equal() -> None:
    uneven = []
    for seed in SEEDS:
        for piece in labels(seed):
            middle = ndimage.center_of_mass(piece > 0)[1]
            columns = np.nonzero(piece == 1)[1]
            uneven.append(abs((columns > middle).mean() - (columns < middle).mean()))
    assert np.mean(uneven) < 0.08 and max(uneven) < 0.25


def test_fluid_surrounds_the_cord() -> None:
    for seed in SEEDS:
        fluid = share(subject(seed), "CSF") + share(subject(seed), "nerve roots")
        for piece, wet in zip(labels(seed) > 0, fluid, strict=True):
            ring = ndimage.binary_dilation(piece, iterations=2) & ~ndimage.binary_dilation(piece)
            assert wet[ring].mean() > 0.7 and np.mean(wet[ring] > 0.3) > 0.95


def test_bone_lies_behind_the_canal_and_a_vertebra_or_disc_in_front() -> None:
    for seed in SEEDS:
        person = subject(seed)
        front = share(person, "disc") + share(person, "marrow") + share(person, "bone")
        for number, piece in enumerate(labels(seed) > 0):
            y, x = (round(place) for place in ndimage.center_of_mass(piece))
            column = front[number, :, x - 2 : x + 3].mean(1)
            assert column[y + round(12 / SMALL.in_plane) :].max() > 0.8
            assert column[: y - round(6 / SMALL.in_plane)].max() > 0.3


def test_discs_alternate_with_vertebrae_along_the_spine() -> None:
    view = FieldOfView(slices=40, height=60, width=40, in_plane=2.0, thickness=2.0, spacing=2.0)
    discs = share(subject(3, view), "disc").sum((1, 2)) * view.in_plane**2 > 60
    starts = int((discs[1:] & ~discs[:-1]).sum())
    assert 4 <= starts <= 6  # 80 mm of vertebrae 15 to 18 mm apart
    assert 0.15 < discs.mean() < 0.5


def test_the_whole_neck_is_in_air_with_airway_vessels_and_muscle() -> None:
    for seed in range(6):
        person = subject(seed, WHOLE)
        assert person.fractions[:, :, 0].sum() == 0  # behind the neck
        for name, least in (("airway", 60), ("vessels", 40), ("muscle", 3000), ("fat", 200), ("skin", 200)):
            assert (share(person, name).sum((1, 2)) * WHOLE.in_plane**2).min() > least, name
        inside = ndimage.binary_fill_holes((person.fractions[:, 1].sum(0) > 0.5).numpy())
        assert ndimage.label(inside)[1] == 1


def test_landmarks_lie_on_cord_and_skin() -> None:
    for seed in range(6):
        person = subject(seed, WHOLE)
        assert person.landmarks["skin back"][1] < person.landmarks["cord"][1] - 35
        assert person.landmarks["skin front"][1] > person.landmarks["cord"][1] + 45


@pytest.mark.parametrize(("slices", "extent"), [(1, 80.0), (3, 240.0)])
def test_small_and_large_views_work(slices: int, extent: float) -> None:
    view = FieldOfView(slices=slices, height=extent, width=extent, in_plane=1.0, thickness=5.0, spacing=5.0)
    assert set(np.unique(subject(4, view).labels(Spine.labels))) == {0, 1, 2}


def test_the_masks_of_clear_necks_leave_out_the_rims_of_the_same_cords() -> None:
    for seed in range(4):
        clear = ClearSpine().subject(np.random.default_rng(seed), SMALL)
        for tissue in ("cord grey", "cord white"):
            inside = [place for place, region in enumerate(clear.regions) if region.tissue == f"{tissue} 2"]
            same = [place for place, region in enumerate(REGIONS) if region.tissue == tissue]
            found, known = (each.sum().item() for each in (clear.fractions[inside], subject(seed).fractions[same]))
            assert found == pytest.approx(known, rel=0.15)
        drawn, whole = clear.labels(ClearSpine.labels).numpy(), labels(seed)
        assert not ((drawn > 0) & (whole == 0)).any()
        assert 0.6 < (drawn == 1).sum() / (whole == 1).sum() < 1
        assert 0.85 < (drawn > 0).sum() / (whole > 0).sum() < 1


def test_varied_necks_differ_more_in_size_and_shape_than_others() -> None:
    cords = [VariedSpine().subject(np.random.default_rng(seed), SMALL).labels(Spine.labels).numpy() for seed in SEEDS]
    assert all({1, 2} <= set(np.unique(piece)) for cord in cords for piece in cord)
    others = [labels(seed) for seed in SEEDS]
    for spread in (lambda cord: areas(cord > 0).mean(), lambda cord: areas(cord == 1).mean(), flatness):
        assert np.std([spread(cord) for cord in cords]) > 1.4 * np.std([spread(cord) for cord in others])


def flatness(cord: np.ndarray) -> float:
    return float(np.mean([np.ptp(np.nonzero(piece)[1]) / np.ptp(np.nonzero(piece)[0]) for piece in cord]))
