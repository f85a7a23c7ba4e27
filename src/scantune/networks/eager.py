"""Eager networks: what is given as a network must be a module whose layers can be looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scantune.errors import InputError, error_message

EAGER = "give the eager network that it was made from, whose layers can be looked at."
FROZEN = f"is a frozen graph of TorchScript or torch.export: {EAGER}"


def eager_network(network: Any) -> nn.Module:
    """Return a network without the wrapper of `torch.compile`.

    Raises:
        InputError: It is no network, a frozen graph, or has no weights.
    """
    eager = unfrozen(network)
    if next(_tensors(eager), None) is None:
        kind = type(eager).__name__
        raise InputError(f"The network ({kind}) has no weights in PyTorch, as a module around an ONNX file: {EAGER}")
    return eager


def unfrozen(network: Any) -> nn.Module:
    """Return a network without the wrapper of `torch.compile`, with or without weights.

    Raises:
        InputError: It is no network, or a frozen graph.
    """
    kind = type(network).__name__
    if isinstance(network, torch.export.ExportedProgram):
        raise InputError(f"The network ({kind}) {FROZEN}")
    if not isinstance(network, nn.Module):
        loading = f" Load it first: scantune.load({str(network)!r})." if isinstance(network, str | Path) else ""
        raise InputError(f"The network must be a torch.nn.Module or a scantune.Model, but is a {kind}.{loading}")
    eager = getattr(network, "_orig_mod", network)
    assert isinstance(eager, nn.Module)
    if any(map(_is_frozen, eager.modules())):
        raise InputError(f"The network ({kind}) {FROZEN}")
    return eager


def copied(network: Any) -> nn.Module:
    """Return an eager copy of a network.

    Raises:
        InputError: It is no network, a frozen graph, or cannot be copied.
    """
    eager = eager_network(network)
    try:
        return deepcopy(eager)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"The network ({type(eager).__name__}) cannot be copied ({error_message(error)}). Keep no tensors with a "
            "gradient's history, open files or locks among its attributes."
        ) from error


@contextmanager
def in_evaluation(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and each of its modules back into its own mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _is_frozen(module: nn.Module) -> bool:
    """Return True for TorchScript, and for graphs that call functions alone, as those of `torch.export`."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    if not isinstance(module, torch.fx.GraphModule):
        return False
    called = [module.get_submodule(str(node.target)) for node in module.graph.nodes if node.op == "call_module"]
    return not any(next(_tensors(each), None) is not None for each in called)


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
