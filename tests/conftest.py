"""Tiny made-up scans and a toy network that the tests share."""

import os
from dataclasses import dataclass

import nibabel
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels are tried out by Triton's interpreter; set before it is imported

from scantune import AdaptableNetwork, FieldOfExperts
from scantune.backends.slices import Preprocessing
from scantune.cohorts.write import write_cohort
from scantune.experts import PatchSettings
from scantune.methods.ae import AutoencoderInputs
from scantune.model.model import Model
from scantune.networks import Autoencoders, Denoiser, Helper, registration_network
from scantune.scans.volume import Volume
from scantune.tasks import Registration, Segmentation, Task, soft_dice_loss
from scantune.training.autoencoders import (
    UNET_LAYERS,
    AutoencoderSettings,
    AutoencoderTraining,
    LayerGroups,
    new_autoencoders,
)
from scantune.training.denoiser import Jigsaw
from scantune.training.trainer import run_training
from tests.toy_cohort import SCANNERS, SCHEME, toy_map, toy_settings

torch.set_num_threads(1)
torch.backends.cudnn.allow_tf32 = False  # a GPU that has less than single precision is no second opinion

SEGMENTATION = Segmentation()
TOY_PATCHES = PatchSettings(size=8, stride=4, components=4, threshold=0.8)


@dataclass(frozen=True)
class Toy:
    network: AdaptableNetwork
    prior: FieldOfExperts
    volumes: list[Tensor]
    helpers: dict[str, Helper]
    task: Task

    @property
    def model(self) -> Model:
        """The same as a model, which says what the task is."""
        preprocessing = Preprocessing(size=(48, 48), slab=None if self.task.name == "segmentation" else (4.0, 2.0))
        kind = {"kind": "custom"}
        return Model(self.network, {"rim": 1, "core": 2}, preprocessing, kind, self.task, self.prior, {}, self.helpers)


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


def toy_autoencoders(
    network: AdaptableNetwork,
    volumes: list[Tensor],
    iterations: int = 60,
    task: Task = SEGMENTATION,
    layers: LayerGroups = UNET_LAYERS,
) -> Autoencoders:
    """Trained for a moment on what the network makes of volumes."""
    settings = AutoencoderSettings(iterations=iterations, batch=2, learning_rate=0.01, validate_every=20)
    torch.manual_seed(0)
    autoencoders = new_autoencoders(network, task, volumes[0][:1], layers)
    scans = [Volume(volume) for volume in volumes]
    with AutoencoderInputs(network, task, autoencoders.layers()) as views:
        run_training(
            AutoencoderTraining(autoencoders, views, scans, scans[:1], settings, torch.device("cpu")), settings, {}
        )
    return autoencoders.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def toy() -> Toy:
    torch.manual_seed(0)
    network = train_toy(AdaptableNetwork.default(classes=3, width=8))
    volumes = [toy_scan(seed)[0] for seed in range(6)]
    prior = FieldOfExperts.fit(network, volumes, patches=TOY_PATCHES)
    helpers: dict[str, Helper] = {"dae": toy_denoiser(), "ae": toy_autoencoders(network, volumes)}
    return Toy(network, prior, volumes, helpers, SEGMENTATION)


def with_heights(images: Tensor) -> Tensor:
    """Slices 1 mm apart about the middle, their heights as second channel."""
    heights = torch.arange(len(images)) - (len(images) - 1) / 2
    return torch.cat([images, heights.view(-1, 1, 1, 1).expand_as(images)], dim=1)


def train_toy_registration(iterations: int = 60) -> AdaptableNetwork:
    """Bends an atlas of one disc with a core, the same at all heights, to toy scans."""
    torch.manual_seed(0)
    network = registration_network(heights=3, rows=40, columns=40, lowest=-1.0, width=4, shrink=2, squarings=4)
    rows, columns = torch.meshgrid(torch.arange(40) - 19.5, torch.arange(40) - 19.5, indexing="ij")
    labels = ((rows**2 + columns**2).sqrt()[None] < torch.tensor([13.0, 6.5]).view(2, 1, 1)).sum(0).expand(3, 40, 40)
    network.task.atlas.fill(torch.tensor([0.1, 0.5, 0.8])[labels], labels)
    scans = [toy_scan(seed) for seed in range(6)]
    for module in network.modules():
        if hasattr(module, "momentum"):
            module.momentum = 0.2
    adam = torch.optim.Adam(network.parameters(), 5e-3)
    network.train()
    for iteration in range(iterations):
        images, target = scans[iteration % len(scans)]
        adam.zero_grad()
        Registration(smoothness=0.05).loss(network(with_heights(images)), target).backward()
        adam.step()
    return network.eval()


@pytest.fixture(scope="session")
def toy_registration() -> Toy:
    network = train_toy_registration()
    volumes = [with_heights(toy_scan(seed)[0]) for seed in range(6)]
    prior = FieldOfExperts.fit(network, volumes, patches=TOY_PATCHES, task=Registration())
    helpers: dict[str, Helper] = {"ae": toy_autoencoders(network, volumes, 20, Registration(), ())}
    return Toy(network, prior, volumes, helpers, Registration())


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="module")
def cohort_inputs(tmp_path_factory):
    """A folder with a user's label maps, protocol file and scheme."""
    path = tmp_path_factory.mktemp("cohort_inputs")
    toy = toy_map()
    (path / "maps").mkdir()
    nibabel.save(nibabel.Nifti1Image(toy.labels, toy.affine), path / "maps" / "toy.nii.gz")
    (path / "scanners.toml").write_text(SCANNERS)
    (path / "scheme.toml").write_text(SCHEME)
    return path


@pytest.fixture
def cohort_folder(cohort_inputs, monkeypatch):
    """The folder of `cohort_inputs`, as the working folder."""
    monkeypatch.chdir(cohort_inputs)
    return cohort_inputs


@pytest.fixture(scope="module")
def simulated(cohort_inputs):
    """The toy cohort, simulated, and the progress that was reported."""
    progress = []
    done = write_cohort(
        toy_settings(cohort_inputs),
        cohort_inputs / "made",
        device="cpu",
        on_scan=lambda *report: progress.append(report),
    )
    return done, progress
