"""How a network's weights lie in memory."""

from typing import Literal

import torch
from torch import nn

MemoryLayout = Literal["channels first", "channels last"]

CHANNELS_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def set_memory_layout(network: nn.Module, layout: MemoryLayout) -> None:
    """Lay out convolution weights in place, and so the features; numbers change by rounding only.

    Channels last is the faster layout for convolutions, on CPUs and GPUs, and for sums over all pixels.
    """
    for parameter in network.parameters():
        if parameter.ndim in CHANNELS_LAST_FORMATS:
            last = layout == "channels last"
            kind = CHANNELS_LAST_FORMATS[parameter.ndim] if last else torch.contiguous_format
            # A copy, because with one channel the two layouts are the same to PyTorch, but not to its convolutions.
            parameter.data = torch.empty_like(parameter, memory_format=kind).copy_(parameter.data)
