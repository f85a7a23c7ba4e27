"""Removal by N4 of the bias field, the uneven brightness that a coil leaves in a scan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import ScanError
from scantune.scans.case import Case

N4_SHRINK = 4
"""Factor by which the grid is coarser on which the bias field is estimated, along axes that are long enough."""


def remove_bias(case: Case, content: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
    """Return the scan's intensities `(x, y, z)` divided by the smooth bias field that N4 finds in them.

    Args:
        case: The scan. The field is estimated on a grid coarser by `N4_SHRINK`, and applied on the scan's own.
        content: Voxels `(x, y, z)` to estimate the field from. None takes those above Otsu's threshold.
    """
    import SimpleITK

    def to_itk(array: NDArray[Any]) -> Any:
        # A single slice has no third axis to fit splines along.
        image = SimpleITK.GetImageFromArray(np.squeeze(array.T))
        image.SetSpacing([edge for edge, length in zip(case.spacing, case.shape, strict=True) if length > 1])
        return image

    try:
        image = to_itk(case.image)
        mask = SimpleITK.OtsuThreshold(image, 0, 1) if content is None else to_itk(content.astype(np.uint8))
        mask &= image > 0
        shrink = [max(1, min(N4_SHRINK, length // 8)) for length in image.GetSize()]
        corrector = SimpleITK.N4BiasFieldCorrectionImageFilter()
        corrector.Execute(SimpleITK.Shrink(image, shrink), SimpleITK.Shrink(mask, shrink))
        field = SimpleITK.GetArrayFromImage(corrector.GetLogBiasFieldAsImage(image)).T.reshape(case.shape)
    except (RuntimeError, ValueError) as error:
        raise ScanError(
            f"{case.name} must be a picture in which N4 can find a bias field, but N4 fails at shape "
            f"{case.shape}. Check the scan, or use a model without N4."
        ) from error
    return np.asarray(case.image / np.exp(field), np.float32)
