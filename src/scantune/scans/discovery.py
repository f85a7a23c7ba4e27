"""Scans in the folders that people have: images, nested folders, BIDS data sets, and folders of DICOM series.

A folder with images stands for these. A folder without images stands for all scans below it: images, and folders with
DICOM files. Label maps, deformations, derivatives and results are left out, and so is what cannot be read; each with
its reason.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scantune.errors import InputError, ScanError
from scantune.scans.channels import ScanFiles, name_of_files
from scantune.scans.manifest import MANIFEST
from scantune.scans.names import IMAGE_ENDINGS, images_in, is_deformation, listed_names, scan_name, split_name

_OTHER_FOLDERS = ("derivatives", "sourcedata", "code", "labels", "labelstr", "labelsts", "masks", "segmentations")
"""Names of folders, in small letters, that hold something else than scans."""

_BIDS_SUFFIXES = ("T1w", "T2w", "FLAIR", "PDw", "T2starw", "inplaneT1", "inplaneT2", "MP2RAGE", "UNIT1", "angio")
"""Suffixes of anatomical images in a BIDS data set. Functional and diffusion series are no single volumes."""


@dataclass
class FoundScans:
    """Scans, and what was left out.

    Attributes:
        scans: Image files, and folders with DICOM files.
        left_out: Why other files and folders were left out.
    """

    scans: list[Path] = field(default_factory=list)
    left_out: dict[Path, str] = field(default_factory=dict)


def find_scans(paths: Iterable[Path]) -> FoundScans:
    """Replace folders by the scans in them. Files and DICOM folders stay as they are.

    Raises:
        InputError: A folder cannot be read, or holds no scan.
    """
    found = FoundScans()
    for path in paths:
        if not path.is_dir() or _holds_dicom(path):
            found.scans.append(path)
            continue
        here = FoundScans()
        if images_in(path) or not _subfolders(path):
            _take_images(path, here)
            here.left_out |= dict.fromkeys(_folders_with_scans(path), "a subfolder; name it, too")
        else:
            _take_below(path, here)
        if not here.scans:
            raise _no_scan(path, here)
        found.scans += here.scans
        found.left_out |= here.left_out
    return found


def unique_names(scans: Iterable[ScanFiles]) -> dict[str, ScanFiles]:
    """Name every scan after its files, and after the folders above the first where several scans have one name.

    A scan that is given twice counts once.
    """
    once = {tuple(path.resolve() for path in files): files for files in scans}
    own = _numbered({place: name_of_files(once[place]) for place in once})
    names = dict(own)
    for above in range(1, max((len(place[0].parts) for place in once), default=1)):
        for place in _repeated(names):
            names[place] = "_".join([*place[0].parent.parts[-above:], own[place]])
    return {name: once[place] for place, name in names.items()}


def _numbered(names: Mapping[ScanFiles, str]) -> dict[ScanFiles, str]:
    """Return the names with a number where files beside each other have the same, such as a.nii and a.nii.gz."""
    totals = Counter((place[0].parent, name.lower()) for place, name in names.items())
    seen: Counter[tuple[Path, str]] = Counter()
    numbered = {}
    for place, name in names.items():
        key = (place[0].parent, name.lower())
        seen[key] += 1
        numbered[place] = name if totals[key] == 1 else f"{name}_{seen[key]}"
    return numbered


def _repeated(names: Mapping[ScanFiles, str]) -> list[ScanFiles]:
    """Return the places whose name another one has, too; file systems may not tell capitals apart."""
    counts = Counter(name.lower() for name in names.values())
    return [place for place, name in names.items() if counts[name.lower()] > 1]


def _take_images(folder: Path, found: FoundScans) -> None:
    """Add the images of a folder that are scans, and list what may be scans and cannot be read."""
    for path in _unreadable(folder):
        found.left_out[path] = "it cannot be read; check its permissions"
    for link in _dangling(folder):
        found.left_out[link] = "a link to a file that is not there; was the data set downloaded completely?"
    found.scans += [path for path in images_in(folder) if not split_name(path)[1] and not is_deformation(path)]


def _take_below(top: Path, found: FoundScans) -> None:
    """Add all scans of a folder and its subfolders."""
    is_bids = (top / "dataset_description.json").is_file() or any(top.glob("sub-*"))

    def unreadable(error: OSError) -> None:
        found.left_out[Path(str(error.filename))] = f"it cannot be read ({error.strerror})"

    for name, folders, _ in os.walk(top, onerror=unreadable):
        folder = Path(name)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for other in [
            each for each in folders if each.lower() in _OTHER_FOLDERS or (folder / each / MANIFEST).is_file()
        ]:
            found.left_out[folder / other] = "it holds no scans by its name, or results of scantune"
            folders.remove(other)
        if _holds_dicom(folder):
            found.scans.append(folder)
            continue
        here = FoundScans()
        _take_images(folder, here)
        found.left_out |= here.left_out
        for scan in here.scans:
            if is_bids and not scan_name(scan).endswith(_BIDS_SUFFIXES):
                found.left_out[scan] = "no anatomical image by its BIDS name"
            else:
                found.scans.append(scan)


def _no_scan(folder: Path, found: FoundScans) -> InputError:
    """Return the error of a folder without scans, which says what it holds."""
    images = images_in(folder)
    if images:
        return InputError(
            f"The folder {folder} must hold scans, but all images in it are named as label maps or deformations "
            f"({listed_names(images)}). Give the files themselves if they are scans."
        )
    reasons = "; ".join(f"{path}: {reason}" for path, reason in list(found.left_out.items())[:3])
    return ScanError(
        f"The folder {folder} must hold images or DICOM files, itself or in subfolders, but holds none"
        f"{f' ({reasons})' if reasons else ''}. Check the path."
    )


def _dangling(folder: Path) -> Iterator[Path]:
    """Yield the links of a folder that are named as images and lead nowhere."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and not path.exists() and path.name.lower().endswith(IMAGE_ENDINGS):
            yield path


def _unreadable(folder: Path) -> list[Path]:
    """Return the files of a folder that cannot be opened, and may be DICOM files. Images fail by themselves later."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    return [path for path in files if not path.name.lower().endswith(IMAGE_ENDINGS) and not os.access(path, os.R_OK)]


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _folders_with_scans(folder: Path) -> list[Path]:
    """Return the direct subfolders with DICOM files, which are easily taken to be part of the folder."""
    return [path for path in _subfolders(folder) if os.access(path, os.R_OK) and _holds_dicom(path)]


def _holds_dicom(folder: Path) -> bool:
    from scantune.scans.dicom.headers import is_dicom

    files = (path for path in folder.iterdir() if not path.name.lower().endswith(IMAGE_ENDINGS))
    return any(is_dicom(path) for path in files if os.access(path, os.R_OK))
