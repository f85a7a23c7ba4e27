"""The words of the documentation: short sentences, no worn phrases, a glossary and a comparison as the code is."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from markdown.extensions.toc import slugify

from scantune.adaptation.guard.base import Action
from scantune.methods import METHODS
from scantune.prior.assessment import Verdict
from scantune.prior.coefficients import Coefficients

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def script(name):
    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


PROSE = script("prose")
DIAGRAMS = script("diagrams")


@pytest.mark.parametrize("path", PROSE.files_of(PROSE.SHORT), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_half_of_the_sentences_that_everybody_reads_have_at_most_18_words(path):
    assert PROSE.median_words(path.read_text(encoding="utf-8")) <= PROSE.MOST_WORDS == 18


def test_no_phrase_that_readers_stumbled_over_is_left():
    assert [line for path in PROSE.files_of(PROSE.READ) for line in PROSE.found_in(path)] == []


@pytest.mark.parametrize(
    ("markdown", "sentences"),
    [
        ("One two three. Four five\nsix seven!", ["One two three.", "Four five\nsix seven!"]),
        ("# A title of words\n\n| a table | of words |\n\nAnd these are read.", ["And these are read."]),
        ("```console\nnot a sentence here\n```\nSee [the page](x.md) now.", ["See the page now."]),
        ("* the first item here\n* the second item here", ["* the first item here", "the second item here"]),
        ("By `a.b` of c. `d` is next here.", ["By code of c.", "code is next here."]),
    ],
)
def test_sentences_are_those_that_a_reader_sees(markdown, sentences):
    assert PROSE.sentences_of(markdown) == sentences


def test_the_median_counts_words():
    assert PROSE.median_words("One two three. One two three four five. One two three four five six seven.") == 5


def test_phrases_are_found_over_the_ends_of_lines_with_their_place():
    found = list(PROSE.phrases_in("fine\nwhere\nthat is", {"where that is": "if"}))
    assert found == [(2, "where that is", "if")]


def test_decisions_of_version_0_1_are_looked_for_in_the_documentation_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(PROSE, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    for name in ("docs/a.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("It was rolled back.")
    assert PROSE.found_in(tmp_path / "CHANGELOG.md") == []
    assert PROSE.found_in(tmp_path / "docs/a.md")[0].startswith("docs/a.md:1: 'rolled back'")


def entries():
    """The glossary's words with what they mean."""
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\*\*(.+?)\.\*\* (.*?)(?=\n\n|\Z)", page, re.DOTALL | re.MULTILINE))


def test_the_glossary_is_in_order_and_has_the_words_of_the_product():
    words = list(entries())
    assert words == sorted(words, key=str.lower)
    wanted = (
        "Subject Held-out Prior Expert Energy Assessment Verdict Decision Checkpoint Guard Method Normaliser Source"
    )
    for word in wanted.split():
        assert any(word.lower() in entry.lower() for entry in words), word


def test_the_glossary_says_what_the_verdicts_mean_in_the_code():
    coefficients = Coefficients()
    numbers = [float(number) for number in re.findall(r"\d\.\d+", entries()["Verdict"])]
    assert numbers == [coefficients.fine, coefficients.least, coefficients.failed]


def test_the_comparison_counts_our_methods():
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| methods \|.*\| (\d+), of which `source`", page, re.MULTILINE)
    assert int(row) == len(METHODS)


@pytest.mark.parametrize("name", DIAGRAMS.DIAGRAMS)
def test_a_diagram_is_that_of_its_script_and_stands_on_a_page(name):
    drawn = DIAGRAMS.DIAGRAMS[name]()
    file = DOCS / "figures" / f"diagram-{name}.svg"
    assert file.read_text(encoding="utf-8") == drawn
    root = ElementTree.fromstring(drawn)
    assert root.find("{http://www.w3.org/2000/svg}title").text
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert any(f"figures/{file.name})" in page.read_text(encoding="utf-8") for page in pages)


def test_the_diagram_of_the_guard_has_its_verdicts_and_decisions():
    drawn = DIAGRAMS.DIAGRAMS["policy"]()
    assert all(word in drawn for word in (*get_args(Verdict), *get_args(Action)))


def anchors(page):
    """What links can point at on a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*?)(?: \{#.*\})?$", text, re.MULTILINE)
    return {slugify(re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title), "-") for title in titles}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_a_page_outside_the_site_lead_to_files_and_headings(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        page = ROOT / path if path else ROOT / name
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link
