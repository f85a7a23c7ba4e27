"""Deformations, the registration network and what adaptation writes of it."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import SimpleITK
import torch
from torch.nn import functional as F

import scantune
from scantune import FieldOfExperts, InputError
from scantune.adaptation.summary_files import ITK_SNAP, SLICER, STATISTICS, VOLUMES
from scantune.backends.slices import Preprocessing
from scantune.cli.main import main
from scantune.config.recipe import Recipe
from scantune.config.settings import TrainSettings
from scantune.evaluation import metrics
from scantune.model.model import Model
from scantune.networks import AtlasShape, RegistrationNetwork, registration_network
from scantune.networks.diffeomorphism import (
    folding_share,
    integrate,
    jacobian_determinant,
    local_correlation,
    roughness,
    spatial_gradients,
    warp,
)
from scantune.networks.registration import AtlasSlices
from scantune.scans.case import Case
from scantune.scans.io import read_labels, write_image, write_labels
from scantune.scans.manifest import OUTPUT_ENDINGS
from scantune.simulate import COHORTS
from scantune.tasks import Registration
from scantune.training.augment import elastic_displacement
from scantune.training.examples import Example
from scantune.training.helpers import train_helper
from scantune.training.plan import TrainingPlan
from scantune.training.registration import (
    RegistrationNetworkSettings,
    RegistrationSettings,
    new_registration,
    read_task,
)
from scantune.training.segmentation import train_network, validation_dice
from scantune.training.train import train_model
from tests.conftest import dice, toy_scan, with_heights


def smooth_velocity(rng, amplitude=5.0, smoothness=10.0, size=96):
    """Gaussian noise of that smoothness, its largest speed the amplitude, in pixels."""
    field = torch.rand(3, 2, size, size, generator=rng) * 2 - 1
    velocity = elastic_displacement(field, smoothness, 1.0)
    return velocity * amplitude / velocity.norm(dim=1).amax((1, 2)).view(-1, 1, 1, 1)


def inner(field, margin=16):
    return field[..., margin:-margin, margin:-margin]


class TestFlow:
    def error(self, velocity, squarings, margin=16):
        """How far exp(v) after exp(-v) is from doing nothing, in pixels, away from the border."""
        there, back = integrate(velocity, squarings), integrate(-velocity, squarings)
        return float(inner((back + warp(there, back)).norm(dim=1), margin).max())

    def test_there_and_back_is_the_identity(self, rng):
        velocity = smooth_velocity(rng)
        assert self.error(velocity, 7) < 0.02

    def test_the_error_falls_with_more_squarings_down_to_that_of_interpolation(self, rng):
        """The midpoint step is so good that the second squaring already finds interpolation the larger error."""
        velocity = smooth_velocity(rng)
        errors = [self.error(velocity, squarings) for squarings in (0, 1, 2, 7)]
        assert errors[0] > 1.5 * errors[1]
        assert errors[1:] == pytest.approx([errors[1]] * 3, rel=0.1)

    def test_nothing_folds(self, rng):
        assert float(inner(jacobian_determinant(integrate(smooth_velocity(rng)))).min()) > 0

    @pytest.mark.parametrize("turn", [0.3, -0.2])
    def test_a_rotation_is_met_and_each_squaring_divides_the_error_by_four(self, turn):
        """v = A x flows along exp(A), which for a rotation is sine and cosine; linear fields interpolate exactly."""
        axis = torch.arange(65, dtype=torch.float64) - 32
        rows, columns = torch.meshgrid(axis, axis, indexing="ij")
        velocity = torch.stack([-turn * columns, turn * rows])[None]
        moved = torch.stack(
            [
                math.cos(turn) * rows - math.sin(turn) * columns - rows,
                math.sin(turn) * rows + math.cos(turn) * columns - columns,
            ]
        )
        errors = [float(inner(integrate(velocity, n) - moved, 22).abs().max()) for n in (3, 4, 5)]
        assert errors[0] < 0.02
        assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
        assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)

    def test_a_stretch_in_3d_is_exponential(self):
        axis = torch.arange(21, dtype=torch.float64) - 10
        places = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
        rate = torch.tensor([0.1, -0.2, 0.05], dtype=torch.float64).view(3, 1, 1, 1)
        found = integrate((rate * places)[None])[0]
        expected = (rate.exp() - 1) * places
        assert torch.allclose(found[:, 4:-4, 4:-4, 4:-4], expected[:, 4:-4, 4:-4, 4:-4], atol=1e-4)

    def test_monai_integrates_to_the_same(self, rng):
        from monai.networks.blocks import DVF2DDF

        velocity = smooth_velocity(rng)
        monai = DVF2DDF(num_steps=7, mode="bilinear", padding_mode="border")(velocity)
        assert float(inner(integrate(velocity) - monai).abs().max()) < 0.03


class TestWarp:
    def test_monai_warps_to_the_same(self, rng):
        from monai.networks.blocks import Warp

        images, displacement = torch.rand(3, 2, 96, 96, generator=rng), smooth_velocity(rng)
        monai = Warp(mode="bilinear", padding_mode="border")(images, displacement)
        assert torch.allclose(warp(images, displacement), monai, atol=1e-3)

    def test_a_whole_shift_takes_pixels_from_where_it_points(self, rng):
        images = torch.rand(1, 1, 6, 7, generator=rng)
        shift = torch.zeros(1, 2, 6, 7)
        shift[:, 0], shift[:, 1] = 2, -1
        assert torch.allclose(warp(images, shift)[..., :4, 1:], images[..., 2:, :-1])
        assert torch.allclose(warp(images[..., :1, :], shift[..., :1, :]), images[..., :1, [0, 0, 1, 2, 3, 4, 5]])

    def test_determinants_are_those_of_simpleitk(self, rng):
        displacement = integrate(smooth_velocity(rng))[:1].double()
        vectors = displacement[0].flip(0).movedim(0, -1).numpy()  # x, y
        field = SimpleITK.GetImageFromArray(np.ascontiguousarray(vectors), isVector=True)
        known = SimpleITK.GetArrayFromImage(SimpleITK.DisplacementFieldJacobianDeterminant(field))
        assert np.allclose(inner(jacobian_determinant(displacement)[0], 2), inner(known, 2), atol=1e-4)

    def test_a_mirrored_strip_folds(self):
        displacement = torch.zeros(1, 2, 8, 10)
        displacement[0, 1] = -2.0 * torch.arange(10)
        assert folding_share(displacement) == 1.0
        assert folding_share(torch.zeros(1, 2, 8, 10)) == 0.0
        assert float(roughness(displacement)) == pytest.approx(4)
        assert float(spatial_gradients(torch.ones(1, 2, 1, 5)).abs().sum()) == 0

    def test_local_correlation_is_that_of_numpy_in_each_window_whatever_the_contrast(self, rng):
        one = torch.rand(1, 1, 12, 12, generator=rng)
        other = 0.3 * one + torch.rand(1, 1, 12, 12, generator=rng)
        found = local_correlation(one, 5 * other - 2, window=5, floor=0.0)
        r = np.corrcoef(one[0, 0, 3:8, 4:9].flatten(), other[0, 0, 3:8, 4:9].flatten())[0, 1]
        assert float(found[0, 0, 5, 6]) == pytest.approx(r**2, abs=1e-4)


class TestNetwork:
    def test_an_untrained_network_gives_the_atlas_as_it_is(self):
        network = registration_network(heights=2, rows=8, columns=8, width=2, shrink=2)
        image = torch.rand(2, 8, 8)
        network.task.atlas.fill(image, (image > 0.5).long())
        torch.nn.init.zeros_(network.task.unet.classify.weight)
        heights = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 16, 16)
        with torch.no_grad():
            output = network.eval()(torch.cat([torch.rand(2, 1, 16, 16), heights], 1))
        assert torch.allclose(output["warped"][:, 0], F.pad(image, (4, 4, 4, 4)), atol=0.003)
        assert torch.equal(Registration().predict(output), F.pad((image > 0.5).long(), (4, 4, 4, 4)))
        assert float(output["displacement"].abs().max()) == 0

    def test_the_atlas_is_looked_up_by_height_and_goes_on_beyond_its_ends(self):
        atlas = AtlasSlices(AtlasShape(3, 2, 2, lowest=-4.0, step=2.0), classes=2)
        atlas.fill(
            torch.tensor([0.0, 0.4, 0.8]).view(3, 1, 1).expand(3, 2, 2),
            torch.tensor([0, 1, 1]).view(3, 1, 1).expand(3, 2, 2),
        )
        image, labels = atlas(torch.tensor([-9.0, -4.0, -3.5, -2.0, 0.0, 7.0]), (2, 2))
        assert image[:, 0, 0, 0].tolist() == pytest.approx([0, 0, 0.1, 0.4, 0.8, 0.8])
        assert labels[:, 1, 0, 0].tolist() == pytest.approx([0, 0, 0.25, 1, 1, 1])

    def test_a_network_of_volumes_runs_in_3d(self):
        network = registration_network(heights=4, rows=16, columns=16, width=2, dimensions=3)
        network.task.atlas.fill(torch.rand(4, 16, 16), torch.randint(0, 3, (4, 16, 16)))
        heights = torch.arange(8.0).view(1, 1, 8, 1, 1).expand(1, 1, 8, 16, 16)
        output = network.eval()(torch.cat([torch.rand(1, 1, 8, 16, 16), heights], 1))
        assert output["out"].shape == (1, 3, 8, 16, 16)
        assert output["displacement"].shape == (1, 3, 8, 16, 16)
        assert float(output["displacement"].abs().max()) < 0.5
        expected = network.task.atlas(torch.arange(8.0), (16, 16))[0][:, 0]
        assert torch.allclose(output["warped"][0, 0], expected, atol=0.5)

    def test_odd_sizes_are_deformed_at_full_size(self):
        network = registration_network(heights=1, rows=9, columns=7, width=2, shrink=2).eval()
        output = network(torch.rand(3, 2, 41, 50))
        assert output["displacement"].shape == (3, 2, 41, 50)
        assert output["velocity"].shape == (3, 2, 21, 25)

    def test_training_beats_no_registration(self, toy_registration):
        images, labels = toy_scan(90)
        network = toy_registration.network
        found = Registration().predict(network(with_heights(images)))
        plain = network.task.atlas(torch.zeros(len(images)), images.shape[2:])[1].argmax(1)
        assert dice(found, labels) > dice(plain, labels) + 0.02

    def test_the_loss_is_dice_and_its_weighted_terms(self, toy_registration):
        images, labels = toy_scan(91)
        output = toy_registration.network(with_heights(images))
        plain, full = Registration().loss(output, labels), Registration(0.5, 0.25).loss(output, labels)
        rough = (
            sum(
                float((torch.from_numpy(np.stack(np.gradient(part.detach().numpy()))) ** 2).sum())
                for part in output["velocity"].flatten(0, 1)
            )
            / output["velocity"][:, 0].numel()
        )
        z = float(local_correlation(F.avg_pool2d(output["warped"], 2), output["fixed"]).mean())
        assert float(full) == pytest.approx(float(plain) + 0.5 * rough + 0.25 * (1 - z), rel=1e-4)
        assert z < 1


class Listening(torch.nn.Module):
    """A network's task network, and the heights that it was ever told."""

    def __init__(self, task):
        super().__init__()
        self.task, self.heard = task, set()

    def forward(self, z, heights):
        self.heard |= set(heights.unique().tolist())
        return self.task(z, heights)


class TestTraining:
    def test_the_one_loop_trains_it_and_heights_are_never_augmented(self, toy_registration):
        network = deepcopy(toy_registration.network)
        network.task = Listening(network.task)
        examples = [Example(with_heights(images), labels) for images, labels in map(toy_scan, (0, 1))]
        settings = TrainSettings(iterations=8, batch=4, validate_every=4, device="cpu")
        before = validation_dice(network, examples[:1], 3, task=Registration())
        heard = train_network(examples, examples[:1], settings, network=network, task=Registration(smoothness=0.1))
        assert heard.network.task.heard == {-1.5, -0.5, 0.5, 1.5}
        assert heard.best_score > before - 0.05

    def test_a_model_goes_on_with_its_own_task_only(self, toy_registration):
        recipe = Recipe("mine", data={"images": "*.nii.gz", "labels": "*.nii.gz", "structures": {"rim": 1, "core": 2}})
        with pytest.raises(InputError, match="is for registration, but the recipe mine is for segmentation"):
            train_model(TrainingPlan.read(recipe), start=toy_registration.model)
        with pytest.raises(InputError, match="dae does not apply to registration"):
            train_helper(toy_registration.model, "dae", [], [])


class TestMethods:
    def test_instance_optimisation_makes_the_pictures_alike_and_moves_nothing_but_the_field(self, toy_registration):
        scan = with_heights(toy_scan(92)[0] ** 2)
        result = scantune.adapt(toy_registration.model, scan, method="instance", steps=8, guard=False)
        assert result.trace[-1]["unlike"] < result.trace[0]["unlike"]
        state = toy_registration.network.state_dict()
        assert all(torch.equal(state[key], value) for key, value in result.network.state_dict().items() if key in state)
        assert set(result.network.state_dict()) - set(state) == {"correction", "known"}

    def test_its_objective_is_the_mean_over_all_pixels(self, toy_registration):
        scan = with_heights(toy_scan(93)[0])
        options = {"smoothness": 0.3}
        result = scantune.adapt(toy_registration.model, scan, method="instance", steps=2, options=options, guard=False)
        with torch.no_grad():
            outputs = [network(scan) for network in (toy_registration.network, result.network)]
        unlike = [1 - float(local_correlation(output["warped"], scan[:, :1]).mean()) for output in outputs]
        rough = float(roughness(result.network.correction))
        assert result.facts["best_step"] > 0 and rough > 0
        ends = [result.trace[step]["objective"] for step in (0, result.facts["best_step"])]
        assert ends == pytest.approx([unlike[0], unlike[1] + 0.3 * rough], rel=1e-4)

    @pytest.mark.parametrize(("options", "match"), [({"window": 4}, "odd number"), ({"smoothness": -1.0}, "0 or more")])
    def test_options_out_of_range_are_refused(self, toy_registration, options, match):
        with pytest.raises(InputError, match=match):
            scantune.adapt(toy_registration.model, toy_registration.volumes[0], method="instance", options=options)

    def test_active_patches_lie_where_the_atlas_has_come_to(self, toy_registration):
        output = toy_registration.network(toy_registration.volumes[0])
        assert torch.allclose(Registration().foreground(output)[:, 0], output["out"][:, 1:].sum(1), atol=1e-5)

    def test_a_calibrated_prior_knows_the_proportions_of_warped_labels(self, toy_registration):
        toy = toy_registration
        prior = FieldOfExperts.fit(toy.network, toy.volumes, task=toy.task)
        known = prior.calibrated(toy.network, [(toy.volumes[0], None)], task=toy.task).calibration
        labels = toy.task.predict(toy.network(toy.volumes[0]))
        counts = torch.bincount(labels.flatten(), minlength=3)[1:]
        assert torch.allclose(known.shares, counts / counts.sum(), atol=1e-5)


def head(offset=0.0, size=(40, 44, 30), origin=(-20.0, -22.0, -15.0)):
    """An ellipsoid with a core, in its own place in space, anisotropic and with axes that run the other way."""
    affine = np.diag([-1.0, 1.0, 2.0, 1.0])
    affine[:3, 3] = origin
    places = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij")).astype(float)
    centre = np.array([s / 2 - 0.5 + offset for s in size]).reshape(3, 1, 1, 1)
    radius = np.sqrt((((places - centre) / (np.array(size).reshape(3, 1, 1, 1) / 2.6)) ** 2).sum(0))
    labels = (radius < 1).astype(np.uint8) + (radius < 0.6)
    rng = np.random.default_rng(0)
    image = np.where(labels > 0, 100.0 * labels + 5 * rng.standard_normal(size), 0).astype(np.float32)
    return Case("head", image, affine, labels)


PREPROCESSING = Preprocessing(size=(48, 40), spacing=1.0, content="nonzero", slab=(16.0, 22.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    """An atlas that is a file, and a network that has learnt nothing."""
    folder = tmp_path_factory.mktemp("atlas")
    atlas = head(origin=(50.0, 10.0, -70.0))
    write_image(folder / "T1.nii.gz", atlas.image, atlas)
    write_labels(folder / "labels.nii.gz", atlas.reference, atlas)
    task = RegistrationSettings(atlas=str(folder / "T1.nii.gz"), atlas_labels=str(folder / "labels.nii.gz"))
    torch.manual_seed(0)
    model = new_registration(
        task, RegistrationNetworkSettings(3, width=2, shrink=2), {"rim": 1, "core": 2}, PREPROCESSING
    )
    model.network.eval()
    return model


class Waves(torch.nn.Module):
    """Stands for a U-Net: velocities of a few pixels, the same for any image."""

    def forward(self, images):
        rows, columns = (torch.arange(size) / 4 for size in images.shape[2:])
        along = torch.stack([rows.sin()[:, None].expand(*images.shape[2:]), columns.cos().expand(*images.shape[2:])])
        return 1.5 * along.expand(len(images), *along.shape)


class TestOutputs:
    def test_simpleitk_applies_the_written_deformation_to_the_atlas_and_gets_the_segmentation(self, model, tmp_path):
        case = head(offset=1.5)
        model = replace(model, network=deepcopy(model.network))
        model.network.task.unet = Waves()
        write_image(tmp_path / "scan.nii.gz", case.image, case)
        result = scantune.adapt(model, tmp_path / "scan.nii.gz", method="source")
        entry = result.save(tmp_path / "out")
        assert entry["outputs"] == {k: f"scan_{end}" for k, end in OUTPUT_ENDINGS.items() if k != "dicom"}
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            *entry["outputs"].values(),
            *("manifest.json", VOLUMES, STATISTICS, SLICER, ITK_SNAP),
        }
        field = SimpleITK.ReadImage(str(tmp_path / "out" / "scan_deformation.nii.gz"))
        assert field.GetNumberOfComponentsPerPixel() == 3
        assert field.GetMetaData("intent_code") == "1007"
        transform = SimpleITK.DisplacementFieldTransform(SimpleITK.Cast(field, SimpleITK.sitkVectorFloat64))
        scan = SimpleITK.ReadImage(str(tmp_path / "scan.nii.gz"))
        atlas_file = tmp_path / "atlas.nii.gz"
        atlas = head(origin=(50.0, 10.0, -70.0))
        write_labels(atlas_file, atlas.reference, atlas)
        labels = SimpleITK.ReadImage(str(atlas_file))
        # Fractions of labels, each linearly: the way of the network.
        fractions = [
            SimpleITK.Resample(
                SimpleITK.Cast(labels == value, SimpleITK.sitkFloat32),
                scan,
                transform,
                SimpleITK.sitkLinear,
                float(value == 0),
            )
            for value in range(3)
        ]
        found = np.stack([SimpleITK.GetArrayFromImage(part) for part in fractions]).argmax(0)
        written = read_labels(tmp_path / "out" / "scan_seg.nii.gz").labels.transpose(2, 1, 0)
        slab = result.prepared.slab
        seen = slice(slab.first, slab.first + slab.count)
        assert (written[seen] > 0).mean() > 0.05
        assert (found[seen] == written[seen]).mean() > 0.995
        assert not written[: slab.first].any()
        moved = float(result.adapted.maps["displacement"].abs().max())
        assert moved > 1  # there is something to apply
        unmoved = SimpleITK.GetArrayFromImage(
            SimpleITK.Resample(labels, scan, SimpleITK.Transform(), SimpleITK.sitkNearestNeighbor)
        )
        assert (unmoved[seen] == written[seen]).mean() < 0.99

    def test_the_manifest_tells_folding_and_roughness_before_and_after(self, model, tmp_path):
        case = head()
        write_image(tmp_path / "scan.nii.gz", case.image, case)
        scantune.adapt(model, tmp_path / "scan.nii.gz", method="source").save(tmp_path)
        entry = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["scans"]["scan"]
        assert 0 <= entry["quality"]["folding"] <= 1
        assert entry["quality"]["roughness"] == entry["source_quality"]["roughness"]
        assert entry["seconds"] > 0

    def test_the_command_takes_the_method_of_the_task_and_the_manifest_tells_its_name(self, model, tmp_path, capsys):
        case, out, asked = head(offset=1.0), tmp_path / "out", ["--no-page", "--steps", "3"]
        write_image(tmp_path / "scan.nii.gz", case.image, case)
        model.save(tmp_path / "m.safetensors")
        given = ["adapt", str(tmp_path / "scan.nii.gz"), "--model", str(tmp_path / "m.safetensors"), "--out", str(out)]
        assert main([*given, *asked, "--options", "smoothness=0.2"]) == 0
        manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        entry = manifest["scans"]["scan"]
        assert manifest["settings"]["method"] == entry["settings"]["method"] == entry["method"] == "instance"
        assert (entry["options"]["smoothness"], entry["decision"]) == (0.2, "adapted")
        assert entry["guard"]["likeness_after"] > entry["guard"]["likeness_before"]
        capsys.readouterr()
        assert main([*given, *asked, "--options", "smoothness=0.2", "--method", "instance"]) == 0
        assert "earlier run" in capsys.readouterr().out

    def test_a_model_file_brings_its_atlas_along(self, model, tmp_path):
        model.save(tmp_path / "m.safetensors")
        again = scantune.load(tmp_path / "m.safetensors")
        assert again.task == model.task
        assert again.record == model.record
        case = head()
        assert np.array_equal(
            scantune.adapt(again, case, method="source").prediction,
            scantune.adapt(model, case, method="source").prediction,
        )
        assert torch.equal(again.network.task.atlas.labels, model.network.task.atlas.labels)
        assert isinstance(again.network.task, RegistrationNetwork)


class TestBundled:
    def test_the_bundled_model_is_small_and_brings_atlas_prior_and_calibration(self):
        model = scantune.load("brain-register")
        assert (resources.files("scantune.model") / "bundled" / "brain-register.safetensors").stat().st_size < 3e6
        assert model.labels == COHORTS["registration"].labels
        assert model.task.atlas == "icbm152"
        assert model.prior.calibration is not None
        assert model.prior.families.keys() == {"cnn", "pca"}
        # The middle of the slab lies 14 mm above the origin of MNI space, as that of the simulated scans does.
        assert np.allclose(np.array(model.task.world)[2], [1, 0, 0, 14])

    def test_it_registers_a_simulated_scan_better_than_no_registration(self):
        model, cohort = scantune.load("brain-register"), COHORTS["registration"]
        case = next(cohort.cases(cohort.source, "validation", count=1))
        case = replace(case, image=case.image[:, :, 2::12], reference=case.reference[:, :, 2::12], header=None)
        case = replace(case, affine=case.affine @ np.diag([1.0, 1.0, 12.0, 1.0]))
        prepared = model.backend.prepare(case)
        plain = model.network.task.atlas(prepared.volume[:, 1, 0, 0], prepared.volume.shape[2:])[1]
        found = scantune.adapt(model, case, method="source").prediction
        scores = [
            np.mean([metrics.dice(labels, case.reference, value) for value in (1, 2)])
            for labels in (found, prepared.to_native(plain))
        ]
        assert scores[0] > scores[1] + 0.1


class TestSlab:
    def test_a_tall_scan_is_cut_below_its_top_and_a_thin_one_about_its_middle(self):
        tall = PREPROCESSING.prepare(head())
        top = np.flatnonzero((head().image != 0).any((0, 1)))[-1] + 0.5
        heights = tall.volume[:, 1, 0, 0]
        numbers = tall.slab.first + np.arange(len(heights))
        assert np.allclose(heights, 2.0 * (numbers - (top - 11)))
        assert len(heights) == 8
        assert heights.abs().max() <= 8
        thin = head()
        thin = Case("thin", thin.image[:, :, 10:20], thin.affine, thin.reference[:, :, 10:20])
        assert PREPROCESSING.prepare(thin).volume[:, 1, 0, 0].tolist() == [-7, -5, -3, -1, 1, 3, 5, 7]

    def test_labels_beyond_the_slab_are_background(self):
        prepared = PREPROCESSING.prepare(head())
        ones = torch.zeros(len(prepared.volume), 2, 48, 40)
        ones[:, 1] = 1
        native = prepared.to_native(ones)
        filled = np.flatnonzero(native.any((0, 1)))
        assert native.shape == head().shape
        assert filled.tolist() == list(range(prepared.slab.first, prepared.slab.first + prepared.slab.count))

    def test_a_scan_of_which_a_slab_alone_is_labelled_has_a_remark(self):
        prepared, slices = PREPROCESSING.prepare(head()), head().shape[2]
        (remark,) = PREPROCESSING.remarks(prepared)
        assert remark.startswith(
            f"Only {prepared.slab.count} of {slices} slices are labelled, 16 mm of {2 * slices} mm"
        )
        everything = replace(PREPROCESSING, slab=(4.0 * slices, 1.0))
        assert everything.remarks(everything.prepare(head())) == []

    def test_pictures_know_their_place_in_space(self):
        """A reference seen at the places that the pictures claim is the prepared reference."""
        case = head()
        prepared = PREPROCESSING.prepare(case)
        matrix = np.linalg.inv(case.affine) @ prepared.to_world(case)
        for slice_, row, column in ((0, 24, 20), (3, 20, 12), (7, 30, 25)):
            x, y, z = np.round(matrix @ [slice_, row, column, 1]).astype(int)[:3]
            assert case.reference[x, y, z] == prepared.reference[slice_, row, column]

    def test_a_recipe_without_a_slab_or_with_a_bare_atlas_file_is_refused(self):
        with pytest.raises(InputError, match="needs slab"):
            new_registration(
                RegistrationSettings(), RegistrationNetworkSettings(3), {"GM": 1}, replace(PREPROCESSING, slab=None)
            )
        with pytest.raises(InputError, match="atlas_labels"):
            RegistrationSettings(atlas="mine.nii.gz")
        with pytest.raises(InputError, match="smoothness"):
            RegistrationSettings(smoothness=-1.0)
        with pytest.raises(InputError, match="2 to 256 classes"):
            RegistrationNetworkSettings(1)

    def test_the_table_of_a_task_is_read_and_unknown_ones_are_refused(self):
        assert read_task({}, "[task]") is None
        assert read_task({"name": "segmentation"}, "[task]") is None
        assert read_task({"name": "registration", "smoothness": 1}, "[task]") == RegistrationSettings(smoothness=1)
        with pytest.raises(InputError, match="Unknown task 'tracking'. Available: segmentation, registration"):
            read_task({"name": "tracking"}, "[task]")
        with pytest.raises(InputError, match="Unknown setting 'smoothness'"):
            read_task({"smoothness": 1.0}, "[task]")
