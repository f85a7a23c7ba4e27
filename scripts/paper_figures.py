"""What the paper reports, for tables that put it beside results here."""

Centre = tuple[str, str]

CENTRES: tuple[Centre, ...] = (
    *(("prostate", site) for site in ("UCL", "HK", "BIDMC", "BMC", "USZ")),
    *(("cardiac", site) for site in ("UHE", "HVHD")),
    *(("spine", site) for site in ("USZ", "VU", "UCL")),
    ("brain", "AC"),
    ("wmh", "NUHS"),
)
"""The twelve test centres, in the order of the paper's Table 2."""

TRAINED_AT = {"prostate": "RUNMC", "cardiac": "CSF", "spine": "PM", "brain": "HCP", "wmh": "UMC"}

PAPER = {
    "baseline": (0.50, 0.68, 0.29, 0.28, 0.67, 0.86, 0.38, 0.61, 0.82, 0.79, 0.69, 0.00),
    "strong baseline": (0.77, 0.82, 0.62, 0.77, 0.76, 0.85, 0.80, 0.67, 0.84, 0.88, 0.76, 0.37),
    "entropy": (0.77, 0.81, 0.68, 0.77, 0.80, 0.85, 0.80, 0.67, 0.84, 0.88, 0.81, 0.36),
    "dae": (0.84, 0.84, 0.75, 0.81, 0.82, 0.87, 0.81, 0.69, 0.80, 0.80, 0.82, 0.37),
    "ae": (0.78, 0.83, 0.51, 0.79, 0.79, 0.86, 0.80, 0.69, 0.84, 0.88, 0.78, 0.24),
    "foe-cnn": (0.78, 0.77, 0.64, 0.76, 0.76, 0.86, 0.82, 0.68, 0.85, 0.89, 0.79, 0.24),
    "foe-cnn-pca": (0.79, 0.81, 0.73, 0.75, 0.78, 0.85, 0.82, 0.68, 0.83, 0.88, 0.79, 0.42),
    "supervised": (0.80, 0.85, 0.82, 0.83, 0.84, 0.88, 0.83, 0.78, 0.85, 0.90, 0.88, 0.77),
}
"""The paper's Table 2, by method and centre."""

PAPER_AT_HOME = {"prostate": 0.86, "cardiac": 0.82, "spine": 0.88, "brain": 0.87, "wmh": 0.71}
"""The paper's baseline at the training centres."""

PAPER_REGISTRATION = {
    "baseline": (0.847, 0.751, 0.864),
    "strong baseline": (0.843, 0.786, 0.873),
    "ae": (None, 0.795, 0.868),
    "foe-cnn-pca": (None, 0.795, 0.870),
    "supervised": (None, 0.821, 0.883),
}
"""The paper's table of registration, at HCP, AS and OASIS."""

VARIANTS = {
    "Table 3: Gaussian, as all others": ("foe-cnn-pca", (0.79, 0.81, 0.73, 0.75, 0.78)),
    "Table 3: KDE": ("foe-cnn-pca, kde", (0.79, 0.81, 0.74, 0.76, 0.78)),
    "Table 4: lambda 0, which is foe-cnn": ("foe-cnn", (0.78, 0.77, 0.64, 0.76, 0.76)),
    "Table 4: lambda 0.1, as all others": ("foe-cnn-pca", (0.79, 0.81, 0.73, 0.75, 0.78)),
    "Table 4: lambda 1": ("foe-cnn-pca, lambda 1", (0.77, 0.82, 0.74, 0.74, 0.77)),
    "objective (b), a sum over subjects, as all others": ("foe-cnn-pca", None),
    "objective (a), expected densities": ("foe-cnn-pca, expected", None),
    "log-likelihood": ("foe-cnn-pca, likelihood", None),
}
"""The rows of the variants: the method here, and the paper's Dice at the five centres of the prostate."""


def within_factor_two(theirs: float, here: float) -> bool:
    """Return True if a drop is at least half of the paper's, and at most twice as large."""
    return theirs > 0 and theirs / 2 <= here <= 2 * theirs
