"""Contract of a backend: what stands between the files of a scan and a network."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantune.scans.case import Case
from scantune.scans.grid import Plane
from scantune.scans.volume import Volume

ReadOutput = Callable[[Any], Tensor]
"""Turns the raw output of a network into class probabilities `(slices, classes, *spatial)`, or finds its scores."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Scan as a network sees it. A backend adds what it needs for the way back.

    Attributes:
        volume: Intensities `(slices, channels, *spatial)`, float32; of a 3D network `(1, channels, depth, height,
            width)`.
        padding: True where padding was added, `(slices, 1, *spatial)`. None without padding.
        reference: Labels `(slices, *spatial)`, int64. None if the case has no reference.
    """

    volume: Tensor
    padding: Tensor | None
    reference: Tensor | None


PreparedT = TypeVar("PreparedT", bound=Prepared)


class Backend(ABC, Generic[PreparedT]):
    """What stands between the files of a scan and a network: preparation, windows, prediction and the way back.

    Type parameter `PreparedT` is the prepared scan, which each backend defines with its own way back.
    """

    @property
    def channels(self) -> int:
        """Return the number of images, one per channel, that a scan consists of."""
        return 1

    @property
    def window(self) -> tuple[int, ...] | None:
        """Return the spatial size that the network sees at once, or None if it sees whole slices or volumes.

        A prior belongs to the window that it was fitted with.
        """
        return None

    @property
    def gives_scores(self) -> bool:
        """Return whether `predict` gives scores before their activation, which a framework's export takes."""
        return False

    @abstractmethod
    def prepare(self, case: Case) -> PreparedT:
        """Prepare a scan, which has `channels` images, for the network.

        Raises:
            ScanError: The scan cannot be prepared.
        """

    def windows(self, prepared: PreparedT) -> Volume:
        """Return what statistics, steps and the assessment see of a scan, on the CPU.

        That is all slices; or, with a `window`, a bounded sample of windows in place of slices, which is the same each
        time.
        """
        return Volume(prepared.volume, prepared.padding, reference=prepared.reference)

    def predict(self, network: nn.Module, prepared: PreparedT, read: ReadOutput) -> Tensor:
        """Return the scores `(slices, classes, *spatial)` of a whole scan, on the CPU, as `restore` takes them.

        It is called for backends with a `window`; without one, the pass that measures the energy predicts as well.

        Args:
            network: The network. Windows go to its device.
            prepared: The scan.
            read: Turns outputs into probabilities; if the backend `gives_scores`, it finds the scores in them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no window")

    def readings(self, network: nn.Module, volume: Volume, read: ReadOutput) -> dict[str, float]:  # noqa: ARG002
        """Return what else can be read off a network's prediction, by name, for the manifest. By default nothing.

        Args:
            network: The network.
            volume: What `windows` has returned.
            read: Turns outputs into probabilities.
        """
        return {}

    @abstractmethod
    def restore(self, scores: Tensor, prepared: PreparedT) -> NDArray[np.uint8]:
        """Return the labels `(x, y, z)` on the scan's own grid.

        Args:
            scores: `(slices, classes, *spatial)`; class 0 is the background. A single class is the probability of a
                structure.
            prepared: The scan.
        """

    @abstractmethod
    def restore_each(self, scores: Tensor, prepared: PreparedT) -> NDArray[np.uint8]:
        """Return maps of 0 and 1 of structures that may overlap, `(structures, x, y, z)`, on the scan's own grid.

        Args:
            scores: Probability of each structure `(slices, structures, *spatial)`.
            prepared: The scan.
        """

    def joined(self, scores: Tensor, prepared: PreparedT) -> NDArray[np.uint8] | None:  # noqa: ARG002
        """Return the label map `(x, y, z)` that a framework makes of structures that may overlap. By default none.

        Args:
            scores: What `predict` has returned.
            prepared: The scan.
        """
        return None

    @abstractmethod
    def voxel_ml(self, prepared: PreparedT) -> float:
        """Return the volume in mL of a voxel of a prepared scan."""

    def remarks(self, prepared: PreparedT) -> list[str]:  # noqa: ARG002
        """Return sentences about a scan that its user has to know, such as that a part of it stays unlabelled."""
        return []

    def view(self, prepared: PreparedT, case: Case) -> Plane:  # noqa: ARG002
        """Return the plane that a page shows the scan in."""
        return "axial"

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return all settings as plain JSON values."""


def plain_copy(network: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode and in the usual memory layout; in another one, sums are rounded otherwise."""
    copy = deepcopy(network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return copy.eval()  # type: ignore[no-any-return]
