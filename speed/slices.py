"""What it changes to adapt to some slices of a long scan instead of all of them: time, energy and Dice.

    python speed/slices.py [--device cuda] [--slices 160] [--some 16 32 48 64] [--people 1] [--out FILE]

Scans of the cohort `contrasts`, of people that no result is reported of (`--seed`), adapted to by the bundled `brain`.
Steps see some slices at equal distances; energy and Dice are of all slices. With --free also without the guard, which
shows the most that can differ. On a GPU every run is done twice, the first one for its kernels. On a CPU times are
processor times.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

import scantune
from scantune.adaptation.guard.stability import agreements
from scantune.simulate import COHORTS


@dataclass(frozen=True)
class Run:
    """What came of one adaptation; energy and Dice are of all slices."""

    centre: str
    some: int
    guard: bool
    seconds: float
    energy: float
    dice: float
    decision: str


def runs(arguments: argparse.Namespace, centre: str, person: int) -> Iterator[Run]:
    """Every number of slices of one scan, under the guard and maybe without it."""
    model, device = scantune.load("brain"), torch.device(arguments.device)
    cases = COHORTS["contrasts"].cases(
        centre,
        "test",
        seed=arguments.seed,
        start=person,
        count=person + 1,
        slices=arguments.slices,
        device=device,
    )
    prepared = model.backend.prepare(next(cases))
    images, labels = prepared.volume, prepared.reference
    assert labels is not None
    tick = time.perf_counter if device.type == "cuda" else time.process_time
    for guard in (True, False) if arguments.free else (True,):
        for some in (*arguments.some, len(images)):
            settings = {"guard": guard, "device": device, "mask": prepared.padding, "options": {"slices": some}}
            for _ in range(2 if device.type == "cuda" else 1):
                start = tick()
                result = scantune.adapt(model, images, **settings)
                took = tick() - start
            assert result.energy_after is not None
            dice = fmean(agreements(result.prediction, labels, int(labels.max())))
            yield Run(centre, some, guard, took, result.energy_after, dice, result.decision.action)


def table(found: Sequence[Run]) -> list[str]:
    """A row per number of slices: means over scans, and how far single Dice are from those with all slices."""
    every = max(run.some for run in found)
    whole = [run for run in found if run.some == every]
    lines = ["| slices | seconds | energy | Dice | less Dice with all | farthest | other decisions |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for some in dict.fromkeys(run.some for run in found):
        these = [run for run in found if run.some == some]
        apart = [run.dice - other.dice for run, other in zip(these, whole, strict=True)]
        others = sum(run.decision != other.decision for run, other in zip(these, whole, strict=True))
        lines.append(
            f"| {some if some < every else f'all {every}'} | {fmean(run.seconds for run in these):.2f} | "
            f"{fmean(run.energy for run in these):.4f} | {fmean(run.dice for run in these):.4f} | "
            f"{fmean(apart):+.4f} | {max(apart, key=abs):+.4f} | {others} of {len(these)} |"
        )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--slices", type=int, default=160)
    parser.add_argument("--some", type=int, nargs="+", default=[16, 32, 48, 64])
    parser.add_argument("--centres", nargs="+", default=list(COHORTS["contrasts"].centres))
    parser.add_argument("--people", type=int, default=1)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--free", action="store_true", help="without the guard, too")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no scan after so many")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    begun, found = time.perf_counter(), list[Run]()
    for person in range(given.people):
        for centre in given.centres:
            if time.perf_counter() - begun < given.seconds:
                found += runs(given, centre, person)
                print(f"{centre}: {time.perf_counter() - begun:.0f} s", flush=True)
    where = torch.cuda.get_device_name() if given.device == "cuda" else "CPU, processor time"
    lines = [f"By `python speed/slices.py {' '.join(sys.argv[1:])}`:"]
    lines += [f"{datetime.date.today()}, {where}, torch {torch.__version__}; {given.slices} slices of 208 x 176"]
    for guard in sorted({run.guard for run in found}, reverse=True):
        lines += [
            "",
            "By default:" if guard else "Without the guard:",
            "",
            *table([r for r in found if r.guard == guard]),
        ]
    lines += ["", "| scan of | slices | guard | seconds | energy | Dice | decision |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {run.centre} | {run.some} | {'yes' if run.guard else 'no'} | {run.seconds:.2f} | {run.energy:.4f} | "
        f"{run.dice:.4f} | {run.decision} |"
        for run in found
    ]
    print("\n".join(lines))
    if given.out:
        given.out.write_text("\n".join(["# Speed: some slices of long scans", "", *lines, ""]), encoding="utf-8")
