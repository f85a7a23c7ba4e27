"""The backend of MONAI bundles: the bundle's own preprocessing, inferer and postprocessing.

Everything numerical is the bundle's and MONAI's code, so that a prediction without adaptation equals that of MONAI's
own workflow.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantune.backends.base import Backend, Prepared, ReadOutput, plain_copy
from scantune.backends.quiet import quiet
from scantune.backends.scan_files import files_of
from scantune.backends.tiling import bounded_number
from scantune.errors import ScanError, error_message
from scantune.scans.case import Case
from scantune.scans.volume import Volume

PRED = "pred"
"""MONAI's name of a prediction in what postprocessing takes."""


@dataclass(frozen=True, eq=False)
class BundleScan(Prepared):
    """Scan as a bundle has prepared it.

    Attributes:
        data: What the preprocessing returned; its tensors know how they were made, for the way back.
        grid: Shape of the scan's own grid, `(x, y, z)`.
    """

    data: Mapping[str, Any]
    grid: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Bundle(Backend[BundleScan]):
    """A bundle's way from files to a network and back.

    Args:
        preprocessing: The transform of the bundle's config.
        inferer: The inferer of the config.
        postprocessing: The transforms of the config, without those that write files.
        key: Name of the image in what the preprocessing takes.
        images: Number of images that a scan consists of.
        overlapping: Whether the channels of the output are structures that may overlap. What label maps say of those
            is not known.
        amp: Whether the config has MONAI's evaluator compute in half precision, which it does on GPUs alone.
        settings: What identifies the bundle: name, version, a hash of its config.
    """

    preprocessing: Any
    inferer: Any
    postprocessing: tuple[Any, ...]
    key: str
    images: int
    overlapping: bool
    amp: bool
    settings: Mapping[str, Any]

    @property
    def channels(self) -> int:
        """Return the number of images that a scan consists of."""
        return self.images

    @property
    def window(self) -> tuple[int, ...]:
        """Return the size of the inferer's windows, as its config has it; empty where it has none."""
        # The inferer of slices makes its windows as thick as a slice, and keeps what it was given.
        size = getattr(self.inferer, "orig_roi_size", getattr(self.inferer, "roi_size", ()))
        return tuple(map(int, size)) if isinstance(size, tuple | list) else (int(size),)

    @property
    def gives_scores(self) -> bool:
        """Return True: the bundle's postprocessing takes raw outputs."""
        return True

    def prepare(self, case: Case) -> BundleScan:
        """Prepare a scan by the bundle's own transforms, from its files.

        A scan without NIfTI files, or with a brain mask, is written to a temporary file first.

        Raises:
            ScanError: The bundle cannot read or prepare it.
        """
        with files_of(case) as files:
            try:
                with torch.no_grad(), quiet():
                    data = self.preprocessing({self.key: files[0] if self.images == 1 else files})
                image = data[self.key]
                volume = torch.as_tensor(image.as_tensor() if hasattr(image, "as_tensor") else image)[None]
            except Exception as error:  # of any kind, from the code of a bundle
                raise ScanError(
                    f"The preprocessing of the bundle {self.settings['name']} fails on {case.name} ({_cause(error)}). "
                    "Give scans as the bundle was made for."
                ) from error
        outside, reference = self._outside(case, data), self._reference(case, data)
        return BundleScan(volume.float().contiguous(), outside, reference, data, case.shape)

    def _outside(self, case: Case, data: Mapping[str, Any]) -> Tensor | None:
        """Return True where a prepared scan shows what lies outside its own grid, `(1, 1, *spatial)`."""
        spatial, to_own = self._way_to_own_grid(case, data)
        steps = np.ogrid[tuple(slice(length) for length in (*spatial, 1)[:3])]
        inside = np.ones(spatial, bool)
        for row, length in zip(to_own[:3], case.shape, strict=True):
            place = sum(factor * step for factor, step in zip(row, steps, strict=False)) + row[3]
            margin = 0.5 * max(1.0, float(np.linalg.norm(row[:3]))) + 1e-3  # half of the larger voxel
            inside &= np.reshape((place >= -margin) & (place <= length - 1 + margin), spatial)
        return None if inside.all() else torch.from_numpy(~inside)[None, None]

    def _reference(self, case: Case, data: Mapping[str, Any]) -> Tensor | None:
        """Return the labels of the nearest voxels, `(1, *spatial)`."""
        from scipy.ndimage import affine_transform

        if case.reference is None or self.overlapping:
            return None
        spatial, to_own = self._way_to_own_grid(case, data)
        labels = case.reference.astype(np.int32)
        moved = affine_transform(labels, to_own[:3, :3], to_own[:3, 3], (*spatial, 1)[:3], order=0, cval=0)
        return torch.from_numpy(moved.reshape(spatial)).long()[None]

    def _way_to_own_grid(self, case: Case, data: Mapping[str, Any]) -> tuple[tuple[int, ...], NDArray[np.float64]]:
        """Return the size of a prepared scan, and the map from its voxels to those of the scan, `(4, 4)`."""
        image = data[self.key]
        to_own = np.linalg.inv(case.affine) @ np.asarray(image.affine)
        return tuple(image.shape[1:]), to_own.astype(np.float64)

    def windows(self, prepared: BundleScan) -> Volume:
        """Return windows as the inferer gives them to the network: all, or a bounded number at equal distances."""
        first = self._shown(prepared.volume[:, :1], {0})
        number = min(first.count, bounded_number(first.windows[0].shape[1:]))
        chosen = set(torch.linspace(0, first.count - 1, number).round().long().tolist())
        images = torch.stack(self._shown(prepared.volume, chosen).windows)
        inside = torch.ones_like(prepared.volume[:, :1])
        if prepared.padding is not None:
            inside[prepared.padding] = 0
        padding = torch.stack(self._shown(inside, chosen).windows) < 0.5
        reference = None
        if prepared.reference is not None:
            reference = torch.stack(self._shown(prepared.reference[:, None].float(), chosen).windows)[:, 0].long()
        share = prepared.volume[0, 0].numel() / images[:, 0].numel()
        return Volume(images, padding if padding.any() else None, reference=reference, share=share)

    def _shown(self, volume: Tensor, chosen: set[int]) -> "_WindowRecorder":
        """Let the inferer cut a volume into windows, and keep the chosen ones."""
        recorder = _WindowRecorder(chosen)
        with torch.no_grad():
            self.inferer(volume, recorder)
        return recorder

    def predict(self, network: nn.Module, prepared: BundleScan, read: ReadOutput) -> Tensor:
        """Return the raw output for a whole scan, by the bundle's inferer.

        Args:
            network: The network.
            prepared: The scan.
            read: Finds the scores in the output.
        """
        plain = plain_copy(network)
        device = next(plain.parameters()).device
        with torch.no_grad(), torch.autocast("cuda", enabled=self.amp and device.type == "cuda"):
            output = self.inferer(prepared.volume.to(device), plain)
        return torch.as_tensor(read(output)).cpu()

    def restore(self, scores: Tensor, prepared: BundleScan) -> NDArray[np.uint8]:
        """Return the labels `(x, y, z)` that the bundle's postprocessing gives.

        Raises:
            ScanError: It gives something else.
        """
        labels = self._post_processed(scores, prepared, self.postprocessing)
        if labels.shape[0] > 1:
            labels = labels.argmax(0)[None]
        return self._on_grid(labels[:1], prepared)[0]  # type: ignore[no-any-return]

    def restore_each(self, scores: Tensor, prepared: BundleScan) -> NDArray[np.uint8]:
        """Return maps of 0 and 1 of structures `(structures, x, y, z)`, before what joins them to one label map."""
        return self._on_grid(self._post_processed(scores, prepared, self._before_joining), prepared)

    @cached_property
    def _before_joining(self) -> tuple[Any, ...]:
        """Return the transforms up to the threshold, and the way back wherever it stands."""
        names = [type(one).__name__ for one in self.postprocessing]
        last = max((n for n, name in enumerate(names) if name == "AsDiscreted"), default=len(names) - 1)
        later = [one for one in self.postprocessing[last + 1 :] if type(one).__name__ == "Invertd"]
        return (*self.postprocessing[: last + 1], *later)

    def _post_processed(self, scores: Tensor, prepared: BundleScan, transforms: tuple[Any, ...]) -> NDArray[Any]:
        """Return the prediction after transforms, `(channels, *spatial)`."""
        from monai.data import MetaTensor
        from monai.transforms import Compose

        image = prepared.data[self.key]
        pred = MetaTensor(scores[0], meta=deepcopy(getattr(image, "meta", {})))
        try:
            with torch.no_grad(), quiet():
                done = Compose(transforms)({**prepared.data, PRED: pred})[PRED]
            return np.asarray(torch.as_tensor(done).cpu())
        except Exception as error:  # of any kind, from the code of a bundle
            raise ScanError(
                f"The postprocessing of the bundle {self.settings['name']} fails ({_cause(error)}). Are the packages "
                "that it needs installed?"
            ) from error

    def _on_grid(self, labels: NDArray[Any], prepared: BundleScan) -> NDArray[np.uint8]:
        """Return labels `(maps, x, y, z)` as whole numbers, which interpolation on the way back may not leave them."""
        known = labels.reshape(len(labels), *prepared.grid) if labels[0].size == math.prod(prepared.grid) else labels
        if known.shape[1:] != prepared.grid or not ((known >= 0) & (known <= 255)).all():
            raise ScanError(
                f"The postprocessing of the bundle {self.settings['name']} must give labels from 0 to 255 on the grid "
                f"{prepared.grid} of the scan, but it gives {labels.dtype} of shape {labels.shape[1:]}. Use a bundle "
                "whose postprocessing ends with a label map."
            )
        whole: NDArray[np.uint8] = np.rint(known).astype(np.uint8)
        return whole

    def voxel_ml(self, prepared: BundleScan) -> float:
        """Return the volume in mL of a voxel of a prepared scan."""
        affine = np.asarray(prepared.data[self.key].affine, np.float64)
        return float(abs(np.linalg.det(affine[:3, :3]))) / 1000

    def record(self) -> dict[str, Any]:
        """Return what identifies the bundle, as plain JSON values."""
        return {"kind": "bundle", **self.settings, "window": list(self.window), "channels": self.channels}


def _cause(error: Exception) -> str:
    """Return the first cause of an error, which MONAI hides behind the transform that fails."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return f"{type(error).__name__}: {error_message(error)}"


class _WindowRecorder(nn.Module):
    """Stands for a network: counts the windows that it is given, and keeps some.

    Args:
        chosen: Numbers of the windows to keep.
    """

    def __init__(self, chosen: set[int]) -> None:
        super().__init__()
        self.chosen, self.windows, self.count = chosen, list[Tensor](), 0

    def forward(self, images: Tensor) -> Tensor:
        """Keep windows `(windows, channels, *spatial)`, and return nothing of interest."""
        for image in images:
            if self.count in self.chosen:
                self.windows.append(image.clone())
            self.count += 1
        return torch.zeros_like(images[:, :1])
