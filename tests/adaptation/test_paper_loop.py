"""Preset `paper` against a plain loop that shares nothing with it but the trained weights and the draws of slices."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch.nn import functional as F

import scantune
from scantune import AdaptableNetwork, FieldOfExperts, InputError, Model
from scantune.adaptation.adapt import adapt
from scantune.adaptation.settings import AdaptSettings
from scantune.backends.slices import Preprocessing
from scantune.benchmark.experiment import Experiment
from scantune.config.presets import PresetNumbers, read_presets
from scantune.config.recipe import read_recipe
from scantune.experts import PatchSettings
from tests.conftest import toy_scan, train_toy

EPOCHS, RATE, LAMBDA, SIZE, TAU, G = 20, 1e-4, 0.1, 16, 0.8, 10

DATA_SETS = {  # epochs, slices per batch, stride of patches; Sections 3.2 and 4 of the paper
    "prostate": (1000, 8, 8),
    "cardiac": (1000, 8, 8),
    "spine": (1000, 2, 8),
    "wmh": (1000, 8, 2),
    "brain": (200, 8, 8),
}
SHAPES = {"prostate": (6, 64), "cardiac": (9, 40), "spine": (3, 80), "wmh": (3, 32), "brain": (5, 64)}  # slices, pixels
RECIPES = {"brain": "hcp"}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return train_toy(AdaptableNetwork.default(classes=3, width=4), iterations=60)


class PlainNetwork:
    """Normaliser and U-Net of a trained network, with the features after batch norm."""

    def __init__(self, network):
        self.task = deepcopy(network.task).eval().requires_grad_(False)
        layers = [network.normalizer.residual[place] for place in (0, 2, 4)]
        bumps = [network.normalizer.residual[place].sigma for place in (1, 3)]
        self.moving = [p.detach().clone().requires_grad_() for one in layers for p in (one.weight, one.bias)]
        self.moving += [sigma.detach().clone().requires_grad_() for sigma in bumps]
        self.features = []
        for module in self.task.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.register_forward_hook(lambda _module, _inputs, output: self.features.append(output.clone()))

    def __call__(self, images):
        """Return probabilities, and features of each layer."""
        w1, b1, w2, b2, w3, b3, s1, s2 = self.moving
        hidden = torch.exp(-(F.conv2d(images, w1, b1, padding=1) ** 2) / s1**2)
        hidden = torch.exp(-(F.conv2d(hidden, w2, b2, padding=1) ** 2) / s2**2)
        self.features = []
        output = self.task(images + F.conv2d(hidden, w3, b3, padding=1))
        return output.softmax(1), self.features


def moments(values):
    """Mean and variance of each row."""
    return values.mean(1), values.var(1, unbiased=False)


class PlainPrior:
    """Densities of each training subject (Eq. 13 and 15), by plain moments and scikit-learn's PCA."""

    def __init__(self, plain, volumes, stride):
        self.stride = stride
        with torch.no_grad():
            seen = [plain(volume) for volume in volumes]
        rows = [[moments(f.transpose(0, 1).flatten(1)) for f in features] for _, features in seen]
        self.cnn = [list(zip(*layer, strict=True)) for layer in zip(*rows, strict=True)]
        patches = [self.active(probabilities, features[-1]) for probabilities, features in seen]
        channels = patches[0].shape[1]
        self.pca = [
            PCA(G, whiten=True, svd_solver="full").fit(torch.cat([each[:, c] for each in patches]).numpy())
            for c in range(channels)
        ]
        latents = [self.latents(each) for each in patches]
        self.latent = list(zip(*[moments(each) for each in latents], strict=True))

    def active(self, probabilities, features):
        """Active patches `(patches, channels, 256)`."""
        patches = F.unfold(features, SIZE, stride=self.stride)
        channels = features.shape[1]
        patches = patches.view(len(features), channels, SIZE * SIZE, -1).permute(0, 3, 1, 2)
        foreground = 1 - probabilities[:, :1]
        inside = F.unfold(foreground, SIZE, stride=self.stride)[:, SIZE // 2 * SIZE + SIZE // 2] > TAU
        return patches[inside]

    def latents(self, patches):
        """Loadings `(channels * G, patches)`."""
        found = []
        for channel, pca in enumerate(self.pca):
            mean, parts = (torch.from_numpy(np.asarray(part)) for part in (pca.mean_, pca.components_))
            scale = torch.from_numpy(np.sqrt(pca.explained_variance_))
            found.append((parts.to(patches) @ (patches[:, channel] - mean.to(patches)).T) / scale.to(patches)[:, None])
        return torch.cat(found)

    def objective(self, probabilities, features):
        """Eq. 15: the mean over layers and channels, plus lambda times that over components."""
        cnn = [
            divergence(*(torch.stack(part) for part in subjects), *moments(f.transpose(0, 1).flatten(1)))
            for subjects, f in zip(self.cnn, features, strict=True)
        ]
        patches = self.active(probabilities.detach(), features[-1])
        means, variances = (torch.stack(part) for part in self.latent)
        pca = divergence(means, variances, *moments(self.latents(patches)))
        return torch.stack(cnn).mean() + LAMBDA * pca


def divergence(means, variances, mean, variance):
    """KL of each subject's Gaussian from the scan's, averaged over subjects and experts."""
    each = (variance / variances).log() + (variances + (means - mean) ** 2) / variance - 1
    return each.mean() / 2


def plain_loop(plain, objective, volume, batch, epochs, seed):
    """Adam on the mean gradient of an epoch's batches; the epoch of the lowest moving average is kept."""
    generator, count = torch.Generator().manual_seed(seed), math.ceil(len(volume) / batch)
    first, second = ([torch.zeros_like(p) for p in plain.moving] for _ in range(2))
    smoothed, lowest, kept, losses = None, math.inf, None, []
    for epoch in range(epochs + 1):
        gradients, loss = [torch.zeros_like(p) for p in plain.moving], 0.0
        for _ in range(count):
            drawn = volume[torch.randint(len(volume), (batch,), generator=generator)]
            value = objective(*plain(drawn))
            for total, part in zip(gradients, torch.autograd.grad(value, plain.moving), strict=True):
                total += part / count
            loss += float(value.detach()) / count
        losses.append(loss)
        smoothed = loss if smoothed is None else 0.95 * smoothed + 0.05 * loss
        if smoothed < lowest:
            lowest, kept = smoothed, [p.detach().clone() for p in plain.moving]
        if epoch == epochs:
            break
        with torch.no_grad():
            for p, g, m, v in zip(plain.moving, gradients, first, second, strict=True):
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g * g)
                step = (m / (1 - 0.9 ** (epoch + 1))) / ((v / (1 - 0.999 ** (epoch + 1))).sqrt() + 1e-8)
                p -= RATE * step
    return losses, kept


def moved(network):
    """The normaliser's parameters in the order of the plain network."""
    residual = network.normalizer.residual
    convolutions = [p for place in (0, 2, 4) for p in (residual[place].weight, residual[place].bias)]
    return [*convolutions, residual[1].sigma, residual[3].sigma]


@pytest.mark.parametrize("name", DATA_SETS)
def test_preset_paper_is_a_plain_loop_over_twenty_epochs(name, network):
    _, batch, stride = DATA_SETS[name]
    slices, size = SHAPES[name]
    volumes = [toy_scan(seed, slices=6, size=size)[0] for seed in range(3)]
    patches = PatchSettings(SIZE, stride, G, TAU)
    model = Model(
        network,
        {"rim": 1, "core": 2},
        Preprocessing(size=(size, size)),
        {"kind": "custom"},
        prior=FieldOfExperts.fit(network, volumes, patches=patches),
        presets=read_presets(read_recipe(RECIPES.get(name, name)).adapt, name),
    )
    scan = toy_scan(7, slices=slices, size=size)[0] ** 1.3
    result = scantune.adapt(model, scan, preset="paper", steps=EPOCHS, seed=3, device="cpu")
    plain = PlainNetwork(network)
    prior = PlainPrior(plain, volumes, stride)
    losses, kept = plain_loop(plain, prior.objective, scan, batch, EPOCHS, seed=3)
    assert result.decision.reason == "the guard was switched off."
    assert [row["objective"] for row in result.trace] == pytest.approx(losses, rel=2e-4)
    for ours, theirs in zip(moved(result.network), kept, strict=True):
        torch.testing.assert_close(ours, theirs, atol=EPOCHS * RATE / 50, rtol=1e-4)


@pytest.mark.parametrize("name", DATA_SETS)
def test_recipes_experiments_and_models_have_the_papers_numbers(name):
    epochs, batch, stride = DATA_SETS[name]
    recipe, experiment = read_recipe(RECIPES.get(name, name)), Experiment.read(name)
    of_recipe = read_presets(recipe.adapt, name).get("paper", PresetNumbers())
    assert (of_recipe.steps or 1000, of_recipe.batch or 8) == (epochs, batch)
    assert experiment.adapt.paper == {"steps": epochs, "batch": batch}
    assert (recipe.prior.stride, experiment.recipe.prior.stride) == (stride, stride)
    rates = {"entropy": 1e-4, "dae": 1e-3, "ae": 1e-5, "foe-cnn": 1e-4, "foe-cnn-pca": 1e-4}
    assert {method: experiment.adapt.options[method]["learning_rate"] for method in rates} == rates


def test_a_model_file_keeps_the_numbers_and_what_the_user_sets_wins(toy, tmp_path):
    presets = {"paper": PresetNumbers(steps=3, batch=2)}
    network = AdaptableNetwork.default(classes=3, width=4)
    architecture = {"kind": "unet", "classes": 3, "width": 4}
    Model(network, {"rim": 1}, Preprocessing(size=(48, 48)), architecture, presets=presets).save(tmp_path / "m")
    model = scantune.load(tmp_path / "m")
    assert model.presets == presets
    scan = toy_scan(1)[0]
    steps = lambda **more: len(adapt(model, scan, method="entropy", preset="paper", device="cpu", **more).trace) - 1  # noqa: E731
    assert (steps(), steps(steps=5)) == (3, 5)


def test_a_damaged_number_is_refused():
    with pytest.raises(InputError, match="batch must be above 0, got 0"):
        read_presets({"paper": {"batch": 0}}, "adapt")
    with pytest.raises(InputError, match="Unknown setting 'speed' in paper of adapt"):
        read_presets({"paper": {"speed": 1}}, "adapt")


@pytest.mark.parametrize(
    ("settings", "guarded"),
    [
        ({}, True),
        ({"preset": "converged"}, True),
        ({"preset": "paper"}, False),
        ({"preset": "paper", "guard": True}, True),
    ],
)
def test_preset_paper_has_no_guard_unless_it_is_asked_for(settings, guarded):
    assert AdaptSettings(**settings).guarded is guarded
    assert AdaptSettings(**settings).record["guard"] is guarded


def test_one_update_per_batch_is_a_plain_loop_too(toy):
    scan, rate = toy_scan(7, slices=5)[0] ** 1.3, 1e-3
    settings = {"method": "entropy", "preset": "paper", "batch": 2, "steps": 4, "seed": 5, "device": "cpu"}
    result = scantune.adapt(toy.network, scan, options={"update": "batch", "learning_rate": rate}, **settings)
    plain, generator = PlainNetwork(toy.network), torch.Generator().manual_seed(5)
    adam, epochs = torch.optim.Adam(plain.moving, lr=rate), []
    for _ in range(4):
        epochs.append([])
        for _ in range(3):  # three batches of two slices cover five
            probabilities, _ = plain(scan[torch.randint(5, (2,), generator=generator)])
            loss = -(probabilities * probabilities.clamp_min(1e-10).log()).sum(1).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            epochs[-1].append(loss.item())
    found = [row["objective"] for row in result.trace][:4]
    assert found == pytest.approx([sum(each) / 3 for each in epochs], rel=1e-3)


def test_one_update_per_batch_needs_batches(toy):
    with pytest.raises(InputError, match="update=batch needs preset paper"):
        scantune.adapt(toy.network, toy_scan(1)[0], method="entropy", options={"update": "batch"}, device="cpu")
