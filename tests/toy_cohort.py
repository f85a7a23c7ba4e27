"""A toy cohort that tests simulate: scanners, a label scheme, and what stands in its folder."""

import json

import nibabel
import numpy as np

from scantune.cohorts.write import CohortSettings
from scantune.scans.case import Case, LabelMap

SCANNERS = """
[home]
vendor = "Acme"
sequence = { kind = "mprage", tr = 2300, ti = 1050, te = 3, flip = 9, echo_spacing = 7, echoes = 176 }
in_plane = 4.0
resolution = 4.0
slices = 3
splits = { train = 2, validation = 1, test = 1 }
source = "made up"
assumed = ["snr"]
[away]
field = 1.5
sequence = { kind = "spin-echo", tr = 500, te = 12 }
coil = { kind = "surface" }
in_plane = 5.0
resolution = 5.0
slices = 2
splits = { test = 2 }
"""


SCHEME = """
[labels]
1 = { name = "WM", tissue = "white" }
2 = { name = "GM", tissue = "cortex" }
8 = { name = "ventricles", tissue = "CSF" }
10 = { name = "GM", tissue = "deep grey" }
13 = { name = "CSF", tissue = "CSF", structure = "" }
14 = { name = "stem", tissue = "brain stem", structure = "WM", texture = 0.5 }
"""


def toy_map(affine=None):
    """Nested ellipsoids, 4 mm: CSF around grey around white matter, two ventricles, deep grey and a stem."""
    x, y, z = np.meshgrid(*[4.0 * (np.arange(n) - (n - 1) / 2) for n in (40, 48, 28)], indexing="ij")
    radius = np.sqrt((x / 62) ** 2 + (y / 80) ** 2 + (z / 80) ** 2)
    labels = np.select([radius < 0.75, radius < 0.92, radius < 1], [1, 2, 13], 0).astype(np.uint8)
    labels[(np.hypot(np.hypot(abs(x) - 14, y / 2), z / 2) < 8)] = 8
    labels[(np.hypot(np.hypot(abs(x) - 26, y / 2), z / 2) < 6)] = 10
    labels[(np.hypot(x, y + 30) < 10) & (z < 0)] = 14
    return LabelMap("toy", labels, np.diag([4.0, 4.0, 4.0, 1.0]) if affine is None else affine)


def simulate_command(out, *more):
    """What is typed after `scantune` in the folder of `cohort_inputs`."""
    given = ["--label-maps", "maps", "--scheme", "scheme.toml", "--protocols", "scanners.toml", "--device", "cpu"]
    return ["simulate", "contrasts", "--out", str(out), *given, *map(str, more)]


def toy_settings(inputs, **changes):
    """The settings of the toy cohort, with changes."""
    given = {"label_maps": inputs / "maps", "protocols": inputs / "scanners.toml", "scheme": inputs / "scheme.toml"}
    return CohortSettings("contrasts", **(given | changes))


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nii.gz")}


def read(path):
    return np.asarray(nibabel.load(path).dataobj)


def noisy_box(shape=(20, 30, 3), spacing=(2.0, 2.0, 5.0), at=slice(8, 14)):
    """Noise with a bright box of label 2 and a smaller one of label 1 in it, on the last two slices."""
    image = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    labels = np.zeros(shape, np.uint8)
    labels[at, at, 1:] = 2
    labels[at.start + 2 : at.stop - 2, at.start + 2 : at.stop - 2, 1:] = 1
    return Case("toy", image + labels, np.diag([*spacing, 1.0]), reference=labels)
