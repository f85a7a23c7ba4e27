"""Simulated multi-centre cohorts: anatomy (tissue fractions) x acquisition (a scanner's protocol) -> cases.

They are simulations, meant for tests, demonstrations and stress tests, not a substitute for real scans.
"""

from __future__ import annotations

from scantune.simulate.acquisition import Protocol, acquire
from scantune.simulate.anatomy import Anatomy, FieldOfView, Subject
from scantune.simulate.brain import LABELS, TISSUE_LABELS
from scantune.simulate.cohort import Centre, Cohort
from scantune.simulate.icbm152 import export_atlas, icbm152
from scantune.simulate.labelmaps import label_maps
from scantune.simulate.protocols import BRAIN

__all__ = [
    "COHORTS",
    "Anatomy",
    "Centre",
    "Cohort",
    "FieldOfView",
    "Protocol",
    "Subject",
    "acquire",
    "export_atlas",
    "icbm152",
    "label_maps",
]

COHORTS: dict[str, Cohort] = {
    "brain": Cohort(
        name="brain",
        labels=LABELS,
        tissue_labels=TISSUE_LABELS,
        anatomy=icbm152,
        centres={
            BRAIN[0].name: Centre(BRAIN[0], {"train": 20, "validation": 5, "test": 10}),
            **{protocol.name: Centre(protocol, {"test": 10}) for protocol in BRAIN[1:]},
        },
    ),
}
