"""The model: network, prior and record, stored in one `.safetensors` file.

The file is checked before anything is built from it: types of its record, shapes, finite numbers.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from scantune.backends import BACKENDS, Backend, read_backend
from scantune.config.presets import Preset, PresetNumbers, read_presets
from scantune.config.settings import settings_from_table
from scantune.errors import InputError, error_message
from scantune.model.architecture import Architecture, NetworkChoice, is_built_in, is_known, without_memory
from scantune.model.folders import load_folder
from scantune.networks import HELPERS, Helper
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.scans.tensors import read_tensors, write_tensors
from scantune.tasks import Segmentation, Task, task_from_record, task_record

MODEL_FORMAT = 1
"""Version of the file's layout; a reader refuses newer ones."""

BUNDLED = {name: f"{name}.safetensors" for name in ("brain", "brain-register", "spine", "spine-varied")}
"""Models inside the package, by name."""

JsonTable = dict[str, object]


@dataclass(frozen=True)
class Model:
    """A trained network with all that is needed to use and adapt it elsewhere.

    Args:
        network: Normaliser and task network.
        labels: Value of each structure in a segmentation, by name; 0 is background.
        backend: What stands between the files of a scan and the network.
        architecture: A kind of `scantune.model.architecture.Architecture` with its arguments, such as
            `{"kind": "monai:VNet", ...}`, or `{"kind": "custom"}`.
        task: How the network's output is read.
        prior: The Field of Experts, if one was fitted.
        provenance: How the network came to be: command, data, seed, scores.
        helpers: Trained helper networks, by the name of the method that they serve.
        name: Name of the model for messages and manifests.
        presets: Steps and slices per batch of presets that suit the model's scans.
    """

    network: nn.Module
    labels: dict[str, int]
    backend: Backend[Any]
    architecture: dict[str, Any]
    task: Task = field(default_factory=Segmentation)
    prior: FieldOfExperts | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    helpers: dict[str, Helper] = field(default_factory=dict)
    name: str = "model"
    presets: dict[Preset, PresetNumbers] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        return {
            "format": MODEL_FORMAT,
            "task": task_record(self.task),
            "architecture": self.architecture,
            "labels": self.labels,
            "preprocessing": self.backend.record(),
            "prior": None if self.prior is None else self.prior.record(),
            "helpers": {name: helper.record() for name, helper in self.helpers.items()},
            "provenance": self.provenance,
            **({"adapt": {name: each.record() for name, each in self.presets.items()}} if self.presets else {}),
        }

    @property
    def fingerprint(self) -> str:
        """A short hash of every number and setting."""
        digest = hashlib.sha256(json.dumps(self.record, sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        if self.prior is not None:
            tensors |= {f"prior.{name}": tensor for name, tensor in self.prior.tensors().items()}
        for name, helper in self.helpers.items():
            tensors |= {f"helpers.{name}.{key}": tensor for key, tensor in helper.state_dict().items()}
        return tensors

    def rounded(self, precision: torch.dtype) -> Self:
        """Return a copy with weights rounded to the precision of the file; fit the prior after this."""
        known = is_built_in(self.architecture["kind"])
        network = Architecture.read(self.architecture).build() if known else deepcopy(self.network)
        network.load_state_dict(
            {
                name: tensor.to(precision).to(tensor.dtype) if tensor.is_floating_point() else tensor
                for name, tensor in self.network.state_dict().items()
            }
        )
        return replace(self, network=network.eval())

    def save(self, path: str | Path, precision: torch.dtype = torch.float32) -> None:
        """Write the file; weights are stored in `precision`, statistics in float32.

        Raises:
            InputError: The model was loaded from a folder of another framework.
        """
        self.require_storable()
        half = {
            name: tensor.to(precision)
            if name.startswith(("network.", "helpers.")) and tensor.is_floating_point()
            else tensor
            for name, tensor in self._tensors().items()
        }
        write_tensors(Path(path), half, {"scantune": json.dumps(self.record)})

    def require_storable(self) -> None:
        """Check that a model file can hold the model.

        Raises:
            InputError: It was loaded from a folder of another framework, which has more.
        """
        if not isinstance(self.backend, tuple(BACKENDS.values())):
            raise InputError(
                f"The model {self.name} was loaded from a folder, which has more than a model file can hold. Keep the "
                "folder, and store its prior alone: model.prior.save, or scantune fit with --out."
            )


def load(name_or_path: str | Path, network: NetworkChoice | None = None, *, trust: bool = False) -> Model:
    """Read a bundled model by name, or a model file or folder by path.

    Of a model file, nothing is unpickled and no code runs.

    Args:
        name_or_path: `brain`, `brain-register`, `spine`, `spine-varied`, the path of a `.safetensors` file, or a
            folder of another framework.
        network: For a file with an architecture of your own, the network to put the weights into, or what makes it:
            `package.module:factory`, which is then imported, or that with arguments, as in
            `{"kind": "package.module:factory", "width": 8}`. The arguments of the file hold unless others are given.
        trust: Whether code that a folder holds may run.
    """
    if _is_folder(name_or_path):
        return load_folder(Path(name_or_path), trust)
    stored = _read_file(name_or_path)
    with _sentences_about(stored.path):
        if isinstance(network, nn.Module):
            if is_built_in(str(stored.record["architecture"].get("kind"))):
                network = None
            else:
                return _assemble(stored, _filled(network, stored.weights()))
        architecture = Architecture.chosen(stored.record["architecture"], network)
        built = _built(architecture, stored.weights())
        return replace(_assemble(stored, built), architecture=architecture.record)


def load_for_description(name_or_path: str | Path, network: NetworkChoice | None = None, trust: bool = False) -> Model:
    """Read a model as `load` does; where its network cannot be built here, its weights stand in for it."""
    if _is_folder(name_or_path):
        return load_folder(Path(name_or_path), trust)
    stored = _read_file(name_or_path)
    if network is not None or is_known(str(stored.record["architecture"].get("kind"))):
        return load(name_or_path, network)
    with _sentences_about(stored.path):
        return _assemble(stored, StoredWeights(stored.weights()))


class StoredWeights(nn.Module):
    """The weights of a network that cannot be built here: they can be described, but not run.

    Args:
        weights: Tensors by name, as in a `state_dict`.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in weights.items():
            *path, last = name.split(".")
            place: nn.Module = self
            for part in path:
                place = place._modules.setdefault(part, nn.Module()) or self
            if last.startswith(("running_", "num_batches")):
                place._buffers[last] = tensor
            else:
                place._parameters[last] = nn.Parameter(tensor, requires_grad=False)


@dataclass(frozen=True)
class _StoredModel:
    """The content of a model file, checked as far as it can be without the network."""

    path: Path
    record: dict[str, Any]
    tensors: dict[str, Tensor]

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the network, in single precision."""
        named = {k.removeprefix("network."): t for k, t in self.tensors.items() if k.startswith("network.")}
        return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in named.items()}


def _is_folder(name_or_path: str | Path) -> bool:
    return str(name_or_path) not in BUNDLED and Path(name_or_path).is_dir()


def _read_file(name_or_path: str | Path) -> _StoredModel:
    path = Path(name_or_path)
    if str(name_or_path) in BUNDLED:
        path = Path(str(resources.files("scantune.model") / "bundled" / BUNDLED[str(name_or_path)]))
    elif not path.exists():
        raise InputError(
            f"There is no model {str(name_or_path)!r}: neither a file of that path nor a bundled model "
            f"({', '.join(BUNDLED)})."
        )
    tensors, metadata = read_tensors(path)
    record = read_record(path, metadata)
    require_finite(path, tensors)
    return _StoredModel(path, record, tensors)


@contextmanager
def _sentences_about(path: Path) -> Iterator[None]:
    """Raise errors of a file's content as sentences that name the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise InputError(
            f"{path} is not a whole scantune model file ({type(error).__name__}: {error_message(error)}); make or copy "
            "it again, or give network= where its architecture is your own."
        ) from error


def _assemble(stored: _StoredModel, network: nn.Module) -> Model:
    """Return the model of a file's content and its network, which has its weights."""
    record, tensors = stored.record, stored.tensors
    of_prior = {k.removeprefix("prior."): t for k, t in tensors.items() if k.startswith("prior.")}
    prior = None if record["prior"] is None else FieldOfExperts.restore(record["prior"], of_prior)
    if prior is not None:
        prior.require_fit(network)
    return Model(
        network=network.eval(),
        labels=dict(record["labels"]),
        backend=read_backend(record["preprocessing"]),
        architecture=dict(record["architecture"]),
        task=task_from_record(record["task"]),
        prior=prior,
        provenance=dict(record["provenance"]),
        helpers={kind: _helper(kind, entry, tensors) for kind, entry in record.get("helpers", {}).items()},
        name=stored.path.stem,
        presets=read_presets(record.get("adapt", {}), "adapt in the record"),
    )


def _built(architecture: Architecture, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a network with its weights; what a damaged record asks for takes no memory."""
    try:
        with without_memory():
            require_shapes(architecture.build(), weights)
    except InputError as error:
        # A factory of the user's own need not work on the device `meta`.
        if error.__cause__ is None or is_built_in(architecture.kind):
            raise
    return _filled(architecture.build(), weights)


def _filled(network: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a network with the weights of a file."""
    require_shapes(network, weights)
    copy = deepcopy(network)
    copy.load_state_dict(weights)
    return copy


def _helper(name: str, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Helper:
    helper = HELPERS[name].from_record(record)
    prefix = f"helpers.{name}."
    weights = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    helper.load_state_dict({k: t.float() if t.is_floating_point() else t for k, t in weights.items()})
    return helper.eval().requires_grad_(False)


@dataclass(frozen=True)
class RecordLayout:
    """The entries of a record, with their types; entries of newer versions are ignored."""

    format: int
    task: JsonTable
    architecture: JsonTable
    labels: dict[str, int]
    preprocessing: JsonTable
    prior: JsonTable | None
    provenance: JsonTable
    helpers: dict[str, JsonTable] = field(default_factory=dict)
    adapt: dict[str, JsonTable] = field(default_factory=dict)


@dataclass(frozen=True)
class PriorRecordLayout:
    """The entries of a prior's record."""

    families: dict[str, JsonTable]
    subjects: int
    notes: tuple[str, ...]


def read_record(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read the record of a model file.

    Raises:
        InputError: The file has none, it is of a newer version, or an entry is missing or of a wrong type.
    """
    try:
        record = json.loads(metadata["scantune"])
        version = int(record["format"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} holds tensors but no scantune record; expected a model file written by scantune."
        ) from error
    if version > MODEL_FORMAT:
        raise InputError(
            f"{path} has format {version}, this scantune reads up to {MODEL_FORMAT}; install a newer scantune."
        )
    _require_layout(RecordLayout, record, f"the record of {path}")
    if record["prior"] is not None:
        _require_layout(PriorRecordLayout, record["prior"], f"the prior's record in {path}")
    values = list(record["labels"].values())
    if len(set(values)) != len(values) or not all(0 <= value <= 255 for value in values):
        raise InputError(
            f"{path} must name each structure by a value of its own from 0 to 255, but its labels are "
            f"{str(record['labels'])[:300]}; make or copy the file again."
        )
    return dict(record)


def _require_layout(kind: type[Any], table: Mapping[str, Any], where: str) -> None:
    known = {entry.name for entry in fields(kind)}
    settings_from_table(kind, {name: value for name, value in table.items() if name in known}, where)


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that all numbers of a model file are finite.

    Raises:
        InputError: One is NaN or infinite; `far` levels, which may be, are left out.
    """
    for name, tensor in tensors.items():
        if name.startswith("prior.calibration/") or not tensor.is_floating_point():
            continue
        if not torch.isfinite(tensor.float()).all():
            raise InputError(
                f"{path} must hold finite numbers, but {name} has values that are NaN or infinite: it is damaged, or "
                "its training diverged. Copy or make it again."
            )


def require_shapes(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Check that weights are those of a network, which may be on the device `meta`, where it takes no memory.

    Raises:
        InputError: One is missing, too many, or of another shape.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name in {**shapes, **weights}:
        stored = tuple(weights[name].shape) if name in weights else None
        if stored != shapes.get(name):
            raise InputError(
                f"The weights do not fit the recorded architecture: {name} has shape {stored or 'none'} in the file, "
                f"and {shapes.get(name) or 'none'} in the network. Make or copy the model file again."
            )
