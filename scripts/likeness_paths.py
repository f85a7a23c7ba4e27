"""What the guard of registrations could know, and what it could not, at every step of unguarded adaptations.

    python scripts/likeness_paths.py MODEL --split validation --out paths.jsonl [--count 2] [--slices 6]

Of every scan of the cohort `registration` and every run a line: likeness of atlas and scan, folding, roughness,
agreement with the source's registration, and Dice against the reference, step by step. `likeness_rules.py` plays rules
back on these lines. With `--slices` at most so many of a scan are used, evenly spaced. `--seed` gives other people.
"""

import argparse
import json
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import scantune
from scantune.adaptation.guard.similarity import SimilarityReading
from scantune.adaptation.guard.stability import agreements
from scantune.adaptation.loop import Schedule, optimise
from scantune.adaptation.prediction import predict
from scantune.adaptation.sampling import WholeVolume
from scantune.adaptation.solvers import LBFGS
from scantune.methods import METHODS, ModelParts
from scantune.model.model import Model
from scantune.networks import set_memory_layout
from scantune.scans.volume import Volume
from scantune.simulate import COHORTS

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run that is followed.

    Args:
        method: Name of the method.
        steps: Quasi-Newton steps.
        options: Options of the method.
        every: Every how many steps it is looked at.
    """

    method: str
    steps: int = 12
    options: tuple[tuple[str, float], ...] = ()
    every: int = 1


RUNS = {
    "instance": Run("instance"),
    "instance, unsmooth": Run("instance", 40, (("smoothness", 0.0),), 4),
    "foe-cnn-pca": Run("foe-cnn-pca"),
    "batchnorm": Run("batchnorm"),
}


@torch.no_grad()
def look(model: Model, network: nn.Module, scan: Volume, reference: Tensor, source: Tensor) -> Row:
    """Return the readings of a network's registration of a scan, and its Dice."""
    structures = len(model.labels)
    labels = torch.cat([model.task.predict(network(part.images)) for part in scan.batches(8)])
    seen = SimilarityReading.of(network, scan, model.task, source, structures, model.network.channels)
    return {"dice": agreements(labels, reference, structures), "resemblance": vars(seen)}


def follow(model: Model, scan: Volume, reference: Tensor, run: Run) -> list[Row]:
    """Return a row for every step that is looked at, the source network's first."""
    method = METHODS[run.method](ModelParts(model.task, model.prior, model.helpers), dict(run.options))
    network = method.equip(deepcopy(model.network), scan).requires_grad_(False)
    source = predict(model.network, scan, model.task, None).labels
    path = {0: look(model, model.network, scan, reference, source)}

    def note(step: int, _steps: int) -> None:
        # The loop reports evaluations from 1; the row of the trace is one less.
        if (step - 1) % run.every == 0 and step > 1:
            path[step - 1] = look(model, network, scan, reference, source)

    course = optimise(network, method, scan, Schedule(WholeVolume(), LBFGS(), run.steps), 0, note)
    path[len(course.trace) - 1] = look(model, network, scan, reference, source)
    return [{**course.trace[number], **path[number]} for number in sorted(path)]


def prepared(model: Model, case: scantune.Case, slices: int) -> tuple[Volume, Tensor]:
    """Return at most so many slices of a scan, evenly spaced, and their reference; 0 for all."""
    ready = model.backend.prepare(case)
    assert ready.reference is not None
    number = len(ready.volume)
    chosen = torch.linspace(0, number - 1, min(slices or number, number)).round().long()
    padding = None if ready.padding is None else ready.padding[chosen]
    images = ready.volume[chosen].to(memory_format=torch.channels_last)
    return Volume(images, padding, ready.distance), ready.reference[chosen]


def main(given: argparse.Namespace) -> None:
    """Follow the runs on all people that were asked for."""
    torch.set_num_threads(1)
    model, cohort = scantune.load(given.model), COHORTS["registration"]
    model.network.eval()
    set_memory_layout(model.network, "channels last")
    with given.out.open("a") as file:
        for number, centre in product(range(given.count), cohort.centres):
            picked = {"seed": given.seed, "start": number, "count": number + 1, "slices": given.slices or None}
            (case,) = cohort.cases(centre, given.split, **picked)
            scan, reference = prepared(model, case, given.slices)
            for name in given.runs:
                path = follow(model, scan, reference, RUNS[name])
                row = {"model": Path(given.model).stem, "subject": case.name, "run": name, "path": path}
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(case.name, name, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--slices", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--out", type=Path, required=True)
    main(parser.parse_args())
