"""The command line: parse, call the verb, print the result. Heavy imports wait until a command runs."""

import difflib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Protocol

import tyro

from scantune import __version__
from scantune.cli.adapt import Adapt
from scantune.cli.bench import Bench
from scantune.cli.check import Check
from scantune.cli.demo import Demo
from scantune.cli.evaluate import Evaluate
from scantune.cli.exits import BAD_INPUT, STOPPED, UNFORESEEN, complain, end_of
from scantune.cli.info import Info
from scantune.cli.models import Models
from scantune.cli.report import Report
from scantune.cli.simulate import Simulate
from scantune.cli.train import Fit, Train
from scantune.errors import InputError


class Command(Protocol):
    """A subcommand, its fields filled in from the command line."""

    def run(self) -> int:
        """Do the work and return the exit code."""


COMMANDS: dict[str, Callable[..., Command]] = {
    "adapt": Adapt,
    "train": Train,
    "fit": Fit,
    "evaluate": Evaluate,
    "bench": Bench,
    "report": Report,
    "models": Models,
    "info": Info,
    "check": Check,
    "simulate": Simulate,
    "demo": Demo,
}
"""The verbs, in the order of the help."""

DESCRIPTION = """Adapts a trained medical-image network to every single scan it meets.

scantune COMMAND --help describes a command, scantune --version the version.

Exit codes: 0 all is well, 2 the input is at fault, 3 some scans failed.

For research use only."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after `scantune`; by default those that were typed.

    Returns:
        The exit code: 0 all is well, 2 the input is at fault, 3 some scans failed or have problems (under
        `--strict`, or are unsolved), 130 stopped by the user, 1 something unforeseen.
    """
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
        return 0
    return code


def _run(words: list[str]) -> int:
    """Parse the words, run the command, and return the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be no text
    if words == ["--version"]:
        print(f"scantune {__version__}")
        return 0
    if words and words[0] not in (*COMMANDS, "-h", "--help"):
        return _unknown_command(words[0])
    try:
        command: Command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="scantune", description=DESCRIPTION, args=words or ["--help"]
        )
        with _told_to_stop():
            return command.run()
    except BrokenPipeError:
        raise
    except SystemExit as end:  # how the parser ends after help (0) and mistakes (2)
        code = end.code or 0
        return (code if isinstance(code, int) else UNFORESEEN) if words else BAD_INPUT
    except InputError as error:
        complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        complain(
            "stopped. What is finished is kept; adapt, train, bench and simulate go on from there when given again."
        )
        return STOPPED
    except Exception as error:
        if "SCANTUNE_TRACEBACK" in os.environ:
            raise
        return end_of(error)


def _unknown_command(word: str) -> int:
    """Print that there is no such command, with the closest one, and return the exit code."""
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    suggestion = f"Did you mean {close[0]}? " if close else ""
    complain(f"there is no command {word!r}. {suggestion}The commands are {', '.join(COMMANDS)}.")
    return BAD_INPUT


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """Have a request to end (SIGTERM) treated as one of the user, so that nothing half-written is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
