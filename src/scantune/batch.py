"""Adapts many scans, one after another, into a folder: resumable, and not stopped by a bad scan.

Nothing heavy is imported at the top, so that a mistyped path is told at once.
"""

import hashlib
import logging
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scantune import __version__
from scantune.errors import InputError, ScanError, told
from scantune.filenames import scan_name
from scantune.outcomes import Observer, Outcome
from scantune.outputs import Entry, OutputFolder, read_manifest, require_writable

if TYPE_CHECKING:
    from scantune.modelfile import Model
    from scantune.site import Site

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdaptSettings:
    """How scans are adapted; the arguments of `scantune.adapt` under the same names."""

    method: str = "foe-cnn-pca"
    preset: str = "fast"
    steps: int | None = None
    guard: bool = True
    device: str = "auto"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    stop: Literal["stable", "typical", "never"] = "stable"
    site: bool = False
    """Whether the scans are of one site, so that each starts where the last good one ended."""

    def arguments(self) -> dict[str, Any]:
        """Return what `scantune.adapt` takes."""
        return {name: value for name, value in asdict(self).items() if name != "site"}

    def asks_for(self) -> dict[str, Any]:
        """Return what decides the result: everything but the device."""
        return {name: value for name, value in asdict(self).items() if name != "device"}


def adapt_scans(
    paths: Iterable[Path | str],
    model: "Model | Path | str",
    out: Path | str,
    settings: AdaptSettings | None = None,
    *,
    overwrite: bool = False,
    pages: bool = True,
    observer: Observer | None = None,
) -> list[Outcome]:
    """Adapt a model to each scan, and write segmentations, pages with an index, and a manifest.

    A scan is skipped when the folder has its results from the same file, model and settings. One that fails
    is noted in the manifest and the next one is begun. The manifest is renewed after every scan. A page that cannot be
    written is remarked upon; the scan is done without it.

    Args:
        paths: Image files or DICOM folders; `filenames.find_scans` makes these of folders of images.
        model: A model, or what `scantune.load` takes.
        out: The output folder, made where needed.
        settings: How to adapt; by default `AdaptSettings()`.
        overwrite: Whether to adapt again to scans that are done, and to replace files of another origin.
        pages: Whether each scan gets a page to look at.
        observer: Is told about the progress.

    Returns:
        One outcome per scan, in the order given.

    Raises:
        InputError: The run cannot begin: two scans of one name, no scan at all, no such model or method, ...
    """
    named = name_scans(paths)
    read_manifest(Path(out))
    require_writable(Path(out))
    folder = OutputFolder(Path(out))
    run = _begin(model, folder, settings or AdaptSettings(), overwrite, pages, observer or Observer())
    done = {name: outcome for name, path in named.items() if (outcome := run.finished(name, path))}
    run.observer.begin([name for name in named if name not in done])
    outcomes = [done.get(name) or run.adapt(name, path) for name, path in named.items()]
    if pages:
        run.write_index()
    return outcomes


def name_scans(paths: Iterable[Path | str]) -> dict[str, Path]:
    """Name every scan after its file; a file that is given twice counts once.

    Raises:
        InputError: There is no scan, none of them exists, or two have the same name.
    """
    named: dict[str, Path] = {}
    for path in map(Path, paths):
        other = named.setdefault(scan_name(path), path)
        if other.resolve() != path.resolve():
            raise InputError(
                f"{other} and {path} would both be written as {scan_name(path)}_seg.nii.gz. Rename one of "
                "them, or adapt them into two output folders."
            )
    if not named:
        raise InputError("There is no scan to adapt to. Give image files, DICOM folders or folders of images.")
    if not any(path.exists() for path in named.values()):
        raise ScanError(
            f"{next(iter(named.values()))} does not exist: expected an image, a DICOM folder or a folder of "
            "images. Check the path."
        )
    return named


@dataclass(frozen=True)
class _Run:
    """What all scans of a run share."""

    model: "Model"
    fingerprint: str
    out: OutputFolder
    settings: AdaptSettings
    overwrite: bool
    pages: bool
    observer: Observer
    site: "Site | None"

    def finished(self, name: str, path: Path) -> Outcome | None:
        """Tell what lies in the folder, when it is just what this run would make of the scan."""
        entry = self.out.entry(name)
        asked = {"status": "done", **self._asked(path)}
        if self.pages and "page" not in entry.get("outputs", {}):
            return None
        if self.overwrite or not self.out.holds(entry) or any(entry.get(key) != asked[key] for key in asked):
            return None
        return Outcome(name, "already done", entry)

    def adapt(self, name: str, path: Path) -> Outcome:
        """Adapt to one scan and note in the manifest what came of it, a failure included."""
        self.observer.start(name)
        failed = {"status": "failed", "decision": "failed"}
        entry: Entry = self._asked(path)
        try:
            if not self.overwrite:
                self.out.protect(name, entry["input_hash"])
            entry |= {"status": "done", **self._results(name, path, entry)}
        except InputError as error:
            entry |= failed | {"reason": str(error)}
        except Exception as error:  # whatever one scan stumbles over, the next ones may be fine
            _log.debug("Adapting to %s failed", path, exc_info=True)
            lines = "".join(traceback.format_exception(error)).splitlines()
            reason = told(error, f"{path} could not be adapted to")
            entry |= failed | {"reason": reason, "traceback": lines}
        self.out.note(name, entry, self._head())
        outcome = Outcome(name, entry["status"], entry)
        self.observer.end(outcome)
        return outcome

    def _asked(self, path: Path) -> Entry:
        """Return what decides the result: the scan, the model and the settings."""
        return {
            "input": path.name,
            "input_hash": _content_hash(path),
            "model": self.fingerprint,
            "settings": self.settings.asks_for(),
        }

    def write_index(self) -> None:
        """List all scans of the folder with links to their pages."""
        from scantune.pages import write_folder_index

        try:
            written = write_folder_index(self.out.path, read_manifest(self.out.path)["scans"])
        except Exception as error:  # every result is written and noted by now
            _log.debug("The index of %s failed", self.out.path, exc_info=True)
            return self.observer.remark(told(error, "The index of the pages could not be written"))
        if not written:
            self.observer.remark("There is no index of the pages: index.html is another program's, and left alone.")
        return None

    def _results(self, name: str, path: Path, asked: Entry) -> Entry:
        """Adapt to a scan, write its segmentations and page, and return what the result tells about itself."""
        import torch

        from scantune.adapt import adapt

        settings = {"on_step": self.observer.step, **self.settings.arguments()}
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        result = adapt(self.model, path, **settings) if self.site is None else self.site.adapt(path, **settings)
        entry = result.write_segmentations(self.out.path)
        if not self.pages:
            return entry
        # Pages take a while: who is stopped meanwhile finds the segmentations in the manifest.
        self.out.note(name, {**asked, "status": "done", **entry}, self._head())
        return result.with_page(self.out.path, entry)

    def _head(self) -> dict[str, Any]:
        """Return what the manifest tells about the run."""
        import torch

        return {
            "scantune": __version__,
            "torch": torch.__version__,
            "model": {"name": self.model.name, "fingerprint": self.fingerprint},
            "labels": self.model.labels,
            "settings": asdict(self.settings),
        }


def _begin(
    model: "Model | Path | str",
    out: OutputFolder,
    settings: AdaptSettings,
    overwrite: bool,
    pages: bool,
    observer: Observer,
) -> _Run:
    """Load the model and check all that can be wrong for every scan alike."""
    from scantune.adapt import PRESETS
    from scantune.devices import find_device
    from scantune.methods import Equipment, find_method
    from scantune.modelfile import load
    from scantune.settings import require_seed
    from scantune.site import Site

    method = find_method(settings.method)
    if settings.preset not in PRESETS:
        raise InputError(f"Unknown preset {settings.preset!r}. Available: {', '.join(PRESETS)}.")
    if settings.steps is not None and settings.steps < 0:
        raise InputError(f"The number of steps must be 0 or more, got {settings.steps}.")
    require_seed(settings.seed)
    find_device(settings.device)
    loaded = load(model) if isinstance(model, str | Path) else model
    method(Equipment(loaded.task, loaded.prior, loaded.helpers), settings.options)
    site = Site(loaded, **settings.arguments()) if settings.site else None
    return _Run(loaded, loaded.fingerprint, out, settings, overwrite, pages, observer, site)


def _content_hash(path: Path) -> str:
    """Return a short hash of what a file, or the files of a folder, hold; empty where that cannot be read."""
    digest = hashlib.sha256()
    try:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(file.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()[:16]
