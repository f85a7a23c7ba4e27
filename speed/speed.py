"""How fast adaptation is, in one table: steps, time to the objective, memory, training, whole scans, and how they grow.

    python speed/speed.py [--quick] [--device cpu] [--slices 16] [--paper-steps 1000] [--out results/speed.md]

Everything is compared with the plain rendering of the same objective (tests/plain.py) in the same run. The network is
the bundled `brain`, the scan a simulated one of its cohort, stretched to the size that is asked for. Seeds are fixed.
Times are wall times, the best of a few; --clock processor gives processor time, which other work on the machine
disturbs less. --quick is for a look: smaller scans, fewer repetitions, 20 steps of the paper.
"""

import argparse
import datetime
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from agreement import dice
from peaks import memory, peak
from setup import Ground, Row
from stepping import growth, objective, steps
from throughput import scans, training

PARTS: dict[str, Callable[[Ground], Iterator[Row]]] = {
    "steps": steps,
    "objective": objective,
    "dice": dice,
    "memory": memory,
    "scans": scans,
    "training": training,
    "growth": growth,
    "peak": peak,
}
"""What is measured, by name; `peak` is of a process that `memory` starts."""


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = models[0].split(":")[1].strip() if models else platform.processor()
    return f"{name}, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--slices", type=int, default=16)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--paper-steps", type=int)
    parser.add_argument("--centre", default="spgr-1.5T", help="whose scan `objective` is of")
    parser.add_argument("--person", type=int, default=0, help="of the centre's people")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=[part for part in PARTS if part != "peak"])
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    chosen.paper_steps = chosen.paper_steps or (20 if chosen.quick else 1000)
    ground = Ground(chosen)
    head = [
        f"{datetime.date.today()}, {device_name(ground.device)}, torch {torch.__version__}, {chosen.clock} time",
        "",
    ]
    lines = [f"By `python speed/speed.py {' '.join(sys.argv[1:])}`:", *head, "| what | |", "|---|---|"]
    for part in chosen.only:
        start = ground.now()
        for what, figure in PARTS[part](ground):
            lines.append(f"| {what} | {figure} |")
            print(f"{what}: {figure}" if what else figure, flush=True)
            if chosen.out:  # a run that is stopped leaves what it has measured
                chosen.out.write_text("# Speed\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
        if part != "peak":
            print(f"({part} took {ground.now() - start:.0f} s)", flush=True)
