"""Shapes known by their depth, how they are painted, and the planes across a slice."""

import numpy as np
import pytest
import torch

from scantune.simulate import FieldOfView
from scantune.simulate.anatomies.heart import Heart
from scantune.simulate.anatomies.prostate import Prostate
from scantune.simulate.anatomies.spine import Spine
from scantune.simulate.deform import HEAD, random_deformation
from scantune.simulate.extents import Extents
from scantune.simulate.fields import lattice_axes, lattice_points
from scantune.simulate.shaped import painted
from scantune.simulate.solids import (
    conic,
    distance,
    ellipse,
    ellipsoid,
    quadric,
    rod,
    smooth_max,
    smooth_min,
    superellipse,
    union,
    wedge,
)

CPU = torch.device("cpu")
RADII = (12.0, 20.0, 9.0)


def flat(form):
    """A form in y and x alone, about the middle of the other solids."""
    return lambda points: form(points[..., 1] + 2, points[..., 2] - 3)


SOLIDS = {
    "ellipsoid": lambda points: ellipsoid(points.unbind(-1), (1.0, -2.0, 3.0), RADII),
    "quadric": lambda points: quadric(points.unbind(-1), (1.0, -2.0, 3.0), RADII),
    "ellipse": flat(lambda y, x: ellipse(y, x, (15.0, 8.0))),
    "conic": flat(lambda y, x: conic(y, x, (15.0, 8.0))),
    "rounded box": flat(lambda y, x: superellipse(y, x, (15.0, 8.0), 4.0)),
    "rod": lambda points: rod(points.unbind(-1), (-6.0, 3.0, 2.0), (9.0, -7.0, 4.0), 7.0),
    "wedge": flat(lambda y, x: wedge(y, x, ((-5.0, 2.0), (8.0, -1.0)), (6.0, 6.0))),
}


def surface(solid, directions=200, seed=0):
    """Points `(1, 1, n, 3)`, double, on the surface: where depths along rays from the inside change sign."""
    rng = np.random.default_rng(seed)
    rays = torch.from_numpy(rng.standard_normal((1, 1, directions, 3)))
    rays[..., 0] *= 0.2  # tubes have no end along z
    start = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    low, high = torch.zeros(1, 1, directions, 1).double(), torch.full((1, 1, directions, 1), 1e3).double()
    for _ in range(60):
        half = (low + high) / 2
        inside = solid(start + half * rays)[..., None] > 0
        low, high = torch.where(inside, half, low), torch.where(inside, high, half)
    return start + low * rays


def slope(solid, points, step=1e-4):
    """Gradient `(1, 1, n, 3)` by central differences."""
    ends = [step * torch.eye(3, dtype=torch.float64)[axis] for axis in range(3)]
    return torch.stack([(solid(points + end) - solid(points - end)) / (2 * step) for end in ends], -1)


def test_the_depth_in_a_sphere_is_exact_everywhere():
    points = lattice_points((9, 11, 13), (4.0, 3.0, 3.5), (-17.0, -14.0, -20.0), CPU)
    depth = ellipsoid(points.unbind(-1), (1.0, 2.0, -3.0), (10.0, 10.0, 10.0))
    truth = 10 - np.linalg.norm(points.numpy() - [1.0, 2.0, -3.0], axis=-1)
    np.testing.assert_allclose(depth, truth, atol=1e-4)
    np.testing.assert_allclose(distance(points.unbind(-1), (1.0, 2.0, -3.0)), 10 - truth, atol=1e-4)


def test_the_depth_in_a_circle_is_exact_everywhere():
    _, y, x = lattice_points((3, 11, 13), (4.0, 3.0, 3.5), (-4.0, -14.0, -20.0), CPU).unbind(-1)
    np.testing.assert_allclose(ellipse(y, x, (10.0, 10.0)), 10 - np.hypot(y.numpy(), x.numpy()), atol=1e-4)
    assert torch.equal(conic(y, x, (10.0, 10.0)) > 0, torch.hypot(y, x) < 10)


def test_half_axes_may_differ_from_point_to_point():
    y, x, half = torch.from_numpy(np.random.default_rng(0).uniform(2, 9, (3, 40)))
    loop = [ellipse(a, b, (c.item(), 5.0)).item() for a, b, c in zip(y, x, half, strict=True)]
    np.testing.assert_allclose(ellipse(y, x, (half, 5.0)), loop)


@pytest.mark.parametrize("solid", [ellipsoid, quadric])
def test_an_ellipsoid_lies_on_its_equation(solid):
    points = surface(lambda p: solid(p.unbind(-1), (1.0, -2.0, 3.0), RADII))
    away = points.numpy() - [1.0, -2.0, 3.0]
    np.testing.assert_allclose(((away / RADII) ** 2).sum(-1), 1, atol=1e-9)


def test_rods_and_wedges_are_unions_of_balls():
    points = lattice_points((21, 21, 21), (3.0, 3.0, 3.0), (-30.0, -30.0, -30.0), CPU)
    steps = torch.linspace(0, 1, 300)[:, None]
    balls = [4 - (points - step).norm(dim=-1) for step in steps * torch.tensor([10.0, -6.0, 8.0])]
    torch.testing.assert_close(rod(points.unbind(-1), (0, 0, 0), (10, -6, 8), 4.0), union(*balls), atol=0.02, rtol=0)
    _, y, x = points.unbind(-1)
    discs = [2 - torch.hypot(y - 1 - 12 * step, x + 3 - 5 * step) for step in steps[:, 0].tolist()]
    torch.testing.assert_close(wedge(y, x, ((1, -3), (13, 2)), (2.0, 2.0)), union(*discs), atol=0.02, rtol=0)
    tip = wedge(torch.tensor([13.0]), torch.tensor([2.0]), ((1, -3), (13, 2)), (2.0, 5.0))
    assert tip.item() == pytest.approx(5)


@pytest.mark.parametrize("power", [2.0, 2.5, 4.0, 8.0])
def test_a_superellipse_lies_on_its_equation(power):
    points = surface(lambda p: superellipse(p[..., 1], p[..., 2], (15.0, 8.0), power)).numpy()
    np.testing.assert_allclose(np.abs(points[..., 1] / 15) ** power + np.abs(points[..., 2] / 8) ** power, 1, atol=1e-6)


@pytest.mark.parametrize("solid", SOLIDS.values(), ids=SOLIDS)
def test_depth_is_zero_on_the_surface_and_a_distance_beside_it(solid):
    points = surface(solid)
    assert solid(points).abs().max() < 1e-6
    normal = slope(solid, points)
    length = normal.norm(dim=-1, keepdim=True)
    assert (length - 1).abs().max() < 1e-3
    for away in (0.3, -0.3):
        depth = solid(points + away * normal / length)
        assert (depth - away).abs().max() < 0.05


@pytest.mark.parametrize("solid", SOLIDS.values(), ids=SOLIDS)
def test_depth_is_positive_inside_and_negative_outside(solid):
    points, start = surface(solid), torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    for share in (0.0, 0.3, 0.9):
        assert (solid(start + share * (points - start)) > 0).all()
    for share in (1.1, 3.0):
        assert (solid(start + share * (points - start)) < 0).all()


def test_depth_in_the_very_middle_is_no_more_than_the_body_is_wide():
    for offset in (0.0, 1e-6, 1e-3, 0.1, 0.5):
        at = torch.tensor([0.0, offset, -offset])
        for power in (2.0, 4.0, 8.0):
            assert 7.5 <= superellipse(at[1], at[2], (15.0, 8.0), power).item() <= 30
        assert 7.5 <= ellipse(at[1], at[2], (15.0, 8.0)).item() <= 15
        assert 8.5 <= ellipsoid(at.unbind(), (0.0, 0.0, 0.0), RADII).item() <= 20.001


def test_a_smooth_union_is_no_smaller_than_its_parts_and_the_same_away_from_the_seam():
    one, other = torch.from_numpy(np.random.default_rng(0).uniform(-20, 20, (2, 5000)))
    together, both = smooth_max(one, other, 4.0), smooth_min(one, other, 4.0)
    larger, smaller = torch.maximum(one, other), torch.minimum(one, other)
    far = (one - other).abs() >= 4.0
    assert (together >= larger).all()
    assert (both <= smaller).all()
    assert torch.equal(together[far], larger[far])
    assert torch.equal(both[far], smaller[far])
    assert (together - larger)[~far].max() == pytest.approx(1.0, rel=0.01)  # a quarter of the blend, in the seam
    torch.testing.assert_close(smooth_max(one, one, 4.0), one + 1.0)


def test_a_smooth_union_has_no_kink():
    ramp = torch.linspace(-6, 6, 12001, dtype=torch.float64)
    together = smooth_max(ramp, torch.zeros_like(ramp), 4.0)
    steps = np.diff(together.numpy()) / np.diff(ramp.numpy())
    assert np.abs(np.diff(steps)).max() < 1e-3
    assert np.abs(np.diff(torch.maximum(ramp, torch.zeros(1)).numpy(), 2)).max() > 5e-4  # where a plain one has


@pytest.mark.parametrize("softness", [0.5, 1.0, 3.0])
def test_regions_are_painted_one_over_the_other(softness):
    depths = torch.from_numpy(np.random.default_rng(1).uniform(-2, 2, (5, 3, 4, 6)).astype(np.float32))
    shares = painted(depths.clone(), softness)
    for at in np.ndindex(3, 4, 6):
        expected, left = [0.0] * 5, 1.0
        for region in reversed(range(5)):
            cover = min(max(depths[(region, *at)].item() / softness + 0.5, 0.0), 1.0)
            expected[region] = cover * left
            left *= 1 - cover
        assert shares[(slice(None), *at)].tolist() == pytest.approx(expected, abs=1e-6)
    assert shares.min() >= 0
    assert shares.sum(0).max() <= 1 + 1e-6


def test_a_flat_border_shares_a_voxel_by_volume():
    at = torch.linspace(-2, 2, 41)
    shares = painted(torch.stack([torch.full_like(at, 50.0), at]), 1.0)
    inside = [np.clip(np.linspace(x - 0.5, x + 0.5, 2001) > 0, 0, 1).mean() for x in at.tolist()]
    np.testing.assert_allclose(shares[1], inside, atol=1e-3)
    np.testing.assert_allclose(shares.sum(0), 1, atol=1e-6)


def trapezoid(shift, thickness, edges):
    """The profile of a slice: half of its height at half of the thickness."""
    return np.interp(
        np.abs(shift), [thickness * (1 - edges) / 2, thickness * (1 + edges) / 2 + 1e-12], [1.0, 0.0], right=0.0
    )


@pytest.mark.parametrize("edges", [0.0, 0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("thickness", [0.7, 1.5, 3.0, 4.0, 8.0])
def test_planes_across_a_slice_weigh_what_the_profile_says(thickness, edges):
    shifts, weights = np.array(FieldOfView(thickness=thickness, edges=edges).profile()).T
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(shifts, -shifts[::-1], atol=1e-12)
    np.testing.assert_allclose(weights, weights[::-1])
    assert (weights > 0).all()
    apart = thickness * (1 + edges) / len(shifts)
    assert apart <= 1.5 or len(shifts) >= 4
    np.testing.assert_allclose(np.diff(shifts), apart)
    fine = ((np.arange(240_000) + 0.5) / 240_000 - 0.5) * thickness * (1 + edges)
    height = trapezoid(fine, thickness, edges)
    np.testing.assert_allclose(weights, height.reshape(len(shifts), -1).sum(1) / height.sum(), atol=1e-4)
    truth = (height * fine**2).sum() / height.sum()
    # A plane stands for all that lies around it, which spreads by as much as a box of their distance.
    assert (weights * shifts**2).sum() == pytest.approx(truth, abs=1.2 * apart**2 / 12)


def test_a_box_profile_has_the_spread_of_a_box():
    shifts, weights = np.array(FieldOfView(thickness=30.0).profile()).T
    assert len(shifts) == 20
    assert (weights * shifts**2).sum() == pytest.approx(30**2 / 12, rel=0.01)


@pytest.mark.parametrize("step", [1, 2])
def test_a_window_holds_every_point_between_two_corners(step):
    rng = np.random.default_rng(2)
    points = lattice_points((6, 40, 44), (5.0, 2.0, 2.0), (-15.0, -40.0, -45.0), CPU)
    points = random_deformation(rng, (60.0, 90.0, 90.0), torch.empty(0, 3), CPU, HEAD)(points)
    extents = Extents.of(*points[:, ::step, ::step].unbind(-1), step=step)
    for _ in range(20):
        low, high = np.sort(rng.uniform(-40, 40, (2, 3)), axis=0)
        inside = ((points > torch.from_numpy(low)) & (points < torch.from_numpy(high))).all(-1)
        window = extents.window(low, high)
        assert inside[window].sum() == inside.sum()
        part = extents.cut(window) if step == 1 else extents
        assert step > 1 or part.lows[1].shape == points[window].shape[1:2]
    assert points[extents.window((50, 0, 0), (60, 1, 1))].numel() == 0
    assert extents.heights == pytest.approx([end.item() for end in points[..., 0].aminmax()], abs=2 * step)
    around = extents.around((5.0, -3.0), (8.0, 6.0))
    assert around == extents.window((-np.inf, -3.0, -9.0), (np.inf, 13.0, 3.0))


def test_planes_are_deformed_as_their_points_are():
    deformation = random_deformation(np.random.default_rng(4), (70.0, 80.0, 60.0), torch.zeros(1, 3), CPU, HEAD)
    shape, spacing, origin = (7, 30, 26), (9.0, 3.0, 2.5), (-30.0, -43.0, -31.0)  # a little beyond the lattice, too
    heights, rows, columns = lattice_axes(shape, spacing, origin)
    found = torch.stack(deformation.sheets(rows, columns).at(heights), -1)
    torch.testing.assert_close(found, deformation(lattice_points(shape, spacing, origin, CPU)), atol=1e-3, rtol=0)


@pytest.mark.parametrize("anatomy", [Prostate(), Heart(), Spine()], ids=["prostate", "heart", "spine"])
def test_a_person_does_not_depend_on_how_many_points_are_computed_at_once(anatomy, monkeypatch):
    view = FieldOfView(slices=5, height=190, width=170, in_plane=2.5, thickness=4.0, edges=0.2)

    def person(points):
        monkeypatch.setattr("scantune.simulate.shaped._POINTS_IN_CACHE", points)
        return anatomy.subject(np.random.default_rng(8), view, anatomy.states[-1]).fractions

    together = person(2**23)
    for points in (1, 2**14):
        torch.testing.assert_close(person(points), together, atol=1e-4, rtol=0)
