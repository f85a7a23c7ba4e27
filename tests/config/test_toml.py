"""The writer of TOML: what it writes reads as what it was given."""

import tomllib
from pathlib import Path
from types import MappingProxyType

import pytest

from scantune.cohorts.recipe import recipe_text
from scantune.config.toml import toml_text


@pytest.mark.parametrize(
    "value", [{"a b": 1, "c": [1.5, 2]}, 'with "quotes" and \\', [True, "ä"], {"nested": {"x": -1}}, {}, "two\nlines"]
)
def test_values_survive_toml(value):
    assert tomllib.loads(toml_text({"v": value}, "first line\n\nlast line")) == {"v": value}


def test_a_comment_stands_above_the_tables():
    text = toml_text(MappingProxyType({"table": MappingProxyType({"size": (1, 2)})}), "One\n\nTwo")
    assert text.startswith("# One\n#\n# Two\n\n[table]\n")
    assert tomllib.loads(text) == {"table": {"size": [1, 2]}}


@pytest.mark.parametrize("folder", ["made here", '/data/co"hort'])
def test_the_recipe_of_a_cohort_reads_as_its_tables(folder):
    labels = {"WM": 1, "grey matter": 2}
    preprocessing = {"plane": "axial", "size": [64, 56], "spacing": 0.75, "content": "nonzero"}
    text = recipe_text(Path(folder), "home", "contrasts", labels, preprocessing)
    data = {
        "images": f"{folder}/home/{{split}}/*_image.nii.gz",
        "labels": f"{folder}/home/{{split}}/*_labels.nii.gz",
        "structures": labels,
    }
    assert tomllib.loads(text) == {"data": data, "preprocessing": preprocessing}
    assert f"scantune train {folder}/recipe.toml" in text
