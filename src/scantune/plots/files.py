"""Figures as files, and labels laid over a panel."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scantune.scans.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save_figure(figure: "Figure", path: Path | str, dots_per_inch: int = 110) -> None:
    """Write a figure, completely or not at all. The suffix of the name decides the format.

    Raises:
        InputError: The file cannot be written.
    """
    write_whole(Path(path), lambda temporary: figure.savefig(temporary, dpi=dots_per_inch))


def overlay_labels(panel: "Axes", labels: NDArray[Any], colours: Mapping[int, str]) -> None:
    """Overlay labels `(height, width)` on a panel, each value in its colour, and other values transparent."""
    from matplotlib.colors import to_rgba

    layer = np.zeros((*labels.shape, 4))
    for value, colour in colours.items():
        layer[labels == value] = to_rgba(colour)
    panel.imshow(layer, interpolation="nearest", aspect=panel.get_aspect())
