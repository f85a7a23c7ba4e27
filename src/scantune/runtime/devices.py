"""Devices, and reproducible computation on them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from scantune.errors import InputError


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Ask for deterministic convolutions, and restore the caller's global generators at the end."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            cudnn.deterministic, cudnn.benchmark = True, False
            yield
        finally:
            cudnn.deterministic, cudnn.benchmark = before


def find_device(name: str) -> torch.device:
    """Return the device of a name; `auto` is a GPU if there is one.

    Raises:
        InputError: This machine has no such device.
    """
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        found = f"only {', '.join(gpus)}" if gpus else "no GPU"
        raise InputError(
            f"The device {name} is not available, as PyTorch finds {found} on this machine; use "
            f"{', '.join(['auto', *gpus])} or cpu."
        ) from error
    return device
