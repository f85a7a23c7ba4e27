"""What an adaptation gives back: predictions before and after, energies, the decision; in memory and on disk."""

import logging
import platform
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scantune.adaptation.guard.base import Decision
from scantune.adaptation.output_names import OutputNames, PlainNames
from scantune.adaptation.prediction import Prediction
from scantune.adaptation.summary_files import write_summary_files
from scantune.backends import BACKENDS, Backend, Prepared, PreparedSlices
from scantune.backends.displacement import native_displacement
from scantune.errors import InputError, describe_error
from scantune.networks import AdaptableNetwork
from scantune.plots.colours import rgb_colours
from scantune.runtime.devices import peak_memory_mb_of_process
from scantune.scans.case import Case
from scantune.scans.io import write_displacement, write_labels
from scantune.scans.manifest import output_name, write_manifest
from scantune.tasks import Registration, painted

if TYPE_CHECKING:
    from scantune.pages import CaseView

_log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Result:
    """An adapted scan.

    Args:
        network: The adapted copy, or the source copy if the adaptation is not kept.
        source: The scan before adaptation.
        adapted: The scan after it.
        trace: A row per step: step, objective, smoothed, each term, valid.
        decision: The guard's verdict.
        case: The scan, where it came from a file.
        prepared: The scan as the network sees it, for the way back to its grid.
        labels: Structure names and their values.
        facts: Method, preset, seed, device, steps, best step, seconds, the guard's numbers.
        state: What the adaptation moved, by name, where it was kept; a start for the next scan of the site.
        backend: What prepared the scan and puts predictions back on its grid.
    """

    network: AdaptableNetwork
    source: Prediction
    adapted: Prediction
    trace: list[dict[str, Any]]
    decision: Decision
    case: Case | None = None
    prepared: Prepared | None = None
    labels: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    backend: Backend[Any] | None = None

    @cached_property
    def prediction(self) -> Any:
        """Return the labels: on the scan's own grid `(x, y, z)` for a file, else a tensor `(slices, *spatial)`.

        Of structures that may overlap, return a mask of each: `(structures, x, y, z)` of 0 and 1 for a file, else a
        tensor `(slices, structures, *spatial)`.
        """
        return self.source_prediction if self.adapted is self.source else self._on_own_grid(self.adapted)

    @cached_property
    def source_prediction(self) -> Any:
        """Return the labels before adaptation."""
        return self._on_own_grid(self.source)

    def __repr__(self) -> str:
        """Return a short description, without the tensors."""
        name = "a tensor" if self.case is None else self.case.name
        energies = f"energy_before={self.energy_before}, energy_after={self.energy_after}"
        warned = f", warnings={self.warnings}" if self.warnings else ""
        return f"Result({name}, decision={self.decision.action!r}, reason={self.decision.reason!r}, {energies}{warned})"

    @property
    def energy_before(self) -> float | None:
        """Return the FoE-CNN energy of the source network, in nats."""
        return self.source.energy

    @property
    def energy_after(self) -> float | None:
        """Return the FoE-CNN energy of the returned network, in nats."""
        return self.adapted.energy

    @property
    def warnings(self) -> list[str]:
        """Return what looks wrong about the scan or its prediction, in sentences."""
        return list(self.facts.get("warnings", ()))

    @property
    def seconds(self) -> float:
        """Return the duration of the adaptation."""
        return float(self.facts["seconds"])

    def _on_own_grid(self, survey: Prediction) -> Any:
        if self.backend is None:
            return survey.labels
        scores, task = survey.probabilities, survey.task
        if task.overlapping:
            return self.backend.restore_each(scores, self.prepared)
        if not task.exclusive and scores.shape[1] > 1 and isinstance(self.backend, tuple(BACKENDS.values())):
            # A background that is likeliest where no structure is above a half.
            scores = torch.cat([torch.full_like(scores[:, :1], 0.5), scores], 1)
        return self.backend.restore(scores, self.prepared)

    def manifest_entry(self) -> dict[str, Any]:
        """Return the manifest's entry of this scan, as JSON."""
        return self._entry(self.prediction, self.source_prediction)

    def _entry(self, adapted: Any, source: Any) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "decision": self.decision.action,
            "reason": self.decision.reason,
            **self.facts,
            "energy_before": self.energy_before,
            "energy_after": self.energy_after,
            "energies_before": self.source.energies,
            "energies_after": self.adapted.energies,
            "peak_memory_mb": peak_memory_mb_of_process(str(self.facts.get("device", "cpu"))),
            "versions": {
                "scantune": version("scantune"),
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }
        for name, survey in (("quality", self.adapted), ("source_quality", self.source)):
            if quality := survey.task.quality(survey.maps):
                entry[name] = quality
        if self.case is not None:
            voxel = self.case.voxel_volume / 1000
            entry["volumes_ml"] = self._volumes(adapted, voxel)
            entry["source_volumes_ml"] = self._volumes(source, voxel)
        return entry

    def save(self, folder: str | Path) -> dict[str, Any]:
        """Write both segmentations, `NAME_page.html` and `manifest.json`, and return the manifest's entry.

        Of a registration, `NAME_deformation.nii.gz` is written too. Volumes and label tables are written for other
        programs (`scantune.adaptation.summary_files`).
        """
        if self.case is None:
            raise InputError("Only a scan from a file has a grid to save on; use result.prediction for tensors.")
        folder = Path(folder)
        entry = self.with_page(folder, self.write_segmentations(folder))
        manifest = {"labels": self.labels, **entry, "scans": {self.case.name: entry}}
        write_manifest(folder, manifest)
        write_summary_files(folder, manifest)
        if "page_failure" in entry:
            _log.warning("%s has no page: %s", self.case.name, entry["page_failure"])
        return entry

    def write_segmentations(self, folder: Path, naming: OutputNames | None = None) -> dict[str, Any]:
        """Write both segmentations (and the deformation of a registration), and return the manifest's entry."""
        assert self.case is not None
        naming = naming or PlainNames()
        adapted, source = self.prediction, self.source_prediction
        names: dict[str, str] = {}
        for kind, labels, survey in (("segmentation", adapted, self.adapted), ("source", source, self.source)):
            for structure, part in (self._files(labels) | self._joined(survey)).items():
                key = f"{kind} {structure}" if structure else kind
                file = naming.path(self.case.name, kind, structure)
                if file in names.values():
                    raise InputError(f"Two structures would be written to {file}. Name one of them otherwise.")
                names[key] = file
                write_labels(folder / file, part, self.case)
        task, prepared = self.adapted.task, self.prepared
        if isinstance(task, Registration) and isinstance(prepared, PreparedSlices) and prepared.slab is not None:
            names["deformation"] = naming.path(self.case.name, "deformation")
            moved = native_displacement(self.adapted.maps["displacement"], prepared, self.case, task.world)
            write_displacement(folder / names["deformation"], moved, self.case)
        return self._entry(adapted, source) | {"outputs": names}

    def write_dicom_segmentation(self, path: str | Path) -> None:
        """Write the segmentation as DICOM-SEG, which names the patient as the scan's DICOM files do.

        Raises:
            InputError: The scan is not from DICOM files, or these lack what the standard demands.
        """
        from scantune.scans.dicom.segmentation import Segment, write_dicom_segmentation

        if self.case is None:
            raise InputError("Only a scan from DICOM files can have a DICOM segmentation.")
        if self.adapted.task.overlapping:
            raise InputError(
                "A DICOM segmentation is one label map, but structures may overlap: use their NIfTI files."
            )
        colours = rgb_colours(self.labels)
        segments = [Segment(name, self.labels[name], colour) for name, colour in colours.items()]
        write_dicom_segmentation(Path(path), self.prediction, self.case, segments)

    def with_dicom_segmentation(self, folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
        """Write `NAME_seg.dcm`, and return the manifest's entry with its file name, or why there is none."""
        assert self.case is not None
        name = output_name(self.case.name, "dicom")
        try:
            self.write_dicom_segmentation(folder / name)
        except Exception as error:
            _log.debug("The DICOM segmentation %s failed", folder / name, exc_info=True)
            return entry | {"dicom_failure": describe_error(error, f"{folder / name} could not be written")}
        return entry | {"outputs": {**entry["outputs"], "dicom": name}}

    def _files(self, labels: Any) -> dict[str, Any]:
        """Return what is written to a file: a label map without a name, or a mask of each structure by its name."""
        if not self.adapted.task.overlapping:
            return {"": labels}
        return {name: labels[number - 1] for name, number in self.labels.items() if 0 < number <= len(labels)}

    def _joined(self, survey: Prediction) -> dict[str, Any]:
        """Return the label map that a framework joins structures to which may overlap, if it has one."""
        if self.backend is None or not survey.task.overlapping:
            return {}
        joined = self.backend.joined(survey.probabilities, self.prepared)
        return {} if joined is None else {"": joined}

    def _volumes(self, labels: Any, voxel_ml: float) -> dict[str, float]:
        """Return the volume of each structure in mL."""
        if self.adapted.task.overlapping:
            masks = self._files(labels)
            return {name: round(float(np.count_nonzero(mask)) * voxel_ml, 3) for name, mask in masks.items()}
        return {name: round(float((labels == value).sum()) * voxel_ml, 3) for name, value in self.labels.items()}

    def _shown(self, labels: Any) -> Any:
        """Return a label map `(x, y, z)` for a page, with smaller structures on top of those that they overlap."""
        return painted(torch.from_numpy(labels)[None] > 0)[0].numpy() if self.adapted.task.overlapping else labels

    def view(self, entry: dict[str, Any]) -> "CaseView":
        """Return the content of the scan's page, given its entry in the manifest."""
        from scantune.pages import CaseView

        assert self.case is not None and self.backend is not None
        overlapping = self.adapted.task.overlapping
        before, after = (entry.get(key, {}) for key in ("source_volumes_ml", "volumes_ml"))
        return CaseView(
            self.case.name,
            self.case.image,
            self.case.affine,
            self._shown(self.source_prediction),
            self._shown(self.prediction),
            self.labels,
            entry,
            self.trace,
            None if overlapping else self.case.reference,
            self.case.site,
            self.case.subject,
            self.backend.view(self.prepared, self.case),
            {name: (before[name], after[name]) for name in after} if overlapping else {},
        )

    def with_page(self, folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
        """Write `NAME_page.html`, and return the manifest's entry with its file name.

        Results are complete without a page: if it cannot be written, the entry gives the reason as `page_failure`.
        """
        from scantune.pages import write_case

        assert self.case is not None
        name = output_name(self.case.name, "page")
        try:
            write_case(folder / name, self.view(entry))
        except Exception as error:
            _log.debug("The page %s failed", folder / name, exc_info=True)
            return entry | {"page_failure": describe_error(error, f"{folder / name} could not be written")}
        return entry | {"outputs": {**entry.get("outputs", {}), "page": name}}
