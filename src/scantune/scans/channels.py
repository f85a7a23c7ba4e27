"""Files of scans with several channels: nnU-Net's numbers, and names for scans of several files.

nnU-Net numbers the channels of a scan from 0, with four digits at the end of the name: `case_0000.nii.gz`,
`case_0001.nii.gz`.
"""

import re
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path

from scantune.errors import ScanError
from scantune.scans.names import scan_name

ScanFiles = tuple[Path, ...]
"""The files of one scan: one for each channel, in their order; or a single one that holds all channels."""

_NUMBERED = re.compile(r"(?P<case>.+)_(?P<number>\d{4})")
_SEPARATORS = re.compile(r"([_\-. ])")


def channel_number(path: Path) -> tuple[str, int] | None:
    """Return the name of the scan and the number of the channel that a file name has; None if it has none."""
    found = _NUMBERED.fullmatch(scan_name(path))
    return None if found is None else (found["case"], int(found["number"]))


def channel_siblings(path: Path) -> ScanFiles:
    """Return the files of all channels of the scan that a file belongs to, in the order of their numbers.

    Args:
        path: The file of any channel. A file without a number is all there is.

    Raises:
        ScanError: A channel between the first and the last has no file.
    """
    own = channel_number(path)
    if own is None or path.is_dir():
        return (path,)
    case, _ = own
    ending = path.name.removeprefix(scan_name(path))
    beside = path.parent.glob(f"{escape(case)}_[0-9][0-9][0-9][0-9]{escape(ending)}") if path.parent.is_dir() else ()
    found = {int(other.name.removesuffix(ending)[-4:]): other for other in beside}
    found.setdefault(own[1], path)
    for number in range(max(found)):
        if number not in found:
            missing = path.with_name(f"{case}_{number:04d}{ending}")
            raise ScanError(
                f"The scan {case} has {found[max(found)]}, but no channel {number}: {missing} does not exist. Copy all "
                "channels into one folder, numbered from 0000."
            )
    return tuple(found[number] for number in sorted(found))


def name_of_files(paths: Sequence[Path]) -> str:
    """Return the name of a scan: its only file's, or what the names of all its files begin with.

    `sub-1_T1w.nii.gz` and `sub-1_FLAIR.nii.gz` are `sub-1`. Names that have nothing in common, as `t1.nii.gz` and
    `t2.nii.gz`, say nothing of the scan, which is then named after the folder of the first.
    """
    names = [scan_name(path) for path in paths]
    if len(names) == 1:
        return names[0]
    shared = []
    for parts in zip(*(_SEPARATORS.split(name) for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "".join(shared).rstrip("_-. ") or paths[0].resolve().parent.name or names[0]


def grouped_channels(paths: Iterable[Path], channels: int) -> list[ScanFiles]:
    """Return the files of each scan of a network with a number of channels, each scan once.

    Args:
        paths: Files of scans, of which those in nnU-Net's numbering are joined. A file whose scan lacks a channel stays
            alone, so that its error is that of one scan.
        channels: Number of channels of the network. With one, each file is a scan.
    """
    return list(dict.fromkeys((path,) if channels == 1 else _joined(path) for path in paths))


def _joined(path: Path) -> ScanFiles:
    try:
        return channel_siblings(path)
    except ScanError:
        return (path,)
