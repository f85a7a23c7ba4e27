"""Scans whose channels are in files of their own: what the user names for each channel, and the scans that this finds.

Nothing heavy is imported at the top, so that a mistyped path is reported at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scantune.errors import InputError
from scantune.scans.channels import ScanFiles


@dataclass
class FoundChannels:
    """Scans of several files.

    Attributes:
        scans: Files of each scan, one per channel.
        left_out: Why files were left out, by the first file of their scan.
    """

    scans: list[ScanFiles] = field(default_factory=list)
    left_out: dict[Path, str] = field(default_factory=dict)


def find_channels(channels: Sequence[str], folders: Sequence[Path] = ()) -> FoundChannels:
    """Find the scans of several files.

    Args:
        channels: The files of one scan, one per channel; or a pattern for each channel, such as `*_T1w.nii.gz`, whose
            `*` stands for the name of a scan.
        folders: Where patterns start; by default where the command runs.

    Raises:
        InputError: Files and patterns are mixed, files are given with folders, or no scan has all channels.
    """
    patterns = [text for text in channels if "*" in text]
    if not patterns:
        if folders:
            raise InputError(
                f"The files {', '.join(channels)} are the channels of one scan, but {folders[0]} is given as well. "
                "Leave it out; or, for many scans, give a pattern for each channel in quotes, such as '*_T1w.nii.gz'."
            )
        return FoundChannels([tuple(map(Path, channels))])
    if len(patterns) < len(channels):
        raise InputError(
            "The channels must all be files, or all patterns with * for the name of the scan, but both are given: "
            f"{', '.join(channels)}."
        )
    found = FoundChannels()
    for folder in folders or (Path(),):
        if not folder.is_dir():
            raise InputError(f"{folder} must be a folder in which the patterns of channels start, but is none.")
        _match(patterns, folder, found)
    if not found.scans:
        nearly = "".join(f"; {path}: {reason}" for path, reason in list(found.left_out.items())[:3])
        where = ", ".join(map(str, folders)) or "this folder"
        raise InputError(
            f"No scan in {where} has a file of each pattern {', '.join(patterns)}{nearly}. Check the patterns: * "
            "stands for the same name in all of them."
        )
    return found


def _match(patterns: Sequence[str], folder: Path, found: FoundChannels) -> None:
    """Add the scans of a folder that have all channels."""
    from scantune.datasets.patterns import match_pattern

    channels = [{name: one.path for name, one in match_pattern(pattern, folder).items()} for pattern in patterns]
    for name in sorted(set().union(*channels)):
        files = [files[name] for files in channels if name in files]
        if len(files) == len(channels):
            found.scans.append(tuple(files))
        else:
            missing = [pattern for pattern, files in zip(patterns, channels, strict=True) if name not in files]
            found.left_out[files[0]] = f"there is no file {' or '.join(missing)} of {name}"
