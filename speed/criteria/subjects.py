"""What the benchmark runs on: a fitted model, held-out scans of its home, and scans to adapt to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from scantune.backends import PreparedSlices
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.scans.grid import Orientation, SliceGrid


@dataclass(frozen=True)
class Scan:
    """A scan to adapt to.

    Args:
        person: Whose it is.
        shift: What differs from home.
        given: What `scantune.adapt` is called with.
        prepared: The same as the network sees it, with the reference.
    """

    person: str
    shift: str
    given: Tensor | Case
    prepared: PreparedSlices


@dataclass(frozen=True)
class Trial:
    """A network of the benchmark with everything that it is run on.

    Args:
        name: Its name.
        group: The set that it counts in: `development`, `test`, or the name of another.
        train: Trains the network; the model has no prior yet, or has the one it comes with.
        fit: Fits the prior of the model, with the product's own functions.
        held_out: Makes prepared home scans that the network was not trained on.
        scans: Names of the scans to adapt to, as pairs of person and shift.
        scan: Makes one of them.
    """

    name: str
    group: str
    train: Callable[[], Model]
    fit: Callable[[Model], Model]
    held_out: Callable[[], list[PreparedSlices]]
    scans: tuple[tuple[str, str], ...]
    scan: Callable[[str, str], Scan]

    def each(self) -> Iterator[Scan]:
        """Yield all scans."""
        return (self.scan(*names) for names in self.scans)


def prepared(images: Tensor, labels: Tensor, distance: float = 1.0, padding: Tensor | None = None) -> PreparedSlices:
    """Return a scan that is already as the network sees it `(slices, channels, *spatial)` as a prepared one."""
    size = (int(images.shape[-2]), int(images.shape[-1]))
    orientation = Orientation((2, 1, 0), (False, False, False))
    grid = SliceGrid(size, size, (0, 0), size)
    return PreparedSlices(images, padding, labels, (0.0, 1.0), orientation, grid, distance)
