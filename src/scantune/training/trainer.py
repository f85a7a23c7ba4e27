"""The one training loop: iterate, look at validation data now and then, keep the best, go on after an interruption.

All randomness of a lesson is a function of the seed and the iteration, so a run that is killed and resumed from its
checkpoint goes on exactly as it would have gone. On a GPU only deterministic convolutions are asked for; other layers
of a network may still sum in a changing order, and then the last bits differ from run to run. How a step is taken there
is told in `stepping`.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scantune.errors import InputError
from scantune.runtime.devices import reproducible
from scantune.training.checkpoint import Record, RunState
from scantune.training.examples import stream
from scantune.training.module import NETWORK, LearningSettings, Lesson
from scantune.training.run_log import TensorBoard

LOG_EVERY = 50
"""Iterations between two looks at the loss: each look waits for the device."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    iteration: int
    iterations: int
    loss: float
    score: float | None
    """Of the latest validation; None before the first."""
    seconds_left: float
    score_name: str = "Dice"
    remark: str = ""
    """Why the run is slower than it could be."""


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    network: nn.Module
    """The network of the best validation, in evaluation mode."""
    history: list[Record]
    best_iteration: int
    best_score: float


def learn(
    lesson: Lesson,
    settings: LearningSettings,
    identity: Mapping[str, Any],
    *,
    checkpoint: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    log_dir: Path | None = None,
) -> Trained:
    """Goes through a lesson, or on with a run of it that was interrupted.

    Args:
        lesson: What to learn; its network is trained in place.
        settings: How to train.
        identity: What a run must share to be resumed from its checkpoint, as JSON.
        checkpoint: The file that holds the run. If it exists, the run goes on from there; a finished run is returned
            as it is.
        on_progress: Called at every look at the loss.
        log_dir: Folder for a log that TensorBoard reads.

    Raises:
        InputError: The loss is not finite, or the checkpoint is of another run.
    """
    run = _Run(lesson, settings)
    state = run.state
    with reproducible(lesson.device):
        if checkpoint is not None and checkpoint.exists():
            state.restore(checkpoint, identity)
        log = TensorBoard.open(log_dir, state.iteration, lesson.score_name)
        pace = _Pace(state.iteration)
        for record in run:
            if checkpoint is not None and run.is_due(settings.checkpoint_every):
                state.save(checkpoint, identity)
            if log is not None:
                log.write(record)
            if on_progress is not None:
                on_progress(run.progress(pace.at(state.iteration)))
    state.network.load_state_dict(state.best)
    return Trained(state.network.eval(), state.history, state.best_iteration, state.best_score)


class _Run:
    """Iterating it trains, from one look at the loss to the next."""

    def __init__(self, lesson: Lesson, settings: LearningSettings) -> None:
        self.lesson, self.settings = lesson, settings
        self.state = RunState(lesson.network, lesson.optimizer)
        self.step = lesson.step()

    def __iter__(self) -> Iterator[Record]:
        state, losses, waiting = self.state, torch.zeros(LOG_EVERY, device=self.lesson.device), 0
        state.network.train()
        while state.iteration < self.settings.iterations:
            torch.manual_seed(stream(self.settings.seed, NETWORK, state.iteration))
            losses[waiting] = self.step(self.lesson.draw(state.iteration))
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
        score = next((line.score for line in reversed(history) if line.score is not None), None)
        left = pace * (all_in_all - done)
        return Progress(done, all_in_all, history[-1].loss, score, left, self.lesson.score_name, self.step.remark)

    def _validate(self) -> float:
        state = self.state
        state.network.eval()
        with torch.no_grad():
            score = self.lesson.score()
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
