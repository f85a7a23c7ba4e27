"""Scans for pages: three shells in noise, found badly before and well after, on a turned and anisotropic grid."""

import numpy as np

from scantune.pages import CaseView

LABELS = {"background": 0, "rim": 1, "middle & more": 2, "<b>core</b>": 3}
LAYERS = [f"down.{n}.conv" for n in range(4)]


def shells(shift=0, shape=(40, 48, 6)):
    """Labels 1 to 3 from the outside in."""
    x, y, _ = np.meshgrid(*map(np.arange, shape), indexing="ij")
    distance = np.hypot(x - shape[0] / 2 - shift, y - shape[1] / 2)
    return np.digitize(-distance, [-15, -10, -5]).astype(np.uint8)


def entry(**changes):
    """An entry of a manifest."""
    return {
        "decision": "adapted",
        "reason": "the objective fell from 0.2 to 0.1.",
        "method": "foe-cnn-pca",
        "seconds": 12.5,
        "best_step": 3,
        "energy_before": 0.2,
        "energy_after": 0.1,
        "energy_floor": 0.01,
        "energies_before": {"cnn": dict.fromkeys(LAYERS, 0.2), "pca": {"down.3.conv": 0.3}},
        "energies_after": {"cnn": dict.fromkeys(LAYERS, 0.1), "pca": {"down.3.conv": 0.4}},
        "volumes_ml": {"rim": 1.5, "middle & more": 1.0, "<b>core</b>": 0.5},
        "source_volumes_ml": {"rim": 1.0, "middle & more": 1.0, "<b>core</b>": 1.0},
        "versions": {"scantune": "0.1.0"},
    } | changes


def trace(steps=4):
    rows = [{"step": n, "objective": 0.2 / (n + 1), "cnn": 0.18 / (n + 1), "valid": True} for n in range(steps)]
    return [*rows, {"step": steps, "objective": 0.02, "cnn": 0.02, "valid": False}]


def case_view(name="sub-1", **changes):
    """A scan with everything a page can show, but for what is given."""
    true = shells()
    picture = np.array([0, 60, 120, 200])[true] + np.random.default_rng(0).normal(20, 5, true.shape)
    facts = {
        "image": picture.astype(np.float32),
        "affine": np.array([[0, 1.5, 0, 3], [-1.5, 0, 0, 2], [0, 0, 5, 1], [0, 0, 0, 1.0]]),
        "before": shells(4),
        "after": shells(1),
        "labels": LABELS,
        "entry": entry(),
        "trace": trace(),
        "reference": true,
    }
    return CaseView(name, **facts | changes)
