"""The page on the paper's claims: tables come from rows, and what was not run has a command that would run it."""

import re
import shlex
from pathlib import Path

import pytest
import tyro.extras

from scantune.benchmark.expand import Selection, expand
from scantune.benchmark.experiment import Experiment, bundled_experiments
from scantune.cli.main import COMMANDS
from scantune.report.figures import FIGURES
from scantune.report.scores import read_scores
from scantune.report.study import Study
from scantune.report.tables import TABLES

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "claims.md").read_text(encoding="utf-8")


def commands_of(section, program):
    return re.findall(rf"`({program} [^`]+)`", PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0])


NOT_RUN = commands_of("Not run", "scantune")
REPORTS = commands_of("Tables and figures", "scantune")
MADE = {
    "v2-prostate.csv": {"methods"},
    "v2-variants.csv": {"lambda", "density"},
    "tier1-registration.csv": {"registration", "people"},
}
"""What a report of these rows must have: the paper's tables 2, 3, 4 and 5, and its figure 6."""


def parsed(command):
    _, *words = shlex.split(command)
    return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="scantune", args=words)


@pytest.mark.parametrize("command", [command for command in NOT_RUN if "FOLDER" not in command])
def test_commands_of_what_was_not_run_select_work(command):
    read = parsed(command)
    if command.startswith("scantune bench"):
        graph = expand(Experiment.read(read.experiment, read.set))
        chosen = graph.chosen(Selection(read.methods, read.centres, read.seeds, read.count))
        assert {job.kind for job in chosen} >= {"train", "adapt"}


def test_every_experiment_of_the_paper_is_run_or_listed():
    listed = {parsed(command).experiment for command in NOT_RUN if command.startswith("scantune bench")}
    assert listed == set(bundled_experiments())


@pytest.mark.parametrize("command", REPORTS)
def test_reports_of_committed_rows_have_the_papers_tables_and_figures(command):
    read = parsed(command)
    (rows,) = read.scores
    study = Study.of(read_scores(HOME / rows, read.structure))
    builders = {**TABLES, **FIGURES}
    assert all(builders[name](study) for name in MADE[Path(rows).name])
