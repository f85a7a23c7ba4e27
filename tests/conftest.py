"""Tiny made-up scans and a toy network that the tests share."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from scantune import AdaptableNetwork, FieldOfExperts
from scantune.autoencoding import UNET_LAYERS, AutoencoderSettings, Autoencoding, new_autoencoders
from scantune.corruption import Jigsaw
from scantune.experts import PatchSettings
from scantune.learning import learn
from scantune.methods.ae import Views
from scantune.networks import Autoencoders, Denoiser, Helper
from scantune.tasks import Segmentation, soft_dice_loss
from scantune.volumes import Volume

torch.set_num_threads(1)

TOY_PATCHES = PatchSettings(size=8, stride=4, components=4, threshold=0.8)


@dataclass(frozen=True)
class Toy:
    network: AdaptableNetwork
    prior: FieldOfExperts
    volumes: list[Tensor]
    helpers: dict[str, Helper]


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


def toy_denoiser(iterations: int = 30) -> Denoiser:
    """Trained for a moment on the labels of toy scans."""
    torch.manual_seed(0)
    denoiser = Denoiser(classes=3, depth=4, spacing=1.0, width=2)
    for module in denoiser.modules():
        if hasattr(module, "momentum"):
            module.momentum = 0.2
    adam = torch.optim.Adam(denoiser.parameters(), 0.02)
    for iteration in range(iterations):
        labels = toy_scan(iteration % 6)[1]
        spoilt = Jigsaw(half_width=6)(labels, torch.Generator().manual_seed(iteration))
        adam.zero_grad()
        soft_dice_loss(denoiser(denoiser.encoded(spoilt)).softmax(1), labels[None]).backward()
        adam.step()
    return denoiser.eval().requires_grad_(False)


def toy_autoencoders(network: AdaptableNetwork, volumes: list[Tensor], iterations: int = 60) -> Autoencoders:
    """Trained for a moment on what the network makes of volumes."""
    settings = AutoencoderSettings(iterations=iterations, batch=2, learning_rate=0.01, validate_every=20)
    torch.manual_seed(0)
    autoencoders = new_autoencoders(network, Segmentation(), volumes[0][:1], UNET_LAYERS)
    scans = [Volume(volume) for volume in volumes]
    with Views(network, Segmentation(), autoencoders.layers()) as views:
        learn(Autoencoding(autoencoders, views, scans, scans[:1], settings, torch.device("cpu")), settings, {})
    return autoencoders.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def toy() -> Toy:
    torch.manual_seed(0)
    network = train_toy(AdaptableNetwork.default(classes=3, width=8))
    volumes = [toy_scan(seed)[0] for seed in range(6)]
    prior = FieldOfExperts.fit(network, volumes, patches=TOY_PATCHES)
    helpers: dict[str, Helper] = {"dae": toy_denoiser(), "ae": toy_autoencoders(network, volumes)}
    return Toy(network, prior, volumes, helpers)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)
