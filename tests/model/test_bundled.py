"""The models that come with scantune: small, with a record that says how to make them again."""

import shlex
from importlib import resources

import pytest

import scantune
from scantune.config.recipe import read_recipe
from scantune.model.model import BUNDLED

FOLDER = resources.files("scantune.model") / "bundled"


@pytest.fixture(params=list(BUNDLED), scope="module")
def model(request):
    return scantune.load(request.param)


@pytest.mark.parametrize("name", list(BUNDLED))
def test_a_file_has_at_most_three_megabytes(name):
    assert (FOLDER / BUNDLED[name]).stat().st_size < 3e6


def test_the_record_has_the_commands_of_training_and_prior(model):
    for key, verb in (("command", "train"), ("fit command", "fit")):
        program, found, *words = shlex.split(model.provenance[key])
        assert (program, found) == ("scantune", verb)
        assert not any(word.startswith("/") for word in words), "the command names a file of one machine"


def test_the_record_names_a_bundled_recipe_and_the_seed(model):
    assert read_recipe(model.provenance["recipe"])
    assert isinstance(model.provenance["train"]["seed"], int)
    assert "cohort" in model.provenance["data"]


def test_it_brings_a_prior_that_was_calibrated(model):
    assert model.prior is not None
    assert model.prior.calibration is not None
