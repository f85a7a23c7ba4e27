"""Trials of the toy networks."""

from dataclasses import replace
from pathlib import Path

import torch
from subjects import Scan, Trial, prepared
from toy_networks import DEVELOPMENT, HOME, HOME_PEOPLE, SEEN_NETWORKS, TEST_NETWORKS, TRAINING_PEOPLE, ToyNetwork
from toys import SIZE

from scantune.backends import PreparedSlices, Preprocessing
from scantune.config.settings import PriorSettings
from scantune.model.model import Model
from scantune.training.fit import fit_prior


def toy_trial(toy: ToyNetwork, group: str, folder: Path) -> Trial:
    """Return the trial of a toy network, whose weights are kept in a folder."""

    def scans(first: int, count: int) -> list[PreparedSlices]:
        return [prepared(*toy.scan(number)) for number in range(first, first + count)]

    def train() -> Model:
        weights, network = folder / toy.name / "network.pt", toy.built()
        if weights.exists():
            network.load_state_dict(torch.load(weights))
        else:
            weights.parent.mkdir(parents=True, exist_ok=True)
            torch.save(toy.train(network).state_dict(), weights)
        labels = {f"structure {value}": value for value in range(1, toy.structures + 1)}
        preprocessing = Preprocessing(size=(SIZE, SIZE))
        return Model(toy.adaptable(network.eval()), labels, preprocessing, {"kind": "custom"}, name=toy.name)

    def fit(model: Model) -> Model:
        patches = PriorSettings(size=4, stride=2) if toy.volumetric else PriorSettings(size=8, stride=4)
        patches = replace(patches, components=4)
        training, held_out = scans(0, TRAINING_PEOPLE), scans(HOME, HOME_PEOPLE)
        return replace(model, prior=fit_prior(model, training, held_out, settings=patches, device="cpu"))

    def scan(person: str, shift: str) -> Scan:
        images, labels = toy.scan(int(person), shift)
        return Scan(person, shift, images, prepared(images, labels))

    names = tuple((str(person), shift) for person, shift in toy.shifted())
    return Trial(toy.name, group, train, fit, lambda: scans(HOME, HOME_PEOPLE), names, scan)


def toy_trials(folder: Path) -> list[Trial]:
    """Return the trials of all toy networks."""
    groups = {"development": DEVELOPMENT, "seen": SEEN_NETWORKS, "test": TEST_NETWORKS}
    return [toy_trial(toy, group, folder) for group, networks in groups.items() for toy in networks]
