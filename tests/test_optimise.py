from copy import deepcopy

import pytest
import torch

from conftest import toy_scan
from scantune.methods import METHODS, Equipment, Method, Terms
from scantune.optimise import Course, RandomSlices, Schedule, Volume, WholeVolume, optimise
from scantune.tasks import Segmentation


def gradients(toy, method, sampling, images, padding=None):
    network = deepcopy(toy.network).requires_grad_(False).double()
    runner = METHODS[method](Equipment(Segmentation(), doubled(toy.prior)))
    moving = runner.parameters(network)
    runner.prepare(network)
    for parameter in moving.values():
        parameter.requires_grad_(True)
    volume = Volume(images.double(), padding)
    terms = sampling.gradient(runner, volume, torch.Generator().manual_seed(0))
    runner.finish()
    return float(terms.objective.detach()), torch.cat([p.grad.flatten() for p in moving.values()])


def doubled(prior):
    tensors = {k: t.double() if t.is_floating_point() else t for k, t in prior.tensors().items()}
    return type(prior).restore(prior.record(), tensors)


@pytest.mark.parametrize("method", ["entropy", "foe-cnn", "foe-cnn-pca"])
@pytest.mark.parametrize("masked", [False, True])
def test_whole_volume_gradients_over_batches_are_those_of_one_big_batch(method, masked, toy):
    images = toy_scan(60, slices=5)[0] ** 1.5
    padding = None
    if masked:
        padding = torch.zeros_like(images, dtype=torch.bool)
        padding[..., :9] = True
    value, gradient = gradients(toy, method, WholeVolume(batch=2), images, padding)
    expected_value, expected = gradients(toy, method, WholeVolume(batch=5), images, padding)
    assert value == pytest.approx(expected_value, rel=1e-9)
    assert torch.allclose(gradient, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))


def test_the_gradient_is_a_finite_difference(toy):
    images = toy_scan(61)[0] ** 1.5
    network = deepcopy(toy.network).requires_grad_(False)
    runner = METHODS["foe-cnn"](Equipment(Segmentation(), toy.prior))
    runner.prepare(network)
    weight = network.normalizer.residual[4].bias.requires_grad_(True)
    whole = WholeVolume(batch=2)
    whole.gradient(runner, Volume(images), torch.Generator())
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
        drawn, _ = volume.draw(2, generator)
        each.append(gradients(toy, "foe-cnn", WholeVolume(batch=2), drawn))
    assert value == pytest.approx(sum(v for v, _ in each) / 3, rel=1e-5)
    expected = torch.stack([g for _, g in each]).mean(0)
    assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


class Scripted(Method):
    """Plays back objectives and validity, to test the choice of the step."""

    name = "scripted"

    def __init__(self, script):
        self.script = iter(script)

    def measure(self, images, padding):
        return {"x": sum(p.sum() for p in self.network.normalizer.parameters()).reshape(1)}

    def terms(self, statistics):
        value, valid = next(self.script)
        return Terms(0 * statistics["x"].sum() + value, {}, valid)


def run(toy, script, smoothing=0.0):
    network = deepcopy(toy.network).requires_grad_(False)
    schedule = Schedule(WholeVolume(batch=4, smoothing=smoothing), steps=len(script) - 1, decay=False)
    return optimise(network, Scripted(script), Volume(torch.zeros(1, 1, 16, 16)), schedule, 1e-3, 0)


def test_the_lowest_objective_among_eligible_steps_is_chosen(toy):
    course = run(toy, [(5.0, True), (2.0, True), (1.0, False), (3.0, True)])
    assert course.best == 1
    assert [row["valid"] for row in course.trace] == [True, True, False, True]


def test_smoothing_keeps_a_lucky_step_from_winning(toy):
    script = [(5.0, True), (0.1, True), *[(3.0, True)] * 6]
    assert run(toy, script).best == 1
    assert run(toy, script, smoothing=0.9).best == 7


def test_no_eligible_step_leaves_nothing_chosen(toy):
    course = run(toy, [(5.0, False), (2.0, False)])
    assert course.best is None
    assert course.state == {}
    assert course.end == float("inf")


def test_an_objective_that_is_not_finite_ends_the_run(toy):
    course = run(toy, [(5.0, True), (4.0, True), (float("nan"), True), (1.0, True)])
    assert len(course.trace) == 3
    assert course.best == 1


def test_a_cosine_schedule_starts_full_and_ends_near_nothing():
    schedule = Schedule(WholeVolume(), steps=10, decay=True)
    assert schedule.rate(0) == 1
    assert schedule.rate(5) == pytest.approx(0.5)
    assert Schedule(WholeVolume(), steps=10, decay=False).rate(9) == 1


def test_an_empty_course_knows_no_start():
    assert Course().start != Course().start
