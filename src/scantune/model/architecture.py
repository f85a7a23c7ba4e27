"""The architecture of a network: a kind with plain arguments, and what builds the network from them.

A model file names its architecture, and may come from anyone. A kind is therefore looked up in literal tables and among
installed entry points. A function `package.module:factory` is imported only if the user named it.
"""

import importlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from scantune.config.assignments import untyped_table_from_assignments
from scantune.errors import InputError, error_message
from scantune.networks import ARCHITECTURES
from scantune.networks.monai_networks import MONAI_NETWORKS, monai_network

ENTRY_POINTS = "scantune.networks"
"""The group of entry points under which packages offer networks: functions that return an untrained `nn.Module`."""

MONAI = "monai:"
"""The beginning of the kinds of MONAI's networks."""

LARGEST_PARTS = 20_000
"""Upper limit of the modules and parameters of a network whose arguments come from a file."""

MAX_DEPTH, MAX_TEXT = 4, 1000

Factory = Callable[..., nn.Module]

NetworkChoice = nn.Module | str | Mapping[str, Any]
"""A network, or an architecture by its kind, or by its record: `kind` and the arguments."""

_IMPORTABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Architecture:
    """A kind of network with the arguments that build it.

    Attributes:
        kind: A name of `scantune.networks.ARCHITECTURES`, `monai:NAME` with a name of `MONAI_NETWORKS`, the name of an
            installed entry point, or `package.module:factory`.
        arguments: Plain values by name, as JSON has them.
        named: Whether the user named the kind; only then is `package.module:factory` imported.
    """

    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    named: bool = False

    @classmethod
    def read(cls, record: Mapping[str, Any], named: bool = False) -> Self:
        """Read a record: `kind` and the arguments.

        Raises:
            InputError: An argument is no plain value.
        """
        kind = record.get("kind")
        arguments = {name: value for name, value in record.items() if name != "kind"}
        for name, value in arguments.items():
            if not _is_plain(value):
                raise InputError(
                    f"The argument {name[:100]} of the network {str(kind)[:100]!r} must hold plain numbers, text, "
                    f"lists and tables, as JSON has them, got {str(value)[:100]!r}."
                )
        return cls(str(kind)[:MAX_TEXT], arguments, named)

    @classmethod
    def chosen(cls, recorded: Mapping[str, Any], choice: str | Mapping[str, Any] | None) -> Self:
        """Return the architecture of a record, or that which the user named for it.

        The arguments of a record of the same kind are kept; the user's own replace them one by one.

        Raises:
            InputError: The record is of a kind that scantune knows, and the user named another.
        """
        if choice is None:
            return cls.read(recorded)
        given = cls.read({"kind": choice} if isinstance(choice, str) else choice, named=True)
        kind = recorded.get("kind")
        if kind == given.kind:
            return cls.read({**recorded, **given.record}, named=True)
        if isinstance(kind, str) and is_built_in(kind):
            raise InputError(
                f"The model's network is recorded as {kind!r}, which needs no other, but {given.kind!r} is given as "
                "its network. Leave it out."
            )
        return given

    @classmethod
    def in_place_of(cls, table: Mapping[str, Any], choice: Mapping[str, Any] | None) -> Self:
        """Return the architecture of the table [network] of a recipe, or that which the user named instead."""
        if choice is None or table.get("kind") == choice.get("kind"):
            return cls.chosen(table, choice)
        return cls.read(choice, named=True)

    @property
    def record(self) -> dict[str, Any]:
        """Return kind and arguments, as JSON."""
        return {"kind": self.kind, **self.arguments}

    def build(self) -> nn.Module:
        """Build the untrained network. The caller's random numbers are left alone.

        Raises:
            InputError: There is no such kind, the user did not name it, or it does not take the arguments.
        """
        make = self._factory()
        try:
            with torch.random.fork_rng(devices=[]):
                network = make(**self.arguments)
        except InputError:
            raise
        except Exception as error:  # whatever a factory of the user's stumbles over
            raise InputError(
                f"The network {self.kind!r} could not be built from the arguments {str(dict(self.arguments))[:300]} "
                f"({type(error).__name__}: {error_message(error)})."
            ) from error
        if not isinstance(network, nn.Module):
            raise InputError(
                f"{self.kind!r} must return a network, a torch.nn.Module, but it returned {type(network).__name__}."
            )
        return network

    def require_buildable(self) -> None:
        """Check that the network could be built, without taking memory for it.

        Raises:
            InputError: There is no such kind, or one of MONAI does not take the arguments.
        """
        if not is_built_in(self.kind):
            self._factory()
            return
        with without_memory():
            self.build()

    def _factory(self) -> Factory:
        if self.kind in ARCHITECTURES:
            return ARCHITECTURES[self.kind]
        if self.kind.startswith(MONAI):
            return partial(_monai, self.kind.removeprefix(MONAI))
        if not _IMPORTABLE.fullmatch(self.kind):
            return _installed(self.kind)
        if not self.named:
            raise InputError(
                f"The network {self.kind!r} is a function of a Python package, which is imported only if you name it: "
                f"give network={self.kind!r} (--network {self.kind} on the command line) if you trust that package."
            )
        return _imported(self.kind)


def is_built_in(kind: str) -> bool:
    """Return whether a kind is one of scantune or MONAI."""
    return kind in ARCHITECTURES or kind.startswith(MONAI)


def is_known(kind: str) -> bool:
    """Return whether a network of a kind can be built though the user does not name it."""
    return is_built_in(kind) or bool(_offers(kind))


def architecture_from_words(words: Sequence[str]) -> dict[str, Any] | None:
    """Read the words of `--network`: a kind, and its arguments as NAME=VALUE; None if there are none.

    Raises:
        InputError: They are something else.
    """
    if not words:
        return None
    if "=" in words[0]:
        raise InputError(
            f"--network begins with what makes the network, MODULE:FACTORY, and its arguments follow, but got "
            f"{words[0]!r} first."
        )
    return {**untyped_table_from_assignments(words[1:], "--network"), "kind": words[0]}


@contextmanager
def without_memory() -> Iterator[None]:
    """Build networks on the device `meta`, where weights take no memory, and only with a limited number of parts.

    Raises:
        InputError: There are more than `LARGEST_PARTS` modules and parameters.
    """
    parts = 0

    def count(_module: nn.Module, _name: str, _part: object) -> None:
        nonlocal parts
        parts += 1
        if parts > LARGEST_PARTS:
            raise InputError(f"The recorded network has more than {LARGEST_PARTS} modules and parameters.")

    hooks = register_module_module_registration_hook(count), register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"), _NumbersOnCPU():
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _NumbersOnCPU(TorchFunctionMode):
    """Computes short ranges of numbers for real, since some networks read them while they are built."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        options = dict(kwargs or {})
        if func is torch.linspace and all(isinstance(value, int | float) for value in args):
            if max(args, default=0) > LARGEST_PARTS:
                raise InputError(f"The recorded network has more than {LARGEST_PARTS} modules and parameters.")
            options.setdefault("device", "cpu")
        return func(*args, **options)


def _is_plain(value: object, depth: int = 0) -> bool:
    """Return whether a value is one that JSON has, of a sensible size."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if isinstance(value, float):
        return math.isfinite(value)
    if depth < MAX_DEPTH and isinstance(value, list | tuple):
        return len(value) <= MAX_TEXT and all(_is_plain(entry, depth + 1) for entry in value)
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(entry, depth + 1) for name, entry in value.items())
    return value is None or (isinstance(value, int) and abs(value) < 2**63)


def _monai(name: str, **arguments: Any) -> nn.Module:
    return monai_network(name, arguments)


def _offers(kind: str) -> list[EntryPoint]:
    """Return the installed entry points of a name, those that are the same once."""
    return list({point.value: point for point in entry_points(group=ENTRY_POINTS, name=kind)}.values())


def _installed(kind: str) -> Factory:
    """Return the factory of an installed entry point."""
    found = _offers(kind)
    if not found:
        names = [*ARCHITECTURES, *(MONAI + name for name in MONAI_NETWORKS), *entry_points(group=ENTRY_POINTS).names]
        raise InputError(
            f"The network is of kind {kind[:100]!r}, which is neither built in nor offered by an installed package: "
            f"give network= (--network on the command line), what makes it as 'package.module:factory', or in Python "
            f"an instance of the network it was trained as. Available by name: {', '.join(dict.fromkeys(names))}."
        )
    if len(found) > 1:
        raise InputError(
            f"Several installed packages offer a network {kind!r}: {', '.join(point.value for point in found)}. Name "
            "one of these with network= (--network on the command line)."
        )
    try:
        return found[0].load()  # type: ignore[no-any-return]
    except Exception as error:  # whatever a foreign package does when it is imported
        raise InputError(
            f"The network {kind!r} is offered by {found[0].value}, which cannot be imported ({type(error).__name__}: "
            f"{error_message(error)}). Install that package again."
        ) from error


def _imported(kind: str) -> Factory:
    """Import the factory `package.module:factory` that the user named."""
    here = str(Path.cwd())  # a console script does not find modules here, as `python -m` does
    if here not in sys.path:
        sys.path.append(here)
    module, _, name = kind.partition(":")
    try:
        factory: Any = importlib.import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
    except Exception as error:  # whatever a foreign module does when it is imported
        raise InputError(
            f"The network {kind!r} cannot be imported ({type(error).__name__}: {error_message(error)}). It is a module "
            f"that Python finds, here or installed, then a colon, then a function in it."
        ) from error
    if not callable(factory):
        raise InputError(f"{kind!r} must be a function that returns a network, but it is {type(factory).__name__}.")
    return factory  # type: ignore[no-any-return]
