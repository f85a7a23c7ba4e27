"""Training: normaliser and task network together, on 2D slices, with the best validation Dice kept.

All slices live on the training device. The order of the slices, the augmentation and the
network's own randomness are functions of the seed and the iteration.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from scantune.config.settings import TrainSettings
from scantune.errors import InputError
from scantune.networks.adaptable import AdaptableNetwork
from scantune.runtime.devices import find_device, reproducible
from scantune.tasks import Task, main_output
from scantune.tasks.segmentation import Segmentation
from scantune.training.augment import Augmentation, augment
from scantune.training.examples import (
    AUGMENT,
    SHUFFLE,
    WEIGHTS,
    Example,
    SliceOrder,
    check_examples,
    check_split,
    fingerprint,
    stack_slices,
    stream_seed,
)
from scantune.training.step import TrainingBatch
from scantune.training.trainer import TrainedNetwork, TrainingModule, TrainingProgress, run_training


def train_network(
    volumes: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainSettings,
    *,
    network: nn.Module | None = None,
    task: Task | None = None,
    start: str = "",
    checkpoint: Path | None = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    log_dir: Path | None = None,
) -> TrainedNetwork:
    """Train a network, or resume an interrupted run.

    Args:
        volumes: The training scans; their slices must have one size.
        validation: The scans that choose the best network; they may have other sizes.
        settings: How to train.
        network: Where to start from; it is copied, not changed. By default a new `AdaptableNetwork` with as
            many classes as the references have labels.
        task: What the network is for; by default segmentation.
        start: A fingerprint of that network where it is a trained one: only a run of the same is resumed.
        checkpoint: The file that holds the run. If it exists, the run resumes from it; a finished run is
            returned as it is.
        on_progress: Called at every report of the loss.
        log_dir: Folder for a TensorBoard log.

    Raises:
        InputError: The scans do not fit together, the loss is not finite, or the checkpoint is of another
            run.
    """
    check_split(volumes, validation)
    device = find_device(settings.device)
    identity = asdict(settings) | {"data": fingerprint([*volumes, *validation])}
    if start:
        identity["start"] = start
    with reproducible(device):
        if network is None:
            network = _default_network([*volumes, *validation], settings.seed)
        module = _SliceTraining(volumes, validation, settings, copy.deepcopy(network), task or Segmentation(), device)
        return run_training(module, settings, identity, checkpoint=checkpoint, on_progress=on_progress, log_dir=log_dir)


@torch.no_grad()
def validation_dice(
    network: nn.Module, examples: Sequence[Example], classes: int, batch: int = 16, task: Task | None = None
) -> float:
    """Return the mean over scans of the mean over foreground labels of the Dice of the whole scan.

    A label that neither the reference nor the prediction of a scan has is left out of that scan's mean.

    Args:
        network: In evaluation mode, on the device of the scans.
        examples: The scans; at least one of them must have foreground.
        classes: How many labels there are, background included.
        batch: Slices per pass of the network.
        task: How its output is read; by default as a segmentation.
    """
    scores, reading = [], task or Segmentation()
    for example in examples:
        counts = torch.zeros(2, classes, dtype=torch.int64, device=example.volume.device)
        labels = torch.arange(classes, device=example.volume.device)[:, None, None, None]
        for images, reference in zip(
            torch.split(example.volume, batch), torch.split(example.reference, batch), strict=True
        ):
            predicted, true = reading.predict(network(images)) == labels, reference == labels
            counts[0] += 2 * (predicted & true).sum((1, 2, 3))
            counts[1] += predicted.sum((1, 2, 3)) + true.sum((1, 2, 3))
        scores.append((counts[0] / counts[1])[1:].nanmean())
    return float(torch.stack(scores).nanmean())


class _SliceTraining(TrainingModule):
    """Training on slices, with the loss of a task."""

    def __init__(
        self,
        volumes: Sequence[Example],
        validation: Sequence[Example],
        settings: TrainSettings,
        network: nn.Module,
        task: Task,
        device: torch.device,
    ) -> None:
        super().__init__(network, settings, device)
        self.task = task
        own = network.channels if isinstance(network, AdaptableNetwork) else None
        self.channels = volumes[0].volume.shape[1] if own is None else own
        self.images, self.labels = stack_slices(volumes, device)
        self.classes = _count_classes(network, self.images[:1])
        check_examples([*volumes, *validation], self.classes)
        self.validation = [example.to(device) for example in validation]
        self.order = SliceOrder(len(self.images), settings.batch, settings.seed, SHUFFLE, device)
        self.augmentation = Augmentation() if settings.augment == "strong" else None
        self.augment, self.loss_of = augment, self._loss
        self.replayed = not settings.compile
        if settings.compile:
            self.augment, self.loss_of = torch.compile(augment), torch.compile(self._loss)

    def draw(self, iteration: int) -> TrainingBatch:
        """Return the indices of the next slices."""
        self.generator.manual_seed(stream_seed(self.seed, AUGMENT, iteration))
        return (self.order.batch_of(iteration),)

    def loss(self, drawn: TrainingBatch) -> Tensor:
        """Return the task's loss of augmented slices."""
        (index,) = drawn
        inputs, labels = self.images[index], self.labels[index].long()
        # Heights of slices are no image intensities: they are not augmented.
        images, beside = inputs[:, : self.channels], inputs[:, self.channels :]
        if self.augmentation is not None:
            images, labels = self.augment(images, labels, self.augmentation.draw(images, self.generator))
        images = torch.cat([images, beside], dim=1) if beside.shape[1] else images
        return self.loss_of(images.contiguous(memory_format=self.layout), labels)

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        with self.autocast:
            output = self.network(images)
        return self.task.loss(output, labels)

    def score(self) -> float:
        """Return the mean Dice of the validation scans."""
        with self.autocast:
            return validation_dice(self.network, self.validation, self.classes, task=self.task)


def _default_network(examples: Sequence[Example], seed: int) -> nn.Module:
    torch.manual_seed(stream_seed(seed, WEIGHTS, 0))
    classes = 1 + max(int(example.reference.max()) for example in examples)
    return AdaptableNetwork.default(classes=classes, channels=examples[0].volume.shape[1])


@torch.no_grad()
def _count_classes(network: nn.Module, image: Tensor) -> int:
    network.eval()
    try:
        output = main_output(network(image))
    except RuntimeError as error:
        raise InputError(f"The network does not take images {tuple(image.shape)}: {error}") from error
    if output.ndim != 4 or output.shape[2:] != image.shape[2:]:
        raise InputError(
            f"The network turns images {tuple(image.shape)} into {tuple(output.shape)}; expected (slices, "
            "classes, height, width) with the height and width of the image."
        )
    return output.shape[1]
