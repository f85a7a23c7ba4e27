"""Training of the autoencoders on features of a model's network."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from scantune.backends import PreparedSlices
from scantune.config.settings import TrainingRunSettings, require_positive
from scantune.errors import InputError
from scantune.methods.ae import AutoencoderInputs, mean_errors, squared_errors
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork, Autoencoders
from scantune.networks.adaptors import unet_prefix
from scantune.prior.field_of_experts import Statistics
from scantune.runtime.devices import reproducible
from scantune.scans.volume import Batch, Volume
from scantune.tasks import Task
from scantune.training.examples import SHUFFLE, WEIGHTS, Example, SliceOrder, fingerprint, stream_seed
from scantune.training.step import TrainingBatch
from scantune.training.trainer import TrainingModule, TrainingProgress, run_training

LayerGroups = tuple[tuple[str, ...], ...]

UNET_LAYERS: LayerGroups = (
    ("down.1.second", "up.1.second"),
    ("down.2.second", "up.0.second"),
    ("down.3.first", "down.3.second"),
)
"""What f1, f2 and f3 read in the paper's U-Net."""


@dataclass(frozen=True)
class AutoencoderSettings(TrainingRunSettings):
    """Settings of the autoencoders' training; the defaults are the paper's."""

    iterations: int = 25_000
    """Steps of the optimiser."""
    learning_rate: float = 1e-4
    """Adam's learning rate, constant."""
    batch: int = 16
    """Slices per step."""
    features: str = "default"
    """The layers that feature autoencoders read, as in a.b+c.d,e.f: commas between autoencoders, + between layers of
    one resolution, of which the first gets an adaptor. Or none; by default the paper's, and none without a U-Net."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "batch")

    def layers(self, network: AdaptableNetwork) -> LayerGroups:
        """Return the layers that the feature autoencoders of a network read."""
        if self.features == "default":
            prefix = unet_prefix(network.task)
            return () if prefix is None else tuple(tuple(f"{prefix}{name}" for name in group) for group in UNET_LAYERS)
        if self.features == "none":
            return ()
        groups = tuple(tuple(layer.strip() for layer in group.split("+")) for group in self.features.split(","))
        named = {name for name, _ in network.task.named_modules()}
        unknown = [layer for group in groups for layer in group if layer not in named or not layer]
        if unknown:
            raise InputError(
                f"The setting features names {unknown[0]!r}, which is no layer of the task network "
                f"({type(network.task).__name__}); write features=none for no feature autoencoders."
            )
        return groups


def train_autoencoders(
    model: Model,
    cases: Sequence[PreparedSlices],
    held_out: Sequence[PreparedSlices],
    settings: AutoencoderSettings,
    device: torch.device,
    checkpoint: Path | None = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
) -> tuple[Autoencoders, dict[str, Any]]:
    """Train the autoencoders of a model's network.

    Returns:
        The autoencoders, and facts about the run.
    """
    training, validation = ([Volume(case.volume, case.padding) for case in split] for split in (cases, held_out))
    identity = _identity(model, [*cases, *held_out], settings)
    with reproducible(device):
        network = AdaptableNetwork.around(deepcopy(model.network)).to(device).eval().requires_grad_(False)
        torch.manual_seed(stream_seed(settings.seed, WEIGHTS, 0))
        images = training[0].images[:1].to(device)
        autoencoders = new_autoencoders(network, model.task, images, settings.layers(network))
        with AutoencoderInputs(network, model.task, autoencoders.layers()) as views:
            module = AutoencoderTraining(autoencoders, views, training, validation, settings, device)
            trained = run_training(module, settings, identity, checkpoint=checkpoint, on_progress=on_progress)
            errors = module.validation_errors()
    facts = {
        "best_iteration": trained.best_iteration,
        "validation_errors": {name: round(error, 6) for name, error in errors.items()},
    }
    return autoencoders, facts


@torch.no_grad()
def new_autoencoders(network: AdaptableNetwork, task: Task, images: Tensor, layers: LayerGroups) -> Autoencoders:
    """Return untrained autoencoders that fit a network.

    Args:
        network: In evaluation mode.
        task: How its output is read.
        images: What it is made for, `(slices, channels, *spatial)`.
        layers: The layers that each feature autoencoder reads.
    """
    single = {layer: (layer,) for group in layers for layer in group}
    with AutoencoderInputs(network, task, single) as views:
        seen = views(images)
    for group in layers:
        sizes = {tuple(seen[layer].shape[2:]) for layer in group}
        if len(sizes) > 1:
            raise InputError(
                f"The layers {' and '.join(group)} are of different resolutions, {sorted(sizes)}, and cannot be "
                "encoded together; name layers of one resolution, or one layer."
            )
    features = [tuple((layer, seen[layer].shape[1]) for layer in group) for group in layers]
    return Autoencoders(seen["xn"].shape[1], seen["y"].shape[1], features, images.ndim - 2)


class AutoencoderTraining(TrainingModule):
    """Reconstruction of a frozen network's features, with the sum of the autoencoders' mean squared errors as loss.

    The autoencoders share no weights, so that the sum trains each for itself. Nothing is augmented, and padding is not
    counted. The score is minus the sum for the validation slices.

    Args:
        autoencoders: The networks to train.
        views: What they learn from: a network, in evaluation mode as when it adapts, that is listened to.
        training: Scans whose slices have one size.
        validation: Scans of any size.
        settings: How to train.
        device: Where to compute.
    """

    score_name: ClassVar[str] = "minus error"

    def __init__(
        self,
        autoencoders: Autoencoders,
        views: AutoencoderInputs,
        training: Sequence[Volume],
        validation: Sequence[Volume],
        settings: AutoencoderSettings,
        device: torch.device,
    ) -> None:
        super().__init__(autoencoders, settings, device)
        self.autoencoders, self.views, self.batch = autoencoders, views, settings.batch
        self.training = _stacked(training, device)
        self.validation = [volume.to(device) for volume in validation]
        self.order = SliceOrder(len(self.training.images), settings.batch, settings.seed, SHUFFLE, device)

    def draw(self, iteration: int) -> TrainingBatch:
        """Return the indices of the next slices."""
        return (self.order.batch_of(iteration),)

    def networks(self) -> list[nn.Module]:
        """Return the autoencoders and the network whose features they read."""
        return [self.autoencoders, self.views.network]

    def loss(self, drawn: TrainingBatch) -> Tensor:
        """Return the sum of the mean squared errors on slices."""
        (index,) = drawn
        padding = None if self.training.padding is None else self.training.padding[index]
        errors = mean_errors(self._measure(Batch(self.training.images[index], padding, index)))
        return torch.stack(list(errors.values())).sum()

    def score(self) -> float:
        """Return minus the sum of the mean squared errors on all validation slices."""
        return -sum(self.validation_errors().values())

    @torch.no_grad()
    def validation_errors(self) -> dict[str, float]:
        """Return the mean squared error of each autoencoder on all validation slices."""
        total: dict[str, Tensor] = {}
        for volume in self.validation:
            for batch in volume.batches(self.batch):
                for name, value in self._measure(batch).items():
                    total[name] = total.get(name, 0) + value.double()
        return {name: float(error) for name, error in mean_errors(total).items()}

    def _measure(self, batch: Batch) -> Statistics:
        with self.autocast:
            with torch.no_grad():
                seen = self.views(batch.images.contiguous(memory_format=self.layout))
            return squared_errors(self.autoencoders, seen, batch.padding)


def _stacked(volumes: Sequence[Volume], device: torch.device) -> Volume:
    """Return all slices as one volume; volumes without padding count as not padded."""
    sizes = {tuple(volume.images.shape[1:]) for volume in volumes}
    if len(sizes) > 1:
        raise InputError(f"The training scans have slices of {sorted(sizes)}; preprocess all of them to one size.")
    images = torch.cat([volume.images.to(device) for volume in volumes])
    if all(volume.padding is None for volume in volumes):
        return Volume(images)
    nothing = [torch.zeros_like(volume.images[:, :1], dtype=torch.bool) for volume in volumes]
    paddings = [
        none if volume.padding is None else volume.padding for volume, none in zip(volumes, nothing, strict=True)
    ]
    return Volume(images, torch.cat([padding.to(device) for padding in paddings]))


def _identity(model: Model, cases: Sequence[PreparedSlices], settings: AutoencoderSettings) -> dict[str, Any]:
    """Return what a run must share to be resumed; labels are not part of it."""
    examples = [Example(case.volume, torch.zeros_like(case.volume[:, 0], dtype=torch.int16)) for case in cases]
    bare = replace(model, prior=None, provenance={}, helpers={})
    return asdict(settings) | {"model": bare.fingerprint, "data": fingerprint(examples)}
