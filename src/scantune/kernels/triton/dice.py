"""The soft Dice loss of a softmax over classes: one pass over the logits, and one for their gradient."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

EPSILON = 1e-10
TILE = 2048
"""Numbers that a program processes at a time."""
SHARES = 64
"""Maximum number of programs that share the pixels of an image."""


def softmax_dice_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 - soft Dice of the softmax per image and class, mean over images and all classes.

    Args:
        logits: `(slices, classes, *spatial)`, in any floating precision.
        labels: `(slices, *spatial)` integers.

    Returns:
        A scalar in single precision.
    """
    return _SoftmaxDice.apply(logits, labels)  # type: ignore[no-any-return, no-untyped-call]


class _SoftmaxDice(torch.autograd.Function):
    """Keeps the logits, and what of the gradient is alike for all pixels of an image and class."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        table, labels = logits.movedim(1, -1).contiguous().flatten(1, -2), labels.contiguous()
        images, pixels, classes = table.shape
        block, wide = _block(classes)
        shares = min(triton.cdiv(pixels, block), SHARES)
        parts = torch.empty(shares, 3, images, classes, device=logits.device)
        _sums[(shares, images)](table, labels, parts, pixels, classes, images, block, wide)
        predicted, overlap, true = parts.sum(0)
        total = predicted + true + EPSILON
        dice = 2 * overlap / total
        # The derivative by a probability, where the class is the label and everywhere.
        slopes = torch.stack([-2 / total, dice / total]) / dice.numel()
        ctx.save_for_backward(table, labels, slopes)
        ctx.shape = logits.movedim(1, -1).shape
        loss: Tensor = 1 - dice.mean()
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        table, labels, slopes = ctx.saved_tensors
        images, pixels, classes = table.shape
        block, wide = _block(classes)
        result = torch.empty_like(table)
        factors = (slopes * gradients[0]).contiguous()
        grid = (triton.cdiv(pixels, block), images)
        _slopes[grid](table, labels, factors, result, pixels, classes, images, block, wide)
        return result.view(ctx.shape).movedim(-1, 1), None


def _block(classes: int) -> tuple[int, int]:
    wide = max(2, triton.next_power_of_2(classes))
    return max(1, TILE // wide), wide


@triton.jit
def _softmax(table, labels, image, row, column, pixels, classes):
    """Return probabilities `(BLOCK, WIDE)`, and whether the label is the class."""
    inside = (row < pixels)[:, None] & (column < classes)[None, :]
    place = (image.to(tl.int64) * pixels + row)[:, None] * classes + column[None, :]
    logit = tl.load(table + place, mask=inside, other=float("-inf")).to(tl.float32)
    logit = tl.where((row < pixels)[:, None], logit, 0.0)
    power = tl.exp(logit - tl.max(logit, 1)[:, None])
    label = tl.load(labels + image.to(tl.int64) * pixels + row, mask=row < pixels, other=-1)
    return tl.where(inside, power / tl.sum(power, 1)[:, None], 0.0), label[:, None] == column[None, :], place, inside


@triton.jit
def _sums(table, labels, parts, pixels, classes, images, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    share, image = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, WIDE)
    predicted = tl.zeros((BLOCK, WIDE), tl.float32)
    overlap = tl.zeros((BLOCK, WIDE), tl.float32)
    true = tl.zeros((BLOCK, WIDE), tl.float32)
    first = share * BLOCK
    while first < pixels:
        row = first + tl.arange(0, BLOCK)
        chance, mine, _, _ = _softmax(table, labels, image, row, column, pixels, classes)
        predicted += chance
        overlap += tl.where(mine, chance, 0.0)
        true += tl.where(mine, 1.0, 0.0)
        first += tl.num_programs(0) * BLOCK
    place = parts + (share * 3 * images + image) * classes + column
    tl.store(place, tl.sum(predicted, 0), mask=column < classes)
    tl.store(place + images * classes, tl.sum(overlap, 0), mask=column < classes)
    tl.store(place + 2 * images * classes, tl.sum(true, 0), mask=column < classes)


@triton.jit
def _slopes(table, labels, factors, result, pixels, classes, images, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    image = tl.program_id(1)
    column = tl.arange(0, WIDE)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chance, mine, place, inside = _softmax(table, labels, image, row, column, pixels, classes)
    known = column < classes
    here = tl.load(factors + image * classes + column, mask=known, other=0.0)[None, :]
    everywhere = tl.load(factors + (images + image) * classes + column, mask=known, other=0.0)[None, :]
    slope = everywhere + tl.where(mine, here, 0.0)
    answer = chance * (slope - tl.sum(chance * slope, 1)[:, None])
    tl.store(result + place, answer.to(result.dtype.element_ty), mask=inside)
