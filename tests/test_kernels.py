"""Kernels give what their plain twins give; without a GPU, Triton's interpreter runs them."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from scantune.densities.moments import _Moments
from scantune.kernels.bump import bump
from scantune.kernels.moments import slopes, sums
from scantune.kernels.upsampling import double

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3}

precisions = pytest.mark.parametrize("dtype", CLOSE)
widths = pytest.mark.parametrize("channels", [1, 5, 16, 130])


def features(channels, dtype=torch.float32, seed=0, size=(2, 9, 7)):
    generator = torch.Generator().manual_seed(seed)
    slices, *spatial = size
    values = torch.randn(slices, channels, *spatial, generator=generator)
    return values.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)


def pair(values):
    return values.clone().requires_grad_(), values.detach().clone().requires_grad_()


def assert_close(found, expected, dtype=torch.float32):
    torch.testing.assert_close(found.double(), expected.double(), atol=CLOSE[dtype], rtol=CLOSE[dtype])


@precisions
@widths
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_their_gradient_are_those_of_the_plain_moments(channels, dtype, weighted):
    values, center = features(channels, dtype), torch.linspace(-1, 1, channels, device=DEVICE)
    weights = (features(1, seed=1) > 0).float() if weighted else None
    plain = values.float().requires_grad_()
    expected = _Moments.apply(plain, weights, center)
    assert_close(sums(values, weights, center), expected[1:], torch.float32)
    total, squares = torch.randn(2, channels, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    expected.backward(torch.stack([torch.zeros_like(total), total, squares]))
    assert_close(slopes(values, weights, total - 2 * squares * center, 2 * squares), plain.grad, dtype)


@precisions
@widths
def test_the_bump_and_its_gradients_are_those_of_the_formula(channels, dtype):
    (x, plain), (k, sharpness) = pair(features(channels, dtype)), pair(torch.rand(channels).to(DEVICE))
    found, expected = bump(x, k), torch.exp(-sharpness.view(1, -1, 1, 1) * plain.float().square())
    assert found.dtype == dtype
    assert_close(found, expected, dtype)
    back = features(channels, seed=3)
    found.backward(back.to(dtype))
    expected.backward(back)
    assert_close(x.grad, plain.grad, dtype)
    assert_close(k.grad / 100, sharpness.grad / 100, dtype)


@precisions
@widths
def test_upsampling_and_its_adjoint_are_those_of_interpolation(channels, dtype):
    x, plain = pair(features(channels, dtype))
    found, expected = double(x), F.interpolate(plain.float(), scale_factor=2, mode="bilinear", align_corners=False)
    assert_close(found, expected, dtype)
    back = features(channels, dtype, 3, (2, 18, 14))
    found.backward(back)
    expected.backward(back.float())
    assert_close(x.grad / 4, plain.grad / 4, dtype)


def test_the_adjoint_takes_a_gradient_that_is_a_part_of_more_channels():
    x, plain = pair(features(5))
    back = features(8, seed=3, size=(2, 18, 14))[:, 2:7]
    double(x).backward(back)
    F.interpolate(plain, scale_factor=2, mode="bilinear", align_corners=False).backward(back)
    assert_close(x.grad, plain.grad)


def test_layouts_other_than_channels_last_are_read_as_well():
    values = features(5).contiguous()
    assert_close(
        sums(values, None, torch.zeros(5, device=DEVICE)), sums(features(5), None, torch.zeros(5, device=DEVICE))
    )
    assert_close(double(values), double(features(5)))
