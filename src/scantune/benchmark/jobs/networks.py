"""Jobs that make networks and what belongs to them: train, go on with labelled scans, fit a prior, train a helper."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from scantune.benchmark.jobs.base import MODEL, Job, JobEnvironment, OnProgress
from scantune.config.settings import PriorSettings, settings_from_table
from scantune.model.source import ModelSource
from scantune.training.fit import fit_model
from scantune.training.helpers import TRAINERS, fit_helper
from scantune.training.plan import TrainingPlan
from scantune.training.train import train_model
from scantune.training.trainer import TrainingProgress

_NO_PART = ("device", "checkpoint_every", "seed")


@dataclass(frozen=True, eq=False)
class Training(Job):
    """Training of a network on the scans of a plan.

    Attributes:
        plan: Scans and settings of the training; its seed is that of the job.
    """

    kind: ClassVar[str] = "train"
    version: ClassVar[int] = 1

    plan: TrainingPlan

    @cached_property
    def data(self) -> str:
        """Return a hash of the scans."""
        return self.plan.source.identity(self.plan.preprocessing)

    def settings(self) -> dict[str, Any]:
        """Return scans, preprocessing, network and training settings."""
        train = {name: value for name, value in asdict(self.plan.recipe.train).items() if name not in _NO_PART}
        return {
            "data": self.data,
            "preprocessing": self.plan.preprocessing.record(),
            "network": asdict(self.plan.network),
            **({} if self.plan.task is None else {"task": asdict(self.plan.task)}),
            "train": train,
        }

    def run(self, environment: JobEnvironment, out: Path, on_progress: OnProgress) -> None:
        """Train, or continue an interrupted run."""
        model = train_model(
            _on(self.plan, environment.device),
            start=self._start(environment),
            checkpoint=environment.checkpoint(self),
            on_progress=_training_progress(on_progress),
        )
        model.save(out / MODEL)

    def _start(self, environment: JobEnvironment) -> Any:
        del environment


@dataclass(frozen=True, eq=False)
class GivenModel(Training):
    """A model file in place of a training.

    Attributes:
        source: The model file; of what is in it, network, labels and preprocessing count.
    """

    kind: ClassVar[str] = "given"
    version: ClassVar[int] = 1

    source: ModelSource

    def settings(self) -> dict[str, Any]:
        """Return the fingerprint of the file."""
        return {"model": self.source.load().fingerprint}

    def run(self, environment: JobEnvironment, out: Path, on_progress: OnProgress) -> None:
        """Copy the model."""
        del environment, on_progress
        self.source.load().save(out / MODEL)


@dataclass(frozen=True, eq=False)
class FineTuning(Training):
    """Continued training of a network on labelled scans of another centre.

    Attributes:
        start: Makes the network.
    """

    kind: ClassVar[str] = "supervise"
    version: ClassVar[int] = 1

    start: Training

    @property
    def inputs(self) -> tuple[Job, ...]:
        """Return the network to start from."""
        return (self.start,)

    def _start(self, environment: JobEnvironment) -> Any:
        return environment.model(self.start)


@dataclass(frozen=True, eq=False)
class PriorFitting(Job):
    """Fit of a network's prior.

    Attributes:
        network: Makes the network.
        prior: What the prior is made of.
    """

    kind: ClassVar[str] = "prior"
    version: ClassVar[int] = 1

    network: Training
    prior: PriorSettings

    @property
    def inputs(self) -> tuple[Job, ...]:
        """Return the network."""
        return (self.network,)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the prior, with alpha only for densities that have it."""
        record = asdict(self.prior)
        return record if self.prior.density == "kde" else {**record, "alpha": None}

    def run(self, environment: JobEnvironment, out: Path, on_progress: OnProgress) -> None:
        """Fit, and calibrate on the validation scans."""
        del on_progress
        plan = _on(self.network.plan, environment.device)
        model = environment.model(self.network)
        fit_model(model, plan, settings=self.prior, device=environment.device).save(out / MODEL)


@dataclass(frozen=True, eq=False)
class HelperTraining(Job):
    """Training of the helper network of a method.

    Attributes:
        network: Makes the network that it helps.
        method: The method.
        chosen: What differs from the defaults of the method's settings.
    """

    kind: ClassVar[str] = "helper"
    version: ClassVar[int] = 1

    network: Training
    method: str
    chosen: dict[str, Any]

    @property
    def inputs(self) -> tuple[Job, ...]:
        """Return the network."""
        return (self.network,)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the helper network."""
        settings = settings_from_table(TRAINERS[self.method].settings, self.chosen, f"[helpers.{self.method}]")
        chosen = {name: value for name, value in asdict(settings).items() if name not in _NO_PART}
        return {"method": self.method, **chosen}

    def run(self, environment: JobEnvironment, out: Path, on_progress: OnProgress) -> None:
        """Train, or continue an interrupted run."""
        fit_helper(
            environment.model(self.network),
            _on(self.network.plan, environment.device),
            self.method,
            {**self.chosen, "seed": self.seed},
            device=environment.device,
            checkpoint=environment.checkpoint(self),
            on_progress=_training_progress(on_progress),
        ).save(out / MODEL)


def _on(plan: TrainingPlan, device: str) -> TrainingPlan:
    """Return the plan for a device."""
    recipe = plan.recipe
    return replace(plan, recipe=replace(recipe, train=replace(recipe.train, device=device)))


def _training_progress(on_progress: OnProgress) -> Callable[[TrainingProgress], None]:
    return lambda at: on_progress(at.iteration, at.iterations)
