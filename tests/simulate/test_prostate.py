"""The simulated pelvis: what is where, how large it is, and what a coil in the rectum does to it."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from scantune.simulate.anatomies.prostate import Prostate
from scantune.simulate.subject import FieldOfView

PEOPLE = 20
NAMES = [region.name for region in Prostate.regions]


@functools.cache
def person(seed, endorectal=False, width=120.0, slices=26):
    view = FieldOfView(
        slices=slices, height=width, width=width, in_plane=2.0, thickness=2.0, edges=0.2, endorectal=endorectal
    )
    return Prostate().subject(np.random.default_rng(seed), view)


def gland(subject):
    return subject.labels(Prostate.labels) > 0


def millilitres(mask, subject):
    return float(mask.sum()) * np.prod(subject.spacing) / 1000


def middle(mask, subject):
    """Centre of mass (z, y, x) in mm."""
    return mask.nonzero().double().mean(0).numpy() * subject.spacing + subject.origin


def share(subject, name):
    return subject.fractions[NAMES.index(name)]


def depth_of_gland(subject):
    """Largest extent in mm from back to front among the columns of the gland's middle slices."""
    return float(gland(subject).sum(1).max()) * subject.spacing[1]


def test_the_same_random_numbers_give_the_same_person():
    again = person.__wrapped__(3)
    assert torch.equal(person(3).fractions, again.fractions)
    assert (person(3).origin, person(3).landmarks) == (again.origin, again.landmarks)
    assert not torch.equal(gland(person(3)), gland(person(4)))


@pytest.mark.parametrize("endorectal", [False, True])
def test_shares_are_between_0_and_1_and_add_up_to_at_most_1(endorectal):
    for seed in range(4):
        fractions = person(seed, endorectal).fractions
        assert fractions.isfinite().all()
        assert fractions.min() >= 0
        assert fractions.sum(0).max() <= 1 + 1e-5


def test_every_structure_is_in_everyone_and_every_region_in_someone():
    seen = set()
    for seed in range(PEOPLE):
        subject = person(seed)
        assert set(subject.labels(Prostate.labels).unique().tolist()) == {0, 1, 2}
        seen |= {name for name in NAMES if share(subject, name).max() > 0.5}
    wide = person(0, width=250.0)
    seen |= {name for name in NAMES if share(wide, name).max() > 0.5}
    assert seen == set(NAMES) - {"balloon"}


def test_some_people_have_a_lesion_and_others_do_not():
    lesions = [bool(share(person(seed), "lesion").max() > 0.5) for seed in range(PEOPLE)]
    assert 2 <= sum(lesions) <= PEOPLE - 2


def test_glands_are_of_human_size_and_grow_by_their_transition_zone():
    volumes, zones = [], []
    for seed in range(PEOPLE):
        labels = person(seed).labels(Prostate.labels)
        volumes.append(millilitres(labels > 0, person(seed)))
        zones.append(millilitres(labels == 1, person(seed)))
    assert min(volumes) >= 20 and max(volumes) <= 110
    assert 40 <= np.mean(volumes) <= 55
    assert max(volumes) / min(volumes) > 2
    shares = np.array(zones) / volumes
    assert shares.min() > 0.3 and shares.max() < 0.8
    assert np.corrcoef(volumes, shares)[0, 1] > 0.5


def test_the_peripheral_zone_lies_behind_the_transition_zone_and_reaches_further_down():
    for seed in range(PEOPLE):
        labels = person(seed).labels(Prostate.labels)
        transition, peripheral = middle(labels == 1, person(seed)), middle(labels == 2, person(seed))
        assert peripheral[1] < transition[1] - 3
        assert peripheral[0] < transition[0]


@pytest.mark.parametrize("endorectal", [False, True])
def test_the_rectum_lies_behind_the_gland_and_the_bladder_above(endorectal):
    for seed in range(6):
        subject = person(seed, endorectal)
        organ = middle(gland(subject), subject)
        wall = middle(share(subject, "rectal wall") > 0.5, subject)
        urine = middle(share(subject, "urine") > 0.5, subject)
        assert wall[1] < organ[1] - 15 and abs(wall[2] - organ[2]) < 10
        assert urine[0] > organ[0] + 10 and urine[1] > wall[1]


def test_the_rectum_landmark_lies_in_the_lumen():
    for seed in range(6):
        for endorectal in (False, True):
            subject = person(seed, endorectal)
            index = np.round((np.array(subject.landmarks["rectum"]) - subject.origin) / subject.spacing).astype(int)
            around = tuple(slice(at - 2, at + 3) for at in index)
            inside = sum(share(subject, name)[around] for name in ("stool", "gas", "balloon"))
            assert inside.max() > 0.5


def test_the_skin_landmarks_lie_where_the_body_ends():
    for seed in range(3):
        subject = person(seed, width=280.0, slices=6)
        column = subject.fractions.sum(0)[:, :, subject.fractions.shape[3] // 2].mean(0) > 0.5
        rows = column.nonzero()[:, 0].numpy() * subject.spacing[1] + subject.origin[1]
        assert abs(rows.max() - subject.landmarks["skin front"][1]) < 12
        assert abs(rows.min() - subject.landmarks["skin back"][1]) < 20


def test_a_coil_in_the_rectum_fills_it_with_a_balloon_and_flattens_the_gland():
    for seed in range(6):
        plain, coil = person(seed), person(seed, True)
        assert share(plain, "balloon").max() == 0
        balloon = share(coil, "balloon") > 0.5
        widest = float(balloon.sum(2).max()) * coil.spacing[2]
        assert 30 <= widest <= 50
        assert depth_of_gland(coil) < 0.95 * depth_of_gland(plain)
        volume = millilitres(gland(coil), coil) / millilitres(gland(plain), plain)
        assert 0.8 < volume < 1.05


def test_a_coil_in_the_rectum_changes_nothing_else():
    plain, coil = person(1, width=200.0), person(1, True, width=200.0)
    assert (plain.origin, plain.spacing) == (coil.origin, coil.spacing)
    for name in ("skin", "bone", "marrow", "vessels"):
        torch.testing.assert_close(share(plain, name), share(coil, name))
    x = plain.origin[2] + plain.spacing[2] * torch.arange(plain.fractions.shape[3])
    far = x.abs() > 60
    torch.testing.assert_close(plain.fractions[..., far], coil.fractions[..., far])
    assert not torch.equal(plain.fractions, coil.fractions)


def test_slices_cover_the_gland_and_a_little_more():
    for seed in range(6):
        subject = person(seed)
        filled = gland(subject).flatten(1).any(1)
        assert 2 <= int((~filled).sum()) <= 13
        view = FieldOfView(slices=45, height=120, width=120, in_plane=2.0, thickness=2.0)
        taller = TallProstate().subject(np.random.default_rng(seed), view)
        z = taller.origin[0] + taller.spacing[0] * np.arange(view.slices)
        half = len(filled) * subject.spacing[0] / 2
        middle_slice = subject.origin[0] + half - subject.spacing[0] / 2
        outside = gland(taller)[torch.from_numpy(abs(z - middle_slice) > half)]
        assert millilitres(outside, taller) <= 0.01 * millilitres(gland(taller), taller)


def test_small_views_are_filled_with_tissue():
    for seed in range(4):
        assert person(seed, width=140.0, slices=6).fractions.sum(0).min() > 0.99


class TallProstate(Prostate):
    """The same shapes, bent another way, scanned 15 mm further up and down."""

    def draw(self, rng, view, state):
        body = super().draw(rng, view, state)
        return dataclasses.replace(body, coverage=(body.coverage[0] - 15, body.coverage[1] + 15))
