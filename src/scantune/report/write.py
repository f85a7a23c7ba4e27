"""Report: score rows in; tables with tests, figures and a page that says how to read them out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from scantune.errors import InputError
from scantune.evaluation.rows import write_table
from scantune.report.bench_folder import BenchFolder
from scantune.report.figures import FIGURES, save_png_and_svg
from scantune.report.page import report_page
from scantune.report.render import LATEX_DOCUMENT, latex, markdown
from scantune.report.scores import join_scores, read_scores
from scantune.report.statistics import Comparison
from scantune.report.study import Study
from scantune.report.tables import TABLES, ReportTable
from scantune.scans.files import write_text

COMPARISONS_FILE = "comparisons.csv"
REPORT_FILE = "report.md"


@dataclass(frozen=True)
class WrittenReport:
    """The files of a report.

    Attributes:
        page: The page to open first.
        tables: By name.
        figures: Their files, without an ending.
        study: What they are made of.
    """

    page: Path
    tables: dict[str, ReportTable]
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
) -> WrittenReport:
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
    plans = [BenchFolder.read(place) for place in places]
    found = [read_scores(place, structure or plan.score) for place, plan in zip(places, plans, strict=True)]
    training = dict(pair for plan in plans for pair in plan.training)
    study = Study.of(join_scores(found), against, [place / "jobs" for place in places if place.is_dir()], training)
    tables = {}
    for name, build in TABLES.items():
        say(name)
        table = build(study)
        if table is not None:
            tables[name] = table
            write_text(folder / "tables" / f"{name}.md", f"# {table.title}\n\n{markdown(table)}")
            write_text(folder / "tables" / f"{name}.tex", latex(name, table))
    inputs = "\n".join(f"\\input{{tables/{name}}}\n\\clearpage" for name in tables)
    write_text(folder / "report.tex", LATEX_DOCUMENT % inputs)
    _write_comparisons(study, folder / COMPARISONS_FILE)
    figures = _figures(study, folder, densities, say)
    say("pages")
    inside = [index.relative_to(folder) for index in _pages(places, folder)]
    folders = zip(places, plans, found, strict=True)
    missing = [sentence for place, plan, own in folders for sentence in plan.missing(place.name, own)]
    text = report_page(study, places, tables, [figure.relative_to(folder) for figure in figures], inside, missing)
    write_text(folder / REPORT_FILE, text)
    return WrittenReport(folder / REPORT_FILE, tables, figures, study)


def default_folder(places: Sequence[Path]) -> Path:
    """Return the default folder of a report.

    Raises:
        InputError: There are several places, so that it has no default.
    """
    if len(places) != 1:
        raise InputError(f"A report of {len(places)} files or folders needs --out, the folder to write it to.")
    place = places[0]
    return place / "report" if place.is_dir() else place.with_name(f"{place.stem}-report")


def _pages(places: Sequence[Path], folder: Path) -> list[Path]:
    """Write pages of the scans that benchmarks kept, and return their indices."""
    benches = [place for place in places if place.is_dir()]
    if not benches:
        return []
    from scantune.report.scan_pages import pages_of_bench

    indices = [pages_of_bench(place, folder / "pages" / place.resolve().name) for place in benches]
    return [index for index in indices if index is not None]


def _figures(
    study: Study, folder: Path, densities: tuple[str, Path | str] | None, say: Callable[[str], None]
) -> list[Path]:
    """Write all figures, and return their paths without suffix."""
    written = []
    for name, build in FIGURES.items():
        say(name)
        for part, figure in build(study).items():
            path = folder / "figures" / _file_name(f"{name}-{part}" if part else name)
            save_png_and_svg(figure, path)
            written.append(path)
    if densities is not None:
        say("densities")
        from scantune.model.model import load
        from scantune.report.figures.densities import density_figure, least_gaussian
        from scantune.scans.io import read_scan

        model, scan = load(densities[0]), read_scan(densities[1])
        prepared = model.backend.prepare(scan)
        found = least_gaussian(model.network, prepared.volume, prepared.padding)
        save_png_and_svg(
            density_figure(found, f"{scan.name}: the least Gaussian channel of each layer"),
            folder / "figures" / "densities",
        )
        written.append(folder / "figures" / "densities")
    return written


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text)


def _write_comparisons(study: Study, path: Path) -> None:
    """Write all comparisons as CSV, with every digit."""
    rows = ((*column, method, study.against, *astuple(one)) for (column, method), one in study.comparisons.items())
    names = [entry.name for entry in fields(Comparison)]
    write_table(path, ["cohort", "tier", "site", "method", "against", *names], rows)
