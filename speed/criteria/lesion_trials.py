"""Trials of lesions: a network trained on FLAIR scans of one site meets those of two others.

The scans are those of `lgg/` under the folder SCANTUNE_DATA, as `SITE_PATIENT_FLAIR.nii.gz` and `..._lesion.nii.gz`.
Rules may be chosen on the site HT; the site CS has been looked at before.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from newborn_trials import train
from subjects import Scan, Trial
from toy_networks import SmallUNet

from scantune.backends import PreparedSlices, Preprocessing
from scantune.config.settings import PriorSettings
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork
from scantune.scans.case import Case
from scantune.scans.io import read_labels, read_scan
from scantune.training.fit import fit_prior

HOME_SITE, HOME_PEOPLE = "DU", 6
SITES = {"HT": "lesions", "CS": "lesions seen"}
"""Sites of the scans that are adapted to, and the sets that they count in."""

PREPARATION = Preprocessing("axial", (128, 128), 2.0, content="nonzero")


def read(folder: Path, name: str) -> Case:
    """Read a scan with its reference."""
    scan, labels = read_scan(folder / f"{name}_FLAIR.nii.gz"), read_labels(folder / f"{name}_lesion.nii.gz")
    return replace(scan, reference=labels.labels)


def patients(folder: Path, site: str) -> list[str]:
    """Return the patients of a site, by name."""
    return sorted(path.name.removesuffix("_FLAIR.nii.gz") for path in folder.glob(f"{site}_*_FLAIR.nii.gz"))


def lesion_trials(folder: Path) -> list[Trial]:
    """Return a trial for each site, of the same network, or none without their scans."""
    data = Path(os.environ.get("SCANTUNE_DATA", "nowhere")) / "lgg"
    if not data.is_dir():
        return []
    people = patients(data, HOME_SITE)
    home = people[:: len(people) // HOME_PEOPLE][:HOME_PEOPLE]
    training = [name for name in people if name not in home]

    def trained() -> Model:
        weights = folder / "lesions.pt"
        torch.manual_seed(1)
        network = SmallUNet(2, "batch")
        if weights.exists():
            network.load_state_dict(torch.load(weights))
        else:
            train(prepared(training), network)
            torch.save(network.state_dict(), weights)
        adaptable = AdaptableNetwork.around(network.eval()).eval()
        return Model(adaptable, {"lesion": 1}, PREPARATION, {"kind": "custom"}, name="lesions")

    def prepared(names: list[str]) -> list[PreparedSlices]:
        return [PREPARATION.prepare(read(data, name)) for name in names]

    def fit(model: Model) -> Model:
        settings = PriorSettings(size=8, stride=4, components=4)
        return replace(
            model, prior=fit_prior(model, prepared(training), prepared(home), settings=settings, device="cpu")
        )

    def scan(person: str, shift: str) -> Scan:
        case = read(data, person)
        return Scan(person, shift, case, PREPARATION.prepare(case))

    held_out: Callable[[], list[PreparedSlices]] = partial(prepared, home)
    return [
        Trial(f"lesions-{site}", group, trained, fit, held_out, tuple((n, site) for n in patients(data, site)), scan)
        for site, group in SITES.items()
    ]
