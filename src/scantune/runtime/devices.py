"""Devices: their choice, reproducible computation on them, and the peak memory of a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from scantune.errors import InputError

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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


def reset_peak_memory(device: torch.device) -> None:
    """Start a new measurement; on a CPU this works only on a Linux that allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory in MB since `reset_peak_memory`, or of the whole process if that was not possible."""
    if device.type != "cuda" and _STATUS.exists():
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) / 1e3
    return peak_memory_mb_of_process(device.type)


def peak_memory_mb_of_process(device: str) -> float:
    """Return the peak memory of this process on a device, in MB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
