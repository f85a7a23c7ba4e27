"""How the denoising autoencoder is trained: from a model's classes and the label volumes of its training cases."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.methods.dae import exclusive_probabilities, mean_dice, overlap_sums
from scantune.model.model import Model
from scantune.networks import Denoiser
from scantune.runtime.devices import reproducible
from scantune.scans.preprocess import Prepared
from scantune.training.augment import Augmentation, resample, source_positions
from scantune.training.corruption import Jigsaw
from scantune.training.examples import Example, SliceOrder, fingerprint, stream
from scantune.training.module import AUGMENT, CHECK, CORRUPT, SHUFFLE, WEIGHTS, Lesson
from scantune.training.step import Drawn
from scantune.training.trainer import Progress, learn

DEEPEST = 64
"""Slices of the deepest grid that is chosen by default: the paper's for brains, whose slices are 4 times denser."""

Cases = Sequence[Prepared]


@dataclass(frozen=True)
class DenoiserSettings:
    """How a denoising autoencoder is trained; the defaults are the paper's."""

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
    """The most boxes that a corruption replaces."""
    half_width: int = 10
    """The largest half-width of a box in voxels."""
    validate_every: int = 1000
    """Steps between two looks at the validation volumes; the best network of all looks is kept."""
    corruptions: int = 100
    """Corrupted validation volumes per look, the same each time."""
    checkpoint_every: int = 1000
    """Steps between two savings of the whole run, from where it resumes after an interruption."""
    seed: int = 0
    """Decides the first weights, the order of the volumes, augmentation and corruption."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes the network in half precision (weights and loss stay float32), for speed on a GPU."""
    compile: bool = False
    """Compile the network with torch.compile, instead of replaying recorded steps on a GPU."""

    def __post_init__(self) -> None:
        counts = ("iterations", "width", "shrink", "boxes", "half_width", "validate_every", "corruptions")
        for name in (*counts, "learning_rate", "checkpoint_every", "depth", "spacing"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"The setting {name} must be above 0, got {value}.")
        if self.seed < 0:
            raise InputError(f"The setting seed must be 0 or more, got {self.seed}.")


def train_denoiser(
    model: Model,
    cases: Cases,
    held_out: Cases,
    settings: DenoiserSettings,
    device: torch.device,
    checkpoint: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[Denoiser, dict[str, Any]]:
    """Trains a denoising autoencoder on the label volumes of cases.

    Returns:
        It, and what is to be known about the run.
    """
    classes = _classes(model, cases[0])
    depth, spacing = _grid(cases, settings)
    examples = [Example(case.volume, case.reference) for case in (*cases, *held_out) if case.reference is not None]
    largest = max(int(example.reference.max()) for example in examples)
    if largest >= classes:
        raise InputError(f"The cases have the label {largest}, but the model knows labels up to {classes - 1} only.")
    with reproducible(device):
        torch.manual_seed(stream(settings.seed, WEIGHTS, 0))
        denoiser = Denoiser(classes, depth, spacing, settings.shrink, settings.width)
        lesson = Denoising(denoiser, cases, held_out, settings, device)
        identity = asdict(settings) | {"helper": denoiser.record(), "data": fingerprint(examples)}
        trained = learn(lesson, settings, identity, checkpoint=checkpoint, on_progress=on_progress)
    facts = {
        "depth": depth,
        "spacing": round(spacing, 4),
        "best_iteration": trained.best_iteration,
        "validation_dice": round(trained.best_score, 4),
        "corrupted_dice": round(lesson.corrupted_dice, 4),
    }
    return denoiser, facts


class Denoising(Lesson):
    """To get clean label volumes back from corrupted ones, by the soft Dice over whole volumes and all classes.

    The score is that of fixed corruptions of the validation volumes, so that two looks differ by the network alone.

    Args:
        denoiser: What learns.
        training: Cases with references.
        validation: The same.
        settings: How to train.
        device: Where to compute.
    """

    channels_last: ClassVar[torch.memory_format] = torch.channels_last_3d

    def __init__(
        self, denoiser: Denoiser, training: Cases, validation: Cases, settings: DenoiserSettings, device: torch.device
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

    def draw(self, iteration: int) -> Drawn:
        """The next volume, and the boxes that spoil it."""
        self.generator.manual_seed(stream(self.seed, AUGMENT, iteration))
        labels = self.training[int(self.order.batch_of(iteration))]
        return labels, self._boxes(labels, CORRUPT, iteration)

    def loss(self, drawn: Drawn) -> Tensor:
        """One minus the Dice of a volume, moved about and corrupted."""
        labels, boxes = self._moved(drawn[0]), drawn[1]
        return 1 - self._dice(self.jigsaw.spoilt(labels, boxes), labels)

    def score(self) -> float:
        """The mean Dice of the validation volumes, corrupted in ways that are always the same."""
        return self._mean(self._dice)

    @property
    def corrupted_dice(self) -> float:
        """The score of leaving the validation volumes as they are."""
        encoded = self.denoiser.encoded
        return self._mean(lambda spoilt, clean: mean_dice(overlap_sums(encoded(spoilt), encoded(clean))))

    def _mean(self, dice: Callable[[Tensor, Tensor], Tensor]) -> float:
        scores = []
        for number in range(self.corruptions):
            clean = self.validation[number % len(self.validation)]
            scores.append(float(dice(self._corrupted(clean, CHECK, number), clean)))
        return math.fsum(scores) / len(scores)

    def _moved(self, labels: Tensor) -> Tensor:
        """Elastic deformation, shift, rotation and scaling in the plane, alike in all slices."""
        draw = self.augmentation.draw(labels[:1, None].float(), self.generator)
        positions = source_positions(draw.displacement, draw.translation, draw.degrees, draw.scale)
        images = labels[:, None].float()
        return resample(images, labels, positions.expand(len(labels), -1, -1, -1))[1]

    def _boxes(self, labels: Tensor, kind: int, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(stream(self.seed, kind, number))
        return self.jigsaw.boxes_of(labels.shape, generator).to(labels.device)

    def _corrupted(self, labels: Tensor, kind: int, number: int) -> Tensor:
        return self.jigsaw.spoilt(labels, self._boxes(labels, kind, number))

    def _dice(self, spoilt: Tensor, clean: Tensor) -> Tensor:
        with self.autocast:
            logits = self.predict(self.denoiser.encoded(spoilt).contiguous(memory_format=self.layout))
        return mean_dice(overlap_sums(logits.float().softmax(1), self.denoiser.encoded(clean)))


@torch.no_grad()
def _classes(model: Model, case: Prepared) -> int:
    """How many exclusive classes the model's output has."""
    place = next(model.network.parameters()).device
    output = model.network(case.volume[:1].to(place))
    return exclusive_probabilities(model.task.probabilities(output), model.task.exclusive).shape[1]


def _grid(cases: Cases, settings: DenoiserSettings) -> tuple[int, float]:
    """Depth and spacing: those of the settings, or what the cases need."""
    distances = [case.distance or settings.spacing or 1.0 for case in cases]
    extent = max(len(case.volume) * distance for case, distance in zip(cases, distances, strict=True))
    spacing = settings.spacing
    if spacing is None:
        # A hair less than the extent, for distances come with rounding errors.
        needed = math.ceil(extent / median(distances) - 1e-3)
        spacing = median(distances) * math.ceil(needed / (settings.depth or DEEPEST))
    return settings.depth or math.ceil(extent / spacing - 1e-3), spacing


def _labels(case: Prepared) -> Tensor:
    assert case.reference is not None
    return case.reference
