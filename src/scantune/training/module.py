"""What is learnt: a network, its optimiser, the loss of an iteration and a score.

All randomness of a lesson is a function of the seed and the iteration, so that an interrupted run can go on.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from scantune.errors import InputError
from scantune.networks.convolution import use_fast_convolutions
from scantune.training.step import Drawn, Step, step_for

WEIGHTS, SHUFFLE, AUGMENT, NETWORK, CORRUPT, CHECK = range(6)
"""The kinds of random streams of a run, see `slices.stream`."""


class LearningSettings(Protocol):
    """What the settings of every kind of training have."""

    @property
    def iterations(self) -> int:
        """Steps of the optimiser."""

    @property
    def learning_rate(self) -> float:
        """Adam's, constant."""

    @property
    def validate_every(self) -> int:
        """Steps between two scores."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between two savings of the run."""

    @property
    def seed(self) -> int:
        """Decides everything random."""

    @property
    def precision(self) -> str:
        """`float32`, or `bfloat16` for a network computed in half precision; weights stay float32."""


class Lesson(ABC):
    """Something to learn: what an iteration's loss is, and how good the network has become.

    Args:
        network: What learns; it is moved to the device and changed.
        settings: How to train.
        device: Where to compute.
    """

    channels_last: ClassVar[torch.memory_format] = torch.channels_last
    """The layout of half-precision networks, and of all on a GPU: convolutions are faster in it."""
    replayed: bool = True
    """Whether steps on a GPU are recorded and replayed; what is compiled takes them in its own way."""
    score_name: ClassVar[str] = "Dice"
    """What `score` is called where a run is shown."""

    def __init__(self, network: nn.Module, settings: LearningSettings, device: torch.device) -> None:
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
    def draw(self, iteration: int) -> Drawn:
        """What an iteration learns from, as tensors on the device, and `generator` seeded where the loss draws from it.

        All of it must be a function of the seed and the iteration. Nothing here may depend on the network.
        """

    @abstractmethod
    def loss(self, drawn: Drawn) -> Tensor:
        """The loss of what was drawn, a scalar on the device, with gradients.

        It must be a function of the tensors, of `generator` and of the global generator, from which the network itself
        may draw (dropout), and which has been seeded: on a GPU it is recorded, and called no more.
        """

    def step(self) -> Step:
        """The way that steps are taken."""
        if self.device.type == "cuda":
            for network in self.networks():
                use_fast_convolutions(network)
        if not self.replayed:
            return Step(self.loss, self.optimizer)
        return step_for(self.loss, self.optimizer, self.device, self.networks(), [self.generator])

    def networks(self) -> list[nn.Module]:
        """All networks that the loss runs."""
        return [self.network]

    @abstractmethod
    def score(self) -> float:
        """How good the network is on validation data, higher is better; it is in evaluation mode, without gradients."""
