"""Structures that pass through a scan, such as the spinal cord.

Such a structure goes on beyond both ends of a scan, so that its volume says how much of it was scanned, not whether a
prediction is right. What can be compared is its cross-section: the volume per length that the slices cover.
"""

from torch import Tensor

from scantune.tasks import structure_mask

END_SHARE = 0.5
"""Least area in the first and in the last slice, as a share of the mean area, of a structure that goes on beyond."""


def passing_structures(labels: Tensor, structures: int) -> tuple[bool, ...]:
    """Tell for each structure whether it goes on beyond the first and the last slice of labels `(slices, ...)`."""
    if len(labels) < 2:
        return (False,) * structures
    masks = (structure_mask(labels, value) for value in range(1, structures + 1))
    areas = [mask.flatten(1).sum(1).double() for mask in masks]
    return tuple(bool(area.sum() > 0 and area[[0, -1]].min() >= END_SHARE * area.mean()) for area in areas)
