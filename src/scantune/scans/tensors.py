"""Named tensors and a text record in one `.safetensors` file, which holds no pickle and no code."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scantune.errors import InputError
from scantune.scans.files import write_whole

CHECKSUM = "sha256"
"""Entry of the text record with the checksum of everything else. Files of older versions have none."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata, completely or not at all. Tensors that share memory are written each for itself."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    owners = {tensor.untyped_storage().data_ptr(): name for name, tensor in stored.items()}
    stored = {
        name: tensor if owners[tensor.untyped_storage().data_ptr()] == name else tensor.clone()
        for name, tensor in stored.items()
    }
    checked = dict(metadata) | {CHECKSUM: checksum(stored, metadata)}
    write_whole(path, lambda temporary: save_file(stored, temporary, checked))


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of all names, types, shapes and bytes, and of the text record."""
    digest = hashlib.sha256()
    for key in sorted(metadata):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file that `write_tensors` wrote.

    Raises:
        InputError: The file is missing, of another kind, cut short, or differs from what was written.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist. Expected a .safetensors file.")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise InputError(
            f"{path} is not a whole .safetensors file ({error}). It may be truncated or of another kind. "
            "Copy or make it again."
        ) from error
    expected = metadata.pop(CHECKSUM, None)
    if expected is not None and expected != checksum(tensors, metadata):
        raise InputError(
            f"{path} is damaged: its contents do not match the checksum that was written with them. Copy or make it "
            "again."
        )
    return tensors, metadata
