"""The display of a fit, in a terminal and outside one."""

import io

import pytest
from rich.console import Console

from scantune.cli import fit_display
from scantune.cli.fit_display import FitDisplay


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr(fit_display.time, "monotonic", lambda: now[0])
    return now


def lines_of(clock, reports, parts=60, terminal=False):
    """What is printed for reports of progress, each with the seconds since the start."""
    text = io.StringIO()
    with FitDisplay(Console(file=text, force_terminal=terminal, width=100)) as display:
        update = display.part("Fitting")
        for seconds, done in reports:
            clock[0] = 100.0 + seconds
            update(done, parts)
    return text.getvalue().splitlines()


def test_a_part_is_announced_with_its_expected_time_and_then_reported(clock):
    reports = [(0, 0), (1, 1), (3, 2), (10, 6), (30, 20), (90, 60)]
    lines = lines_of(clock, reports)
    assert lines == ["Fitting: about 2 min", "Fitting: 33%, 60 s left"]


def test_a_part_that_takes_no_time_is_one_line(clock):
    assert lines_of(clock, [(0, 0), (0.5, 60)]) == ["Fitting: about 1 s"]
    assert lines_of(clock, [(0, 0)]) == []


def test_a_terminal_gets_a_bar(clock):
    assert "left: 45 s" in " ".join(lines_of(clock, [(0, 0), (45, 30)], terminal=True))
