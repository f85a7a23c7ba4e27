"""The documentation: it is built without a warning, needs no network, and what it prints is run."""

import functools
import http.server
import os
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import tyro

import scantune
from scantune.cli.main import COMMANDS, main
from tests.conftest import toy_scan
from tests.docs.test_readme import blocks, desk, require_model, targets  # noqa: F401
from tests.pages.test_browser import SLOW, browser  # noqa: F401

ROOT = Path(__file__).parents[2]
START = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
NETWORK = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")


def script(name):
    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built strictly: a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_stands_in_the_navigation(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        built = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / built).exists()
        assert f'href="{built}" class="md-nav__link' in start, page


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?(https?:)?//', page.read_text("utf-8"))
        assert not loaded, page


def test_the_page_of_results_holds_every_table_and_links_its_rows(site):
    page = (site / "results.html").read_text(encoding="utf-8")
    for file in (ROOT / "results").glob("*.md"):
        assert f'id="{file.stem}"' in page
        figures = re.findall(r"[+-]?\d+\.\d+", file.read_text(encoding="utf-8"))
        assert figures
        assert not [figure for figure in figures if figure not in page]
        if file.with_suffix(".csv").exists():
            assert (site / "results" / f"{file.stem}.csv").exists()


def test_the_reference_tells_of_every_name_that_scripts_rely_on(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in ("adapt", "FieldOfExperts", "load", "AdaptableNetwork", "Result", "Case", "InputError", "Model"):
        assert re.search(rf'id="scantune\.[\w.]*\b{name}"', page), name


def test_links_become_those_of_the_site():
    site = script("docs_site")
    turned = site.relinked("[a](../results/brain.csv) [b](../README.md#x) [c](methods.md#cost)", "docs", "brain.md")
    assert turned == "[a](results/brain.csv) [b](index.md#x) [c](methods.md#cost)"
    turned = site.relinked("[a](../docs/brain.md) [b](brain.csv) [c](https://x.y) [d](#z)", "results", "results.md")
    assert turned == "[a](brain.md) [b](results/brain.csv) [c](https://x.y) [d](#z)"
    assert site.relinked("see [here](../src/scantune)", "docs", "a.md") == "see here"
    assert site.relinked("[a](../results/brain.md)", "docs", "a.md") == "[a](results.md#brain)"
    turned = site.relinked("[a](../data.md#csv) [b](../../results/brain.md)", "docs/tutorials", "tutorials/a.md")
    assert turned == "[a](../data.md#csv) [b](../results.md#brain)"


def test_the_reference_of_commands_is_that_of_the_commands():
    commands = script("commands")
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run: python scripts/commands.py"
    assert re.findall("^## (.*)$", commands.page(), re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("place", ["disk", "served"])
def test_the_search_finds_pages(place, site, browser):  # noqa: F811
    handler = functools.partial(QuietHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}" if place == "served" else f"file://{site}"
        page, asked = browser.new_page(), []
        page.set_default_timeout(SLOW)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{host}/index.html")
        page.fill(".md-search__input", "unsteadiness")
        page.wait_for_selector(".md-search-result__link")
        assert "guard.html" in page.locator(".md-search-result__link").first.get_attribute("href")
        assert all(url.startswith(host) for url in asked)
        page.close()
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("block", blocks("console", START))
def test_commands_of_the_quick_start_run(block, desk):  # noqa: F811
    require_model(block)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        if program == "make":
            assert set(words) <= targets()
        elif program == "scantune":
            assert main(words) == 0, line
    if "--model brain" in block:
        assert (desk / "out" / "my_T1_page.html").exists()
        assert (desk / "out" / "index.html").exists()


@pytest.mark.parametrize("block", blocks("python", START))
def test_python_of_the_quick_start_runs(block, desk):  # noqa: F811
    require_model(block)
    exec(compile(block, "index.md", "exec"), {})
    assert (desk / "out" / "my_T1_page.html").exists()


def test_python_of_the_networks_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scans = [toy_scan(seed)[0] for seed in range(4)]
    names = {
        "my_network": scantune.AdaptableNetwork.default(classes=3, width=2).task.eval(),
        "volumes": scans[:2],
        "held_out": scans[2:],
        "volume": toy_scan(9)[0],
    }
    for block in blocks("python", NETWORK.split("## Files in")[0]):
        exec(compile(block.values[0], "network.md", "exec"), names)
    assert names["labels"].shape == (4, 48, 48)
    assert capsys.readouterr().out.split()[0] in ("adapted", "unsolved", "left")


def words_of(line):
    """The words of a command as a shell takes them, comments left out."""
    return shlex.split(line, comments=True)


def printed(program):
    """Every command of a program that pages print in blocks, and those in the middle of sentences."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
        lines = re.findall(rf"^{program} .*$", fenced.replace("\\\n", " "), re.MULTILINE)
        spans = re.findall(rf"`({program} [^`]*)`", re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.DOTALL | re.M))
        found += [pytest.param(words_of(line), True, id=f"{page.name}: {line[:60]}") for line in lines]
        found += [pytest.param(words_of(" ".join(s.split())), False, id=f"{page.name}: {s[:60]}") for s in spans]
    return found


@pytest.mark.parametrize(("words", "whole"), printed("scantune"))
def test_every_printed_command_is_one(words, whole):
    _, name, *rest = words
    if name.startswith(("-", "COMMAND")):
        return
    flags = {f"--{field.name.replace('_', '-')}" for field in fields(COMMANDS[name])} | {"--help"}
    assert {word for word in rest if word.startswith("--")} <= flags
    if whole and "..." not in rest:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=words[1:])


@pytest.mark.parametrize(("words", "whole"), printed("python"))
def test_every_printed_script_is_there_and_knows_its_flags(words, whole):
    if words[1:3] == ["-m", "scantune"]:
        assert set(words[3:]) <= {"--help", "--version"} or words[3] in COMMANDS
        return
    if words[1] == "-m" and words[2] in sys.stdlib_module_names:
        return
    if words[1] == "-m":
        folder = ROOT / words[2]
        assert folder.is_dir()
        text = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    else:
        text = (ROOT / words[1]).read_text(encoding="utf-8")
    for flag in (word for word in words[2:] if word.startswith("--")):
        assert f'"{flag}"' in text, flag


@pytest.mark.parametrize("name", ["docs/brain.md", "docs/methods.md", "docs/registration.md", "docs/shift.md"])
def test_tables_of_a_page_are_those_that_scripts_wrote(name):
    written = {line for file in ROOT.glob("results/*.md") for line in file.read_text(encoding="utf-8").splitlines()}
    page = (ROOT / name).read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if len(re.findall(r"\| [^|]*\d\.\d{3}\b", line)) > 1]
    assert len(shown) >= 9
    assert not [line for line in shown if line not in written]


@pytest.mark.parametrize("page", [page for page in PAGES if "results" not in page.parts], ids=lambda page: page.name)
def test_every_name_in_the_package_that_a_page_prints_exists(page):
    for name in re.findall(r"\bscantune(?:\.\w+)+", page.read_text(encoding="utf-8")):
        assert resolve_name(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_repository_that_a_page_prints_exists(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"(?<![\w/.])(?:fuzz|scripts|speed|src|tests)/[\w./-]+\w", text):
        assert (ROOT / path).exists() or {"NAME", "COHORT"} & set(re.split(r"[/.]", path)), path
