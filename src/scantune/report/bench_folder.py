"""What the experiment of a bench folder says of its rows: what is scored, who is in-domain, what is still to come."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from scantune.errors import InputError
from scantune.report.scores import ScoreTable

EXPERIMENT = "experiment.toml"


@dataclass(frozen=True)
class BenchFolder:
    """The experiment of a bench folder; all fields are empty for folders and score files without one.

    Attributes:
        score: The structure that tables show; None where it is not named.
        methods: Names of the rows that the experiment wants.
        seeds: Its training runs.
        training: The site that networks are trained at, by data set.
        failed: Number of jobs that failed.
    """

    score: str | None = None
    methods: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    training: tuple[tuple[str, str], ...] = ()
    failed: int = 0

    @classmethod
    def read(cls, place: Path) -> Self:
        """Read the experiment of a bench folder.

        Raises:
            InputError: The folder's experiment cannot be read.
        """
        file = place / EXPERIMENT
        if not file.is_file():
            return cls()
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
            table = tables.get("experiment", {})
            return cls(
                table.get("score"),
                tuple(table.get("methods", ())),
                tuple(str(seed) for seed in table.get("seeds", ())),
                _training(tables.get("data", {})),
                len(list(place.glob("failed/*.txt"))),
            )
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{file} must be an experiment as scantune bench writes it, but is not: {error}. Give the command of "
                "the benchmark again, which writes it again."
            ) from error

    def missing(self, name: str, scores: ScoreTable) -> list[str]:
        """Return sentences about parts of the experiment that have no rows yet."""
        there = set(scores.frame["seed"])
        lacking = [method for method in self.methods if method not in scores.methods]
        runs = [seed for seed in self.seeds if seed not in there]
        return [
            *([f"**Not begun** in {name}: {'; '.join(lacking)}."] if lacking else []),
            *([f"**Not begun** in {name}: training runs with seed {', '.join(runs)}."] if runs else []),
            *([f"Jobs that failed in {name}: {self.failed}; `failed/` says why."] if self.failed else []),
        ]


def _training(data: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the site that [data] names, or the first of a public data set."""
    dataset = data.get("dataset")
    if dataset is None:
        return ()
    site = data.get("site")
    if site is None:
        from scantune.datasets import DATASETS

        known = DATASETS.get(dataset)
        site = list(known.sites[:1]) if known is not None else []
    sites = [site] if isinstance(site, str) else list(site)
    return ((str(dataset), str(sites[0])),) if len(sites) == 1 else ()
