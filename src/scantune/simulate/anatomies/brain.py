"""What all brain anatomies share: the regions, and the structures that are segmented."""

from __future__ import annotations

from scantune.simulate.subject import Region

TISSUES = (
    Region("CSF", "CSF", "CSF", texture=0.0),
    Region("cortex", "cortex", "GM"),
    Region("deep grey", "deep grey", "GM"),
    Region("white", "white", "WM"),
    Region("brain stem", "brain stem", "WM"),
)
"""Regions of the simulated brain, one per tissue; in T1w scans, deep grey matter is brighter than cortex, and brain
stem a bit darker than cerebral white matter."""

LABELS = {"CSF": 1, "GM": 2, "WM": 3}
"""Structures of these regions and their label values; 0 is background."""

FIELDS = {"CSF": 0, "cortex": 1, "deep grey": 1, "white": 2, "brain stem": 2}
"""Number of the random field that shapes a tissue: fluid, grey and white matter vary against each other; their parts
vary together."""


def folds(regions: tuple[Region, ...]) -> tuple[int, ...]:
    """Return the number of each region's random field; regions that are no brain tissue vary with the fluid."""
    return tuple(FIELDS.get(region.tissue, 0) for region in regions)
