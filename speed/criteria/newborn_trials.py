"""Trials of newborns: a network trained on T2w scans of one site meets T1w scans and another site.

The scans are those of `neonates/` under the folder SCANTUNE_DATA, coronal slices as `NAME_img.nii.gz` and
`NAME_lab.nii.gz` with cortical grey matter 1 and white matter 2. They have been looked at before: no rule may be called
tested on them.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from subjects import Scan, Trial
from torch.nn import functional as F
from toy_networks import SmallUNet
from toys import SIZE

from scantune.backends import PreparedSlices, Preprocessing
from scantune.config.settings import PriorSettings
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork
from scantune.scans.case import Case
from scantune.scans.io import read_labels, read_scan
from scantune.tasks import soft_dice_loss
from scantune.training.fit import fit_prior

SPACING, SLICES, ITERATIONS, RATE, BATCH = 1.71875, 10, 700, 4e-3, 8
TRAINING = [f"A2_{number:02d}" for number in (1, 3, 4, 5, 6, 7, 8, 10, 11, 12)]
HOME = [f"A2_{number:02d}" for number in range(13, 21)]
SITES = {
    "newborns": {"A1": range(16, 21), "M1": range(1, 6), "M2": range(1, 6)},
    "newborns, others": {"M1": range(6, 11), "M2": range(6, 11)},
}
"""People by set, site and contrast: 1 for T1w, 2 for T2w. Rules may be chosen on the first set."""

PREPARATION = Preprocessing("coronal", (SIZE, SIZE), SPACING, content="nonzero")


def read(folder: Path, name: str, every: bool = False) -> Case:
    """Read a scan with its reference: some slices at equal distances, or every one with content."""
    scan, labels = read_scan(folder / f"{name}_img.nii.gz"), read_labels(folder / f"{name}_lab.nii.gz")
    full = np.flatnonzero((scan.image > 0).mean((0, 2)) > 0.02)
    apart = 1 if every else max(len(full) // SLICES, 1)
    kept = full[::apart]
    affine = scan.affine.copy()
    affine[:3, 3] += affine[:3, 1] * kept[0]
    affine[:3, 1] *= apart
    return replace(scan, image=scan.image[:, kept], affine=affine, reference=labels.labels[:, kept], header=None)


def train(scans: list[PreparedSlices], network: SmallUNet) -> None:
    """Train a network on slices of scans, with varied intensities and mirrored at random."""
    torch.manual_seed(1)
    images = torch.cat([scan.volume for scan in scans])
    labels = torch.cat([scan.reference for scan in scans if scan.reference is not None])
    adam = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, RATE, total_steps=ITERATIONS)
    network.train()
    for _ in range(ITERATIONS):
        drawn = torch.randint(len(images), (BATCH,))
        seen, true = images[drawn], labels[drawn]
        gamma, gain, side = torch.rand(3).tolist()
        noise = 0.03 * torch.randn(seen.shape) * (seen > 0)
        seen = (seen ** (0.75 + 0.6 * gamma) * (0.85 + 0.3 * gain) + noise).clamp(0, 1)
        seen, true = (seen.flip(-1), true.flip(-1)) if side < 0.5 else (seen, true)
        adam.zero_grad()
        logits = network(seen)
        (soft_dice_loss(logits.softmax(1), true) + F.cross_entropy(logits, true)).backward()
        adam.step()
        schedule.step()


def newborn_trials(folder: Path) -> list[Trial]:
    """Return a trial for each set of people, of the same network, or none without their scans."""
    data = Path(os.environ.get("SCANTUNE_DATA", "nowhere")) / "neonates"
    if not data.is_dir():
        return []

    def trained() -> Model:
        weights = folder / "newborns" / "network.pt"
        torch.manual_seed(1)
        network = SmallUNet(3, "batch")
        if weights.exists():
            network.load_state_dict(torch.load(weights))
        else:
            train([PREPARATION.prepare(read(data, name, every=True)) for name in TRAINING], network)
            weights.parent.mkdir(parents=True, exist_ok=True)
            torch.save(network.state_dict(), weights)
        adaptable = AdaptableNetwork.around(network.eval()).eval()
        return Model(adaptable, {"GM": 1, "WM": 2}, PREPARATION, {"kind": "custom"}, name="newborns")

    def prepared(names: list[str]) -> list[PreparedSlices]:
        return [PREPARATION.prepare(read(data, name)) for name in names]

    def fit(model: Model) -> Model:
        settings = PriorSettings(size=8, stride=4, components=4)
        return replace(
            model, prior=fit_prior(model, prepared(TRAINING), prepared(HOME), settings=settings, device="cpu")
        )

    def scan(person: str, shift: str) -> Scan:
        case = read(data, f"{shift}_{person}")
        return Scan(person, shift, case, PREPARATION.prepare(case))

    def trial(group: str) -> Trial:
        names = tuple((f"{number:02d}", site) for site, people in SITES[group].items() for number in people)
        return Trial(group.replace(", ", "-"), group, trained, fit, lambda: prepared(HOME), names, scan)

    return [trial(group) for group in SITES]
