"""Autoencoders (He et al. 2021, as compared in the paper): lower their reconstruction errors of image and output."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.experts import Recorder
from scantune.experts.base import at_least_float32, image_weights
from scantune.methods.base import Method, MethodOptions, ModelParts, MovingChoice, Terms
from scantune.networks import AdaptableNetwork, AdaptedNetwork, Autoencoders, ImageAdaptor, insert_adaptors
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch, Volume
from scantune.tasks import Task

FIT = "scantune fit MODEL --data RECIPE --method ae"


@dataclass(frozen=True)
class AEOptions(MethodOptions):
    """What can be chosen; the defaults are the paper's final choice."""

    moving: MovingChoice = "adaptors"
    """Which parameters move. Adaptors are put in with `adaptors` and `all` only; N_phi stays behind A^x."""
    learning_rate: float = 1e-5
    """Adam's."""
    losses: Literal["input-output", "all"] = "input-output"
    """The autoencoders that count: those of the normalised image and of the output, or those of features, too."""
    start: Literal["random", "centred", "pretrained", "identity"] = "random"
    """How A^x starts: weights drawn with mean 1 / inputs (the paper's) or mean 0 (He et al. 2021); drawn as the
    paper's and then pulled to the identity on the scan; or the identity, where the source prediction is the start."""
    instance_norm: bool = False
    """Whether A^x has instance norms, as in He et al. 2021; the paper found them unstable."""
    orthogonality: float = 1.0
    """Weight of the feature adaptors' distance from orthogonal maps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.orthogonality < 0:
            raise InputError(f"The option orthogonality must be 0 or more, got {self.orthogonality}.")
        if self.instance_norm and self.start == "identity":
            raise InputError(
                "With instance_norm, A^x cannot be the identity; choose another start, such as pretrained, or no "
                "instance_norm."
            )


VARIANTS: dict[str, dict[str, Any]] = {
    "original": {
        **{"learning_rate": 1e-3, "update": "batch", "losses": "all"},
        **{"start": "centred", "instance_norm": True},
    },
    "architecture": {"learning_rate": 1e-3, "update": "batch", "losses": "all"},
    "optimization": {"losses": "all"},
    "loss": {},
}
"""The steps of the paper's appendix from He et al. 2021 to its own choice, each with the ones before: options of `ae`.

Its step `optimization` is also one from an update per batch to one per epoch; the loop never does the former.
"""


class AE(Method):
    """Moves adaptors until autoencoders of the training site reconstruct the scan's image and output better.

    It is one of the four existing methods that the paper compares with (Section 4.1.3); its prior H_psi (Section 1.3)
    is networks, which, other than a Field of Experts, may themselves fail on what they were not trained on (Section
    1.4). The objective is the sum of the autoencoders' mean squared errors, plus the orthogonality of the feature
    adaptors, by a weight. Pixels of padding are not counted, while the authors' code counts them.

    By default A^x starts at random, as in the paper, so that the first objective is not that of the source prediction.
    """

    name: ClassVar[str] = "ae"
    objective: ClassVar[str] = "reconstruction error"
    Options = AEOptions
    options: AEOptions

    def __init__(self, parts: ModelParts, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(parts, options)
        helper = parts.helpers.get(self.name)
        if not isinstance(helper, Autoencoders):
            raise InputError(f"Method ae needs autoencoders, and the model has none; train them with: {FIT}")
        self.helper = helper
        names = helper.names() if self.options.losses == "all" else ["xn", "y"]
        self.layers = {name: layers for name, layers in helper.layers().items() if name in names}

    @property
    def starts_at_source(self) -> bool:
        """Return whether A^x starts as the identity; it does not if its weights are drawn."""
        return self.options.start == "identity" or not self._adapts

    @property
    def _adapts(self) -> bool:
        return self.options.moving in ("adaptors", "all")

    def equip(self, network: AdaptableNetwork, volume: Volume) -> AdaptableNetwork:  # noqa: ARG002
        """Insert the adaptors at the layers that the autoencoders read.

        `start` sets how A^x starts.
        """
        self._require_layers(network)
        if not self._adapts:
            return network
        helper = self.helper
        instance_norm = self.options.instance_norm
        return insert_adaptors(
            network, helper.channels, helper.positions(), helper.dimensions, instance_norm=instance_norm
        )

    def prepare(self, network: AdaptableNetwork) -> None:
        """Copy the autoencoders to the network's device, and listen to the network."""
        super().prepare(network)
        self.adaptors = network.adaptors if isinstance(network, AdaptedNetwork) else None
        self.autoencoders = deepcopy(self.helper).to(next(network.parameters()).device).eval().requires_grad_(False)
        self.views = AutoencoderInputs(network, self.task, self.layers).__enter__()

    def finish(self) -> None:
        """Remove the hooks."""
        self.views.__exit__()

    def start(self, volume: Volume, generator: torch.Generator) -> None:
        """Draw the weights of A^x, and pull it to the identity if that is chosen."""
        if self.starts_at_source or self.adaptors is None:
            return
        self.adaptors.image.draw(generator, centred=self.options.start == "centred")
        if self.options.start == "pretrained":
            images = replace(volume, images=self.network.image(volume.images))
            pull_to_identity(self.adaptors.image, images, generator)

    def measure(self, batch: Batch) -> Statistics:
        """Return number of values and sum of squared errors, `(2,)`, of each autoencoder in use."""
        self._require_dimensions(self.network.image(batch.images))
        return squared_errors(self.autoencoders, self.views(batch.images), batch.padding)

    def terms(self, statistics: Statistics) -> Terms:
        """Return the sum of the mean squared errors plus the weighted orthogonality."""
        errors = mean_errors(statistics)
        total = torch.stack(list(errors.values())).sum()
        features = [] if self.adaptors is None else list(self.adaptors.by_position().values())
        if not features:
            return Terms(total, errors)
        orthogonality = torch.stack([adaptor.orthogonality() for adaptor in features]).sum()
        return Terms(total + self.options.orthogonality * orthogonality, errors | {"orthogonality": orthogonality})

    def _require_layers(self, network: AdaptableNetwork) -> None:
        named = dict(network.task.named_modules())
        needed = {layer for group in self.helper.features for layer, _ in group}
        missing = sorted(needed - named.keys())
        if missing:
            raise InputError(
                f"The autoencoders were trained for a network with a layer {missing[0]!r}, which this one "
                f"({type(network.task).__name__}) does not have; train some for it with: {FIT}"
            )

    def _require_dimensions(self, images: Tensor) -> None:
        helper = self.helper
        if images.ndim - 2 != helper.dimensions or images.shape[1] != helper.channels:
            raise InputError(
                f"The autoencoders are for {helper.dimensions}D images of {helper.channels} channels, but the volume "
                f"has shape {tuple(images.shape)}; train some for such volumes with: {FIT}"
            )


class AutoencoderInputs:
    """Runs a network and keeps what autoencoders read: normalised image (xn), features, output (y).

    Use as a context manager: the hooks are gone afterwards.

    Args:
        network: The network, in evaluation mode.
        task: How its output is read.
        features: Names of features, and the layers whose outputs are put together for each.
    """

    def __init__(self, network: AdaptableNetwork, task: Task, features: Mapping[str, Sequence[str]]) -> None:
        self.network, self.task, self.features = network, task, features
        self.record = Recorder(network, {layer for layers in features.values() for layer in layers})

    def __enter__(self) -> Self:
        self.record.__enter__()
        self.handle = self.network.task.register_forward_pre_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()
        self.record.__exit__()

    def _keep(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._normalized: Tensor = inputs[0].clone()  # the task network may overwrite its input

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Run images `(slices, channels, *spatial)` and return what each autoencoder reads, of its own width."""
        recording = self.record(images)
        seen = {"xn": self._normalized}
        for name, layers in self.features.items():
            seen[name] = torch.cat([recording.features[layer] for layer in layers], dim=1)
        seen["y"] = self.task.probabilities(recording.output)
        del self._normalized
        return {name: at_least_float32(view) for name, view in seen.items()}


def squared_errors(autoencoders: Autoencoders, views: Mapping[str, Tensor], padding: Tensor | None) -> Statistics:
    """Return number of values and sum of squared errors of each autoencoder, `(2,)` each; both add up over slices.

    Args:
        autoencoders: They may be more than the views.
        views: What they read.
        padding: True where the image is padding, `(slices, 1, *spatial)`; it is not counted.
    """
    for name, view in views.items():
        if view.shape[1] != autoencoders.width(name):
            raise InputError(
                f"The autoencoder {name} is for {autoencoders.width(name)} channels, but the network has "
                f"{view.shape[1]} there; train some for this model with: {FIT}"
            )
    statistics = {}
    for name, reconstruction in autoencoders(views).items():
        squares = (reconstruction - views[name]).square()
        weights = image_weights(padding, squares)
        counted = squares if weights is None else squares * weights
        count = counted.new_full((), squares.numel()) if weights is None else weights.sum() * squares.shape[1]
        statistics[name] = torch.stack([count.to(counted), counted.sum()])
    return statistics


def mean_errors(statistics: Statistics) -> dict[str, Tensor]:
    """Return mean squared errors from `squared_errors`; zero if nothing was counted."""
    return {name: total / count.clamp_min(1) for name, (count, total) in statistics.items()}


def pull_to_identity(
    adaptor: ImageAdaptor, volume: Volume, generator: torch.Generator, steps: int = 100, rate: float = 1e-3
) -> None:
    """Train A^x to reproduce the slices of a scan, as an option of the authors' code."""
    adam = torch.optim.Adam(adaptor.parameters(), rate)
    for _ in range(steps):
        images = volume.draw(8, generator).images
        adam.zero_grad()
        F.mse_loss(adaptor(images), images).backward()  # type: ignore[no-untyped-call]
        adam.step()
    adam.zero_grad()
