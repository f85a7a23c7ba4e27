"""Compare the path of version 0.1 with that of the default: energy and Dice step by step.

    python speed/criteria/paths.py FOLDER [--most 3] --out results/assessment-paths.md

FOLDER is that of `run.py`. Version 0.1 took quasi-Newton steps (L-BFGS), as `fast` does without a guard; the default
takes bounded steps. Of each development network the first scans that fail are taken.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rows import Line
from subjects import Scan, Trial
from toy_trials import toy_trials

import scantune
from scans import FAILING
from scantune.model.model import Model
from scantune.prior.label_readings import overlaps

OLD_STEPS = (1, 2, 4, 8, 12)
"""Steps of the older path that are looked at."""


@dataclass(frozen=True)
class Course:
    """What happens along one path.

    Args:
        rise: The highest energy on the way, as a multiple of that at the start.
        lowest: The lowest Dice of the stages that were looked at.
        end: The Dice at the end.
        best: The best Dice of these stages.
    """

    rise: float
    lowest: float
    end: float
    best: float

    @classmethod
    def of(cls, energies: Sequence[float], dices: Sequence[float]) -> "Course":
        """Summarise energies of all steps and Dice of some stages; the first of each is that of the source network."""
        return cls(max(energies) / energies[0], min(dices[1:]), dices[-1], max(dices[1:]))


def dice_of(result: Any, scan: Scan, structures: int) -> float:
    """Return the mean Dice of a result."""
    assert scan.prepared.reference is not None
    return fmean(overlaps(torch.as_tensor(result.prediction), scan.prepared.reference, structures))


def older_path(model: Model, scan: Scan, before: float) -> Course:
    """Return the path of version 0.1, by runs of growing length."""
    runs = [scantune.adapt(model, scan.given, guard=False, steps=steps, device="cpu") for steps in OLD_STEPS]
    dices = [before, *(dice_of(run, scan, len(model.labels)) for run in runs)]
    return Course.of([step["cnn"] for step in runs[-1].trace], dices)


def newer_path(stages: Sequence[Line]) -> Course:
    """Return the path of the default, whose stages `run.py` has measured."""
    return Course.of([line["energies"]["product"] for line in stages], [fmean(line["dice"]) for line in stages])


def lines_of(trial: Trial, folder: Path, most: int) -> Iterator[tuple[str, Course, Course]]:
    """Yield the name and both paths of the first scans of a trial that fail and start as they are."""
    file = folder / trial.name / "rows.jsonl"
    if not file.exists():
        return
    _, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    failing = [line for line in lines if fmean(line["stages"][0]["dice"]) < FAILING and line["shift"] != "invert"]
    model = trial.fit(trial.train())
    for line in failing[:most]:
        scan = trial.scan(line["person"], line["shift"])
        before = fmean(line["stages"][0]["dice"])
        yield f"{trial.name}, {line['shift']}", older_path(model, scan, before), newer_path(line["stages"])


def page(found: Sequence[tuple[str, Course, Course]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Paths of adaptations, before and now\n"
    stages = ", ".join(map(str, OLD_STEPS))
    yield "By `python speed/criteria/paths.py`: failing scans of development networks. *Rise* is the highest energy on"
    yield f"the way, as a multiple of that at the start. Dice is of stages {stages} of 12 quasi-Newton steps (L-BFGS),"
    yield "and of the stages of 32 bounded steps that the default looks at.\n"
    yield "| scan | L-BFGS: rise | lowest Dice | best | end | bounded: rise | lowest Dice | best | end |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, *both in found:
        cells = [f"{path.rise:.1f} | {path.lowest:.2f} | {path.best:.2f} | {path.end:.2f}" for path in both]
        yield f"| {name} | {' | '.join(cells)} |"
    cells = []
    for which in (1, 2):
        means = (fmean(getattr(row[which], part) for row in found) for part in ("lowest", "best", "end"))
        rise = median(row[which].rise for row in found)
        cells.append(f"{rise:.1f} | {' | '.join(f'{value:.3f}' for value in means)}")
    yield f"| mean of {len(found)}, median of rises | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=3, help="scans of a network")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    trials = [trial for trial in toy_trials(given.folder) if trial.group == "development"]
    found = [line for trial in trials for line in lines_of(trial, given.folder, given.most)]
    given.out.write_text("\n".join([*page(found), ""]), encoding="utf-8")
