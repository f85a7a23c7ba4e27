"""The contract of a method: which parameters move, the objective that moves them, and its faster evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.networks import AdaptableNetwork, insert_default_adaptors
from scantune.prior.field_of_experts import FieldOfExperts, Statistics
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Batch, Volume
from scantune.tasks import Task

MovingChoice = Literal["normalizer", "norm-affine", "adaptors", "all"]
Update = Literal["epoch", "batch"]

Parameters = dict[str, nn.Parameter]


def normalizer(network: AdaptableNetwork) -> Parameters:
    """Return the parameters of N_phi, as in the paper."""
    return {f"normalizer.{name}": parameter for name, parameter in network.normalizer.named_parameters()}


def norm_affine(network: AdaptableNetwork) -> Parameters:
    """Return scales and shifts of the task network's norm layers, as in Wang et al. 2020; any norm, 2D or 3D."""
    found = {
        f"{name}.{key}": parameter
        for name, module in network.named_modules()
        if isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm)
        for key, parameter in module.named_parameters(recurse=False)
    }
    if not found:
        raise InputError(
            "The network has no norm layer with a scale and a shift, so norm-affine has nothing to move; choose "
            "another setting of moving, such as normalizer."
        )
    return found


def adaptors(network: AdaptableNetwork) -> Parameters:
    """Return the parameters of the inserted adaptors, as in He et al. 2021."""
    found = {name: parameter for name, parameter in network.named_parameters() if name.startswith("adaptors.")}
    if not found:
        raise InputError(
            "The network has no adaptors to move; insert them with Method.equip or "
            "scantune.networks.insert_default_adaptors."
        )
    return found


def everything(network: AdaptableNetwork) -> Parameters:
    """Return every parameter of normaliser, task network and adaptors."""
    return dict(network.named_parameters())


PARAMETER_CHOICES: dict[MovingChoice, Callable[[AdaptableNetwork], Parameters]] = {
    "normalizer": normalizer,
    "norm-affine": norm_affine,
    "adaptors": adaptors,
    "all": everything,
}


class OutputCache:
    """The network's outputs for some slices of a scan, at the parameters of the latest evaluation.

    The guard needs predictions at the parameters that the loop has just evaluated, and takes them from here instead of
    running the network again. On a CPU only: a replayed CUDA graph runs no Python that could fill the cache.
    """

    def __init__(self) -> None:
        self.slices: Sequence[int] = ()
        """Numbers of the slices whose outputs are wanted."""
        self._outputs: dict[int, Tensor] = {}

    def forget(self) -> None:
        """Drop all outputs, since the parameters have moved."""
        self._outputs = {}

    def note(self, batch: Batch, output: object) -> None:
        """Keep the wanted slices of a network's output for a batch; several threads may call this."""
        if not self.slices or not isinstance(output, Tensor) or output.device.type != "cpu":
            return
        if len(output) == len(batch.slices):
            each = zip(batch.slices.tolist(), output.detach(), strict=True)
            self._outputs.update({number: part for number, part in each if number in self.slices})

    def output(self) -> Tensor | None:
        """Return the outputs of the wanted slices `(slices, ...)`; None if some are missing."""
        if not self.slices or any(number not in self._outputs for number in self.slices):
            return None
        return torch.stack([self._outputs[number] for number in self.slices])


class FastPath:
    """Permissions of a method for the loop, and what it keeps for others; by default the loop does nothing special.

    Args:
        capturable: Whether `measure` and `terms` make no decision on the host that differs between steps, so that a
            step can be captured as a CUDA graph.
        thread_safe: Whether several threads may call `measure` at the same time.
        slices: Number of slices of a scan that stand for all of them in exact steps; 0 for all slices.
    """

    def __init__(self, *, capturable: bool = False, thread_safe: bool = False, slices: int = 0) -> None:
        self.capturable, self.thread_safe, self.slices = capturable, thread_safe, slices
        self.outputs = OutputCache()

    def representative(self, volume: Volume) -> Volume:
        """Return the slices that stand for a volume in exact steps, evenly spaced."""
        return volume.thinned(self.slices or len(volume.images))

    def leave_half_precision(self) -> bool:
        """Go on in single precision after a gradient that is not finite; return False if that was in use."""
        return False


@dataclass(frozen=True)
class Terms:
    """Objective of a step and its parts.

    Args:
        objective: The scalar that is minimised.
        parts: Its terms by name, unweighted scalars.
        valid: False where the step must not be chosen as the result; a scalar if only the device knows it.
    """

    objective: Tensor
    parts: dict[str, Tensor]
    valid: bool | Tensor = True

    def detached(self) -> "Terms":
        """Return the same numbers without their autograd graph."""
        return Terms(self.objective.detach(), {name: value.detach() for name, value in self.parts.items()}, self.valid)


@dataclass(frozen=True)
class ModelParts:
    """Parts of a model that a method may use.

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
    """Options of every method, with the paper's defaults; methods with more options add to them."""

    moving: MovingChoice = "normalizer"
    """Which parameters move."""
    learning_rate: float = 1e-4
    """Adam's."""
    update: Update = "epoch"
    """With preset `paper`, whether parameters move once an epoch, by its mean gradient, or after each batch."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InputError(f"The option learning_rate must be above 0, got {self.learning_rate}.")


class Method(ABC):
    """A way to adapt: which parameters move, and the objective that moves them.

    The loop, the solver and the choice of the final step belong to `scantune.adaptation`. What the loop may do to run a
    method faster is in its `fast_path`.

    An objective is a function of statistics that add up over slices, so that it can be computed for a whole volume at
    bounded memory: `measure` returns the statistics of a batch, `terms` the objective of their sum.

    Args:
        parts: What the method may use of a model.
        options: What differs from the defaults of its `Options`, by name.
    """

    name: ClassVar[str]
    objective: ClassVar[str] = "objective"
    """Name of what is minimised, for charts."""
    version: ClassVar[int] = 1
    """Number to raise when the same options change their meaning, so that finished benchmarks are made again."""
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    serves_site: ClassVar[bool] = True
    """Whether what moves can be a start for another scan of the site."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Tasks that the method does not apply to, and why, as the end of a sentence."""

    def __init__(self, parts: ModelParts, options: Mapping[str, Any] | None = None) -> None:
        self.task = parts.task
        self.require_task(self.task)
        self.options = settings_from_table(self.Options, options or {}, f"the options of method {self.name}")
        self.fast_path = FastPath()

    @classmethod
    def require_task(cls, task: Task) -> None:
        """Raise an error if the method does not apply to a task."""
        if task.name in cls.refuses:
            raise InputError(
                f"Method {cls.name} does not apply to {task.name}: {cls.refuses[task.name]}. Choose another method, "
                f"such as {task.method}."
            )

    @property
    def steady(self) -> bool:
        """Return whether the objective stays the same function in a run, which quasi-Newton steps need."""
        return True

    @property
    def starts_at_source(self) -> bool:
        """Return whether a run starts at the source network; if not, its result is still compared with the source."""
        return True

    def equip(self, network: AdaptableNetwork, volume: Volume) -> AdaptableNetwork:  # noqa: ARG002
        """Insert further parameters into the network; by default adaptors, if these are chosen to move.

        Args:
            network: A copy that the method may change.
            volume: The scan.
        """
        return insert_default_adaptors(network) if self.options.moving == "adaptors" else network

    def parameters(self, network: AdaptableNetwork) -> Parameters:
        """Return the parameters that move, by name."""
        return PARAMETER_CHOICES[self.options.moving](network)

    def prepare(self, network: AdaptableNetwork) -> None:
        """Prepare a frozen copy of the network; called once, before the first step."""
        self.network = network

    def start(self, volume: Volume, generator: torch.Generator) -> None:  # noqa: B027
        """Set the moving parameters to where a run starts, if not at the source; called once, after `prepare`."""

    def begin(self, step: int, volume: Volume, generator: torch.Generator) -> None:  # noqa: B027
        """Fix what a step needs beforehand; called before the `step`-th evaluation of the objective, from 0."""

    def finish(self) -> None:  # noqa: B027
        """Release what `prepare` acquired; called once, after the last step."""

    @abstractmethod
    def measure(self, batch: Batch) -> Statistics:
        """Return statistics of a batch that add up over slices, differentiable."""

    @abstractmethod
    def terms(self, statistics: Statistics) -> Terms:
        """Return the objective, from the statistics of a whole volume or of a batch."""


class ClosedForm(Method):
    """A method with a closed-form solution, which it reaches in one step without gradients."""

    def equip(self, network: AdaptableNetwork, volume: Volume) -> AdaptableNetwork:  # noqa: ARG002
        """Return the network as it is; `moving` has no effect."""
        return network

    @abstractmethod
    def moved(self, network: AdaptableNetwork) -> dict[str, Tensor]:
        """Return the tensors of the network that `solve` sets, by name."""

    @abstractmethod
    def solve(self, batches: Iterable[Batch]) -> None:
        """Set the tensors to the solution; `batches` can be iterated more than once."""


def measure_batches(method: Method, volume: Volume, size: int) -> Iterable[Statistics]:
    """Return the statistics of all batches of `size` slices, by several threads if that pays; for no gradient."""
    threads = threads_for(method.network, volume.images) if method.fast_path.thread_safe else None
    batches = volume.batches(size)
    return map(method.measure, batches) if threads is None else threads.each(method.measure, batches)
