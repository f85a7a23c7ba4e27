"""Features of any network's layers, taken by forward hooks."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from scantune.errors import InputError
from scantune.networks import Ensemble, task_network

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

LEAST_POSITIONS = 16
"""Fewest positions of a default expert, whose moments say little in fewer, as in squeeze-and-excitation layers."""

LayerChoice = Iterable[str] | Callable[[str, nn.Module], bool] | None
"""Layer names, or a rule on name and module, or None for every convolution but the last."""


@dataclass(frozen=True)
class Recording:
    """One forward pass: the network's raw output and the features `(slices, channels, *spatial)` by layer."""

    output: Any
    features: dict[str, Tensor]


class _Pass(threading.local):
    """What a thread's forward pass has left so far: features, and how often each had been written to."""

    def __init__(self) -> None:
        self.features: dict[str, Tensor] = {}
        self.versions: dict[str, int] = {}


class Recorder:
    """Runs a network and keeps the outputs of chosen layers of its task network.

    Use as a context manager: the hooks are gone afterwards. In between, activations that would overwrite a layer's
    output in place do not, which costs less than to copy it first. A layer that is called more than once in a forward
    pass gives one feature per call, the later ones named `layer@2`, `layer@3`, ... Threads may run it side by side.
    """

    def __init__(self, network: nn.Module, layers: Iterable[str]) -> None:
        self.network = network
        self.modules = _modules(network, {name.split("@")[0] for name in layers})
        self._handles: list[RemovableHandle] = []
        self._in_place: list[nn.Module] = []
        self._pass = _Pass()
        self._protected: set[str] = set()

    def __enter__(self) -> Self:
        self._handles = [module.register_forward_hook(self._hook(name)) for name, module in self.modules.items()]
        self._in_place = [module for module in self.network.modules() if getattr(module, "inplace", False) is True]
        for module in self._in_place:
            module.inplace = False  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        for module in self._in_place:
            module.inplace = True  # type: ignore[assignment]
        self._in_place = []
        self._pass = _Pass()

    def __call__(self, images: Tensor) -> Recording:
        """Run the network on `(slices, channels, *spatial)`."""
        while True:
            features = self._pass.features = dict[str, Tensor]()
            output = self.network(images)
            changed = {name for name, kept in features.items() if kept._version != self._pass.versions[name]}
            if not changed - self._protected:
                return Recording(output, features)
            # Operations in place, other than modules that say so, overwrote what was recorded: the network gets a copy
            # from now on.
            self._protected |= changed

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], Tensor | None]:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> Tensor | None:
            if not isinstance(output, Tensor):
                raise _not_of_images(name, type(output).__name__)
            key, call = name, 1
            while key in self._pass.features:
                call += 1
                key = f"{name}@{call}"
            self._pass.features[key] = output
            self._pass.versions[key] = output._version
            return output.clone() if key in self._protected else None

        return keep


def choose_layers(network: nn.Module, images: Tensor, choice: LayerChoice = None) -> list[str]:
    """Return names of the expert layers in the order in which the network calls them.

    By default every convolution before any norm layer, except the last one that each network calls, its classifier,
    those whose output has fewer than `LEAST_POSITIONS` positions, and those that give no features of images.

    Args:
        network: The network, in evaluation mode.
        images: A small batch `(slices, channels, *spatial)` to run it on.
        choice: Names, or a rule, instead of the default.
    """
    task = task_network(network)
    named = dict(task.named_modules())
    if choice is None:
        wanted = [name for name, module in named.items() if isinstance(module, CONVOLUTIONS)]
    elif callable(choice):
        wanted = [name for name, module in named.items() if choice(name, module)]
    else:
        wanted = list(choice)
    with torch.no_grad(), Recorder(network, wanted) as record:
        features = record(images).features
    of_images = [name for name, kept in features.items() if kept.ndim == images.ndim and len(kept) == len(images)]
    if choice is None:
        expected = [name for name in of_images if name not in last_layers(task, of_images)]
        layers = [name for name in expected if features[name][0, 0].numel() >= LEAST_POSITIONS]
    else:
        layers = list(features)
        wrong = next((name for name in layers if name not in of_images), None)
        if wrong is not None:
            raise _not_of_images(wrong, f"a tensor {tuple(features[wrong].shape)}", len(images))
    if not layers:
        raise InputError(
            "No layer can serve as experts: "
            + (
                f"the network has fewer than two convolutions with {LEAST_POSITIONS} positions or more"
                if choice is None
                else "none of the chosen layers was called"
            )
            + ". Give layers=, a list of module names of the task network."
        )
    return layers


def _not_of_images(layer: str, found: str, slices: int | str = "slices") -> InputError:
    return InputError(
        f"The layer {layer} cannot serve as experts: it gives {found}, expected features ({slices}, channels, "
        "*spatial), as convolutions give. Choose other layers."
    )


def last_layers(network: nn.Module, called: Sequence[str]) -> list[str]:
    """Return the last of the called layers, of an ensemble that of each network.

    Args:
        network: The network.
        called: Names of layers of its task network, in the order in which they are called.
    """
    task = task_network(network)
    networks = [f"members.{number}." for number in range(len(task.members))] if isinstance(task, Ensemble) else [""]
    own = ([name for name in called if name.startswith(prefix)] for prefix in networks)
    return [names[-1] for names in own if names]


def _modules(network: nn.Module, names: set[str]) -> dict[str, nn.Module]:
    named = dict(task_network(network).named_modules())
    missing = sorted(names - named.keys())
    if missing:
        raise InputError(
            f"The task network ({type(task_network(network)).__name__}) has no layer {missing[0]!r}"
            f" ({len(missing)} of {len(names)} expert layers are missing); "
            "the prior belongs to another network, or the layer names are misspelt."
        )
    return {name: named[name] for name in names}
