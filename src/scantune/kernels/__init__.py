"""Kernels: programs of our own for what a GPU would do in many passes over its memory.

Each has a plain twin in PyTorch, which is what runs on a CPU, and where Triton is missing; tests hold them to it.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["usable"]


def usable(tensor: Tensor) -> bool:
    """Whether kernels can take a tensor; compilers fuse the plain twins themselves."""
    return tensor.is_cuda and not torch.compiler.is_compiling() and _present()


@cache
def _present() -> bool:
    return find_spec("triton") is not None
