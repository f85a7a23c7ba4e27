"""Steps on functions whose answers are known."""

import torch
from torch import nn

from scantune.adaptation.solvers import DAMPING, Bounded, scales
from scantune.networks import Normalizer


def valley(solver, sizes, most, start=1.0):
    """Goes down sum of a_i x_i^2 / 2 + x_i^4 / 4; gives the objectives and the places."""
    weight = nn.Parameter(torch.full((len(sizes),), start))
    sizes = torch.tensor(sizes)
    seen, places = [], []

    def objectives():
        while len(seen) <= most:
            weight.grad = None
            value = (sizes * weight.square() / 2 + weight**4 / 4).sum()
            value.backward()
            seen.append(float(value.detach()))
            places.append(weight.detach().clone())
            if len(seen) <= most:
                yield value.detach()

    solver.run([weight], objectives(), 0.0, most)
    return seen, places


def test_the_first_step_is_the_share_of_the_objective_over_its_slope():
    """Polyak's step to a zero is f / |g|; the solver takes a share of it."""
    _, places = valley(Bounded(first=0.2), [1.0, 3.0], 1)
    gradient = torch.tensor([2.0, 4.0])
    assert torch.allclose(places[1] - places[0], -0.2 * 2.5 * gradient / gradient.square().sum())


def test_bounded_steps_find_the_bottom_of_a_curved_valley():
    seen, _ = valley(Bounded(), [1.0, 10.0, 100.0], 40)
    assert min(seen) < 1e-8


def test_no_step_is_longer_than_the_last_good_one_allows():
    seen, places = valley(Bounded(growth=2.0), [0.01, 1.0], 12, start=3.0)
    best, radius = 0, None
    for n in range(1, len(places)):
        length = float((places[n] - places[best]).norm())
        assert radius is None or length <= 2.001 * radius
        if seen[n] < seen[best]:
            best, radius = n, max(length, radius or 0.0)


def test_scaled_steps_go_straight_down_a_valley_that_is_steep_in_some_ways():
    sizes = torch.logspace(0, 4, 12).tolist()
    scale = torch.tensor(sizes).double().rsqrt()
    plain, scaled = (min(valley(solver, sizes, 12)[0]) for solver in (Bounded(), Bounded(scale=scale)))
    assert scaled < 0.01 * plain


def test_steps_of_nearly_the_same_objective_lead_to_nearly_the_same_place():
    (_, ours), (_, theirs) = (valley(Bounded(), sizes, 12) for sizes in ([1.0, 10.0], [1.0001, 10.001]))
    assert torch.allclose(ours[-1], theirs[-1], atol=1e-3)


def test_scales_are_the_inverse_of_what_parameters_do_to_the_picture(monkeypatch):
    """Against the Jacobian, taken pixel by pixel."""
    monkeypatch.setattr("scantune.adaptation.solvers.PROBES", 1000)
    torch.manual_seed(0)
    normalizer = Normalizer(hidden=2).eval()
    moving = list(normalizer.parameters())
    images = torch.rand(1, 1, 5, 5)
    pixels = normalizer(images).flatten()
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(p, moving, retain_graph=True)]) for p in pixels]
    squares = torch.stack(rows).double().square().sum(0)
    expected = (squares + DAMPING * squares.mean()).rsqrt()
    found = scales(normalizer, moving, images)
    assert torch.allclose(found, expected / expected.square().mean().sqrt(), rtol=0.15)


def test_parameters_without_a_part_in_the_picture_leave_everything_unscaled():
    normalizer = Normalizer(hidden=2)
    others = [nn.Parameter(torch.ones(3))]
    assert scales(normalizer, [*normalizer.parameters(), *others], torch.rand(1, 1, 5, 5)) is None
