"""Adapts many scans into a folder, one after another or side by side: resumable, and not stopped by a bad scan.

Nothing heavy is imported at the top, so that a mistyped path is reported at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scantune.adaptation.output_folder import OutputFolder
from scantune.adaptation.output_names import OutputNames, PlainNames, require_unique
from scantune.adaptation.parallel import side_by_side
from scantune.adaptation.scan_run import Outcome, ScanObserver, ScanRun
from scantune.adaptation.settings import AdaptSettings
from scantune.errors import InputError, ScanError
from scantune.model.source import ModelSource
from scantune.runtime.processes import cores
from scantune.scans.channels import ScanFiles, grouped_channels
from scantune.scans.discovery import unique_names
from scantune.scans.files import remove_leftovers, require_writable
from scantune.scans.manifest import read_manifest
from scantune.scans.names import scan_name

if TYPE_CHECKING:
    from scantune.model.model import Model

AnyScan = Path | str | Sequence[Path | str]
"""The file of a scan, or a sequence with a file for each channel."""

WORKERS_PER_GPU = 4
"""Processes that share a GPU by default: they take turns with it while others read, resample and write."""

GPU_BYTES_PER_WORKER = 10 * 2**30
"""Bytes of a GPU that each of them may take."""

SCANS_PER_GPU_WORKER = 3
"""Scans that a process must get on a GPU to be worth the seconds in which it starts."""


def adapt_scans(
    paths: Iterable[AnyScan],
    model: "Model | ModelSource | Path | str",
    out: Path | str,
    settings: AdaptSettings | None = None,
    *,
    overwrite: bool = False,
    pages: bool = True,
    workers: int | None = 1,
    observer: ScanObserver | None = None,
    brain_masks: Mapping[Path, Path] | None = None,
    series: str | None = None,
    dicom: bool = False,
    naming: OutputNames | None = None,
) -> list[Outcome]:
    """Adapt a model to each scan, and write segmentations, pages with an index, and a manifest.

    A scan is skipped when the folder has its results from the same file, model and settings. One that fails
    is noted in the manifest and the next one is begun. The manifest is renewed after every scan. A page that cannot be
    written is remarked upon; the scan is done without it.

    Args:
        paths: Image files or DICOM folders; `scantune.scans.discovery.find_scans` finds these in folders. For a scan of
            several channels a sequence with a file for each; or, in nnU-Net's numbering, the file of any channel.
        model: A model; or what it is loaded from, a `ModelSource`, or simply the first argument of `scantune.load`.
        out: The output folder, made where needed.
        settings: How to adapt; by default `AdaptSettings()`.
        overwrite: Whether to adapt again to scans that are done, and to replace files of another origin.
        pages: Whether each scan gets a page to look at.
        workers: Processes that adapt to scans side by side; None for as many as pay. With more than one, the model must
            be given as a file or a name, and a script of your own must have its work under
            `if __name__ == "__main__":`, since new processes import it.
        observer: Is notified of the progress.
        brain_masks: The mask of each path, outside which the scan is set to 0, as `masks_of` finds them. Of a scan of
            several files, that of the first one that has a mask.
        series: Number, description (with `*` for any letters) or UID of the DICOM series that is taken of each folder.
            By default a folder must hold a single one.
        naming: How the files of a scan are named; by default `PlainNames`.
        dicom: Whether scans from DICOM files get a segmentation in DICOM, too, which names the patient as they do.

    Returns:
        One outcome per scan, in the order given.

    Raises:
        InputError: The run cannot begin: no scan at all, no such model or method, ...
    """
    paths = list(paths)
    name_scans(paths)  # refuses paths before the model is loaded, which says how many channels a scan has
    read_manifest(Path(out))
    require_writable(Path(out))
    remove_leftovers(Path(out))
    folder = OutputFolder(Path(out), naming or PlainNames())
    source = ModelSource(model) if isinstance(model, str | Path) else model
    masks: dict[str, Path] = {}
    settings, observer = settings or AdaptSettings(), observer or ScanObserver()
    run = ScanRun(source, folder, settings, overwrite, pages, observer, masks, series, dicom)
    run.require_usable()
    named = name_scans(paths, run.model.backend.channels)
    require_unique(folder.naming, named)
    masks |= _named_masks(named, brain_masks or {})
    done = {name: outcome for name, files in named.items() if (outcome := run.finished(name, files))}
    todo = {name: files for name, files in named.items() if name not in done}
    count = choose_workers(workers, len(todo), run)
    run.observer.begin(list(todo), count)
    outcomes = _one_by_one(run, todo) if count == 1 else side_by_side(run, todo, count)
    done |= {outcome.name: outcome for outcome in outcomes}
    run.write_summaries()
    if pages:
        run.write_index()
    return [done[name] for name in named]


def _named_masks(named: Mapping[str, ScanFiles], masks: Mapping[Path, Path]) -> dict[str, Path]:
    """Return the brain mask of each scan that has one, by the scan's name."""
    found = {name: next((masks[file] for file in files if file in masks), None) for name, files in named.items()}
    return {name: mask for name, mask in found.items() if mask is not None}


def _one_by_one(run: ScanRun, scans: Mapping[str, ScanFiles]) -> Iterator[Outcome]:
    for name, files in scans.items():
        run.observer.start(name)
        outcome = run.adapt(name, files)
        run.observer.end(outcome)
        yield outcome


def name_scans(paths: Iterable[AnyScan], channels: int = 1) -> dict[str, ScanFiles]:
    """Name every scan after its files, with the folders above them where names repeat.

    Args:
        paths: A file for each scan, or a sequence with a file for each channel.
        channels: Number of channels of a scan. For several, files of nnU-Net's numbers are joined to scans.

    Raises:
        InputError: There is no scan, or none of them exists.
    """
    scans: list[ScanFiles] = []
    for path in paths:
        if isinstance(path, str | Path):
            scans += grouped_channels([Path(path)], channels)
        else:
            scans.append(tuple(map(Path, path)))
    named = unique_names(scans)
    if not named:
        raise InputError("There is no scan to adapt to. Give image files, DICOM folders or folders of images.")
    if not any(files[0].exists() for files in named.values()):
        raise ScanError(
            f"{next(iter(named.values()))[0]} does not exist: expected an image, a DICOM folder or a folder of "
            "images. Check the path."
        )
    return named


def choose_workers(asked: int | None, scans: int, run: ScanRun) -> int:
    """Return how many processes adapt to scans.

    Args:
        asked: What the user wants; None leaves it to the machine.
        scans: How many there are.
        run: What they share.

    Raises:
        InputError: The user wants what cannot be.
    """
    if asked is not None and asked < 1:
        raise InputError(f"The number of workers must be 1 or more, got {asked}.")
    several = asked is not None and asked > 1
    if several and run.settings.site:
        raise InputError(
            "Scans of one site are adapted to one after another, since each starts where the last good one ended: "
            f"--site goes with one worker, got {asked}. Leave one of the two out."
        )
    alone = run.settings.site or not isinstance(run.source, ModelSource)
    if several and alone:
        raise InputError(
            f"Each of {asked} workers loads the model by itself: give the path of a model file, or the name of a model "
            "that comes with scantune, or use one worker."
        )
    if asked is None:
        asked = 1 if alone else _default_workers(scans, run.settings.device)
    return max(min(asked, scans), 1)


def _default_workers(scans: int, device: str) -> int:
    """Return how many processes get more scans done in an hour than one of them does."""
    import torch

    from scantune.runtime.devices import find_device

    where = find_device(device)
    if where.type != "cuda":
        return 1
    room = torch.cuda.get_device_properties(where).total_memory // GPU_BYTES_PER_WORKER
    return min(WORKERS_PER_GPU, scans // SCANS_PER_GPU_WORKER, cores() // 2, room)


def masks_of(scans: Sequence[Path], given: Sequence[str]) -> dict[Path, Path]:
    """Return the brain mask of each scan.

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
    """Return the file of a pattern whose name has most in common with the scan's."""
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
