"""Warnings about one scan: what looks wrong about the scan, or about the prediction for it.

They are further readings of the one verdict: a prediction for a scan with warnings is doubtful at best.
"""

import math
from collections.abc import Sequence

from torch import nn

from scantune.adaptation.input import ScanInput
from scantune.adaptation.prediction import Prediction
from scantune.model.model import Model
from scantune.prior.calibration import Calibration
from scantune.prior.coverage import Shown
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.prior.home_readings import HomeReadings
from scantune.scans.case import Case

LEAST_ZERO = 0.2
"""Share of zeros below which a scan shows more than the brain. Half of the smallest box around a brain is empty."""

ABSURD_DEVIATIONS, ABSURD_FACTOR = 4.0, 2.0
"""Deviations of the logarithm, and factor, by which an absurd volume differs from that at home, both at once."""

USUALLY_THERE = 0.5
"""Share of home people without a structure below which a scan without it gets a warning."""


def scan_warnings(
    network: nn.Module | Model,
    given: ScanInput,
    prior: FieldOfExperts | None,
    before: Prediction,
    after: Prediction,
    verdict: str,
) -> list[str]:
    """Return sentences about what looks wrong, from the file's header to the prediction.

    Args:
        network: The model, or a plain network.
        given: The scan.
        prior: Knows what is usual, if it is calibrated.
        before: The source prediction.
        after: The prediction that is handed out.
        verdict: The verdict on it; empty if there is none.
    """
    known = None if prior is None else prior.calibration
    found = [] if given.case is None else list(given.case.warnings)
    if isinstance(network, Model) and given.case is not None and given.stripped_by is None:
        found += _skull(network, given.case)
    if known is not None:
        found += _coverage(known, given) + _energy(known, before, verdict)
    names = sorted(network.labels, key=lambda name: network.labels[name]) if isinstance(network, Model) else []
    home = None if known is None else known.home
    if home is not None:
        home = home.for_voxels(given.knows_voxels)
    return found + prediction_warnings(after, home, given.voxel_ml, names, given.volume.length)


def _skull(model: Model, case: Case) -> list[str]:
    """Return a warning about a scan with a skull, if the model was trained on scans without one."""
    zero = float((case.image == 0).mean())
    if not model.provenance.get("stripped") or zero >= LEAST_ZERO:
        return []
    return [
        f"The model was trained on scans that are 0 outside the brain, but {zero:.0%} of this one is. "
        "Give a brain mask (--brain-mask)."
    ]


def _coverage(known: Calibration, given: ScanInput) -> list[str]:
    """Return warnings about the extent of a scan."""
    if known.coverage is None:
        return []
    shown = None
    if given.case is not None and given.prepared is not None:
        shown = Shown.of(given.prepared.volume, given.prepared.padding, given.voxel_ml)
    slices = None if known.home is not None and known.home.all_pass else len(given.volume.images)
    return known.coverage.warnings(slices, given.volume.padding, shown)


def _energy(known: Calibration, before: Prediction, verdict: str) -> list[str]:
    """Return a warning about a scan that is far out and whose prediction does not look as at home.

    Scans of another scanner are often far out, and predicted well. Where no verdict says so, twice as many deviations
    count.
    """
    levels = known.levels
    level = levels.far if verdict else levels.far * levels.far / levels.middle
    if verdict == "fine" or before.energy is None or before.energy <= level:
        return []
    return [
        f"The scan is unlike the training scans: energy {before.energy:.3g} nats, far out beyond "
        f"{level:.3g}. Check the body part, the contrast and the preparation."
    ]


def prediction_warnings(
    prediction: Prediction,
    home: HomeReadings | None,
    voxel_ml: float,
    names: Sequence[str] = (),
    length: float | None = None,
) -> list[str]:
    """Return warnings about volumes that are empty or absurd.

    Args:
        prediction: The prediction of the whole scan.
        home: Volumes at home, if they are known.
        voxel_ml: Volume of a voxel in mL.
        names: Names of the structures.
        length: Length in mm that the slices cover; None if it is unknown.
    """
    counts = prediction.counts()
    expected = [True] * len(counts) if home is None else (home.absent < USUALLY_THERE).tolist()
    if not any(counts):
        return ["The segmentation is empty."] if any(expected) else []
    found = []
    for number, count in enumerate(counts if home is not None else ()):
        assert home is not None
        name = names[number] if number < len(names) else f"structure {number + 1}"
        if not count:
            found += [f"No {name} was found."] if expected[number] else []
            continue
        middle, deviation = (float(value) for value in home.sizes_for(length)[:, number])
        beyond = math.log(count * voxel_ml) - middle
        if abs(beyond) > max(ABSURD_DEVIATIONS * deviation, math.log(ABSURD_FACTOR)):
            word, usual = "large" if beyond > 0 else "small", math.exp(middle)
            found.append(f"The {name} is implausibly {word}: {count * voxel_ml:.3g} mL, at home {usual:.3g} mL.")
    return found
