"""The one training loop: it iterates, validates now and then, keeps the best network, and resumes from checkpoints.

All randomness of a run is a function of its seed and the iteration, so an interrupted run that resumes from its
checkpoint ends exactly as it would have ended. On a GPU only deterministic convolutions are requested; other layers of
a network may still sum in a changing order, and then the last bits differ from run to run.
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from scantune.config.settings import TrainingRunSettings
from scantune.errors import InputError
from scantune.networks.convolution import use_fast_convolutions
from scantune.runtime.devices import reproducible
from scantune.training.checkpoint import HistoryRecord, RunState
from scantune.training.examples import NETWORK, stream_seed
from scantune.training.step import Step, TrainingBatch, step_for

LOG_EVERY = 50
"""Iterations between two reports of the loss; each report waits for the device."""


class TrainingModule(ABC):
    """A network with its optimiser, the loss of an iteration and a validation score.

    Args:
        network: The network to train; it is moved to the device and changed.
        settings: How to train.
        device: Where to compute.
    """

    channels_last: ClassVar[torch.memory_format] = torch.channels_last
    """The memory layout on a GPU, and of half-precision networks: convolutions are faster in it."""
    replayed: bool = True
    """Whether steps on a GPU are recorded and replayed; compiled networks take their steps plainly."""
    score_name: ClassVar[str] = "Dice"
    """The name of the score in logs and displays."""

    def __init__(self, network: nn.Module, settings: TrainingRunSettings, device: torch.device) -> None:
        half = settings.precision == "bfloat16"
        self.seed, self.device = settings.seed, device
        self.layout = self.channels_last if half or device.type == "cuda" else torch.contiguous_format
        self.autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=half)
        self.network = network.to(device=device).to(memory_format=self.layout)  # type: ignore[call-overload]
        parameters = [value for value in network.parameters() if value.requires_grad]
        if not parameters:
            raise InputError("The network has no parameter to train: all of them are frozen.")
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.Adam(parameters, settings.learning_rate, fused=on_gpu, capturable=on_gpu)
        self.generator = torch.Generator(device)

    @abstractmethod
    def draw(self, iteration: int) -> TrainingBatch:
        """Return the tensors that an iteration learns from, on the device, and seed `generator` if the loss draws.

        All of it must be a function of the seed and the iteration, and must not depend on the network.
        """

    @abstractmethod
    def loss(self, drawn: TrainingBatch) -> Tensor:
        """Compute the loss of a batch, a scalar on the device, with gradients.

        It must be a function of the tensors, of `generator` and of torch's global generator, which is seeded before
        and from which the network may draw (dropout). On a GPU it is recorded, and not called again.
        """

    def step(self) -> Step:
        """Return the function that takes optimisation steps."""
        if self.device.type == "cuda":
            for network in self.networks():
                use_fast_convolutions(network)
        if not self.replayed:
            return Step(self.loss, self.optimizer)
        return step_for(self.loss, self.optimizer, self.device, self.networks(), [self.generator])

    def networks(self) -> list[nn.Module]:
        """Return all networks that the loss runs."""
        return [self.network]

    @abstractmethod
    def score(self) -> float:
        """Return the validation score, higher is better; called in evaluation mode, without gradients."""


@dataclass(frozen=True)
class TrainingProgress:
    """The state of a run, for displays."""

    iteration: int
    iterations: int
    loss: float
    score: float | None
    """Score of the latest validation; None before the first."""
    seconds_left: float
    score_name: str = "Dice"
    remark: str = ""
    """Why the run is slower than it could be."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A finished run."""

    network: nn.Module
    """The network of the best validation, in evaluation mode."""
    history: list[HistoryRecord]
    best_iteration: int
    best_score: float


def run_training(
    module: TrainingModule,
    settings: TrainingRunSettings,
    identity: Mapping[str, Any],
    *,
    checkpoint: Path | None = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    log_dir: Path | None = None,
) -> TrainedNetwork:
    """Train a module, or resume an interrupted run of it.

    Args:
        module: Network, loss and score; its network is trained in place.
        settings: How to train.
        identity: What a run must share to be resumed from its checkpoint, as JSON.
        checkpoint: The file that holds the run. If it exists, the run resumes from it; a finished run is returned
            as it is.
        on_progress: Called at every report of the loss.
        log_dir: Folder for a TensorBoard log.

    Raises:
        InputError: The loss is not finite, or the checkpoint is of another run.
    """
    run = _Run(module, settings)
    state = run.state
    with reproducible(module.device):
        if checkpoint is not None and checkpoint.exists():
            state.restore(checkpoint, identity)
        log = TensorBoardLog.open(log_dir, state.iteration, module.score_name)
        pace = _Pace(state.iteration)
        for record in run:
            if checkpoint is not None and run.is_due(settings.checkpoint_every):
                state.save(checkpoint, identity)
            if log is not None:
                log.write(record)
            if on_progress is not None:
                on_progress(run.progress(pace.at(state.iteration)))
    state.network.load_state_dict(state.best)
    return TrainedNetwork(state.network.eval(), state.history, state.best_iteration, state.best_score)


class _Run:
    """Iterator that trains from one report of the loss to the next."""

    def __init__(self, module: TrainingModule, settings: TrainingRunSettings) -> None:
        self.module, self.settings = module, settings
        self.state = RunState(module.network, module.optimizer)
        self.step = module.step()

    def __iter__(self) -> Iterator[HistoryRecord]:
        state, losses, waiting = self.state, torch.zeros(LOG_EVERY, device=self.module.device), 0
        state.network.train()
        while state.iteration < self.settings.iterations:
            torch.manual_seed(stream_seed(self.settings.seed, NETWORK, state.iteration))
            losses[waiting] = self.step(self.module.draw(state.iteration))
            state.iteration, waiting = state.iteration + 1, waiting + 1
            validates = self.is_due(self.settings.validate_every)
            if validates or self.is_due(self.settings.checkpoint_every) or self.is_due(LOG_EVERY):
                loss = self._mean(losses[:waiting].tolist())
                state.history.append(HistoryRecord(state.iteration, loss, self._validate() if validates else None))
                waiting = 0
                yield state.history[-1]

    def is_due(self, every: int) -> bool:
        """Return whether a repeated action is due at this iteration; all are at the end."""
        return self.state.iteration % every == 0 or self.state.iteration == self.settings.iterations

    def progress(self, pace: float) -> TrainingProgress:
        """Return the state of the run, given the seconds per iteration."""
        history, done, total = self.state.history, self.state.iteration, self.settings.iterations
        score = next((line.score for line in reversed(history) if line.score is not None), None)
        return TrainingProgress(
            done, total, history[-1].loss, score, pace * (total - done), self.module.score_name, self.step.remark
        )

    def _validate(self) -> float:
        state = self.state
        state.network.eval()
        with torch.no_grad():
            score = self.module.score()
        state.network.train()
        if not state.best or score > state.best_score:
            state.keep_as_best(score)
        return score

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
    """Seconds per iteration; the first stretch, which warms up, counts only until there is another."""

    def __init__(self, iteration: int) -> None:
        self.marks = [(iteration, time.monotonic())]

    def at(self, iteration: int) -> float:
        """Return the pace when an iteration has been reached."""
        now = time.monotonic()
        before, then = self.marks[-1]
        if len(self.marks) == 1:
            self.marks.append((iteration, now))
        return (now - then) / (iteration - before)


class TensorBoardLog:
    """A log of a run for TensorBoard.

    Args:
        folder: Where the log is written.
        iteration: The iteration that the run starts or resumes from.
        score_name: The name of the validation score.
    """

    def __init__(self, folder: Path, iteration: int, score_name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.score_name = score_name
        # Lines after the checkpoint that a run resumes from are written again: drop the old ones.
        self.writer = SummaryWriter(folder, purge_step=iteration + 1)

    @classmethod
    def open(cls, folder: Path | None, iteration: int, score_name: str) -> Self | None:
        """Open a log; return None without a folder or without TensorBoard."""
        if folder is None:
            return None
        try:
            return cls(folder, iteration, score_name)
        except ImportError:
            logging.getLogger(__name__).warning(
                "No log is written to %s: the package tensorboard is missing (pip install tensorboard).",
                folder,
            )
            return None

    def write(self, record: HistoryRecord) -> None:
        """Add a line of the history."""
        self.writer.add_scalar("loss", record.loss, record.iteration)
        if record.score is not None:
            self.writer.add_scalar(f"validation {self.score_name}", record.score, record.iteration)
        self.writer.flush()
