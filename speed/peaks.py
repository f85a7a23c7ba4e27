"""Peak memory of a step."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from setup import WARM, Ground, Row

from scantune.runtime.devices import peak_memory_mb


def memory(on: Ground) -> Iterator[Row]:
    """Peak memory of a step; on a CPU of the process, in one of its own."""
    for slices in (16,) if on.quick else (16, 48, 160):
        what = f"peak memory of a step, {slices} x {on.size} x {on.size}"
        yield what, _on_gpu(on, slices) if on.device.type == "cuda" else _of_process(on, slices)


def _on_gpu(on: Ground, slices: int) -> str:
    images, _ = on.scan("spgr-1.5T", slices, on.size)
    work = on.step(on.network, on.prior, images)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM + 1):
        work()
    return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"


def _of_process(on: Ground, slices: int) -> str:
    script = str(Path(__file__).with_name("speed.py"))
    words = [sys.executable, script, "--only", "peak", "--slices", str(slices), "--size", str(on.size)]
    done = subprocess.run([*words, "--device", str(on.device)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def peak(on: Ground) -> Iterator[Row]:
    """Of this process."""
    images, _ = on.scan("spgr-1.5T", on.slices, on.size)
    on.step(on.network, on.prior, images)()
    # Not the one that getrusage tells, which a process takes over from the one that has started it.
    yield "", f"{1e3 * peak_memory_mb(on.device) / 2**20:.1f} GiB"
