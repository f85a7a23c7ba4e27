"""Peak memory of one job in a process that has done others before."""

from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
