"""Batch-norm adaptation, and which parameters methods move."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import scantune
from scantune import AdaptableNetwork, InputError
from scantune.methods import METHODS, ModelParts
from scantune.methods.base import PARAMETER_CHOICES
from scantune.networks import ARCHITECTURES, insert_default_adaptors
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from scantune.training.autoencoders import AutoencoderSettings
from tests.conftest import toy_scan


def norms(network):
    return {name: module for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}


def outputs(network, images):
    """What goes into and comes out of every norm layer, by a plain forward pass of all slices at once."""
    seen = {}
    hooks = [
        module.register_forward_hook(lambda _m, x, y, name=name: seen.__setitem__(name, (x[0].clone(), y.clone())))
        for name, module in norms(network).items()
    ]
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    return seen


def test_after_one_pass_every_norm_output_has_mean_beta_and_variance_of_gamma(toy):
    scan = toy_scan(30, slices=11)[0] ** 2.0
    result = scantune.adapt(toy.network, scan, method="batchnorm", guard=False)
    for name, (values, normed) in outputs(result.network, scan).items():
        layer = norms(result.network)[name]
        variance = values.double().var((0, 2, 3), correction=0)
        assert torch.allclose(normed.double().mean((0, 2, 3)), layer.bias.double(), atol=2e-4)
        expected = layer.weight.double().square() * variance / (variance + layer.eps)
        assert torch.allclose(normed.double().var((0, 2, 3), correction=0), expected, rtol=2e-3, atol=1e-6)


def test_it_is_what_a_network_in_training_mode_does_with_the_scan_as_one_batch(toy):
    scan = toy_scan(31, slices=5)[0] ** 2.0
    result = scantune.adapt(toy.network, scan, method="batchnorm", guard=False)
    reference = deepcopy(toy.network).train()
    with torch.no_grad():
        expected = reference(scan).softmax(1)
    assert torch.allclose(result.adapted.probabilities, expected, atol=1e-3)


def test_the_divergence_falls_to_nothing(toy):
    result = scantune.adapt(toy.network, toy_scan(32)[0] ** 2.0, method="batchnorm", guard=False)
    before, after = (row["objective"] for row in result.trace)
    assert before > 0.01
    assert 0 <= after < 0.05 * before  # not nothing: eps counts where a channel hardly varies


def test_a_strong_prior_leaves_the_training_statistics_and_a_weak_one_takes_the_scans(toy):
    scan = toy_scan(33, slices=4)[0] ** 2.0
    first = "task.down.0.first.norm"
    source = norms(toy.network)[first].running_mean
    own, mixed, kept = (
        norms(scantune.adapt(toy.network, scan, method="batchnorm", options={"strength": n}, guard=False).network)[
            first
        ].running_mean
        for n in (0.0, 4.0, 1e9)
    )
    assert torch.allclose(kept, source, atol=1e-5)
    assert torch.allclose(mixed, (own + source) / 2, atol=1e-5)
    assert not torch.allclose(own, source, atol=1e-3)


def test_padding_does_not_count(toy):
    scan = toy_scan(34, slices=3)[0] ** 2.0
    padded = torch.cat([scan, torch.full_like(scan, 7.0)], dim=3)
    mask = torch.zeros_like(padded, dtype=torch.bool)
    mask[..., scan.shape[3] :] = True
    adapted = scantune.adapt(toy.network, padded, method="batchnorm", guard=False, mask=mask).network
    first = "task.down.0.first.norm"
    # The convolutions before it see the padding at the border, the statistics do not count it.
    values = outputs(toy.network, padded)[first][0].double()
    inside = values[..., : scan.shape[3]]
    layer = norms(adapted)[first]
    assert torch.allclose(layer.running_mean.double(), inside.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(layer.running_var.double(), inside.var((0, 2, 3), correction=0), rtol=1e-4)
    assert not torch.allclose(layer.running_mean.double(), values.mean((0, 2, 3)), atol=1e-2)


def test_networks_without_running_statistics_are_refused():
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with pytest.raises(InputError, match="needs batch norm layers with running statistics"):
        scantune.adapt(network, torch.rand(2, 1, 16, 16), method="batchnorm")


def test_a_negative_strength_is_refused(toy):
    with pytest.raises(InputError, match="strength must be 0 or more, got -1"):
        scantune.adapt(toy.network, toy_scan(35)[0], method="batchnorm", options={"strength": -1.0})


def fresh(network, moving):
    """A network before anything moves: with adaptors, where these are to move."""
    return insert_default_adaptors(deepcopy(network)) if moving == "adaptors" else network


@pytest.mark.parametrize("method", ["entropy", "ae", "foe-cnn", "foe-cnn-pca"])
@pytest.mark.parametrize("moving", PARAMETER_CHOICES)
def test_every_choice_of_what_moves_lowers_the_objective_and_moves_nothing_else(method, moving, toy):
    scan = toy_scan(36)[0] ** 1.7
    options = {"moving": moving} | ({"start": "identity"} if method == "ae" else {})
    settings = {"prior": toy.prior, "helpers": toy.helpers, "method": method, "steps": 3, "guard": False}
    result = scantune.adapt(toy.network, scan, options=options, **settings)
    assert min(row["objective"] for row in result.trace[1:]) < result.trace[0]["objective"]
    source = fresh(toy.network, moving) if (method, moving) != ("ae", "all") else fresh(toy.network, "adaptors")
    before, after = source.state_dict(), result.network.state_dict()
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert changed <= set(PARAMETER_CHOICES[moving](source))


@pytest.mark.parametrize("moving", PARAMETER_CHOICES)
def test_every_choice_of_what_moves_follows_the_denoised_prediction(moving, toy):
    options = {"moving": moving, "learning_rate": 1e-4}
    result = scantune.adapt(
        toy.network, toy_scan(36)[0] ** 1.7, method="dae", helpers=toy.helpers, options=options, steps=3
    )
    objectives = [row["objective"] for row in result.trace]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] < objectives[0]


@pytest.mark.parametrize("method", ["entropy", "foe-cnn-pca"])
def test_with_adaptors_a_run_starts_at_the_source_prediction(method, toy):
    scan = toy_scan(36)[0] ** 1.7
    settings = {"prior": toy.prior, "method": method, "steps": 1}
    plain, adaptors = (
        scantune.adapt(toy.network, scan, options={"moving": moving}, **settings).trace[0]
        for moving in ("normalizer", "adaptors")
    )
    assert adaptors["objective"] == pytest.approx(plain["objective"], rel=1e-3)


@pytest.mark.parametrize("method", ["source", "batchnorm"])
def test_where_nothing_moves_by_gradients_no_adaptor_is_put_in(method, toy):
    result = scantune.adapt(toy.network, toy_scan(36)[0], method=method, guard=False, options={"moving": "adaptors"})
    assert result.network.state_dict().keys() == toy.network.state_dict().keys()


@pytest.mark.parametrize("dimensions", [2, 3])
def test_any_network_gets_the_image_adaptor_and_a_unet_those_of_features(dimensions):
    unet = insert_default_adaptors(AdaptableNetwork.default(width=2, dimensions=dimensions))
    assert [feature.map.in_channels for feature in unet.adaptors.features] == [4, 8, 16]
    kind = nn.Conv2d if dimensions == 2 else nn.Conv3d
    other = insert_default_adaptors(
        AdaptableNetwork.around(nn.Sequential(kind(2, 4, 3, padding=1), nn.ReLU(), kind(4, 2, 1)))
    )
    assert other.adaptors.positions == ()
    images = torch.rand(1, 2, *[8] * dimensions)
    assert torch.allclose(other(images), other.task(images), atol=1e-5)


def test_a_registration_network_gets_the_adaptors_of_the_unet_inside_it():
    shape = {"heights": 4, "rows": 32, "columns": 32, "width": 4}
    network = ARCHITECTURES["register"](**shape)
    adapted = insert_default_adaptors(deepcopy(network))
    assert adapted.adaptors.positions == ("unet.down.1.second", "unet.down.2.second", "unet.down.3.first")
    widths = [feature.map.in_channels for feature in adapted.adaptors.features]
    units = [adapted.task.get_submodule(place) for place in adapted.adaptors.positions]
    assert widths == [unit.conv.out_channels for unit in units]
    assert AutoencoderSettings().layers(network)[0] == ("unet.down.1.second", "unet.up.1.second")
    named = dict(network.task.named_modules())
    assert all(layer in named for group in AutoencoderSettings().layers(network) for layer in group)


def test_norm_affine_is_every_scale_and_shift_and_nothing_else(toy):
    chosen = PARAMETER_CHOICES["norm-affine"](toy.network)
    assert sum(p.numel() for p in chosen.values()) == 2 * sum(
        layer.num_features for layer in norms(toy.network).values()
    )
    three = nn.Sequential(nn.Conv3d(1, 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm3d(4, affine=True), nn.Conv3d(4, 2, 1))
    assert len(PARAMETER_CHOICES["norm-affine"](AdaptableNetwork.around(three))) == 4


def test_a_network_without_what_should_move_is_refused():
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with pytest.raises(InputError, match="no norm layer with a scale and a shift"):
        scantune.adapt(network, torch.rand(1, 1, 16, 16), method="entropy", options={"moving": "norm-affine"})
    with pytest.raises(InputError, match="no adaptors to move; insert them"):
        PARAMETER_CHOICES["adaptors"](AdaptableNetwork.around(network))
    with pytest.raises(InputError, match="Adaptors need a network with convolutions.*Identity"):
        insert_default_adaptors(AdaptableNetwork(nn.Identity(), nn.Identity()))


@pytest.mark.parametrize("slices", [4, 9])
def test_what_moves_without_effect_is_told(toy, slices):
    """The first expert layer comes before every norm."""
    scan = toy_scan(37, slices=slices, size=32)[0]
    settings = {"prior": toy.prior, "method": "foe-cnn", "steps": 2, "guard": False}
    with pytest.raises(InputError, match="foe-cnn does not depend on what moves .moving=norm-affine."):
        scantune.adapt(toy.network, scan, options={"layers": "first", "moving": "norm-affine"}, **settings)
    joining = {"schedule": "bottom-up", "joining": 2, "moving": "norm-affine"}
    result = scantune.adapt(toy.network, scan, options=joining, **settings)
    assert result.trace[2]["objective"] != result.trace[0]["objective"]


def test_options_that_are_unknown_or_wrong_are_told(toy):
    for options, told in (
        ({"movin": "all"}, "Unknown setting 'movin' in the options of method entropy; known: moving, learning_rate"),
        ({"moving": "some"}, "moving in the options of method entropy must be one of"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
    ):
        with pytest.raises(InputError, match=told):
            scantune.adapt(toy.network, toy_scan(37)[0], method="entropy", options=options)


def test_the_original_entropy_minimisation_is_batchnorm_then_entropy_of_the_norms(toy):
    scan = toy_scan(38)[0] ** 2.0
    first = scantune.adapt(toy.network, scan, method="batchnorm", guard=False)
    second = scantune.adapt(
        first.network, scan, method="entropy", steps=3, guard=False, options={"moving": "norm-affine"}
    )
    assert second.trace[0]["entropy"] == pytest.approx(
        float(-(first.adapted.probabilities * first.adapted.probabilities.clamp_min(1e-12).log()).sum(1).mean()),
        rel=1e-3,
    )
    assert min(row["objective"] for row in second.trace) < second.trace[0]["objective"]


def test_the_hooks_are_gone_afterwards(toy):
    network = deepcopy(toy.network)
    method = METHODS["batchnorm"](ModelParts(Segmentation()))
    method.prepare(network)
    method.measure(next(Volume(toy_scan(39)[0]).batches(2)))
    method.finish()
    assert not any(module._forward_pre_hooks for module in network.modules())
