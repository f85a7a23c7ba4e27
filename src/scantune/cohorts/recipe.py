"""The training recipe of a simulated cohort, for users to run and to edit."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scantune.config.recipe import bundled_recipes, read_recipe
from scantune.config.toml import toml_text
from scantune.scans.case import Case

_MULTIPLE = 8
"""Sides of slices are multiples of this number of pixels, so that the network can halve them three times."""

_STRIPPED = 0.02
"""Share of exact zeros from which a scan counts as skull-stripped. Noise is nowhere exactly 0."""

_COMMENT = """\
Trains a network at the centre {centre} of the simulated cohort {cohort}; made by scantune simulate.

  scantune train {folder}/recipe.toml --out {folder}/model.safetensors
  scantune fit {folder}/model.safetensors --data {folder}/recipe.toml

{where}
In the patterns, {{split}} stands for train and validation.
A second run of simulate leaves this file as it is. For a quick trial: scantune train ... --iterations 200"""


def bundled_preprocessing(cohort: str) -> dict[str, Any] | None:
    """Return the table [preprocessing] of the bundled recipe of a cohort; None if it has no recipe."""
    recipes = map(read_recipe, bundled_recipes())
    return next((dict(one.preprocessing) for one in recipes if one.data.get("cohort") == cohort), None)


def suggested_preprocessing(case: Case) -> dict[str, Any]:
    """Return a table [preprocessing] for scans like this one, with its pixel size and slices that hold all of it."""
    spacing = round(float(np.median(case.spacing[:2])), 4)
    rows, columns = (
        _MULTIPLE * math.ceil(case.shape[axis] * case.spacing[axis] / spacing / _MULTIPLE - 1e-6) for axis in (1, 0)
    )
    stripped = float(np.mean(case.image == 0)) > _STRIPPED
    return {"plane": "axial", "size": [rows, columns], "spacing": spacing, "content": "nonzero" if stripped else "all"}


def recipe_text(
    folder: Path, centre: str, cohort: str, labels: Mapping[str, int], preprocessing: Mapping[str, Any]
) -> str:
    """Return a recipe for the scans of one centre.

    Args:
        folder: The cohort's folder, as the user typed it.
        centre: The centre to train at.
        cohort: Name of the cohort, for a comment.
        labels: Label value of each structure.
        preprocessing: The table [preprocessing].
    """
    place = folder.as_posix()
    where = (
        "The patterns name the folder of the scans; change them when it is moved."
        if folder.is_absolute()
        else "The patterns start in the folder that simulate was run in: run train and fit there, or change them."
    )
    data = {
        "images": f"{place}/{centre}/{{split}}/*_image.nii.gz",
        "labels": f"{place}/{centre}/{{split}}/*_labels.nii.gz",
        "structures": labels,
    }
    comment = _COMMENT.format(centre=centre, cohort=cohort, folder=place, where=where)
    return toml_text({"data": data, "preprocessing": preprocessing}, comment)
