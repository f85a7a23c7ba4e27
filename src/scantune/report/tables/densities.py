"""The paper's analysis of the experts' densities: Gaussians against kernel density estimates."""

from scantune.report.study import Study
from scantune.report.tables.analyses import setting_table
from scantune.report.tables.base import Table

ROWS = {"Gaussian": "foe-cnn-pca", "KDE": "foe-cnn-pca, kde", "histogram": "foe-cnn-pca, histogram"}


def densities(study: Study) -> Table | None:
    """`foe-cnn-pca` with densities of several forms."""
    told = "The same experts, with their 1D distributions in other forms."
    return setting_table(study, "Form of the experts' densities", "density", ROWS, told)
