"""Asks the process in which SimpleITK reads (`itkserver`), and starts another one where that has ended."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError

What = Literal["file", "header", "series"]


class ReaderError(Exception):
    """A file that SimpleITK cannot read, whether it says so, never comes back, or dies of it."""


class _Process:
    """One process that reads, and the process that asks it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        # Where this process found its packages, that one finds them too; its own folder comes before none of them.
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        words = [sys.executable, "-P", "-m", "scantune.scans.itk_server"]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, env=os.environ | paths)  # noqa: S603
        except OSError as error:
            raise InputError(
                f"The process that reads images other than NIfTI cannot be started ({error.strerror or error}). Close "
                "other programs, or convert the scan to NIfTI."
            ) from error

    def ask(self, what: What, path: Path) -> tuple[dict[str, Any], NDArray[Any] | None]:
        """Send a request and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"what": what, "path": str(path)}).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "dtype" not in answer:
            return answer, None
        voxels: NDArray[Any] = np.empty(answer["shape"], answer["dtype"])
        if voxels.size and self._fill(memoryview(voxels.data).cast("B")) != voxels.nbytes:
            raise EOFError
        return answer, voxels

    def _fill(self, room: memoryview) -> int:
        """Read into memory, and return how many bytes came."""
        return int(self.process.stdout.readinto(room))  # type: ignore[union-attr]

    def end(self) -> None:
        """Stop it, whatever it is doing."""
        if self.owner != os.getpid():  # a copy of the process that started it must leave it alone
            return
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # a request that it never took
                    stream.close()
        self.process.wait()


_LOCK = threading.Lock()
_current: list[_Process] = []


def ask(what: What, path: Path) -> tuple[dict[str, Any], NDArray[Any] | None]:
    """What SimpleITK reads.

    Args:
        what: `file`, `header` or `series`, as in `itkserver.READERS`.
        path: The file or folder.

    Returns:
        What is told about the image, and its voxels `(z, y, x)` where they were asked for.

    Raises:
        ReaderError: It cannot be read.
    """
    with _LOCK:
        process = _running()
        try:
            answer, voxels = process.ask(what, path)
        except BaseException as error:
            _current.clear()
            process.end()
            if isinstance(error, OSError | ValueError | EOFError):  # it died, or was ended for taking too long
                raise ReaderError(f"SimpleITK does not come back from {path}") from error
            raise
        if answer["last"]:
            _current.pop().end()
    if "error" in answer:
        raise ReaderError(answer["error"])
    return answer, voxels


def _running() -> _Process:
    """The process that reads; another one after its end, and in copies of this process."""
    if _current and (_current[0].owner != os.getpid() or _current[0].process.poll() is not None):
        _current.pop().end()
    if not _current:
        _current.append(_Process())
    return _current[0]


@atexit.register
def _stop() -> None:
    while _current:
        _current.pop().end()
