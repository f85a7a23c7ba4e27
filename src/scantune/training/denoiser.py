"""The denoising autoencoder: corruption of label volumes, and training on those of a model's cases."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.backends import PreparedSlices
from scantune.config.settings import TrainingRunSettings, require_positive
from scantune.errors import InputError
from scantune.methods.dae import exclusive_probabilities, mean_dice, overlap_sums
from scantune.model.model import Model
from scantune.networks import Denoiser
from scantune.runtime.devices import reproducible
from scantune.training.augment import Augmentation, resample, source_positions
from scantune.training.examples import (
    AUGMENT,
    CHECK,
    CORRUPT,
    SHUFFLE,
    WEIGHTS,
    Example,
    SliceOrder,
    fingerprint,
    stream_seed,
)
from scantune.training.step import TrainingBatch
from scantune.training.trainer import TrainingModule, TrainingProgress, run_training

MAX_DEFAULT_DEPTH = 64
"""Slices of the deepest grid that is chosen by default: the paper's for brains, whose slices are 4 times denser."""


@dataclass(frozen=True)
class DenoiserSettings(TrainingRunSettings):
    """Settings of a denoising autoencoder's training; the defaults are the paper's."""

    iterations: int = 50_000
    """Steps of the optimiser, one volume each."""
    learning_rate: float = 1e-4
    """Adam's learning rate, constant."""
    width: int = 16
    """Channels of the first level."""
    shrink: int = 1
    """Pixels along a side of the squares that are averaged into one before the network sees them; more is faster."""
    depth: int | None = None
    """Slices of the grid that volumes are laid on; by default as many as the largest training volume needs."""
    spacing: float | None = None
    """Their distance in mm; by default that of the training volumes, or the multiple that needs at most 64 slices."""
    boxes: int = 200
    """Largest number of boxes that a corruption replaces."""
    half_width: int = 10
    """The largest half-width of a box in voxels."""
    corruptions: int = 100
    """Corrupted validation volumes per validation, the same each time."""
    compile: bool = False
    """Compile the network with torch.compile, instead of replaying recorded steps on a GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "width", "shrink", "boxes", "half_width", "corruptions", "depth", "spacing")


def train_denoiser(
    model: Model,
    cases: Sequence[PreparedSlices],
    held_out: Sequence[PreparedSlices],
    settings: DenoiserSettings,
    device: torch.device,
    checkpoint: Path | None = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
) -> tuple[Denoiser, dict[str, Any]]:
    """Train a denoising autoencoder on the label volumes of cases.

    Returns:
        The denoiser, and facts about the run.
    """
    classes = _classes(model, cases[0])
    depth, spacing = _grid(cases, settings)
    examples = [Example(case.volume, case.reference) for case in (*cases, *held_out) if case.reference is not None]
    largest = max(int(example.reference.max()) for example in examples)
    if largest >= classes:
        raise InputError(f"The cases have the label {largest}, but the model knows labels up to {classes - 1} only.")
    with reproducible(device):
        torch.manual_seed(stream_seed(settings.seed, WEIGHTS, 0))
        denoiser = Denoiser(classes, depth, spacing, settings.shrink, settings.width)
        module = DenoiserTraining(denoiser, cases, held_out, settings, device)
        identity = asdict(settings) | {"helper": denoiser.record(), "data": fingerprint(examples)}
        trained = run_training(module, settings, identity, checkpoint=checkpoint, on_progress=on_progress)
    facts = {
        "depth": depth,
        "spacing": round(spacing, 4),
        "best_iteration": trained.best_iteration,
        "validation_dice": round(trained.best_score, 4),
        "corrupted_dice": round(module.corrupted_dice, 4),
    }
    return denoiser, facts


class DenoiserTraining(TrainingModule):
    """Restoration of corrupted label volumes, with the soft Dice over whole volumes and all classes as loss.

    The score is that of fixed corruptions of the validation volumes, so that two looks differ by the network alone.

    Args:
        denoiser: The network to train.
        training: Sequence[PreparedSlices] with references.
        validation: The same.
        settings: How to train.
        device: Where to compute.
    """

    channels_last: ClassVar[torch.memory_format] = torch.channels_last_3d

    def __init__(
        self,
        denoiser: Denoiser,
        training: Sequence[PreparedSlices],
        validation: Sequence[PreparedSlices],
        settings: DenoiserSettings,
        device: torch.device,
    ) -> None:
        super().__init__(denoiser, settings, device)
        self.denoiser, self.jigsaw = denoiser, Jigsaw(settings.boxes, settings.half_width)
        self.training, self.validation = (
            [denoiser.placed(_labels(case).to(device, torch.int16), case.distance) for case in cases]
            for cases in (training, validation)
        )
        self.order = SliceOrder(len(self.training), 1, settings.seed, SHUFFLE, torch.device("cpu"))
        self.augmentation, self.corruptions = Augmentation(), settings.corruptions
        self.replayed = not settings.compile
        self.predict: Callable[[Tensor], Tensor] = torch.compile(denoiser) if settings.compile else denoiser

    def draw(self, iteration: int) -> TrainingBatch:
        """Return the next volume and the boxes that corrupt it."""
        self.generator.manual_seed(stream_seed(self.seed, AUGMENT, iteration))
        labels = self.training[int(self.order.batch_of(iteration))]
        return labels, self._boxes(labels, CORRUPT, iteration)

    def loss(self, drawn: TrainingBatch) -> Tensor:
        """Return one minus the Dice of a volume that is deformed and corrupted."""
        labels, boxes = self._moved(drawn[0]), drawn[1]
        return 1 - self._dice(self.jigsaw.spoilt(labels, boxes), labels)

    def score(self) -> float:
        """Return the mean Dice of the validation volumes under fixed corruptions."""
        return self._mean(self._dice)

    @property
    def corrupted_dice(self) -> float:
        """Score of the corrupted validation volumes themselves."""
        encoded = self.denoiser.encoded
        return self._mean(lambda spoilt, clean: mean_dice(overlap_sums(encoded(spoilt), encoded(clean))))

    def _mean(self, dice: Callable[[Tensor, Tensor], Tensor]) -> float:
        scores = []
        for number in range(self.corruptions):
            clean = self.validation[number % len(self.validation)]
            scores.append(float(dice(self._corrupted(clean, CHECK, number), clean)))
        return math.fsum(scores) / len(scores)

    def _moved(self, labels: Tensor) -> Tensor:
        """Apply elastic deformation, shift, rotation and scaling in the plane, the same to all slices."""
        draw = self.augmentation.draw(labels[:1, None].float(), self.generator)
        positions = source_positions(draw.displacement, draw.translation, draw.degrees, draw.scale)
        images = labels[:, None].float()
        return resample(images, labels, positions.expand(len(labels), -1, -1, -1))[1]

    def _boxes(self, labels: Tensor, kind: int, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(stream_seed(self.seed, kind, number))
        return self.jigsaw.boxes_of(labels.shape, generator).to(labels.device)

    def _corrupted(self, labels: Tensor, kind: int, number: int) -> Tensor:
        return self.jigsaw.spoilt(labels, self._boxes(labels, kind, number))

    def _dice(self, spoilt: Tensor, clean: Tensor) -> Tensor:
        with self.autocast:
            logits = self.predict(self.denoiser.encoded(spoilt).contiguous(memory_format=self.layout))
        return mean_dice(overlap_sums(logits.float().softmax(1), self.denoiser.encoded(clean)))


@torch.no_grad()
def _classes(model: Model, case: PreparedSlices) -> int:
    """Return the number of exclusive classes of the model's output."""
    place = next(model.network.parameters()).device
    output = model.network(case.volume[:1].to(place))
    return exclusive_probabilities(model.task.probabilities(output), model.task.exclusive).shape[1]


def _grid(cases: Sequence[PreparedSlices], settings: DenoiserSettings) -> tuple[int, float]:
    """Return depth and spacing of the grid: those of the settings, or what the cases need."""
    distances = [case.distance or settings.spacing or 1.0 for case in cases]
    extent = max(len(case.volume) * distance for case, distance in zip(cases, distances, strict=True))
    spacing = settings.spacing
    if spacing is None:
        # Slightly less than the extent, as distances have rounding errors.
        needed = math.ceil(extent / median(distances) - 1e-3)
        spacing = median(distances) * math.ceil(needed / (settings.depth or MAX_DEFAULT_DEPTH))
    return settings.depth or math.ceil(extent / spacing - 1e-3), spacing


def _labels(case: PreparedSlices) -> Tensor:
    assert case.reference is not None
    return case.reference


@dataclass(frozen=True)
class Jigsaw:
    """Replaces boxes of a label volume by what lies elsewhere in it; the defaults are the paper's.

    The content of a box is that of a box of the same size anywhere in the clean volume, so no label is invented. Later
    boxes overwrite earlier ones.
    """

    boxes: int = 200
    """Largest number of boxes; their number is uniform from 1."""
    half_width: int = 10
    """The largest half-width in voxels, uniform from 1; along short axes it is cut to dim // 2 - 2."""

    def __call__(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return a corrupted copy of a label volume `(depth, height, width)`.

        Args:
            labels: Integers, on any device.
            generator: The source of randomness, on the CPU: the same draws on every device.
        """
        return self.spoilt(labels, self.boxes_of(labels.shape, generator).to(labels.device))

    def spoilt(self, labels: Tensor, boxes: Tensor) -> Tensor:
        """Return a copy of a label volume `(depth, height, width)` with the boxes of `boxes_of` replaced."""
        if labels.is_cuda:
            return labels.flatten()[origins(labels.shape, boxes)]
        spoilt = labels.clone()
        for size, target, source in zip(*boxes.tolist(), strict=True):
            spoilt[_box(target, size)] = labels[_box(source, size)]
        return spoilt

    def boxes_of(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draw the boxes of a volume as `draw` does, padded with empty ones to `(3, boxes, 3)`."""
        drawn = torch.stack(self.draw(shape, generator))
        return F.pad(drawn, (0, 0, 0, self.boxes - drawn.shape[1]))

    def draw(self, shape: torch.Size, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw sizes, first corners and source corners of the boxes of a volume, `(boxes, 3)` each."""
        boxes = int(torch.randint(1, self.boxes + 1, (), generator=generator))
        half = torch.randint(1, self.half_width + 1, (boxes, 1), generator=generator)
        dimensions = torch.tensor(shape)
        sizes = (2 * half.minimum(dimensions // 2 - 2)).clamp(min=1)
        places = dimensions - sizes + 1
        # In double precision, so that no place is left out or favoured by rounding.
        uniform = torch.rand(2, boxes, 3, generator=generator, dtype=torch.float64)
        targets, sources = (uniform * places).long()
        return sizes, targets, sources


def _box(first: list[int], size: list[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in zip(first, size, strict=True))


BITS_PER_WORD = 52
"""Boxes per word: as many as a double holds exactly."""


def origins(shape: torch.Size, boxes: Tensor) -> Tensor:
    """Return the voxel that each voxel's label comes from, as indices `(depth, height, width)`.

    The last box that covers a voxel counts. A set of boxes is the bits of a word, those that cover a voxel are the
    conjunction of three words, one per axis, and the last of them is the highest bit: a dozen passes over the volume,
    whatever the number of boxes, where one box after the other would be two each, and none that waits for the device.

    Args:
        shape: Of the volume.
        boxes: Sizes, first corners, and those of their contents, `(3, boxes, 3)`.
    """
    sizes, targets, sources = boxes
    numbers = torch.arange(boxes.shape[1], device=boxes.device)
    last = torch.zeros(shape, dtype=torch.int64, device=boxes.device)
    for word in range(-(-boxes.shape[1] // BITS_PER_WORD)):
        chosen = slice(word * BITS_PER_WORD, (word + 1) * BITS_PER_WORD)
        bits = 1 << (numbers[chosen] % BITS_PER_WORD)
        covering = []
        for axis, length in enumerate(shape):
            place = torch.arange(length, device=boxes.device)[:, None]
            first, size = targets[chosen, axis], sizes[chosen, axis]
            covering.append(((place >= first) & (place < first + size)).long().mul(bits).sum(1))
        along, down, across = covering
        words = along[:, None, None] & down[:, None] & across
        highest = torch.frexp(words.double()).exponent
        last = torch.where(words > 0, word * BITS_PER_WORD + highest, last)
    planes, rows, columns = (sources - targets).unbind(1)
    shifts = F.pad((planes * shape[1] + rows) * shape[2] + columns, (1, 0))
    return torch.arange(shape.numel(), device=boxes.device).view(shape) + shifts[last]
