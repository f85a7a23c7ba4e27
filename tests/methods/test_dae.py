"""The denoising autoencoder: its grid, its corruptions, its training, and the method that follows it."""

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import scantune
from scantune import AdaptableNetwork, InputError
from scantune.adaptation.sampling import WholeVolume
from scantune.backends.slices import PreparedSlices, Preprocessing
from scantune.methods import DAE, ModelParts
from scantune.methods.dae import exclusive_probabilities
from scantune.model.model import Model
from scantune.networks import HELPERS, Denoiser
from scantune.scans.grid import Orientation, SliceGrid
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from scantune.training.augment import Augmentation
from scantune.training.denoiser import DenoiserSettings, DenoiserTraining, Jigsaw, origins
from scantune.training.helpers import TRAINERS, train_helper
from scantune.training.trainer import run_training
from tests.conftest import toy_denoiser, toy_scan

CPU = torch.device("cpu")


class Echo(Denoiser):
    """Answers with what it is given: what is left is the way to the grid and back."""

    def forward(self, x):
        return x.clamp_min(1e-30).log()


def probabilities(slices: int, size: tuple[int, int] = (9, 14), classes: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(slices, classes, *size, generator=generator).softmax(1)


def prepared(seed: int, slices: int = 8, size: int = 24, distance: float | None = 1.0) -> PreparedSlices:
    """A toy case whose slices are all alike."""
    image, labels = (part.repeat_interleave(slices, 0) for part in toy_scan(seed, slices=1, size=size))
    grid = SliceGrid((size, size), (size, size), (0, 0), (size, size))
    return PreparedSlices(image, None, labels, (0.0, 1.0), Orientation.closest(np.eye(4), "axial"), grid, distance)


def toy_model(network: nn.Module | None = None) -> Model:
    torch.manual_seed(0)
    architecture = {"kind": "unet", "classes": 3, "width": 2}
    made = network or AdaptableNetwork.default(classes=3, width=2)
    return Model(made.eval(), {"rim": 1, "core": 2}, Preprocessing(size=(24, 24)), architecture)


def plain_dice(p: np.ndarray, q: np.ndarray) -> float:
    """The mean over classes of the soft Dice of two volumes `(slices, classes, height, width)`."""
    return float(
        np.mean([2 * (p[:, c] * q[:, c]).sum() / (p[:, c].sum() + q[:, c].sum() + 1e-10) for c in range(p.shape[1])])
    )


class TestTheNetwork:
    def test_it_has_the_layers_of_the_original(self):
        denoiser = Denoiser(classes=4, depth=32, spacing=2.5)
        kernels = [tuple(layer.weight.shape[:2]) for layer in denoiser.modules() if isinstance(layer, nn.Conv3d)]
        down = [(16, 4), (16, 16), (32, 16), (32, 32), (64, 32), (64, 64), (128, 64), (128, 128)]
        up = [(64, 128 + 64), (64, 64), (32, 64 + 32), (32, 32), (16, 32), (4, 16)]
        assert kernels == down + up
        assert sum(isinstance(layer, nn.BatchNorm3d) for layer in denoiser.modules()) == 13
        assert denoiser.classify.bias is None

    @pytest.mark.parametrize("shape", [(8, 16, 16), (1, 9, 14), (5, 8, 17), (13, 7, 1)])
    def test_any_shape_comes_back(self, shape):
        torch.manual_seed(0)
        assert Denoiser(3, 8, 1.0, width=2).eval()(torch.rand(1, 3, *shape)).shape == (1, 3, *shape)

    def test_what_is_missing_to_a_multiple_of_eight_is_background(self):
        torch.manual_seed(0)
        denoiser = Denoiser(3, 8, 1.0, width=2).eval()
        labels = torch.randint(0, 3, (5, 10, 16))
        larger = torch.zeros(8, 16, 16, dtype=torch.long)
        larger[:5, :10] = labels
        torch.testing.assert_close(
            denoiser(denoiser.encoded(labels)), denoiser(denoiser.encoded(larger))[:, :, :5, :10], atol=1e-5, rtol=1e-4
        )

    @pytest.mark.parametrize("wrong", [{"classes": 1}, {"depth": 0}, {"shrink": 0}, {"width": 0}, {"spacing": 0.0}])
    def test_a_grid_that_cannot_be_is_refused(self, wrong):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Denoiser(**({"classes": 3, "depth": 8, "spacing": 1.0} | wrong))

    def test_its_record_makes_it_again_without_touching_the_global_generator(self):
        state = torch.get_rng_state()
        denoiser = HELPERS["dae"].from_record({"classes": 3, "depth": 7, "spacing": 2.5, "shrink": 2, "width": 4})
        assert torch.equal(torch.get_rng_state(), state)
        assert HELPERS["dae"].from_record(denoiser.record()).record() == denoiser.record()


class TestTheGrid:
    @pytest.mark.parametrize("distance", [None, 2.5, 2.5001])
    @pytest.mark.parametrize(("slices", "depth"), [(6, 6), (5, 6), (6, 9), (1, 4)])
    def test_an_echo_on_the_same_spacing_is_exact(self, slices, depth, distance):
        volume = probabilities(slices)
        assert (Echo(3, depth, 2.5).restore(volume, distance) - volume).abs().max() < 1e-6

    @pytest.mark.parametrize(("depth", "slices"), [(4, 6), (5, 8)])
    def test_slices_beyond_the_grid_have_no_class_at_all(self, depth, slices):
        volume = probabilities(slices)
        echoed = Echo(3, depth, 1.0).restore(volume, 1.0)
        known = echoed.sum((1, 2, 3)) > 0
        first = (slices - depth) // 2
        assert known.nonzero().flatten().tolist() == list(range(first, first + depth))
        assert (echoed - volume)[known].abs().max() < 1e-6
        assert echoed[~known].abs().max() == 0

    @pytest.mark.parametrize("distance", [0.7, 1.6, 4.0])
    def test_an_echo_on_another_spacing_is_close_and_a_ramp_comes_back_inside(self, distance):
        slices = 12
        ramp = torch.linspace(0, 1, slices)[:, None, None, None] * torch.ones(slices, 1, 6, 7)
        volume = torch.cat([1 - ramp, ramp], 1)
        echoed = Echo(2, round(slices * distance), 1.0).restore(volume, distance)
        # Linear interpolation keeps a line; at the ends it is flat for half a slice of the coarser grid.
        edge = int(np.ceil(1 / distance))
        assert (echoed - volume)[edge:-edge].abs().max() < 1e-5
        assert (echoed - volume).abs().max() < 0.1
        torch.testing.assert_close(echoed.sum(1), torch.ones(slices, 6, 7))

    def test_slices_are_read_linearly_as_numpy_does(self):
        seen = []

        class Spy(Echo):
            def forward(self, x):
                seen.append(x)
                return super().forward(x)

        volume = probabilities(7)
        echoed = Spy(3, 5, 3.0).restore(volume, 2.0)
        # Middles on each other: slice 2 of the grid on slice 3 of the volume, 1.5 slices from one to the next.
        at = 3 + 1.5 * (np.arange(5) - 2)
        values = volume.double().numpy()
        expected = np.apply_along_axis(lambda line: np.interp(at, np.arange(7), line), 0, values)
        np.testing.assert_allclose(seen[0][0].movedim(0, 1).numpy(), expected, atol=1e-6)
        back = (np.arange(7) - 3) / 1.5 + 2
        expected = np.apply_along_axis(lambda line: np.interp(back, np.arange(5), line), 0, expected)
        np.testing.assert_allclose(echoed.numpy(), expected, atol=1e-6)

    @pytest.mark.parametrize("size", [(8, 12), (9, 14), (3, 3)])
    def test_shrinking_averages_squares_and_comes_back_to_the_size(self, size):
        volume = probabilities(4, size)
        echo = Echo(3, 4, 1.0, shrink=4)
        pooled = echo.pooled(volume)
        assert pooled.shape[2:] == tuple(-(-edge // 4) for edge in size)
        torch.testing.assert_close(pooled[:, :, 0, 0], volume[:, :, :4, :4].mean((2, 3)))
        torch.testing.assert_close(
            pooled[:, :, -1, -1], volume[:, :, (size[0] - 1) // 4 * 4 :, (size[1] - 1) // 4 * 4 :].mean((2, 3))
        )
        smooth = torch.ones(4, 3, *size) * torch.tensor([0.2, 0.3, 0.5])[:, None, None]
        torch.testing.assert_close(echo.restore(smooth), smooth)

    def test_labels_are_laid_on_the_grid_at_the_nearest_slice_with_background_beyond(self):
        labels = torch.arange(1, 7)[:, None, None].expand(6, 2, 2)
        denoiser = Denoiser(7, 8, 1.0, width=1)
        assert denoiser.placed(labels, 1.0)[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
        assert Denoiser(7, 3, 2.0, width=1).placed(labels, 1.0).unique().numel() == 3
        assert Denoiser(7, 18, 1.0, width=1).placed(labels, 3.0)[:, 0, 0].tolist() == np.repeat(range(1, 7), 3).tolist()


class TestTheJigsaw:
    @pytest.mark.parametrize("shape", [(24, 40, 40), (9, 33, 20), (1, 8, 8)])
    @pytest.mark.parametrize("most", [1, 52, 53, 200])
    def test_all_boxes_at_once_are_box_after_box(self, shape, most):
        generator = torch.Generator().manual_seed(most)
        labels = torch.randperm(math.prod(shape), generator=generator).view(shape)
        jigsaw = Jigsaw(most)
        boxes = jigsaw.boxes_of(labels.shape, generator)
        assert boxes.shape == (3, most, 3)
        assert torch.equal(labels.flatten()[origins(labels.shape, boxes)], jigsaw.spoilt(labels, boxes))

    def test_the_same_generator_spoils_alike_and_leaves_the_original(self):
        labels = toy_scan(0, slices=8)[1]
        before = labels.clone()
        one, same, other = (Jigsaw()(labels, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
        assert torch.equal(one, same) and not torch.equal(one, other)
        assert torch.equal(labels, before)

    def test_every_box_is_a_copy_from_the_clean_volume_and_the_rest_is_clean(self):
        """A plain loop over voxels, on a volume in which each has a value of its own."""
        labels = torch.arange(9 * 14 * 11).reshape(9, 14, 11)
        sizes, targets, sources = Jigsaw(6, 4).draw(labels.shape, torch.Generator().manual_seed(1))
        expected = labels.clone()
        for size, target, source in zip(sizes.tolist(), targets.tolist(), sources.tolist(), strict=True):
            for step in np.ndindex(*size):
                here, there = (tuple(np.add(corner, step)) for corner in (target, source))
                expected[here] = labels[there]
        assert torch.equal(Jigsaw(6, 4)(labels, torch.Generator().manual_seed(1)), expected)
        covered = torch.zeros_like(labels, dtype=torch.bool)
        for size, target in zip(sizes.tolist(), targets.tolist(), strict=True):
            covered[tuple(slice(a, a + b) for a, b in zip(target, size, strict=True))] = True
        assert 0 < covered.sum() < covered.numel()
        assert torch.equal(expected[~covered], labels[~covered])

    def test_numbers_and_sizes_of_boxes_are_uniform_in_their_ranges(self):
        generator = torch.Generator().manual_seed(0)
        draws = [Jigsaw().draw(torch.Size((32, 64, 64)), generator) for _ in range(400)]
        numbers = np.array([len(sizes) for sizes, _, _ in draws])
        assert numbers.min() >= 1 and numbers.max() <= 200
        assert numbers.mean() == pytest.approx(100.5, abs=4 * 200 / np.sqrt(12 * 400))
        sizes = torch.cat([sizes for sizes, _, _ in draws])
        assert sorted(sizes[:, 1].unique().tolist()) == list(range(2, 21, 2))
        assert sizes[:, 1].double().mean() == pytest.approx(11, abs=0.2)
        for corners in (1, 2):
            first = torch.cat([draw[corners] for draw in draws])
            assert first.min() == 0
            assert ((first + sizes) <= torch.tensor([32, 64, 64])).all()
            assert (first + sizes).max() == 64
            assert (first / (torch.tensor([32, 64, 64]) - sizes)).mean() == pytest.approx(0.5, abs=0.01)

    @pytest.mark.parametrize("shape", [(1, 24, 24), (3, 5, 6), (8, 24, 7), (2, 2, 2)])
    def test_short_axes_cut_the_boxes(self, shape):
        sizes, _, _ = Jigsaw().draw(torch.Size(shape), torch.Generator().manual_seed(0))
        for axis, edge in enumerate(shape):
            assert sizes[:, axis].max() <= max(1, 2 * (edge // 2 - 2))
        assert sizes.min() >= 1
        labels = torch.randint(0, 3, shape)
        assert Jigsaw()(labels, torch.Generator().manual_seed(0)).shape == shape

    def test_no_label_is_invented_and_some_but_not_all_voxels_change(self):
        labels = torch.where(toy_scan(1, slices=12)[1] == 1, 7, 0)
        shares = []
        for seed in range(20):
            spoilt = Jigsaw()(labels, torch.Generator().manual_seed(seed))
            assert set(spoilt.unique().tolist()) <= {0, 7}
            shares.append(float((spoilt != labels).float().mean()))
        assert 0.05 < np.mean(shares) < 0.5
        assert min(shares) > 0
        single = Jigsaw(boxes=1, half_width=2)
        changed = [int((single(labels, torch.Generator().manual_seed(n)) != labels).sum()) for n in range(40)]
        assert 0 < max(changed) <= 4**3


def toy_training(iterations: int = 120) -> tuple[DenoiserTraining, DenoiserSettings]:
    settings = DenoiserSettings(
        iterations=iterations,
        learning_rate=0.01,
        boxes=100,
        half_width=4,
        validate_every=40,
        checkpoint_every=1000,
        corruptions=8,
    )
    torch.manual_seed(0)
    denoiser = Denoiser(3, 8, 1.0, width=4)
    for module in denoiser.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.momentum = 0.1  # there are few iterations
    training, validation = [prepared(seed) for seed in range(6)], [prepared(seed) for seed in (50, 51)]
    module = DenoiserTraining(denoiser, training, validation, settings, CPU)
    # Scaled to the toy's size.
    module.augmentation = Augmentation(elastic_alpha=0.0, translation=2.0)
    return module, settings


class TestTraining:
    def test_it_raises_the_dice_of_corrupted_held_out_volumes(self):
        module, settings = toy_training()
        trained = run_training(module, settings, {})
        before, after = module.corrupted_dice, trained.best_score
        assert after > before + 0.05
        # The same by hand, with corruptions that were not there before, of people who were not. Many of them: the gain
        # is large where much is spoilt, and a loss where almost nothing is.
        gains = []
        for seed in range(60, 100):
            clean = prepared(seed).reference
            spoilt = module.jigsaw(clean, torch.Generator().manual_seed(seed))
            one_hot = [np.eye(3)[labels.numpy()].transpose(0, 3, 1, 2) for labels in (spoilt, clean)]
            restored = module.denoiser.restore(torch.from_numpy(one_hot[0]).float(), 1.0).numpy()
            gains.append(plain_dice(restored, one_hot[1]) - plain_dice(*one_hot))
        assert np.mean(gains) > 0.05

    def test_the_loss_is_one_minus_the_dice_of_whole_volumes(self):
        module, _ = toy_training()
        module.augmentation = replace(module.augmentation, probability=0.0)
        labels = module.training[int(module.order.batch_of(0))]
        loss = module.loss(module.draw(0))
        spoilt = module._corrupted(labels, 4, 0)
        assert not torch.equal(spoilt, labels)
        with torch.no_grad():
            answer = module.network(module.denoiser.encoded(spoilt)).softmax(1)[0].movedim(1, 0).double().numpy()
        truth = np.eye(3)[labels.numpy().astype(int)].transpose(0, 3, 1, 2)
        assert float(loss.detach()) == pytest.approx(1 - plain_dice(answer, truth), abs=1e-5)

    def test_volumes_are_moved_alike_in_all_slices_and_no_label_is_invented(self):
        module, _ = toy_training()
        module.augmentation = Augmentation(probability=1.0, elastic_alpha=100.0, translation=3.0)
        labels = prepared(3).reference.clone()

        def moved_at(iteration):
            module.draw(iteration)
            return module._moved(labels)

        moved = moved_at(5)
        assert not torch.equal(moved, labels)
        assert all(torch.equal(each, moved[0]) for each in moved)
        assert moved.unique().tolist() == [0, 1, 2]
        assert torch.equal(moved, moved_at(5)) and not torch.equal(moved, moved_at(6))

    def test_every_look_scores_the_same_corruptions(self):
        module, _ = toy_training()
        module.network.eval()
        with torch.no_grad():
            assert module.score() == module.score()

    @pytest.mark.parametrize(
        ("slices", "distances", "settings", "expected"),
        [
            ([20, 24], [2.5, 2.5], {}, (24, 2.5)),
            ([256], [0.7], {}, (64, 2.8)),  # the paper's grid for brains
            ([65], [1.0], {}, (33, 2.0)),
            ([10, 10], [3.0, 6.0], {"spacing": 3.0}, (20, 3.0)),
            ([24], [5.0], {"depth": 8}, (8, 15.0)),
            ([24], [5.0], {"depth": 16, "spacing": 4.0}, (16, 4.0)),
            ([6], [None], {}, (6, 1.0)),
        ],
    )
    def test_the_grid_is_that_of_the_training_volumes(self, slices, distances, settings, expected):
        from scantune.training.denoiser import _grid

        cases = [prepared(0, n, distance=distance) for n, distance in zip(slices, distances, strict=True)]
        depth, spacing = _grid(cases, DenoiserSettings(**settings))
        assert (depth, spacing) == (expected[0], pytest.approx(expected[1]))

    def test_a_model_gets_the_helper_and_keeps_the_rest(self, tmp_path):
        other = toy_denoiser(0)
        model = replace(toy_model(), helpers={"other": other}, provenance={"recipe": "toy"})
        settings = {"iterations": 2, "width": 2, "shrink": 2, "corruptions": 1}
        cases = [prepared(seed, slices=5, distance=2.0) for seed in range(3)]
        fitted = train_helper(model, "dae", cases[:2], cases[2:], settings, device="cpu")
        assert fitted.network is model.network and fitted.helpers["other"] is other
        assert fitted.helpers["dae"].record() == {"classes": 3, "depth": 5, "spacing": 2.0, "shrink": 2, "width": 2}
        record = fitted.provenance["dae"]
        assert fitted.provenance["recipe"] == "toy"
        assert (record["iterations"], record["learning_rate"], record["depth"]) == (2, 1e-4, 5)
        assert 0 < record["corrupted_dice"] < 1 and 0 < record["validation_dice"] < 1
        assert not any(parameter.requires_grad for parameter in fitted.helpers["dae"].parameters())

    def test_an_interrupted_run_goes_on_and_the_same_seed_gives_the_same_weights(self, tmp_path):
        class StoppedError(Exception):
            pass

        def interrupt(progress):
            if progress.iteration == 2:
                raise StoppedError

        cases = [prepared(seed, slices=4) for seed in range(3)]
        settings = {"iterations": 4, "width": 2, "corruptions": 1, "checkpoint_every": 2}

        def run(**more):
            return train_helper(toy_model(), "dae", cases[:2], cases[2:], settings, device="cpu", **more)

        whole = run().helpers["dae"].state_dict()
        path = tmp_path / "dae.run"
        with pytest.raises(StoppedError):
            run(checkpoint=path, on_progress=interrupt)
        resumed = run(checkpoint=path).helpers["dae"].state_dict()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)

    def test_what_cannot_be_trained_is_told(self):
        cases = [prepared(0), prepared(1)]
        few = {"iterations": 1}
        with pytest.raises(InputError, match="'source' has no helper network to train. Available: dae"):
            train_helper(toy_model(), "source", cases, cases, few)
        with pytest.raises(InputError, match="got 2 and 0"):
            train_helper(toy_model(), "dae", cases, [], few)
        with pytest.raises(InputError, match="no reference"):
            train_helper(toy_model(), "dae", cases, [replace(cases[0], reference=None)], few)
        with pytest.raises(InputError, match="label 3, but the model knows labels up to 2"):
            train_helper(toy_model(), "dae", cases, [replace(cases[0], reference=cases[0].reference + 1)], few)
        with pytest.raises(InputError, match="Unknown setting 'speed' in the settings of dae"):
            train_helper(toy_model(), "dae", cases, cases, {"speed": 1})
        with pytest.raises(InputError, match="shrink must be above 0"):
            train_helper(toy_model(), "dae", cases, cases, {"shrink": 0})
        assert TRAINERS.keys() <= HELPERS.keys()


def test_a_model_file_keeps_the_helper(tmp_path):
    denoiser = toy_denoiser(1)
    model = replace(toy_model(), helpers={"dae": denoiser})
    volume = probabilities(5, (20, 23))
    for precision, tolerance in ((torch.float32, 0.0), (torch.float16, 0.02)):
        model.save(tmp_path / "m.safetensors", precision)
        loaded = scantune.load(tmp_path / "m.safetensors").helpers["dae"]
        assert loaded.record() == denoiser.record() and not loaded.training
        assert (loaded.restore(volume, 2.0) - denoiser.restore(volume, 2.0)).abs().max() <= tolerance


class TestTheMethod:
    def method(self, toy, network=None, task=None, helper=None, **options) -> DAE:
        parts = ModelParts(task or Segmentation(), helpers={"dae": helper or toy.helpers["dae"]})
        method = DAE(parts, options)
        method.prepare(deepcopy(network or toy.network).requires_grad_(False))
        return method

    def test_without_the_helper_it_names_the_command(self, toy):
        with pytest.raises(InputError, match="scantune fit MODEL --data RECIPE --method dae"):
            scantune.adapt(toy.network, toy_scan(1)[0], method="dae")

    def test_the_objective_is_one_minus_the_plain_dice_of_the_whole_volume(self, toy):
        scan = toy_scan(90, slices=11)[0] ** 2
        result = scantune.adapt(toy.network, scan, method="dae", helpers=toy.helpers, steps=2)
        with torch.no_grad():
            p = toy.network(scan).softmax(1)
        # Eleven slices, of which the grid holds the four in the middle.
        q = toy.helpers["dae"].restore(p)
        held = slice(3, 7)
        expected = plain_dice(p[held].double().numpy(), q[held].double().numpy())
        assert result.trace[0]["objective"] == pytest.approx(1 - expected, abs=1e-5)
        assert result.trace[0]["overlap"] == pytest.approx(expected, abs=1e-5)

    def test_the_gradient_is_that_of_the_dice_to_a_constant(self, toy):
        scan = toy_scan(91, slices=4)[0] ** 2
        method = self.method(toy)
        parameters = list(method.parameters(method.network).values())
        for parameter in parameters:
            parameter.requires_grad_(True)
        method.begin(0, Volume(scan), torch.Generator())
        # Batches of three slices, so that sums go through two passes.
        WholeVolume(batch=3, kept=0).gradients(method, Volume(scan), torch.Generator())()
        network = deepcopy(toy.network)
        p = network(scan).softmax(1)
        q = toy.helpers["dae"].restore(p.detach())
        dice = torch.stack([2 * (p[:, c] * q[:, c]).sum() / (p[:, c].sum() + q[:, c].sum()) for c in range(3)])
        (1 - dice.mean()).backward()
        for mine, plain in zip(parameters, network.normalizer.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, plain.grad, atol=1e-6, rtol=1e-3)

    def test_the_denoiser_is_asked_every_so_many_steps_and_only_these_can_be_chosen(self, toy, monkeypatch):
        asked = []
        restore = Denoiser.restore

        def counted(self, *given):
            asked.append(given)
            return restore(self, *given)

        monkeypatch.setattr(Denoiser, "restore", counted)
        scan = toy_scan(92)[0] ** 2
        settings = {"steps": 7, "guard": False, "options": {"refresh": 3}}
        result = scantune.adapt(toy.network, scan, method="dae", helpers=toy.helpers, **settings)
        assert len(asked) == 3
        assert [row["valid"] for row in result.trace] == [True, False, False] * 2 + [True, False]
        assert result.facts["best_step"] in (0, 3, 6)
        with pytest.raises(InputError, match="refresh must be 1 or more"):
            self.method(toy, refresh=0)

    def test_following_the_denoiser_brings_the_prediction_nearer_to_it(self, toy):
        scan = toy_scan(93)[0] ** 2
        result = scantune.adapt(toy.network, scan, method="dae", helpers=toy.helpers, steps=20, guard=False)
        assert result.facts["best_step"] in (10, 20)
        start, end = (result.trace[step]["objective"] for step in (0, result.facts["best_step"]))
        assert end < start

    def test_the_distance_of_the_slices_reaches_the_denoiser(self, toy):
        volume = Volume(toy_scan(94, slices=8)[0], distance=0.5)
        method = self.method(toy)
        method.begin(0, volume, torch.Generator())
        with torch.no_grad():
            expected = toy.helpers["dae"].restore(toy.network(volume.images).softmax(1), 0.5)
        torch.testing.assert_close(method.targets, expected, atol=1e-5, rtol=1e-4)
        assert (method.targets.sum(1) > 0.5).all()

    def test_a_class_that_is_nowhere_does_no_harm(self, toy):
        method = self.method(toy)
        method.fresh = True
        sums = torch.tensor([[3.0, 0.0, 0.0], [4.0, 5.0, 0.0]], requires_grad=True)
        terms = method.terms({"dice": sums})
        terms.objective.backward()
        assert float(terms.objective.detach()) == pytest.approx(1 - 0.75 / 3)
        assert torch.isfinite(sums.grad).all() and sums.grad[1, 2] == 0

    def test_a_3d_network_gets_the_targets_of_its_slices(self, toy):
        torch.manual_seed(0)
        network = AdaptableNetwork.default(classes=3, dimensions=3, width=2).eval()
        scan = torch.rand(1, 1, 9, 24, 20)
        method = self.method(toy, network)
        method.begin(0, Volume(scan), torch.Generator())
        with torch.no_grad():
            slices = network(scan).softmax(1)[0].movedim(1, 0)
        expected = toy.helpers["dae"].restore(slices).movedim(0, 1)[None]
        torch.testing.assert_close(method.targets, expected, atol=1e-5, rtol=1e-4)
        result = scantune.adapt(network, scan, method="dae", helpers=toy.helpers, steps=1)
        assert result.prediction.shape == (1, 9, 24, 20)

    def test_one_independent_channel_is_a_structure_and_its_complement(self):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
        helpers = {"dae": Denoiser(2, 4, 1.0, width=1).eval()}
        scan = torch.rand(4, 1, 16, 16)
        result = scantune.adapt(network, scan, method="dae", helpers=helpers, steps=1)
        with torch.no_grad():
            p = network(scan).sigmoid()
            p = torch.cat([1 - p, p], 1)
        q = helpers["dae"].restore(p)
        assert result.trace[0]["overlap"] == pytest.approx(plain_dice(p.double().numpy(), q.double().numpy()), abs=1e-5)

    def test_channels_that_may_overlap_and_other_classes_are_refused(self, toy):
        with pytest.raises(InputError, match="exclusive classes, but the network has 3 channels that may overlap"):
            exclusive_probabilities(torch.rand(1, 3, 4, 4), False)
        helpers = {"dae": Denoiser(5, 4, 1.0, width=1)}
        with pytest.raises(InputError, match="made for 5 classes, but the network has 3"):
            scantune.adapt(toy.network, toy_scan(1)[0], method="dae", helpers=helpers, steps=1)
