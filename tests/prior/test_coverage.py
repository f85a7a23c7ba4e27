"""Coverage: what a scan shows is measured as plain loops and scipy measure it, and compared with source scans."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from scantune.prior.coverage import Coverage, Shown, ShownAtHome, outlined


def ball(radius, size=32, slices=20):
    z, y, x = np.indices((slices, size, size), float)
    return (z - slices / 2) ** 2 + (y - size / 2) ** 2 + (x - size / 2) ** 2 <= radius**2


def shown(mask, voxel_ml=0.5):
    return Shown.of(torch.from_numpy(mask.astype(np.float32))[:, None], None, voxel_ml)


def test_an_outline_of_round_things_is_what_scipy_fills():
    head = ball(9) & ~ball(8) | ball(5)
    filled = np.stack([ndimage.binary_fill_holes(part) for part in head])
    found = shown(head)
    assert found.ml == pytest.approx(0.5 * filled.sum(), rel=0.02)
    assert found.holes == pytest.approx(1 - head.sum() / filled.sum(), abs=0.02)
    assert found.share == pytest.approx(filled.sum() / head.size, rel=0.02)


def test_a_pixel_is_within_the_outline_if_there_is_content_on_all_four_sides():
    content = torch.from_numpy(np.random.default_rng(0).random((3, 7, 9)) < 0.3)
    for number, picture in enumerate(content):
        for row in range(7):
            for column in range(9):
                across, along = picture[row], picture[:, column]
                sides = (across[: column + 1], across[column:], along[: row + 1], along[row:])
                assert outlined(content)[number, row, column] == all(side.any() for side in sides)


def test_volumes_and_padding_count_alike_in_slices_and_in_volumes():
    images = torch.rand(1, 2, 5, 8, 8) * torch.from_numpy(ball(3, 8, 5))
    padding = torch.zeros(1, 1, 5, 8, 8, dtype=torch.bool)
    padding[..., 6:] = True
    assert Shown.of(images, padding, 1.0) == Shown.of(images[0].transpose(0, 1), padding[0].transpose(0, 1), 1.0)


HOME = [shown(ball(radius)) for radius in (7, 7.5, 8, 8.5, 8)]


@pytest.mark.parametrize(
    ("scan", "told"),
    [
        (ball(8), ""),
        (ball(8) & (np.arange(20) > 11)[:, None, None], "it covers only a part"),
        (ball(12), "more than in training"),
        (ball(9) & ~ball(8) | ball(6), "Zeros enclosed by the scan"),
    ],
    ids=["home", "part", "head", "ring"],
)
def test_a_scan_that_shows_much_less_or_more_is_noticed(scan, told):
    found = ShownAtHome.of(HOME).warnings(shown(scan))
    assert [told in sentence for sentence in found] == ([True] if told else [])


def test_few_people_leave_more_room():
    many, few = (ShownAtHome.of(scans) for scans in (HOME, HOME[1:4]))
    larger = shown(ball(9.6))
    assert many.warnings(larger)
    assert not few.warnings(larger)


def test_where_source_scans_fill_their_pictures_the_number_of_slices_counts():
    full = shown(np.ones((20, 32, 32), bool))
    assert ShownAtHome.of([*HOME, full]) is ShownAtHome.of([]) is None
    coverage = Coverage((20, 20), (1.0, 1.0)).with_shown(HOME)
    assert coverage.warnings(3, None, shown(ball(8))) == []
    assert "has 3 slices" in coverage.warnings(3, None)[0]
    assert "has 1 slice," in coverage.with_shown([full]).warnings(1, None, full)[0]


def test_it_survives_its_tensors():
    for coverage in (Coverage((3.0, 9.0), (0.5, 1.0)), Coverage((3.0, 9.0), (0.5, 1.0), ShownAtHome((1, 2), 0.25, 4))):
        assert Coverage.from_tensors(coverage.tensors()) == coverage
    assert Coverage.from_tensors({}) is None
