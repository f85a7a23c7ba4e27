"""One forward pass on a slice that shows whether a network takes a scan, and whether its answer can be read."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from scantune.errors import InputError, is_out_of_memory
from scantune.networks import task_network
from scantune.scans.volume import Volume
from scantune.tasks.outputs import OutputChoice, described, main_output

MULTIPLES = (2, 4, 8, 16, 32, 64)
"""What sizes may have to be divisible by: pooling halves them, up to six times."""


class AnswerError(InputError):
    """A network fails on images, or gives something else than class scores of their size."""


def padded_for(network: nn.Module, volume: Volume, choice: OutputChoice = None) -> Volume:
    """Return a volume that a network takes: itself, or padded to sizes that are divisible by a power of two.

    Args:
        network: The network, in evaluation mode.
        volume: Slices of a scan.
        choice: Where the class scores are in the network's output.

    Raises:
        InputError: The network takes none of these, or its output cannot be read.
    """
    first = replace(volume, images=volume.images[:1], padding=None, reference=None, chosen=None)
    try:
        require_answer(network, first.images, choice)
    except AnswerError as refusal:
        tried = {tuple(first.images.shape)}
        for multiple in MULTIPLES:
            larger = first.padded(multiple)
            if tuple(larger.images.shape) in tried:
                continue
            tried.add(tuple(larger.images.shape))
            if _answers(network, larger.images, choice):
                return volume.padded(multiple)
        raise refusal
    return volume


@torch.no_grad()
def require_answer(network: nn.Module, images: Tensor, choice: OutputChoice = None) -> None:
    """Run a network on images `(slices, channels, *spatial)` and check what it gives.

    Raises:
        InputError: It fails, or gives something else than class scores of the same size.
    """
    name = type(task_network(network)).__name__
    try:
        output = network(images)
    except Exception as error:  # of any kind, from the code of a network
        if isinstance(error, InputError) or is_out_of_memory(error):
            raise
        kind = str(images.dtype).removeprefix("torch.")
        raise AnswerError(
            f"The network ({name}) fails on an input of shape {tuple(images.shape)}, {kind}: "
            f"{type(error).__name__}: {_first_line(error)}. Give scans as it was trained on: "
            "(slices, channels, height, width), or (1, channels, depth, height, width) for a 3D network."
        ) from error
    values = main_output(output, choice)
    if values.ndim == images.ndim and len(values) == len(images) and values.shape[2:] == images.shape[2:]:
        return
    size = " x ".join(map(str, images.shape[2:]))
    found = described(output) if choice is None else f"{described(values)}, chosen by output=,"
    raise AnswerError(
        f"The network ({name}) gives {found} for an input of shape {tuple(images.shape)}, expected class scores "
        f"({len(images)}, classes, {', '.join(map(str, images.shape[2:]))}), one for each pixel of {size}. Choose "
        "another part by output=, a key, an index or a function of the output, or resample it in the network."
    )


def _answers(network: nn.Module, images: Tensor, choice: OutputChoice) -> bool:
    try:
        require_answer(network, images, choice)
    except AnswerError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
