"""Coefficients of the assessment: the shipped ones, and those that were fitted to degraded scans of a site."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Self

import torch
from torch import Tensor

from scantune.errors import InputError


@dataclass(frozen=True)
class Coefficients:
    """Weights of the excesses, the range about the estimate, and the limits of the verdicts.

    They were learnt on toy networks; `results/assessment.md` says how.

    Args:
        unsteady: What the excess of unsteadiness counts.
        size: What the excess of a size counts.
        contact: What the mean excess of contacts counts; the worse of this and the sum of the others is taken.
        widest: Multiples of the odds at the low and the high end of the range.
        shifts: What is added to the odds at the low end and taken away at the high end.
        fine: From this share of home Dice on a prediction is fine.
        failed: Below this share it has failed.
        least: Dice that a fine prediction must not be likely to miss, however good the network is at home.
    """

    unsteady: float = 1.7
    size: float = 1.8
    contact: float = 6.0
    widest: tuple[float, float] = (3.2, 0.42)
    shifts: tuple[float, float] = (0.07, 0.09)
    fine: float = 0.92
    failed: float = 0.75
    least: float = 0.7

    def without_contacts(self) -> Self:
        """Leave contacts out, which reveal failed predictions but do not tell one stage from the next."""
        return replace(self, contact=0.0)


SHIPPED = Coefficients()


@dataclass(frozen=True)
class Contest:
    """What a local and a shipped setting come to on scans that the local one was not fitted to.

    Args:
        local: Of the local setting.
        shipped: Of the shipped one.
    """

    local: float
    shipped: float


@dataclass(frozen=True)
class FitCounts:
    """Numbers behind local coefficients.

    Args:
        people: People.
        families: Families of degradations.
        predictions: Predictions that were read.
        adaptations: Adaptations whose stages are among them.
    """

    people: int
    families: int
    predictions: int
    adaptations: int


@dataclass(frozen=True)
class LocalCoefficients:
    """Coefficients and a margin fitted to degraded held-out scans; each is used only if it does no worse there.

    Args:
        fitted: The coefficients.
        error: Mean distance of the expected and the true Dice, of people and families of degradations left out.
        reach: Mean loss of the ends of the range (pinball loss, for 1 and 9 of 10) of the same.
        gain: Smallest rise of the expected Dice for which a stage is kept; None if it was not fitted.
        value: Mean gain of Dice of whole adaptations left out, losses counted several times.
        counts: What they were fitted to.
    """

    fitted: Coefficients
    error: Contest
    reach: Contest
    gain: float | None
    value: Contest
    counts: FitCounts

    @property
    def used(self) -> Coefficients:
        """Return the coefficients that count: of weights and of the range, each the local or the shipped ones."""
        chosen = SHIPPED
        if self.wins:
            weights = {name: getattr(self.fitted, name) for name in ("unsteady", "size", "contact")}
            chosen = replace(chosen, **weights)
        if self.reach.local <= self.reach.shipped:
            chosen = replace(chosen, widest=self.fitted.widest, shifts=self.fitted.shifts)
        return chosen

    @property
    def wins(self) -> bool:
        """Return True if the local weights predict no worse than the shipped ones."""
        return self.error.local <= self.error.shipped

    @property
    def used_gain(self) -> float | None:
        """Return the local margin, or None if the shipped one counts."""
        return self.gain if self.value.local > self.value.shipped else None

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays that a model file stores."""
        values = self.fitted
        numbers = [values.unsteady, values.size, values.contact, *values.widest, *values.shifts]
        contests = {name: torch.tensor(astuple(getattr(self, name))) for name in ("error", "reach", "value")}
        stored = {"coefficients": torch.tensor(numbers), **contests, "counts": torch.tensor(astuple(self.counts))}
        return stored | ({} if self.gain is None else {"gain": torch.tensor([self.gain])})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self | None:
        """Restore the coefficients that `tensors` stored, or return None if there are none.

        Raises:
            InputError: An array is missing, or has another length or no finite value.
        """
        if not tensors:
            return None
        lengths = {"coefficients": 7, "error": 2, "reach": 2, "value": 2, "counts": 4, "gain": 1}
        optional = {"gain": tensors.get("gain", torch.zeros(1))}
        for name, length in lengths.items():
            found = {**optional, **tensors}.get(name)
            if found is None or tuple(found.shape) != (length,) or not bool(torch.isfinite(found).all()):
                raise InputError(
                    f"The calibration is damaged: {name} of the local coefficients must have {length} finite numbers. "
                    "Fit the prior again, or copy the file again."
                )
        unsteady, size, contact, low, high, down, up = map(float, tensors["coefficients"])
        fitted = Coefficients(unsteady, size, contact, (low, high), (down, up))
        error, reach, value = (Contest(*map(float, tensors[name])) for name in ("error", "reach", "value"))
        gain = float(tensors["gain"][0]) if "gain" in tensors else None
        return cls(fitted, error, reach, gain, value, FitCounts(*map(int, tensors["counts"])))
