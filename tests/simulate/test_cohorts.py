"""What every cohort must keep, where its scans are kept, and what one person has in common with another."""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pytest
import torch

from scantune.errors import InputError
from scantune.scans.case import Case, LabelMap
from scantune.scans.pairing import pair_predictions
from scantune.simulate import COHORTS, VERSION, Centre, Cohort, FieldOfView, Protocol, Region, icbm152, label_maps
from scantune.simulate import cache as cache_module
from scantune.simulate.anatomies.brain import LABELS, TISSUES
from scantune.simulate.anatomies.head import head_atlas
from scantune.simulate.anatomies.labelmaps import STRUCTURE_SCHEME
from scantune.simulate.anatomies.wmh import WhiteMatterLesions
from scantune.simulate.cache import Cache
from scantune.simulate.cohort import _stream
from scantune.simulate.deform import Wobble
from scantune.simulate.sequences import Given
from scantune.simulate.shaped import Body, Shaped
from scantune.simulate.solids import ellipsoid


def small_anatomy(cohort):
    """The cohort's anatomy; a coarse one where it is made from the atlas, which takes seconds to read."""
    if cohort.anatomy is icbm152:
        return icbm152(4)
    if cohort.anatomy is WhiteMatterLesions:
        return WhiteMatterLesions(head_atlas(4))
    return cohort.anatomy()


def smallest(cohort):
    """Name of the centre whose scans have the fewest voxels."""

    def work(name):
        view = cohort.centres[name].protocol.view(1)
        return view.shape[1] * view.shape[2] * len(view.profile())

    return min(cohort.centres, key=work)


@functools.cache
def coarse(name):
    """The cohort with its smallest centre alone, at voxels twice as large, and that centre's protocol."""
    cohort = COHORTS[name]
    centre = larger_voxels(cohort.centres[smallest(cohort)])
    return dataclasses.replace(cohort, given={centre.protocol.name: centre}), centre.protocol


def larger_voxels(centre):
    """The centre with voxels twice as large in plane."""
    edges = {key: 2 * getattr(centre.protocol, key) for key in ("in_plane", "resolution")}
    return dataclasses.replace(centre, protocol=dataclasses.replace(centre.protocol, **edges))


@functools.cache
def scans(name, split="test", seed=0, count=2):
    """Scans of two people, two slices each, in all states."""
    cohort, protocol = coarse(name)
    options = {"anatomy": small_anatomy(cohort), "count": count, "slices": 2}
    return list(cohort.cases(protocol.name, split, seed=seed, **options))


every_cohort = pytest.mark.parametrize("name", COHORTS)


@every_cohort
def test_a_scan_depends_on_its_seed_alone(name):
    for one, again in zip(scans.__wrapped__(name, count=1), scans(name), strict=False):  # simulated twice
        np.testing.assert_array_equal(one.image, again.image)
        np.testing.assert_array_equal(one.reference, again.reference)
        np.testing.assert_array_equal(one.affine, again.affine)
        assert (one.name, one.subject, one.site, one.split) == (again.name, again.subject, again.site, again.split)


@every_cohort
def test_another_seed_split_or_number_is_another_person(name):
    cohort, protocol = coarse(name)
    others = [scans(name), scans(name, seed=1, count=1)]
    others += [scans(name, split=split, count=1) for split in cohort.centres[protocol.name].splits if split != "test"]
    first_state = [scan for group in others for scan in group if scan.name.endswith(small_anatomy(cohort).states[0])]
    for one, other in itertools.combinations(first_state, 2):
        assert one.subject != other.subject
        assert not np.array_equal(one.reference, other.reference)
        assert not np.array_equal(one.image, other.image)


@every_cohort
def test_no_two_people_share_random_numbers(name):
    cohort = COHORTS[name]
    everyone = [
        (cohort.people or cohort.name, centre, split, seed, index)
        for centre, site in cohort.centres.items()
        for split, count in site.splits.items()
        for seed, index in itertools.product(range(2), range(count))
    ]
    assert len({_stream(*person) for person in everyone}) == len(everyone)


@every_cohort
def test_the_affine_tells_where_the_voxels_lie(name):
    _, protocol = coarse(name)
    for scan in scans(name):
        assert scan.image.shape == protocol.view(2).shape[::-1]
        np.testing.assert_allclose(scan.affine[:3, :3], np.diag(scan.spacing))  # right, forward, up
        assert scan.spacing[:2] == pytest.approx((protocol.in_plane,) * 2)
        middle = scan.affine @ [*[(n - 1) / 2 for n in scan.shape], 1]
        assert middle[:2] == pytest.approx((0, 0), abs=1e-9)
        assert scan.affine[3].tolist() == [0, 0, 0, 1]


@every_cohort
def test_without_a_number_of_slices_they_lie_as_the_protocol_says(name):
    cohort, protocol = coarse(name)
    few = Centre(dataclasses.replace(protocol, slices=1), {"test": 1})
    scan = next(dataclasses.replace(cohort, given={"x": few}).cases("x", "test", anatomy=small_anatomy(cohort)))
    assert scan.shape[2] == 1
    if protocol.gap is not None:
        assert scan.spacing[2] == pytest.approx(protocol.thickness + protocol.gap)


@every_cohort
def test_every_structure_is_labelled_and_nothing_else(name):
    values = {0, *COHORTS[name].labels.values()}
    assert COHORTS[name].labels
    seen = [set(np.unique(scan.reference).tolist()) for scan in scans(name)]
    assert set().union(*seen) == values
    assert set(COHORTS[name].labels) <= {region.structure for region in small_anatomy(COHORTS[name]).regions}
    assert all(scan.reference.dtype == np.uint8 for scan in scans(name))


@every_cohort
def test_images_are_finite_and_not_negative(name):
    for scan in scans(name):
        assert scan.image.dtype == np.float32
        assert np.isfinite(scan.image).all()
        assert scan.image.min() >= 0
        assert scan.image.max() < 60 * COHORTS[name].centres[scan.site].protocol.scale
        structures = scan.image[scan.reference > 0]
        assert structures.std() > 0
        assert len(np.unique(scan.image)) > 1000


@every_cohort
def test_a_person_is_the_same_in_all_states(name):
    states = small_anatomy(COHORTS[name]).states
    people = [list(group) for _, group in itertools.groupby(scans(name), lambda scan: scan.subject)]
    assert [len(group) for group in people] == [len(states)] * 2
    for group in people:
        for scan, state in zip(group, states, strict=True):
            assert scan.name == (f"{scan.subject}_{state}" if state else scan.subject)
            np.testing.assert_array_equal(scan.affine, group[0].affine)
        for one, other in itertools.combinations(group, 2):
            assert not np.array_equal(one.reference, other.reference)
            assert not np.array_equal(one.image, other.image)
            either, both = (f(one.reference > 0, other.reference > 0).sum() for f in (np.logical_or, np.logical_and))
            assert both > 0.5 * either


@every_cohort
def test_names_tell_cohort_centre_split_and_number(name):
    cohort = COHORTS[name]
    people = cohort.people or cohort.name
    stem = f"{people}_{smallest(cohort)}_test"
    assert list(dict.fromkeys(scan.subject for scan in scans(name))) == [f"{stem}-001", f"{stem}-002"]
    assert scans(name, seed=1, count=1)[0].subject == f"{stem}-001_seed-1"
    assert {(scan.site, scan.split) for scan in scans(name)} == {(smallest(cohort), "test")}


@every_cohort
def test_there_is_a_centre_to_train_at_and_every_centre_is_tested(name):
    cohort = COHORTS[name]
    assert set(cohort.centres[cohort.source].splits) == {"train", "validation", "test"}
    assert all(centre.splits["test"] > 0 for centre in cohort.centres.values())


def test_brain_and_contrasts_share_a_name_but_no_people():
    brain, contrasts = COHORTS["brain"], COHORTS["contrasts"]
    assert (brain.people or brain.name) == (contrasts.people or contrasts.name) == "brain"
    assert not set(brain.centres) & set(contrasts.centres)  # people are told apart by their centres


# A made-up anatomy: two marbles at known places, as large as the state says


@dataclass(frozen=True, eq=False)
class Bag(Body):
    radius: float

    def depths(self, at):
        return torch.stack([ellipsoid(at, centre, (self.radius,) * 3) for centre in Marbles.places.values()])


@dataclass(frozen=True)
class Marbles(Shaped):
    """Two marbles."""

    places: ClassVar[Mapping[str, tuple[float, float, float]]] = {"low": (-8.0, 10.0, -6.0), "high": (6.0, -12.0, 9.0)}
    regions = (Region("low", "fat", "low"), Region("high", "muscle", "high", texture=0.0))
    labels: ClassVar[Mapping[str, int]] = MappingProxyType({"low": 4, "high": 7})
    states = ("small", "large")
    wobble = Wobble(())

    def draw(self, rng, view, state):
        return Bag((-20.0, 20.0), rng.uniform(6, 7) * (1.2 if state == "large" else 1.0))


PROTOCOL = Protocol(
    "A", Given({"fat": 1.0, "muscle": 0.5}), fov=(60.0, 56.0), thickness=1.0, gap=0.0, slices=40, jitter=0.0
)
TOY = Cohort("toy", Marbles, Marbles.labels, given={"A": Centre(PROTOCOL, {"train": 2, "test": 1})})


def test_a_body_lies_where_the_affine_says():
    for scan in TOY.cases("A", "train"):
        for name, value in Marbles.labels.items():
            where = np.argwhere(scan.reference == value).mean(0)
            found = scan.affine @ [*where, 1]
            assert found[:3] == pytest.approx(Marbles.places[name][::-1], abs=0.2)  # (x, y, z)


def test_a_body_is_as_large_as_drawn_and_its_partial_volumes_add_up_to_that():
    anatomy = Marbles()
    radius = anatomy.draw(np.random.default_rng(3), FieldOfView(), "small").radius
    view = PROTOCOL.view()
    fractions = anatomy.subject(np.random.default_rng(3), view, "small").fractions
    assert fractions.sum((1, 2, 3)).tolist() == pytest.approx([4 / 3 * np.pi * radius**3] * 2, rel=0.02)
    thick = dataclasses.replace(PROTOCOL, thickness=5.0, slices=8, slice_edges=0.3).view()
    fractions = anatomy.subject(np.random.default_rng(3), thick, "small").fractions
    assert 5 * fractions.sum((1, 2, 3)).numpy() == pytest.approx(4 / 3 * np.pi * radius**3, rel=0.1)


def test_wider_borders_blend_tissues_but_hardly_change_how_much_there_is():
    wide = dataclasses.replace(PROTOCOL, border=2.5).view()
    sharp, soft = (
        Marbles().subject(np.random.default_rng(3), view, "small").fractions for view in (PROTOCOL.view(), wide)
    )
    mixed = [int(((shares > 0) & (shares < 1)).sum()) for shares in (sharp, soft)]
    assert 2 * mixed[0] < mixed[1] < 3 * mixed[0]
    assert soft.sum((1, 2, 3)).tolist() == pytest.approx(sharp.sum((1, 2, 3)).tolist(), rel=0.05)


def test_people_before_the_first_that_is_wanted_are_not_simulated(monkeypatch):
    simulated = []
    draw = Marbles.draw
    monkeypatch.setattr(Marbles, "draw", lambda self, *rest: simulated.append(1) or draw(self, *rest))
    everyone = list(TOY.cases("A", "train"))
    simulated.clear()
    rest = list(TOY.cases("A", "train", start=1))
    assert len(simulated) == len(Marbles.states)
    assert [scan.name for scan in rest] == [scan.name for scan in everyone[2:]]
    np.testing.assert_array_equal(rest[0].image, everyone[2].image)
    assert not list(TOY.cases("A", "train", start=2))
    assert len(list(TOY.cases("A", "train", start=2, count=3))) == len(Marbles.states)


def test_predictions_of_a_cohorts_scans_find_their_label_maps(tmp_path):
    for name in ("a", "b"):
        for folder, parts in (("test", ("image", "labels")), ("out", ("image_seg", "image_source_seg"))):
            (tmp_path / folder).mkdir(exist_ok=True)
            for part in parts:
                (tmp_path / folder / f"{name}_{part}.nii.gz").touch()
    matches = pair_predictions(tmp_path / "out", tmp_path / "test")
    assert not matches.lone_predictions
    assert not matches.lone_references
    found = [(one.name, one.prediction.name, one.reference.name, one.source) for one in matches.pairs]
    assert found == [
        (name, f"{name}_image{word}_seg.nii.gz", f"{name}_labels.nii.gz", bool(word))
        for name in ("a", "b")
        for word in ("", "_source")
    ]


def test_label_maps_that_are_named_as_images_are_still_label_maps(tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a_image.nii.gz").touch()
    assert len(pair_predictions(tmp_path / "one", tmp_path / "other").pairs) == 1


def test_states_are_one_examination_with_noise_of_its_own():
    small, large = TOY.cases("A", "test")
    assert (small.name, large.name) == ("toy_A_test-001_small", "toy_A_test-001_large")
    assert small.subject == large.subject == "toy_A_test-001"
    volumes = [(scan.reference > 0).sum() for scan in (small, large)]
    assert volumes[1] / volumes[0] == pytest.approx(1.2**3, rel=0.05)
    air = (small.reference == 0) & (large.reference == 0)
    air[:, 8:-8] = False  # far from the marbles
    assert abs(np.corrcoef(small.image[air], large.image[air])[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("centre", "split", "says"), [("B", "test", "centre 'B' of cohort toy"), ("A", "tst", "split")]
)
def test_unknown_names_are_told_with_those_there_are(centre, split, says):
    with pytest.raises(InputError, match=f"Unknown {says}.*Available: "):
        TOY.cases(centre, split)


# Labels


def toy_brain(scheme):
    """A ball of the first two labels of the paper's scheme in fluid."""
    x, y, z = np.meshgrid(*[5.0 * (np.arange(n) - (n - 1) / 2) for n in (34, 40, 24)], indexing="ij")
    radius = np.sqrt(x**2 + y**2 + z**2)
    labels = np.select([radius < 40, radius < 52, radius < 58], [1, 2, 13], 0).astype(np.uint8)
    return label_maps([LabelMap("ball", labels, np.diag([5.0, 5.0, 5.0, 1.0]))], scheme)


def test_an_anatomy_with_other_structures_brings_its_own_labels():
    single = toy_brain(STRUCTURE_SCHEME)
    for name in ("brain", "contrasts", "registration"):
        cohort = COHORTS[name]
        assert cohort.labels_of() == cohort.labels_of(icbm152(4)) == dict(cohort.labels)
        assert cohort.labels_of(single) == {region.structure: value for value, region in STRUCTURE_SCHEME.items()}
    scan = next(COHORTS["contrasts"].cases("pd-3T", "test", anatomy=single, slices=3))
    assert set(np.unique(scan.reference)) == {0, 1, 2, 13}


def test_registration_labels_grey_and_white_matter_alone():
    cohort = COHORTS["registration"]
    assert cohort.labels == {"GM": 1, "WM": 2}
    tissues = dataclasses.replace(cohort, labels=LABELS)
    ours, theirs = (next(c.cases("OASIS", "test", anatomy=icbm152(4), slices=2)) for c in (cohort, tissues))
    np.testing.assert_array_equal(ours.image, theirs.image)
    for value in (1, 2):
        assert (theirs.reference[ours.reference == value] == value + 1).all()
        assert (ours.reference == value).sum() > 0.95 * (theirs.reference == value + 1).sum()
    assert (ours.reference[theirs.reference == LABELS["CSF"]] == 0).all()
    assert {region.structure for region in TISSUES} == set(LABELS)


# The cache


def kept(folder):
    return sorted(folder.iterdir()) if folder.is_dir() else []


def toy_scans(folder, cohort=TOY, split="test", **options):
    return list(cohort.cases("A", split, slices=3, cache=folder, **options))


def same(one, other):
    for name in ("image", "affine", "reference"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    assert all(getattr(one, name) == getattr(other, name) for name in ("name", "subject", "site", "split"))


@pytest.fixture
def no_simulation(monkeypatch):
    def forbid():
        def fail(*_):
            raise AssertionError("this scan is there already")

        monkeypatch.setattr(Cohort, "_case", fail)

    return forbid


def test_a_scan_that_was_kept_is_read_and_not_simulated_again(tmp_path, no_simulation):
    fresh = list(TOY.cases("A", "test", slices=3))
    first = toy_scans(tmp_path / "new" / "cache")
    assert len(kept(tmp_path / "new" / "cache")) == 2  # one file per state
    no_simulation()
    for one, two, three in zip(fresh, first, toy_scans(tmp_path / "new" / "cache"), strict=True):
        assert isinstance(three, Case)
        same(one, two)
        same(one, three)
    with pytest.raises(AssertionError):
        toy_scans(tmp_path / "new" / "cache", seed=1)


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def incomplete(path):
    np.savez(path, image=np.zeros((2, 2, 2)))


@pytest.mark.parametrize(
    "damage",
    [cut, flip, incomplete, lambda path: path.write_bytes(b""), lambda path: path.write_text("not a scan")],
    ids=["cut", "flipped", "incomplete", "empty", "text"],
)
def test_a_damaged_file_is_made_again(tmp_path, damage, no_simulation):
    fresh = toy_scans(tmp_path)
    for path in kept(tmp_path):
        damage(path)
    for one, other in zip(fresh, toy_scans(tmp_path), strict=True):
        same(one, other)
    assert len(kept(tmp_path)) == 2
    no_simulation()
    for one, other in zip(fresh, toy_scans(tmp_path), strict=True):  # and kept this time
        same(one, other)


class MoreMarbles(Marbles):
    """The same but for its name."""


def other_protocol(**changes):
    return dataclasses.replace(
        TOY, given={"A": Centre(dataclasses.replace(PROTOCOL, **changes), {"train": 2, "test": 1})}
    )


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"split": "train", "count": 1},
        {"anatomy": MoreMarbles()},
        {"cohort": dataclasses.replace(TOY, people="others")},
        {"cohort": dataclasses.replace(TOY, labels={"low": 1, "high": 2})},
        {"cohort": other_protocol(snr=41.0)},
        {"cohort": other_protocol(sequence=Given({"fat": 1.0, "muscle": 0.51}))},
        {"cohort": other_protocol(slice_edges=0.1)},
    ],
    ids=["seed", "split", "anatomy", "people", "labels", "snr", "sequence", "profile"],
)
def test_whatever_changes_a_scan_changes_its_file(tmp_path, other):
    toy_scans(tmp_path)
    toy_scans(tmp_path, **other)
    assert len(kept(tmp_path)) == 4


def test_another_number_of_slices_is_another_file(tmp_path):
    for slices in (3, 4, None):
        list(TOY.cases("A", "test", slices=slices, cache=tmp_path))
    assert len(kept(tmp_path)) == 6


def test_templates_tell_atlases_apart():
    one, other = icbm152(4), toy_brain(STRUCTURE_SCHEME)
    assert one.fingerprint() == dataclasses.replace(one).fingerprint()
    swollen = dataclasses.replace(one.templates[0], fractions=one.templates[0].fractions.flip(1))
    moved = dataclasses.replace(one.templates[0], coverage=(-40.0, 40.0))
    different = [
        one,
        other,
        dataclasses.replace(one, templates=(swollen,)),
        dataclasses.replace(one, templates=(moved,)),
        one.mixed_with(one),
    ]
    assert len({atlas.fingerprint() for atlas in different}) == len(different)


def test_another_version_of_the_simulator_makes_its_own_files(tmp_path, monkeypatch):
    toy_scans(tmp_path)
    monkeypatch.setattr(cache_module, "VERSION", cache_module.VERSION + 1)
    toy_scans(tmp_path)
    assert len(kept(tmp_path)) == 4


def test_a_folder_that_takes_no_files_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        toy_scans(tmp_path / "file")


def test_the_cache_keeps_nothing_of_a_scan_that_failed(tmp_path):
    def fail():
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        Cache(tmp_path / "cache").get(("key",), fail)
    assert kept(tmp_path / "cache") == []


# The version of the simulation

SUMS = Path(__file__).parents[1] / "simulated.json"


@functools.cache
def sums(name):
    """What a small scan of each centre of a cohort adds up to, by the scan's name."""
    cohort = COHORTS[name]
    small = dataclasses.replace(cohort, given={key: larger_voxels(one) for key, one in cohort.centres.items()})
    options = {"anatomy": small_anatomy(cohort), "count": 1, "slices": 2}
    return {scan.name: sums_of(scan) for centre in small.centres for scan in small.cases(centre, "test", **options)}


def sums_of(scan):
    """Mean and deviation of a scan, three sums with random signs to which every voxel adds, and structures' voxels."""
    values = scan.image.astype(np.float64).ravel()
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (3, values.size))
    projections = signs @ (values - values.mean()) / (np.sqrt(values.size) * values.std())
    image = [float(f"{value:.5g}") for value in (values.mean(), values.std(), *projections)]
    return {"image": image, "voxels": np.bincount(scan.reference.ravel().astype(int))[1:].tolist()}


def same_sums(one, other):
    """Whether two scans are the same up to rounding, which may tip a voxel at the edge of a structure over."""
    (*scale, _, _, _), (*known, _, _, _) = one["image"], other["image"]
    return (
        len(one["voxels"]) == len(other["voxels"])
        and np.allclose(scale, known, rtol=1e-3)
        and np.allclose(one["image"][2:], other["image"][2:], rtol=0, atol=0.01)
        and np.allclose(one["voxels"], other["voxels"], rtol=2e-3, atol=2)
    )


@every_cohort
def test_a_change_of_the_scans_raises_the_version_of_the_simulation(name):
    noted = json.loads(SUMS.read_text(encoding="utf-8"))
    told = (
        "Simulated scans look different, and benchmarks would take old ones for new: raise VERSION in "
        "simulate/cache.py (unless a centre's protocol is all that changed), then note the new sums with: "
        "python tests/simulate/test_cohorts.py"
    )
    assert noted["version"] == VERSION, told
    assert noted["sums"][name].keys() == sums(name).keys(), told
    different = [scan for scan, found in sums(name).items() if not same_sums(found, noted["sums"][name][scan])]
    assert not different, told


def test_sums_tell_other_noise_a_shift_and_a_changed_structure_but_not_rounding():
    (scan, other, *_) = [*scans("spine"), *scans("spine", seed=1)]
    rng = np.random.default_rng(3)
    wide = scan.image.astype(np.float64)

    def same(**changes):
        return same_sums(sums_of(scan), sums_of(dataclasses.replace(scan, **changes)))

    assert same(image=wide * (1 + 1e-6 * rng.standard_normal(wide.shape)))
    assert not same(image=wide + 0.05 * wide.std() * rng.standard_normal(wide.shape))
    assert not same(image=np.roll(wide, 1, axis=0))
    assert not same(image=1.01 * wide)
    assert not same(reference=other.reference)


if __name__ == "__main__":
    text = json.dumps({"version": VERSION, "sums": {name: sums(name) for name in COHORTS}}, indent=1)
    SUMS.write_text(re.sub(r"\s+(?=[-\d\]])", " ", text) + "\n")  # a list of numbers is one line
