"""Time of a whole head and of a fit, beside what is allowed on two processor cores.

    python speed/budget.py [--only head fit] [--out results/speed-budget.md]

A head of 145 slices, about 1 mm apart, at the training site and at a centre of another contrast, goes through
`scantune adapt` from file to page, by the bundled model. Then a prior is fitted to 20 simulated people of 40 slices of
192 x 192, 8 of whom the network was not trained on, and its assessment is calibrated on these. The work is done in
processes of their own. Where other work is on the machine, wall time says little: the time of two free cores lies
between half of the processor time and all of it.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

HEAD_SLICES, HEAD_SEED = 145, 29
CENTRES = {"source-3T-mprage": 45, "ir-3T": 120}
"""Centres of the heads, and the seconds that are allowed."""

PEOPLE, HELD_OUT, SLICES, SIDE = 20, 8, 40, 192
PRIOR_SECONDS, CALIBRATION_SECONDS = 120, 600


@dataclass(frozen=True)
class Timing:
    """What a piece of work took.

    Args:
        what: Its name.
        came: What came of it.
        wall: Seconds by the clock.
        processor: Seconds of all processor cores.
        allowed: Most seconds on two cores.
    """

    what: str
    came: str
    wall: float
    processor: float
    allowed: float

    def row(self) -> str:
        """Return a row of the table."""
        return f"| {self.what} | {self.came} | {self.wall:.0f} | {self.processor:.0f} | {self.allowed:.0f} |"


def timed(what: str, allowed: float, work: Callable[[], str]) -> Timing:
    """Do a piece of work, which tells what came of it."""
    wall, processor = time.perf_counter(), processor_seconds()
    came = work()
    return Timing(what, came, time.perf_counter() - wall, processor_seconds() - processor, allowed)


def processor_seconds() -> float:
    """Return the seconds of all processor cores that this process took, and others that it started."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def head(centre: str) -> list[Timing]:
    """Adapt to a head of a centre by the command."""
    from scantune.cli import main as cli
    from scantune.scans.io import write_image
    from scantune.simulate import COHORTS

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cohort = COHORTS["contrasts"]
        (case,) = cohort.cases(centre, "test", seed=HEAD_SEED, count=1, slices=HEAD_SLICES)
        scan, out = folder / "head.nii.gz", folder / "out"
        write_image(scan, case.image, case)

        def adapt() -> str:
            if code := cli.main(["adapt", str(scan), "--model", "brain", "--out", str(out), "--workers", "1"]):
                raise SystemExit(code)
            return _decision(out)

        return [timed(f"head, {centre}", CENTRES[centre], adapt)]


def _decision(out: Path) -> str:
    """Return the decision that a manifest tells."""
    (scan,) = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["scans"].values()
    return str(scan["decision"])


def fit() -> list[Timing]:
    """Fit and calibrate the prior of a network whose pictures are of another size."""
    import scantune
    from scantune.adaptation.calibration.calibrate import calibrate
    from scantune.simulate import COHORTS
    from scantune.training.fit import fit_prior

    bundled, cohort = scantune.load("brain"), COHORTS["contrasts"]
    model = replace(bundled, backend=replace(bundled.backend, size=(SIDE, SIDE)), prior=None)
    cases = list(cohort.cases(cohort.source, "train", seed=HEAD_SEED, count=PEOPLE, slices=SLICES))
    prepared = [model.backend.prepare(case) for case in cases]
    fitted = model

    def prior() -> str:
        nonlocal fitted
        found = fit_prior(model, prepared[HELD_OUT:], prepared[:HELD_OUT], device="cpu")
        fitted = replace(model, prior=found)
        return f"{PEOPLE - HELD_OUT} and {HELD_OUT} people"

    def calibration() -> str:
        found = calibrate(fitted, cases[:HELD_OUT], "cpu")
        assert found.prior is not None and found.prior.calibration is not None
        home = found.prior.calibration.home
        assert home is not None and home.local is not None
        return f"{home.local.counts.predictions} predictions, {home.local.counts.adaptations} adaptations"

    found = [timed("fit: prior", PRIOR_SECONDS, prior)]
    print(found[0].row(), flush=True)
    return [*found, timed("fit: calibration of the assessment", CALIBRATION_SECONDS, calibration)]


def timings(parts: list[str]) -> Iterator[Timing]:
    """Yield what everything took, each in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for centre in CENTRES if "head" in parts else ():
            yield from pool.submit(head, centre).result()
        if "fit" in parts:
            yield from pool.submit(fit).result()


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["head", "fit"], default=["head", "fit"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    import torch

    lines = [f"By `python speed/budget.py {' '.join(sys.argv[1:])}`:"]
    lines += [f"{datetime.date.today()}, {torch.get_num_threads()} threads of {os.cpu_count()} processor cores, "]
    lines[-1] += f"torch {torch.__version__}; load of the machine at the start: {os.getloadavg()[0]:.1f}"
    lines += ["", "| what | came of it | wall, s | processor, s | allowed on two cores, s |", "|---|---|---|---|---|"]
    for timing in timings(given.only):
        lines.append(timing.row())
    print("\n".join(lines))
    if given.out:
        given.out.write_text("\n".join(["# Speed: a whole head and a fit", "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
