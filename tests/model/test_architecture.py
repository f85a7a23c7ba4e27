"""Architectures: what a model file may ask for, what the user must name, and what installed packages offer."""

import pickle
import sys

import pytest
import torch
from torch import nn

import scantune
from scantune import FieldOfExperts, InputError, Model
from scantune.adaptation.batch import choose_workers
from scantune.adaptation.output_folder import OutputFolder
from scantune.adaptation.scan_run import ScanObserver, ScanRun
from scantune.adaptation.settings import AdaptSettings
from scantune.backends.slices import Preprocessing
from scantune.benchmark.expand import expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import GivenModel
from scantune.cli.main import main
from scantune.model.architecture import Architecture, architecture_from_words
from scantune.model.source import ModelSource
from tests.cli.test_cli import error_line, picture, write
from tests.toy_experiment import write_experiment

MODULE = """
from pathlib import Path
from torch import nn

Path("imported").touch()


def build(width=2, classes=3):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, classes, 1),
    )


def numbers(width=2, classes=3):
    return build(int(nn.Conv2d(1, width, 1).weight.sum() * 0) + width, classes)


def broken():
    raise RuntimeError("no such weights")


def other():
    return "a network"


CONSTANT = 3
"""


def network(width=4):
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
        nn.Conv2d(width, 3, 1),
    ).eval()


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with a module of the user's, a model file of its network, and a scan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_networks.py").write_text(MODULE)
    torch.manual_seed(0)
    made = network()
    prior = FieldOfExperts.fit(made, [torch.rand(2, 1, 32, 32) for _ in range(3)])
    for name, architecture in (
        ("mine", {"kind": "my_networks:build", "width": 4}),
        ("bare", {"kind": "custom"}),
        ("offered", {"kind": "my-net", "width": 4}),
    ):
        model = Model(made, {"rim": 1, "core": 2}, Preprocessing(size=(32, 32)), architecture, prior=prior)
        model.save(tmp_path / f"{name}.safetensors")
    write(tmp_path / "a.nii.gz", picture())
    write(tmp_path / "b.nii.gz", picture(1))
    yield tmp_path
    sys.modules.pop("my_networks", None)


def install(folder, *lines):
    """Write what an installed package says about its entry points."""
    info = folder / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[scantune.networks]\n" + "\n".join(lines) + "\n")
    sys.path.insert(0, str(folder))


@pytest.mark.parametrize("name", ["mine", "bare", "offered"])
@pytest.mark.parametrize("command", ["adapt", "fit"])
def test_a_file_alone_imports_nothing(name, command, desk, capsys):
    words = {"adapt": ["a.nii.gz", "--model", f"{name}.safetensors", "--out", "out"]}
    assert main([command, *words.get(command, [f"{name}.safetensors", "--data", "brain"])]) == 2
    assert "--network" in error_line(capsys)
    assert not (desk / "imported").exists()


@pytest.mark.parametrize("name", ["mine", "bare", "offered"])
def test_info_describes_a_file_without_its_network(name, desk, capsys):
    assert main(["info", f"{name}.safetensors"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    weights = sum(parameter.numel() for parameter in network().parameters())
    kind = {"mine": "my_networks:build, width 4", "bare": "custom", "offered": "my-net, width 4"}[name]
    assert f"kind {kind}, weights {weights}" in shown
    assert "3 subjects, 8 CNN experts" in shown
    assert not (desk / "imported").exists()
    assert main(["info", "mine.safetensors", "--network", "my_networks:build"]) == 0
    assert (desk / "imported").exists()


def test_info_gives_the_same_fingerprint_with_and_without_the_network(desk, capsys):
    assert main(["info", "mine.safetensors"]) == main(["info", "mine.safetensors", "--network", "my_networks:build"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("mine", "my_networks:build"),
        ("mine", {"kind": "my_networks:build"}),
        ("mine", "my_networks:numbers"),
        ("bare", {"kind": "my_networks:build", "width": 4}),
        ("bare", network()),
    ],
)
def test_load_takes_what_makes_the_network(name, choice, desk):
    if choice == "my_networks:numbers":  # another function gets no recorded arguments
        choice = {"kind": choice, "width": 4}
    model = scantune.load(f"{name}.safetensors", network=choice)
    torch.manual_seed(0)
    x = torch.rand(1, 1, 32, 32)
    assert torch.equal(model.network(x), scantune.load("bare.safetensors", network=network()).network(x))
    if not isinstance(choice, nn.Module):
        kind = choice if isinstance(choice, str) else choice["kind"]
        assert model.architecture == {"kind": kind, "width": 4}


def test_loading_leaves_random_numbers_alone(desk):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scantune.load("mine.safetensors", network="my_networks:build")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("my_networks:nothing", "cannot be imported .AttributeError"),
        ("no_such_module:build", "cannot be imported .ModuleNotFoundError"),
        ("my_networks:broken", "could not be built from the arguments .* no such weights"),
        ("my_networks:other", "must return a network, a torch.nn.Module, but it returned str"),
        ("my_networks:CONSTANT", "must be a function that returns a network, but it is int"),
        ("no-colon", "neither built in nor offered by an installed package.*unet, register, monai:AttentionUnet"),
        ("my_networks:build", "do not fit the recorded architecture"),
        ("monai:UNet", "does not take these arguments"),
        ("os.path:../../x", "neither built in nor offered"),
    ],
)
def test_a_network_that_cannot_be_made_is_told_in_a_sentence(kind, told, desk):
    with pytest.raises(InputError, match=told):
        scantune.load("bare.safetensors", network=kind)


def test_a_file_of_a_known_network_takes_no_other(tmp_path):
    with pytest.raises(InputError, match=r"recorded as 'unet'.*Leave it out"):
        scantune.load("brain", network="my_networks:build")


def test_arguments_of_the_user_replace_those_of_the_file():
    recorded = {"kind": "a:b", "width": 4, "depth": 2}
    assert Architecture.chosen(recorded, {"kind": "a:b", "width": 8}).record == {**recorded, "width": 8}
    assert Architecture.chosen(recorded, "c:d").record == {"kind": "c:d"}


@pytest.mark.parametrize("value", [float("nan"), 2**70, "x" * 1001, [0] * 1001, [[[[[1]]]]], {"a": {1: 2}}, object()])
def test_arguments_are_plain_values(value):
    with pytest.raises(InputError, match="must hold plain numbers, text, lists and tables"):
        Architecture.read({"kind": "unet", "width": value})


def test_words_of_the_command_line_are_a_record():
    assert architecture_from_words(()) is None
    words = ("a.b:c", "width=8", "norm=batch", "strides=[1, 2]", "deep=true")
    expected = {"kind": "a.b:c", "width": 8, "norm": "batch", "strides": [1, 2], "deep": True}
    assert architecture_from_words(words) == expected
    with pytest.raises(InputError, match="begins with what makes the network"):
        architecture_from_words(("width=8",))


def test_an_installed_package_offers_networks(desk):
    install(desk, "my-net = my_networks:build", "unet = my_networks:broken")
    model = scantune.load("offered.safetensors")
    assert model.architecture == {"kind": "my-net", "width": 4}
    x = torch.rand(1, 1, 32, 32)
    assert torch.equal(model.network(x), scantune.load("bare.safetensors", network=network()).network(x))
    assert scantune.load("brain").architecture["kind"] == "unet"  # which no package can take


def test_an_installed_package_that_is_broken_is_told(desk):
    install(desk, "my-net = my_networks:nothing")
    with pytest.raises(InputError, match=r"offered by my_networks:nothing, which cannot be imported .*AttributeError"):
        scantune.load("offered.safetensors")


def test_two_packages_that_offer_one_name_are_told(desk):
    install(desk, "my-net = my_networks:build")
    (desk / "more").mkdir()
    install(desk / "more", "my-net = my_networks:numbers")
    (desk / "more" / "my_package-1.0.dist-info").rename(desk / "more" / "another-1.0.dist-info")
    (desk / "more" / "another-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: another\n")
    with pytest.raises(InputError, match="Several installed packages offer a network 'my-net'"):
        scantune.load("offered.safetensors")


def test_workers_get_the_network(desk):
    """A run is sent to other processes; that they find modules in the folder, a benchmark below tries out."""
    source = ModelSource("mine.safetensors", {"kind": "my_networks:build"})
    observer = ScanObserver()
    run = ScanRun(source, OutputFolder(desk / "out"), AdaptSettings(device="cpu", steps=1), False, False, observer)
    sent = pickle.loads(pickle.dumps(run))
    assert sent.adapt("a", (desk / "a.nii.gz",)).status == "done"
    assert choose_workers(2, 2, sent) == 2


@pytest.fixture
def experiment(desk):
    """The toy experiment with another table [network]."""

    def make(network=""):
        path = write_experiment(desk)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("[network]\nwidth = 4\n", f"[network]\n{network}\n"), encoding="utf-8")
        return str(path)

    return make


UNET = 'kind = "monai:UNet"\nchannels = [4, 8]\nstrides = [2]\nnorm = "batch"'


def test_a_network_of_monai_is_trained_fitted_and_adapted_without_code(experiment, desk, capsys):
    file = experiment(UNET)
    assert main(["train", file, "--out", "unet.safetensors", "--device", "cpu"]) == 0
    assert main(["fit", "unet.safetensors", "--data", file, "--device", "cpu"]) == 0
    words = ["adapt", "a.nii.gz", "--model", "unet.safetensors", "--out", "out", "--steps", "2", "--device", "cpu"]
    assert main([*words, "--no-page"]) == 0
    usual = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
    given = {"channels": [4, 8], "strides": [2], "norm": "batch"}
    assert scantune.load("unet.safetensors").architecture == {"kind": "monai:UNet", **usual, **given}
    assert "kind monai:UNet" in capsys.readouterr().out


def test_a_network_of_the_users_own_is_trained_and_fitted(experiment, desk, capsys):
    file = experiment('kind = "my_networks:build"\nwidth = 4')
    train = ["train", file, "--out", "own.safetensors", "--device", "cpu"]
    assert main(train) == 2
    assert "--network my_networks:build on the command line" in error_line(capsys)
    assert not (desk / "imported").exists()
    named = ["--network", "my_networks:build"]
    assert main([*train, *named]) == 0
    assert main(["fit", "own.safetensors", "--data", file, "--device", "cpu", *named]) == 0
    assert scantune.load("own.safetensors", named[1]).architecture == {"kind": named[1], "width": 4}


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ('kind = "monai:Nothing"', "Unknown network 'monai:Nothing'"),
        ('kind = "monai:UNet"\nchannels = [4, 8]', "does not take these arguments"),
        ('kind = "nothing"', "neither built in nor offered"),
        ("kind = 3", "neither built in nor offered"),
        ('kind = "register"', "is not made by"),
    ],
)
def test_a_recipe_with_a_network_that_cannot_be_is_told(network, told, experiment, capsys):
    assert main(["train", experiment(network), "--out", "x.safetensors", "--device", "cpu"]) == 2
    assert told in error_line(capsys)


@pytest.mark.slow
def test_a_benchmark_trains_and_adapts_the_users_network_in_a_worker(experiment, desk, capsys):
    words = ["bench", experiment("width = 4"), "--out", "out", "--device", "cpu", "--count", "1", "--centres", "north"]
    named = ["--network", "my_networks:build", "width=4"]
    rows = ["--methods", "strong baseline", "foe-cnn"]
    assert main([*words, *rows, *named]) == 0, capsys.readouterr().err
    assert 'kind = "my_networks:build"' in (desk / "out" / "experiment.toml").read_text(encoding="utf-8")
    assert len((desk / "out" / "rows.csv").read_text(encoding="utf-8").splitlines()) > 3


def test_a_benchmark_takes_model_files_of_the_users_network(experiment, desk):
    file = experiment("width = 4")
    (desk / "toy.toml").write_text(
        (desk / "toy.toml")
        .read_text(encoding="utf-8")
        .replace("[experiment]", '[experiment]\nmodels = { strong = "mine.safetensors" }')
    )
    read = Experiment.read(file, network={"kind": "my_networks:build"})
    job = next(job for job in expand(read).rows if job.row == "strong baseline")
    assert isinstance(job.network, GivenModel)
    assert job.network.settings()["model"] == scantune.load("mine.safetensors", "my_networks:build").fingerprint
    with pytest.raises(InputError, match="--network"):
        expand(Experiment.read(file))
