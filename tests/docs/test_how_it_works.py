"""The page that derives the method: its equations, files and tests are those of the code."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")


def test_every_equation_that_the_code_names_is_on_the_page():
    named = set()
    for file in (ROOT / "src" / "scantune").rglob("*.py"):
        for first, last in re.findall(r"Eq\. (\d+)(?: (?:to|and) (\d+))?", file.read_text(encoding="utf-8")):
            named |= {int(first), int(last or first)}
    told = {int(number) for found in re.findall(r"Eq\. (\d+)(?: and (\d+))?", PAGE) for number in found if number}
    assert named and named <= told
    assert told == set(range(1, 17))


def test_every_file_and_test_that_the_page_names_is_there():
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}(" in tests
    for name in re.findall(r"([\w/]+\.py)\b", PAGE):
        folder = ROOT if name.startswith("tests/") else ROOT / "src" / "scantune"
        assert (folder / name).is_file(), name


def test_scans_with_the_same_marginals_and_other_correlations_have_the_same_energy():
    """The page's second point, on two experts: the sum of 1D divergences is zero where the joint one is not."""
    together = np.array([[1.0, 0.9], [0.9, 1.0]])
    joint = -0.5 * np.log(np.linalg.det(together))  # KL from the one to the other, whose traces are alike
    rng = np.random.default_rng(0)
    samples = rng.multivariate_normal([0, 0], together, size=20_000)
    estimated = np.mean(
        stats.multivariate_normal([0, 0], together).logpdf(samples) - stats.norm.logpdf(samples).sum(axis=1)
    )
    assert joint == pytest.approx(estimated, rel=0.05)
    assert joint > 0.8
    v = samples.var(axis=0)
    assert 0.5 * (np.log(1 / v) + v - 1) == pytest.approx([0, 0], abs=1e-3)
