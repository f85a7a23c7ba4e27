"""What mkdocs.yml cannot say about the documentation: files from outside docs/, and one page of all results.

MkDocs calls the functions by their names. Pages link to files of the repository as they lie; here, those files join the
site, and links to folders become words. The page of results is put together from `results/*.md` whenever the site is
built, so that no figure is typed twice.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RESULTS = "results.md"
HOME = {"README.md": "index.md"}
"""Files that stand on the site under another name."""

TITLES = {
    "assessment": "Estimates of quality without labels, and rescues",
    "tier1": "Every method at every simulated centre",
    "brain": "The bundled model at simulated scanners",
    "oasis": "The bundled model on real scans",
    "methods": "All methods, on simulated scans",
    "shift": "How far the simulated centres are apart",
    "transfer": "From simulated training to real scans",
    "real": "Every method on real lesions, brains and cords",
}
"""What the parts of the page of results are called; others after their file."""

_LINK = re.compile(r"(!?\[[^\]]*\]\()<?([^)<>\s]+)>?((?:\s+\"[^\"]*\")?\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that the navigation does not list at its end, so that none is ever lost."""
    listed = str(config.nav)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in sorted(ROOT.glob("docs/**/*.md"))]
    more = [page for page in pages if f"'{page}'" not in listed]
    if more and config.nav is not None:
        config.nav.append({"More": more})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of results, and every file that pages link to."""
    results = results_page()
    files.append(File.generated(config, RESULTS, content=results))
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    texts = [(page.read_text(encoding="utf-8"), page.relative_to(ROOT).parent.as_posix()) for page in pages]
    for text, folder in [*texts, (results, "results")]:
        for _, target, _ in _LINK.findall(text):
            path = _repository_path(target, folder)
            place = site_path(path) if path else RESULTS
            if path and (ROOT / path).is_file() and files.get_file_from_path(place.partition("#")[0]) is None:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links of the site."""
    here = page.file.src_uri
    outside = here == RESULTS or not (ROOT / "docs" / here).exists()
    folder = "results" if here == RESULTS else posixpath.dirname(here if outside else f"docs/{here}")
    return relinked(markdown, folder, here)


def relinked(markdown: str, folder: str, here: str) -> str:
    """The same text with links of the site.

    Args:
        markdown: A page.
        folder: Of the repository, that the page's links start from.
        here: The page on the site.
    """

    def link(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        path = _repository_path(target, folder)
        if path is None:
            return match[0]
        if (ROOT / path).is_dir():
            return before.removeprefix("[").removesuffix("](")
        anchor = target.partition("#")[2]
        place = site_path(path)
        if place.partition("#")[2]:
            place, anchor = place.split("#")
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{before}{relative}{'#' + anchor if anchor else ''}{after}"

    return _LINK.sub(link, markdown)


def results_page() -> str:
    """All of `results/*.md` on one page."""
    parts = [
        "# Results",
        "Every table here was written by a script of the repository, which the page that explains it names; this page"
        " is put together from `results/` when the documentation is built. What is simulated is called so.",
    ]
    known = [ROOT / "results" / f"{name}.md" for name in TITLES]
    files = sorted(ROOT.glob("results/**/*.md"), key=lambda path: (known.index(path) if path in known else 99, path))
    for path in files:
        text = path.read_text(encoding="utf-8").strip()
        title = TITLES.get(path.stem) or path.stem.replace("-", " ").replace("_", " ").capitalize()
        if text.startswith("# "):
            first, _, text = text.partition("\n")
            title = first.removeprefix("# ")
        demoted = re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE)
        name = path.relative_to(ROOT).as_posix()
        rows = path.with_suffix(".csv")
        also = f", all rows in [{rows.name}]({rows.relative_to(ROOT / 'results').as_posix()})" if rows.exists() else ""
        parts.append(f"## {title} {{#{path.stem}}}\n\n`{name}`{also}\n\n{demoted.strip()}")
    return "\n\n".join(parts) + "\n"


def site_path(path: str) -> str:
    """Where a file of the repository stands on the site."""
    if path in HOME:
        return HOME[path]
    if re.fullmatch(r"results/.*\.md", path):
        return f"{RESULTS}#{Path(path).stem}"
    return path.removeprefix("docs/")


def _repository_path(target: str, folder: str) -> str | None:
    """The file or folder of the repository that a link means; None for what is no such link."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
    return path if (ROOT / path).exists() else None
