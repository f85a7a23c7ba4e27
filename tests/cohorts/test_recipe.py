"""The recipe of a simulated cohort: its preprocessing, and the files that it names."""

import pytest
import torch

from scantune.backends.slices import Preprocessing
from scantune.cohorts.recipe import bundled_preprocessing, suggested_preprocessing
from scantune.config.recipe import read_recipe
from scantune.errors import InputError
from scantune.training.sources import FileSource
from tests.toy_cohort import noisy_box

CPU = torch.device("cpu")


def test_the_recipes_size_holds_the_scan():
    suggested = suggested_preprocessing(noisy_box((50, 61, 2), (0.7, 0.7, 3.0)))
    assert suggested == {"plane": "axial", "size": [64, 56], "spacing": 0.7, "content": "all"}
    scan = noisy_box((50, 61, 2), (0.7, 0.7, 3.0))
    prepared = Preprocessing(size=tuple(suggested["size"]), spacing=0.7).prepare(scan)
    assert int((prepared.reference > 0).sum()) == int((noisy_box((50, 61, 2)).reference > 0).sum())


def test_a_cohort_with_a_bundled_recipe_is_prepared_as_there():
    assert bundled_preprocessing("contrasts") == read_recipe("brain").preprocessing
    assert bundled_preprocessing("nothing") is None


def test_files_are_split_by_their_patterns(simulated, cohort_folder):
    files = FileSource(
        "made/home/{split}/*_image.nii.gz", "made/home/{split}/*_labels.nii.gz", {"WM": 1, "GM": 2, "V": 8}
    )
    names = {split: [case.name for case in files.cases(split, CPU)] for split in ("train", "validation")}
    assert names == {
        "train": ["brain_home_train-001_image", "brain_home_train-002_image"],
        "validation": ["brain_home_validation-001_image"],
    }


def test_both_patterns_name_the_split_or_neither():
    with pytest.raises(InputError, match=r"must both have \{split\} or neither, got a/\{split\}/\*.nii and b/\*.nii"):
        FileSource("a/{split}/*.nii", "b/*.nii", {"WM": 1})
