"""Test scans of simulated cohorts: those of the cohort, by person and state."""

import numpy as np
import pytest
import torch

from scantune.benchmark import test_scans as trials_module
from scantune.benchmark.test_scans import at_site, held_out_scans, identity, sites, training_site
from scantune.errors import InputError
from scantune.scans.preprocess import Preprocessing
from scantune.simulate import COHORTS
from scantune.training.sources import SimulatedSource

CPU = torch.device("cpu")


def test_a_trial_is_the_person_of_the_cohort_in_that_state():
    source = SimulatedSource("cardiac", slices=1)
    listed = held_out_scans(source, "UHE")
    assert len(listed) == 20 and len({trial.identity for trial in listed}) == 20
    second = [trial for trial in listed if trial.number == 1]
    expected = list(COHORTS["cardiac"].cases("UHE", "test", slices=1, count=2))[2:]
    for trial, case in zip(second, expected, strict=True):
        found = trial.read(CPU)
        assert (found.name, found.subject, found.site) == (case.name, case.subject, case.site)
        assert np.array_equal(found.image, case.image) and np.array_equal(found.reference, case.reference)
    assert [trial.title for trial in second] == ["UHE 2", "UHE 2 (2)"]


def test_sites_and_where_training_takes_place():
    source = SimulatedSource("spine")
    assert sites(source) == ["PM", "USZ", "VU", "UCL"] and training_site(source) == "PM"
    moved = at_site(source, "VU")
    assert training_site(moved) == "VU"
    assert identity(moved, Preprocessing()) != identity(source, Preprocessing())
    with pytest.raises(InputError, match="pd-3T of cohort contrasts has no people for train"):
        at_site(SimulatedSource("contrasts"), "pd-3T")


def test_where_simulated_scans_are_kept_is_no_part_of_what_they_are(tmp_path):
    plain, kept = SimulatedSource("spine"), SimulatedSource("spine", cache=str(tmp_path))
    assert identity(plain, Preprocessing()) == identity(kept, Preprocessing())
    assert [t.identity for t in held_out_scans(plain, "VU")] == [t.identity for t in held_out_scans(kept, "VU")]
    other = SimulatedSource("spine", seed=1)
    assert {t.identity for t in held_out_scans(plain, "VU")}.isdisjoint(t.identity for t in held_out_scans(other, "VU"))
    fewer = SimulatedSource("spine", train=2)
    assert identity(plain, Preprocessing()) != identity(fewer, Preprocessing())


def test_scans_of_another_version_of_the_simulation_are_other_scans(monkeypatch):
    source = SimulatedSource("spine")
    before = {identity(source, Preprocessing()), *(trial.identity for trial in held_out_scans(source, "VU"))}
    monkeypatch.setattr(trials_module, "VERSION", trials_module.VERSION + 1)
    after = {identity(source, Preprocessing()), *(trial.identity for trial in held_out_scans(source, "VU"))}
    assert len(before) == len(after) == 10
    assert before.isdisjoint(after)
