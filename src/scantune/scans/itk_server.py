"""The process in which SimpleITK reads: on some damaged files it crashes, takes all memory, or never comes back.

A request is a line of JSON on the standard input, `{"what": "file", "path": PATH}`. The answer is a line of JSON on the
standard output, followed by the voxels where it tells their type. `itkclient` is the other end.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from scantune.scans import dicom_grids as dicomgrids

Answer = tuple[dict[str, Any], Any]
"""What the first line tells, and the voxels or None."""

SECONDS, SECONDS_PER_BYTE = 20, 1e-6
MEMORY, MEMORY_PER_BYTE = 512 * 2**20, 100
"""What a reading may take: so much, and so much more for every byte of the files; packed ones may grow a lot."""


def read_file(path: str) -> Answer:
    """An image file."""
    import SimpleITK

    return _told(SimpleITK.ReadImage(path))


def read_header(path: str) -> Answer:
    """The grid of an image file, without its voxels."""
    import SimpleITK

    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(path)
    reader.ReadImageInformation()
    return {**_geometry(reader), "components": reader.GetNumberOfComponents()}, None


def read_series(path: str) -> Answer:
    """The one DICOM series of a folder, or the files of each series where there is another number of them."""
    import SimpleITK

    reader = SimpleITK.ImageSeriesReader()
    series = [reader.GetGDCMSeriesFileNames(path, uid) for uid in reader.GetGDCMSeriesIDs(path)]
    if len(series) != 1:
        return {"series": series}, None
    reader.SetFileNames(series[0])
    reader.MetaDataDictionaryArrayUpdateOn()
    answer, voxels = _told(reader.Execute())
    tags = {tag: [_entry(reader, n, tag) for n in range(len(series[0]))] for tag in TAGS}
    return answer | {"files": series[0], "tags": tags}, voxels


TAGS = ("0028|0010", "0028|0011", "0028|0002", "0028|0008", "0028|0100", *dicomgrids.TAGS)
"""What is told of each slice: rows, columns, samples per pixel, frames, bits per sample, its grid; no name, no date."""


def _entry(reader: Any, number: int, tag: str) -> str | None:
    return reader.GetMetaData(number, tag) if reader.HasMetaDataKey(number, tag) else None


READERS = {"file": read_file, "header": read_header, "series": read_series}


def _told(image: Any) -> Answer:
    import SimpleITK

    voxels = SimpleITK.GetArrayFromImage(image)
    return {**_geometry(image), "dtype": voxels.dtype.str, "shape": voxels.shape}, voxels


def _geometry(image: Any) -> dict[str, Any]:
    return {
        "size": image.GetSize(),
        "spacing": image.GetSpacing(),
        "direction": image.GetDirection(),
        "origin": image.GetOrigin(),
    }


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more, or until the damaged files have left too much behind in memory."""
    most, last = (_memory() or 0) + MEMORY, False
    while not last and (line := requests.readline()):
        request = json.loads(line)
        try:
            limit(Path(request["path"]))
            told, voxels = READERS[request["what"]](request["path"])
        except Exception as error:  # SimpleITK raises whatever it stumbles over, and the other end has the words for it
            told, voxels = {"error": str(error)}, None
        signal.setitimer(signal.ITIMER_PROF, 0)
        last = voxels is None and (_memory() or 0) > most
        answers.write(json.dumps(told | {"last": last}).encode() + b"\n")
        if voxels is not None and voxels.size:
            answers.write(memoryview(voxels).cast("B"))
        answers.flush()


def limit(path: Path) -> None:
    """Limit the time and the memory of the next reading; beyond the time, this process ends."""
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS + SECONDS_PER_BYTE * size)  # of the processor's time
    now, (_, most) = _memory(), resource.getrlimit(resource.RLIMIT_AS)
    if now is not None:
        wanted = now + MEMORY + MEMORY_PER_BYTE * size
        wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def _memory() -> int | None:
    """Bytes of address space that this process has, where the system tells."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text().split()[0]) * resource.getpagesize() if statistics.exists() else None


def main() -> None:
    """Serve, with what SimpleITK prints going nowhere; the one who asks decides when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
