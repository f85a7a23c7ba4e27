"""Kernels give what their plain twins give; without a GPU, Triton's interpreter runs them."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.conftest import TOY_PATCHES

pytest.importorskip("triton", reason="Triton is not installed")

from scantune import FieldOfExperts, kernels
from scantune.densities.binning import BinGrid, _Counts, affine_to_grid
from scantune.densities.gaussian import _Moments
from scantune.experts import FusedLayers
from scantune.experts.pca import all_loadings
from scantune.kernels.triton import binning, convolution, moments, weights
from scantune.kernels.triton.bump import bump
from scantune.kernels.triton.convolution import convolve
from scantune.kernels.triton.upsampling import double
from scantune.methods.expert_statistics import statistics_program
from scantune.networks import (
    AdaptableNetwork,
    FastConvolution,
    HalfPrecision,
    Normalizer,
    fold_batch_norm,
    use_fast_convolutions,
)
from scantune.networks.convolution import taps
from scantune.networks.half_precision import GateAfterNormalizer, GateInNormalizer, possible_gates

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


def in_units(channels):
    return torch.rand(3, channels, generator=torch.Generator().manual_seed(4), dtype=torch.double).to(DEVICE)


@precisions
@widths
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_their_gradient_are_those_of_the_plain_moments(channels, dtype, weighted):
    values, center = features(channels, dtype), torch.linspace(-1, 1, channels, device=DEVICE)
    weights, units = (features(1, seed=1) > 0).float() if weighted else None, in_units(channels)
    plain = values.float().requires_grad_()
    expected = _Moments.apply(plain, weights, center) * units
    assert_close(moments.measure(values, weights, center, units), expected, torch.float32)
    back = torch.randn(3, channels, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    expected.backward(back)
    assert_close(moments.slopes(values, weights, center, units, back), plain.grad, dtype)


def test_of_no_pixel_at_all_nothing_is_summed_or_counted():
    """Where no patch is active, there is no loading."""
    nothing, center = features(5)[:0], torch.zeros(5, device=DEVICE)
    assert not moments.measure(nothing, None, center, in_units(5)).any()
    assert moments.slopes(nothing, None, center, in_units(5), in_units(5)).shape == nothing.shape
    assert not binning.counts(nothing, None, center + 1, center, 21).any()
    assert binning.slopes(nothing, None, center + 1, center, torch.zeros(22, 5, device=DEVICE)).shape == nothing.shape


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
    values, how = features(5).contiguous(), (None, torch.zeros(5, device=DEVICE), in_units(5))
    assert_close(moments.measure(values, *how), moments.measure(features(5), *how))
    assert_close(double(values), double(features(5)))


@pytest.fixture
def kernels_everywhere(monkeypatch):
    """The interpreter takes what lies on a CPU."""
    monkeypatch.setattr("scantune.networks.convolution.usable", lambda tensor: True)
    for kernel in (convolution, weights):
        monkeypatch.setattr(kernel, "PROGRAMS", 4)


@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs", "dtype"),
    [
        (1, 5, torch.float32),
        (5, 1, torch.float32),
        (1, 16, torch.float16),
        (16, 16, torch.float16),
        (48, 16, torch.float16),
        (16, 32, torch.float16),
        (32, 16, torch.float16),
        (32, 32, torch.float16),
        (16, 48, torch.float16),
    ],
)
def test_convolutions_and_their_gradients_are_those_of_the_library(inputs, outputs, dtype, bias):
    torch.manual_seed(0)
    plain = nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias).to(DEVICE)
    own = nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias).to(DEVICE)
    own.load_state_dict(plain.state_dict())
    use_fast_convolutions(own)
    assert type(own) is FastConvolution
    x = features(inputs, dtype).requires_grad_()
    y = x.detach().float().requires_grad_()
    found, expected = own(x), plain(y)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=1e-2 if dtype == torch.float16 else 1e-5, rtol=1e-3)
    back = features(outputs, dtype, seed=3)
    found.backward(back)
    expected.backward(back.float())
    rough = {"atol": 0.05 if dtype == torch.float16 else 1e-4, "rtol": 5e-3}
    torch.testing.assert_close(x.grad.float(), y.grad, **rough)
    for ours, theirs in zip(own.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, **rough)


@pytest.mark.usefixtures("kernels_everywhere")
def test_a_normaliser_in_half_precision_has_the_gradients_of_one_in_single_precision(monkeypatch):
    monkeypatch.setattr("scantune.networks.normalizer.usable", lambda tensor: True)
    torch.manual_seed(0)
    network = AdaptableNetwork(Normalizer(), nn.Identity()).to(DEVICE)
    plain, scale = deepcopy(network), 2.0**15
    image, back = features(1), features(1, seed=3) / scale
    use_fast_convolutions(network)
    assert possible_gates(network.normalizer) == [GateInNormalizer, GateAfterNormalizer]
    precision = HalfPrecision(network, 2**14, GateInNormalizer)
    with precision.running():
        picture = network(image)
    (found,) = precision.lifted({"picture": picture.float()}).values()
    found.backward(back)
    expected = plain(image)
    expected.backward(back)
    assert picture.dtype == torch.float16
    assert_close(found, expected, torch.float16)
    precision.remove()
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() < 5e-3 * theirs.grad.norm()


def test_a_normaliser_whose_gradients_a_library_sums_stays_in_single_precision():
    wide = AdaptableNetwork(Normalizer(hidden=24), nn.Identity()).to(DEVICE)
    use_fast_convolutions(wide)
    assert possible_gates(wide.normalizer) == [GateAfterNormalizer]


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(4, 4, 1, groups=2),
        nn.Conv2d(4, 4, 1, 2),
        nn.Conv2d(4, 4, 1, padding=1),
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3, 2, 1),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),
    ],
)
def test_other_convolutions_stay_what_they_are(other):
    use_fast_convolutions(other)
    assert type(other) is nn.Conv2d


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (48, 16), (32, 80)])
def test_pixels_that_fill_no_whole_block_or_run_are_convolved_too(inputs, outputs, monkeypatch):
    monkeypatch.setattr(convolution, "PROGRAMS", 6)
    values = features(inputs, torch.float16, 0, (3, 5, 70))
    filters = features(inputs, torch.float16, 1, (outputs, 3, 3))
    expected = F.conv2d(values.float(), filters.float(), padding=1)
    found = convolve(values, taps(filters, torch.float16))
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=1e-2)


@pytest.mark.parametrize("weighted", [False, True])
def test_activations_moments_and_their_gradient_are_those_of_one_after_the_other(weighted):
    plain, units = features(5).requires_grad_(), in_units(5)
    bias, center = torch.randn(2, 5, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    weights = (features(1, seed=1) > 0).float() if weighted else None
    shifted = plain + bias.view(1, -1, 1, 1)
    expected = _Moments.apply(shifted, weights, center) * units
    activations, found = moments.activate(plain.detach(), bias, weights, center, units)
    assert_close(activations, shifted.relu())
    assert_close(found, expected)
    back, slope = features(5, seed=3), torch.randn_like(expected)
    torch.autograd.backward([shifted.relu(), expected], [back, slope])
    assert_close(moments.activation_slopes(plain.detach(), bias, weights, center, units, slope, back), plain.grad)


def test_programs_that_go_through_several_tiles_sum_the_same(monkeypatch):
    values, weights = features(5, size=(2, 40, 40)), (features(1, seed=1, size=(2, 40, 40)) > 0).float()
    rise, start = affine_to_grid(BinGrid(), None, torch.ones(5, device=DEVICE))
    how = (values, weights, torch.zeros(5, device=DEVICE), in_units(5))
    summed, counted = moments.measure(*how), binning.counts(values, weights, rise, start, 101)
    monkeypatch.setattr("scantune.kernels.triton.layout.PROGRAMS", 2)
    monkeypatch.setattr(binning, "PROGRAMS", 3)
    assert_close(moments.measure(*how), summed)
    assert_close(binning.counts(values, weights, rise, start, 101), counted)


def plainly_counted(values, weights, grid, rise, start):
    flat = values.movedim(1, -1).flatten(1, -2)
    counted = torch.ones_like(flat[..., :1]) if weights is None else weights.flatten(1).unsqueeze(2)
    fallen = _Counts.apply(flat, counted, grid, rise, start).T
    return torch.cat([counted.sum().expand(1, fallen.shape[1]), fallen])


@precisions
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("channels", "grid"), [(1, BinGrid(-2, 2)), (5, BinGrid(step=0.5)), (37, BinGrid(-6.35, 6.35))]
)
def test_counts_and_their_gradient_are_those_of_linear_binning(channels, grid, dtype, weighted):
    values, weights = features(channels, dtype), (features(1, seed=1) > 0).float() if weighted else None
    rise, start = affine_to_grid(grid, None, torch.ones(channels, device=DEVICE))
    plain = values.float().requires_grad_()
    expected = plainly_counted(plain, weights, grid, rise, start)
    found = binning.counts(values, weights, rise, start, grid.size)
    torch.testing.assert_close(found, expected.double(), atol=5e-3, rtol=0)
    torch.testing.assert_close(found.sum(0), expected.sum(0).double(), atol=1e-4, rtol=0)
    back = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    expected.backward(back)
    assert_close(binning.slopes(values, weights, rise, start, back), plain.grad, dtype)


@pytest.mark.parametrize("weighted", [False, True])
def test_activations_counts_and_their_gradient_are_those_of_one_after_the_other(weighted):
    grid, plain, bias = BinGrid(), features(5).requires_grad_(), torch.linspace(-1, 1, 5, device=DEVICE)
    weights = (features(1, seed=1) > 0).float() if weighted else None
    rise, start = affine_to_grid(grid, None, bias)
    shifted = plain + bias.view(1, -1, 1, 1)
    expected = plainly_counted(shifted, weights, grid, rise, start)
    activations, found = binning.activate(plain.detach(), bias, weights, rise, start, grid.size)
    assert_close(activations, shifted.relu())
    torch.testing.assert_close(found, expected.double(), atol=5e-3, rtol=0)
    back, slope = features(5, seed=3), torch.randn_like(expected)
    torch.autograd.backward([shifted.relu(), expected], [back, slope])
    assert_close(binning.activation_slopes(plain.detach(), bias, weights, rise, start, slope, back), plain.grad)


@pytest.mark.parametrize("size", [(2, 40, 24), (1, 37, 50), (1, 16, 280)])
def test_loadings_and_their_gradient_are_those_of_blocks(size, monkeypatch):
    values, components = features(5, torch.float16, size=size), features(3, size=(5, 16, 16)) / 16
    plain = values.float().requires_grad_()
    expected = all_loadings(plain, components, 8)
    monkeypatch.setattr("scantune.experts.pca.usable", lambda tensor: True)
    own = values.requires_grad_()
    found = all_loadings(own, components, 8)
    assert_close(found, expected, torch.float16)
    back = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    found.backward(back)
    expected.backward(back)
    assert_close(own.grad, plain.grad, torch.float16)


def test_a_value_that_is_no_number_is_found_in_the_counts():
    values = features(5)
    values[1, 3, 4, 5] = torch.nan
    found = binning.counts(values, None, *affine_to_grid(BinGrid(), None, torch.ones(5, device=DEVICE)), BinGrid().size)
    assert found.sum(0).isnan().tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("density", ["gaussian", "histogram"])
def test_units_give_what_the_network_gave_and_the_statistics_of_its_layers(toy, density, monkeypatch):
    task = deepcopy(toy.network.task).to(DEVICE).requires_grad_(False)
    prior = FieldOfExperts.fit(task, [features(1, size=(2, 32, 32))], density=density, patches=TOY_PATCHES)
    prior = prior.to(torch.device(DEVICE)).folded(fold_batch_norm(task))
    fields, images = prior.families["cnn"].layers, features(1, seed=1, size=(2, 32, 32))
    expected = prior.statistics(task, images)
    output, last = task(images), list(fields)[-1:]
    monkeypatch.setattr("scantune.densities.binning.usable", lambda tensor: True)
    monkeypatch.setattr("scantune.methods.expert_statistics.usable", lambda tensor: True)
    units = FusedLayers.on_gpu(task, {layer: statistics_program(field) for layer, field in fields.items()}, last)
    assert set(units.activations) == set(fields) - set(last)
    torch.testing.assert_close(task(images), output)
    units.expect(None)
    torch.testing.assert_close(task(images), output)
    for layer, found in units.statistics():
        torch.testing.assert_close(found, expected[f"cnn/{layer}"], atol=1e-2, rtol=1e-4)


def test_where_a_first_kernel_fails_or_errs_none_is_used(monkeypatch):
    works = kernels.works.__wrapped__
    assert works(torch.device(DEVICE))
    monkeypatch.setattr("scantune.kernels.triton.bump.bump", lambda values, _: values)
    assert not works(torch.device(DEVICE))

    def fails(*_):
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr("scantune.kernels.triton.bump.bump", fails)
    assert not works(torch.device(DEVICE))
    monkeypatch.setattr("scantune.kernels.find_spec", lambda _: None)
    assert not works(torch.device(DEVICE))
