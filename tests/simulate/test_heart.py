from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.simulate.anatomies.heart import Heart, HeartBody
from scantune.simulate.deform import Wobble
from scantune.simulate.subject import FieldOfView, Subject

HEART = Heart()
FINE = FieldOfView(slices=26, height=252, width=252, in_plane=3, thickness=5, spacing=5)
COARSE = FieldOfView(slices=18, height=200, width=200, in_plane=5, thickness=8, spacing=8)
CLINICAL = FieldOfView(slices=12, height=344, width=344, in_plane=4, thickness=9.6, spacing=9.6, edges=0.2)
LV, MYO, RV = 1, 2, 3


class Rigid(Heart):
    """Hearts without the random bending, whose volumes have closed forms."""

    wobble = Wobble(scales=())


def scanned(seed: int, view: FieldOfView, state: str, heart: Heart = HEART) -> tuple[Subject, Tensor]:
    subject = heart.subject(np.random.default_rng(seed), view, state)
    return subject, subject.labels(heart.labels)


def drawn(seed: int, state: str = "ED") -> HeartBody:
    return HEART.draw(np.random.default_rng(seed), COARSE, state)


def volume(labels: Tensor, value: int, subject: Subject) -> float:
    return int((labels == value).sum()) * float(np.prod(subject.spacing)) / 1000


def neighbours(mask: Tensor) -> Tensor:
    """Voxels next to a mask `(slices, height, width)` within its slices, and the mask."""
    grown = mask.clone()
    for step, axis in itertools.product((-1, 1), (1, 2)):
        grown |= mask.roll(step, axis)
    return grown


@pytest.fixture(scope="module")
def people() -> list[dict[str, tuple[Subject, Tensor]]]:
    return [{state: scanned(seed, COARSE, state) for state in HEART.states} for seed in range(20)]


def test_the_same_seed_gives_the_same_heart_and_another_seed_another_one() -> None:
    once, again, other = (scanned(seed, COARSE, "ED")[0].fractions for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.allclose(once, other, atol=0.5)


def test_every_structure_is_present_at_both_times(people: list[dict[str, tuple[Subject, Tensor]]]) -> None:
    for person in people:
        for _, labels in person.values():
            assert set(np.unique(labels)) == {0, LV, MYO, RV}


def test_fractions_are_shares_of_a_voxel() -> None:
    for state in HEART.states:
        fractions = scanned(1, CLINICAL, state)[0].fractions
        assert fractions.isfinite().all()
        assert fractions.min() >= 0
        assert fractions.max() <= 1 + 1e-5
        assert fractions.sum(0).max() <= 1 + 1e-5


def test_every_region_fills_some_voxels_of_some_person() -> None:
    most = torch.stack([scanned(seed, CLINICAL, "ED")[0].fractions.amax((1, 2, 3)) for seed in range(3)]).amax(0)
    assert dict(zip([region.name for region in HEART.regions], (most > 0.5).tolist(), strict=True)) == {
        region.name: True for region in HEART.regions
    }


@pytest.mark.parametrize("seed", [0, 4])
def test_both_times_show_the_same_person_outside_the_heart(seed: int) -> None:
    filled, contracted = (scanned(seed, CLINICAL, state)[0] for state in HEART.states)
    names = [region.name for region in HEART.regions]
    chest, heart = names.index("descending aorta") + 1, slice(names.index("epicardial fat"), None)
    outside = (filled.fractions[heart].sum(0) == 0) & (contracted.fractions[heart].sum(0) == 0)
    assert outside.float().mean() > 0.8
    assert torch.equal(filled.fractions[:chest, outside], contracted.fractions[:chest, outside])
    assert filled.origin == contracted.origin
    assert filled.landmarks == contracted.landmarks


@pytest.mark.parametrize("seed", range(5))
def test_counted_voxels_give_the_drawn_ejection_fraction_and_muscle_stays_muscle(seed: int) -> None:
    (filled, before), (contracted, after) = (scanned(seed, FINE, state) for state in HEART.states)
    ejected = 1 - volume(after, LV, contracted) / volume(before, LV, filled)
    assert ejected == pytest.approx(drawn(seed).ejection, abs=0.05)
    assert volume(after, MYO, contracted) == pytest.approx(volume(before, MYO, filled), rel=0.15)
    assert volume(after, RV, contracted) < 0.85 * volume(before, RV, filled)


@pytest.mark.parametrize("state", ["ED", "ES"])
def test_without_bending_voxels_add_up_to_the_volumes_of_cut_ellipsoids(state: str) -> None:
    subject = scanned(2, FINE, state, Rigid())[0]
    shares = subject.fractions.sum((1, 2, 3)) * float(np.prod(subject.spacing)) / 1000
    counted = dict.fromkeys(("", "LV", "MYO", "RV"), 0.0)
    for region, share in zip(HEART.regions, shares.tolist(), strict=True):
        counted[region.structure] += share
    cavity, outside = drawn(2, state).ventricles.cavity, drawn(2, state).ventricles.outside
    heights = np.linspace(-outside.length, cavity.above, 20001)
    for bowl, structures in ((cavity, ("LV",)), (outside, ("LV", "MYO"))):
        areas = np.pi * bowl.radius**2 * np.clip(1 - (heights / bowl.length) ** 2, 0, None)
        integral = float(np.trapezoid(areas, heights)) / 1000
        assert bowl.volume == pytest.approx(integral, rel=1e-3)
        assert sum(counted[name] for name in structures) == pytest.approx(integral, rel=0.04)


def test_volumes_are_those_of_patients(people: list[dict[str, tuple[Subject, Tensor]]]) -> None:
    sizes = {
        (state, value): np.array([volume(labels, value, subject) for subject, labels in (p[state] for p in people)])
        for state in HEART.states
        for value in (LV, MYO, RV)
    }
    assert 70 < sizes["ED", LV].min() < sizes["ED", LV].max() < 300
    assert 115 < sizes["ED", LV].mean() < 185
    assert 22 < sizes["ES", LV].min() < sizes["ES", LV].max() < 220
    assert 85 < sizes["ED", RV].min() < sizes["ED", RV].max() < 255
    assert 60 < sizes["ED", MYO].min() < sizes["ED", MYO].max() < 260


def test_kinds_of_hearts_differ_as_their_names_say() -> None:
    bodies = [(drawn(seed), drawn(seed, "ES")) for seed in range(40)]
    kinds = {kind: [pair for pair in bodies if pair[0].kind == kind] for kind in ("normal", "hypertrophic", "dilated")}
    assert all(len(pairs) >= 5 for pairs in kinds.values())
    radius = {kind: np.mean([ed.ventricles.cavity.radius for ed, _ in pairs]) for kind, pairs in kinds.items()}
    wall = {kind: np.mean([ed.ventricles.wall for ed, _ in pairs]) for kind, pairs in kinds.items()}
    assert radius["dilated"] > radius["normal"] + 3
    assert wall["hypertrophic"] > wall["normal"] + 3
    assert max(ed.ejection for ed, _ in kinds["dilated"]) < min(ed.ejection for ed, _ in kinds["normal"])
    assert all(1.25 < es.ventricles.wall / ed.ventricles.wall < 1.6 for ed, es in kinds["normal"])


@pytest.mark.parametrize("seed", [0, 2, 5])
@pytest.mark.parametrize("state", ["ED", "ES"])
def test_muscle_encloses_the_left_cavity_and_the_right_one_touches_the_septum(seed: int, state: str) -> None:
    subject, labels = scanned(seed, CLINICAL, state)
    heights = subject.origin[0] + subject.spacing[0] * np.arange(len(labels))
    middle = labels[int(np.abs(heights).argmin())][None]
    around = neighbours(middle == LV)
    assert (middle == LV).sum() > 25
    assert set(np.unique(middle[around])) == {LV, MYO}
    assert (neighbours(middle == RV) & (middle == MYO)).sum() >= 5


@pytest.mark.parametrize("state", ["ED", "ES"])
def test_nothing_above_the_base_or_below_the_apex_is_labelled(state: str) -> None:
    body = drawn(5, state)
    above, below = body.ventricles.base + 0.1, body.ventricles.apex - 0.1
    grid = torch.cartesian_prod(torch.tensor([above, above + 10, below]), *[torch.arange(-90.0, 91.0, 3.0)] * 2)
    depths = body.depths(grid.reshape(3, 61, 61, 3).unbind(-1))
    labelled = torch.tensor([bool(region.structure) for region in HEART.regions])
    assert (depths[labelled] < 0).all()
    assert (depths[~labelled, :2] > 0).any(0).any()


def test_slices_run_from_beyond_the_apex_to_beyond_the_base() -> None:
    for seed in range(8):
        body = drawn(seed)
        assert body.coverage[0] < body.ventricles.apex < body.ventricles.base < body.coverage[1]
        assert body.coverage == drawn(seed, "ES").coverage
        assert 8 <= (body.coverage[1] - body.coverage[0]) / 9.6 <= 14


def test_the_skin_is_where_the_landmarks_say() -> None:
    body = drawn(6)
    for side, inwards in (("skin front", -1), ("skin back", 1)):
        z, y, x = body.landmarks[side]
        line = torch.tensor([[z, y + inwards * step, x] for step in (-25.0, 25.0)]).reshape(1, 1, 2, 3)
        out, inside = body.depths(line.unbind(-1))[0].flatten().tolist()
        assert out < 0 < inside


def test_an_unknown_state_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="ED or ES, but 'diastole'"):
        HEART.draw(np.random.default_rng(0), COARSE, "diastole")
