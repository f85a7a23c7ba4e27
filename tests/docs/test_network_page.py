"""The page about networks: its recipes, commands and Python lines, run one section after the other."""

import shlex
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

import scantune
from scantune import InputError
from scantune.backends import Preprocessing
from scantune.cli.main import main
from scantune.model.architecture import Architecture
from scantune.networks.monai_networks import MONAI_NETWORKS
from scantune.tasks import Segmentation
from tests.conftest import toy_scan
from tests.docs.test_readme import blocks, desk  # noqa: F401
from tests.toy_bundle import toy_volume, write_bundle, write_data, write_volume
from tests.toy_nnunet import write_raw, write_results, write_scan

PAGE = (Path(__file__).parents[2] / "docs" / "network.md").read_text(encoding="utf-8")


def section(title):
    """The text under a heading, up to the next one of its level."""
    level = "#" * (len(PAGE.split(f"# {title}\n")[0].rsplit("\n", 1)[-1]) + 1)
    return PAGE.split(f"{level} {title}\n")[1].split(f"\n{level} ")[0].split(f"\n{level[1:]} ")[0]


def code(language, title):
    return [block.values[0] for block in blocks(language, section(title))]


def run_commands(title):
    """Run every printed command, each with what makes it quick."""
    for line in "".join(code("console", title)).splitlines():
        more = ["--device", "cpu", *(["--no-page"] if line.startswith("scantune adapt") else [])]
        assert main([*shlex.split(line)[1:], *more]) == 0, line


def test_a_network_of_monai(desk, capsys):  # noqa: F811
    (table,) = code("toml", "A network of MONAI")
    recipe = (desk / "my_recipe.toml").read_text(encoding="utf-8")
    assert "[network]" not in recipe
    (desk / "my_recipe.toml").write_text(recipe + "\n" + table, encoding="utf-8")
    run_commands("A network of MONAI")
    assert scantune.load("unet.safetensors").architecture["kind"] == "monai:UNet"
    assert (desk / "out" / "my_T1_seg.nii.gz").exists()


def test_a_monai_bundle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    title = "A MONAI bundle"
    write_bundle(tmp_path / "spleen_ct_segmentation", iterations=20)
    write_data(tmp_path / "Task09_Spleen", count=4)
    write_volume(tmp_path / "scan.nii.gz", toy_volume(7)[0])
    run_commands(title)
    names = {"scantune": scantune}
    (block,) = code("python", title)
    exec(compile(block, "network.md", "exec"), names)
    found = np.asarray(nibabel.load("out/scan_seg.nii.gz").dataobj)
    assert np.array_equal(names["result"].prediction, found)


def test_an_nnunet_folder(tmp_path, monkeypatch):
    pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: pip install 'scantune[nnunet]'")
    monkeypatch.chdir(tmp_path)
    title = "An nnU-Net folder"
    root = write_results(tmp_path / "results", iterations=40)
    root.rename(tmp_path / root.name)
    write_raw(tmp_path / "nnUNet_raw" / "Dataset501_Balls", count=3)
    write_scan(tmp_path, "case", toy_volume(7)[0])
    run_commands(title)
    names = {"scantune": scantune}
    (block,) = code("python", title)
    exec(compile(block, "network.md", "exec"), names)
    found = np.asarray(nibabel.load("out/case_0000_seg.nii.gz").dataobj)
    assert np.array_equal(names["result"].prediction, found)


def test_the_page_names_every_network_of_monai():
    assert [name for name in MONAI_NETWORKS if f"`monai:{name}`" not in section("A network of MONAI")] == []


def test_a_network_of_your_own(desk, monkeypatch, capsys):  # noqa: F811
    title = "A network of your own"
    monkeypatch.setattr(sys, "path", [*sys.path])
    module, save, load = code("python", title)
    (desk / "my_networks.py").write_text(module, encoding="utf-8")
    torch.manual_seed(0)
    names = {
        "scantune": scantune,
        "my_network": Architecture("my_networks:build", {"width": 2}, named=True).build().eval(),
    }
    try:
        exec(compile(save, "network.md", "exec"), names)
        run_commands(title)
        exec(compile(load, "network.md", "exec"), names)
        assert names["model"].prior is not None
        assert main(["info", "mine.safetensors"]) == 0
        words = ["adapt", "my_T1.nii.gz", "--model", "mine.safetensors", "--out", "again", "--no-page"]
        assert main([*words, "--network", "my_networks:build", "width=2"]) == 0
        assert main(words) == 2
    finally:
        sys.modules.pop("my_networks", None)


@pytest.mark.parametrize("entry", code("toml", "A network of an installed package"))
def test_a_network_of_an_installed_package(entry, tmp_path, monkeypatch):
    header, line = entry.strip().splitlines()
    assert header == '[project.entry-points."scantune.networks"]'
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[scantune.networks]\n{line.replace(chr(34), '')}\n")
    (tmp_path / "my_networks.py").write_text(code("python", "A network of your own")[0], encoding="utf-8")
    try:
        assert Architecture("my-unet", {"width": 2}).build()(torch.rand(1, 1, 16, 16)).shape == (1, 3, 16, 16)
    finally:
        sys.modules.pop("my_networks", None)


class TwoHeads(torch.nn.Module):
    """A toy network that gives its scores under a name of its own."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        scores = self.network(x)
        return {"features": scores.exp(), "scores": scores}


def run_blocks(title, names):
    for block in code("python", title):
        exec(compile(block, "network.md", "exec"), names)
    return names


def test_volumes_larger_than_a_network_sees():
    torch.manual_seed(0)
    names = {"scantune": scantune, "network_3d": scantune.AdaptableNetwork.default(2, dimensions=3, width=2).eval()}
    names |= {"volumes": [torch.rand(1, 1, 16, 16, 16) for _ in range(2)], "volume": torch.rand(1, 1, 24, 16, 16)}
    window, backend = code("python", "Volumes larger than a 3D network sees")
    for block in (window, backend):
        exec(compile(block.replace("96, 96, 96", "8, 8, 8"), "network.md", "exec"), names)
    assert names["prior"].window == names["backend"].window == (8, 8, 8)
    assert names["result"].prediction.shape == (1, 24, 16, 16)


def test_scans_of_several_channels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    backend = Preprocessing(size=(24, 24), channels=2, scaling="z-score")
    network = scantune.AdaptableNetwork.default(2, 2, width=2).eval()
    prior = scantune.FieldOfExperts.fit(network, [torch.rand(4, 2, 24, 24) for _ in range(2)])
    architecture = {"kind": "unet", "classes": 2, "channels": 2, "width": 2}
    scantune.Model(network, {"disc": 1}, backend, architecture, prior=prior).save("two.safetensors")
    for seed, name in enumerate(("my_T1", "my_FLAIR")):
        write_volume(tmp_path / f"{name}.nii.gz", toy_volume(seed, (24, 24, 4))[0])
    run_commands("Scans of several channels")
    assert len(list((tmp_path / "out").glob("*_seg.nii.gz"))) == 2


def test_outputs_are_read_as_the_page_says(toy):
    volume = toy_scan(80)[0]
    names = {"scantune": scantune, "my_network": toy.network, "volumes": toy.volumes, "volume": volume}
    found = run_blocks("How outputs are read", names | {"two_headed_network": TwoHeads(toy.network)})
    assert torch.equal(found["result"].source_prediction, toy.network(volume).argmax(1))
    assert found["prior"].task == Segmentation()


def test_regions_that_overlap_become_masks(toy):
    torch.manual_seed(0)
    network = torch.nn.Sequential(toy.network, torch.nn.Conv2d(3, 2, 1)).eval()
    volume = toy_scan(81)[0]
    names = {"scantune": scantune, "Segmentation": Segmentation, "volumes": toy.volumes, "volume": volume}
    found = run_blocks("Structures that may overlap", names | {"region_network": network})
    assert torch.equal(found["result"].source_prediction, network(volume).sigmoid() > 0.5)
    assert found["core"].shape == (len(volume), *volume.shape[2:])


def test_the_sentence_of_a_network_that_fails_is_the_one_on_the_page():
    from monai.networks.nets import UNet

    network = UNet(2, 4, 2, channels=(8, 16), strides=(2,), num_res_units=0)
    with pytest.raises(InputError) as refused:
        scantune.adapt(network, torch.rand(2, 1, 48, 48), method="source", device="cpu")
    (printed,) = code("text", "Networks as they are")
    assert str(refused.value) == " ".join(printed.split())
