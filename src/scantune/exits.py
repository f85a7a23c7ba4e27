"""How a command ends: exit codes, and what is said where something is wrong."""

import sys

BAD_INPUT, SOME_FAILED, STOPPED, UNFORESEEN = 2, 3, 130, 1


def complain(sentence: str) -> None:
    """Tell on standard error what is wrong."""
    print(f"scantune: error: {sentence}", file=sys.stderr)
