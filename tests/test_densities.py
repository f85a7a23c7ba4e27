import pytest
import torch
from scipy import integrate, stats

from scantune.densities import DENSITIES, STORED, Gaussian, SummarisedGaussian
from scantune.densities.gaussian import FLOOR


def subjects(rng, count=5, experts=3):
    mean = torch.randn(count, experts, generator=rng, dtype=torch.double)
    variance = 0.2 + torch.rand(count, experts, generator=rng, dtype=torch.double)
    return Gaussian(mean, variance)


def kl_by_quadrature(p, q):
    def integrand(u):
        return p.pdf(u) * (p.logpdf(u) - q.logpdf(u))

    return integrate.quad(integrand, -15, 15, limit=200)[0]


def test_the_expected_kl_is_the_mean_over_subjects_of_quadratures(rng):
    prior = subjects(rng)
    test = Gaussian(torch.tensor([[0.3, -1.0, 0.0]]).double(), torch.tensor([[0.5, 1.5, 0.1]]).double())
    divergence = prior.divergence(test)
    for expert in range(3):
        q = stats.norm(test.mean[0, expert], test.variance[0, expert].sqrt())
        each = [
            kl_by_quadrature(stats.norm(prior.mean[s, expert], prior.variance[s, expert].sqrt()), q) for s in range(5)
        ]
        assert float(divergence[expert]) == pytest.approx(sum(each) / 5, abs=1e-4)


def test_the_expected_kl_is_a_plain_loop_over_subjects(rng):
    prior = subjects(rng)
    test = Gaussian(torch.zeros(1, 3).double(), torch.ones(1, 3).double())
    each = []
    for s in range(5):
        v, w = prior.variance[s] + FLOOR, test.variance[0] + FLOOR
        each.append(0.5 * (torch.log(w / v) + (v + (prior.mean[s] - test.mean[0]) ** 2) / w - 1))
    assert torch.allclose(prior.divergence(test), torch.stack(each).mean(0))


def test_seven_numbers_serve_as_well_as_all_subjects(rng):
    prior, test = subjects(rng), subjects(rng, count=1)
    assert torch.allclose(prior.summary().divergence(test), prior.divergence(test))
    summary = prior.summary()
    assert len(summary.tensors()) == 7
    v = prior.variance + FLOOR
    assert torch.allclose(summary.precision, (1 / v).mean(0))
    assert torch.allclose(summary.weighted_mean, (prior.mean / v).mean(0))
    assert torch.allclose(summary.weighted_square, (prior.mean**2 / v).mean(0))


def test_the_floor_is_the_least_expected_kl(rng):
    prior = subjects(rng)
    mean = prior.mean.mean(0, keepdim=True).clone().requires_grad_()
    log_variance = torch.zeros(1, 3).double().requires_grad_()
    optimiser = torch.optim.LBFGS([mean, log_variance], max_iter=200, line_search_fn="strong_wolfe")

    def objective():
        optimiser.zero_grad()
        value = prior.divergence(Gaussian(mean, log_variance.exp())).sum()
        value.backward()
        return value

    optimiser.step(objective)
    assert torch.allclose(prior.divergence(Gaussian(mean, log_variance.exp())), prior.floor(), atol=1e-6)
    assert (prior.floor() > 0).all()


def test_one_subject_has_a_floor_of_zero(rng):
    one = subjects(rng, count=1)
    assert torch.allclose(one.floor(), torch.zeros(3).double(), atol=1e-12)
    assert torch.allclose(one.divergence(one), torch.zeros(3).double(), atol=1e-12)


def test_low_variance_experts_have_a_minimum_at_the_match():
    prior = Gaussian(torch.zeros(1, 1).double(), torch.full((1, 1), 0.01).double())
    at = {v: float(prior.divergence(Gaussian(torch.zeros(1, 1), torch.full((1, 1), v)))) for v in (1e-6, 0.01, 1.0)}
    assert at[0.01] == pytest.approx(0, abs=1e-6)
    assert at[1e-6] > 1
    assert at[1.0] > 1


def test_moments_agree_with_numpy_and_leave_masked_pixels_out(rng):
    values = torch.randn(4, 3, 5, 6, generator=rng, dtype=torch.double)
    weights = (torch.rand(4, 1, 5, 6, generator=rng) > 0.3).double()
    gaussian = Gaussian.estimate(Gaussian.measure(values, weights))
    for expert in range(3):
        counted = values[:, expert][weights[:, 0] > 0].numpy()
        assert float(gaussian.mean[0, expert]) == pytest.approx(counted.mean())
        assert float(gaussian.variance[0, expert]) == pytest.approx(counted.var())
    plain = Gaussian.estimate(Gaussian.measure(values, None))
    assert float(plain.variance[0, 0]) == pytest.approx(values[:, 0].numpy().var())


@pytest.mark.parametrize("name", DENSITIES)
class TestEveryDensity:
    def test_statistics_add_up_over_batches(self, name, rng):
        values = torch.randn(6, 3, 5, 5, generator=rng)
        kind = DENSITIES[name]
        parts = sum(kind.measure(values[start : start + 2], None) for start in (0, 2, 4))
        assert torch.allclose(parts, kind.measure(values, None), atol=1e-4)

    def test_the_divergence_at_a_match_is_zero_and_positive_elsewhere(self, name, rng):
        kind = DENSITIES[name]
        one = kind.estimate(kind.measure(torch.randn(2, 3, 40, 40, generator=rng), None))
        other = kind.estimate(kind.measure(0.5 + torch.randn(2, 3, 40, 40, generator=rng), None))
        assert torch.allclose(one.divergence(one), torch.zeros(3), atol=1e-5)
        assert (one.divergence(other) > 0.05).all()

    def test_a_gradient_reaches_the_values(self, name, rng):
        kind = DENSITIES[name]
        prior = kind.estimate(kind.measure(torch.randn(2, 3, 9, 9, generator=rng), None))
        values = torch.randn(2, 3, 9, 9, generator=rng).requires_grad_()
        prior.divergence(kind.estimate(kind.measure(values, None))).sum().backward()
        assert values.grad.abs().sum() > 0

    def test_no_pixels_give_no_nan(self, name):
        kind = DENSITIES[name]
        values = torch.randn(1, 3, 4, 4).requires_grad_()
        density = kind.estimate(kind.measure(values, torch.zeros(1, 1, 4, 4)))
        assert torch.isfinite(density.divergence(density)).all()


@pytest.mark.parametrize("name", STORED)
def test_a_stored_density_survives_its_tensors(name, rng):
    density = subjects(rng) if name == "gaussian" else subjects(rng).summary()
    again = STORED[name].from_tensors(density.tensors())
    assert type(again) is type(density)
    assert all(torch.equal(again.tensors()[key], value) for key, value in density.tensors().items())


def test_a_summary_measures_and_estimates_as_its_density(rng):
    values = torch.randn(2, 3, 9, 9, generator=rng)
    statistics = SummarisedGaussian.measure(values, None)
    assert torch.equal(statistics, Gaussian.measure(values, None))
    assert isinstance(SummarisedGaussian.estimate(statistics), Gaussian)
