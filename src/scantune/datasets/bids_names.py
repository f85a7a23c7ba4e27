"""What file names of BIDS say about which files belong together."""

from __future__ import annotations

from pathlib import Path

from scantune.scans.names import scan_name

_RAW = (
    *("sub", "ses", "sample", "task", "acq", "ce", "trc", "stain", "rec", "dir", "run", "mod", "echo", "flip", "inv"),
    *("mt", "part", "proc", "chunk"),
)  # what tells raw images apart; all other keys describe derivatives


def ending_of(derived: Path, image: Path) -> str:
    """The name of a derived file as a pattern, `*` for what it shares with the image it was made from."""
    theirs, ours = scan_name(derived).split("_"), scan_name(image).split("_")
    shared = next((n for n, parts in enumerate(zip(theirs, ours, strict=False)) if len(set(parts)) > 1), len(ours))
    return "*" + derived.name[len("_".join(theirs[:shared])) :]


def belongs(derived: Path, image: Path) -> bool:
    """Whether the name of a derived file says that it was made from an image."""
    ours, theirs = _parts(image), _parts(derived)
    contrasts = [part for part in scan_name(derived).split("_")[:-1] if "-" not in part]
    return ours == theirs and (not contrasts or scan_name(image).rsplit("_", 1)[-1] in contrasts)


def _parts(path: Path) -> dict[str, str]:
    pairs = [part.split("-", 1) for part in scan_name(path).split("_") if "-" in part]
    return {key: value for key, value in pairs if key in _RAW}
