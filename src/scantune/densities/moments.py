"""Number, sum and sum of squares of many experts' values, without a copy that lives on."""

from typing import Any

import torch
from torch import Tensor

from scantune.kernels import usable


def moments(values: Tensor, weights: Tensor | None, center: Tensor | None = None) -> Tensor:
    """Sum values and squares about a center, since far from it squares would cancel.

    Args:
        values: `(slices, experts, *spatial)`; of half precision, they are summed in single precision.
        weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.
        center: What is subtracted of each expert's values `(experts,)`; None for zeros.

    Returns:
        `(3, experts)`: number, sum of values, sum of squares. Differentiable once, in the values.
    """
    dtype = torch.promote_types(values.dtype, torch.float32)
    center = torch.zeros(values.shape[1], device=values.device) if center is None else center
    if usable(values) and dtype == torch.float32:
        return _OnePass.apply(values, weights, center.float())  # type: ignore[no-any-return, no-untyped-call]
    return _Moments.apply(values.to(dtype), weights, center.to(values.device, dtype))  # type: ignore[no-any-return, no-untyped-call]


class _Moments(torch.autograd.Function):
    """Keeps the values alone for the backward pass, which is one multiplication and one addition a pixel."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, center: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, center)
        over = (0, *range(2, values.ndim))
        away = values - _spread(center, values)
        if weights is None:
            number = away.new_full((values.shape[1],), values.numel() / values.shape[1])
        else:
            number = weights.sum().to(values).expand(values.shape[1])
            away *= weights
        total = away.sum(over)
        return torch.stack([number, total, away.square_().sum(over)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        values, weights, center = ctx.saved_tensors
        _, total, squares = gradients[0].to(values)
        offset = _spread(total - 2 * squares * center, values)
        result = torch.addcmul(offset, values, _spread(2 * squares, values))
        return result if weights is None else result.mul_(weights), None, None


class _OnePass(torch.autograd.Function):
    """The same by kernels, for which values may be of half precision; sums are double."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, center: Tensor) -> Tensor:
        from scantune.kernels.triton.moments import measure

        units = torch.ones(3, values.shape[1], dtype=torch.double, device=values.device)
        ctx.save_for_backward(values, weights, center, units)
        return measure(values, weights, center, units)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from scantune.kernels.triton.moments import slopes

        values, weights, center, units = ctx.saved_tensors
        return slopes(values, weights, center, units, gradients[0]), None, None


def _spread(each: Tensor, like: Tensor) -> Tensor:
    """Reshape numbers of experts `(experts,)` to `(1, experts, 1, ...)`."""
    return each.view(1, -1, *[1] * (like.ndim - 2))
