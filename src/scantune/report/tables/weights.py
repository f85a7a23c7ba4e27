"""The paper's analysis of lambda, the weight of the PCA experts."""

import re

from scantune.report.study import Study
from scantune.report.tables.analyses import setting_table
from scantune.report.tables.base import ReportTable

_VARIANT = re.compile(r"foe-cnn-pca, lambda ([0-9.e-]+)")


def weight_table(study: Study) -> ReportTable | None:
    """Return Dice by lambda: 0 is `foe-cnn`, the default 0.1 `foe-cnn-pca`, others are `foe-cnn-pca, lambda 1`."""
    by_weight = {0.0: "foe-cnn", 0.1: "foe-cnn-pca"}
    named = {float(found[1]): name for name in study.scores.methods if (found := _VARIANT.fullmatch(name))}
    if not named:
        return None
    rows = {f"lambda = {weight:g}": name for weight, name in sorted((by_weight | named).items())}
    caption = "A sum of the CNN experts' divergence and lambda times that of the PCA experts is minimised (Eq. 15)."
    return setting_table(study, "Weight of the PCA experts", "weight", rows, caption)
