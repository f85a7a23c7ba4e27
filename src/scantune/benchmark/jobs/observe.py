"""The Dice along an adaptation: predictions of chosen steps, scored while the run goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scantune.adaptation.prediction import predict
from scantune.benchmark.jobs.scoring import Structures, dices
from scantune.evaluation.rows import MEAN, WHOLE
from scantune.methods import Method, find_method
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.scans.volume import Volume


@dataclass
class DiceObserver:
    """Scores of the predictions at chosen steps of a run. The run is the same as without them.

    Attributes:
        name: The method.
        model: The model that is adapted.
        case: The scan with its reference.
        structures: Structures that are scored.
        score: The structure whose Dice is noted first.
        steps: Steps to score; step 0 is the start of the run.
    """

    name: str
    model: Model
    case: Case
    structures: Structures
    score: str
    steps: Sequence[int]
    found: dict[int, dict[str, float]] = field(default_factory=dict)

    def method(self) -> type[Method]:
        """Return the method, with a hook at the beginning of each step if any step is to be scored."""
        kind = find_method(self.name)
        if not self.steps:
            return kind
        prepared = self.model.backend.prepare(self.case)
        whole = self.model.backend.windows(prepared)
        watcher = self

        class Watched(kind):  # type: ignore[valid-type, misc]
            def begin(self, step: int, volume: Volume, generator: torch.Generator) -> None:
                super().begin(step, volume, generator)
                # The first score counts: after a run, the objective of the source network may be asked for as step 0.
                if step in watcher.steps and step not in watcher.found:
                    # Steps may see a part of the slices; the score is of the whole scan.
                    seen = predict(self.network, whole.to(volume.images.device), self.task, None)
                    labels = watcher.model.backend.restore(seen.probabilities, prepared)
                    watcher.found[step] = dices(labels, watcher.case, watcher.structures, watcher.score == WHOLE)

        return Watched

    def noted(self, trace: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the trace with the Dice of the scored steps: that of the score, and by structure."""
        return [{**row, **self._dice(row["step"])} for row in trace]

    def _dice(self, step: int) -> dict[str, Any]:
        if step not in self.found:
            return {}
        found = self.found[step]
        return {"dice": found.get(self.score, found.get(MEAN)), "dices": found}
