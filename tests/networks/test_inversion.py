"""Inversion of a contrast, in front of the normaliser."""

import math

import pytest
import torch

from scantune.networks import AdaptableNetwork, Inversion


@pytest.fixture
def generator() -> torch.Generator:
    """Seeded random numbers."""
    return torch.Generator().manual_seed(0)


def test_bright_becomes_dark_and_the_background_stays():
    inversion = Inversion(0.2, 0.8, background=0.0)
    images = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.8, 0.9]).view(1, 1, 1, -1)
    assert torch.allclose(inversion(images).flatten(), torch.tensor([0.0, 0.8, 0.8, 0.7, 0.2, 0.2]))


def test_ends_are_quantiles_of_what_is_not_background(generator):
    content = torch.rand(2, 1, 10, 10, generator=generator)
    scan = torch.cat([torch.zeros_like(content), content], -1)
    inversion = Inversion.of(scan)
    ordered = sorted(content.flatten().tolist())
    place = 0.01 * (len(ordered) - 1)
    below = math.floor(place)
    low = ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])
    assert math.isclose(float(inversion.low), low, abs_tol=1e-6)
    assert float(inversion.background) == 0


def test_no_intensity_is_background_unless_many_pixels_have_it(generator):
    images = torch.rand(2, 1, 10, 10, generator=generator) - 0.5
    inversion = Inversion.of(images)
    assert math.isnan(float(inversion.background))
    inside = (images > inversion.low) & (images < inversion.high)
    assert torch.allclose(inversion(inversion(images))[inside], images[inside], atol=1e-6)


def test_a_constant_scan_is_no_error():
    images = torch.full((2, 1, 4, 4), 0.3)
    assert torch.equal(Inversion.of(images)(images), images)


def test_a_network_sees_the_inverted_image_and_passes_on_the_rest(generator):
    network = AdaptableNetwork(torch.nn.Identity(), torch.nn.Identity(), channels=1)
    network.curve = Inversion(0.0, 1.0)
    images = torch.rand(2, 2, 4, 4, generator=generator)
    assert torch.allclose(network.image(images), 1 - images[:, :1])
    assert torch.equal(network.beside(images)[0], images[:, 1:])
