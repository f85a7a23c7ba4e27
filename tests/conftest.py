"""Tiny made-up scans and a toy network that the tests share."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from scantune import AdaptableNetwork, FieldOfExperts
from scantune.experts import PatchSettings
from scantune.tasks import soft_dice_loss

torch.set_num_threads(1)

TOY_PATCHES = PatchSettings(size=8, stride=4, components=4, threshold=0.8)


@dataclass(frozen=True)
class Toy:
    network: AdaptableNetwork
    prior: FieldOfExperts
    volumes: list[Tensor]


def toy_scan(seed: int, slices: int = 4, size: int = 48) -> tuple[Tensor, Tensor]:
    """A bright disc with a brighter core in noise: `(slices, 1, size, size)`, and labels `(slices, size, size)`."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    labels = torch.zeros(slices, size, size, dtype=torch.long)
    for number in range(slices):
        shift, grow = torch.rand(2, generator=generator) - 0.5, torch.rand(1, generator=generator)
        centre = size / 2 + size / 8 * shift
        radius = size / 4 + size / 16 * grow
        distance = ((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2).sqrt()
        labels[number][distance < radius] = 1
        labels[number][distance < radius / 2] = 2
    images = torch.tensor([0.1, 0.5, 0.8])[labels] + 0.04 * torch.randn(labels.shape, generator=generator)
    return images.clamp(0, 1).unsqueeze(1), labels


def dice(prediction: Tensor, labels: Tensor) -> float:
    """Mean Dice of the two structures."""
    scores = []
    for value in (1, 2):
        one, other = prediction == value, labels == value
        scores.append(2 * float((one & other).sum()) / max(float(one.sum() + other.sum()), 1))
    return sum(scores) / 2


def train_toy(network: torch.nn.Module, iterations: int = 120, rate: float = 5e-3) -> torch.nn.Module:
    """Trains any network on toy scans; batch norms follow fast, as there are few iterations."""
    for module in network.modules():
        if hasattr(module, "momentum"):
            module.momentum = 0.2
    scans = [toy_scan(seed) for seed in range(6)]
    adam = torch.optim.Adam(network.parameters(), rate)
    network.train()
    for iteration in range(iterations):
        images, labels = scans[iteration % len(scans)]
        adam.zero_grad()
        soft_dice_loss(network(images).softmax(1), labels).backward()
        adam.step()
    return network.eval()


@pytest.fixture(scope="session")
def toy() -> Toy:
    torch.manual_seed(0)
    network = train_toy(AdaptableNetwork.default(classes=3, width=8))
    volumes = [toy_scan(seed)[0] for seed in range(6)]
    return Toy(network, FieldOfExperts.fit(network, volumes, patches=TOY_PATCHES), volumes)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)
