"""A site: scans of one scanner after another; where the adaptation to one ended well, that to the next begins."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from scantune.adaptation.adapt import adapt
from scantune.adaptation.input import AnyScanFiles
from scantune.adaptation.result import Result
from scantune.adaptation.settings import AdaptSettings
from scantune.model.model import Model
from scantune.scans.case import Case


class Site:
    """Adapts to the scans of one site, one after another.

    Scans of a site have their shift in common, so that what worked on one is a better start than the source network.
    Only what the guard has kept is remembered; every scan is judged against the source network all the same, and one
    whose warm start leads nowhere is adapted to from the source. A bad scan changes nothing for the next one.

    Args:
        network: A model, or any PyTorch network.
        settings: Other arguments of `scantune.adapt`, the same for all scans.
    """

    def __init__(self, network: nn.Module | Model, **settings: Any) -> None:
        AdaptSettings(guard=settings.get("guard"), preset=settings.get("preset", AdaptSettings.preset), site=True)
        self.network, self.settings = network, settings
        self.remembered: Mapping[str, Tensor] = {}
        """What the last kept adaptation moved, by name; empty before the first."""
        self.origin: str | None = None
        """The scan that this is from."""

    def adapt(self, scan: Tensor | Case | AnyScanFiles, **settings: Any) -> Result:
        """Adapt to the next scan; settings are those of `scantune.adapt` that are this scan's own, such as `mask`."""
        chosen, start = {**self.settings, **settings}, self.origin
        result = adapt(self.network, scan, **chosen, warm=self.remembered)
        if result.decision.action == "unsolved" and self.remembered:
            result, start = adapt(self.network, scan, **chosen), None
        if result.decision.action == "left alone":
            start = None
        if result.state:
            self.remembered = result.state
            self.origin = "a volume" if result.case is None else result.case.name
        return replace(result, facts={**result.facts, "started_from": start})
