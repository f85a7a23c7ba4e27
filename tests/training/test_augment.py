"""The augmentation against scipy and MONAI on the same parameters; its randomness against its promises."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from scantune.training.augment import (
    Augmentation,
    Draw,
    augment,
    change_gamma,
    elastic_displacement,
    resample,
    source_positions,
)

HEIGHT, WIDTH = 18, 25


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture
def images(generator) -> torch.Tensor:
    return torch.rand(3, 2, HEIGHT, WIDTH, generator=generator)


@pytest.fixture
def labels(generator) -> torch.Tensor:
    return torch.randint(0, 5, (3, HEIGHT, WIDTH), generator=generator)


def neutral(batch: int = 3, channels: int = 2, **changes: torch.Tensor) -> Draw:
    values = {
        "displacement": torch.zeros(batch, 2, HEIGHT, WIDTH),
        "translation": torch.zeros(batch, 2),
        "degrees": torch.zeros(batch),
        "scale": torch.ones(batch),
        "gamma": torch.ones(batch),
        "brightness": torch.zeros(batch),
        "noise": torch.zeros(batch, channels, HEIGHT, WIDTH),
    }
    return Draw(**(values | changes))


def each_image(images: torch.Tensor, labels: torch.Tensor):
    """Numpy images and label maps with the sample they belong to and the interpolation order they need."""
    for sample in range(len(images)):
        for channel in images[sample].numpy():
            yield sample, channel, 1
        yield sample, labels[sample].numpy(), 0


def moved_the_same_way(images, labels, draw, expected_of) -> None:
    new_images, new_labels = augment(images, labels, draw)
    assert new_images.dtype == images.dtype
    assert new_labels.dtype == labels.dtype
    results = each_image(new_images, new_labels)
    for (sample, before, order), (_, after, _) in zip(each_image(images, labels), results, strict=True):
        expected = expected_of(before, sample, order)
        if order == 0:
            np.testing.assert_array_equal(after, expected)
        else:
            np.testing.assert_allclose(after, expected, atol=2e-5)


@pytest.mark.parametrize("sigma", [0.8, 3.0, 20.0])
def test_the_elastic_field_is_smoothed_as_by_scipy(generator, sigma):
    field = torch.rand(2, 2, HEIGHT, WIDTH, generator=generator) * 2 - 1
    smoothed = elastic_displacement(field, sigma, torch.tensor([1000.0, 0.0]))
    for axis in range(2):
        expected = 1000 * ndimage.gaussian_filter(field[0, axis].double().numpy(), sigma)
        np.testing.assert_allclose(smoothed[0, axis].numpy(), expected, atol=1e-3)
    assert not smoothed[1].any()


def test_elastic_displacements_have_the_deviation_of_smoothed_noise():
    """A Gaussian of width sigma divides the variance of white noise by 4 pi sigma^2."""
    generator = torch.Generator().manual_seed(0)
    draw = Augmentation(probability=1.0).draw(torch.zeros(64, 1, 128, 128), generator)
    centre = draw.displacement[:, :, 60:68, 60:68]
    expected = 1000 / math.sqrt(3 * 4 * math.pi * 20**2)
    assert expected == pytest.approx(8.14, abs=0.01)
    assert centre.std().item() == pytest.approx(expected, rel=0.15)


def test_elastic_deformation_matches_scipy_map_coordinates(images, labels, generator):
    displacement = 3 * torch.randn(3, 2, HEIGHT, WIDTH, generator=generator)
    here = np.mgrid[:HEIGHT, :WIDTH]

    def expected(image, sample, order):
        positions = here + displacement[sample].double().numpy()
        return ndimage.map_coordinates(image, positions, order=order, mode="grid-constant")

    moved_the_same_way(images, labels, neutral(displacement=displacement), expected)


def test_translation_matches_scipy_shift(images, labels):
    translation = torch.tensor([[2.3, -4.6], [-0.7, 0.0], [0.0, 9.2]])

    def expected(image, sample, order):
        return ndimage.shift(image, translation[sample].tolist(), order=order, mode="grid-constant")

    moved_the_same_way(images, labels, neutral(translation=translation), expected)


def test_rotation_matches_scipy_rotate(images, labels):
    degrees = torch.tensor([10.0, -7.5, 3.1])

    def expected(image, sample, order):
        return ndimage.rotate(image, float(degrees[sample]), reshape=False, order=order, mode="grid-constant")

    moved_the_same_way(images, labels, neutral(degrees=degrees), expected)


def test_scaling_matches_scipy_affine_transform_about_the_centre(images, labels):
    scale = torch.tensor([0.93, 1.09, 1.037])
    centre = np.array([HEIGHT - 1, WIDTH - 1]) / 2

    def expected(image, sample, order):
        shrink = 1 / float(scale[sample])
        return ndimage.affine_transform(
            image, [shrink, shrink], centre * (1 - shrink), order=order, mode="grid-constant"
        )

    moved_the_same_way(images, labels, neutral(scale=scale), expected)


def test_rotation_and_scaling_match_monai(images):
    from monai.transforms import Affine

    draw = neutral(degrees=torch.tensor([8.0, 0.0, -5.0]), scale=torch.tensor([1.1, 0.9, 0.95]))
    moved, _ = augment(images, torch.zeros(3, HEIGHT, WIDTH, dtype=torch.int64), draw)
    for sample in range(3):
        angle, shrink = math.radians(float(draw.degrees[sample])), 1 / float(draw.scale[sample])
        by_monai = Affine(-angle, scale_params=(shrink, shrink), padding_mode="zeros", image_only=True)
        np.testing.assert_allclose(moved[sample], by_monai(images[sample]), atol=1e-5)


def test_stacked_geometry_is_the_four_maps_one_after_the_other():
    """A plain loop: undo scaling, then rotation, then the shift, then add the elastic displacement."""
    generator = torch.Generator().manual_seed(3)
    displacement = torch.randn(1, 2, HEIGHT, WIDTH, generator=generator)
    shift, degrees, scale = (4.0, -2.5), 9.0, 1.08
    positions = source_positions(displacement, torch.tensor([shift]), torch.tensor([degrees]), torch.tensor([scale]))
    angle = math.radians(degrees)
    middle = (HEIGHT - 1) / 2, (WIDTH - 1) / 2
    for row in range(HEIGHT):
        for column in range(WIDTH):
            r, c = (row - middle[0]) / scale, (column - middle[1]) / scale
            r, c = math.cos(angle) * r + math.sin(angle) * c, math.cos(angle) * c - math.sin(angle) * r
            r, c = r + middle[0] - shift[0], c + middle[1] - shift[1]
            r, c = r + displacement[0, 0, row, column].item(), c + displacement[0, 1, row, column].item()
            assert positions[0, :, row, column].tolist() == pytest.approx([r, c], abs=1e-5)


def test_gamma_matches_monai_on_images_that_span_zero_to_one(images):
    from monai.transforms import AdjustContrast

    images = images - images.amin((1, 2, 3), keepdim=True)
    images = images / images.amax((1, 2, 3), keepdim=True)
    gamma = torch.tensor([0.5, 2.0, 1.3])
    changed = change_gamma(images, gamma)
    for sample in range(3):
        expected = AdjustContrast(float(gamma[sample]))(images[sample])
        np.testing.assert_allclose(changed[sample], expected, atol=1e-5)


def test_gamma_takes_negative_values_as_zero_and_leaves_images_alone_when_off():
    images = torch.tensor([-0.5, 0.0, 0.25]).expand(2, 1, 1, 3)
    changed = change_gamma(images, torch.tensor([0.5, 1.0]))
    assert changed[0, 0, 0].tolist() == [0.0, 0.0, 0.5]
    assert torch.equal(changed[1], images[1])


def test_brightness_matches_monai_and_is_not_clipped(images):
    from monai.transforms import ShiftIntensity

    brightness = torch.tensor([0.1, 0.0, 0.05])
    labels = torch.zeros(3, HEIGHT, WIDTH, dtype=torch.int64)
    changed, _ = augment(images + 0.5, labels, neutral(brightness=brightness))
    for sample in range(3):
        expected = ShiftIntensity(float(brightness[sample]))(images[sample] + 0.5)
        np.testing.assert_allclose(changed[sample], expected, atol=2e-5)
    assert changed.max() > 1.4


def test_intensity_comes_after_geometry_in_the_order_gamma_brightness_noise(images, labels, generator):
    noise = 0.1 * torch.randn(images.shape, generator=generator)
    shift = torch.full((3, 2), 40.0)
    draw = neutral(translation=shift, gamma=torch.full((3,), 2.0), brightness=torch.full((3,), 0.1), noise=noise)
    changed, _ = augment(images, labels, draw)
    torch.testing.assert_close(changed, 0.1 + noise)
    stay = neutral(gamma=torch.full((3,), 2.0), brightness=torch.full((3,), 0.1), noise=noise)
    changed, _ = augment(images, labels, stay)
    torch.testing.assert_close(changed, images**2 + 0.1 + noise, atol=2e-5, rtol=0)


def test_labels_are_never_invented_and_stay_on_their_anatomy(generator):
    values = torch.tensor([0, 3, 200, 70000])
    labels = values[torch.randint(0, 4, (32, HEIGHT, WIDTH), generator=generator)]
    images = torch.rand(32, 1, HEIGHT, WIDTH, generator=generator)
    _, moved = Augmentation(probability=1.0)(images, labels, generator)
    assert moved.shape == labels.shape
    assert set(moved.unique().tolist()) <= set(values.tolist())
    assert not torch.equal(moved, labels)
    blob = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(32, 1, 64, 64)), (0, 0, 6, 6)) > 0
    blob = torch.from_numpy(blob)
    quiet = Augmentation(probability=1.0, gamma=(1, 1), brightness=(0, 0), noise=0.0, elastic_alpha=200.0)
    image, label = quiet(blob.float(), blob[:, 0].long(), generator)
    assert ((image[:, 0] > 0.5) == label.bool()).float().mean() > 0.99


def test_probability_zero_changes_nothing(images, labels, generator):
    changed, same = Augmentation(probability=0.0)(images, labels, generator)
    torch.testing.assert_close(changed, images, atol=2e-5, rtol=0)
    assert torch.equal(same, labels)


def test_each_transform_is_drawn_independently_within_its_range():
    samples = 8000
    draw = Augmentation().draw(torch.zeros(samples, 1, 2, 3), torch.Generator().manual_seed(1))
    drawn = {
        "elastic": (draw.displacement[:, 0, 0, 0], 0.0, None),
        "shift": (draw.translation[:, 0], 0.0, (-10, 10)),
        "turn": (draw.degrees, 0.0, (-10, 10)),
        "scale": (draw.scale, 1.0, (0.9, 1.1)),
        "gamma": (draw.gamma, 1.0, (0.5, 2.0)),
        "brightness": (draw.brightness, 0.0, (0.0, 0.1)),
        "noise": (draw.noise[:, 0, 0, 0], 0.0, None),
    }
    on = torch.stack([values != off for values, off, _ in drawn.values()]).double()
    np.testing.assert_allclose(on.mean(1), 0.25, atol=0.02)
    np.testing.assert_allclose(torch.corrcoef(on), np.eye(7), atol=0.05)
    for name, (values, off, limits) in drawn.items():
        active = values[values != off]
        if limits:
            low, high = limits
            assert low <= active.min() < low + 0.01 * (high - low), name
            assert high - 0.01 * (high - low) < active.max() <= high, name
            assert active.mean().item() == pytest.approx((low + high) / 2, abs=0.03 * (high - low)), name
    assert draw.noise[draw.noise != 0].std().item() == pytest.approx(0.1, rel=0.03)
    assert torch.equal(draw.translation[:, 0] != 0, draw.translation[:, 1] != 0)
    both = torch.corrcoef(draw.translation[draw.translation[:, 0] != 0].T)
    assert abs(both[0, 1].item()) < 0.06


def test_the_generator_decides_everything(images, labels):
    def run(seed):
        return Augmentation(probability=0.5)(images, labels, torch.Generator().manual_seed(seed))

    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_pixels_from_outside_are_zero_and_background(images, labels):
    positions = torch.full((3, 2, HEIGHT, WIDTH), -5.0)
    moved, background = resample(images + 1, labels + 1, positions)
    assert not moved.any()
    assert not background.any()
