import numpy as np
import pytest
import torch
from scipy import integrate, stats

from scantune import InputError
from scantune.densities import DENSITIES, DIVERGENCES, KDE, STORED, Gaussian, Histogram, SummarisedGaussian, binning
from scantune.densities.binning import BinGrid, bin_counts
from scantune.densities.gaussian import VARIANCE_FLOOR

PAIRWISE = [name for name in DIVERGENCES if name != "likelihood"]


def subjects(rng, count=5, experts=3):
    mean = torch.randn(count, experts, generator=rng, dtype=torch.double)
    variance = 0.2 + torch.rand(count, experts, generator=rng, dtype=torch.double)
    return Gaussian(mean, variance)


def estimated(kind, *samples):
    """The densities of several subjects, one expert each: `(subjects, 1)`."""
    values = [torch.as_tensor(np.asarray(sample)).double().view(1, 1, 1, -1) for sample in samples]
    return type(kind).joined([kind.estimate(kind.measure(value, None)) for value in values])


def quantiles(mean, deviation, count=20_000):
    """Samples of a normal distribution without any noise."""
    return stats.norm(mean, deviation).ppf((np.arange(count) + 0.5) / count)


def three(rng, kind):
    """Three subjects and a test scan, of skewed samples."""
    made = [0.3 * s + (0.7 + 0.1 * s) * torch.randn(400, generator=rng).exp().clamp(0, 4) - 1 for s in range(4)]
    return estimated(kind, *made[:3]), estimated(kind, made[3])


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
        v, w = prior.variance[s] + VARIANCE_FLOOR, test.variance[0] + VARIANCE_FLOOR
        each.append(0.5 * (torch.log(w / v) + (v + (prior.mean[s] - test.mean[0]) ** 2) / w - 1))
    assert torch.allclose(prior.divergence(test), torch.stack(each).mean(0))


def test_seven_numbers_serve_as_well_as_all_subjects(rng):
    prior, test = subjects(rng), subjects(rng, count=1)
    assert torch.allclose(prior.summary().divergence(test), prior.divergence(test))
    summary = prior.summary()
    assert len(summary.tensors()) == 7
    v = prior.variance + VARIANCE_FLOOR
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
        kind = DENSITIES[name].blank()
        parts = sum(kind.measure(values[start : start + 2], None) for start in (0, 2, 4))
        assert torch.allclose(parts, kind.measure(values, None), atol=1e-4)

    def test_the_first_statistic_is_the_number_of_pixels(self, name, rng):
        values = torch.randn(2, 3, 5, 5, generator=rng)
        weights = (torch.rand(2, 1, 5, 5, generator=rng) > 0.3).float()
        kind = DENSITIES[name].blank()
        assert kind.measure(values, None)[0].tolist() == [50] * 3
        assert kind.measure(values, weights)[0].tolist() == [float(weights.sum())] * 3

    def test_pixels_without_weight_do_not_count(self, name, rng):
        values = torch.randn(2, 3, 5, 6, generator=rng)
        weights = torch.ones(2, 1, 5, 6)
        weights[..., 3:] = 0
        kind = DENSITIES[name].blank()
        assert torch.allclose(kind.measure(values, weights), kind.measure(values[..., :3], None), atol=1e-5)

    def test_volumes_are_as_good_as_slices(self, name, rng):
        values = torch.randn(2, 3, 4, 5, 6, generator=rng)
        weights = (torch.rand(2, 1, 4, 5, 6, generator=rng) > 0.3).float()
        kind = DENSITIES[name].blank()
        flat = kind.measure(values.flatten(2, 3), weights.flatten(2, 3))
        assert torch.allclose(kind.measure(values, weights), flat, atol=1e-4)

    def test_the_divergence_at_a_match_is_zero_and_positive_elsewhere(self, name, rng):
        kind = DENSITIES[name].blank()
        one = kind.estimate(kind.measure(torch.randn(2, 3, 40, 40, generator=rng), None))
        other = kind.estimate(kind.measure(0.5 + torch.randn(2, 3, 40, 40, generator=rng), None))
        assert torch.allclose(one.divergence(one), torch.zeros(3), atol=1e-5)
        assert (one.divergence(other) > 0.05).all()

    def test_a_gradient_reaches_the_values(self, name, rng):
        kind = DENSITIES[name].blank()
        prior = kind.estimate(kind.measure(torch.randn(2, 3, 9, 9, generator=rng), None))
        values = torch.randn(2, 3, 9, 9, generator=rng).requires_grad_()
        prior.divergence(kind.estimate(kind.measure(values, None))).sum().backward()
        assert values.grad.abs().sum() > 0

    def test_no_pixels_give_no_nan(self, name):
        kind = DENSITIES[name].blank()
        values = torch.randn(1, 3, 4, 4).requires_grad_()
        density = kind.estimate(kind.measure(values, torch.zeros(1, 1, 4, 4)))
        assert torch.isfinite(density.divergence(density)).all()

    def test_values_that_are_not_numbers_are_not_hidden(self, name):
        kind = DENSITIES[name].blank()
        values = torch.zeros(1, 2, 2, 2)
        values[0, 1, 0, 0] = torch.nan
        prior = kind.estimate(kind.measure(torch.randn(1, 2, 9, 9), None))
        found = prior.divergence(kind.estimate(kind.measure(values, None)))
        assert torch.isfinite(found).tolist() == [True, False]

    def test_a_share_chooses_a_subject(self, name, rng):
        prior, _ = three(rng, DENSITIES[name].blank())
        for share, number in ((0.0, 0), (0.34, 1), (0.999, 2)):
            one = prior.subject(share).tensors()
            assert all(torch.equal(one[key], value[number : number + 1]) for key, value in prior.tensors().items())

    def test_an_expected_kl_is_least_at_the_expected_density(self, name, rng):
        prior, _ = three(rng, DENSITIES[name].blank())
        assert float(prior.divergence(prior.expected())) == pytest.approx(float(prior.floor()), abs=1e-6)
        assert float(prior.floor()) > 0.01

    def test_matching_keeps_the_spread_and_likelihood_collapses_it(self, name):
        """The paper's reason to match distributions: the likelihood attracts all values to the modes."""
        kind = DENSITIES[name].blank()
        prior = estimated(kind, quantiles(0, 1, 400))
        spreads = {}
        for divergence in ("likelihood", "kl"):
            values = torch.tensor(quantiles(0.4, 0.8, 60)).view(1, 1, 6, 10).requires_grad_()
            adam = torch.optim.Adam([values], lr=0.03)
            for _ in range(150):
                adam.zero_grad()
                test = kind.estimate(kind.measure(values, None))
                DIVERGENCES[divergence].value(prior, test).sum().backward()
                adam.step()
            spreads[divergence] = float(values.detach().std())
        assert spreads["kl"] == pytest.approx(1, abs=0.1)
        assert spreads["likelihood"] < 0.3


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("density", DENSITIES)
class TestEveryPairwiseDivergence:
    def test_it_is_zero_at_a_match_and_positive_elsewhere(self, name, density, rng):
        kind = DENSITIES[density].blank()
        one, other = (estimated(kind, shift + torch.randn(500, generator=rng)) for shift in (0, 0.5))
        assert float(DIVERGENCES[name].value(one, one)) == pytest.approx(0, abs=2e-6)
        assert float(DIVERGENCES[name].value(one, other)) > 0.03

    def test_it_is_never_negative(self, name, density, rng):
        kind = DENSITIES[density].blank()
        for _ in range(5):
            prior, test = three(rng, kind)
            assert float(DIVERGENCES[name].value(prior, test)) > 0


@pytest.mark.parametrize("name", ["kl", "reverse-kl"])
@pytest.mark.parametrize("density", DENSITIES)
def test_a_floor_is_the_least_value(name, density, rng):
    prior, _ = three(rng, DENSITIES[density].blank())
    floor = float(DIVERGENCES[name].floor(prior))
    assert float(least(DIVERGENCES[name], prior)) == pytest.approx(floor, abs=1e-5)
    assert floor > 0.01


def least(divergence, prior):
    """The smallest value over all test densities of the prior's form, by L-BFGS."""
    if isinstance(prior, Gaussian):
        free = torch.zeros(2, 1, 1, dtype=torch.double, requires_grad=True)
    else:
        free = torch.zeros(1, *prior.heights.shape[1:], dtype=torch.double, requires_grad=True)

    def value():
        if isinstance(prior, Gaussian):
            return divergence.value(prior, Gaussian(free[0], free[1].exp())).sum()
        test = type(prior)(free.softmax(2) / prior.grid.step, prior.grid)
        return divergence.value(prior, test).sum()

    optimiser = torch.optim.LBFGS([free], max_iter=2000, tolerance_change=1e-14, line_search_fn="strong_wolfe")

    def objective():
        optimiser.zero_grad()
        found = value()
        found.backward()
        return found

    optimiser.step(objective)
    return value().detach()


def rendered(name, p, q, width):
    """A divergence of two distributions on points, by scipy; likelihood by its definition."""
    if name == "wasserstein":
        points = width * np.arange(len(p))
        return stats.wasserstein_distance(points, points, p, q)
    kl, reverse = stats.entropy(p, q), stats.entropy(q, p)
    cross = -(q * np.log(p / width)).sum()
    return {"kl": kl, "reverse-kl": reverse, "symmetric-kl": (kl + reverse) / 2, "likelihood": cross}[name]


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("density", ["kde", "histogram"])
def test_divergences_on_a_grid_are_means_over_subjects_of_scipys(name, density, rng):
    prior, test = three(rng, DENSITIES[density].blank())
    width = prior.grid.step
    masses = (prior.heights[:, 0] * width).numpy()
    each = [rendered(name, p, (test.heights[0, 0] * width).numpy(), width) for p in masses]
    assert float(DIVERGENCES[name].value(prior, test)) == pytest.approx(np.mean(each), rel=1e-6)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("reference", ["subjects", "expected"])
def test_gaussian_divergences_are_means_over_subjects_of_quadratures(name, reference, rng):
    prior, test = subjects(rng), subjects(rng, count=1)
    compared = prior if reference == "subjects" else prior.expected()
    found = DIVERGENCES[name].value(compared, test)
    u = np.linspace(-15, 15, 20_001)
    for expert in range(3):
        q = stats.norm(test.mean[0, expert], test.variance[0, expert].sqrt())
        each = []
        for mean, variance in zip(compared.mean[:, expert], compared.variance[:, expert], strict=True):
            p = stats.norm(mean, variance.sqrt())
            if name == "wasserstein":
                each.append(np.trapezoid(np.abs(p.cdf(u) - q.cdf(u)), u))
            else:
                forth = np.trapezoid(p.pdf(u) * (p.logpdf(u) - q.logpdf(u)), u)
                back = np.trapezoid(q.pdf(u) * (q.logpdf(u) - p.logpdf(u)), u)
                cross = -np.trapezoid(q.pdf(u) * p.logpdf(u), u)
                table = {"kl": forth, "reverse-kl": back, "symmetric-kl": (forth + back) / 2, "likelihood": cross}
                each.append(table[name])
        assert float(found[expert]) == pytest.approx(np.mean(each), abs=2e-4)


def test_the_wasserstein_distance_of_gaussians_is_that_of_their_samples():
    one, other = quantiles(0.2, 1.3), quantiles(-0.5, 0.6)
    kind = Gaussian.blank()
    found = estimated(kind, one).wasserstein(estimated(kind, other))
    assert float(found) == pytest.approx(stats.wasserstein_distance(one, other), abs=1e-3)


def test_the_wasserstein_distance_has_a_gradient_even_at_a_match():
    mean, variance = torch.zeros(1, 2).requires_grad_(), torch.tensor([[1.0, 0.0]]).requires_grad_()
    prior = Gaussian(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    prior.wasserstein(Gaussian(mean, variance)).sum().backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(variance.grad).all()


def test_the_expected_gaussian_has_the_moments_of_all_subjects_samples():
    samples = [quantiles(0.3, 0.5, 2000), quantiles(-1, 0.9, 2000)]
    expected = estimated(Gaussian.blank(), *samples).expected()
    assert float(expected.mean) == pytest.approx(np.concatenate(samples).mean(), abs=1e-6)
    assert float(expected.variance) == pytest.approx(np.concatenate(samples).var(), rel=1e-5)


@pytest.mark.parametrize("name", ["kde", "histogram"])
def test_objectives_a_and_b_of_the_paper_are_related_as_its_appendix_says(name, rng):
    """KL(E p_s || p_t) = E KL(p_s || p_t) - E KL(p_s || E p_s), on three subjects."""
    prior, test = three(rng, DENSITIES[name].blank())
    kl = DIVERGENCES["kl"]
    a, b = kl.value(prior.expected(), test), kl.value(prior, test)
    within = np.mean([stats.entropy(p, prior.heights[:, 0].mean(0)) for p in prior.heights[:, 0]])
    assert float(a) == pytest.approx(float(b) - within, abs=1e-9)
    assert within > 0.01
    assert float(prior.expected().entropy() - prior.entropy()) == pytest.approx(within, abs=1e-9)


@pytest.mark.parametrize("alpha", [5.0, 10.0])
def test_a_binned_kde_is_the_direct_sum_over_samples(alpha, rng):
    samples = torch.cat([torch.randn(300, generator=rng), 2 + 0.5 * torch.randn(200, generator=rng)]).double()
    density = estimated(KDE.blank({"alpha": alpha}), samples)
    away = density.grid.points().unsqueeze(1) - samples
    direct = ((alpha / np.pi) ** 0.5 * (-alpha * away.square()).exp()).mean(1)
    assert torch.allclose(density.heights[0, 0], direct, atol=1e-3)
    assert float(direct.max()) > 0.2


def test_the_kl_of_kdes_of_normal_samples_is_that_of_wider_normals():
    """Every kernel adds its variance, 1 / (2 alpha), to that of the samples."""
    for alpha in (10.0, 4.0):
        kind = KDE.blank({"alpha": alpha})
        p, q = estimated(kind, quantiles(0, 0.7)), estimated(kind, quantiles(0.4, 0.9))
        v, w = 0.7**2 + 1 / (2 * alpha), 0.9**2 + 1 / (2 * alpha)
        closed = 0.5 * (np.log(w / v) + (v + 0.4**2) / w - 1)
        assert float(p.divergence(q)) == pytest.approx(closed, rel=0.01)


def test_a_histogram_shares_values_between_bins_as_a_plain_loop_does(rng):
    samples = 2 * torch.randn(50, generator=rng).double()
    samples[0] = 7.3
    density = estimated(Histogram.blank({"step": 0.25}), samples)
    points = np.linspace(-5, 5, 41)
    expected = np.zeros(41)
    for value in samples.clamp(-5, 5).tolist():
        expected += np.maximum(0, 1 - np.abs(points - value) / 0.25) / len(samples) / 0.25
    expected = (expected + 1e-5) / (1 + 1e-5 * 41 * 0.25)
    assert np.allclose(density.heights[0, 0], expected, atol=1e-9)


@pytest.mark.parametrize("kind", [KDE.blank(), Histogram.blank()], ids=["kde", "histogram"])
def test_a_density_on_a_grid_integrates_to_one_even_at_its_ends(kind, rng):
    density = estimated(kind, 4 * torch.randn(300, generator=rng))
    assert float(density.heights.sum() * density.grid.step) == pytest.approx(1, abs=1e-9)
    assert (density.heights > 0).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_binned_counts_is_a_finite_difference(weighted, rng):
    grid = BinGrid(-2, 2, 0.5)
    cell = torch.randint(0, grid.size - 1, (2, 3, 4), generator=rng)
    values = grid.low + grid.step * (cell + 0.1 + 0.8 * torch.rand(2, 3, 4, generator=rng, dtype=torch.double))
    values[0, 0, 0], values[1, 2, 3] = -3.3, 9.0
    weights = torch.rand(2, 1, 4, generator=rng, dtype=torch.double) if weighted else None
    assert torch.autograd.gradcheck(lambda v: bin_counts(v, weights, grid), values.requires_grad_())


@pytest.mark.parametrize("name", ["kde", "histogram"])
def test_the_gradient_of_a_divergence_of_binned_densities_is_a_finite_difference(name, rng):
    kind = DENSITIES[name].blank()
    prior, _ = three(rng, kind)
    cell = torch.randint(5, kind.grid.size - 5, (1, 1, 12), generator=rng)
    values = kind.grid.low + kind.grid.step * (cell + 0.1 + 0.8 * torch.rand(1, 1, 12, generator=rng).double())
    for divergence in DIVERGENCES.values():
        assert torch.autograd.gradcheck(
            lambda v, d=divergence: d.value(prior, kind.estimate(kind.measure(v, None))), values.requires_grad_()
        )


def test_chunks_change_nothing(rng, monkeypatch):
    values = torch.randn(2, 3, 7, 5, generator=rng).requires_grad_()
    weights = (torch.rand(2, 1, 7, 5, generator=rng) > 0.3).float()
    slope = torch.randn(102, 3, generator=rng)
    found = []
    for chunk in (2**21, 8 * 6):
        monkeypatch.setattr(binning, "VALUES_AT_A_TIME", chunk)
        result = bin_counts(values, weights, BinGrid())
        found.append((result, *torch.autograd.grad((result * slope).sum(), values)))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", STORED)
def test_a_stored_density_survives_its_tensors(name, rng):
    gridded = {"low": -4.0, "high": 3.0, "step": 0.25, "alpha": 7.0}
    density = {
        "gaussian": lambda: subjects(rng),
        "gaussian-summary": lambda: subjects(rng).summary(),
        "kde": lambda: three(rng, KDE.blank(gridded))[0],
        "histogram": lambda: three(rng, Histogram.blank(gridded))[0],
    }[name]()
    again = STORED[name].from_tensors(density.tensors(), density.settings())
    assert type(again) is type(density)
    assert all(torch.equal(again.tensors()[key], value) for key, value in density.tensors().items())
    assert again.settings() == density.settings()
    values = torch.randn(1, density.tensors().popitem()[1].shape[-1], 4, 4, generator=rng)
    assert torch.equal(again.measure(values, None), density.measure(values, None))


def test_a_summary_measures_and_estimates_as_its_density(rng):
    values = torch.randn(2, 3, 9, 9, generator=rng)
    statistics = SummarisedGaussian.measure(values, None)
    assert torch.equal(statistics, Gaussian.measure(values, None))
    assert isinstance(SummarisedGaussian.estimate(statistics), Gaussian)


@pytest.mark.parametrize("name", [name for name in DIVERGENCES if name != "wasserstein"])
def test_a_summary_serves_every_divergence_but_the_wasserstein_distance(name, rng):
    prior, test = subjects(rng), subjects(rng, count=1)
    divergence = DIVERGENCES[name]
    assert torch.allclose(divergence.value(prior.summary(), test), divergence.value(prior, test))
    assert torch.allclose(divergence.value(prior.summary().expected(), test), divergence.value(prior.expected(), test))


def test_what_a_summary_cannot_do_is_refused(rng):
    prior, test = subjects(rng), subjects(rng, count=1)
    with pytest.raises(InputError, match="Wasserstein distance needs the subjects' own densities"):
        prior.summary().wasserstein(test)
    with pytest.raises(InputError, match="holds no single subject's densities"):
        prior.summary().subject(0.5)
    with pytest.raises(InputError, match="cannot be joined"):
        SummarisedGaussian.joined([prior.summary()])
    with pytest.raises(InputError, match="made from Gaussian ones"):
        SummarisedGaussian.blank()
    assert torch.allclose(prior.summary().expected().wasserstein(test), prior.expected().wasserstein(test), rtol=1e-5)


@pytest.mark.parametrize("name", ["kde", "histogram"])
def test_densities_on_a_grid_refuse_to_be_summarised(name):
    with pytest.raises(InputError, match=f"prior of {name} densities .* cannot be summarised"):
        DENSITIES[name].blank().summary()


@pytest.mark.parametrize("alpha", [0.0, -1.0, 151.0])
def test_a_kernel_without_width_or_narrower_than_the_grid_is_refused(alpha):
    with pytest.raises(InputError, match=f"above 0, and at most 150 on a grid of step 0.1, got {alpha}"):
        KDE.blank({"alpha": alpha})
