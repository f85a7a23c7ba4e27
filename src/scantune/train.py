"""Training: normaliser and task network together, on 2D slices, with the best validation Dice kept.

All slices live on the training device. The order of the slices, the augmentation and whatever randomness the
network has are functions of the seed and the iteration, so a run that is killed and resumed from its
checkpoint goes on exactly as it would have gone. On a GPU only deterministic convolutions are asked for;
other layers of a network may still sum in a changing order, and then the last bits differ from run to run.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from scantune.augment import Augmentation, augment
from scantune.checkpoint import Record, RunState
from scantune.devices import find_device, reproducible
from scantune.errors import InputError
from scantune.networks.adaptable import AdaptableNetwork
from scantune.runlog import TensorBoard
from scantune.settings import TrainSettings
from scantune.slices import (
    Example,
    SliceOrder,
    check_examples,
    check_split,
    fingerprint,
    stack_slices,
    stream,
)
from scantune.tasks.base import main_output
from scantune.tasks.segmentation import Segmentation

LOG_EVERY = 50
"""Iterations between two looks at the loss: each look waits for the device."""

_TASK = Segmentation()
# The kinds of random streams of a run.
_WEIGHTS, _SHUFFLE, _AUGMENT, _NETWORK = range(4)


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    iteration: int
    iterations: int
    loss: float
    dice: float | None
    """Latest validation Dice; None before the first validation."""
    seconds_left: float


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    network: nn.Module
    """The network of the best validation, in evaluation mode."""
    history: list[Record]
    best_iteration: int
    best_dice: float


def train(
    volumes: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainSettings,
    *,
    network: nn.Module | None = None,
    checkpoint: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    log_dir: Path | None = None,
) -> Trained:
    """Train a network, or go on with a run that was interrupted.

    Args:
        volumes: The training scans; their slices must have one size.
        validation: The scans that choose the best network; they may have other sizes.
        settings: How to train.
        network: Where to start from; it is copied, not changed. By default a new `AdaptableNetwork` with as
            many classes as the references have labels.
        checkpoint: The file that holds the run. If it exists, the run goes on from there; a finished run is
            returned as it is.
        on_progress: Called at every look at the loss.
        log_dir: Folder for a log that TensorBoard reads.

    Raises:
        InputError: The scans do not fit together, the loss is not finite, or the checkpoint is of another
            run.
    """
    check_split(volumes, validation)
    device = find_device(settings.device)
    identity = asdict(settings) | {"data": fingerprint([*volumes, *validation])}
    with reproducible(device):
        if network is None:
            network = _default_network([*volumes, *validation], settings.seed)
        run = _Run(volumes, validation, settings, copy.deepcopy(network), device)
        state = run.state
        if checkpoint is not None and checkpoint.exists():
            state.restore(checkpoint, identity)
        log = TensorBoard.open(log_dir, state.iteration)
        pace = _Pace(state.iteration)
        for record in run:
            if checkpoint is not None and run.is_due(settings.checkpoint_every):
                state.save(checkpoint, identity)
            if log is not None:
                log.write(record)
            if on_progress is not None:
                on_progress(run.progress(pace.at(state.iteration)))
    state.network.load_state_dict(state.best)
    return Trained(state.network.eval(), state.history, state.best_iteration, state.best_dice)


@torch.no_grad()
def validation_dice(network: nn.Module, examples: Sequence[Example], classes: int, batch: int = 16) -> float:
    """Mean over scans of the mean over foreground labels of the Dice of the whole scan.

    A label that neither the reference nor the prediction of a scan has is left out of that scan's mean.

    Args:
        network: In evaluation mode, on the device of the scans.
        examples: The scans; at least one of them must have foreground.
        classes: How many labels there are, background included.
        batch: Slices per pass of the network.
    """
    scores = []
    for example in examples:
        counts = torch.zeros(2, classes, dtype=torch.int64, device=example.volume.device)
        labels = torch.arange(classes, device=example.volume.device)[:, None, None, None]
        for images, reference in zip(
            torch.split(example.volume, batch), torch.split(example.reference, batch), strict=True
        ):
            predicted, true = _TASK.predict(network(images)) == labels, reference == labels
            counts[0] += 2 * (predicted & true).sum((1, 2, 3))
            counts[1] += predicted.sum((1, 2, 3)) + true.sum((1, 2, 3))
        scores.append((counts[0] / counts[1])[1:].nanmean())
    return float(torch.stack(scores).nanmean())


class _Run:
    """The one training loop: iterating it trains, from one look at the loss to the next."""

    def __init__(
        self,
        volumes: Sequence[Example],
        validation: Sequence[Example],
        settings: TrainSettings,
        network: nn.Module,
        device: torch.device,
    ) -> None:
        half = settings.precision == "bfloat16"
        self.settings, self.device = settings, device
        self.layout = torch.channels_last if half and device.type == "cuda" else torch.contiguous_format
        self.autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=half)
        network.to(device=device).to(memory_format=self.layout)  # type: ignore[call-overload]
        self.images, self.labels = stack_slices(volumes, device)
        self.classes = _count_classes(network, self.images[:1])
        check_examples([*volumes, *validation], self.classes)
        self.validation = [example.to(device) for example in validation]
        parameters = [value for value in network.parameters() if value.requires_grad]
        if not parameters:
            raise InputError("The network has no parameter to train: all of them are frozen.")
        optimizer = torch.optim.Adam(parameters, settings.learning_rate, fused=device.type == "cuda")
        self.state = RunState(network, optimizer)
        self.order = SliceOrder(len(self.images), settings.batch, settings.seed, _SHUFFLE, device)
        self.augmentation = Augmentation() if settings.augment == "strong" else None
        self.generator = torch.Generator(device)
        self.augment, self.loss = augment, self._loss
        if settings.compile:
            self.augment, self.loss = torch.compile(augment), torch.compile(self._loss)

    def __iter__(self) -> Iterator[Record]:
        state, losses, waiting = self.state, torch.zeros(LOG_EVERY, device=self.device), 0
        state.network.train()
        while state.iteration < self.settings.iterations:
            losses[waiting] = self._step(state.iteration)
            state.iteration, waiting = state.iteration + 1, waiting + 1
            validates = self.is_due(self.settings.validate_every)
            if validates or self.is_due(self.settings.checkpoint_every) or self.is_due(LOG_EVERY):
                loss = self._mean(losses[:waiting].tolist())
                state.history.append(Record(state.iteration, loss, self._validate() if validates else None))
                waiting = 0
                yield state.history[-1]

    def is_due(self, every: int) -> bool:
        """Whether something that happens every so many iterations, and at the end, is to happen now."""
        return self.state.iteration % every == 0 or self.state.iteration == self.settings.iterations

    def progress(self, pace: float) -> Progress:
        """Where the run stands, at so many seconds an iteration."""
        history, done, all_in_all = self.state.history, self.state.iteration, self.settings.iterations
        dice = next((line.dice for line in reversed(history) if line.dice is not None), None)
        return Progress(done, all_in_all, history[-1].loss, dice, pace * (all_in_all - done))

    def _step(self, iteration: int) -> Tensor:
        """Take one step of the optimiser; gives the loss without waiting for the device."""
        index = self.order.batch_of(iteration)
        images, labels = self.images[index], self.labels[index].long()
        # What the network itself draws (dropout) comes from the global generator.
        torch.manual_seed(stream(self.settings.seed, _NETWORK, iteration))
        if self.augmentation is not None:
            self.generator.manual_seed(stream(self.settings.seed, _AUGMENT, iteration))
            images, labels = self.augment(images, labels, self.augmentation.draw(images, self.generator))
        loss = self.loss(images.contiguous(memory_format=self.layout), labels)
        self.state.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.state.optimizer.step()
        return loss.detach()

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        with self.autocast:
            output = self.state.network(images)
        return _TASK.loss(main_output(output).float(), labels)

    def _validate(self) -> float:
        state = self.state
        state.network.eval()
        with self.autocast:
            dice = validation_dice(state.network, self.validation, self.classes)
        state.network.train()
        if dice > state.best_dice:
            state.keep_as_best(dice)
        return dice

    def _mean(self, losses: list[float]) -> float:
        for place, loss in enumerate(losses):
            if not math.isfinite(loss):
                iteration = self.state.iteration - len(losses) + place + 1
                raise InputError(
                    f"The training loss is {loss} at iteration {iteration}; lower learning_rate, or train "
                    'with precision "float32".'
                )
        return math.fsum(losses) / len(losses)


class _Pace:
    """Seconds an iteration; the first stretch counts only while there is no other, for it warms up."""

    def __init__(self, iteration: int) -> None:
        self.marks = [(iteration, time.monotonic())]

    def at(self, iteration: int) -> float:
        """The pace when an iteration has been reached."""
        now = time.monotonic()
        before, then = self.marks[-1]
        if len(self.marks) == 1:
            self.marks.append((iteration, now))
        return (now - then) / (iteration - before)


def _default_network(examples: Sequence[Example], seed: int) -> nn.Module:
    torch.manual_seed(stream(seed, _WEIGHTS, 0))
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
