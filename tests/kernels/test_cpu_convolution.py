"""Convolutions of features that are upsampled beside others, without upsampling them."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.kernels.cpu.convolution import UpsampledAndSkip, convolve
from scantune.networks import FastConvolution, UNet, fold_batch_norm, set_memory_layout, use_fast_convolutions


def _joined(small: Tensor, large: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    up = F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
    return F.conv2d(torch.cat([up, large], 1), weight, bias, padding=1)


def _features(size: tuple[int, int], dtype: torch.dtype, rng: torch.Generator) -> list[Tensor]:
    height, width = size
    shapes = [(2, 5, height, width), (2, 3, 2 * height, 2 * width), (4, 8, 3, 3)]
    drawn = [torch.randn(shape, generator=rng, dtype=torch.double).to(dtype) for shape in shapes]
    return [one.contiguous(memory_format=torch.channels_last) for one in drawn]


@pytest.mark.parametrize("size", [(6, 9), (1, 4), (5, 1), (1, 1), (2, 2)])
def test_the_convolution_is_that_of_upsampled_features_joined_with_the_others(size, rng):
    small, large, weight = _features(size, torch.double, rng)
    bias = torch.randn(4, generator=rng, dtype=torch.double)
    found, expected = convolve(UpsampledAndSkip(small, large), weight, bias), _joined(small, large, weight, bias)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [(6, 9), (1, 4), (5, 1), (1, 1)])
def test_and_so_are_its_gradients(size, rng):
    small, large, weight = _features(size, torch.double, rng)
    both = [small.requires_grad_(), large.requires_grad_()]
    factors = torch.randn(2, 4, 2 * size[0], 2 * size[1], generator=rng, dtype=torch.double)
    found = torch.autograd.grad((convolve(UpsampledAndSkip(small, large), weight, None) * factors).sum(), both)
    expected = torch.autograd.grad((_joined(small, large, weight, None) * factors).sum(), both)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_in_single_precision_it_is_no_further_from_the_truth_than_the_library(rng):
    features = _features((32, 32), torch.float32, rng)
    truth = _joined(*(one.double() for one in features), None)
    small, large, weight = features
    ours, theirs = convolve(UpsampledAndSkip(small, large), weight, None), _joined(*features, None)
    assert (ours - truth).norm() <= (theirs - truth).norm()


@pytest.mark.parametrize("size", [(16, 24), (19, 22), (8, 8)])
def test_a_frozen_unet_gives_the_same_and_the_same_gradient(size, rng):
    network = UNet(1, 3, width=4).eval().requires_grad_(False)
    fold_batch_norm(network)
    quick = deepcopy(network)
    set_memory_layout(quick, "channels last")
    use_fast_convolutions(quick)
    x = torch.randn(2, 1, *size, generator=rng).requires_grad_()
    torch.testing.assert_close(quick(x), network(x), rtol=1e-4, atol=1e-5)
    factors = torch.randn(2, 3, *size, generator=rng)
    found, expected = (torch.autograd.grad((one(x) * factors).sum(), x)[0] for one in (quick, network))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _given(network: UNet, size: int) -> list[type]:
    """What the first convolutions on the way up are given."""
    kinds: list[type] = []
    for level in network.up:
        level.first.conv.register_forward_pre_hook(lambda _module, inputs: kinds.append(type(inputs[0])))
    network(torch.zeros(1, 1, size, size))
    return kinds


def test_nothing_is_upsampled_where_weights_are_frozen_and_sizes_are_halves(rng):
    network = UNet(1, 3, width=4).eval().requires_grad_(False)
    set_memory_layout(network, "channels last")
    use_fast_convolutions(network)
    assert isinstance(network.up[0].first.conv, FastConvolution)
    assert _given(deepcopy(network), 16) == [UpsampledAndSkip] * 3
    assert _given(deepcopy(network), 20) == [Tensor, UpsampledAndSkip, UpsampledAndSkip]  # 20, 10, 5, 2 pixels
    assert _given(deepcopy(network).requires_grad_(True), 16) == [Tensor] * 3
    set_memory_layout(network, "channels first")
    assert _given(network, 16) == [Tensor] * 3
