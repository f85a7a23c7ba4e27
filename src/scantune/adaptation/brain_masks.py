"""Which file is the brain mask of which scan."""

from collections.abc import Sequence
from pathlib import Path

from scantune.errors import InputError
from scantune.scans.names import scan_name


def masks_of(scans: Sequence[Path], given: Sequence[str]) -> dict[Path, Path]:
    """The brain mask of each scan.

    Args:
        scans: Image files or DICOM folders.
        given: A file for each, in their order; or one pattern, such as `*_mask.nii.gz`, of files beside each scan,
            whose `*` is the beginning of the scan's name, or all of it; or nothing.

    Raises:
        InputError: There are more or fewer masks than scans, or the pattern has none for a scan.
    """
    if not given:
        return {}
    if len(given) == 1 and "*" in given[0]:
        return {scan: _beside(scan, given[0]) for scan in scans}
    if len(given) != len(scans):
        raise InputError(
            f"There are {len(given)} brain masks for {len(scans)} scans: give one for each, in their order, or one "
            "pattern in quotes, such as '*_mask.nii.gz', of files beside the scans."
        )
    return {scan: Path(mask) for scan, mask in zip(scans, given, strict=True)}


def _beside(scan: Path, pattern: str) -> Path:
    """The file of a pattern whose name has most in common with the scan's."""
    from scantune.datasets.patterns import match_pattern

    name = scan_name(scan)
    found = {mask: one.path for mask, one in match_pattern(pattern, scan.parent).items() if one.path != scan}
    mine = [mask for mask in found if mask == name or name.startswith(tuple(mask + sign for sign in "_-."))]
    if not mine:
        raise InputError(
            f"{scan} has no brain mask: expected a file {pattern} beside it whose * is {name}, or what that begins "
            "with. Make one, or check the pattern."
        )
    return found[max(mine, key=len)]
