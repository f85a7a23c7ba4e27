"""Report: score rows in; tables with tests, figures and a page that says how to read them out."""

import csv
import io
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from scantune.errors import InputError
from scantune.figures import FIGURES, save
from scantune.filewriting import write_whole
from scantune.pages import pages_of_bench
from scantune.reportpage import page
from scantune.scoretable import ScoreTable, read_scores
from scantune.statistics import Comparison
from scantune.study import Study
from scantune.tables import TABLES, Table
from scantune.typeset import DOCUMENT, latex, markdown

EXPERIMENT = "experiment.toml"
COMPARISONS = "comparisons.csv"
PAGE = "report.md"


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        page: The page to open first.
        tables: By name.
        figures: Their files, without an ending.
        study: What they are made of.
    """

    page: Path
    tables: dict[str, Table]
    figures: list[Path]
    study: Study


def report(
    paths: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    against: str | None = None,
    structure: str | None = None,
    densities: tuple[str, Path | str] | None = None,
    on_part: Callable[[str], None] | None = None,
) -> Report:
    """Write tables, figures and a page about the scores of one or more files or bench folders.

    Args:
        paths: Score files, or folders that `scantune bench` wrote, finished or not.
        out: Gets `report.md`, `tables/`, `figures/`, `pages/`, `comparisons.csv`. By default `report` in the folder, or
            `NAME-report` beside the file.
        against: The method that others are tested against; by default the strong baseline.
        structure: The structure to score; by default the one the experiment names, else `whole`, `mean`, or the mean
            over all.
        densities: A model and a scan, for a figure of the scan's densities.
        on_part: Called with the name of each part before it is made.

    Raises:
        InputError: A file cannot be read, or the folder cannot be written.
    """
    places = [Path(path) for path in paths]
    folder = Path(out) if out is not None else default_folder(places)
    say = on_part or (lambda _part: None)
    say("scores")
    scores = joined([read_scores(place, structure or experiment_score(place)) for place in places])
    study = Study.of(scores, against, [place / "jobs" for place in places if place.is_dir()])
    tables = {}
    for name, build in TABLES.items():
        say(name)
        table = build(study)
        if table is not None:
            tables[name] = table
            _write(folder / "tables" / f"{name}.md", f"# {table.title}\n\n{markdown(table)}")
            _write(folder / "tables" / f"{name}.tex", latex(name, table))
    inputs = "\n".join(f"\\input{{tables/{name}}}\n\\clearpage" for name in tables)
    _write(folder / "report.tex", DOCUMENT % inputs)
    _write(folder / COMPARISONS, _comparisons(study))
    figures = _figures(study, folder, densities, say)
    say("pages")
    indices = [pages_of_bench(place, folder / "pages" / place.resolve().name) for place in places if place.is_dir()]
    shown = [[path.relative_to(folder) for path in paths if path] for paths in (figures, indices)]
    _write(folder / PAGE, page(study, places, tables, *shown))
    return Report(folder / PAGE, tables, figures, study)


def default_folder(places: Sequence[Path]) -> Path:
    """Where a report goes unless it is told.

    Raises:
        InputError: There are several places, so that it must be told.
    """
    if len(places) != 1:
        raise InputError(f"A report of {len(places)} files or folders needs --out, the folder to write it to.")
    place = places[0]
    return place / "report" if place.is_dir() else place.with_name(f"{place.stem}-report")


def experiment_score(place: Path) -> str | None:
    """The structure that the experiment of a bench folder names for its tables; None where it names none."""
    file = place / EXPERIMENT
    if not file.is_file():
        return None
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8")).get("experiment", {}).get("score")
    except (OSError, ValueError) as error:
        raise InputError(f"{file} must be an experiment as scantune bench writes it, but is not: {error}.") from error
    return None if told is None else str(told)


def joined(tables: Sequence[ScoreTable]) -> ScoreTable:
    """The scores of several files as one table.

    Raises:
        InputError: Two files have a score for the same run of a scan.
    """
    first, *others = tables
    for other in others:
        both = {(s.column, s.method, s.run) for s in first.scores} & {(s.column, s.method, s.run) for s in other.scores}
        if both:
            column, method, run = next(iter(both))
            raise InputError(
                f"Two of the files score {method} on {run[0]} of {column.site} ({column.cohort}): expected every run "
                "in one file alone. Leave one of the files out."
            )
        structures = {**first.structures, **other.structures}
        first = replace(first, scores=first.scores + other.scores, structures=structures, rows=first.rows + other.rows)
    return first


def _figures(
    study: Study, folder: Path, densities: tuple[str, Path | str] | None, say: Callable[[str], None]
) -> list[Path]:
    """Make all figures; the files' paths without their endings."""
    written = []
    for name, build in FIGURES.items():
        say(name)
        for part, figure in build(study).items():
            path = folder / "figures" / _file_name(f"{name}-{part}" if part else name)
            save(figure, path)
            written.append(path)
    if densities is not None:
        say("densities")
        from scantune.figures.densities import density_figure, least_gaussian
        from scantune.modelfile import load
        from scantune.scans import read_scan

        model, scan = load(densities[0]), read_scan(densities[1])
        prepared = model.preprocessing.apply(scan)
        found = least_gaussian(model.network, prepared.volume, prepared.padding)
        save(
            density_figure(found, f"{scan.name}: the least Gaussian channel of each layer"),
            folder / "figures" / "densities",
        )
        written.append(folder / "figures" / "densities")
    return written


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in text)


def _comparisons(study: Study) -> str:
    """All comparisons as CSV, with every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [entry.name for entry in fields(Comparison)]
    writer.writerow(["cohort", "tier", "site", "method", "against", *names])
    for (column, method), one in study.comparisons.items():
        writer.writerow([*column, method, study.against, *(getattr(one, name) for name in names)])
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
