"""The state of a training run in one file: weights, optimiser, best network so far, history.

The file is a `.safetensors` file whose header carries the rest as JSON. It is replaced in one move, so at any
moment the path holds a complete state. Random generators have no state here: their streams are functions of
the seed and the iteration.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scantune.errors import InputError
from scantune.scans.tensors import read_tensors, write_tensors

CHECKPOINT_FORMAT = "scantune training run, version 2"


@dataclass(frozen=True)
class HistoryRecord:
    """One line of a run's history."""

    iteration: int
    loss: float
    """Mean training loss since the line before."""
    score: float | None
    """Validation score, if this iteration validated."""


@dataclass
class RunState:
    """Everything that changes while a network is trained."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    best: dict[str, Tensor] = field(default_factory=dict)
    """The state of the best network so far; empty before the first validation."""
    best_iteration: int = 0
    best_score: float = -1.0
    iteration: int = 0
    history: list[HistoryRecord] = field(default_factory=list)

    def save(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Write the state in one move.

        Args:
            path: The checkpoint; its folder is made if it is missing.
            identity: What a run must share to be resumed from this file, as JSON.
        """
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for number, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in values.items()}
        record = {
            "identity": dict(identity),
            "iteration": self.iteration,
            "best_iteration": self.best_iteration,
            "best_score": self.best_score,
            "history": [asdict(line) for line in self.history],
        }
        # A copy of each tensor: tied weights share memory, which the format refuses.
        separate = {name: value.detach().clone() for name, value in tensors.items()}
        write_tensors(path, separate, {"format": CHECKPOINT_FORMAT, "run": json.dumps(record)})

    def restore(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint.

        Args:
            path: The checkpoint.
            identity: What this run is; it must be what the checkpoint's run was.

        Raises:
            InputError: The file is no checkpoint, or belongs to another run.
        """
        tensors, record = _read(path)
        _check_same_run(path, record["identity"], identity)
        try:
            self.network.load_state_dict(_under("network", tensors))
        except RuntimeError as error:
            raise InputError(
                f"The checkpoint {path} belongs to another network; choose another checkpoint file."
            ) from error
        device = next(self.network.parameters()).device
        self.best = {name: value.to(device) for name, value in _under("best", tensors).items()}
        self._restore_optimizer(_under("optimizer", tensors))
        self.iteration, self.best_iteration = record["iteration"], record["best_iteration"]
        self.best_score = record["best_score"]
        self.history = [HistoryRecord(**line) for line in record["history"]]

    def keep_as_best(self, score: float) -> None:
        """Remember the network of this iteration as the best so far."""
        self.best = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.best_iteration, self.best_score = self.iteration, score

    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = [value for group in self.optimizer.param_groups for value in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, name = key.split(".", 1)
            like = parameters[int(number)]
            # The fused optimiser wants its moments laid out in memory as the weights are.
            laid_out = torch.empty_like(like).copy_(value) if value.shape == like.shape else value
            state.setdefault(int(number), {})[name] = laid_out
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = prefix + "."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != CHECKPOINT_FORMAT:
        raise InputError(
            f"{path} is not a checkpoint of this version of scantune (expected {CHECKPOINT_FORMAT!r}, got "
            f"{metadata.get('format')!r}); choose another checkpoint file."
        )
    return tensors, json.loads(metadata["run"])


def _check_same_run(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            raise InputError(
                f"The checkpoint {path} is of a run with {name} = {before.get(name)!r}, this run has "
                f"{now.get(name)!r}; put it back to resume, or choose another checkpoint file to start over."
            )
