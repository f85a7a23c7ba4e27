"""What all brain anatomies share: the tissues, and the structures that are segmented."""

from __future__ import annotations

TISSUES = ("CSF", "cortex", "deep grey", "white", "brain stem")
"""Tissues of the simulated brain; in T1w scans, deep grey matter is brighter than cortex, and brain stem a bit
darker than cerebral white matter."""

FOLDS = (0, 1, 1, 2, 2)
"""Fluid, grey and white matter vary against each other; their parts vary together."""

LABELS = {"CSF": 1, "GM": 2, "WM": 3}
"""Structures of the brain cohort and their label values; 0 is background."""

TISSUE_LABELS = {"CSF": 1, "cortex": 2, "deep grey": 2, "white": 3, "brain stem": 3}
"""Label value of each tissue."""
