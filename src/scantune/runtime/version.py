"""Which scantune this is: the commit of a working copy, or the version of an installed one."""

import functools
import subprocess
from importlib.metadata import version
from pathlib import Path


@functools.cache
def installed_version() -> str:
    """What `git describe` says where the package lies in its own working copy, else its version."""
    folder = Path(__file__).parents[1]
    try:
        # A package installed inside somebody else's working copy is none of its files.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", "__init__.py"],  # noqa: S607
            cwd=folder,
            check=True,
            capture_output=True,
        )
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--tags"],  # noqa: S607
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return version("scantune")
    return told.stdout.strip() or version("scantune")
