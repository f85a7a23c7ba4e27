"""The command line of a script with several verbs, such as run and table: each is a function of its arguments."""

import argparse
from collections.abc import Callable

Verb = Callable[[argparse.Namespace], None]


class Verbs:
    """The verbs of a script.

    Args:
        about: The docstring of the script, which its help shows.
    """

    def __init__(self, about: str | None) -> None:
        self._parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._verbs = self._parser.add_subparsers(required=True)

    def add(self, verb: Verb) -> argparse.ArgumentParser:
        """Add a function under its own name, and return the parser for its arguments."""
        parser = self._verbs.add_parser(verb.__name__)
        parser.set_defaults(verb=verb)
        return parser

    def call(self) -> None:
        """Read the command line, and call the verb that it names."""
        given = self._parser.parse_args()
        given.verb(given)
