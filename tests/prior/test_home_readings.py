"""Home readings of made-up label maps, stored and restored."""

import math
from dataclasses import replace

import pytest
import torch

from scantune.errors import InputError
from scantune.prior.assessment import assess
from scantune.prior.home_readings import HomeReadings
from tests.toy_labels import RADII, disc, home_of_discs, readings_of


@pytest.fixture
def home() -> HomeReadings:
    return home_of_discs()


def test_home_readings_come_back_from_plain_arrays(home: HomeReadings) -> None:
    again = HomeReadings.from_tensors(home.tensors())
    assert again is not None
    readings = readings_of(disc(14, 6), disc(14, 6, shift=2))
    assert assess(readings, again).expected == pytest.approx(assess(readings, home).expected, abs=1e-5)
    assert again.people == len(RADII)


def test_a_file_of_version_0_1_has_no_home_readings() -> None:
    assert HomeReadings.from_tensors({"typical": torch.tensor([0.1])}) is None


@pytest.mark.parametrize("name", ["size", "contacts", "apart", "absent", "unsteady/moved", "dice"])
def test_damaged_home_readings_are_refused(home: HomeReadings, name: str) -> None:
    stored = home.tensors()
    with pytest.raises(InputError, match="The calibration is damaged"):
        HomeReadings.from_tensors(stored | {name: stored[name] * math.nan})
    with pytest.raises(InputError, match="The calibration is damaged"):
        HomeReadings.from_tensors(stored | {name: stored[name].flatten()[:1]})


def test_readings_tell_that_their_sizes_are_numbers_of_voxels(home: HomeReadings) -> None:
    for told in (True, False):
        again = HomeReadings.from_tensors(replace(home, in_voxels=told).tensors())
        assert again is not None
        assert again.in_voxels == told
