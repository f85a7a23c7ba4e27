import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from scantune import InputError
from scantune.experts import EXPERTS, CNNExperts, PatchScatter, PatchSettings, Recorder, Recording, choose_layers
from scantune.experts.base import image_weights
from scantune.experts.pca import active_patches, all_loadings, chosen_loadings
from scantune.kernels.cpu import activation
from scantune.networks import fold_batch_norm
from scantune.tasks import Segmentation
from tests.conftest import TOY_PATCHES, toy_scan


class InPlace(nn.Module):
    """Overwrites what its convolutions gave, as many networks do."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(1, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        h = torch.relu_(self.one(x))
        h = self.two(h)
        h += 1
        return self.out(self.two(torch.relu_(h)))


def test_features_are_what_the_layer_gave_even_if_the_network_overwrites_them(rng):
    network, x = InPlace().eval(), torch.randn(1, 1, 8, 8, generator=rng)
    with Recorder(network, ["one", "two"]) as record:
        recording = record(x)
    assert torch.equal(recording.features["one"], network.one(x))
    assert torch.equal(recording.output, network(x))
    recording.features["one"].square().sum().backward()


def test_a_layer_called_twice_gives_two_features(rng):
    network, x = InPlace().eval(), torch.randn(1, 1, 8, 8, generator=rng)
    assert choose_layers(network, x) == ["one", "two", "two@2"]


def test_hooks_are_gone_afterwards():
    network = InPlace()
    with Recorder(network, ["one"]):
        assert network.one._forward_hooks
    assert not network.one._forward_hooks


def test_layers_can_be_named_or_chosen_by_a_rule():
    network, x = InPlace().eval(), torch.zeros(1, 1, 8, 8)
    assert choose_layers(network, x, ["two"]) == ["two", "two@2"]
    assert choose_layers(network, x, lambda name, _: name == "one") == ["one"]
    with pytest.raises(InputError, match="no layer 'three'"):
        choose_layers(network, x, ["three"])
    with pytest.raises(InputError, match="fewer than two convolutions"):
        choose_layers(nn.Conv2d(1, 2, 1), x)


def test_a_coarse_pixel_counts_if_its_whole_cell_is_inside():
    padding = torch.zeros(1, 1, 8, 8, dtype=torch.bool)
    padding[..., :3, :] = True
    coarse = image_weights(padding, torch.zeros(1, 5, 4, 4))
    assert coarse[0, 0, :, 0].tolist() == [0, 0, 1, 1]
    assert image_weights(None, torch.zeros(1, 1, 2, 2)) is None


@pytest.fixture(scope="module")
def fitted(toy):
    """PCA experts of two scans, with the recordings they came from."""
    scatter = PatchScatter("up.2.second.conv", TOY_PATCHES, Segmentation())
    recordings = []
    with torch.no_grad(), Recorder(toy.network, [scatter.layer]) as record:
        for volume in toy.volumes[:2]:
            recordings.append(record(volume))
            scatter.add(recordings[-1], None)
    return scatter.experts(), recordings


def cut_out_patches(recording, channel):
    """A plain loop over positions: the active patches of one channel, `(active, pixels)`."""
    r, d = TOY_PATCHES.size, TOY_PATCHES.stride
    features = recording.features["up.2.second.conv"][:, channel].numpy()
    foreground = 1 - recording.output.softmax(1)[:, 0].numpy()
    patches = []
    for number in range(features.shape[0]):
        for row in range(0, features.shape[1] - r + 1, d):
            for column in range(0, features.shape[2] - r + 1, d):
                if foreground[number, row + r // 2, column + r // 2] > TOY_PATCHES.threshold:
                    patches.append(features[number, row : row + r, column : column + r].ravel())
    return np.stack(patches)


@pytest.mark.parametrize("channel", [0, 3, 7])
def test_pca_experts_are_scikit_learns_loadings_of_cut_out_patches(fitted, channel):
    experts, recordings = fitted
    patches = np.concatenate([cut_out_patches(recording, channel) for recording in recordings])
    pca = PCA(n_components=4, svd_solver="full").fit(patches.astype(np.float64))
    ours = experts.components[channel].flatten(1).double().numpy()
    assert np.abs((ours * pca.components_).sum(1)) == pytest.approx(np.ones(4), abs=1e-4)

    ((_, loadings, weights),) = experts.outputs(recordings[0], None)
    chosen = weights[:, 0] > 0
    mine = loadings.unflatten(1, (-1, 4))[:, channel].movedim(1, -1)[chosen].numpy()
    signs = np.sign((ours * pca.components_).sum(1))
    theirs = pca.transform(cut_out_patches(recordings[0], channel)) * signs
    scale = np.abs(theirs).max()
    assert mine / scale == pytest.approx(theirs / scale, abs=1e-4)


def test_folding_leaves_the_loadings_as_they_are(toy, fitted):
    from copy import deepcopy

    experts, recordings = fitted
    network = deepcopy(toy.network)
    maps = fold_batch_norm(network.task)
    with torch.no_grad(), Recorder(network, experts.layers()) as record:
        ((_, folded, _),) = experts.folded(maps)[0].outputs(record(toy.volumes[0]), None)
    ((_, plain, _),) = experts.outputs(recordings[0], None)
    assert torch.allclose(folded, plain, atol=1e-3 * float(plain.abs().max()))


def test_no_gradient_passes_the_selection_of_patches(toy, fitted):
    experts, _ = fitted
    images = toy.volumes[0].clone().requires_grad_()
    with Recorder(toy.network, experts.layers()) as record:
        recording = record(images)
        weights = active_patches(recording, recording.features[experts.chosen[0]], experts.task, experts.settings, None)
    assert not weights.requires_grad


def test_padding_is_never_active(toy, fitted):
    experts, recordings = fitted
    everything = torch.ones(len(toy.volumes[0]), 1, 48, 48, dtype=torch.bool)
    ((_, _, weights),) = experts.outputs(recordings[0], everything)
    assert weights.sum() == 0


def test_features_smaller_than_a_patch_have_no_pca_experts(fitted):
    experts, _ = fitted
    small = Recording(torch.zeros(1, 3, 7, 40), {experts.chosen[0]: torch.zeros(1, 8, 7, 40)})
    assert list(experts.outputs(small, None)) == []


def test_too_few_active_patches_make_no_components(toy):
    scatter = PatchScatter("up.2.second.conv", TOY_PATCHES, Segmentation())
    assert scatter.experts() is None
    with torch.no_grad(), Recorder(toy.network, [scatter.layer]) as record:
        scatter.add(record(torch.zeros(1, 1, 48, 48)), None)
    assert scatter.experts() is None


def test_patches_are_the_papers_in_2d_and_smaller_in_3d():
    assert PatchSettings.for_dimensions(2) == PatchSettings(16, 8, 10, 0.8)
    assert PatchSettings.for_dimensions(3).size == 8


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_survive_their_record(name, fitted, toy):
    experts = CNNExperts(("up.2.second.conv",)) if name == "cnn" else fitted[0]
    again = EXPERTS[name].restore(experts.record(), experts.tensors())
    images = toy_scan(50)[0]
    with torch.no_grad(), Recorder(toy.network, experts.layers()) as record:
        recording = record(images)
    one, other = list(experts.outputs(recording, None)), list(again.outputs(recording, None))
    assert [group for group, _, _ in one] == [group for group, _, _ in other]
    assert all(torch.equal(a, b) for (_, a, _), (_, b, _) in zip(one, other, strict=True))


@pytest.mark.parametrize(("dimensions", "spatial"), [(2, (24, 21)), (3, (12, 9, 10))])
@pytest.mark.parametrize("last", [False, True])
def test_loadings_are_those_of_a_grouped_convolution(dimensions, spatial, last, rng):
    convolve = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[dimensions]
    features = torch.randn(2, 3, *spatial, generator=rng, dtype=torch.double)
    if last:
        features = features.contiguous(memory_format={2: torch.channels_last, 3: torch.channels_last_3d}[dimensions])
    for stride in (4, 3, 2):
        components = torch.randn(3, 5, *[8 if stride != 3 else 6] * dimensions, generator=rng, dtype=torch.double)
        expected = convolve(features, components.flatten(0, 1).unsqueeze(1), stride=stride, groups=3)
        if stride > 2:
            found = all_loadings(features.requires_grad_(), components, stride)
            torch.testing.assert_close(found, expected)
            slopes = torch.randn(expected.shape, generator=rng, dtype=torch.double)
            again = convolve(features, components.flatten(0, 1).unsqueeze(1), stride=stride, groups=3)
            ours, theirs = (torch.autograd.grad(each, features, slopes)[0] for each in (found, again))
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == features.stride()
        chosen = torch.rand(2, *expected.shape[2:], generator=rng) < 0.4
        found = chosen_loadings(features, components, stride, chosen)[0]
        torch.testing.assert_close(found, expected.movedim(1, 0)[:, chosen])


def test_in_place_activations_are_in_place_again_after_a_recording(rng):
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(inplace=True)).eval()
    with Recorder(network, ["0"]) as record:
        recording = record(torch.randn(1, 1, 8, 8, generator=rng))
        assert recording.features["0"].min() < 0 == recording.output.min()
        assert not record._protected
    assert network[1].inplace


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_gradients_by_rows_are_those_of_the_formula_far_from_zero_too(weighted, rng, monkeypatch):
    monkeypatch.setattr(activation, "NUMBERS_IN_CACHE", 1000)
    values = 30 + torch.randn(3, 6, 22, 13, generator=rng) * torch.tensor([0.1, 1, 30, 60, 2, 5]).view(-1, 1, 1)
    values = values.contiguous(memory_format=torch.channels_last)
    weights = (torch.rand(3, 1, 22, 13, generator=rng) < 0.4).float() if weighted else None
    center = torch.tensor([30, 29.5, 10, 0, 31, 30])
    positive, sums = activation.activate(values, weights, center)
    assert torch.equal(positive, values.relu())
    away = values.double() - center.view(-1, 1, 1)
    counted = away if weights is None else away * weights
    expected = torch.stack([counted.sum((0, 2, 3)), (counted * away).sum((0, 2, 3))])
    rounding = 1e-7 * values.abs().sum((0, 2, 3))
    assert ((sums - expected).abs()[0] < rounding).all()
    torch.testing.assert_close(sums[1], expected[1], rtol=1e-5, atol=0)
    offset, factor = torch.randn(2, 6, generator=rng)
    gradient = torch.randn(values.shape, generator=rng)
    slopes = activation.activation_slopes(values, weights, offset, factor, gradient)
    of_sums = offset.view(-1, 1, 1) + factor.view(-1, 1, 1) * values
    torch.testing.assert_close(slopes, (1 if weights is None else weights) * of_sums + gradient * (values > 0))
