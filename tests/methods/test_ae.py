"""The autoencoders: their training, the adaptors, and the method that moves these."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import scantune
from scantune import AdaptableNetwork, InputError
from scantune.adaptation.guard.stability import StabilityGuard
from scantune.adaptation.sampling import RandomSlices, WholeVolume
from scantune.backends.slices import PreparedSlices, Preprocessing
from scantune.methods import AE, ModelParts
from scantune.methods.ae import VARIANTS, AutoencoderInputs, mean_errors, pull_to_identity, squared_errors
from scantune.model.model import Model
from scantune.networks import AdaptedNetwork, Autoencoder, Autoencoders, FeatureAdaptor, ImageAdaptor, insert_adaptors
from scantune.networks.adaptors import squared_spectral_norm
from scantune.scans.grid import Orientation, SliceGrid
from scantune.scans.volume import Batch, Volume
from scantune.tasks import Segmentation
from scantune.training.autoencoders import UNET_LAYERS, AutoencoderSettings, AutoencoderTraining, new_autoencoders
from scantune.training.helpers import TRAINERS, train_helper
from tests.conftest import dice, toy_scan

CPU = torch.device("cpu")
TASK = Segmentation()
POSITIONS = {"down.1.second": 16, "down.2.second": 32, "down.3.first": 64}
"""Of the toy network, half as wide as the paper's."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prepared(seed: int, size: int = 24, padded: int = 0) -> PreparedSlices:
    image, labels = toy_scan(seed, slices=3, size=size)
    padding = torch.zeros_like(image, dtype=torch.bool)
    padding[..., :padded] = True
    grid = SliceGrid((size, size), (size, size), (0, 0), (size, size))
    orientation = Orientation.closest(np.eye(4), "axial")
    return PreparedSlices(image, padding if padded else None, labels, (0.0, 1.0), orientation, grid, 1.0)


def toy_model() -> Model:
    torch.manual_seed(0)
    network = AdaptableNetwork.default(classes=3, width=2).eval()
    architecture = {"kind": "unet", "classes": 3, "width": 2}
    return Model(network, {"rim": 1, "core": 2}, Preprocessing(size=(24, 24)), architecture)


class TestAutoencoder:
    def test_it_is_the_stated_stack_of_layers(self):
        """Against the same layers written down one after the other, at a size that halves twice."""
        torch.manual_seed(0)
        mine = Autoencoder(3, (8, 6, 4))
        x = torch.randn(2, 3, 16, 12)

        def unit(convolution, value):
            value = F.conv2d(value, convolution.weight, padding=1)
            mean, variance = value.mean((2, 3), keepdim=True), value.var((2, 3), correction=0, keepdim=True)
            return ((value - mean) / (variance + 1e-5).sqrt()).clamp_min(0)

        up = nn.Upsample(scale_factor=2, mode="bilinear")
        value = F.max_pool2d(unit(mine.down[0], x), 2)
        value = F.max_pool2d(unit(mine.down[1], value), 2)
        value = unit(mine.down[2], value)
        value = unit(mine.up[1], up(unit(mine.up[0], up(value))))
        value = torch.einsum("oi,bihw->bohw", mine.output.weight[:, :, 0, 0], value) + mine.output.bias[:, None, None]
        torch.testing.assert_close(mine(x), value, atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("size", [(1, 1), (1, 5), (3, 2), (7, 9), (6, 11)])
    def test_any_size_comes_back(self, size):
        x = torch.randn(2, 3, *size, requires_grad=True)
        y = Autoencoder(3, (8, 6, 4))(x)
        y.square().sum().backward()
        assert y.shape == x.shape
        assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()

    def test_the_five_have_the_papers_inputs_and_widths(self):
        network = AdaptableNetwork.default(classes=15).eval()
        five = new_autoencoders(network, TASK, torch.rand(1, 1, 32, 32), UNET_LAYERS)
        assert {name: five.width(name) for name in five.names()} == {"xn": 1, "f1": 64, "f2": 128, "f3": 256, "y": 15}
        widths = {name: [layer.out_channels for layer in five.networks[name].down] for name in five.names()}
        assert widths["xn"] == widths["y"] == [32, 16, 8]
        assert widths["f1"] == widths["f2"] == widths["f3"] == [64, 32, 16]
        assert five.positions() == {"down.1.second": 32, "down.2.second": 64, "down.3.first": 128}

    def test_views_are_the_normalised_image_the_units_outputs_and_the_probabilities(self, toy):
        scan = toy_scan(100)[0]
        five = toy.helpers["ae"]
        with torch.no_grad(), AutoencoderInputs(toy.network, TASK, five.layers()) as views:
            seen = views(scan)
        unet = toy.network.task
        with torch.no_grad():
            z = toy.network.normalizer(scan)
            two = unet.down[1](unet.pool(unet.down[0](z)))
            three = unet.down[2](unet.pool(two))
            first = unet.down[3].first(unet.pool(three))
            second = unet.down[3].second(first)
            five_two = unet.up[0](torch.cat([F.interpolate(second, scale_factor=2, mode="bilinear"), three], 1))
            six_two = unet.up[1](torch.cat([F.interpolate(five_two, scale_factor=2, mode="bilinear"), two], 1))
            expected = {
                "xn": z,
                "f1": torch.cat([two, six_two], 1),
                "f2": torch.cat([three, five_two], 1),
                "f3": torch.cat([first, second], 1),
                "y": toy.network(scan).softmax(1),
            }
        assert list(seen) == list(expected)
        for name, view in expected.items():
            torch.testing.assert_close(seen[name], view, atol=1e-5, rtol=1e-5)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in toy.network.modules())


class TestAdaptors:
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("dimensions", [2, 3])
    def test_the_image_adaptor_starts_as_the_identity(self, channels, dimensions):
        x = 5 * torch.randn(2, channels, *[6] * dimensions)
        adaptor = ImageAdaptor(channels, dimensions=dimensions)
        torch.testing.assert_close(adaptor(x), x, atol=1e-5, rtol=1e-6)
        adaptor(x).square().sum().backward()
        assert (adaptor.last.weight.grad != 0).all(), "every hidden channel can learn"

    def test_at_the_identity_nothing_changes(self, toy):
        scan = toy_scan(101)[0] ** 2
        adapted = insert_adaptors(deepcopy(toy.network), 1, POSITIONS)
        with torch.no_grad():
            image = adapted.adaptors.image(scan)
            assert (image - scan).abs().max() < 1e-6
            # The feature adaptors are exact; what the image's last bits become is up to the network.
            assert (adapted(scan) - toy.network(image)).abs().max() < 1e-6
            assert (adapted(scan).softmax(1) - toy.network(scan).softmax(1)).abs().max() < 1e-5
        assert not any(module._forward_hooks for module in adapted.modules())

    def test_a_copy_moves_on_its_own(self, toy):
        scan = toy_scan(102)[0]
        adapted = insert_adaptors(deepcopy(toy.network), 1, POSITIONS)
        copy = deepcopy(adapted)
        with torch.no_grad():
            before = adapted(scan)
            for parameter in copy.adaptors.parameters():
                parameter.mul_(1.3).add_(0.05)
            assert torch.equal(adapted(scan), before)
            moved = copy(scan)
            assert not torch.allclose(moved, before, atol=1e-2)
            for parameter in adapted.adaptors.parameters():
                parameter.zero_()
            assert torch.equal(copy(scan), moved)

    @pytest.mark.parametrize(("number", "position"), list(enumerate(POSITIONS)))
    def test_adapted_maps_go_on_and_feed_the_skip_connection(self, toy, number, position):
        """What the next level and the skip connection get, against the adaptor applied by hand."""
        adapted = insert_adaptors(deepcopy(toy.network), 1, POSITIONS)
        torch.manual_seed(1)
        weight = adapted.adaptors.features[number].map.weight
        with torch.no_grad():
            weight.add_(0.1 * torch.randn_like(weight))
        unet = adapted.task
        heard = {}
        handles = [
            module.register_forward_pre_hook(lambda _m, inputs, name=name: heard.update({name: inputs[0]}))
            for name, module in unet.named_modules()
            if name in ("down.2", "down.3", "down.3.second", "up.0", "up.1")
        ]
        scan = toy_scan(103)[0]
        with torch.no_grad():
            adapted(scan)
            z = unet.down[0](toy.network.normalizer(scan))
            two = unet.down[1](unet.pool(z))
            two = torch.einsum("oi,bihw->bohw", weight[..., 0, 0], two) if number == 0 else two
            three = unet.down[2](unet.pool(two))
            three = torch.einsum("oi,bihw->bohw", weight[..., 0, 0], three) if number == 1 else three
            four = unet.down[3].first(unet.pool(three))
            four = torch.einsum("oi,bihw->bohw", weight[..., 0, 0], four) if number == 2 else four
        for handle in handles:
            handle.remove()
        torch.testing.assert_close(heard["down.2"], unet.pool(two), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(heard["down.3"], unet.pool(three), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(heard["down.3.second"], four, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(heard["up.1"][:, -16:], two, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(heard["up.0"][:, -32:], three, atol=1e-4, rtol=1e-4)

    def test_whoever_listens_hears_the_adapted_output(self, toy):
        adapted = insert_adaptors(deepcopy(toy.network), 1, {"down.1.second": 16})
        with torch.no_grad():
            adapted.adaptors.features[0].map.weight.mul_(2)
        scan = toy_scan(104)[0]
        seen = []
        for network in (toy.network, adapted):
            with torch.no_grad(), AutoencoderInputs(network, TASK, {"f1": ["down.1.second"]}) as views:
                seen.append(views(scan)["f1"])
        torch.testing.assert_close(seen[1], 2 * seen[0], atol=1e-5, rtol=1e-5)

    def test_the_papers_start_has_its_mean_and_deviation(self):
        adaptor = ImageAdaptor(1, hidden=400)
        for centred in (False, True):
            adaptor.draw(generator(), centred=centred)
            weight = adaptor.second.weight.detach()
            assert float(weight.mean()) == pytest.approx(0 if centred else 1 / 400, abs=8e-4)
            assert float(weight.std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)
            assert not any(layer.bias.any() for layer in (adaptor.first, adaptor.second, adaptor.last))

    def test_pulling_to_the_identity_pulls(self):
        volume = Volume(toy_scan(105, size=16)[0])
        adaptor = ImageAdaptor()
        adaptor.draw(generator())
        before = F.mse_loss(adaptor(volume.images), volume.images)
        pull_to_identity(adaptor, volume, generator())
        assert F.mse_loss(adaptor(volume.images), volume.images) < 0.05 * before
        assert all(parameter.grad is None for parameter in adaptor.parameters())

    def test_a_layer_that_is_not_there_or_has_other_channels_is_told(self, toy):
        with pytest.raises(InputError, match="no layer 'deep'"):
            insert_adaptors(deepcopy(toy.network), 1, {"deep": 4})
        with pytest.raises(InputError, match="'down.1.second' has 16 channels, but its adaptor is for 4"):
            insert_adaptors(deepcopy(toy.network), 1, {"down.1.second": 4})(toy_scan(0)[0])


class TestOrthogonality:
    @pytest.mark.parametrize("size", [1, 2, 16, 128])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_value_and_gradient_against_singular_values(self, size, seed):
        adaptor = FeatureAdaptor(size)
        torch.manual_seed(seed)
        with torch.no_grad():
            adaptor.map.weight.add_(0.05 * torch.randn_like(adaptor.map.weight))
        value = adaptor.orthogonality()
        value.backward()
        value = value.detach()
        weight = adaptor.map.weight.detach().flatten(1).double().requires_grad_()
        gram = weight.T @ weight - torch.eye(size, dtype=torch.float64)
        plain = torch.linalg.matrix_norm(gram, 2) ** 2
        plain.backward()
        assert float(value) == pytest.approx(float(plain.detach()), rel=1e-3)
        assert float(value) == float(adaptor.orthogonality().detach())
        error = (adaptor.map.weight.grad.flatten(1) - weight.grad).norm() / weight.grad.norm()
        assert float(error) < 0.05

    def test_eigenvalues_of_both_signs_and_none(self):
        assert float(squared_spectral_norm(torch.diag(torch.tensor([0.5, -0.7, 0.1])))) == pytest.approx(0.49)
        assert float(squared_spectral_norm(torch.diag(torch.tensor([0.7, -0.7])))) == pytest.approx(0.49)
        assert float(squared_spectral_norm(1e-20 * torch.eye(3))) == pytest.approx(1e-40, abs=1e-39)

    def test_at_the_identity_it_is_zero_with_a_zero_gradient(self):
        adaptor = FeatureAdaptor(5)
        value = adaptor.orthogonality()
        value.backward()
        assert float(value.detach()) == 0 and not adaptor.map.weight.grad.any()

    def test_rotations_cost_nothing(self):
        adaptor = FeatureAdaptor(8)
        with torch.no_grad():
            nn.init.orthogonal_(adaptor.map.weight)
        assert float(adaptor.orthogonality().detach()) < 1e-10


class TestTraining:
    def test_errors_are_higher_on_shifted_than_on_in_domain_scans(self, toy):
        five = toy.helpers["ae"]
        for seed in range(110, 113):
            scan = toy_scan(seed)[0]
            with torch.no_grad(), AutoencoderInputs(toy.network, TASK, five.layers()) as views:
                errors = {g: mean_errors(squared_errors(five, views(scan**g), None)) for g in (0.5, 1.0, 2.0)}
            for shifted in (0.5, 2.0):
                assert all(errors[shifted][name] > 1.5 * errors[1.0][name] for name in five.names())

    def test_the_loss_is_the_sum_of_the_mean_squared_errors_of_the_next_slices(self):
        model = toy_model()
        volumes = [Volume(prepared(seed).volume) for seed in range(2)]
        settings = AutoencoderSettings(batch=2)
        five = new_autoencoders(model.network, TASK, volumes[0].images, UNET_LAYERS)
        with AutoencoderInputs(model.network, TASK, five.layers()) as views:
            module = AutoencoderTraining(five, views, volumes, volumes, settings, CPU)
            loss = module.loss(module.draw(3))
            loss.backward()
            images = torch.cat([volume.images for volume in volumes])[module.order.batch_of(3)]
            with torch.no_grad():
                seen = views(images)
                plain = sum(float(((five.networks[k](v) - v).double() ** 2).mean()) for k, v in seen.items())
        assert float(loss.detach()) == pytest.approx(plain, rel=1e-5)
        assert all(parameter.grad is not None for parameter in five.parameters())
        assert all(parameter.grad is None for parameter in model.network.parameters())

    def test_a_model_gets_the_helper_and_keeps_the_rest(self, tmp_path):
        model = toy_model()
        before = deepcopy(model.network.state_dict())
        cases = [prepared(0, padded=4), prepared(1), prepared(2, padded=2)]
        settings = {"iterations": 3, "batch": 4, "validate_every": 1}
        fitted = train_helper(model, "ae", cases[:2], cases[2:], settings, device="cpu")
        assert all(torch.equal(before[key], value) for key, value in fitted.network.state_dict().items())
        assert not fitted.network.training
        five = fitted.helpers["ae"]
        assert five.names() == ["xn", "f1", "f2", "f3", "y"]
        assert not any(parameter.requires_grad for parameter in five.parameters())
        record = fitted.provenance["ae"]
        with torch.no_grad(), AutoencoderInputs(fitted.network, TASK, five.layers()) as views:
            errors = mean_errors(squared_errors(five, views(cases[2].volume), cases[2].padding))
        assert record["validation_errors"] == {k: pytest.approx(float(v), abs=2e-6) for k, v in errors.items()}
        fitted.save(tmp_path / "model.safetensors")
        loaded = scantune.load(tmp_path / "model.safetensors")
        scan = cases[0].volume
        results = [scantune.adapt(each, scan, method="ae", steps=2, guard=False) for each in (fitted, loaded)]
        assert results[0].trace == results[1].trace
        assert loaded.helpers["ae"].record() == five.record()

    def test_an_interrupted_run_goes_on_as_it_would_have(self, tmp_path):
        class StoppedError(Exception):
            pass

        def interrupt(progress):
            if progress.iteration == 2:
                raise StoppedError

        cases = [prepared(seed) for seed in range(3)]
        settings = {"iterations": 4, "batch": 2, "checkpoint_every": 2, "features": "none"}

        def run(**more):
            return train_helper(toy_model(), "ae", cases[:2], cases[2:], settings, device="cpu", **more)

        whole = run().helpers["ae"].state_dict()
        path = tmp_path / "ae.run"
        with pytest.raises(StoppedError):
            run(checkpoint=path, on_progress=interrupt)
        resumed = run(checkpoint=path).helpers["ae"].state_dict()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)

    def test_layers_can_be_named(self):
        network = toy_model().network
        assert AutoencoderSettings().layers(network) == UNET_LAYERS
        assert AutoencoderSettings(features="none").layers(network) == ()
        assert AutoencoderSettings(features="down.1+up.1, down.3.first").layers(network) == (
            ("down.1", "up.1"),
            ("down.3.first",),
        )
        plain = AdaptableNetwork.around(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)))
        assert AutoencoderSettings().layers(plain) == ()

    def test_what_cannot_be_trained_is_told(self):
        network = toy_model().network
        with pytest.raises(InputError, match="'down.7', which is no layer of the task network .UNet."):
            AutoencoderSettings(features="down.1+down.7").layers(network)
        with pytest.raises(InputError, match="down.0 and down.1 are of different resolutions"):
            new_autoencoders(network, TASK, torch.rand(1, 1, 16, 16), (("down.0", "down.1"),))
        with pytest.raises(InputError, match="batch must be above 0"):
            AutoencoderSettings(batch=0)
        with pytest.raises(InputError, match="preprocess all of them to one size"):
            train_helper(toy_model(), "ae", [prepared(0), prepared(1, size=32)], [prepared(2)], {}, device="cpu")
        assert "ae" in TRAINERS


class TestMethod:
    def method(self, toy, network=None, helper=None, seed=0, **options) -> AE:
        """Ready for its first step, with moving parameters."""
        method = AE(ModelParts(TASK, helpers={"ae": helper or toy.helpers["ae"]}), options)
        network = method.equip(deepcopy(network or toy.network), Volume(toy.volumes[0])).requires_grad_(False)
        for parameter in method.parameters(network).values():
            parameter.requires_grad_(True)
        method.prepare(network)
        method.start(Volume(toy_scan(0)[0]), generator(seed))
        return method

    def test_the_objective_is_the_plain_sum_of_errors_and_orthogonality(self, toy):
        method = self.method(toy, start="identity", losses="all", orthogonality=0.5)
        torch.manual_seed(0)
        with torch.no_grad():
            for adaptor in method.network.adaptors.features:
                adaptor.map.weight.add_(0.02 * torch.randn_like(adaptor.map.weight))
        scan = toy_scan(120)[0] ** 2
        padding = torch.zeros_like(scan, dtype=torch.bool)
        padding[..., :16] = True
        with torch.no_grad():
            terms = method.terms(method.measure(Batch(scan, padding, torch.arange(4))))
            seen = method.views(scan)
        five, expected = toy.helpers["ae"], {}
        for name, scale in {"xn": 1, "f1": 2, "f2": 4, "f3": 8, "y": 1}.items():
            with torch.no_grad():
                error = (five.networks[name](seen[name]) - seen[name]).double() ** 2
            # Sixteen columns of padding are sixteen, eight, four and two of the layers'.
            expected[name] = float(error[..., 16 // scale :].mean())
        grams = [a.map.weight.detach().flatten(1).double() for a in method.network.adaptors.features]
        norms = [torch.linalg.matrix_norm(w.T @ w - torch.eye(len(w)), 2) ** 2 for w in grams]
        expected["orthogonality"] = float(sum(norms))
        method.finish()
        assert {k: float(v) for k, v in terms.parts.items()} == pytest.approx(expected, rel=1e-3)
        weighted = sum(expected.values()) - 0.5 * expected["orthogonality"]
        assert float(terms.objective) == pytest.approx(weighted, rel=1e-3)

    def test_input_and_output_are_what_counts_by_default(self, toy):
        method = self.method(toy)
        statistics = method.measure(Batch(toy_scan(121)[0], None, torch.arange(4)))
        terms = method.terms(statistics)
        method.finish()
        assert list(statistics) == ["xn", "y"]
        assert list(terms.parts) == ["xn", "y", "orthogonality"]
        assert float(statistics["y"][0].detach()) == 4 * 3 * 48 * 48

    def test_the_gradient_over_batches_is_that_of_one_big_batch(self, toy):
        scan = toy_scan(122, slices=5)[0] ** 2
        gradients = []
        for batch in (2, 8):
            method = self.method(toy, start="identity", losses="all")
            with torch.no_grad():
                for adaptor in method.network.adaptors.features:
                    adaptor.map.weight.mul_(1.1)
            WholeVolume(batch=batch, kept=0).gradients(method, Volume(scan), generator())()
            gradients.append([parameter.grad for parameter in method.parameters(method.network).values()])
            method.finish()
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)
        assert all(gradient.any() for gradient in gradients[0])

    @pytest.mark.parametrize("preset", ["fast", "paper"])
    @pytest.mark.parametrize("start", ["random", "identity"])
    def test_its_own_loss_falls(self, toy, preset, start):
        for seed in (123, 124):
            # Slices are alike, so that it does not matter which ones are drawn.
            scan = toy_scan(seed, slices=1, size=32)[0].repeat(4, 1, 1, 1) ** 2
            result = scantune.adapt(
                toy.network,
                scan,
                method="ae",
                helpers=toy.helpers,
                preset=preset,
                steps=6,
                options={"start": start},
                guard=False,
            )
            assert result.trace[-1]["objective"] < result.trace[0]["objective"]

    def test_from_the_identity_it_repairs_a_contrast_shift(self, toy):
        """An autoencoder knows dark and bright: half the gamma shift of toy scans is undone."""
        scan, labels = toy_scan(125)
        options = {"start": "identity", "learning_rate": 3e-3}
        result = scantune.adapt(
            toy.network, scan**2, method="ae", helpers=toy.helpers, options=options, steps=40, guard=False
        )
        best = dice(toy.network(scan).argmax(1), labels)
        before, after = dice(result.source.labels, labels), dice(result.adapted.labels, labels)
        assert after - before > 0.5 * (best - before) > 0.1

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_every_variant_runs(self, toy, variant):
        result = scantune.adapt(
            toy.network,
            toy_scan(126, size=32)[0],
            method="ae",
            helpers=toy.helpers,
            options=VARIANTS[variant],
            steps=2,
            preset="paper",
            guard=False,
        )
        assert len(result.trace) == 3
        assert all(value == value for row in result.trace for value in row.values())
        assert torch.isfinite(result.adapted.probabilities).all()
        assert ("f1" in result.trace[0]) == (variant != "loss")
        assert result.network.adaptors.image.instance_norm == (variant == "original")

    def test_the_defaults_are_the_papers_final_choice(self, toy):
        options = AE(ModelParts(TASK, helpers=toy.helpers), VARIANTS["loss"]).options
        assert (options.moving, options.learning_rate, options.losses) == ("adaptors", 1e-5, "input-output")
        assert (options.start, options.instance_norm, options.orthogonality) == ("random", False, 1.0)

    def test_a_start_differs_by_seed_and_the_identity_is_the_source_prediction(self, toy):
        scan = toy_scan(127, size=32)[0]
        with torch.no_grad():
            five = toy.helpers["ae"]
            with AutoencoderInputs(toy.network, TASK, {}) as views:
                source = mean_errors(squared_errors(five, views(scan), None))

        def first(start, seed):
            options = {"start": start}
            method = {"method": "ae", "helpers": toy.helpers, "options": options, "steps": 1, "seed": seed}
            return scantune.adapt(toy.network, scan, **method).trace[0]

        assert first("random", 0) == first("random", 0) != first("random", 1)
        for name in ("xn", "y"):
            assert first("identity", 0)[name] == pytest.approx(float(source[name]), rel=1e-4)
            assert first("random", 0)[name] != pytest.approx(float(source[name]), rel=1e-2)
        near = first("pretrained", 0)["xn"] - float(source["xn"])
        assert abs(near) < abs(first("random", 0)["xn"] - float(source["xn"]))

    def test_only_adaptors_move_by_default_and_without_them_there_are_none(self, toy):
        scan = toy_scan(128, size=32)[0] ** 2
        result = scantune.adapt(toy.network, scan, method="ae", helpers=toy.helpers, steps=2, guard=False)
        assert isinstance(result.network, AdaptedNetwork)
        state, source = result.network.state_dict(), toy.network.state_dict()
        assert all(torch.equal(state[name], value) for name, value in source.items())
        assert not torch.equal(state["adaptors.features.0.map.weight"][..., 0, 0], torch.eye(16))
        options = {"moving": "normalizer"}
        plain = scantune.adapt(toy.network, scan, method="ae", helpers=toy.helpers, options=options, steps=2)
        assert not isinstance(plain.network, AdaptedNetwork)
        assert plain.trace[-1]["objective"] < plain.trace[0]["objective"]

    def test_without_steps_the_prediction_is_the_source_prediction(self, toy):
        result = scantune.adapt(toy.network, toy_scan(129)[0], method="ae", helpers=toy.helpers, steps=0, guard=False)
        with torch.no_grad():
            predicted = result.network(toy_scan(129)[0]).softmax(1)
        torch.testing.assert_close(predicted, result.source.probabilities, atol=1e-5, rtol=0)

    def test_a_run_that_starts_worse_than_the_source_and_stays_so_is_rolled_back(self, toy):
        """The objective falls, by tiny steps from a random start, and yet the source is better."""
        scan = toy_scan(134, slices=1, size=32)[0].repeat(4, 1, 1, 1)
        settings = {"method": "ae", "helpers": toy.helpers, "preset": "paper", "steps": 2}
        result = scantune.adapt(toy.network, scan, guard=True, **settings)
        free = scantune.adapt(toy.network, scan, guard=False, **settings)
        with torch.no_grad(), AutoencoderInputs(toy.network, TASK, {}) as views:
            errors = mean_errors(squared_errors(toy.helpers["ae"], views(scan), None))
        source = float(errors["xn"] + errors["y"])
        assert result.trace[0]["objective"] > min(row["objective"] for row in result.trace[1:]) > source
        assert result.decision.action == "unsolved"
        assert result.decision.reason == "no step lowered the objective."
        assert torch.equal(result.prediction, toy.network(scan).argmax(1))
        assert not isinstance(result.network, AdaptedNetwork)
        assert not torch.equal(free.adapted.probabilities, free.source.probabilities)

    def test_a_run_from_elsewhere_is_kept_if_it_ends_better_than_the_source_and_is_accepted(self, toy, monkeypatch):
        """From a random start, large steps lead below the source's objective."""
        scan = toy_scan(134, slices=1, size=32)[0] ** 1.5
        settings = {"method": "ae", "helpers": toy.helpers, "steps": 40, "options": {"learning_rate": 1e-3}}
        free = scantune.adapt(toy.network, scan, guard=False, **settings)
        for verdict, action in (("accepted", "adapted"), ("refused", "unsolved")):
            asked = []

            def judge(guard, look, _energy, verdict=verdict, asked=asked):
                asked.append(look)
                guard.best = look if verdict == "accepted" else None
                return verdict

            monkeypatch.setattr(StabilityGuard, "verdict", judge)
            judged = scantune.adapt(toy.network, scan, **settings)
            assert len(asked) > 1  # the start is judged too
            assert judged.decision.action == action
            assert isinstance(judged.network, AdaptedNetwork) == (action == "adapted")
            assert torch.equal(judged.prediction, free.prediction if action == "adapted" else judged.source.labels)

    @pytest.mark.parametrize("guard", [True, False])
    def test_without_steps_the_network_is_the_one_that_predicted(self, toy, guard):
        """With instance norms, A^x is no identity even before it is drawn."""
        scan = toy_scan(133)[0]
        options = VARIANTS["original"]
        settings = {
            "method": "ae",
            "helpers": toy.helpers,
            "options": options,
            "steps": 0,
            "guard": guard,
            "preset": "paper",
        }
        result = scantune.adapt(toy.network, scan, **settings)
        with torch.no_grad():
            assert torch.equal(result.network(scan).argmax(1), result.prediction)
            assert torch.equal(result.prediction, toy.network(scan).argmax(1))

    @pytest.mark.parametrize("features", [(), (("0",),)])
    @pytest.mark.parametrize("dimensions", [2, 3])
    def test_any_network_will_do(self, toy, dimensions, features):
        torch.manual_seed(0)
        convolution = nn.Conv2d if dimensions == 2 else nn.Conv3d
        network = nn.Sequential(convolution(1, 4, 3, padding=1), nn.ReLU(inplace=True), convolution(4, 3, 1)).eval()
        scan = torch.rand(1, 1, *[8] * dimensions)
        helper = new_autoencoders(AdaptableNetwork.around(network), TASK, scan, features)
        helper.eval().requires_grad_(False)
        adapting = {"method": "ae", "helpers": {"ae": helper}, "steps": 3, "guard": False}
        result = scantune.adapt(network, scan, options={"start": "identity", "losses": "all"}, **adapting)
        assert ("orthogonality" in result.trace[0]) == bool(features)
        assert result.trace[-1]["objective"] < result.trace[0]["objective"]
        assert result.adapted.probabilities.shape == (1, 3, *[8] * dimensions)

    def test_random_slices_average_the_epochs_batches(self, toy):
        """The paper's gradient accumulation: the mean over batches, regulariser included once."""
        volume = Volume(toy_scan(130, slices=1, size=32)[0].repeat(5, 1, 1, 1))
        gradients = []
        for sampling in (RandomSlices(batch=2), WholeVolume()):
            method = self.method(toy, start="identity")
            with torch.no_grad():
                method.network.adaptors.features[0].map.weight.mul_(1.1)
            sampling.gradients(method, volume, generator())()
            gradients.append([parameter.grad for parameter in method.parameters(method.network).values()])
            method.finish()
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)

    def test_what_is_missing_or_does_not_fit_is_told(self, toy):
        scan = toy_scan(131, size=32)[0]
        command = "scantune fit MODEL --data RECIPE --method ae"
        with pytest.raises(InputError, match=f"has none; train them with: {command}"):
            scantune.adapt(toy.network, scan, method="ae")
        plain = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
        with pytest.raises(
            InputError, match=f"a layer 'down.1.second', which this one .Sequential. does not have.*{command}"
        ):
            scantune.adapt(plain, scan, method="ae", helpers=toy.helpers)
        for helper, words in (
            (Autoencoders(1, 5), "y is for 5 channels, but the network has 3"),
            (Autoencoders(2, 3), "2D images of 2 channels"),
            (Autoencoders(1, 3, dimensions=3), "3D images of 1 channels"),
            (Autoencoders(1, 3, [(("down.1.second", 7),)]), "16 channels, but its adaptor is for 7"),
        ):
            with pytest.raises(InputError, match=words):
                scantune.adapt(toy.network, scan, method="ae", helpers={"ae": helper}, steps=1)
        for options, words in (
            ({"start": "identity", "instance_norm": True}, "cannot be the identity"),
            ({"orthogonality": -1.0}, "orthogonality must be 0 or more"),
            ({"losses": "some"}, "losses in the options of method ae must be one of"),
        ):
            with pytest.raises(InputError, match=words):
                scantune.adapt(toy.network, scan, method="ae", helpers=toy.helpers, options=options)
        with pytest.raises(InputError, match="one of them reads none"):
            Autoencoders(1, 3, [()])
