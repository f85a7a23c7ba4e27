"""What the command line shows while it works, on a terminal and in a log file."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from scantune.adaptation.scan_run import Outcome
from scantune.cli.adapt import Display, outcome_table
from scantune.cli.console import console, listed
from scantune.cli.training_display import TrainingDisplay
from scantune.training.autoencoders import AutoencoderTraining
from scantune.training.trainer import TrainingProgress


@pytest.fixture
def screen():
    """A terminal, and what was drawn on it, without the codes that move and colour."""

    def drawn():
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.file.getvalue())

    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, markup=False, highlight=False)
    return SimpleNamespace(console=terminal, drawn=drawn)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("scantune.cli.training_display.time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_training_is_a_bar_with_loss_dice_and_the_time_left_on_a_terminal(screen):
    with TrainingDisplay(screen.console, iterations=200) as display:
        display.update(TrainingProgress(50, 200, loss=0.71234, score=None, seconds_left=30.0))
        display.progress.refresh()
        display.update(TrainingProgress(150, 200, loss=0.25, score=0.8125, seconds_left=7800.0))
    drawn = screen.drawn()
    assert re.search(r"50/200 +loss 0.712 +Dice - .*left: 30 s", drawn)
    assert re.search(r"150/200 +loss 0.250 +Dice 0.81[23] .*left: 2 h 10 min", drawn)


def test_training_is_a_line_now_and_then_in_a_log(capsys, clock):
    with TrainingDisplay(console(stderr=True), iterations=200) as display:
        for iteration in range(10, 101, 10):  # a look every 9 seconds, a line every third: at least 20 seconds apart
            clock.seconds += 9.0
            display.update(TrainingProgress(iteration, 200, loss=0.5, score=0.75, seconds_left=100.0))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{iteration}/200  loss 0.500  Dice 0.750  left 2 min" for iteration in (30, 60, 90)]


def test_why_training_is_slow_is_told_once(capsys):
    with TrainingDisplay(console(stderr=True), iterations=200) as display:
        for iteration in (50, 100):
            display.update(TrainingProgress(iteration, 200, loss=0.5, score=None, seconds_left=1.0, remark="Foo waits"))
    assert capsys.readouterr().err == "Steps are not replayed as a CUDA graph, which is slower: Foo waits.\n"


def test_a_score_is_called_what_it_is(screen):
    with TrainingDisplay(screen.console, iterations=200) as display:
        display.update(TrainingProgress(150, 200, loss=0.25, score=-0.5, seconds_left=10.0, score_name="minus error"))
    assert re.search(r"loss 0.250 +minus error -0.500 ", screen.drawn())
    assert "Dice" not in screen.drawn()
    assert AutoencoderTraining.score_name == "minus error"


def test_adapting_is_a_bar_with_the_scans_name_on_a_terminal(screen):
    kept = Outcome("sub-[1]", "done", {"decision": "adapted", "reason": ""})
    failed = Outcome("sub-2", "failed", {"decision": "failed", "reason": "torn"})
    with Display(screen.console) as display:
        display.begin(["sub-[1]", "sub-2"])
        for outcome in (kept, failed):
            display.start(outcome.name)
            display.step(outcome.name, 1, 1)
            display.progress.refresh()
            display.end(outcome)
    drawn = screen.drawn()
    assert "Loading the model" in drawn
    assert "sub-[1]" in drawn
    assert "1/2 scans" in drawn
    assert "2 scans to adapt to: about 1 s" in drawn
    assert "sub-2 failed." in drawn


def test_the_table_tells_energies_decisions_and_times(screen):
    screen.console.print(
        outcome_table(
            [
                Outcome(
                    "a",
                    "done",
                    {
                        "decision": "adapted",
                        "energy_before": 2.0,
                        "energy_after": 1.5,
                        "reading_before": "far out",
                        "seconds": 3.21,
                    },
                ),
                Outcome("b", "already done", {"decision": "unsolved"}),
                Outcome("c", "failed", {"decision": "failed", "reason": "torn"}),
            ]
        )
    )
    rows = [line.split() for line in screen.drawn().splitlines()]
    assert ["a", "2.0000", "->", "1.5000", "far", "out", "adapted", "3.2", "s"] in rows
    assert ["b", "-", "-", "unsolved", "earlier", "run"] in rows
    assert ["c", "-", "-", "failed", "-"] in rows


def test_long_lists_of_names_are_cut():
    names = list("abcdefg")
    assert listed(names) == "a, b, c, d, e and 2 more"
    assert listed(names[:2]) == "a, b"
