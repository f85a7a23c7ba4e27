"""Test scans of simulated cohorts: those of the cohort, by person and state."""

import numpy as np
import pytest
import torch

from scantune.backends.slices import Preprocessing
from scantune.errors import InputError
from scantune.simulate import COHORTS
from scantune.training.sources import SimulatedSource, simulated

CPU = torch.device("cpu")


def test_a_held_out_scan_is_the_person_of_the_cohort_in_that_state():
    source = SimulatedSource("cardiac", slices=1)
    listed = source.test_scans("UHE")
    assert len(listed) == 20 and len({scan.identity for scan in listed}) == 20
    second = [scan for scan in listed if scan.number == 1]
    expected = list(COHORTS["cardiac"].cases("UHE", "test", slices=1, count=2))[2:]
    for scan, case in zip(second, expected, strict=True):
        found = scan.read(CPU)
        assert (found.name, found.subject, found.site) == (case.name, case.subject, case.site)
        assert np.array_equal(found.image, case.image) and np.array_equal(found.reference, case.reference)
    assert [scan.title for scan in second] == ["UHE 2", "UHE 2 (2)"]


def test_sites_and_where_training_takes_place():
    source = SimulatedSource("spine")
    assert source.test_sites() == ["PM", "USZ", "VU", "UCL"] and source.training_site() == "PM"
    moved = source.at_site("VU")
    assert moved.training_site() == "VU"
    assert moved.identity(Preprocessing()) != source.identity(Preprocessing())
    with pytest.raises(InputError, match="pd-3T of cohort contrasts has no people for train"):
        SimulatedSource("contrasts").at_site("pd-3T")


def test_where_simulated_scans_are_kept_is_no_part_of_what_they_are(tmp_path):
    plain, kept = SimulatedSource("spine"), SimulatedSource("spine", cache=str(tmp_path))
    assert plain.identity(Preprocessing()) == kept.identity(Preprocessing())
    assert [t.identity for t in plain.test_scans("VU")] == [t.identity for t in kept.test_scans("VU")]
    other = SimulatedSource("spine", seed=1)
    assert {t.identity for t in plain.test_scans("VU")}.isdisjoint(t.identity for t in other.test_scans("VU"))
    fewer = SimulatedSource("spine", train=2)
    assert plain.identity(Preprocessing()) != fewer.identity(Preprocessing())


def test_scans_of_another_version_of_the_simulation_are_other_scans(monkeypatch):
    source = SimulatedSource("spine")
    before = {source.identity(Preprocessing()), *(scan.identity for scan in source.test_scans("VU"))}
    monkeypatch.setattr(simulated, "VERSION", simulated.VERSION + 1)
    after = {source.identity(Preprocessing()), *(scan.identity for scan in source.test_scans("VU"))}
    assert len(before) == len(after) == 10
    assert before.isdisjoint(after)


@pytest.mark.parametrize(
    ("cohort", "training", "site", "first"),
    [
        ("contrasts", "9e137818fd867aafce9a71acab9fd517", "ir-3T", "f86d5ad147a44736b329faaa85b7662b"),
        ("prostate", "e3bdf0cd86909509d83231f4330e4172", "HK", "d761ae54187e397c3f09326cbaa4a61c"),
        ("cardiac", "ec7b21bf3357d562ccf5da456f0c8a71", "UHE", "3c5f8b25d30b1ec2878e00b70c0f0062"),
    ],
)
def test_finished_jobs_of_version_0_1_are_found_by_the_same_hashes(cohort, training, site, first):
    source = SimulatedSource(cohort)
    assert source.identity(Preprocessing()) == training
    assert source.test_scans(site)[0].identity == first
