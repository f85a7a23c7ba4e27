from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from scantune import AdaptableNetwork, FieldOfExperts, InputError
from scantune.densities import DENSITIES, Gaussian
from scantune.experts import Recorder
from scantune.networks import fold_batch_norm
from tests.conftest import TOY_PATCHES, toy_scan, train_toy


def naive_energy(network, layers, volumes, scan):
    """Eq. 13 by a plain loop: layers, channels, subjects; all slices of a volume in one batch, in double."""
    network = deepcopy(network).double()
    with torch.no_grad(), Recorder(network, layers) as record:
        sources = [record(volume.double()).features for volume in volumes]
        test = record(scan.double()).features
    per_layer = []
    for layer in layers:
        per_channel = []
        for channel in range(test[layer].shape[1]):
            t = test[layer][:, channel]
            each = []
            for source in sources:
                s = source[layer][:, channel]
                v_s, v_t = s.var(correction=0), t.var(correction=0)
                each.append(0.5 * (torch.log(v_t / v_s) + (v_s + (s.mean() - t.mean()) ** 2) / v_t - 1))
            per_channel.append(torch.stack(each).mean())
        per_layer.append(torch.stack(per_channel).mean())
    return float(torch.stack(per_layer).mean())


def test_the_energy_is_equation_13_by_a_plain_loop(toy):
    scan = toy_scan(40)[0] ** 1.5
    expected = naive_energy(toy.network, toy.prior.families["cnn"].experts.layers(), toy.volumes, scan)
    assert toy.prior.energy(toy.network, scan) == pytest.approx(expected, rel=1e-3)


def test_the_energy_of_a_shifted_scan_is_higher_and_never_below_the_floor(toy):
    scan = toy_scan(41)[0]
    at_home, away = toy.prior.energy(toy.network, scan), toy.prior.energy(toy.network, scan**2)
    assert toy.prior.floor() < at_home < away


def test_folding_batch_norm_leaves_the_energy_as_it_is(toy):
    scan = toy_scan(42)[0] ** 1.3
    network = deepcopy(toy.network)
    maps = fold_batch_norm(network.task)
    assert toy.prior.folded(maps).energy(network, scan) == pytest.approx(toy.prior.energy(toy.network, scan), rel=1e-5)


def test_experts_before_and_after_batch_norm_have_the_same_energy(toy):
    scan = toy_scan(43)[0] ** 1.3
    after = FieldOfExperts.fit(
        toy.network, toy.volumes, layers=lambda name, _: name.endswith("norm"), last="up.2.second.norm"
    )
    before = toy.prior.energy(toy.network, scan)
    assert after.energy(toy.network, scan) == pytest.approx(before, rel=1e-4)


def test_whitened_and_plain_loadings_have_the_same_energy(toy):
    from dataclasses import replace

    scan = toy_scan(44)[0] ** 1.3
    family = toy.prior.families["pca"]
    gain = torch.linspace(0.1, 3, family.experts.components.shape[1]).view(1, -1, 1, 1)
    ((group, field),) = family.layers.items()
    experts = replace(family.experts, components=family.experts.components * gain)
    spread = gain.flatten().repeat(family.experts.components.shape[0])
    whitened = replace(
        family,
        experts=experts,
        layers={group: replace(field, center=field.center * spread, scale=field.scale * spread)},
    )
    other = replace(toy.prior, families={**toy.prior.families, "pca": whitened})

    def pca(prior):
        return float(next(iter(prior.energies(prior.statistics(toy.network, scan))["pca"].values())))

    assert pca(other) == pytest.approx(pca(toy.prior), rel=1e-4)


def test_batches_do_not_change_the_statistics(toy):
    scan = toy_scan(45, slices=5)[0]
    small = toy.prior.statistics(toy.network, scan, batch=2)
    whole = toy.prior.statistics(toy.network, scan, batch=5)
    assert all(torch.allclose(small[key], whole[key], rtol=1e-4, atol=1e-2) for key in whole)


def test_padding_is_left_out(toy):
    scan = toy_scan(46)[0]
    padded = nn.functional.pad(scan, (0, 0, 16, 0), value=1.0)
    mask = torch.zeros_like(padded, dtype=torch.bool)
    mask[:, :, :16] = True
    marked, blind = toy.prior.energy(toy.network, padded, mask), toy.prior.energy(toy.network, padded)
    assert marked < 0.2 * blind


def test_zeros_inside_the_image_are_not_padding(toy):
    scan = toy_scan(47)[0]
    assert toy.prior.energy(toy.network, scan, torch.zeros_like(scan, dtype=torch.bool)) == pytest.approx(
        toy.prior.energy(toy.network, scan), rel=1e-6
    )


def test_a_summarised_prior_gives_the_same_energy_and_tells_of_no_subject(toy):
    scan = toy_scan(48)[0] ** 1.5
    summary = toy.prior.summarised()
    assert summary.energy(toy.network, scan) == pytest.approx(toy.prior.energy(toy.network, scan), rel=1e-6)
    assert summary.floor() == pytest.approx(toy.prior.floor(), rel=1e-6)
    assert not any(tensor.shape[:1] == (6,) and tensor.ndim == 2 for tensor in summary.tensors().values())
    assert all("subject" not in key for key in summary.tensors())


@pytest.mark.parametrize("form", ["full", "summarised"])
def test_a_prior_survives_its_file(form, toy, tmp_path):
    prior = toy.prior if form == "full" else toy.prior.summarised()
    prior.save(tmp_path / "prior.safetensors")
    again = FieldOfExperts.load(tmp_path / "prior.safetensors")
    scan = toy_scan(49)[0] ** 1.5
    one, other = prior.statistics(toy.network, scan), again.statistics(toy.network, scan)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert again.energy(toy.network, scan) == prior.energy(toy.network, scan)
    assert again.record() == prior.record()


def test_a_file_that_is_no_prior_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="is not a prior file"):
        FieldOfExperts.load(tmp_path / "other.safetensors")


def test_a_prior_of_another_network_is_refused(toy):
    with pytest.raises(InputError, match="has 4 channels, the prior 8 experts"):
        toy.prior.require_fit(AdaptableNetwork.default(classes=3, width=4))
    with pytest.raises(InputError, match="has no layer"):
        toy.prior.require_fit(nn.Sequential(nn.Conv2d(1, 2, 3)))


def test_constant_experts_are_dropped_by_name(toy):
    network = deepcopy(toy.network)
    nn.init.zeros_(network.task.down[0].first.conv.weight[3])
    prior = FieldOfExperts.fit(network, toy.volumes, patches=TOY_PATCHES)
    assert any("down.0.first.conv: experts 3 hardly vary" in note for note in prior.notes)
    assert prior.families["cnn"].layers["down.0.first.conv"].kept.tolist().count(False) == 1
    assert torch.isfinite(torch.tensor(prior.energy(network, toy.volumes[0] ** 2)))


def test_fitting_leaves_the_network_as_it_was(toy):
    network = deepcopy(toy.network).train()
    before = deepcopy(network.state_dict())
    FieldOfExperts.fit(network, toy.volumes[:2])
    assert network.training
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("volumes", "complaint"),
    [
        ([], "at least one training volume"),
        ([torch.zeros(3, 16, 16)], r"has shape \(3, 16, 16\), expected"),
        ([torch.full((1, 1, 16, 16), float("nan"))], "volume 0 holds NaN"),
        ([torch.zeros(0, 1, 16, 16)], "expected"),
    ],
)
def test_volumes_that_cannot_be_fitted_are_refused(volumes, complaint, toy):
    with pytest.raises(InputError, match=complaint):
        FieldOfExperts.fit(toy.network, volumes)


def test_masks_must_match_the_volumes(toy):
    with pytest.raises(InputError, match="6 volumes, 1 masks"):
        FieldOfExperts.fit(toy.network, toy.volumes, masks=[None])


def test_a_volume_of_padding_alone_is_refused(toy):
    masks = [torch.ones(4, 1, 48, 48, dtype=torch.bool), *[None] * 5]
    with pytest.raises(InputError, match="volume 0 is all padding"):
        FieldOfExperts.fit(toy.network, toy.volumes, masks=masks)


def test_a_network_that_sees_no_foreground_has_no_pca_experts_and_says_so():
    torch.manual_seed(3)
    network = AdaptableNetwork.default(classes=3, width=2).eval()
    prior = FieldOfExperts.fit(network, [torch.rand(2, 1, 32, 32) for _ in range(2)])
    assert list(prior.families) == ["cnn"]
    assert any("No PCA experts: 0 active patches" in note for note in prior.notes)


def test_an_instance_norm_network_has_energy_on_a_shifted_scan():
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    network = train_toy(UNet(2, 1, 3, (8, 16), (2,), norm="instance"), iterations=40)
    prior = FieldOfExperts.fit(network, [toy_scan(seed)[0] for seed in range(4)])
    scan = toy_scan(51)[0]
    assert prior.energy(network, 0.5 * scan) > 5 * prior.energy(network, scan)


def test_the_energy_of_nan_is_refused(toy):
    with pytest.raises(InputError, match="NaN"):
        toy.prior.energy(toy.network, torch.full((1, 1, 48, 48), float("nan")))


@pytest.fixture(scope="module")
def others(toy):
    """Priors of the same network and subjects with densities on a grid."""
    return {
        name: FieldOfExperts.fit(toy.network, toy.volumes, patches=TOY_PATCHES, density=name, alpha=8.0)
        for name in DENSITIES
        if name != "gaussian"
    }


def histogram(samples, center, scale):
    """Soft bins of standardised samples by numpy, floored and normalised: 21 masses."""
    values = np.clip((samples.double().flatten().numpy() - center) / scale, -5, 5)
    points = np.linspace(-5, 5, 21)
    shares = np.maximum(0, 1 - np.abs(points[:, None] - values) / 0.5).mean(1)
    floored = shares / 0.5 + 1e-5
    return floored / floored.sum()


def kernels(samples, center, scale, alpha=8.0):
    """A kernel density by the plain sum over samples, floored and normalised: 101 masses."""
    values = np.clip((samples.double().flatten().numpy() - center) / scale, -5, 5)
    points = np.linspace(-5, 5, 101)
    heights = np.sqrt(alpha / np.pi) * np.exp(-alpha * (points[:, None] - values) ** 2).mean(1) + 1e-5
    return heights / heights.sum()


@pytest.mark.parametrize(("name", "density", "close"), [("histogram", histogram, 1e-4), ("kde", kernels, 2e-2)])
def test_the_energy_of_densities_on_a_grid_is_equation_13_by_a_plain_loop(name, density, close, toy, others):
    prior, layer = others[name], "up.2.first.conv"
    scan = toy_scan(52)[0] ** 1.5
    with torch.no_grad(), Recorder(toy.network, [layer]) as record:
        sources = [record(volume).features[layer] for volume in toy.volumes]
        test = record(scan).features[layer]
    found = prior.energies(prior.statistics(toy.network, scan))["cnn"][layer]
    channels = []
    for channel in range(test.shape[1]):
        pooled = torch.cat([source[:, channel] for source in sources]).double()
        how = float(pooled.mean()), float(pooled.std(correction=0))
        q = density(test[:, channel], *how)
        channels.append(np.mean([stats.entropy(density(source[:, channel], *how), q) for source in sources]))
    assert float(found) == pytest.approx(np.mean(channels), rel=close)


@pytest.mark.parametrize("name", ["kde", "histogram"])
class TestEveryPriorOnAGrid:
    def test_it_has_the_experts_of_a_gaussian_prior(self, name, toy, others):
        for family in ("cnn", "pca"):
            one, other = toy.prior.families[family].layers, others[name].families[family].layers
            assert one.keys() == other.keys()
            for group, field in one.items():
                assert torch.equal(field.center, other[group].center)
                assert len(other[group].density.heights) == len(field.density.mean)

    def test_the_energy_of_a_shifted_scan_is_higher_and_never_below_the_floor(self, name, toy, others):
        scan = toy_scan(53)[0]
        prior = others[name]
        at_home, away = prior.energy(toy.network, scan), prior.energy(toy.network, scan**2)
        assert 0 < prior.floor() < at_home < away

    def test_it_survives_its_file(self, name, toy, others, tmp_path):
        prior = others[name]
        prior.save(tmp_path / "prior.safetensors")
        again = FieldOfExperts.load(tmp_path / "prior.safetensors")
        scan = toy_scan(54)[0] ** 1.5
        assert again.energy(toy.network, scan) == prior.energy(toy.network, scan)
        assert again.record() == prior.record()
        density = again.families["cnn"].layers["up.2.first.conv"].density
        assert density.settings() == {"low": -5.0, "high": 5.0, "step": 0.5} | (
            {"step": 0.1, "alpha": 8.0} if name == "kde" else {}
        )

    def test_folding_batch_norm_leaves_the_energy_as_it_is(self, name, toy, others):
        scan = toy_scan(55)[0] ** 1.3
        network = deepcopy(toy.network)
        folded = others[name].folded(fold_batch_norm(network.task))
        assert folded.energy(network, scan) == pytest.approx(others[name].energy(toy.network, scan), rel=1e-4)

    def test_batches_do_not_change_the_statistics(self, name, toy, others):
        scan = toy_scan(56, slices=5)[0]
        small, whole = (others[name].statistics(toy.network, scan, batch=batch) for batch in (2, 5))
        assert all(torch.allclose(small[key], whole[key], atol=1e-2) for key in whole)

    def test_it_can_be_calibrated(self, name, toy, others):
        held_out = [(toy_scan(seed)[0], None) for seed in (57, 58)]
        calibration = others[name].calibrated(toy.network, held_out).calibration
        energies = [others[name].energy(toy.network, volume) for volume, _ in held_out]
        assert min(energies) <= calibration.levels.middle <= max(energies) < calibration.typical

    def test_it_refuses_to_be_summarised(self, name, others):
        with pytest.raises(InputError, match=f"{name} densities keeps one density per subject"):
            others[name].summarised()


def test_an_unknown_density_is_refused(toy):
    with pytest.raises(InputError, match="Unknown density 'normal'. Available: gaussian, kde, histogram"):
        FieldOfExperts.fit(toy.network, toy.volumes, density="normal")


def test_the_output_can_be_a_layer_of_experts(toy, tmp_path):
    prior = FieldOfExperts.fit(toy.network, toy.volumes, patches=TOY_PATCHES, output_experts=True)
    plain, fields = toy.prior.families["cnn"].layers, prior.families["cnn"].layers
    assert list(fields) == [*plain, "output"]
    with torch.no_grad():
        shares = [toy.network(volume).softmax(1).double() for volume in toy.volumes]
    means = torch.stack([share.mean((0, 2, 3)) for share in shares])
    field = fields["output"]
    assert torch.allclose(field.density.mean * field.scale + field.center, means.float(), atol=1e-5)
    prior.require_fit(toy.network)
    prior.save(tmp_path / "prior")
    scan = toy_scan(59)[0] ** 1.5
    assert FieldOfExperts.load(tmp_path / "prior").energy(toy.network, scan) == prior.energy(toy.network, scan)
    network = deepcopy(toy.network)
    folded = prior.folded(fold_batch_norm(network.task))
    assert folded.energy(network, scan) == pytest.approx(prior.energy(toy.network, scan), rel=1e-4)


def test_a_layer_named_as_the_output_experts_is_refused():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.output = nn.Conv2d(1, 2, 3, padding=1)
            self.classes = nn.Conv2d(2, 2, 1)

        def forward(self, x):
            return self.classes(self.output(x))

    with pytest.raises(InputError, match="has a layer named 'output'"):
        FieldOfExperts.fit(Named(), [torch.rand(2, 1, 8, 8)], output_experts=True)


def test_patches_can_be_chosen_by_the_likeliest_structure(toy, tmp_path):
    prior = FieldOfExperts.fit(toy.network, toy.volumes, patches=TOY_PATCHES, foreground="max")
    prior.save(tmp_path / "prior")
    task = FieldOfExperts.load(tmp_path / "prior").families["pca"].experts.task
    logits = torch.log(torch.tensor([0.1, 0.5, 0.4])).view(1, 3, 1, 1)
    assert float(task.foreground(logits)) == pytest.approx(0.5)
    assert float(toy.prior.families["pca"].experts.task.foreground(logits)) == pytest.approx(0.9)
    with pytest.raises(InputError, match="channels, a function or 'max', got 'min'"):
        FieldOfExperts.fit(toy.network, toy.volumes, foreground="min")


def test_a_gaussian_prior_is_what_it_was_before_there_were_others(toy):
    field = toy.prior.families["cnn"].layers["up.2.first.conv"]
    assert field.record() == {"density": "gaussian"}
    assert isinstance(field.density, Gaussian)
