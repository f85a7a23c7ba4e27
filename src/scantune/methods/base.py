"""The contract of a method: which parameters move, and the objective that moves them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.methods.fast_path import FastPath, OutputCache
from scantune.methods.parameters import PARAMETER_CHOICES, MovingChoice, Parameters
from scantune.networks import AdaptableNetwork, insert_default_adaptors
from scantune.prior.field_of_experts import FieldOfExperts, Statistics
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Batch, Volume
from scantune.tasks import Task


@dataclass(frozen=True)
class Terms:
    """The objective of a step and what it is made of.

    Args:
        objective: The scalar that is minimised.
        parts: Its terms by name, unweighted scalars.
        valid: False where the step must not be chosen as the result; a scalar where that is known to the device alone.
    """

    objective: Tensor
    parts: dict[str, Tensor]
    valid: bool | Tensor = True

    def detached(self) -> "Terms":
        """The same numbers, without what they were computed from."""
        return Terms(self.objective.detach(), {name: value.detach() for name, value in self.parts.items()}, self.valid)


@dataclass(frozen=True)
class ModelParts:
    """What a method may use.

    Args:
        task: How outputs are read.
        prior: The Field of Experts, where there is one.
        helpers: Helper networks by name, such as a denoising autoencoder.
    """

    task: Task
    prior: FieldOfExperts | None = None
    helpers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodOptions:
    """What can be chosen for every method; the defaults are the paper's. Methods with more to choose add to it."""

    moving: MovingChoice = "normalizer"
    """Which parameters move."""
    learning_rate: float = 1e-4
    """Adam's."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InputError(f"The option learning_rate must be above 0, got {self.learning_rate}.")


class Method(ABC):
    """A way to adapt. The loop, the optimiser and the choice of the final step belong to `adapt.py`.

    An objective is a function of statistics that add up over slices, so that it can be taken of a whole volume at
    bounded memory: `measure` gives the statistics of a batch, `terms` the objective of their sum.

    Args:
        equipment: What the method may use.
        options: What differs from the defaults of its `Options`, by name.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Is raised when the same options begin to mean something else, so that finished benchmarks are made anew."""
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    serves_site: ClassVar[bool] = True
    """Whether what moves can be a start for another scan of the site."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Tasks that the method is not for, and why, as the end of a sentence."""

    def __init__(self, equipment: ModelParts, options: Mapping[str, Any] | None = None) -> None:
        self.task = equipment.task
        self.require_task(self.task)
        self.options = settings_from_table(self.Options, options or {}, f"the options of method {self.name}")
        self.fast_path = FastPath()

    @classmethod
    def require_task(cls, task: Task) -> None:
        """Says so where the method is not for a task."""
        if task.name in cls.refuses:
            raise InputError(
                f"Method {cls.name} does not apply to {task.name}: {cls.refuses[task.name]}. Choose another method, "
                f"such as {task.method}."
            )

    @property
    def steady(self) -> bool:
        """Whether the objective is the same function throughout a run; quasi-Newton steps make sense only then."""
        return True

    @property
    def recordable(self) -> bool:
        """Whether a step can be captured as a CUDA graph."""
        return self.fast_path.capturable

    @property
    def reentrant(self) -> bool:
        """Whether several threads may call `measure` at the same time."""
        return self.fast_path.thread_safe

    @property
    def latest(self) -> OutputCache:
        """Outputs of the latest evaluation."""
        return self.fast_path.outputs

    def finer(self) -> bool:
        """Leave half precision; return False if single precision was in use."""
        return self.fast_path.leave_half_precision()

    @property
    def starts_at_source(self) -> bool:
        """Whether a run starts at the source network; where not, its result is compared with that all the same."""
        return True

    def equip(self, network: AdaptableNetwork, volume: Volume) -> AdaptableNetwork:  # noqa: ARG002
        """The network with what moves in it; by default adaptors, where these are to move.

        Args:
            network: A copy that the method may change.
            volume: The scan.
        """
        return insert_default_adaptors(network) if self.options.moving == "adaptors" else network

    def seen(self, volume: Volume) -> Volume:
        """Return the slices that stand for a volume in exact steps."""
        return self.fast_path.representative(volume)

    def parameters(self, network: AdaptableNetwork) -> Parameters:
        """What moves, by name."""
        return PARAMETER_CHOICES[self.options.moving](network)

    def prepare(self, network: AdaptableNetwork) -> None:
        """Makes a frozen copy of the network ready; called once, before the first step."""
        self.network = network

    def start(self, volume: Volume, generator: torch.Generator) -> None:  # noqa: B027
        """Sets the moving parameters to where a run starts, if not at the source; called once, after `prepare`."""

    def begin(self, step: int, volume: Volume, generator: torch.Generator) -> None:  # noqa: B027
        """Called before the objective is evaluated for the `step`-th time, from 0; for what a step fixes beforehand."""

    def finish(self) -> None:  # noqa: B027
        """Lets go of what `prepare` took hold of; called once, after the last step."""

    @abstractmethod
    def measure(self, batch: Batch) -> Statistics:
        """Statistics of a batch that add up over slices; differentiable."""

    @abstractmethod
    def terms(self, statistics: Statistics) -> Terms:
        """The objective, from the statistics of a whole volume or of a batch."""


class ClosedForm(Method):
    """A method that knows its answer and takes one step to it, without gradients."""

    def equip(self, network: AdaptableNetwork, volume: Volume) -> AdaptableNetwork:  # noqa: ARG002
        """As it is: `moving` plays no part."""
        return network

    @abstractmethod
    def moved(self, network: AdaptableNetwork) -> dict[str, Tensor]:
        """The tensors of the network that `solve` sets, by name."""

    @abstractmethod
    def solve(self, batches: Iterable[Batch]) -> None:
        """Sets them to the answer; `batches` can be gone through more than once."""


def measure_batches(method: Method, volume: Volume, size: int) -> Iterable[Statistics]:
    """Return the statistics of all batches of `size` slices, by several threads if that pays; for no gradient."""
    threads = threads_for(method.network, volume.images) if method.fast_path.thread_safe else None
    batches = volume.batches(size)
    return map(method.measure, batches) if threads is None else threads.each(method.measure, batches)
