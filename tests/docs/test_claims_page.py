"""The page on the paper's claims: what was not run has a command that would run it."""

import re
import shlex
from pathlib import Path

import pytest
import tyro.extras

from scantune.benchmark.expand import Selection, expand
from scantune.benchmark.experiment import Experiment, bundled_experiments
from scantune.cli.main import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
NOT_RUN = re.findall(r"`(scantune [^`]+)`", PAGE.partition("## Not run")[2].partition("\n## ")[0])


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
