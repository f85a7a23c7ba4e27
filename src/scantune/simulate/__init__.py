"""Simulated multi-centre cohorts: anatomy (regions of a body) x acquisition (a scanner's protocol) -> cases.

They are simulations, meant for tests, demonstrations and stress tests, not a substitute for real scans.

`anatomies/` holds the people, `centres/` the protocols. A subject is drawn (`anatomy.py`; from shapes in `shaped.py`,
from templates in `atlas.py`), scanned (`acquisition.py`, with `sequences.py`, `coils.py` and `readouts.py`), and
becomes a case of a cohort (`cohort.py`).
"""

from __future__ import annotations

from scantune.simulate.acquisition import Protocol, Session, acquire
from scantune.simulate.anatomies.brain import LABELS
from scantune.simulate.anatomies.heart import Heart
from scantune.simulate.anatomies.icbm152 import export_atlas, icbm152
from scantune.simulate.anatomies.labelmaps import label_maps
from scantune.simulate.anatomies.prostate import Prostate
from scantune.simulate.anatomies.spine import ClearSpine, Spine, VariedSpine
from scantune.simulate.anatomies.wmh import WhiteMatterLesions
from scantune.simulate.anatomy import Anatomy
from scantune.simulate.atlas import Atlas
from scantune.simulate.cache import VERSION
from scantune.simulate.cohort import Cohort
from scantune.simulate.protocols import Centre, read_centres
from scantune.simulate.sequences import SEQUENCES
from scantune.simulate.subject import FieldOfView, Region, Subject
from scantune.simulate.tissues import TISSUES

__all__ = [
    "COHORTS",
    "SEQUENCES",
    "TISSUES",
    "VERSION",
    "Anatomy",
    "Atlas",
    "Centre",
    "Cohort",
    "FieldOfView",
    "Protocol",
    "Region",
    "Session",
    "Subject",
    "acquire",
    "export_atlas",
    "icbm152",
    "label_maps",
    "read_centres",
]

COHORTS: dict[str, Cohort] = {
    "prostate": Cohort("prostate", Prostate, Prostate.labels),
    "prostate-v2": Cohort("prostate-v2", Prostate, Prostate.labels),
    "cardiac": Cohort("cardiac", Heart, Heart.labels),
    "cardiac-v2": Cohort("cardiac-v2", Heart, Heart.labels),
    "spine": Cohort("spine", Spine, Spine.labels),
    "spine-v2": Cohort("spine-v2", ClearSpine, ClearSpine.labels),
    "spine-varied": Cohort("spine-varied", VariedSpine, VariedSpine.labels),
    "brain": Cohort("brain", icbm152, LABELS),
    "brain-v2": Cohort("brain-v2", icbm152, LABELS),
    "wmh": Cohort("wmh", WhiteMatterLesions, WhiteMatterLesions.labels, made_from=WhiteMatterLesions),
    "wmh-v2": Cohort("wmh-v2", WhiteMatterLesions, WhiteMatterLesions.labels, made_from=WhiteMatterLesions),
    "registration": Cohort("registration", icbm152, {"GM": 1, "WM": 2}, people="brain"),
    "contrasts": Cohort("contrasts", icbm152, LABELS, people="brain"),
}
