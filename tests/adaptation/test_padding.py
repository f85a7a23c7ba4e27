"""Sizes that a network does not take: scans are padded, padding does not count, and results have the scan's size."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import scantune
from scantune import FieldOfExperts, InputError, Model
from scantune.backends import VolumePreprocessing
from scantune.scans.case import Case
from scantune.scans.volume import Volume
from scantune.tasks.trial import padded_for
from tests.adaptation.test_conformity import PlainUNet, monai
from tests.conftest import toy_scan


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return PlainUNet().eval()


@pytest.fixture(scope="module")
def odd():
    """Scans of odd sizes, of which the network halves each."""
    return [toy_scan(seed, size=size)[0][:, :, : size - 2] for seed, size in ((0, 33), (1, 35), (2, 33))]


def continued(images, size):
    """The same images with their edges continued, pixel by pixel, `(slices, channels, *size)`."""
    places = np.ix_(*(np.minimum(np.arange(new), old - 1) for new, old in zip(size, images.shape[2:], strict=True)))
    return images[(slice(None), slice(None), *map(torch.as_tensor, places))]


def test_the_prediction_is_that_of_the_padded_scan(network, odd):
    scan = odd[0]
    with pytest.raises(RuntimeError):
        network(scan)
    prior = FieldOfExperts.fit(network, odd[1:])
    result = scantune.adapt(network, scan, prior=prior, steps=2, guard=False, device="cpu")
    with torch.no_grad():
        own = network(continued(scan, (32, 34))).argmax(1)[:, :31, :33]
    assert torch.equal(result.source_prediction, own)
    assert result.prediction.shape == (4, 31, 33)
    assert result.energy_after < result.energy_before


def test_padding_does_not_count(network, odd):
    prior = FieldOfExperts.fit(network, odd)
    masks = [torch.ones(4, 1, 32 + extra, 34 + extra, dtype=torch.bool) for extra in (0, 2, 0)]
    for mask, scan in zip(masks, odd, strict=True):
        mask[:, :, : scan.shape[2], : scan.shape[3]] = False
    padded = [continued(scan, mask.shape[2:]) for scan, mask in zip(odd, masks, strict=True)]
    by_hand = FieldOfExperts.fit(network, padded, masks=masks)
    for name, value in by_hand.tensors().items():
        assert torch.equal(prior.tensors()[name], value), name
    shifted = odd[0] ** 2
    energy = by_hand.energy(network, continued(shifted, (32, 34)), masks[0])
    assert prior.energy(network, shifted) == energy
    result = scantune.adapt(network, shifted, prior=prior, steps=0, guard=False, device="cpu")
    assert result.energy_before == pytest.approx(energy, rel=1e-4)


def test_the_padding_of_a_scan_stays_padding(network, odd):
    mask = torch.zeros(4, 1, 31, 33, dtype=torch.bool)
    mask[..., :8] = True
    seen = padded_for(network, Volume(odd[0], mask, reference=torch.ones(4, 31, 33, dtype=torch.long)))
    assert seen.images.shape == (4, 1, 32, 34)
    assert torch.equal(seen.padding[:, :, :31, :33], mask)
    assert bool(seen.padding[:, :, 31:].all() and seen.padding[..., 33:].all())
    assert int(seen.reference.sum()) == 4 * 31 * 33


def test_what_fits_is_taken_as_it_is(network):
    volume = Volume(toy_scan(0)[0])
    assert padded_for(network, volume) is volume


@pytest.mark.parametrize(("strides", "expected"), [((2,), (22, 30, 26)), ((2, 2, 2), (24, 32, 32))])
def test_no_more_is_padded_than_a_network_needs(strides, expected):
    channels = (4,) * (len(strides) + 1)
    network = monai("UNet", spatial_dims=3, channels=channels, strides=strides)().eval()
    assert padded_for(network, Volume(torch.rand(1, 1, 21, 30, 25))).images.shape == (1, 1, *expected)


def test_an_answer_of_another_size_is_padded_too():
    """Some networks take odd sizes, but answer with even ones."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 2, 2, stride=2))
    assert network(torch.rand(1, 1, 15, 16)).shape == (1, 2, 16, 16)
    assert padded_for(network, Volume(torch.rand(1, 1, 15, 16))).images.shape == (1, 1, 16, 16)


def test_a_calibration_of_odd_sizes(network, odd):
    prior = FieldOfExperts.fit(network, odd).calibrated(network, odd)
    result = scantune.adapt(network, odd[0], prior=prior, device="cpu")
    assert result.prediction.shape == (4, 31, 33)
    assert prior.calibration.coverage.inside[1] < 1


def test_a_volume_from_a_file_is_padded_and_cropped():
    network = monai("UNet", spatial_dims=3, channels=(4, 8), strides=(2,), norm="batch")().eval()
    image = toy_scan(0, slices=9, size=25)[0][:, 0].permute(2, 1, 0).numpy()
    model = Model(network, {"a": 1, "b": 2}, VolumePreprocessing(window=None), {"kind": "custom"})
    result = scantune.adapt(model, Case("scan", image, np.eye(4)), method="source", device="cpu")
    assert result.prediction.shape == (25, 25, 9)


def test_windows_keep_the_size_that_was_chosen_for_them(network):
    scan = toy_scan(0)[0]
    taken = FieldOfExperts.fit(network, [scan], window=(24, 24))
    assert scantune.adapt(network, scan, prior=taken, method="source", device="cpu").prediction.shape == (4, 48, 48)
    refused = r"fails on an input of shape \(1, 1, 23, 23\)"
    with pytest.raises(InputError, match=refused):
        FieldOfExperts.fit(network, [scan], window=(23, 23))
    for act in (lambda prior: prior.energy(network, scan), lambda prior: scantune.adapt(network, scan, prior=prior)):
        with pytest.raises(InputError, match=refused):
            act(replace(taken, window=(23, 23)))
