"""The paper's analysis of the experts' densities: Gaussians against kernel density estimates."""

from scantune.report.study import Study
from scantune.report.tables.analyses import setting_table
from scantune.report.tables.base import ReportTable

METHOD_BY_DENSITY = {"Gaussian": "foe-cnn-pca", "KDE": "foe-cnn-pca, kde", "histogram": "foe-cnn-pca, histogram"}


def density_table(study: Study) -> ReportTable | None:
    """Return Dice of `foe-cnn-pca` with several forms of densities."""
    caption = "The same experts, with their 1D distributions in other forms."
    return setting_table(study, "Form of the experts' densities", "density", METHOD_BY_DENSITY, caption)
