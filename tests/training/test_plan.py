"""From a recipe to an adapted scan: plans, training and fitting at toy size, in Python and by the command line."""

import json
import re
import sys
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import scantune
from scantune.backends.slices import Preprocessing
from scantune.cli import training_display as trainingdisplay
from scantune.cli.main import main
from scantune.config.recipe import Recipe, read_recipe
from scantune.config.settings import FINE_TUNING, PriorSettings, TrainSettings
from scantune.errors import InputError
from scantune.model.model import Model
from scantune.simulate import label_maps
from scantune.training.fit import fit_model, fit_prior
from scantune.training.plan import PRECISIONS, NetworkSettings, TrainingPlan
from scantune.training.segmentation import validation_dice
from scantune.training.sources import FileSource
from scantune.training.train import train_model
from tests.toy_cohort import toy_map

TRAIN = TrainSettings(iterations=6, batch=2, validate_every=3, checkpoint_every=2, augment="none", device="cpu")
RECIPE = """
[data]
images = "{folder}/*_T1w.nii.gz"
labels = "{folder}/*_seg.nii.gz"
structures = {{ rim = 1, core = 2 }}
validation = 0.34
[preprocessing]
size = [32, 32]
[network]
width = 2
[train]
iterations = 6
batch = 2
validate_every = 3
checkpoint_every = 2
augment = "none"
device = "cpu"
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe file, with the scans it names: discs with a core in noise."""
    folder = tmp_path_factory.mktemp("scans")
    x, y, _ = np.meshgrid(*[np.arange(n) - (n - 1) / 2 for n in (30, 32, 3)], indexing="ij")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        radius = np.hypot(x - rng.uniform(-3, 3), y - rng.uniform(-3, 3))
        labels = np.select([radius < 4, radius < 9], [2, 1], 0).astype(np.uint8)
        image = (0.4 * labels + rng.normal(0, 0.05, labels.shape)).astype(np.float32)
        for what, volume in (("T1w", image), ("seg", labels)):
            nibabel.save(nibabel.Nifti1Image(volume, np.diag([1.0, 1.0, 4.0, 1.0])), folder / f"s{seed}_{what}.nii.gz")
    path = folder / "toy.toml"
    path.write_text(RECIPE.format(folder=folder))
    return path


@pytest.fixture(scope="module")
def plan(recipe):
    return TrainingPlan.read(read_recipe(recipe))


@pytest.fixture(scope="module")
def half(plan):
    """A model trained, rounded to half precision, and fitted."""
    trained = train_model(plan, precision="float16")
    return trained, fit_model(trained, plan, device="cpu", command="scantune fit")


def scantune_command(monkeypatch, *words):
    """Runs a command as if it had been typed."""
    typed = ["scantune", *map(str, words)]
    monkeypatch.setattr(sys, "argv", typed)
    return main(), " ".join(typed)


def weights(path):
    return {name: tensor for name, tensor in load_file(path).items() if name.startswith("network.")}


def make(network=None, preprocessing=None, **data):
    files = {"images": "*.nii", "labels": "*_seg.nii", "structures": {"GM": 2, "WM": 3}} | data
    return Recipe("toy", TRAIN, files, preprocessing or {}, network or {})


def test_a_plan_holds_the_recipes_tables_and_what_follows_from_them(plan, recipe):
    assert plan.network == NetworkSettings(classes=3, width=2)
    assert plan.preprocessing == Preprocessing(size=(32, 32))
    assert plan.recipe.train == TRAIN
    assert plan.source == FileSource(
        f"{recipe.parent}/*_T1w.nii.gz", f"{recipe.parent}/*_seg.nii.gz", {"rim": 1, "core": 2}, 0.34
    )
    assert [[example.name for example in plan.examples(split)] for split in ("train", "validation")] == [
        *(["s0_T1w", "s1_T1w", "s3_T1w"], ["s2_T1w"])
    ]


def test_the_callers_data_replaces_the_recipes():
    assert TrainingPlan.read(make(), {"validation": 0.5, "images": "x*.nii"}).source == FileSource(
        "x*.nii", "*_seg.nii", {"GM": 2, "WM": 3}, 0.5
    )


def test_the_bundled_recipe_makes_a_plan():
    plan = TrainingPlan.read(read_recipe("brain"))
    assert plan.network == NetworkSettings(classes=4, width=16)
    assert plan.preprocessing.size == (208, 176)


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (make(network={"depth": 3}), r"'depth' in \[network\] of the recipe toy; known: classes, width"),
        (make(network={"width": "wide"}), r"width in \[network\] .* must be a whole number, got 'wide'"),
        (make(network={"width": 0}), "2 to 256 classes and a width of 1 to 1024, got 4 and 0"),
        (make(network={"classes": 3}), "must have 4 classes or more, for labels up to 3, .* says 3; leave classes"),
        (make(preprocessing={"plan": "axial"}), r"'plan' in \[preprocessing\] of the recipe toy; known: plane, size"),
        (make(preprocessing={"plane": "oblique"}), "must be one of 'axial', .* got 'oblique'"),
        (make(preprocessing={"size": 64}), r"size .* must be a list \[a whole number, a whole number\], got 64"),
        (make(preprocessing={"size": [64]}), r"got \[64\]"),
        (make(preprocessing={"size": [64, "x"]}), r"got \[64, 'x'\]"),
        (make(preprocessing={"size": [64, 0]}), "size must be two of 1 to 8192 pixels"),
        (make(preprocessing={"spacing": "fine"}), "spacing .* must be a number or absent, got 'fine'"),
        (make(validation=2.0), "at most 0.5, got 2.0"),
        (make(atlas="a.npz"), r"'atlas' in \[data\] of the recipe toy"),
        (Recipe("toy"), r"\[data\] of the recipe toy must say where the scans are"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_told_before_any_work(recipe, told):
    with pytest.raises(InputError, match=told):
        TrainingPlan.read(recipe)


def test_training_records_how_the_model_came_to_be_and_no_folder(half, plan, recipe):
    model, _ = half
    assert model.labels == {"rim": 1, "core": 2}
    assert model.architecture == {"kind": "unet", "classes": 3, "width": 2}
    record = model.provenance
    assert (record["recipe"], record["precision"], record["device"]) == ("toy", "float16", "cpu")
    assert record["train"]["iterations"] == 6
    assert record["best_iteration"] in (3, 6)
    assert 0 <= record["validation_dice"] <= 1
    assert str(recipe.parent) not in json.dumps(model.record)


def test_training_is_repeatable_and_leaves_the_callers_random_numbers_alone(half, plan):
    torch.rand(99)
    before = torch.get_rng_state()
    again = train_model(plan, precision="float16")
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(half[0].network.state_dict().values(), again.network.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_the_prior_is_fitted_on_the_weights_as_they_are_stored(half, plan, tmp_path):
    trained, fitted = half
    for name, tensor in fitted.network.state_dict().items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, tensor.half().float()), name
    fitted.save(tmp_path / "half.safetensors", PRECISIONS["float16"])
    loaded = scantune.load(tmp_path / "half.safetensors")
    for example in plan.examples("train"):
        energy = loaded.prior.energy(loaded.network, example.volume)
        assert energy == fitted.prior.energy(fitted.network, example.volume)
    assert loaded.fingerprint == fitted.fingerprint
    assert trained.prior is None


def test_fitting_adds_to_a_copy_of_the_record(half):
    trained, fitted = half
    assert "fit command" not in trained.provenance
    assert fitted.provenance["fit command"] == "scantune fit"
    assert fitted.provenance["fit data"]["images"] == "*_T1w.nii.gz"
    assert fitted.provenance["train"] == trained.provenance["train"]
    assert fitted.prior.subjects == 3


def test_the_prior_is_calibrated_on_the_validation_cases(half, plan, tmp_path):
    _, fitted = half
    ((_, new),) = plan.source.prepared("validation", plan.preprocessing, torch.device("cpu"))
    assert new.padding.any()
    fitted.save(tmp_path / "half.safetensors", PRECISIONS["float16"])
    known = scantune.load(tmp_path / "half.safetensors").prior.calibration
    energy = fitted.prior.energy(fitted.network, new.volume, new.padding)
    assert known.levels.middle == pytest.approx(energy, rel=1e-5)  # of one person, all that is known
    shares = []
    for example in [new, *plan.examples("train")]:
        with torch.no_grad():
            found = fitted.network(example.volume).argmax(1).numpy()
        shares.append([(found == value).sum() / max((found > 0).sum(), 1) for value in (1, 2)])
    np.testing.assert_allclose(known.shares, np.mean(shares, axis=0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(known.spread, np.maximum(np.std(shares, axis=0), 1e-3), rtol=1e-5)


def test_the_progress_of_a_fit_counts_the_slices_that_pass_the_network(half, plan):
    reports = []
    fit_model(half[0], plan, device="cpu", on_progress=lambda *report: reports.append(report))
    training, held_out = (plan.examples(split) for split in ("train", "validation"))
    slices = 3 * sum(len(case.volume) for case in training) + 5 * sum(len(case.volume) for case in held_out)
    assert reports[0] == (0, slices)
    assert reports[-2][0] < slices
    assert reports[-1] == (slices, slices)


def test_a_fit_notes_what_stripped_scans_show(half, plan):
    backend, cases = half[0].backend, {}
    for split in ("train", "validation"):
        found = [case for _, case in plan.source.prepared(split, plan.preprocessing, torch.device("cpu"))]
        for case in found:
            case.volume[..., :16] = case.volume[..., -16:] = 0  # as around a brain
        cases[split] = found
    known = fit_prior(half[0], cases["train"], cases["validation"], device="cpu").calibration.coverage.shown
    pixels = [int((case.volume[:, 0] != 0).sum()) for case in (*cases["train"], *cases["validation"])]
    assert known.people == len(pixels)
    assert known.ml[1] >= max(pixels) * backend.voxel_ml(cases["train"][0])
    full = fit_prior(half[0], *plan.cases(backend, "cpu"), device="cpu")
    assert full.calibration.coverage.shown is None


def test_without_held_out_cases_a_prior_is_not_calibrated(half, plan):
    cases = (case for _, case in plan.source.prepared("train", plan.preprocessing, torch.device("cpu")))
    assert fit_prior(half[0], cases, device="cpu").calibration is None


def test_a_summarised_prior_is_smaller_and_has_the_same_energy(half, plan):
    trained, fitted = half
    summary = fit_model(trained, plan, settings=PriorSettings(summarise=True), device="cpu")
    scan = plan.examples("validation")[0].volume
    whole, few = (model.prior.energy(model.network, scan) for model in (fitted, summary))
    assert few == pytest.approx(whole, rel=1e-4)
    assert not any(3 in tensor.shape for name, tensor in summary.prior.tensors().items() if name.startswith("cnn/"))


def test_from_recipe_to_adapted_scan(tmp_path, monkeypatch, capsys):
    """A simulated cohort, as for the bundled model, through train, fit, info and adapt."""
    label_maps([toy_map()]).save(tmp_path / "atlas.npz")
    data = '[data]\ncohort = "brain"\ntrain = 2\nvalidation = 1\nslices = 2\n[preprocessing]\nspacing = 4.0'
    rest = RECIPE.split("[preprocessing]")[1].replace("[32, 32]", "[56, 48]")
    (tmp_path / "sim.toml").write_text(data + rest)
    recipe, model = tmp_path / "sim.toml", tmp_path / "new" / "sim.safetensors"
    atlas = ("--atlas", tmp_path / "atlas.npz")
    code, typed = scantune_command(monkeypatch, "train", recipe, "--out", model, "--precision", "float16", *atlas)
    assert code == 0
    shown = capsys.readouterr()
    assert f"{model}: validation Dice 0." in shown.out
    assert f"Next: scantune fit {model} --data {recipe}" in shown.out
    assert "Traceback" not in shown.err
    assert [path.name for path in model.parent.iterdir()] == ["sim.safetensors"]
    trained = scantune.load(model)
    assert trained.provenance["command"] == typed
    assert trained.provenance["data"]["atlas"] == "atlas.npz"
    before = weights(model)
    assert before["network.task.classify.weight"].dtype == torch.float16

    code, typed = scantune_command(monkeypatch, "fit", model, "--data", recipe, "--device", "cpu", *atlas)
    assert code == 0
    shown = capsys.readouterr()
    assert "Fitting the prior: about" in shown.err
    shown = " ".join(shown.out.split())
    assert "2 subjects" in shown
    assert "home readings of 1 scans, shipped coefficients" in shown
    assert f"typical up to {scantune.load(model).prior.calibration.typical:.4g} nats" in shown
    after = weights(model)
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert scantune.load(model).provenance["fit command"] == typed
    assert main(["info", str(model)]) == 0
    assert "CSF = 1, GM = 2, WM = 3" in capsys.readouterr().out

    source = TrainingPlan.read(read_recipe(recipe), {"atlas": str(atlas[1])}).source
    case = next(source.cases("validation", torch.device("cpu")))
    nibabel.save(nibabel.Nifti1Image(case.image, case.affine), tmp_path / "scan.nii.gz")
    words = ("adapt", tmp_path / "scan.nii.gz", "--model", model, "--out", tmp_path / "out", "--device", "cpu")
    assert scantune_command(monkeypatch, *words, "--steps", 2)[0] == 0
    assert nibabel.load(tmp_path / "out" / "scan_seg.nii.gz").shape == case.image.shape
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["model"]["fingerprint"] == scantune.load(model).fingerprint
    assert manifest["scans"]["scan"]["energy_before"] > 0


def test_fitting_a_helper_keeps_the_prior_and_fitting_the_prior_keeps_the_helper(
    half, recipe, tmp_path, monkeypatch, capsys
):
    model = tmp_path / "m.safetensors"
    half[1].save(model, PRECISIONS["float16"])
    before = load_file(model)
    words = ("fit", model, "--data", recipe, "--device", "cpu", "--method", "dae", "--iterations", "2")
    code, typed = scantune_command(monkeypatch, *words, "--set", "width=2", "shrink=2", "corruptions=1")
    assert code == 0
    assert "helpers" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    after = load_file(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert after["helpers.dae.classify.weight"].dtype == torch.float16
    record = scantune.load(model).provenance["dae"]
    assert (record["command"], record["iterations"], record["width"]) == (typed, 2, 2)
    assert record["data"]["images"] == "*_T1w.nii.gz"
    # The slices of these scans are 4 mm apart, three of them.
    helper = scantune.load(model).helpers["dae"]
    assert helper.record() == {"classes": 3, "depth": 3, "spacing": 4.0, "shrink": 2, "width": 2}

    assert scantune_command(monkeypatch, "fit", model, "--data", recipe, "--device", "cpu")[0] == 0
    again = load_file(model)
    assert all(torch.equal(after[name], again[name]) for name in after if name.startswith("helpers."))
    assert scantune.load(model).provenance["dae"] == record

    scan = recipe.parent / "s2_T1w.nii.gz"
    flags = ("--model", model, "--out", tmp_path / "out", "--device", "cpu", "--no-guard")
    assert scantune_command(monkeypatch, "adapt", scan, *flags, "--method", "dae", "--steps", 2)[0] == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings"]["method"] == "dae"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--iterations", "5"], "iterations belongs to --method dae"),
        (["--set", "seed=1"], "Unknown setting 'seed' in the settings of the prior"),
        (["--method", "dae", "--summarise"], "--summarise is about the prior"),
        (["--method", "ae", "--density", "kde"], "--density is about the prior"),
        (["--density", "kde", "--summarise"], "kde densities keeps one density per subject and cannot be summarised"),
        (
            ["--method", "dae", "--set", "shrink"],
            "--set takes NAME=VALUE, such as learning_rate=1e-3, but got 'shrink'",
        ),
        (["--method", "dae", "--set", "speed=3"], "Unknown setting 'speed' in the settings of dae"),
        (["--method", "dae", "--set", "precision=half"], "must be one of 'float32', 'bfloat16', got 'half'"),
    ],
)
def test_settings_that_do_not_belong_to_the_method_are_refused(
    half, words, told, recipe, tmp_path, monkeypatch, capsys
):
    model = tmp_path / "m.safetensors"
    half[0].save(model)
    before = model.read_bytes()
    assert scantune_command(monkeypatch, "fit", model, "--data", recipe, *words)[0] == 2
    assert told in capsys.readouterr().err
    assert model.read_bytes() == before


@pytest.mark.parametrize("density", ["gaussian", "kde", "histogram"])
def test_the_form_of_the_densities_is_a_choice(half, density, recipe, tmp_path, monkeypatch, capsys):
    model = tmp_path / "m.safetensors"
    half[0].save(model)
    assert (
        scantune_command(monkeypatch, "fit", model, "--data", recipe, "--device", "cpu", "--density", density)[0] == 0
    )
    fields = scantune.load(model).prior.families["cnn"].layers
    assert {field.density.name for field in fields.values()} == {density}


@pytest.fixture(scope="module")
def site(recipe, tmp_path_factory):
    """The recipe of another site: bright where the first is dark. Only what must differ is in it."""
    folder = tmp_path_factory.mktemp("site")
    for path in recipe.parent.glob("*.nii.gz"):
        image = nibabel.load(path)
        values = np.asarray(image.dataobj)
        turned = values if "seg" in path.name else values.max() - values
        nibabel.save(nibabel.Nifti1Image(turned, image.affine), folder / path.name)
    data = RECIPE.format(folder=folder).split("[preprocessing]")[0]
    (folder / "site.toml").write_text(data + "[train]\niterations = 3\nlearning_rate = 0.5\n")
    return folder / "site.toml"


def test_fine_tuning_beats_the_source_at_another_site(toy, site):
    """The toy network knows bright discs, and is shown the negative of some."""
    shape = {"kind": "unet", "classes": 3, "width": 8}
    model = Model(toy.network, {"rim": 1, "core": 2}, Preprocessing(size=(32, 32)), shape, prior=toy.prior)
    plan = TrainingPlan.read(read_recipe(site))
    settings = replace(TRAIN, iterations=40, validate_every=20, learning_rate=5e-3)
    tuned = train_model(replace(plan, recipe=replace(plan.recipe, train=settings)), start=model)
    examples = replace(plan, preprocessing=model.backend).examples("validation")
    before, after = (validation_dice(each.network, examples, 3) for each in (model, tuned))
    assert after > before + 0.2
    assert after == pytest.approx(tuned.provenance["validation_dice"], abs=1e-3)
    assert tuned.provenance["start"] == {"name": model.name, "fingerprint": model.fingerprint}
    assert tuned.labels == model.labels
    assert tuned.prior is None


def test_fine_tuning_starts_at_the_models_weights_with_the_papers_settings(half, site, tmp_path, monkeypatch, capsys):
    start, out = tmp_path / "start.safetensors", tmp_path / "tuned.safetensors"
    half[1].save(start)
    words = ("train", site, "--start", start, "--out", out, "--device", "cpu")
    rate = 1e-9  # so that nothing but the norms' statistics moves
    code, typed = scantune_command(monkeypatch, *words, "--iterations", 2, "--learning-rate", rate)
    assert code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Left out, as it no longer fits the weights: prior." in shown
    model = scantune.load(out)
    assert model.prior is None
    assert model.provenance["command"] == typed
    assert model.provenance["start"] == {"name": "start", "fingerprint": scantune.load(start).fingerprint}
    used = TrainSettings(**model.provenance["train"])
    assert used == replace(FINE_TUNING, iterations=2, learning_rate=rate, device="cpu")
    assert (FINE_TUNING.iterations, FINE_TUNING.learning_rate, FINE_TUNING.batch) == (5000, 1e-4, 16)
    assert FINE_TUNING.augment == "strong"
    assert model.backend == half[1].backend
    before, after = weights(start), weights(out)
    for name, tensor in before.items():
        if "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=0)


def test_fine_tuning_resumes_only_from_the_same_start(half, plan, tmp_path):
    model, other = half[0], replace(half[0], provenance={})
    assert model.fingerprint != other.fingerprint
    for start, told in ((model, None), (model, None), (other, "of a run with start = "), (None, "run with start = ")):
        if told is None:
            train_model(plan, start=start, checkpoint=tmp_path / "run")
        else:
            with pytest.raises(InputError, match=told):
                train_model(plan, start=start, checkpoint=tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"structures = { rim = 1, core = 2 }": "structures = { rim = 1, hole = 2 }"},
            "'core': 2}, but the recipe .* 'hole'",
        ),
        (
            {"[train]": "[network]\nwidth = 4\n[train]"},
            "has width 2, but .network. of the recipe bad says 4; leave it out",
        ),
        (
            {"[train]": "[preprocessing]\nsize = [48, 48]\n[train]"},
            ".preprocessing. of the recipe bad differs; leave that table out",
        ),
    ],
)
def test_a_start_that_does_not_suit_the_recipe_is_told(half, site, change, told, tmp_path, monkeypatch, capsys):
    start = tmp_path / "start.safetensors"
    half[0].save(start)
    text = site.read_text(encoding="utf-8")
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "bad.toml").write_text(text)
    out = tmp_path / "tuned.safetensors"
    assert scantune_command(monkeypatch, "train", tmp_path / "bad.toml", "--start", start, "--out", out)[0] == 2
    assert re.search(told, capsys.readouterr().err)
    assert not out.exists()


def test_an_interrupted_training_goes_on_from_its_run_file_and_removes_it(recipe, tmp_path, monkeypatch, capsys):
    words = ["train", recipe, "--out", tmp_path / "cut.safetensors"]
    update, seen = trainingdisplay.TrainingDisplay.update, []

    def stop_at_four(display, at):
        seen.append(at.iteration)
        update(display, at)
        if at.iteration == 4 and seen.count(4) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainingdisplay.TrainingDisplay, "update", stop_at_four)
    assert scantune_command(monkeypatch, *words)[0] == 130
    assert "What is finished is kept" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [".cut.safetensors.run"]
    assert seen == [2, 3, 4]
    assert scantune_command(monkeypatch, *words)[0] == 0
    assert seen == [2, 3, 4, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["cut.safetensors"]

    assert scantune_command(monkeypatch, "train", recipe, "--out", tmp_path / "whole.safetensors")[0] == 0
    cut, whole = (weights(tmp_path / f"{name}.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(cut[name], whole[name]) for name in whole)


def test_a_flag_beats_the_recipe_and_is_recorded(recipe, tmp_path, monkeypatch):
    model = tmp_path / "m.safetensors"
    flags = ("--iterations", "2", "--seed", "3", "--augment", "strong")
    code, typed = scantune_command(monkeypatch, "train", recipe, "--out", model, *flags)
    assert code == 0
    record = scantune.load(model).provenance
    assert (record["train"]["iterations"], record["train"]["seed"], record["train"]["augment"]) == (2, 3, "strong")
    assert record["train"]["batch"] == 2  # the recipe's
    assert record["command"] == typed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "nothing.toml", "--out", "m"], "no recipe nothing.toml"),
        (["train", "brain", "--out", "m", "--atlas", "lost.npz"], "lost.npz must be an anatomy file"),
        (["train", "brain", "--out", "m", "--iterations", "0"], "iterations must be above 0, got 0"),
        (["train", "brain", "--out", "m", "--device", "cuda:99"], "The device cuda:99 is not available"),
        (["train", "brain", "--out", "m", "--start", "nothing.safetensors"], "no model 'nothing.safetensors'"),
        (["train", "brain", "--out", "m", "--learning-rate", "0"], "learning_rate must be above 0, got 0"),
        (["fit", "nothing.safetensors", "--data", "brain"], "no model 'nothing.safetensors'"),
    ],
)
def test_commands_that_cannot_work_are_told_in_one_line(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert scantune_command(monkeypatch, *words)[0] == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]
    assert not list(tmp_path.iterdir())


def test_the_prior_and_the_helpers_are_those_of_the_recipe_unless_told_otherwise(half, recipe, tmp_path, monkeypatch):
    prior, helper = "size = 4\nstride = 3\ncomponents = 2", "iterations = 2\nwidth = 2\nvalidate_every = 1"
    tables = f"\n[prior]\n{prior}\n[helpers.dae]\n{helper}\n"
    other = tmp_path / "other.toml"
    other.write_text(recipe.read_text(encoding="utf-8") + tables)
    model = tmp_path / "m.safetensors"
    half[0].save(model)
    assert scantune_command(monkeypatch, "fit", model, "--data", other, "--device", "cpu", "--set", "stride=2")[0] == 0
    record = scantune.load(model).provenance["fit settings"]
    assert (record["size"], record["stride"], record["components"]) == (4, 2, 2)
    words = ("--method", "dae", "--set", "corruptions=1")
    assert scantune_command(monkeypatch, "fit", model, "--data", other, "--device", "cpu", *words)[0] == 0
    record = scantune.load(model).provenance["dae"]
    assert (record["iterations"], record["width"], record["corruptions"]) == (2, 2, 1)
