"""The tensor that counts in what a network gives: chosen by a key, an index or a function, or found by its name."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from scantune.errors import InputError, error_message

OutputChoice = str | int | Callable[[Any], Any] | None
"""Key of a dictionary, index of a tuple or list, a function of the raw output, or None to look for the usual names."""

OUTPUT_NAMES = ("out", "logits", "pred")
"""Keys that class scores have in dictionaries, as of torchvision, transformers and MONAI."""

MOST_SHOWN = 6
"""Most entries of an output that a message lists."""


def main_output(output: Any, choice: OutputChoice = None) -> Tensor:
    """Return the tensor with class scores in the raw output of a network.

    Args:
        output: A tensor, a dictionary with one of `OUTPUT_NAMES`, or a tuple or list that starts with one of them.
        choice: Where the tensor is instead.

    Raises:
        InputError: It is not there.
    """
    if callable(choice):
        found = _by_function(output, choice)
    elif choice is None:
        found = _usual(output)
    else:
        found = _entry(output, choice)
    while isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        raise InputError(
            f"The network gives {described(output)}, expected a tensor, a tuple that starts with one, or a dictionary "
            f"with {', '.join(OUTPUT_NAMES[:-1])} or {OUTPUT_NAMES[-1]}. Say where the class scores are: output= takes "
            "a key, an index or a function of the output."
        )
    return found


def described(output: Any) -> str:
    """Describe a raw output for a message: kinds, names and shapes."""
    if isinstance(output, Tensor):
        return f"a tensor {tuple(output.shape)}"
    if isinstance(output, Mapping):
        return f"a dictionary of {_listed([f'{key}: {_brief(value)}' for key, value in output.items()])}"
    if isinstance(output, tuple | list):
        return f"a {'tuple' if isinstance(output, tuple) else 'list'} of {_listed([_brief(each) for each in output])}"
    return type(output).__name__


def _usual(output: Any) -> Any:
    if isinstance(output, Mapping):
        return next((output[name] for name in OUTPUT_NAMES if name in output), None)
    return output


def _by_function(output: Any, choose: Callable[[Any], Any]) -> Any:
    try:
        return choose(output)
    except Exception as error:  # of any kind, from the user's function
        raise InputError(
            f"The function output= fails ({type(error).__name__}: {error_message(error)}). The output of the network "
            f"is {described(output)}."
        ) from error


def _entry(output: Any, choice: str | int) -> Any:
    """Return an entry of a dictionary, tuple or list, or a named part of another object."""
    try:
        if isinstance(output, Mapping) or (isinstance(choice, int) and not isinstance(output, Tensor)):
            return output[choice]
        return getattr(output, str(choice))
    except (LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"The output of the network has no {choice!r}: it is {described(output)}. Give another output=."
        ) from error


def _brief(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _listed(parts: list[str]) -> str:
    if not parts:
        return "nothing"
    shown = ", ".join(parts[:MOST_SHOWN])
    return shown if len(parts) <= MOST_SHOWN else f"{shown} and {len(parts) - MOST_SHOWN} more"
