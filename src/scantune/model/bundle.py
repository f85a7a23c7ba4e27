"""Models from MONAI bundles: folders with `configs/inference.json` or yaml, and `models/model.pt`."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from scantune.backends.bundle import PRED, Bundle
from scantune.backends.quiet import quiet
from scantune.errors import InputError, error_message
from scantune.model.folders import BUNDLE_CONFIGS, require_trust
from scantune.model.model import Model
from scantune.tasks import Segmentation

WEIGHTS = "models/model.pt"

WRITERS = ("SaveImaged", "SaveImage", "SaveClassificationd")
"""Transforms that write files, which scantune does itself."""

WHY = (
    "a MONAI bundle's config names Python classes and functions that are called when it is read, with or without $ "
    "expressions, so that a bundle made for that can run any code"
)


def load_folder(path: Path, trust: bool = False) -> Model:
    """Load a bundle. Its evaluator is not built, and its `logging.conf` is not used.

    Args:
        path: The folder of the bundle.
        trust: Whether code that the config names may run.

    Raises:
        InputError: The bundle is not whole, is not one of segmentation, or is not trusted.
    """
    config = next(path / name for name in BUNDLE_CONFIGS if (path / name).is_file())
    require_trust(path, trust, WHY)
    weights = _read_weights(path / WEIGHTS)
    metadata = _read_metadata(path / "configs" / "metadata.json")
    with _bundle_modules(path), quiet():
        parts = _parts(config, path)
    network = parts["network"]
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"The weights {path / WEIGHTS} do not fit the network of {config} ({error_message(error)}). Copy the "
            "bundle again."
        ) from error
    post = _without_writers(parts["postprocessing"], parts["preprocessing"], config)
    task = _task(post, config)
    outputs = _format(metadata, "outputs", PRED)
    labels = _labels(outputs, task, path)
    if not task.exclusive and len(labels) > 1 and _stay_apart(post):
        task = Segmentation("sigmoid", overlapping=True)
    key = _image_key(parts["preprocessing"])
    settings = {
        "name": path.resolve().name,
        "version": str(metadata.get("version", "")),
        "config": hashlib.sha256(config.read_bytes()).hexdigest()[:16],
    }
    channels = _whole_number(_format(metadata, "inputs", key).get("num_channels"), 1)
    return Model(
        network=network.eval(),
        labels=labels,
        backend=Bundle(
            parts["preprocessing"], parts["inferer"], post, key, channels, not task.exclusive, parts["amp"], settings
        ),
        architecture={"kind": "bundle", "network": type(network).__name__},
        task=task,
        provenance={"bundle": settings["name"], "version": settings["version"]},
        name=settings["name"],
    )


def _parts(config: Path, root: Path) -> dict[str, Any]:
    """Return network, preprocessing, inferer and postprocessing of a config, built on the CPU."""
    from monai.bundle import ConfigParser

    if config.suffix != ".json":
        _require_yaml(config)
    try:
        parser = ConfigParser()
        parser.read_config(str(config))
        parser["bundle_root"] = str(root.resolve())
        if "device" in parser:
            parser["device"] = "$torch.device('cpu')"
        names = {name: name for name in ("preprocessing", "inferer", "postprocessing")}
        names["network"] = "network_def" if "network_def" in parser else "network"
        missing = [name for name in names.values() if name not in parser]
        if missing:
            raise InputError(
                f"{config} must have network_def, preprocessing, inferer and postprocessing, as bundles of MONAI's "
                f"model zoo do, but has no {', '.join(missing)}."
            )
        parts = {name: parser.get_parsed_content(place) for name, place in names.items()}
        parts["amp"] = bool("evaluator#amp" in parser and parser.get_parsed_content("evaluator#amp"))
    except InputError:
        raise
    except Exception as error:  # of any kind, from code that a config names
        raise InputError(
            f"{config} cannot be read ({type(error).__name__}: {error_message(error)}). Does it run with the installed "
            "MONAI, and are the packages that it needs installed?"
        ) from error
    if not isinstance(parts["network"], nn.Module):
        raise InputError(f"{config} must define a network, but it is {type(parts['network']).__name__}.")
    return parts


def _require_yaml(config: Path) -> None:
    if find_spec("yaml") is None:
        raise InputError(f"{config} needs PyYAML, which is missing: pip install 'scantune[bundles]'.")


@contextmanager
def _bundle_modules(root: Path) -> Iterator[None]:
    """Let Python find a bundle's own `scripts`, and not those of another folder or bundle."""

    def own() -> dict[str, Any]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "scripts"}

    others = own()
    for name in others:
        del sys.modules[name]
    sys.path.insert(0, str(root.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(root.resolve()))
        for name in own():
            del sys.modules[name]
        sys.modules.update(others)


def _read_weights(file: Path) -> dict[str, Tensor]:
    """Read the weights; a file with anything but tensors and plain values is refused."""
    if not file.is_file():
        raise InputError(f"{file} does not exist: expected the weights of the bundle. Download or copy it again.")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError, OSError, LookupError) as error:
        raise InputError(
            f"{file} must hold tensors and plain values alone, and be whole, but it cannot be read so "
            f"({error_message(error)}). Store the state_dict of the network again."
        ) from error
    for name in ("model", "state_dict", "network"):
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping) or not all(isinstance(one, Tensor) for one in content.values()):
        raise InputError(f"{file} must hold the state_dict of a network, but holds {type(content).__name__}.")
    return dict(content)


def _read_metadata(file: Path) -> dict[str, Any]:
    """Read the metadata of a bundle, which need not have any."""
    if not file.is_file():
        return {}
    try:
        metadata = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON ({error_message(error)}). Copy the bundle again.") from error
    if not isinstance(metadata, dict):
        raise InputError(f"{file} must hold a table, but holds {type(metadata).__name__}. Copy the bundle again.")
    return metadata


def _format(metadata: Mapping[str, Any], side: str, name: str) -> Mapping[str, Any]:
    """Return what the metadata say about an input or output of the network."""
    found: Any = metadata
    for key in ("network_data_format", side, name):
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


def _without_writers(postprocessing: Any, preprocessing: Any, config: Path) -> tuple[Any, ...]:
    """Return the transforms of a postprocessing that write no files, with a way back to the scan's grid."""
    from monai.transforms import Invertd

    transforms = tuple(getattr(postprocessing, "transforms", (postprocessing,)))
    kept = tuple(one for one in transforms if type(one).__name__ not in WRITERS)
    if any(type(one).__name__ == "Invertd" for one in kept):
        return kept
    key = _image_key(preprocessing)
    try:
        return (*kept, Invertd(keys=PRED, transform=preprocessing, orig_keys=key, nearest_interp=True))
    except ValueError as error:
        raise InputError(f"The preprocessing of {config} cannot be inverted ({error_message(error)}).") from error


def _image_key(preprocessing: Any) -> str:
    """Return the name of the image in what a preprocessing takes: the first that it loads."""
    first = next(iter(getattr(preprocessing, "transforms", ())), preprocessing)
    return str(next(iter(getattr(first, "keys", ())), "image"))


def _task(transforms: tuple[Any, ...], config: Path) -> Segmentation:
    """Return how the output is read, as the postprocessing does."""
    kinds = {type(one).__name__: one for one in reversed(transforms)}
    activations, discrete = kinds.get("Activationsd"), kinds.get("AsDiscreted")
    if activations is not None and any(activations.sigmoid):
        return Segmentation("sigmoid", exclusive=False)
    if (activations is not None and any(activations.softmax)) or (discrete is not None and any(discrete.argmax)):
        return Segmentation("softmax")
    raise InputError(
        f"The postprocessing of {config} must say how outputs are read, by Activationsd with softmax or sigmoid or by "
        "AsDiscreted with argmax, as bundles for segmentation do."
    )


def _stay_apart(transforms: tuple[Any, ...]) -> bool:
    """Return True if nothing joins the channels of a prediction to one label map."""
    names = [type(one).__name__ for one in transforms]
    last = max((number for number, name in enumerate(names) if name == "AsDiscreted"), default=len(names) - 1)
    return all(name == "Invertd" for name in names[last + 1 :])


def _labels(outputs: Mapping[str, Any], task: Segmentation, path: Path) -> dict[str, int]:
    """Return the value of each structure, or the number of each overlapping one, counted from 1."""
    first = 1 if task.exclusive else 0
    names = outputs.get("channel_def")
    if not isinstance(names, Mapping) or not names:
        count = _whole_number(outputs.get("num_channels"), 0)
        names = {str(number): f"structure {number + 1 - first}" for number in range(count)}
    try:
        numbered = {int(number): str(name) for number, name in names.items()}
    except ValueError as error:
        raise InputError(
            f"The metadata of {path} must name channels by their numbers in channel_def, got {dict(names)}."
        ) from error
    if not numbered:
        raise InputError(
            f"The metadata of {path} must name the channels of the output: network_data_format, outputs, pred, "
            "channel_def in configs/metadata.json."
        )
    return {name: number + 1 - first for number, name in sorted(numbered.items()) if number >= first}


def _whole_number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
