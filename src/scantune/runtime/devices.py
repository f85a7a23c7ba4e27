"""Where the numbers are crunched, and that they come out the same each time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from scantune.errors import InputError


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Ask for deterministic convolutions, and give the caller's global generators back as they were."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            cudnn.deterministic, cudnn.benchmark = True, False
            yield
        finally:
            cudnn.deterministic, cudnn.benchmark = before


def find_device(name: str) -> torch.device:
    """The device of a name, or of `auto`: a GPU where there is one.

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
