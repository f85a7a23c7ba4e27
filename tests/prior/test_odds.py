"""Odds against the formulas that they stand for."""

import math

import pytest
import torch

from scantune.prior.odds import dice_from, odds


def test_odds_and_dice_are_inverse() -> None:
    values = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.double)
    torch.testing.assert_close(dice_from(odds(values)), values, atol=2e-3, rtol=0)


def test_a_size_alone_bounds_the_dice_as_the_formula_says() -> None:
    ratio = 1.8
    best = 2 * min(1, ratio) / (1 + ratio)
    assert float(dice_from(torch.tensor(math.log(ratio)))) == pytest.approx(best)
