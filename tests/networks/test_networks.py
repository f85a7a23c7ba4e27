import json
from copy import deepcopy

import pytest
import torch
from torch import nn

from scantune import AdaptableNetwork, InputError
from scantune.experts import choose_layers
from scantune.networks import ARCHITECTURES, Normalizer, UNet, fold_batch_norm, set_memory_layout, use_fast_convolutions
from scantune.networks.normalizer import Bump
from scantune.tasks import main_output
from tests.conftest import with_heights


def test_the_normaliser_has_2657_parameters_for_one_channel():
    assert sum(p.numel() for p in Normalizer().parameters()) == 2657


def test_the_unet_has_14_expert_layers_of_704_channels():
    network = AdaptableNetwork.default(classes=4).eval()
    layers = choose_layers(network, torch.zeros(1, 1, 32, 32))
    named = dict(network.task.named_modules())
    assert len(layers) == 14
    assert sum(named[name].out_channels for name in layers) == 704


def test_the_unet_has_the_papers_486_thousand_weights():
    convolutions = [m for m in UNet(1, 3).modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.weight.numel() for m in convolutions) == pytest.approx(486_000, rel=0.01)


def test_the_activation_is_the_papers_formula(rng):
    bump = Bump(3)
    x = torch.randn(2, 3, 4, 4, generator=rng)
    expected = torch.empty_like(x)
    for channel in range(3):
        expected[:, channel] = torch.exp(-(x[:, channel] ** 2) / bump.sigma[channel, 0, 0] ** 2)
    assert torch.allclose(bump(x), expected)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_the_activations_gradient_is_that_of_the_formula(dimensions, rng):
    bump = Bump(3, dimensions).eval()
    x = torch.randn(2, 3, *[5] * dimensions, generator=rng, requires_grad=True)
    weights = torch.randn(x.shape, generator=rng)
    formula = torch.exp(-x.square() / bump.sigma.square())
    for one, other in zip(
        torch.autograd.grad((bump(x) * weights).sum(), [x, bump.sigma]),
        torch.autograd.grad((formula * weights).sum(), [x, bump.sigma]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [(1, 5), (5, 1), (1, 1)])
def test_convolutions_from_and_to_one_channel_are_those_of_the_library(channels, rng):
    library = nn.Conv2d(*channels, 3, padding=1)
    own = deepcopy(library)
    set_memory_layout(own, "channels last")
    use_fast_convolutions(own)
    x = torch.randn(2, channels[0], 7, 9, generator=rng, requires_grad=True)
    assert type(own) is not nn.Conv2d
    torch.testing.assert_close(own(x), library(x))
    weights = torch.randn(2, channels[1], 7, 9, generator=rng)
    found, expected = (torch.autograd.grad((one(x) * weights).sum(), [x, *one.parameters()]) for one in (own, library))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dimensions", "shape"), [(2, (2, 3, 24, 40)), (2, (1, 3, 25, 31)), (3, (1, 3, 16, 24, 18))])
def test_two_and_three_dimensions_and_several_channels_by_an_argument(dimensions, shape):
    network = AdaptableNetwork.default(classes=5, channels=3, dimensions=dimensions, width=4).eval()
    assert network(torch.rand(shape)).shape == (shape[0], 5, *shape[2:])


def test_four_dimensions_are_refused():
    with pytest.raises(InputError, match="2 or 3, got 4"):
        UNet(dimensions=4)


def test_a_plain_network_gets_an_identity_normaliser(rng):
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x = torch.randn(2, 2, 12, 12, generator=rng)
    around = AdaptableNetwork.around(plain)
    assert torch.equal(around(x), plain(x))
    assert around.task is plain
    assert AdaptableNetwork.around(around) is around


def test_a_network_without_convolutions_needs_its_channels_told():
    with pytest.raises(InputError, match="give channels= and dimensions="):
        AdaptableNetwork.around(nn.Linear(3, 3))
    assert AdaptableNetwork.around(nn.Identity(), channels=1, dimensions=2)(torch.ones(1, 1, 4, 4)).sum() == 16


@pytest.mark.parametrize("dimensions", [2, 3])
def test_folding_batch_norm_leaves_the_function_as_it_is(dimensions, rng):
    network = UNet(1, 3, width=4, dimensions=dimensions)
    x = torch.rand(2, 1, *[16] * dimensions, generator=rng)
    network(x)  # moves the running statistics away from 0 and 1
    network.eval()
    before = network(x)
    folded = fold_batch_norm(network)
    assert len(folded) == 14
    assert not any(isinstance(m, nn.BatchNorm2d | nn.BatchNorm3d) for m in network.modules())
    assert torch.allclose(network(x), before, atol=1e-5)


def test_a_batch_norm_with_a_zero_gain_is_not_folded():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).eval()
    nn.init.zeros_(network[1].weight)
    assert fold_batch_norm(network) == {}
    assert isinstance(network[1], nn.BatchNorm2d)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_doubling_by_a_stencil_is_linear_interpolation_and_so_is_its_gradient(dimensions, rng):
    from scantune.networks.unet import upsample_by_two

    x = torch.randn(2, 3, *range(4, 4 + dimensions), generator=rng, dtype=torch.double).requires_grad_()
    mode = {2: "bilinear", 3: "trilinear"}[dimensions]
    expected = nn.functional.interpolate(x, scale_factor=2, mode=mode, align_corners=False)
    assert torch.allclose(upsample_by_two(x), expected)
    weights = torch.randn(expected.shape, generator=rng, dtype=torch.double)
    (ours,) = torch.autograd.grad((upsample_by_two(x) * weights).sum(), x)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), x)
    assert torch.allclose(ours, theirs)


def _kept(work):
    """What a forward pass keeps for its gradient."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        result = work()
    return result, kept


@pytest.mark.parametrize("size", [(8, 12), (7, 9)])
def test_pooling_on_a_cpu_is_the_librarys_and_keeps_places_alone(size, rng):
    network = UNet(1, 3, width=4).eval()
    x = torch.randn(2, 5, *size, generator=rng).relu().contiguous(memory_format=torch.channels_last).requires_grad_()
    (skip, found), kept = _kept(lambda: network._pooled(x))
    expected = nn.functional.max_pool2d(x, 2)
    assert skip is x and torch.equal(found, expected)
    assert [(one.shape, one.dtype) for one in kept] == [(found.shape, torch.int64)]
    weights = torch.randn(found.shape, generator=rng)
    gradients = [torch.autograd.grad((one * weights).sum(), x)[0] for one in (found, expected)]
    assert torch.equal(*gradients)
    assert gradients[0].stride() == x.stride()


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize("side", [1, 3])
def test_frozen_convolutions_are_those_of_the_library_and_keep_weights_alone(side, layout, rng):
    library = nn.Conv2d(5, 4, side, padding=side // 2).requires_grad_(False)
    own = deepcopy(library)
    set_memory_layout(own, layout)
    use_fast_convolutions(own)
    x = torch.randn(2, 5, 6, 7, generator=rng, requires_grad=True)
    found, kept = _kept(lambda: own(x))
    expected = library(x)
    torch.testing.assert_close(found, expected)
    if side == 1 or layout == "channels last":
        assert [one.shape for one in kept] == [library.weight.shape]
    weights = torch.randn(found.shape, generator=rng)
    torch.testing.assert_close(*(torch.autograd.grad((one * weights).sum(), x)[0] for one in (found, expected)))


ARGUMENTS = {
    "unet": {"classes": 3, "channels": 1, "width": 2},
    "register": {"heights": 3, "rows": 24, "columns": 24, "lowest": -1.0, "width": 2, "shrink": 2, "squarings": 2},
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_is_built_again_from_its_record(kind, rng):
    record = json.loads(json.dumps(ARGUMENTS[kind]))
    networks = [ARCHITECTURES[kind](**arguments).eval() for arguments in (ARGUMENTS[kind], record)]
    networks[1].load_state_dict(networks[0].state_dict())
    images = torch.rand(2, 1, 24, 24, generator=rng)
    outputs = [main_output(network(with_heights(images) if kind == "register" else images)) for network in networks]
    assert isinstance(networks[0], AdaptableNetwork)
    assert torch.equal(*outputs)
