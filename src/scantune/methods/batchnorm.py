"""Batch-norm adaptation (Li et al. 2018, Schneider et al. 2020): use the scan's own statistics.

An instance of the paper's general framework: the experts are the inputs of the norm layers, their densities Gaussian,
the prior knows one average subject (the running statistics), and what moves are the norm layers' own statistics, for
which the best match has a closed form, layer after layer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from scantune.densities import Gaussian
from scantune.errors import InputError
from scantune.experts.base import at_least_float32, image_weights
from scantune.methods.base import ClosedForm, MethodOptions, Terms
from scantune.networks import AdaptableNetwork
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch


@dataclass(frozen=True)
class BatchNormOptions(MethodOptions):
    """What can be chosen; `moving` and `learning_rate` play no part, for nothing moves by gradients."""

    strength: float = 0.0
    """How many slices the training statistics count for beside the scan's own (Schneider et al.'s N); 0 drops them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength < 0:
            raise InputError(f"The option strength must be 0 or more, got {self.strength}.")


class BatchNorm(ClosedForm):
    """Replaces the running statistics by those of the whole scan, in the order in which the layers are called."""

    name: ClassVar[str] = "batchnorm"
    Options = BatchNormOptions
    options: BatchNormOptions

    def moved(self, network: AdaptableNetwork) -> dict[str, Tensor]:
        """Return the running statistics."""
        return {
            f"{name}.{key}": getattr(layer, key)
            for name, layer in _layers(network).items()
            for key in ("running_mean", "running_var")
        }

    def prepare(self, network: AdaptableNetwork) -> None:
        """Listen to the inputs of the norm layers."""
        super().prepare(network)
        self.layers = _layers(network)
        self._inputs: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self._keep(name)) for name, layer in self.layers.items()
        ]

    def finish(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def solve(self, batches: Iterable[Batch]) -> None:
        """Set the statistics layer by layer with a pass each, since a layer's input depends on earlier layers."""
        self._run(next(iter(batches)))
        slices = sum(len(batch.images) for batch in batches)
        share = slices / (slices + self.options.strength)
        for name in list(self._inputs):
            total = sum(self._moments(name, batch) for batch in batches)
            assert isinstance(total, Tensor)
            seen, layer = Gaussian.estimate(total), self.layers[name]
            assert layer.running_mean is not None and layer.running_var is not None
            layer.running_mean.lerp_(seen.mean[0].to(layer.running_mean), share)
            layer.running_var.lerp_(seen.variance[0].to(layer.running_var), share)

    def measure(self, batch: Batch) -> Statistics:
        """Return moments of the standardised inputs of all layers."""
        self._run(batch)
        statistics = {}
        for name, values in self._inputs.items():
            layer, shape = self.layers[name], (1, -1, *[1] * (values.ndim - 2))
            assert layer.running_mean is not None and layer.running_var is not None
            scale = (layer.running_var + layer.eps).sqrt()
            standard = (at_least_float32(values) - layer.running_mean.view(shape)) / scale.view(shape)
            statistics[name] = Gaussian.measure(standard, image_weights(batch.padding, standard))
        return statistics

    def terms(self, statistics: Statistics) -> Terms:
        """Return KL of the standard normal (training) and the scan's Gaussian, mean over channels, then over layers."""
        layers = []
        for value in statistics.values():
            scan = Gaussian.estimate(value)
            variance = scan.variance[0] + 1e-6
            layers.append(0.5 * (variance.log() + (1 + scan.mean[0].square()) / variance - 1).mean())
        divergence = torch.stack(layers).mean()
        return Terms(divergence, {"divergence": divergence})

    def _moments(self, name: str, batch: Batch) -> Tensor:
        """Return additive moments of one layer's input, in double precision."""
        self._run(batch)
        values = self._inputs[name].double()
        return Gaussian.measure(values, image_weights(batch.padding, values))

    def _run(self, batch: Batch) -> None:
        self._inputs = {}
        self.network(batch.images)

    def _keep(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def keep(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._inputs[name] = inputs[0]

        return keep


def _layers(network: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch norms that have running statistics, by name."""
    found = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }
    if not found:
        raise InputError(
            "Method batchnorm needs batch norm layers with running statistics, and the network has none: norms of "
            "other kinds use each scan's own statistics already. Choose another method."
        )
    return found
