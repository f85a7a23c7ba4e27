"""The reference of the command line, from the commands themselves.

python scripts/commands.py     writes docs/commands.md
"""

import argparse
import re
import warnings
from pathlib import Path

import tyro

from scantune.cli.main import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"

HEAD = """# Commands

`scantune COMMAND --help` prints the same on a terminal, and `scantune --version` the version. This page is written by
`scripts/commands.py`.

| exit code | meaning |
|---|---|
| 0 | all is well |
| 1 | an unforeseen error; `SCANTUNE_TRACEBACK=1` in the environment shows where |
| 2 | the input is at fault: the message says what to do |
| 3 | some scans failed; with `--strict`, also if a scan is unsolved |
| 130 | stopped by the user; what is finished is kept |
"""


def cell(text: str) -> str:
    """Text for a table, in one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def row(action: argparse.Action) -> str:
    """The row of a flag or a word."""
    flag = max(action.option_strings, key=len, default="")
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    name = " ".join(part for part in (flag, metavar) if part).replace("|", "\\|")
    text = action.help or ""
    found = re.search(r"\((required|default: [^()]*(?:\([^()]*\))?[^()]*)\)\s*$", text)
    default = "required" if found and found[1] == "required" else found[1].removeprefix("default: ") if found else ""
    if found:
        text = text[: found.start()]
    return f"| `{name}` | {cell(text)} | {cell(default)} |"


def section(name: str) -> str:
    """The part about a command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(COMMANDS[name], prog=f"scantune {name}")
    actions = [action for action in parser._actions if "--help" not in action.option_strings]
    rows = [row(action) for action in actions]
    table = ["", "| | what | default |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"## {name}", "", parser.description or "", *table])


def page() -> str:
    """The whole page."""
    return "\n\n".join([HEAD.rstrip(), *map(section, COMMANDS)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
