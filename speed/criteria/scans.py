"""Scans of the benchmark, and figures of many of them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

from figures import auroc, sensitivity
from rows import WHOSE, Line

FAILING = 0.7
"""Dice below which a prediction fails."""

TOYS = {"development", "seen", "test"}
"""Sets of toy networks, which a bootstrap draws; elsewhere it draws people."""


@dataclass(frozen=True)
class Scan:
    """A scan with its stages, the source prediction first."""

    stages: Sequence[Line]

    @property
    def source(self) -> Line:
        """Return the row of the source prediction, with what was decided."""
        return self.stages[0]

    @property
    def before(self) -> float:
        """Return the Dice of the source prediction."""
        return float(self.source["dice"])

    @property
    def end(self) -> float:
        """Return the Dice of the last stage, which is the result without a guard."""
        return float(self.stages[-1]["dice"])

    @property
    def best(self) -> float:
        """Return the highest Dice of all stages."""
        return max(float(stage["dice"]) for stage in self.stages)

    @property
    def handed(self) -> float:
        """Return the Dice of what the default hands out."""
        return next(float(stage["dice"]) for stage in self.stages if stage["step"] == self.source["chosen"])

    @property
    def simple(self) -> float:
        """Return the Dice of what the simple rule hands out."""
        return self.end if self.source["simple"] else self.before

    @property
    def guarded(self) -> float:
        """Return the Dice under the guard of priors without home readings; NaN where it was not run."""
        return math.nan if self.source["guard"] is None else float(self.source["guard"])

    @property
    def fails(self) -> bool:
        """Return True if the source prediction fails."""
        return self.before < FAILING


Scans = Sequence[Scan]
Figure = Callable[[Scans], float]


def scans_of(found: Iterable[Line]) -> list[Scan]:
    """Return the scans of rows, which lie together."""
    groups = groupby(found, key=lambda row: tuple(row[name] for name in WHOSE))
    return [Scan(list(group)) for _, group in groups]


def unit(scan: Scan) -> tuple[object, ...]:
    """Return what the bootstrap draws: networks of toys, and people, who differ from centre to centre if simulated."""
    name, group = scan.source["name"], scan.source["group"]
    if group in TOYS:
        return (name,)
    return (name, scan.source["person"], *([scan.source["shift"]] if "simulated" in group else []))


def failing(scans: Scans) -> list[Scan]:
    """Return the scans whose source prediction fails."""
    return [scan for scan in scans if scan.fails]


def usable(scans: Scans) -> list[Scan]:
    """Return the scans whose source prediction does not fail."""
    return [scan for scan in scans if not scan.fails]


def guarded(scans: Scans) -> list[Scan]:
    """Return the scans on which the guard of priors without home readings was run."""
    return [scan for scan in scans if not math.isnan(scan.guarded)]


def known(values: Iterable[float]) -> list[float]:
    """Return the values that are not NaN."""
    return [value for value in values if not math.isnan(value)]


def mean(values: Iterable[float]) -> float:
    """Compute the mean; NaN of nothing."""
    return fmean(found) if (found := list(values)) else math.nan


def share_kept(result: str, scans: Scans) -> float:
    """Compute the share of the unguarded gain of failing scans that a result keeps."""
    found = [scan for scan in gaining(scans) if not math.isnan(getattr(scan, result))]
    whole = sum(scan.end - scan.before for scan in found)
    return sum(getattr(scan, result) - scan.before for scan in found) / whole if whole else math.nan


def change(scan: Scan) -> float:
    """Return the change of Dice by the default."""
    return scan.handed - scan.before


def lowest_mean(scans: Scans) -> float:
    """Compute the lowest mean change of a network, or of a centre, over scans that do not fail."""
    groups: dict[object, list[float]] = {}
    for scan in usable(scans):
        centre = None if scan.source["group"] in TOYS else scan.source["shift"]
        groups.setdefault((scan.source["name"], centre), []).append(change(scan))
    return min(map(mean, groups.values()), default=math.nan)


def stay_improved(scans: Scans) -> float:
    """Compute how many of the scans that improve by more than .01 unguarded stay improved by more than .01."""
    return mean(change(scan) > 0.01 for scan in scans if scan.end - scan.before > 0.01)


def failure_auroc(scans: Scans) -> float:
    """Compute the area under the ROC curve of the estimate for failure of the source prediction."""
    return auroc(*(([-s.source["expected"] for s in part]) for part in (failing(scans), usable(scans))))


def failure_sensitivity(scans: Scans) -> float:
    """Compute the sensitivity of the estimate for failure at 5 % false alarms."""
    return sensitivity(*(([-s.source["expected"] for s in part]) for part in (failing(scans), usable(scans))))


def called_failed(scans: Scans) -> float:
    """Compute the share of scans that are called failed."""
    return mean(scan.source["verdict"] == "failed" for scan in scans)


def wrongly_fine(scans: Scans) -> float:
    """Compute the share of failing scans whose result is shown as fine and is still below the limit."""
    return mean(s.source["final verdict"] == "fine" and s.handed < FAILING for s in failing(scans))


def error(scans: Scans) -> float:
    """Compute the median error of the estimate of the source prediction."""
    return median([abs(s.source["expected"] - s.before) for s in scans]) if scans else math.nan


def home_error(scans: Scans) -> float:
    """Compute the median error of always expecting the Dice of home."""
    return median([abs(s.source["home"] - s.before) for s in scans]) if scans else math.nan


def estimated(scans: Scans) -> list[Scan]:
    """Return the scans whose result is shown with an estimate."""
    return [scan for scan in scans if scan.source["final expected"] is not None]


def final_error(scans: Scans) -> float:
    """Compute the median error of the estimate that is shown with a result."""
    return median([abs(s.source["final expected"] - s.handed) for s in estimated(scans)] or [math.nan])


def final_bias(scans: Scans) -> float:
    """Compute the mean error of the estimate that is shown with a result."""
    return mean(s.source["final expected"] - s.handed for s in estimated(scans))


def covered(scans: Scans) -> float:
    """Compute the share of source predictions whose Dice lies in the range."""
    return mean(s.source["low"] <= s.before <= s.source["high"] for s in scans if s.source["low"] is not None)


def finally_covered(scans: Scans) -> float:
    """Compute the share of results whose Dice lies in the range that is shown with them."""
    known = [s for s in scans if s.source["final low"] is not None]
    return mean(s.source["final low"] <= s.handed <= s.source["final high"] for s in known)


def unsolved(scans: Scans) -> float:
    """Compute the share of scans that are called unsolved."""
    return mean(scan.source["action"] == "unsolved" for scan in scans)


def unsolved_or_rescued(scans: Scans) -> float:
    """Compute the share of failing scans that are unsolved, or rescued above the limit."""
    return mean(s.source["action"] == "unsolved" or s.handed >= FAILING for s in failing(scans))


def gaining(scans: Scans) -> list[Scan]:
    """Return failing scans that gain without a guard."""
    return [scan for scan in failing(scans) if scan.end > scan.before]
