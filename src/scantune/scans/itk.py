"""Reading by SimpleITK in a process of its own: on some damaged files it crashes, takes all memory or never returns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.scans.data_files import data_files

SECONDS, SECONDS_PER_BYTE = 20, 1e-6
"""Processor time that reading a file may take, and what every byte of it adds."""

WALL_SECONDS, WALL_SECONDS_PER_BYTE = 45, 4e-6
"""Time on the clock that reading a file may take, and what every byte of it adds. Waiting takes no processor time."""

MEMORY, MEMORY_PER_BYTE = 512 * 2**20, 100
"""Bytes of memory that reading a file may take, and what every byte of it adds. Compressed files may grow a lot."""

Content = TypeVar("Content")


class ReaderError(Exception):
    """Failure of SimpleITK to read a file: an error, a crash, or too much time or memory."""


@dataclass(frozen=True, eq=False)
class ItkImage:
    """Image as SimpleITK reads it.

    Attributes:
        size: Voxels along x, y, ...
        spacing: Distances of voxels in mm along the same axes.
        direction: Direction cosines of the axes, row by row, in ITK's world (left, posterior, superior).
        origin: Centre of the first voxel in mm, in the same world.
        components: Numbers in each voxel.
        voxels: Values `(..., y, x)`. None if only the header was read.
    """

    size: tuple[int, ...]
    spacing: tuple[float, ...]
    direction: tuple[float, ...]
    origin: tuple[float, ...]
    components: int
    voxels: NDArray[Any] | None = None

    def affine(self) -> NDArray[np.float64]:
        """Return the affine from voxels to the world in mm (RAS+), `(4, 4)`."""
        axes = len(self.size)
        affine = np.eye(max(axes, 3) + 1)
        affine[:axes, :axes] = np.reshape(self.direction, (axes, axes)) * self.spacing
        affine[:axes, -1] = self.origin
        affine = affine[np.ix_((0, 1, 2, -1), (0, 1, 2, -1))]
        affine[:2] *= -1  # from left and posterior to right and anterior
        return affine


@dataclass(frozen=True, eq=False)
class ItkSeries:
    """DICOM series of a folder, as SimpleITK reads them.

    Attributes:
        files: Files of each series, in the order of slices.
        image: The one series. None if there is none or more than one.
    """

    files: tuple[tuple[str, ...], ...]
    image: ItkImage | None


def read_itk(path: Path) -> ItkImage:
    """Read an image file.

    Raises:
        ReaderError: SimpleITK cannot read it.
    """
    return _in_worker(_read_file, path)


def read_itk_header(path: Path) -> ItkImage:
    """Read the header of an image file, without its voxels.

    Raises:
        ReaderError: SimpleITK cannot read it.
    """
    return _in_worker(_read_header, path)


def read_itk_series(folder: Path) -> ItkSeries:
    """Read the one DICOM series of a folder, or list the series if there are more or none.

    Raises:
        ReaderError: SimpleITK cannot read it.
    """
    return _in_worker(_read_series, folder)


def read_itk_files(place: Path, files: Sequence[str]) -> ItkImage:
    """Read DICOM files: slices in their order, or one file with all of them.

    Args:
        place: The file, or the folder that they are in, whose size sets the limits.
        files: The files.

    Raises:
        ReaderError: SimpleITK cannot read them.
    """
    return _in_worker(partial(_read_files, tuple(str(Path(file).absolute()) for file in files)), place)


@dataclass(frozen=True, eq=False)
class _Answer(Generic[Content]):
    """Result or failure of a task, and whether damaged files have made the process grow so that it should end."""

    content: Content | None = None
    failure: str | None = None
    grown: bool = False


class _Worker(SpawnProcess):
    """Process that reads. It ends with its parent and imports nothing of the parent's program."""

    def start(self) -> None:
        """Start the process."""
        with _isolated():
            super().start()


class _Context(SpawnContext):
    """Context in which an executor makes one worker."""

    worker: _Worker | None = None

    def Process(self, *args: Any, **more: Any) -> _Worker:  # type: ignore[override]  # noqa: N802
        """Make the worker, which the end of this program does not wait for."""
        self.worker = _Worker(*args, **more, daemon=True)
        return self.worker


class _Reader:
    """Executor with the one process that reads."""

    def __init__(self) -> None:
        self._context = _Context()
        self._executor = ProcessPoolExecutor(1, self._context, _prepare_worker)

    @property
    def process(self) -> _Worker | None:
        """Return the process, or None if it has not been started."""
        worker = self._context.worker
        return None if worker is None or worker.pid is None else worker

    @property
    def ended(self) -> bool:
        """Return whether the process has ended. Its sentinel says so at once, while `is_alive` may lag behind."""
        return self.process is not None and bool(wait([self.process.sentinel], 0))

    def read(self, task: Callable[[str], Content], path: Path) -> _Answer[Content]:
        """Return what a task reads.

        Raises:
            BrokenProcessPool: The process ended meanwhile.
            TimeoutError: It took too long, as on a stalled network drive.
        """
        # The process keeps the working folder in which it was started, whatever becomes of this one's.
        return self._executor.submit(_run, task, str(path.absolute())).result(wall_seconds(path))

    def stop(self) -> None:
        """End the process, whatever it does, and the thread that waits for it."""
        if self.process is not None:
            self.process.kill()
        self._executor.shutdown(cancel_futures=True)


_lock = threading.Lock()
_readers: dict[int, _Reader] = {}
"""Reader of this process by its id. A fork holds its parent's as well, and must not touch it."""


def _kill_own_reader() -> None:
    """Kill the reader of this process, if there is one, so that an exit does not wait for it."""
    reader = _readers.get(os.getpid())
    if reader is not None:
        reader.stop()


# The end of a program joins the threads of executors, which wait for their processes. Functions that are registered
# later than that of concurrent.futures are called before it.
threading._register_atexit(_kill_own_reader)  # type: ignore[attr-defined]


def _in_worker(task: Callable[[str], Content], path: Path) -> Content:
    """Run a task in the process that reads, and start a fresh process next time if it ended or grew.

    Raises:
        InputError: The process cannot be started.
        ReaderError: SimpleITK raised an error, or the process ended.
    """
    with _lock:
        reader = _reader()
        try:
            answer = reader.read(task, path)
        except BrokenProcessPool as error:  # SimpleITK crashed, or took too much time
            _stop()
            raise ReaderError(f"SimpleITK cannot read {path}: its process ended") from error
        except TimeoutError as error:
            _stop()
            raise ReaderError(f"SimpleITK cannot read {path} in {wall_seconds(path):.0f} seconds") from error
        except OSError as error:
            _stop()
            raise _cannot_start(error) from error
        except BaseException:
            _stop()
            raise
        if answer.grown:
            _stop()
    if answer.failure is not None:
        raise ReaderError(answer.failure)
    return answer.content  # type: ignore[return-value]


def _reader() -> _Reader:
    """Return this process's reader, a new one if there is none or it has ended."""
    if os.getpid() in _readers and _readers[os.getpid()].ended:
        _stop()
    if os.getpid() not in _readers:
        try:
            _readers[os.getpid()] = _Reader()
        except (OSError, ImportError, NotImplementedError) as error:  # a system without semaphores
            raise _cannot_start(error) from error
    return _readers[os.getpid()]


def _stop() -> None:
    _readers.pop(os.getpid()).stop()


def _cannot_start(error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(
        f"The process that reads images other than NIfTI cannot be started ({reason}). Close other programs, or "
        "convert the scan to NIfTI."
    )


@contextlib.contextmanager
def _isolated() -> Iterator[None]:
    """Start processes that do not import the main module, search the working folder or get the user's interrupts."""
    main, safe = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH")
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    daemon = config.get("daemon")
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the new process inherits the mask
    try:
        # Spawned processes run a script that is the main module again, with its imports such as torch.
        sys.modules["__main__"] = types.ModuleType("__main__")
        os.environ["PYTHONSAFEPATH"] = "1"
        config["daemon"] = False  # a daemon, such as a worker of a data loader, may start no process otherwise
        yield
    finally:
        config["daemon"] = daemon
        os.environ.pop("PYTHONSAFEPATH")
        if safe is not None:
            os.environ["PYTHONSAFEPATH"] = safe
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


# What follows runs in the process that reads.


_ceiling = 0
"""Bytes of memory beyond which a process that holds no voxels has grown."""


def _prepare_worker() -> None:
    """Hide what SimpleITK prints, and end with the parent."""
    global _ceiling
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _ceiling = (_memory() or 0) + MEMORY


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _run(task: Callable[[str], Content], path: str) -> _Answer[Content]:
    """Run a task within limits of time and memory. Beyond the limit of time, the process ends."""
    try:
        limit(Path(path))
        answer = _Answer(task(path))
    except Exception as error:  # SimpleITK raises whatever it meets in damaged files
        answer = _Answer(failure=str(error), grown=(_memory() or 0) > _ceiling)
    _unlimit()
    return answer


def limit(path: Path) -> None:
    """Limit the processor time and the memory of the next reading."""
    size = _bytes(path)
    signal.setitimer(signal.ITIMER_PROF, SECONDS + SECONDS_PER_BYTE * size)
    now, (_, most) = _memory(), resource.getrlimit(resource.RLIMIT_AS)
    if now is not None:
        wanted = now + MEMORY + MEMORY_PER_BYTE * size
        wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def wall_seconds(path: Path) -> float:
    """Return the time on the clock that reading a file, or a folder, may take."""
    return WALL_SECONDS + WALL_SECONDS_PER_BYTE * _bytes(path)


def _bytes(path: Path) -> int:
    """Count the bytes of a file with its data files, or of a folder."""
    files = path.iterdir() if path.is_dir() else [path, *data_files(path)]
    return sum(file.stat().st_size for file in files if file.is_file())


def _unlimit() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _memory() -> int | None:
    """Return the bytes of address space of this process, or None if the system does not say."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text().split()[0]) * resource.getpagesize() if statistics.exists() else None


def _read_file(path: str) -> ItkImage:
    import SimpleITK

    return _with_voxels(SimpleITK.ReadImage(path))


def _read_header(path: str) -> ItkImage:
    import SimpleITK

    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(path)
    reader.ReadImageInformation()
    return _image(reader, reader.GetNumberOfComponents(), None)


def _read_series(path: str) -> ItkSeries:
    import SimpleITK

    reader = SimpleITK.ImageSeriesReader()
    series = tuple(reader.GetGDCMSeriesFileNames(path, uid) for uid in reader.GetGDCMSeriesIDs(path))
    return ItkSeries(series, _read_files(series[0], path) if len(series) == 1 else None)


def _read_files(files: Sequence[str], _: str) -> ItkImage:
    import SimpleITK

    return _with_voxels(SimpleITK.ReadImage(files if len(files) > 1 else files[0]))


def _with_voxels(image: Any) -> ItkImage:
    import SimpleITK

    return _image(image, image.GetNumberOfComponentsPerPixel(), SimpleITK.GetArrayFromImage(image))


def _image(source: Any, components: int, voxels: NDArray[Any] | None) -> ItkImage:
    """Return an image with the geometry of SimpleITK's image or reader."""
    return ItkImage(
        source.GetSize(), source.GetSpacing(), source.GetDirection(), source.GetOrigin(), components, voxels
    )
