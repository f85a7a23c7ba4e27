"""Kernels: faster programs for operations that PyTorch computes in many passes over memory.

The Triton programs have plain twins in PyTorch, which run if `usable` returns False; tests compare the two.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["usable"]


def usable(tensor: Tensor) -> bool:
    """Return whether kernels can take a tensor; compilers fuse the plain twins themselves."""
    return tensor.is_cuda and not torch.compiler.is_compiling() and works(tensor.device)


@cache
def works(device: torch.device) -> bool:
    """Return whether a first kernel gives the right result.

    Triton or its C compiler may be missing, or the GPU too old.
    """
    if find_spec("triton") is None:
        return False
    from scantune.kernels.triton.bump import bump

    one = torch.ones(1, device=device)
    try:
        return bool(torch.isclose(bump(one.view(1, 1, 1, 1), one).view(1), torch.exp(-one)))
    except Exception:  # whatever a compiler may fail with, there is another way
        return False
