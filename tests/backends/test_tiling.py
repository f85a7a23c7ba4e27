"""Windows: where they lie, how they are averaged, which are chosen, and what memory they take."""

import itertools

import pytest
import torch
from monai.data.utils import compute_importance_map, dense_patch_slices
from monai.inferers import sliding_window_inference
from torch import nn

from scantune.backends.tiling import SAMPLED_WINDOWS, Tiling
from scantune.errors import InputError

SIZES = [((20, 17), (8, 8)), ((8, 30), (8, 8)), ((12, 20, 17), (6, 8, 8)), ((9, 8, 16), (4, 8, 5))]


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5])
@pytest.mark.parametrize(("size", "window"), SIZES)
def test_windows_lie_where_monai_puts_them(size, window, overlap):
    # MONAI takes a window's own length as the step where an axis is just as long.
    steps = [w if s == w else int(w * (1 - overlap)) for s, w in zip(size, window, strict=True)]
    assert list(Tiling(window, overlap).places(size)) == dense_patch_slices(size, window, steps)


@pytest.mark.parametrize("weighting", ["gaussian", "constant"])
@pytest.mark.parametrize("window", [(8, 5), (6, 8, 9)])
def test_weights_are_monais(weighting, window):
    expected = compute_importance_map(window, mode=weighting, sigma_scale=0.125)
    torch.testing.assert_close(Tiling(window, weighting=weighting).weights(), expected.float())


@pytest.mark.parametrize("weighting", ["gaussian", "constant"])
@pytest.mark.parametrize(("size", "window"), [*SIZES, ((6, 20), (8, 8)), ((3, 8, 9), (4, 8, 8))])
def test_predictions_are_monais_sliding_window_inference(size, window, weighting):
    torch.manual_seed(0)
    network = (nn.Conv2d if len(size) == 2 else nn.Conv3d)(2, 3, 3, padding=1)
    images = noise(2, 2, *size)
    found = Tiling(window, 0.5, weighting).predict(network, images, lambda output: output.softmax(1), batch=3)
    expected = sliding_window_inference(
        images, window, 3, lambda part: network(part).softmax(1), 0.5, weighting, sigma_scale=0.125
    )
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


def test_one_window_is_the_networks_own_output():
    network = nn.Conv2d(1, 2, 3, padding=1)
    images = noise(3, 1, 8, 8)
    found = Tiling((8, 8)).predict(network, images, torch.sigmoid)
    torch.testing.assert_close(found, network(images).sigmoid().detach())


class TestASample:
    def test_it_is_bounded_and_the_same_each_time(self):
        images = noise(1, 1, 30, 30, 30)
        tiling = Tiling((6, 6, 6))
        one, two = tiling.sample(images), tiling.sample(images)
        assert one.images.shape == (SAMPLED_WINDOWS, 1, 6, 6, 6)
        assert torch.equal(one.images, two.images)
        assert one.share * one.images.numel() == pytest.approx(images.numel())

    def test_it_holds_windows_of_the_scan_with_their_padding_and_labels(self):
        images, labels = noise(2, 1, 16, 16), torch.arange(512).reshape(2, 16, 16)
        padding = labels[:, None] % 7 == 0
        found = Tiling((8, 8)).sample(images, padding, labels, most=3)
        for image, outside, values in zip(found.images, found.padding, found.reference, strict=True):
            torch.testing.assert_close(image, images.flatten()[values][None])
            torch.testing.assert_close(outside, padding.flatten()[values][None])

    def test_few_windows_are_all_taken(self):
        images = noise(1, 1, 16, 16)
        found = Tiling((8, 8)).sample(images)
        expected = [images[0, :, r : r + 8, c : c + 8] for r, c in itertools.product((0, 8), (0, 8))]
        torch.testing.assert_close(found.images, torch.stack(expected))
        assert found.share == 1

    @pytest.mark.parametrize("change", [lambda x: x, lambda x: 1 - x, lambda x: 0.2 * x + 3])
    def test_windows_with_content_are_preferred_whatever_the_contrast(self, change):
        images = torch.zeros(1, 1, 64, 64)
        images[..., 16:40, 16:40] = torch.rand(24, 24, generator=torch.Generator().manual_seed(1))
        found = Tiling((8, 8)).sample(change(images))
        assert all(float(window.std()) > 0 for window in found.images)
        torch.testing.assert_close(found.images, change(Tiling((8, 8)).sample(images).images), rtol=1e-4, atol=1e-5)

    def test_a_scan_smaller_than_a_window_is_padded_and_says_so(self):
        found = Tiling((8, 8, 8)).sample(noise(1, 1, 5, 8, 6), reference=torch.ones(1, 5, 8, 6, dtype=torch.int64))
        assert found.images.shape == (1, 1, 8, 8, 8)
        assert int((~found.padding).sum()) == int(found.reference.sum()) == 5 * 8 * 6


@pytest.mark.parametrize("arguments", [{"window": (8,)}, {"window": (8, 0)}, {"window": (8, 8), "overlap": 1.0}])
def test_windows_that_cannot_be_are_refused(arguments):
    with pytest.raises(InputError, match="window"):
        Tiling(**arguments)
