"""MONAI bundles: trusted by word alone, fitted and adapted by two commands, and otherwise as MONAI predicts."""

import copy
import json
import os
import sys

import nibabel
import numpy as np
import pytest
import torch

import scantune
from scantune import FieldOfExperts, InputError
from scantune.cli.main import main
from scantune.tasks import Segmentation
from tests.cli.test_cli import error_line
from tests.toy_bundle import (
    AFFINE,
    CONFIG,
    METADATA,
    infer_by_hand,
    infer_by_monai,
    toy_volume,
    write_bundle,
    write_data,
    write_volume,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained bundle, with a scan and labelled data beside it."""
    folder = tmp_path_factory.mktemp("bundle")
    write_bundle(folder / "balls")
    write_volume(folder / "scan.nii.gz", toy_volume(7)[0])
    write_volume(folder / "shifted.nii.gz", toy_volume(7)[0] ** np.float32(2.4))
    write_data(folder / "data", count=5)
    return folder


@pytest.fixture
def desk(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return trained


def changed(root, config=None, metadata=None, **more):
    """An untrained bundle whose config or metadata differ."""
    config = {**copy.deepcopy(CONFIG), **(config or {})}
    return write_bundle(root, config, METADATA if metadata is None else metadata, iterations=0, **more)


def voxels(path):
    image = nibabel.load(path)
    np.testing.assert_allclose(image.affine, AFFINE, atol=1e-5)
    return np.asarray(image.dataobj)


def test_without_adaptation_every_voxel_is_that_of_monai(desk, tmp_path):
    command = ["adapt", "scan.nii.gz", "--model", "balls", "--trust", "--method", "source", "--out", str(tmp_path)]
    assert main(command) == 0
    theirs = infer_by_hand(desk / "balls", [desk / "scan.nii.gz"], tmp_path / "eval")
    ours = voxels(tmp_path / "scan_seg.nii.gz")
    assert np.array_equal(ours, np.asarray(theirs.dataobj))
    assert np.unique(ours).tolist() == [0, 1, 2]


def test_without_adaptation_every_voxel_is_that_of_monais_workflow(desk, tmp_path):
    pytest.importorskip("ignite", reason="MONAI's workflow needs pytorch-ignite")
    for scan in ("scan.nii.gz", "shifted.nii.gz"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / scan).write_bytes((desk / scan).read_bytes())
    infer_by_monai(desk / "balls", tmp_path / "in", tmp_path / "eval")
    model = scantune.load(desk / "balls", trust=True)
    for scan in ("scan", "shifted"):
        ours = scantune.adapt(model, desk / f"{scan}.nii.gz", method="source").prediction
        assert np.array_equal(ours, voxels(tmp_path / "eval" / f"{scan}_trans.nii.gz"))
        assert len(np.unique(ours)) > 1


def test_two_commands_adapt_a_bundle(desk, tmp_path, capsys):
    prior, out = str(tmp_path / "prior.safetensors"), tmp_path / "out"
    assert main(["fit", "balls", "--data", "data", "--out", prior, "--trust", "--device", "cpu"]) == 0
    scans = ["scan.nii.gz", "shifted.nii.gz", "--model", "balls", "--prior", prior, "--trust", "--device", "cpu"]
    assert main(["adapt", *scans, "--out", str(out)]) == 0
    assert not (desk / "balls" / "eval").exists()
    entries = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["scans"]
    assert entries["shifted"]["energy_after"] < 0.2 * entries["shifted"]["energy_before"]
    source, adapted = (voxels(out / f"shifted{kind}seg.nii.gz") == 1 for kind in ("_source_", "_"))
    true = toy_volume(7)[1] == 1
    before, after = (2 * (found & true).sum() / (found.sum() + true.sum()) for found in (source, adapted))
    assert after > before + 0.3
    organ = (voxels(out / "scan_seg.nii.gz") == 1).sum()
    assert entries["scan"]["volumes_ml"]["organ"] == pytest.approx(organ * 4.5e-3, abs=1e-3)
    assert (out / "scan_page.html").exists()
    capsys.readouterr()
    assert main(["adapt", *scans, "--out", str(out)]) == 0
    assert "earlier run" in capsys.readouterr().out
    assert main(["adapt", *scans, "--out", str(tmp_path / "site"), "--site", "--steps", "2", "--no-page"]) == 0


def test_two_commands_adapt_a_bundle_that_sees_whole_volumes(desk, tmp_path):
    pad = {"_target_": "SpatialPadd", "keys": "image", "spatial_size": [24, 24, 24]}
    steps = {"_target_": "Compose", "transforms": [*CONFIG["preprocessing"]["transforms"], pad]}
    root = changed(tmp_path / "whole", {"inferer": {"_target_": "SimpleInferer"}, "preprocessing": steps})
    prior = str(tmp_path / "prior.safetensors")
    assert main(["fit", str(root), "--data", "data", "--out", prior, "--trust", "--device", "cpu"]) == 0
    words = ["scan.nii.gz", "--model", str(root), "--prior", prior, "--trust", "--device", "cpu", "--steps", "1"]
    assert main(["adapt", *words, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "scan_seg.nii.gz").exists()


def test_info_describes_a_bundle(desk, capsys):
    assert main(["info", "balls", "--trust"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "segmentation: organ = 1, core = 2" in shown
    assert "kind bundle, network UNet" in shown


@pytest.mark.parametrize("command", [["info"], ["fit", "--data", "data", "--out", "prior.safetensors"], ["adapt"]])
def test_a_bundle_is_not_read_unless_it_is_trusted(command, desk, capsys):
    words = {"adapt": ["adapt", "scan.nii.gz", "--model", "balls", "--out", "out"]}
    assert main(words.get(command[0], [command[0], "balls", *command[1:]])) == 2
    told = error_line(capsys)
    assert "can run any code" in told
    assert "--trust" in told
    with pytest.raises(InputError, match="trust=True"):
        scantune.load(desk / "balls")


@pytest.mark.parametrize(
    "harm", [{"imports": ["$open('ran', 'w')"]}, {"inferer": {"_target_": "os.mkdir", "path": "ran"}}]
)
def test_a_hostile_config_runs_nothing_unless_it_is_trusted(harm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = changed(tmp_path / "b", harm)
    with pytest.raises(InputError, match="can run any code"):
        scantune.load(root)
    assert not (tmp_path / "ran").exists()


def test_only_what_is_needed_of_a_config_is_built(tmp_path, monkeypatch):
    """Neither its evaluator nor its loggers, which abort the process, nor what writes files."""
    monkeypatch.chdir(tmp_path)
    harm = {"_target_": "os.mkdir", "path": "ran"}
    model = scantune.load(
        changed(tmp_path / "b", {"evaluator": harm, "dataloader": harm, "handlers": [harm]}), trust=True
    )
    assert [type(one).__name__ for one in model.backend.postprocessing] == ["Activationsd", "Invertd", "AsDiscreted"]
    assert not (tmp_path / "ran").exists()


def test_a_bundle_in_yaml_is_the_same(tmp_path):
    models = [scantune.load(changed(tmp_path / kind, as_yaml=kind == "yaml"), trust=True) for kind in ("json", "yaml")]
    x = torch.rand(1, 1, 16, 16, 16)
    assert torch.equal(models[0].network(x), models[1].network(x))
    assert models[0].labels == models[1].labels == {"organ": 1, "core": 2}


def test_weights_with_anything_but_tensors_are_refused(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    root = changed(tmp_path / "b")
    torch.save({"model": Harm()}, root / "models" / "model.pt")
    with pytest.raises(InputError, match="must hold tensors and plain values alone"):
        scantune.load(root, trust=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "wrap", [lambda weights: {"model": weights}, lambda weights: {"state_dict": weights, "epoch": 3}]
)
def test_weights_may_stand_in_a_checkpoint(wrap, tmp_path):
    root = changed(tmp_path / "b")
    weights = torch.load(root / "models" / "model.pt", weights_only=True)
    torch.save(wrap(weights), root / "models" / "model.pt")
    assert torch.equal(next(scantune.load(root, trust=True).network.parameters()), next(iter(weights.values())))


def without(table, *names):
    return {name: value for name, value in table.items() if name not in names}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda r: (r / "models" / "model.pt").unlink(), "model.pt does not exist"),
        (lambda r: (r / "models" / "model.pt").write_bytes(b"not weights"), "must hold tensors and plain values"),
        (lambda r: torch.save([1], r / "models" / "model.pt"), "must hold the state_dict of a network"),
        (lambda r: torch.save({"a": torch.zeros(1)}, r / "models" / "model.pt"), "do not fit the network"),
        (lambda r: (r / "configs" / "metadata.json").write_text("{"), "is not JSON"),
        (lambda r: (r / "configs" / "metadata.json").write_text("{}"), "must name the channels of the output"),
        (lambda r: (r / "configs" / "inference.json").write_text("{"), "cannot be read"),
        (lambda r: rewrite(r, without(CONFIG, "inferer")), "but has no inferer"),
        (lambda r: rewrite(r, {**CONFIG, "network_def": {"_target_": "no.such.Network"}}), "cannot be read"),
        (lambda r: rewrite(r, {**CONFIG, "network_def": {"_target_": "Compose"}}), "must define a network"),
        (lambda r: rewrite(r, {**CONFIG, "postprocessing": {"_target_": "Compose"}}), "must say how outputs are read"),
    ],
)
def test_a_bundle_that_is_not_whole_is_told(spoil, told, tmp_path):
    root = changed(tmp_path / "b")
    spoil(root)
    with pytest.raises(InputError, match=told):
        scantune.load(root, trust=True)


def rewrite(root, config):
    (root / "configs" / "inference.json").write_text(json.dumps(config), encoding="utf-8")


def test_a_folder_of_another_kind_is_told_what_bundles_have(tmp_path):
    with pytest.raises(InputError, match="a MONAI bundle has configs/inference.json or yaml"):
        scantune.load(tmp_path)


def test_a_bundle_without_names_of_channels_counts_its_structures(tmp_path):
    metadata = {"network_data_format": {"outputs": {"pred": {"num_channels": 3}}}}
    model = scantune.load(changed(tmp_path / "b", metadata=metadata), trust=True)
    assert model.labels == {"structure 1": 1, "structure 2": 2}
    assert model.task == Segmentation("softmax")


def test_a_bundle_finds_its_own_scripts_and_leaves_those_of_others(tmp_path):
    for name, side in (("one", 3), ("two", 5)):
        root = changed(tmp_path / name, {"network_def": {**CONFIG["network_def"]}})
        (root / "scripts").mkdir()
        (root / "scripts" / "__init__.py").touch()
        (root / "scripts" / "nets.py").write_text(
            f"from torch import nn\n\ndef make(): return nn.Conv3d(1, 3, {side}, padding={side // 2})\n"
        )
        rewrite(root, {**CONFIG, "network_def": {"_target_": "scripts.nets.make"}})
        torch.save(torch.nn.Conv3d(1, 3, side).state_dict(), root / "models" / "model.pt")
    before = {name: module for name, module in sys.modules.items() if name.startswith("scripts")}
    kernels = [scantune.load(tmp_path / name, trust=True).network.kernel_size for name in ("one", "two")]
    assert kernels == [(3, 3, 3), (5, 5, 5)]
    assert {name: module for name, module in sys.modules.items() if name.startswith("scripts")} == before


def test_a_bundle_is_not_stored_as_a_model_file_but_its_prior_is(tmp_path):
    model = scantune.load(changed(tmp_path / "b"), trust=True)
    with pytest.raises(InputError, match="Keep the folder, and store its prior alone"):
        model.save(tmp_path / "m.safetensors")
    prior = FieldOfExperts.fit(model.network, [torch.rand(2, 1, 16, 16, 16) for _ in range(2)])
    prior.save(tmp_path / "p.safetensors")
    assert FieldOfExperts.load(tmp_path / "p.safetensors").subjects == 2
