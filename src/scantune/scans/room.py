"""Room for a volume: what reading it takes is judged by its header, before anything is unpacked."""

from __future__ import annotations

import math
import resource
from pathlib import Path

from scantune.errors import ScanError

LARGEST_VOLUME = 2**30
"""Largest number of voxels of a volume, as of 1024 x 1024 x 1024. A small compressed file may claim any number."""

COPY_BYTES = 4
"""Bytes of a voxel in the copy that everything is computed with, beside the voxel as it is stored."""

_MEMORY, _OWN_MEMORY = Path("/proc/meminfo"), Path("/proc/self/statm")


def require_room(path: Path | str, shape: tuple[int, ...], voxel_bytes: int = 1) -> None:
    """Check that a volume is of a size that scans have, and that the memory holds it.

    Args:
        path: Where it comes from, for messages.
        shape: Shape of the volume by its header.
        voxel_bytes: Bytes of a voxel as it is stored; 1 if they are unknown.

    Raises:
        ScanError: It has too many voxels, or takes more memory than is free.
    """
    voxels = math.prod(shape)
    if voxels > LARGEST_VOLUME:
        raise ScanError(
            f"{path} must have at most {LARGEST_VOLUME} voxels, but its header gives the shape {tuple(shape)}. Crop or "
            "resample it first, or repair the header."
        )
    needed, free = voxels * (voxel_bytes + COPY_BYTES), free_memory()
    if free is not None and needed > free:
        raise ScanError(
            f"{path} of shape {tuple(shape)} takes {_gigabytes(needed)} of memory, but only {_gigabytes(free)} are "
            "free. Crop or resample it first, close other programs, or use a computer with more memory."
        )


def free_memory() -> int | None:
    """Return the bytes of memory that this process may still take, or None if the system does not say."""
    if not (_MEMORY.exists() and _OWN_MEMORY.exists()):
        return None
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines() if ":" in line)
    available = lines.get("MemAvailable", "").split()
    free = [int(available[0]) * 1024] if available else []
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        used = int(_OWN_MEMORY.read_text().split()[0]) * resource.getpagesize()
        free.append(max(most - used, 0))
    return min(free, default=None)


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
