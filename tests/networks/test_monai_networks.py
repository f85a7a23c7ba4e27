"""MONAI's networks by name: built, fitted, stored, loaded and adapted without code."""

import json
from dataclasses import replace

import pytest
import torch

import scantune
from scantune import FieldOfExperts, InputError, Model
from scantune.backends.slices import Preprocessing
from scantune.model.architecture import Architecture
from scantune.networks.monai_networks import MONAI_NETWORKS, monai_defaults, monai_network
from scantune.tasks.base import main_output

USUAL = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
ARGUMENTS = {
    "AttentionUnet": {**USUAL, "channels": [4, 8], "strides": [2]},
    "BasicUNet": {**USUAL, "features": [4, 4, 8, 8, 8, 4]},
    "BasicUNetPlusPlus": {**USUAL, "features": [4, 4, 8, 8, 8, 4]},
    "DynUNet": {
        **USUAL,
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 8],
        "norm_name": ["INSTANCE", {"affine": True}],
    },
    "HighResNet": {
        **USUAL,
        "layer_params": [
            {"name": "conv_0", "n_features": 4, "kernel_size": 3},
            {"name": "res_1", "n_features": 4, "kernels": [3, 3], "repeat": 1},
            {"name": "conv_1", "n_features": 8, "kernel_size": 1},
            {"name": "conv_2", "kernel_size": 1},
        ],
    },
    "MedNeXt": {**USUAL, "init_filters": 4, "blocks_down": [1], "blocks_up": [1]},
    "SegResNet": {**USUAL, "init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]},
    "SegResNetDS": {**USUAL, "init_filters": 8, "blocks_down": [1, 1]},
    "SwinUNETR": {**USUAL, "feature_size": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]},
    "UNet": {**USUAL, "channels": [4, 8, 16], "strides": [2, 2], "norm": "batch"},
    "UNETR": {**USUAL, "img_size": [64, 64], "feature_size": 4, "hidden_size": 12, "mlp_dim": 16, "num_heads": 3},
    "VNet": USUAL,
}


@pytest.mark.parametrize("name", MONAI_NETWORKS)
def test_every_network_is_fitted_stored_loaded_and_adapted(name, tmp_path):
    torch.manual_seed(0)
    record = json.loads(json.dumps({"kind": f"monai:{name}", **ARGUMENTS[name]}))
    network = Architecture.read(record).build().eval()
    volumes = [torch.rand(2, 1, 64, 64) for _ in range(2)]
    prior = FieldOfExperts.fit(network, volumes)
    Model(network, {"a": 1, "b": 2}, Preprocessing(size=(64, 64)), record, prior=prior).save(tmp_path / "m.safetensors")
    model = scantune.load(tmp_path / "m.safetensors")
    scan = torch.rand(2, 1, 64, 64) ** 2
    with torch.no_grad():
        own = main_output(network(scan)).argmax(1)
    assert model.architecture == record
    result = scantune.adapt(model, scan, steps=3, guard=False, device="cpu")
    assert torch.equal(result.source_prediction, own)
    assert result.energy_after < result.energy_before


def test_every_network_of_the_list_is_tried():
    assert sorted(ARGUMENTS) == sorted(MONAI_NETWORKS)


@pytest.mark.parametrize("name", ["FlexibleUNet", "nets.UNet", "__class__", "EfficientNetBN", ""])
def test_no_other_name_is_looked_up(name):
    with pytest.raises(InputError, match=r"Unknown network 'monai:.*Available: monai:AttentionUnet"):
        monai_network(name, {})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pretrained": True}, "has no argument 'pretrained'; known: spatial_dims"),
        ({"channels": [4, 2**16 + 1]}, "whole numbers up to 65536"),
        ({"norm": "instance_nvfuser"}, "must not need further packages"),
        ({"norm": ["instance_nvfuser", {}]}, "must not need further packages"),
        ({"norm": "no-such-norm"}, "does not take these arguments"),
        ({"strides": []}, "does not take these arguments"),
        ({"spatial_dims": "two"}, "does not take these arguments"),
    ],
)
def test_arguments_that_cannot_be_are_told(change, told):
    with pytest.raises(InputError, match=told):
        monai_network("UNet", {**ARGUMENTS["UNet"], **change})


def test_usual_arguments_are_those_that_a_network_has():
    assert monai_defaults("UNet", spatial_dims=2, out_channels=3, width=1) == {"spatial_dims": 2, "out_channels": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"channels": [60_000, 60_000, 60_000]},
        {"num_res_units": 60_000},
        {"kernel_size": 60_001},
        {"out_channels": 60_000},
    ],
)
def test_a_hostile_record_takes_no_memory(change, tmp_path):
    record = {"kind": "monai:UNet", **ARGUMENTS["UNet"]}
    network = Architecture.read(record).build().eval()
    hostile = Model(network, {"a": 1}, Preprocessing(size=(64, 64)), {**record, **change})
    hostile.save(tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="do not fit the recorded architecture|more than 20000 modules"):
        scantune.load(tmp_path / "m.safetensors")


def test_a_rounded_model_keeps_its_network(tmp_path):
    record = {"kind": "monai:UNet", **ARGUMENTS["UNet"]}
    model = Model(Architecture.read(record).build().eval(), {"a": 1}, Preprocessing(size=(64, 64)), record)
    rounded = model.rounded(torch.float16)
    rounded.save(tmp_path / "m.safetensors", torch.float16)
    scan = torch.rand(1, 1, 64, 64)
    assert torch.equal(scantune.load(tmp_path / "m.safetensors").network(scan), rounded.network(scan))
    assert replace(rounded, name="m").record == scantune.load(tmp_path / "m.safetensors").record
