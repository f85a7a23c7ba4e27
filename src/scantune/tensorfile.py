"""Named tensors and a text record in one `.safetensors` file: no pickle, nothing in a file can run."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scantune.errors import InputError
from scantune.filewriting import write_whole


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes tensors and metadata; the file is complete or not there at all."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda temporary: save_file(stored, temporary, dict(metadata)))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads what `write_tensors` wrote."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected a .safetensors file.")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a whole .safetensors file ({error}); it may be truncated or of another kind. "
            "Copy or make it again."
        ) from error
