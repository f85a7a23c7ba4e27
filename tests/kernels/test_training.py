"""Kernels for training give what their plain twins give; without a GPU, Triton's interpreter runs them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from scantune.kernels.triton import dice, norm, pointwise, weights
from scantune.kernels.triton.dice import softmax_dice_loss
from scantune.kernels.triton.norm import instance_relu, norm_relu
from scantune.kernels.triton.pooling import halve
from scantune.kernels.triton.upsampling import double, double_beside
from scantune.kernels.triton.weights import correlate
from scantune.networks import AdaptableNetwork, convolution, normalizer, unet, use_fast_convolutions
from scantune.tasks import Segmentation, segmentation
from scantune.training import augment
from scantune.training.augment import Augmentation
from tests.kernels.test_kernels import DEVICE, assert_close, features, pair, precisions


@pytest.fixture
def shared_out(monkeypatch):
    """Work is shared out among few programs with little each, so that all of them go on to a second round."""
    few = {norm: {"PROGRAMS": 4, "TILE": 512}, dice: {"TILE": 64, "SHARES": 2}}
    few |= {pointwise: {"BLOCK": 16, "SHARES": 3}, weights: {"BLOCK": 16, "PROGRAMS": 9}}
    for module, values in few.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


def norms(channels, kind=nn.BatchNorm2d):
    """The same batch norm twice, with moments and weights of its own."""
    one = kind(channels, eps=1e-3, momentum=0.1).to(DEVICE)
    torch.manual_seed(1)
    for values in (one.weight, one.bias, one.running_mean):
        nn.init.normal_(values)
    return one, copy.deepcopy(one)


def gradients(output, inputs, back):
    return torch.autograd.grad(output, inputs, back)


@precisions
@pytest.mark.parametrize("channels", [1, 5, 130])
def test_norm_and_relu_are_those_of_torch(channels, dtype, shared_out):
    (x, plain), (own, other) = pair(features(channels, dtype) + 2), norms(channels)
    found, expected = norm_relu(x, own), other(plain.float()).relu()
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    assert_close(found / 4, expected / 4, dtype)
    back = features(channels, dtype, 3)
    mine = gradients(found, [x, own.weight, own.bias], back)
    theirs = gradients(expected, [plain, other.weight, other.bias], back.float())
    for one, two in zip(mine, theirs, strict=True):
        assert_close(one / 20, two / 20, dtype)
    for one, two in zip(own.buffers(), other.buffers(), strict=True):
        assert_close(one, two, dtype)


def test_norm_takes_volumes_and_a_gradient_that_is_a_part_of_more_channels(shared_out):
    values = torch.randn(1, 3, 2, 5, 4, generator=torch.Generator().manual_seed(0), device="cpu").to(DEVICE)
    (x, plain), (own, other) = pair(values), norms(3, nn.BatchNorm3d)
    back = torch.randn(1, 6, 2, 5, 4).to(DEVICE).contiguous(memory_format=torch.channels_last_3d)[:, 2:5]
    norm_relu(x, own).backward(back)
    other(plain).relu().backward(back)
    assert_close(x.grad, plain.grad)


@precisions
def test_instance_norm_and_relu_are_those_of_torch(dtype, shared_out):
    x, plain = pair(features(5, dtype) + 2)
    found, expected = instance_relu(x), F.instance_norm(plain.float()).relu()
    assert_close(found, expected, dtype)
    back = features(5, dtype, 3)
    found.backward(back)
    expected.backward(back.float())
    assert_close(x.grad, plain.grad, dtype)


def test_a_large_mean_takes_no_precision_from_a_small_variance(shared_out):
    values = 1000 + features(2)
    own, other = norms(2)
    exact = other.double()(values.double()).relu()
    assert_close(norm_relu(values, own), exact)
    assert_close(own.running_var, other.running_var)


def test_pooling_passes_on_the_gradients_of_both_uses():
    values = features(5, size=(2, 6, 8)).relu().round(decimals=1)  # with many equals
    x, plain = pair(values)
    kept, pooled = halve(x)
    assert torch.equal(kept, values) and torch.equal(pooled, F.max_pool2d(values, 2))
    skip, deep = features(8, seed=1, size=(2, 6, 8))[:, 1:6], features(5, seed=2, size=(2, 3, 4))
    mine = torch.autograd.grad([kept, pooled], x, [skip, deep])[0]
    theirs = torch.autograd.grad([plain * 1, F.max_pool2d(plain, 2)], plain, [skip, deep])[0]
    assert_close(mine, theirs)


@precisions
def test_upsampling_beside_others_is_upsampling_and_concatenation(dtype):
    (x, plain), (skip, same) = pair(features(5, dtype)), pair(features(3, dtype, 1, (2, 18, 14)))
    found, expected = double_beside(x, skip), torch.cat([double(plain), same], 1)
    assert torch.equal(found, expected) and found.is_contiguous(memory_format=torch.channels_last)
    back = features(8, dtype, 3, (2, 18, 14))
    mine, theirs = (torch.autograd.grad(*each, back) for each in ((found, [x, skip]), (expected, [plain, same])))
    assert all(map(torch.equal, mine, theirs))


@precisions
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("labels", [torch.int64, torch.int16])
def test_the_dice_loss_is_the_tasks(classes, labels, dtype, shared_out):
    x, plain = pair(features(classes, dtype))
    target = torch.randint(0, classes, (2, 9, 7), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    target[0].clamp_(max=classes - 2)  # a class that an image has not
    found = softmax_dice_loss(x, target.to(labels))
    probabilities = plain.float().softmax(1)
    mine = F.one_hot(target, classes).movedim(-1, 1)
    dices = 2 * (probabilities * mine).sum((2, 3)) / (probabilities + mine).sum((2, 3))
    assert_close(found, 1 - dices.mean(), torch.float32)
    found.backward()
    (1 - dices.mean()).backward()
    assert_close(x.grad * 100, plain.grad * 100, dtype)


@precisions
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 4), (5, 17), (32, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_of_kernel_1_are_those_of_the_library(inputs, outputs, dtype, bias, shared_out, monkeypatch):
    monkeypatch.setattr(convolution, "usable", lambda _: True)
    torch.manual_seed(0)
    plain = nn.Conv2d(inputs, outputs, 1, bias=bias).to(DEVICE)
    own = copy.deepcopy(plain)
    use_fast_convolutions(own)
    assert type(own) is convolution.FastPointwise
    x, y = pair(features(inputs, dtype))
    found, expected = own(x), plain(y.float())
    assert found.dtype == dtype
    assert_close(found, expected, dtype)
    back = features(outputs, dtype, 3)
    mine = torch.autograd.grad(found, [x, *own.parameters()], back)
    theirs = torch.autograd.grad(expected, [y, *plain.parameters()], back.float())
    for one, two in zip(mine, theirs, strict=True):
        assert_close(one / 40, two / 40, dtype)


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (48, 32)])
def test_gradients_by_weights_are_sums_over_all_pixels(inputs, outputs, shared_out):
    size = (2, 9, 19)  # no whole number of runs, nor of blocks
    values, back = features(inputs, torch.float16, 0, size), features(outputs, torch.float16, 3, size)
    weight = torch.zeros(outputs, inputs, 3, 3, device=DEVICE, requires_grad=True)
    F.conv2d(values.float(), weight, padding=1).backward(back.float())
    torch.testing.assert_close(correlate(values, back), weight.grad, atol=0.05, rtol=1e-2)


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_augmentation_in_one_pass_is_that_in_many(probability, monkeypatch):
    generator = torch.Generator(DEVICE).manual_seed(5)
    images = torch.rand(4, 2, 18, 35, generator=generator, device=DEVICE) - 0.1  # gamma takes what is negative as 0
    labels = torch.randint(0, 5, (4, 18, 35), generator=generator, device=DEVICE)
    draw = Augmentation(probability, elastic_sigma=3.0, elastic_alpha=20.0).draw(images, generator)
    monkeypatch.setattr(augment, "usable", lambda _: False)
    expected, same = augment.augment(images, labels, draw)
    monkeypatch.setattr(augment, "usable", lambda _: True)
    found, its = augment.augment(images, labels, draw)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert its.dtype == labels.dtype
    # Halfway between two pixels, rounding decides whose label is the nearest.
    assert (its != same).sum() <= 2


def test_a_network_learns_the_same_by_kernels(monkeypatch):
    torch.manual_seed(0)
    one = AdaptableNetwork.default(classes=3, width=2).to(DEVICE).train()
    other = copy.deepcopy(one)
    use_fast_convolutions(other)
    images, labels = features(1, size=(2, 16, 8)), torch.randint(0, 3, (2, 16, 8)).to(DEVICE)

    def learnt(network):
        loss = Segmentation().loss(network(images), labels)
        return loss, torch.autograd.grad(loss, network.parameters())

    def use(answer):
        for module in (unet, normalizer, convolution, segmentation):
            monkeypatch.setattr(module, "usable", lambda _: answer)

    use(False)
    expected, theirs = learnt(one)
    use(True)
    found, mine = learnt(other)
    assert_close(found, expected)
    for gradient, same in zip(theirs, mine, strict=True):
        torch.testing.assert_close(same, gradient, atol=1e-4, rtol=1e-3)
    for buffer, same in zip(one.buffers(), other.buffers(), strict=True):
        assert_close(same, buffer)
