"""Model files: damaged bytes, odd headers and records, tensors of other shapes, types and values."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import scantune
from fuzz.base import ACCEPTED, Kind, chance, refused, require, some
from fuzz.mutations import damaged
from scantune import AdaptableNetwork, FieldOfExperts, Model
from scantune.backends.slices import Preprocessing
from scantune.errors import InputError
from scantune.experts import PatchSettings
from scantune.model.describe import describe_model
from scantune.prior.calibration import Calibration
from scantune.scans.case import Case

SHAPE = {"classes": 3, "channels": 1, "dimensions": 2, "width": 2}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 10**9, 10**20, 0.5, -0.5, 1e300, float("nan"), float("inf"), "", "x", "2"),
    *([], [1], [1, 2], [[]], {}, {"x": 1}, "network", "ü" * 300),
)
NUMBERS = (0.0, -1.0, 1e-40, 1e30, 3e38, float("nan"), float("inf"), float("-inf"))


class ModelFile(Kind):
    """One `.safetensors` file, which is loaded, described and used."""

    name = "model"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        torch.set_num_threads(1)
        self.seeds: list[bytes] = []
        for number, model in enumerate((toy(), toy(density="kde"), toy(prior=False))):
            model.save(folder / f"{number}.safetensors")
            whole = (folder / f"{number}.safetensors").read_bytes()
            self.seeds += [whole, without_checksum(whole)]
        rng = np.random.default_rng(0)
        image = rng.random((12, 10, 2), dtype=np.float32)
        image[3:8, 3:8] += 2
        self.scan = Case("scan", image, np.diag([1.0, 1.0, 3.0, 1.0]))

    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Damages bytes, the header, the record or tensors."""
        data = rng.choice(self.seeds)
        length = struct.unpack_from("<Q", data)[0] + 8
        what = rng.random()
        if what < 0.35:
            data = damaged(rng, data, rng.choice(self.seeds), length)
        elif what < 0.65:
            data = rewritten(data, lambda header: _odd_record(rng, header))
        elif what < 0.8:
            data = rewritten(data, lambda header: _odd_entries(rng, header))
        else:
            data = _odd_tensors(rng, data)
        path = folder / "model.safetensors"
        path.write_bytes(data)
        try:
            model = scantune.load(path)
            require(describe_model(model) and model.fingerprint, "a model without a description")
            method = rng.choice(("source", "source", "foe-cnn", "foe-cnn-pca", "batchnorm"))
            result = scantune.adapt(model, self.scan, method=method, steps=1)
        except InputError as error:
            return refused(error)
        require(bool(torch.isfinite(result.adapted.probabilities).all()), "probabilities that are not finite")
        require(result.prediction.shape == self.scan.shape, f"a segmentation of shape {result.prediction.shape}")
        require(json.dumps(result.manifest_entry()), "a result that cannot be written down")
        return ACCEPTED


def toy(density: str = "gaussian", prior: bool = True) -> Model:
    """An untrained network of few channels, and its prior."""
    torch.manual_seed(0)
    network = AdaptableNetwork.default(**SHAPE).eval()
    volumes = [torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    patches = PatchSettings(size=4, stride=2, components=2, threshold=0.0)
    fitted = FieldOfExperts.fit(network, volumes, patches=patches, density=density) if prior else None
    if fitted is not None and density == "gaussian":
        fitted = fitted.calibrated(network, [(volume, None) for volume in volumes])
        assert isinstance(fitted.calibration, Calibration)
    return Model(
        network=network,
        labels={"disc": 1, "ring": 2},
        backend=Preprocessing(size=(16, 16), spacing=1.0),
        architecture={"kind": "unet", **SHAPE},
        prior=fitted,
        provenance={"command": "scantune train x", "train": {"seed": 3, "learning_rate": 1e-3}},
    )


def rewritten(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file with another header."""
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def without_checksum(data: bytes) -> bytes:
    """A file as older versions wrote it."""

    def change(header: dict[str, Any]) -> None:
        header["__metadata__"] = {"scantune": header["__metadata__"]["scantune"]}

    return rewritten(data, change)


def _odd_record(rng: random.Random, header: dict[str, Any]) -> None:
    """Some of the record's entries are other values, gone or new."""
    metadata = header["__metadata__"]
    record = json.loads(metadata["scantune"])
    for _ in range(rng.choice((1, 1, 2, 3))):
        _odd_place(rng, record)
    header["__metadata__"] = {"scantune": json.dumps(record)}


def _odd_place(rng: random.Random, value: Any) -> None:
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance(rng, 0.8):
            value = inner
            continue
        if isinstance(value, dict) and chance(rng, 0.2):
            value[rng.choice(("x", "name", "width", "n4", *keys))] = value.pop(key)
        elif chance(rng, 0.2):
            del value[key]
        else:
            value[key] = rng.choice(VALUES)
        return


def _odd_entries(rng: random.Random, header: dict[str, Any]) -> None:
    """Some of the tensors' types, shapes and places are others."""
    names = [name for name in header if name != "__metadata__"]
    header["__metadata__"] = {"scantune": header["__metadata__"]["scantune"]}
    for name in some(rng, names, 3):
        what = rng.randrange(6)
        entry = header[name]
        if what == 0:
            entry["dtype"] = rng.choice(("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "??"))
        elif what == 1:
            entry["shape"] = (
                entry["shape"][::-1] if chance(rng, 0.5) else [*entry["shape"], rng.choice((1, 0, -1, 2**40))]
            )
        elif what == 2:
            entry["data_offsets"] = [rng.choice((0, 4, 2**40, -1)), rng.choice((0, 4, 2**40, -1))]
        elif what == 3:
            del header[name]
        elif what == 4:
            other = rng.choice(names)
            if other in header:
                header[name], header[other] = header[other], header[name]
        else:
            header[rng.choice(("network.x", "prior.x", "helpers.dae.x", name + "x"))] = header.pop(name)


def _odd_tensors(rng: random.Random, data: bytes) -> bytes:
    """Some tensors have other values, or another shape or type, in a file that is otherwise whole."""
    from safetensors.torch import load, save

    length = struct.unpack_from("<Q", data)[0]
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    tensors = load(data)
    for name in some(rng, sorted(tensors), 3):
        tensors[name] = _odd_tensor(rng, tensors[name])
    return save(tensors, {"scantune": metadata["scantune"]})


def _odd_tensor(rng: random.Random, tensor: Tensor) -> Tensor:
    what = rng.randrange(5)
    tensor = tensor.clone()
    if what <= 1 and tensor.is_floating_point():
        if chance(rng, 0.3) or not tensor.numel():
            return torch.full_like(tensor, rng.choice(NUMBERS))
        tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice(NUMBERS)
        return tensor
    if what == 2:
        return tensor.to(rng.choice((torch.float64, torch.float16, torch.int64, torch.uint8)))
    if what == 3:
        return tensor.flatten()[: rng.randrange(tensor.numel() + 1)].clone()
    return torch.stack([tensor, tensor]) if chance(rng, 0.5) else tensor[..., :0].clone() if tensor.ndim else tensor
