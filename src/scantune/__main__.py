"""Lets `python -m scantune` be the command `scantune`."""

import sys

from scantune.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
