"""The page of a report: what was compared, what it rests on, and every table and figure."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scantune.report.render import markdown
from scantune.report.scores import DataKind, SiteColumn, structure_text
from scantune.report.statistics import (
    BOOTSTRAP_RESAMPLES,
    CONFIDENCE_LEVEL,
    PERMUTATIONS,
    people_needed,
    smallest_p,
)
from scantune.report.study import Study
from scantune.report.tables.base import SIGNIFICANCE_LEVEL, ReportTable, p_text

FIGURE_CAPTIONS = {
    "people": "Dice of every person",
    "changes": "Change of Dice: mean, 95 % bootstrap interval, and a stroke for every person",
    "along": "Dice and energy along the adaptation, means over people",
    "ae-losses": "Losses of the autoencoders and Dice along the adaptation",
    "densities": "Kernel density estimates against Gaussians",
}
"""What stands under a figure, by the start of its name."""


def report_page(
    study: Study,
    places: Sequence[Path],
    tables: Mapping[str, ReportTable],
    figures: Sequence[Path],
    indices: Sequence[Path],
    missing: Sequence[str],
) -> str:
    """Return the page as Markdown.

    Args:
        study: What was compared.
        places: Files and folders that the scores came from.
        tables: By name.
        figures: Paths without endings, as seen from the page.
        indices: Pages that list single scans, as seen from the page.
        missing: Sentences about what experiments want and the rows do not have.
    """
    parts = [
        "# Report",
        _what(study, places),
        "## Data and tests\n\n" + "\n".join(f"* {sentence}" for sentence in _grounds(study, missing)),
    ]
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in tables.values()]
    if figures:
        parts.append("## Figures\n\n" + "\n\n".join(_shown(figure) for figure in figures))
    if indices:
        links = "\n".join(f"* [{index.parent.name}](<{index.as_posix()}>)" for index in indices)
        parts.append(f"## Single scans\n\nA table of every run, with pages of the scans that were kept:\n\n{links}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _what(study: Study, places: Sequence[Path]) -> str:
    names = ", ".join(f"`{place.name}`" for place in places)
    structures = "; ".join(f"{cohort}: {structure_text(names)}" for cohort, names in study.scores.structures.items())
    return (
        f"{study.scores.rows} rows of {names}: {len(study.scores.methods)} methods, {len(study.scores.columns)} sites, "
        f"compared with *{study.against}*. Scored: {structures}. Each table is also in `tables/` (Markdown and LaTeX, "
        "together in `report.tex`), each figure in `figures/` (PNG and SVG), and every comparison with all digits in "
        "`comparisons.csv`."
    )


def _grounds(study: Study, missing: Sequence[str]) -> list[str]:
    return [_people(study), *_simulated(study), *_tiers(study), _finished(study), *missing, *_tests(study)]


DATA_SENTENCES: dict[DataKind, str] = {
    "simulated": "**Simulated** people, not patients",
    "real": "Real people",
    "simulated and real": "**Simulated** and real people together",
    "not recorded whether real": "Not recorded whether real or simulated",
}
"""What a report says of the people of a site."""


def _simulated(study: Study) -> list[str]:
    sentences = []
    for kind, description in DATA_SENTENCES.items():
        columns = [column for column in study.scores.columns if study.scores.data[column] == kind]
        if columns:
            sentences.append(f"{description}: {_listed(columns)}.")
    return sentences


def _tiers(study: Study) -> list[str]:
    tiers = dict.fromkeys(column.tier for column in study.scores.columns if column.tier)
    if not tiers:
        return []
    description = "; ".join(
        f"{tier}: {_listed([column for column in study.scores.columns if column.tier == tier])}" for tier in tiers
    )
    return [f"Tiers (as their experiments call them, never mixed in a number): {description}."]


def _finished(study: Study) -> str:
    open_cells = []
    for column, method in itertools.product(study.scores.columns, study.scores.methods):
        done, every = study.progress(column, method)
        if 0 < done < every:
            open_cells.append(f"{method} at {column.site} ({done} of {every} runs)")
    if not open_cells:
        return "Every cell with scores covers all scans of its column."
    shown = "; ".join(open_cells[:8]) + (f"; and {len(open_cells) - 8} more" if len(open_cells) > 8 else "")
    return f"**Not finished**, and labelled in the tables: {shown}. Nothing is extrapolated."


def _people(study: Study) -> str:
    numbers = sorted({study.people(column) for column in study.scores.columns})
    span = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return (
        f"The unit is the person ({span} per site): scans of the same person, folds and training runs are averaged "
        "before anything is tested. Changes are those of a scan in a training run, where both methods have a score."
    )


def _tests(study: Study) -> list[str]:
    fewest = min(study.people(column) for column in study.scores.columns)
    most = max(study.people(column) for column in study.scores.columns)
    needed = people_needed(SIGNIFICANCE_LEVEL)
    sentences = [
        f"Tests: two-sided paired permutation tests of the mean change, all sign patterns where there are at most "
        f"{PERMUTATIONS:,} (up to 16 people), else {PERMUTATIONS:,} random ones. Intervals: percentile bootstrap over "
        f"people, {CONFIDENCE_LEVEL:.0%}, {BOOTSTRAP_RESAMPLES:,} draws; too narrow for a handful of people.",
        f"The smallest p that so many people can give: {p_text(smallest_p(fewest))} with {fewest} (the smallest site), "
        f"{p_text(smallest_p(most))} with {most} (the largest).",
    ]
    if fewest < needed:
        sentences.append(
            f"With fewer than {needed} people no p-value can be below {SIGNIFICANCE_LEVEL}: at such sites a missing "
            "triangle says nothing."
        )
    return sentences


def _listed(columns: Iterable[SiteColumn]) -> str:
    """Return a list of sites by cohort."""
    cohorts: dict[str, list[str]] = {}
    for column in columns:
        cohorts.setdefault(column.cohort, []).append(column.site)
    return ", ".join(f"{cohort} ({', '.join(dict.fromkeys(sites))})" for cohort, sites in cohorts.items())


def _shown(figure: Path) -> str:
    captions = [caption for name, caption in FIGURE_CAPTIONS.items() if figure.name.startswith(name)]
    caption = captions[0] if captions else figure.name
    return f"![{caption}](figures/{figure.name}.png)\n\n*{caption} ({figure.name}).*"
