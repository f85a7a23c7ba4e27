"""Input of an adaptation: a scan as files, a case or a tensor, and its brain mask."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantune.adaptation.prediction import Prediction
from scantune.backends import Backend, Prepared
from scantune.backends.tiling import Tiling
from scantune.errors import InputError
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.scans.io import read_files, read_scan
from scantune.scans.objects import case_from_image, is_image
from scantune.scans.volume import Volume, is_finite
from scantune.tasks import OutputChoice, Task, main_output
from scantune.tasks.trial import padded_for, require_answer

BrainMask = str | Path | Case | NDArray[Any]
"""A file, a `Case`, or an array `(x, y, z)` on the scan's grid; above 0 where the scan is kept."""

AnyScanFiles = str | Path | Sequence[str | Path]
"""The file of a scan, or one file per channel."""


@dataclass(frozen=True)
class ScanInput:
    """A scan that is adapted to.

    Attributes:
        volume: What statistics, steps and the assessment see.
        case: The scan, if it was given as files or as a case.
        backend: What prepared it.
        prepared: The prepared scan.
        stripped_by: Name of its brain mask.
        tiling: Windows of a larger tensor.
        size: Spatial size of slices before they were padded; None if they were not.
    """

    volume: Volume
    case: Case | None = None
    backend: Backend[Any] | None = None
    prepared: Prepared | None = None
    stripped_by: str | None = None
    tiling: Tiling | None = None
    size: tuple[int, ...] | None = None

    @classmethod
    def of_tensor(cls, volume: Volume, window: tuple[int, ...] | None) -> "ScanInput":
        """Take a tensor as it is, or windows of it if it is larger than the window that the prior was fitted with."""
        images = volume.images
        if window is None or tuple(images.shape[2:]) == window:
            return cls(volume)
        if len(window) != images.ndim - 2:
            raise InputError(
                f"The prior was fitted to windows of {len(window)} dimensions, but the volume has shape "
                f"{tuple(images.shape)}. Give a volume as the network takes it."
            )
        tiling = Tiling(window)
        return cls(
            tiling.sample(images, volume.padding), prepared=Prepared(images, volume.padding, None), tiling=tiling
        )

    @classmethod
    def of_files(cls, scan: Case | AnyScanFiles, model: Model, brain_mask: BrainMask | None = None) -> "ScanInput":
        """Prepare a scan that is given as files or as a case.

        Raises:
            InputError: It cannot be read or prepared, or has another number of channels than the model.
        """
        backend = model.backend
        case, stripped_by = case_of(scan, brain_mask, backend.channels)
        if len(case.channels) != backend.channels:
            raise InputError(
                f"The model {model.name} takes scans of {_counted(backend.channels)}, but {case.name} has "
                f"{len(case.channels)}. Give one file per channel, in the order of the training."
            )
        prepared = backend.prepare(case)
        return cls(backend.windows(prepared), case, backend, prepared, stripped_by)

    @property
    def knows_voxels(self) -> bool:
        """Return True if the volume of a voxel is known; tensors do not state it."""
        return self.backend is not None

    @property
    def voxel_ml(self) -> float:
        """Return the volume in mL of a voxel, counting 1 mm for what is not known."""
        return 1e-3 if self.backend is None else self.backend.voxel_ml(self.prepared)

    @property
    def remarks(self) -> list[str]:
        """Return sentences on what was repaired in the scan, and on what the network sees of it."""
        if self.case is None or self.backend is None:
            return []
        return [*self.case.remarks, *self.backend.remarks(self.prepared)]

    def to(self, device: torch.device) -> "ScanInput":
        """Return the input with its volume on a device."""
        return replace(self, volume=self.volume.to(device))

    def padded_for(self, network: nn.Module, choice: OutputChoice) -> "ScanInput":
        """Return the input with slices that a network takes, padded if they must be.

        Raises:
            InputError: The network takes none, or its output cannot be read.
        """
        if self.tiling is not None or (self.backend is not None and self.backend.window is not None):
            require_answer(network, self.volume.images[:1], choice)  # windows have the size that was chosen for them
            return self
        padded = padded_for(network, self.volume, choice)
        return self if padded is self.volume else replace(self, volume=padded, size=tuple(self.volume.images.shape[2:]))

    def readings(self, network: nn.Module, task: Task, when: str = "") -> dict[str, float]:
        """Return what the backend reads off a network's prediction, under names that end with a word."""
        if self.backend is None:
            return {}
        found = self.backend.readings(network, self.volume, task.probabilities)
        return {f"{name}{when}": value for name, value in found.items()}

    def whole(self, network: nn.Module, seen: Prediction) -> Prediction:
        """Return the prediction of the whole scan, given that of its windows or padded slices."""
        read = seen.task.probabilities
        if self.tiling is not None and self.prepared is not None:
            return replace(seen, probabilities=self.tiling.predict(network, self.prepared.volume, read))
        if self.backend is None or self.backend.window is None:
            return seen if self.size is None else seen.cropped(self.size)
        if not self.backend.gives_scores:
            return replace(seen, probabilities=self.backend.predict(network, self.prepared, read))
        scores = self.backend.predict(network, self.prepared, partial(main_output, choice=seen.task.output))
        return replace(seen, probabilities=scores, activation=seen.task.activated)


def _counted(channels: int) -> str:
    return "1 channel" if channels == 1 else f"{channels} channels"


def volume_of(images: Tensor, mask: Tensor | None = None, brain_mask: BrainMask | None = None) -> Volume:
    """Return the volume of a scan that is given as a tensor.

    Raises:
        InputError: The tensor is not as a network takes it.
    """
    if images.ndim not in (4, 5) or not images.numel():
        raise InputError(
            f"The volume has shape {tuple(images.shape)}, expected (slices, channels, height, width), or "
            "(1, channels, depth, height, width) for a 3D network."
        )
    if not is_finite(images):
        raise InputError("The volume holds NaN or infinite values; repair it before adapting to it.")
    if brain_mask is not None:
        raise InputError(
            "A brain mask is for a scan given as a file or Case, before it is prepared; a tensor is taken as prepared: "
            "set it to 0 outside the brain before that."
        )
    return Volume(images.float(), mask)


def read_case(scan: Case | AnyScanFiles | Any, channels: int = 1, series: str | None = None) -> Case:
    """Return a scan that is given as a case, an image of nibabel or SimpleITK, or files.

    Args:
        scan: The scan.
        channels: Number of channels that are looked for in the volumes of one file, and in files of nnU-Net's numbers.
        series: Number, description or UID of a DICOM series. None for the only one of a folder.

    Raises:
        InputError: It is nothing of the kind, or cannot be read.
    """
    if isinstance(scan, Case):
        return scan
    if is_image(scan):
        return case_from_image(scan)
    if isinstance(scan, str | Path):
        return read_files([scan], channels, series)
    if isinstance(scan, list | tuple) and all(isinstance(each, str | Path) for each in scan):
        return read_files(scan, channels, series)
    raise InputError(
        "A scan must be a file, a list of files (one per channel), an image of nibabel or SimpleITK, a Case or a "
        f"tensor, but is a {type(scan).__name__}."
    )


def case_of(
    scan: Case | AnyScanFiles, brain_mask: BrainMask | None = None, channels: int = 1
) -> tuple[Case, str | None]:
    """Return a scan, set to 0 outside its brain mask, and the name of the mask."""
    case = read_case(scan, channels)
    return (case, None) if brain_mask is None else _stripped(case, brain_mask)


def _stripped(case: Case, brain_mask: BrainMask) -> tuple[Case, str]:
    """Return a scan that is 0 outside a mask, and the name of the mask."""
    if isinstance(brain_mask, str | Path):
        return case.stripped(read_scan(brain_mask)), Path(brain_mask).name
    if isinstance(brain_mask, Case):
        return case.stripped(brain_mask), brain_mask.name
    array = np.asarray(brain_mask)
    return case.stripped(replace(case, name="The brain mask", image=array.astype(np.float32))), "an array"
