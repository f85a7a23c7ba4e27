"""A run over scans: what they share, the outcome of each, and the observer of the progress.

Nothing heavy is imported at the top, so that a mistyped path is reported at once.
"""

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scantune import __version__
from scantune.adaptation.output_folder import OutputFolder
from scantune.adaptation.settings import AdaptSettings
from scantune.errors import InputError, describe_error
from scantune.model.source import ModelSource
from scantune.scans.channels import ScanFiles, name_of_files
from scantune.scans.data_files import content_hash, joint_hash
from scantune.scans.manifest import ManifestEntry, read_manifest

if TYPE_CHECKING:
    from scantune.adaptation.site import Site
    from scantune.model.model import Model

_log = logging.getLogger(__name__)

_FAILED: ManifestEntry = {"status": "failed", "decision": "failed"}


@dataclass(frozen=True)
class Outcome:
    """Outcome of one scan in a run.

    Attributes:
        name: Name of the scan.
        status: `already done` if an earlier run did the work.
        entry: Entry of the manifest: decision, reason, energies, volumes, outputs, ...
    """

    name: str
    status: Literal["done", "already done", "failed"]
    entry: ManifestEntry

    @property
    def is_bad_input(self) -> bool:
        """Return whether the run failed because of the scan itself."""
        return self.status == "failed" and "traceback" not in self.entry


class ScanObserver:
    """Observer of a run over scans. This base class ignores every event."""

    def begin(self, names: Sequence[str], at_once: int = 1) -> None:
        """Receive the names of the scans to adapt, without those already done, and how many are adapted at once."""

    def start(self, name: str) -> None:
        """Receive the name of a scan whose work begins."""

    def step(self, name: str, step: int, steps: int) -> None:
        """Receive the number of a step of a scan that is done."""

    def end(self, outcome: Outcome) -> None:
        """Receive the outcome of a scan."""

    def remark(self, sentence: str) -> None:
        """Receive a remark on the whole run that stops no scan."""


@dataclass(frozen=True)
class ScanRun:
    """What all scans of a run share.

    Attributes:
        source: The model, or what it is loaded from; then every process loads its own.
        out: The output folder.
        settings: How to adapt.
        overwrite: Whether to adapt again to scans that are done, and to replace files of another origin.
        pages: Whether each scan gets a page.
        observer: Follows the progress.
        masks: The brain mask of each scan, by the scan's name; none where scans are taken as they are.
        series: Number, description or UID of the DICOM series in each folder. None for the only one.
        dicom: Whether scans from DICOM files get a segmentation in DICOM, too.
    """

    source: "Model | ModelSource"
    out: OutputFolder
    settings: AdaptSettings
    overwrite: bool
    pages: bool
    observer: ScanObserver
    masks: Mapping[str, Path] = field(default_factory=dict)
    series: str | None = None
    dicom: bool = False

    @cached_property
    def model(self) -> "Model":
        """Return the model."""
        return self.source.load() if isinstance(self.source, ModelSource) else self.source

    @cached_property
    def chosen(self) -> AdaptSettings:
        """Return the settings, with the method by its name."""
        return self.settings.with_method(self.model.task)

    @cached_property
    def fingerprint(self) -> str:
        """Return the hash of the model's content."""
        return self.model.fingerprint

    @cached_property
    def site(self) -> "Site | None":
        """Return the site that remembers the end of the last good adaptation, if that is wanted."""
        from scantune.adaptation.site import Site

        return Site(self.model, **self.chosen.arguments) if self.settings.site else None

    def require_usable(self) -> None:
        """Load the model and check everything that would be wrong for every scan alike.

        Raises:
            InputError: There is no such device, the method does not work with the model, or a package is missing.
        """
        from scantune.methods import ModelParts
        from scantune.runtime.devices import find_device
        from scantune.scans.dicom.segmentation import require_highdicom

        if self.dicom:
            require_highdicom()
        find_device(self.settings.device)
        self.chosen.make_method(ModelParts(self.model.task, self.model.prior, self.model.helpers))

    def finished(self, name: str, files: ScanFiles) -> Outcome | None:
        """Return the results in the folder if they are those that this run would produce, else None."""
        entry = self.out.entry(name)
        asked = {"status": "done", **self._asked(name, files)}
        outputs = entry.get("outputs", {})
        wanted = self.out.naming.path(name, "segmentation")
        if outputs.get("segmentation", wanted) != wanted:
            return None
        if (self.pages and "page" not in outputs) or (self.dicom and "dicom" not in outputs and _is_dicom(files[0])):
            return None
        if self.overwrite or not self.out.holds(entry) or any(entry.get(key) != asked[key] for key in asked):
            return None
        return Outcome(name, "already done", entry)

    def adapt(self, name: str, files: ScanFiles) -> Outcome:
        """Adapt to one scan and note the result in the manifest, a failure included."""
        entry: ManifestEntry = self._asked(name, files)
        recorded: ManifestEntry = {}
        try:
            if not self.overwrite:
                self.out.protect(name, entry["input_hash"], list(self.model.labels))
            entry |= {"status": "done", **self._results(name, files, entry)}
        except InputError as error:
            entry |= _FAILED | {"reason": str(error)}
            recorded = {"reason": error.recorded}
        except Exception as error:  # whatever one scan stumbles over, the next ones may be fine
            _log.debug("Adapting to %s failed", files[0], exc_info=True)
            lines = "".join(traceback.format_exception(error)).splitlines()
            reason = describe_error(error, f"{files[0]} could not be adapted to")
            entry |= _FAILED | {"reason": reason, "traceback": lines}
        return self._noted(name, entry, recorded)

    def give_up(self, name: str, files: ScanFiles, reason: str) -> Outcome:
        """Note in the manifest that a scan failed for a reason that lies in no code of ours."""
        return self._noted(name, self._asked(name, files) | _FAILED | {"reason": reason, "traceback": []})

    def _noted(self, name: str, entry: ManifestEntry, recorded: ManifestEntry | None = None) -> Outcome:
        """Note an entry in the manifest, with some values as files keep them."""
        self.out.note(name, entry | (recorded or {}), self._head())
        return Outcome(name, entry["status"], entry)

    def _asked(self, name: str, files: ScanFiles) -> ManifestEntry:
        """Return what decides the result: the scan, its brain mask, the model and the settings."""
        mask = self.masks.get(name)
        series = self.series if any(file.is_dir() for file in files) else None
        each = [{"input": file.name, "input_hash": content_hash(file)} for file in files] if len(files) > 1 else []
        return {
            "input": ", ".join(file.name for file in files),
            "input_hash": joint_hash(files, series),
            **({"channels": each} if each else {}),
            "series": series,
            "brain_mask": None if mask is None else mask.name,
            "brain_mask_hash": None if mask is None else content_hash(mask),
            "model": self.fingerprint,
            "settings": self.chosen.deciding,
        }

    def write_summaries(self) -> None:
        """Write volumes, statistics and label tables of the folder for other programs."""
        from scantune.adaptation.summary_files import write_summary_files

        try:
            more = self.out.naming.folder_files(self.model.labels)
            left = write_summary_files(self.out.path, read_manifest(self.out.path), more)
        except Exception as error:  # every result is written and noted by now
            _log.debug("The summaries of %s failed", self.out.path, exc_info=True)
            return self.observer.remark(describe_error(error, "Volumes and label tables could not be written"))
        if left:
            self.observer.remark(f"{', '.join(left)}: not replaced, as another program made it.")
        return None

    def write_index(self) -> None:
        """List all scans of the folder with links to their pages."""
        from scantune.pages import write_folder_index

        try:
            written = write_folder_index(self.out.path, read_manifest(self.out.path)["scans"])
        except Exception as error:  # every result is written and noted by now
            _log.debug("The index of %s failed", self.out.path, exc_info=True)
            return self.observer.remark(describe_error(error, "The index of the pages could not be written"))
        if not written:
            self.observer.remark("There is no index of the pages: another program made index.html, which stays.")
        return None

    def _results(self, name: str, files: ScanFiles, asked: ManifestEntry) -> ManifestEntry:
        """Adapt to a scan, write its segmentations and page, and return the manifest's entry of the result."""
        import torch

        from scantune.adaptation.adapt import adapt
        from scantune.adaptation.input import read_case

        settings = {"on_step": partial(self.observer.step, name), **self.chosen.arguments}
        if name in self.masks:
            settings["brain_mask"] = self.masks[name]
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        given = files[0] if len(files) == 1 else files
        plain = self.series is None and name == name_of_files(files)
        scan = given if plain else replace(read_case(given, self.model.backend.channels, self.series), name=name)
        result = adapt(self.model, scan, **settings) if self.site is None else self.site.adapt(scan, **settings)
        self.out.claim(name)
        entry = result.write_segmentations(self.out.path, self.out.naming)
        if self.dicom:
            entry = result.with_dicom_segmentation(self.out.path, entry)
        if not self.pages:
            return entry
        # Pages take a while: who is stopped meanwhile finds the segmentations in the manifest.
        self.out.note(name, {**asked, "status": "done", **entry}, self._head())
        return result.with_page(self.out.path, entry)

    def _head(self) -> dict[str, Any]:
        """Return the part of the manifest about the run."""
        import torch

        return {
            "scantune": __version__,
            "torch": torch.__version__,
            "model": {"name": self.model.name, "fingerprint": self.fingerprint},
            "labels": self.model.labels,
            "settings": self.chosen.record,
        }


def _is_dicom(path: Path) -> bool:
    """Return whether a scan seems to be one of DICOM files."""
    from scantune.scans.dicom.headers import is_dicom

    return path.is_dir() or is_dicom(path)
