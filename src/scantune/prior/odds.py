"""Odds: the one scale of sizes and steadiness, `log((2 - Dice) / Dice)`.

Of two regions of which one is `exp(d)` times as large as the other, the Dice is at most `2 / (1 + exp(d))`. The odds of
that are `d`. So the difference of the logarithms of two sizes is on the same scale.
"""

from torch import Tensor

SMALLEST = 1e-3
"""Added to a Dice before its odds are taken, so that 0 has some."""


def odds(dice: Tensor) -> Tensor:
    """Turn Dice into odds: 0 for a Dice of 1, and the larger the worse."""
    return ((2 - dice + SMALLEST) / (dice + SMALLEST)).log()


def dice_from(value: Tensor) -> Tensor:
    """Turn odds into Dice, the inverse of `odds` but for rounding."""
    return 2 / (1 + value.clamp(0, 50).exp())
