"""The input of an adaptation: a scan, made ready for the network, and where it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantune.errors import InputError
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.scans.io import read_scan
from scantune.scans.preprocess import Prepared
from scantune.scans.volume import Volume

BrainMask = str | Path | Case | NDArray[Any]
"""A file, a `Case`, or an array `(x, y, z)` on the scan's grid; above 0 where the scan is kept."""

LEAST_ZERO = 0.2
"""A scan of which less is 0 has something outside the brain: of the smallest box about a brain, half is empty."""


@dataclass(frozen=True)
class AdaptationInput:
    """The input of a run.

    Args:
        volume: What the network sees.
        prepared: The way back to the scan's grid, where it came from a file.
        case: That scan, stripped where there was a brain mask.
        told: What a manifest tells of it.
    """

    volume: Volume
    prepared: Prepared | None = None
    case: Case | None = None
    told: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        network: nn.Module | Model,
        scan: Tensor | Case | str | Path,
        mask: Tensor | None = None,
        brain_mask: BrainMask | None = None,
    ) -> Self:
        """Reads and prepares a scan as a model wants it; the arguments are those of `scantune.adapt`."""
        if isinstance(scan, Tensor):
            _require_volume(scan, brain_mask)
            return cls(Volume(scan.float(), mask))
        if not isinstance(network, Model):
            raise InputError(
                "A scan given as a file needs a model that says how to prepare it (scantune.load); a plain network "
                "takes a tensor (slices, channels, height, width)."
            )
        case = scan if isinstance(scan, Case) else read_scan(scan)
        told = {}
        if brain_mask is not None:
            case, name = _stripped(case, brain_mask)
            told = {"brain_mask": name}
        prepared = network.preprocessing.apply(case)
        return cls(Volume(prepared.volume, prepared.padding, prepared.distance), prepared, case, told)

    def remarks(self, network: nn.Module | Model) -> list[str]:
        """Sentences on what the scan lacks that scans had in training."""
        if not isinstance(network, Model) or self.case is None or self.told:
            return []
        zero = float((self.case.image == 0).mean())
        if not network.provenance.get("stripped") or zero >= LEAST_ZERO:
            return []
        return [
            f"The model was trained on scans that are 0 outside the brain, but {zero:.0%} of this one is: give a "
            "brain mask."
        ]


def _require_volume(volume: Tensor, brain_mask: BrainMask | None) -> None:
    """Check what was given as a tensor.

    Raises:
        InputError: It is not as a network takes it.
    """
    if volume.ndim not in (4, 5) or not volume.numel():
        raise InputError(
            f"The volume has shape {tuple(volume.shape)}, expected (slices, channels, height, width), or "
            "(1, channels, depth, height, width) for a 3D network."
        )
    if not torch.isfinite(volume).all():
        raise InputError("The volume holds NaN or infinite values; repair it before adapting to it.")
    if brain_mask is not None:
        raise InputError(
            "A brain mask is for a scan given as a file or Case, before it is prepared; a tensor is taken as prepared: "
            "set it to 0 outside the brain before that."
        )


def _stripped(case: Case, brain_mask: BrainMask) -> tuple[Case, str]:
    """A scan within a mask, and what the mask is called."""
    if isinstance(brain_mask, str | Path):
        return case.stripped(read_scan(brain_mask)), Path(brain_mask).name
    if isinstance(brain_mask, Case):
        return case.stripped(brain_mask), brain_mask.name
    array = np.asarray(brain_mask)
    return case.stripped(replace(case, name="The brain mask", image=array.astype(np.float32))), "an array"
