"""Criteria of predictions without labels: adapt networks to shifted scans, and measure every stage.

    python speed/criteria/run.py FOLDER [--only NAME ...] [--part 0/2] [--guard]
    python speed/criteria/summary.py rows FOLDER --out results/assessment.csv
    python speed/criteria/summary.py page results/assessment.csv --out results/assessment.md

FOLDER keeps networks, the stages of adaptations and what was measured of them. What is there is not made again, so a
run that ended goes on. Each scan is adapted as `scantune.adapt` does by default. Only one thing differs: a fine scan is
taken along its path, too, before it is left alone, so that there are stages to judge. `--part 0/2` is the first of two
parts, for two processes. `--guard` also adapts by the guard of priors without home readings. The newborns and lesions
need SCANTUNE_DATA.
"""

import argparse
from pathlib import Path

import torch
from cohort_trials import cohort_trials
from lesion_trials import lesion_trials
from measure import measure, measured
from newborn_trials import newborn_trials
from record import older_guard, recorded
from subjects import Trial
from toy_trials import toy_trials

from scantune.model.model import Model


def adapt(trial: Trial, model: Model, folder: Path) -> None:
    """Adapt to all scans of a trial that have not been adapted to."""
    for pair in trial.scans:
        place = folder / trial.name / f"{'-'.join(pair)}.pt"
        if not place.exists():
            path, result = recorded(model, trial.scan(*pair))
            place.parent.mkdir(parents=True, exist_ok=True)
            torch.save(vars(path), place)
            print(trial.name, *pair, path.verdict, path.action, f"{result.seconds:.0f} s", flush=True)


def guard(trial: Trial, model: Model, folder: Path) -> None:
    """Adapt to all scans of a trial by the guard of priors without home readings."""
    for pair in trial.scans:
        place = folder / trial.name / f"{'-'.join(pair)}-guard.pt"
        if not place.exists():
            result = older_guard(model, trial.scan(*pair))
            torch.save({"labels": result.adapted.labels, "action": result.decision.action}, place)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--guard", action="store_true")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    torch.set_num_threads(1)
    trials = [*toy_trials(given.folder), *cohort_trials(given.folder)]
    trials += [*newborn_trials(given.folder), *lesion_trials(given.folder)]
    chosen = [trial for trial in trials if not given.only or trial.name in given.only][part::parts]
    for trial in chosen:
        if measured(trial, given.folder):
            continue
        model = trial.fit(trial.train())
        adapt(trial, model, given.folder)
        if given.guard:
            guard(trial, model, given.folder)
        measure(trial, model, given.folder)


if __name__ == "__main__":
    main()
