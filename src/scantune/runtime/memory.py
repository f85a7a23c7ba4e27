"""The most memory that one job of a process held, where the process has done others before."""

from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Forget what was held before; on a CPU this takes a Linux that lets processes do so."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_memory_mb(device: torch.device) -> float:
    """The most memory since `reset_peak_memory`, or since the process began where that was not possible, in MB."""
    if device.type != "cuda" and _STATUS.exists():
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) / 1e3
    return peak_memory_mb_of_process(device.type)


def peak_memory_mb_of_process(device: str) -> float:
    """The most memory this process has held on the device, in MB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
