"""Priors of ensembles: the last layer of each network feeds PCA experts, as if it were alone."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import scantune
from scantune import FieldOfExperts
from scantune.networks import AdaptableEnsemble, Ensemble
from tests.conftest import TOY_PATCHES


@pytest.fixture(scope="module")
def ensemble(toy):
    """Two networks, of which the second sees a little more contrast."""
    one, other = deepcopy(toy.network.task), deepcopy(toy.network.task)
    first = next(module for module in other.modules() if isinstance(module, nn.Conv2d))
    with torch.no_grad():
        first.weight.mul_(1.05)
    return AdaptableEnsemble.around(Ensemble([one, other], 1)).eval()


@pytest.fixture(scope="module")
def prior(ensemble, toy):
    return FieldOfExperts.fit(ensemble, toy.volumes, patches=TOY_PATCHES)


def last(number):
    return f"members.{number}.up.2.second.conv"


def test_each_network_has_pca_experts(prior):
    assert prior.families["pca"].experts.layers() == [last(0), last(1)]
    assert list(prior.families["pca"].layers) == [last(0), last(1)]


@pytest.mark.parametrize("number", [0, 1])
def test_they_are_those_of_a_prior_of_that_layer_alone(number, prior, ensemble, toy):
    alone = FieldOfExperts.fit(ensemble, toy.volumes, patches=TOY_PATCHES, last=last(number))
    scan = toy.volumes[0] ** 1.5
    expected = alone.energies(alone.statistics(ensemble, scan))["pca"][last(number)]
    found = prior.energies(prior.statistics(ensemble, scan))["pca"][last(number)]
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_they_survive_a_file(prior, ensemble, toy, tmp_path):
    prior.save(tmp_path / "prior.safetensors")
    again = FieldOfExperts.load(tmp_path / "prior.safetensors")
    assert again.families["pca"].experts.layers() == [last(0), last(1)]
    for name in (last(0), last(1)):
        mine, theirs = (
            each.energies(each.statistics(ensemble, toy.volumes[1]))["pca"][name] for each in (prior, again)
        )
        assert float(mine) == float(theirs)


def test_steps_move_every_network_by_the_mean_of_their_pca_terms(prior, ensemble, toy):
    result = scantune.adapt(ensemble, toy.volumes[0] ** 1.5, prior=prior, steps=2, guard=False)
    first = result.trace[0]
    energies = result.source.energies
    assert first["pca"] == pytest.approx(sum(energies["pca"].values()) / 2, rel=1e-3)
    assert first["objective"] == pytest.approx(first["cnn"] + 0.1 * first["pca"], rel=1e-5)
