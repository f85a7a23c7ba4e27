"""Files that are written completely or not at all, and folders that accept new files."""

from __future__ import annotations

import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scantune.errors import InputError

LEFTOVER_SECONDS = 3600
"""Age from which nobody is writing a temporary file any more."""

_TEMPORARY = re.compile(r"\.[0-9a-f]{8}-.")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name beside it, and rename it when it is complete.

    A new file gets the permissions that `open` gives under the user's umask. An existing file keeps its own.

    Args:
        path: The file. Its folder is made if needed.
        write: Writes the content to the path that it gets.

    Raises:
        InputError: The file cannot be written. Nothing of it is left.
    """
    # The extension stays at the end because nibabel chooses the format by it.
    temporary = path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            mode = (path if path.exists() else temporary).stat().st_mode
            write(temporary)
            if temporary.stat().st_mode != mode:  # safetensors makes a new file that only its owner may read
                temporary.chmod(mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}): expected a folder that takes new "
            "files and has room. Choose another output folder, or change its permissions."
        ) from error


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in a folder.

    Files that another process may be writing stay: those that are younger than `LEFTOVER_SECONDS`.
    """
    for path in folder.glob(".*"):
        with suppress(OSError):
            if _TEMPORARY.match(path.name) and time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                path.unlink()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, completely or not at all.

    Characters that UTF-8 cannot encode, such as bytes of a file name that is no text, become escapes that JSON reads
    back.

    Raises:
        InputError: The file cannot be written.
    """
    write_whole(Path(path), lambda temporary: temporary.write_bytes(text.encode("utf-8", "backslashreplace")))


def require_writable(folder: Path) -> None:
    """Check before the work that its results can be written, and make the folder if needed.

    Raises:
        InputError: No file can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror or error}): expected a folder that takes new "
            "files. Choose another output folder, or change its permissions."
        ) from error
