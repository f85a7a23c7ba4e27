import math
from copy import deepcopy

import pytest
import torch

from scantune.adaptation.loop import Schedule, StopRule, Trajectory, optimise
from scantune.adaptation.sampling import RandomSlices, WholeVolume
from scantune.adaptation.solvers import LBFGS, Adam, Bounded, Solver
from scantune.methods import METHODS, Method, ModelParts, Terms
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan


def gradients(toy, method, sampling, images, padding=None):
    network = deepcopy(toy.network).requires_grad_(False).double()
    runner = METHODS[method](ModelParts(Segmentation(), doubled(toy.prior)))
    moving = runner.parameters(network)
    runner.prepare(network)
    for parameter in moving.values():
        parameter.requires_grad_(True)
    volume = Volume(images.double(), padding)
    terms = sampling.gradients(runner, volume, torch.Generator().manual_seed(0))()
    runner.finish()
    return float(terms.objective.detach()), torch.cat([p.grad.flatten() for p in moving.values()])


def doubled(prior):
    tensors = {k: t.double() if t.is_floating_point() else t for k, t in prior.tensors().items()}
    return type(prior).restore(prior.record(), tensors)


@pytest.mark.parametrize("method", ["entropy", "foe-cnn", "foe-cnn-pca"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kept", [0, 10**9], ids=["two passes", "one pass"])
def test_whole_volume_gradients_over_batches_are_those_of_one_big_batch(method, masked, kept, toy):
    images = toy_scan(60, slices=5)[0] ** 1.5
    padding = None
    if masked:
        padding = torch.zeros_like(images, dtype=torch.bool)
        padding[..., :9] = True
    value, gradient = gradients(toy, method, WholeVolume(batch=2, kept=kept), images, padding)
    expected_value, expected = gradients(toy, method, WholeVolume(batch=5), images, padding)
    assert value == pytest.approx(expected_value, rel=1e-9)
    assert torch.allclose(gradient, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))


def test_the_gradient_is_a_finite_difference(toy):
    images = toy_scan(61)[0] ** 1.5
    network = deepcopy(toy.network).requires_grad_(False)
    runner = METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior))
    runner.prepare(network)
    weight = network.normalizer.residual[4].bias.requires_grad_(True)
    whole = WholeVolume(batch=2, kept=0)
    whole.gradients(runner, Volume(images), torch.Generator())()
    values = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            weight += step
            values.append(float(whole.objective(runner, Volume(images), torch.Generator()).objective))
            weight -= step
    assert float(weight.grad) == pytest.approx((values[0] - values[1]) / 2e-3, rel=1e-2)


def test_random_slices_average_the_gradients_of_an_epoch(toy):
    images = toy_scan(62, slices=5)[0] ** 1.5
    value, gradient = gradients(toy, "foe-cnn", RandomSlices(batch=2), images)
    generator = torch.Generator().manual_seed(0)
    volume = Volume(images)
    each = []
    for _ in range(3):
        drawn = volume.draw(2, generator).images
        each.append(gradients(toy, "foe-cnn", WholeVolume(batch=2), drawn))
    assert value == pytest.approx(sum(v for v, _ in each) / 3, rel=1e-5)
    expected = torch.stack([g for _, g in each]).mean(0)
    assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


class Scripted(Method):
    """Plays back objectives and validity, to test the choice of the step."""

    name = "scripted"

    def __init__(self, script):
        super().__init__(ModelParts(Segmentation()), {"learning_rate": 1e-3})
        self.script = iter(script)

    def measure(self, batch):
        return {"x": sum(p.sum() for p in self.network.normalizer.parameters()).reshape(1)}

    def terms(self, statistics):
        value, valid = next(self.script)
        objective = 0 * statistics["x"].sum() + value
        return Terms(objective, {"cnn": objective}, valid)


def run(toy, script, smoothing=0.0, rule=None):
    network = deepcopy(toy.network).requires_grad_(False)
    schedule = Schedule(WholeVolume(batch=4, smoothing=smoothing), Adam(), steps=len(script) - 1)
    volume = Volume(torch.zeros(1, 1, 16, 16))
    return optimise(network, Scripted(script), volume, schedule, 0, rule=rule)


def test_the_lowest_objective_among_eligible_steps_is_chosen(toy):
    trajectory = run(toy, [(5.0, True), (2.0, True), (1.0, False), (3.0, True)])
    assert trajectory.best == 1
    assert [row["valid"] for row in trajectory.trace] == [True, True, False, True]


def test_smoothing_keeps_a_lucky_step_from_winning(toy):
    script = [(5.0, True), (0.1, True), *[(3.0, True)] * 6]
    assert run(toy, script).best == 1
    assert run(toy, script, smoothing=0.9).best == 7


def test_no_eligible_step_leaves_nothing_chosen(toy):
    trajectory = run(toy, [(5.0, False), (2.0, False)])
    assert trajectory.best is None
    assert trajectory.state == {}
    assert trajectory.end == float("inf")


def test_an_objective_that_is_not_finite_ends_the_run(toy):
    trajectory = run(toy, [(5.0, True), (4.0, True), (float("nan"), True), (1.0, True)])
    assert len(trajectory.trace) == 3
    assert trajectory.best == 1


def test_an_empty_trajectory_knows_no_start():
    assert math.isnan(Trajectory({}).start)


def plain(*objectives):
    return [(objective, True) for objective in objectives]


def test_the_level_ends_the_run_at_the_step_that_reaches_it(toy):
    trajectory = run(toy, plain(5.0, 3.0, 2.0, 1.0), rule=StopRule(level=2.0))
    assert [row["cnn"] for row in trajectory.trace] == [5, 3, 2]
    assert trajectory.best == 2
    assert run(toy, plain(5.0, 3.0, 2.0, 1.0), rule=StopRule(level=0.5)).best == 3


def test_a_step_that_is_not_eligible_does_not_end_the_run_at_the_level(toy):
    trajectory = run(toy, [(5.0, True), (1.0, False), (4.0, True)], rule=StopRule(level=2.0))
    assert len(trajectory.trace) == 3
    assert trajectory.best == 2


class Verdicts:
    """Gives verdicts from a list, and counts how often it was asked."""

    def __init__(self, *verdicts):
        self.verdicts = verdicts
        self.asked = 0

    def __call__(self, _energy):
        self.asked += 1
        return self.verdicts[self.asked - 1]


def test_the_first_step_that_strays_ends_the_run_and_is_not_chosen(toy):
    verdicts = Verdicts("accepted", "strayed")
    trajectory = run(toy, plain(5.0, 4.0, 3.0, 2.0), rule=StopRule(verdict=verdicts))
    assert [(row["objective"], row["valid"]) for row in trajectory.trace] == [(5, True), (4, True), (3, False)]
    assert trajectory.best == 1
    assert trajectory.end == 4


def test_a_refused_step_is_not_chosen_and_the_run_goes_on(toy):
    verdicts = Verdicts("accepted", "refused", "accepted")
    trajectory = run(toy, plain(5.0, 4.0, 3.0, 2.0), rule=StopRule(verdict=verdicts))
    assert [row["valid"] for row in trajectory.trace] == [True, True, False, True]
    assert trajectory.best == 3


def test_a_refused_step_that_reaches_the_level_ends_the_run_and_is_not_chosen(toy):
    trajectory = run(toy, plain(5.0, 1.0, 0.5), rule=StopRule(Verdicts("refused"), level=2.0))
    assert len(trajectory.trace) == 2
    assert trajectory.best == 0


def test_steps_are_asked_about_at_a_distance(toy):
    verdicts = Verdicts("accepted", "accepted")
    trajectory = run(toy, plain(9.0, 8.0, 7.0, 6.0, 5.0, 4.0), rule=StopRule(verdicts, interval=2))
    assert verdicts.asked == 2
    assert trajectory.best == 4


def test_a_start_elsewhere_is_judged_as_a_step_is(toy):
    verdicts = Verdicts("refused", "accepted")
    trajectory = run(toy, plain(5.0, 4.0), rule=StopRule(verdicts, judges_start=True))
    assert verdicts.asked == 2
    assert trajectory.best == 1
    assert run(toy, plain(5.0, 6.0), rule=StopRule(Verdicts("refused"), judges_start=True)).best is None


def test_only_steps_that_lower_the_objective_are_asked_about(toy):
    """Neither the start, nor steps that are not eligible or not lower than the lowest."""
    verdicts = Verdicts("accepted", "accepted")
    trajectory = run(
        toy,
        [(5.0, True), (6.0, True), (4.0, True), (1.0, False), (4.5, True), (3.0, True)],
        0.0,
        StopRule(verdict=verdicts),
    )
    assert verdicts.asked == 2
    assert trajectory.best == 5


class Counting(WholeVolume):
    """Counts gradients."""

    count = 0

    def gradients(self, *arguments):
        sampling, plain = self, super().gradients(*arguments)

        class Counted(type(plain)):
            def __call__(self):
                object.__setattr__(sampling, "count", sampling.count + 1)
                return super().__call__()

        plain.__class__ = Counted
        return plain


def solve(toy, solver, steps, rate=1e-4, gamma=2.5, **settings):
    """A toy scan through a solver: what the loop saw, the number of gradients, and what was told."""
    network = deepcopy(toy.network).requires_grad_(False)
    runner = METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior), {"learning_rate": rate})
    sampling, told = Counting(), []
    schedule = Schedule(sampling, solver, steps)
    volume = Volume(toy_scan(63)[0] ** gamma)
    trajectory = optimise(network, runner, volume, schedule, 0, lambda *at: told.append(at), **settings)
    return trajectory, sampling.count, told


@pytest.mark.parametrize("kind", [LBFGS(), Bounded()], ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("rate", [1e-4, 1e-3, 1e-2])
def test_quasi_newton_steps_get_lower_than_adam_for_as_many_gradients(rate, kind, toy):
    (newton, spent, _), (adam, as_many, _) = (solve(toy, solver, 8, rate) for solver in (kind, Adam()))
    assert spent == as_many == 8
    assert newton.start == adam.start
    assert newton.end < adam.end < adam.start


class Endless(Solver):
    """Never has enough."""

    def run(self, moving, objectives, rate, steps):
        for _ in objectives:
            pass


@pytest.mark.parametrize("solver", [Adam(), LBFGS(), Bounded(), Endless()], ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("gamma", [2.5, 0.4])
def test_a_run_spends_exactly_its_steps_and_looks_at_where_the_last_one_led(solver, gamma, toy):
    """Far from a minimum, where each of these line searches would go on."""
    for steps in range(1, 7):
        trajectory, gradients, told = solve(toy, solver, steps, gamma=gamma)
        assert gradients == steps
        assert [row["step"] for row in trajectory.trace] == [*range(steps + 1)]
        assert told == [(number, steps) for number in range(1, steps + 1)]


@pytest.mark.parametrize("solver", [Adam(), LBFGS(), Bounded()], ids=lambda solver: type(solver).__name__)
def test_the_parameters_that_come_back_are_those_of_the_chosen_step(solver, toy):
    trajectory, _, _ = solve(toy, solver, 5, rate=1e-3, rule=StopRule(level=0.5))
    network = deepcopy(toy.network)
    network.load_state_dict(trajectory.state, strict=False)
    energy = toy.prior.energy(network, toy_scan(63)[0] ** 2.5)
    assert trajectory.best > 0
    assert energy == pytest.approx(trajectory.end, rel=1e-4)


def test_steps_that_are_not_eligible_are_not_chosen_by_quasi_newton(toy, monkeypatch):
    terms = METHODS["foe-cnn"].terms
    seen = []

    def spoiled(self, statistics):
        found = terms(self, statistics)
        seen.append(found)
        return Terms(found.objective, found.parts, len(seen) == 1)

    monkeypatch.setattr(METHODS["foe-cnn"], "terms", spoiled)
    trajectory, _, _ = solve(toy, LBFGS(), 4)
    assert [row["valid"] for row in trajectory.trace] == [True, False, False, False, False]
    assert trajectory.trace[-1]["objective"] < trajectory.start
    assert trajectory.best == 0
