"""Structures in label maps, and in masks of structures that may overlap."""

import torch
from torch import Tensor


def structure_mask(labels: Tensor, value: int) -> Tensor:
    """Return where a structure is, `(slices, *spatial)`.

    Args:
        labels: A label map `(slices, *spatial)`, or masks `(slices, structures, *spatial)` of type bool.
        value: The label of the structure; masks are counted from 1.
    """
    return labels[:, value - 1] if are_masks(labels) else labels == value


def are_masks(labels: Tensor) -> bool:
    """Return whether labels are masks of structures that may overlap, as `Segmentation.labels` returns them."""
    return labels.dtype == torch.bool


def structure_counts(labels: Tensor, structures: int) -> Tensor:
    """Count the pixels of each structure, without background, `(structures,)`."""
    if are_masks(labels):
        return labels.transpose(0, 1).flatten(1).sum(1)
    return torch.bincount(labels.flatten(), minlength=structures + 1)[1 : structures + 1]


def painted(masks: Tensor) -> Tensor:
    """Return a label map `(slices, *spatial)` that shows masks, smaller structures on top of larger ones."""
    shown = torch.zeros_like(masks[:, 0], dtype=torch.long)
    for number in structure_counts(masks, masks.shape[1]).argsort(descending=True, stable=True).tolist():
        shown[masks[:, number]] = number + 1
    return shown
