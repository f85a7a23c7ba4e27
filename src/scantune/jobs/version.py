"""Which scantune this is: the commit of a working copy, or the version of an installed one."""

import functools
import subprocess
from pathlib import Path

import scantune


@functools.cache
def installed_version() -> str:
    """What `git describe` says where the package lies in its own working copy, else its version."""
    folder = Path(scantune.__file__).parent
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
        return scantune.__version__
    return told.stdout.strip() or scantune.__version__
