"""The version of scantune: the commit of a working copy, or the version of an installed package."""

import functools
import subprocess
from importlib.metadata import version
from pathlib import Path


@functools.cache
def installed_version() -> str:
    """Return the output of `git describe` in a working copy of the package, else the package version."""
    folder = Path(__file__).parents[1]
    try:
        # A package installed inside somebody else's working copy is none of its files.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", "__init__.py"],  # noqa: S607
            cwd=folder,
            check=True,
            capture_output=True,
        )
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--tags"],  # noqa: S607
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return version("scantune")
    return described.stdout.strip() or version("scantune")
