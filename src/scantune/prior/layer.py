"""Experts of one layer with their training densities, and families of such layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from scantune.densities import DIVERGENCES, STORED, Density, Divergence, Gaussian, Standardization
from scantune.errors import InputError
from scantune.experts import EXPERTS, Experts, Recording
from scantune.experts.cnn import OUTPUT
from scantune.networks import Affine

MIN_VARIANCE_SHARE = 1e-8
"""Experts whose variance is below this share of the group's mean second moment say nothing and are dropped."""

MINIMUM_ACTIVE = 32
"""Fewest active patches in a volume from which a density is estimated."""

ENERGY = DIVERGENCES["kl"]
"""What a prior compares by, unless it is asked to compare otherwise."""


@dataclass(frozen=True)
class LayerExperts:
    """Experts of one layer, standardised by training mean and deviation, with their densities p_s (Eq. 10).

    Args:
        center: Training mean of each expert's outputs `(experts,)`.
        scale: Training deviation `(experts,)`.
        kept: False for experts that hardly vary in training `(experts,)`.
        density: Densities of the standardised outputs of the training subjects.
        divergence: The divergence by which a scan is compared with them; not stored.
    """

    center: Tensor
    scale: Tensor
    kept: Tensor
    density: Density
    divergence: Divergence = ENERGY

    @classmethod
    def from_moments(cls, moments: Gaussian) -> Self:
        """Standardise Gaussians given by raw moments `(subjects, experts)` of the training subjects."""
        center = moments.mean.mean(0)
        pooled = moments.variance.mean(0) + moments.mean.var(0, correction=0)
        energy = (pooled + center.square()).mean()
        kept = (pooled > MIN_VARIANCE_SHARE * energy) & (moments.variance.min(0).values > 0)
        scale = torch.where(kept, pooled, 1).sqrt()
        mean = torch.where(kept, (moments.mean - center) / scale, 0)
        variance = torch.where(kept, moments.variance / scale.square(), 1)
        return cls(center.float(), scale.float(), kept, Gaussian(mean.float(), variance.float()))

    def measure(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Return additive statistics `(statistics, experts)` of outputs `(slices, experts, *spatial)`."""
        return self.density.measure(values, weights, Standardization(self.center, self.scale))

    def compare(self, statistics: Tensor) -> Tensor:
        """Return the divergence of a scan from the training subjects, mean over the kept experts, a scalar."""
        return self._mean(self.divergence.value(self.density, self.density.estimate(statistics)))

    def floor(self) -> Tensor:
        """Return the smallest value of `compare`, a scalar; NaN if it is not known."""
        least = self.divergence.floor(self.density)
        return self.center.new_tensor(torch.nan) if least is None else self._mean(least)

    def left_out(self) -> Tensor:
        """Compare each training subject with the others, `(subjects,)`; empty for a single subject."""
        number = len(next(iter(self.density.tensors().values())))
        each = [self.density.subject((subject + 0.5) / number) for subject in range(number)]
        if number < 2:
            return self.center.new_empty(0)
        others = [type(one).joined([*each[:n], *each[n + 1 :]]) for n, one in enumerate(each)]
        return torch.stack([self._mean(self.divergence.value(*pair)) for pair in zip(others, each, strict=True)])

    def _mean(self, values: Tensor) -> Tensor:
        return torch.where(self.kept, values, 0).sum() / self.kept.sum()

    def folded(self, affine: Affine) -> Self:
        """Return the experts for outputs that went through an affine map; standardised outputs stay the same."""
        scale, shift = affine.scale.to(self.center), affine.shift.to(self.center)
        return replace(self, center=self.center * scale + shift, scale=self.scale * scale)

    def summarised(self) -> Self:
        """Return a copy without per-subject numbers."""
        return replace(self, density=self.density.summary())

    def to(self, device: torch.device) -> Self:
        """Return a copy on a device."""
        tensors = {key: value.to(device) for key, value in self.density.tensors().items()}
        density = type(self.density).from_tensors(tensors, self.density.settings())
        return type(self)(self.center.to(device), self.scale.to(device), self.kept.to(device), density, self.divergence)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are stored: standardisation, then density."""
        own = {"center": self.center, "scale": self.scale, "kept": self.kept.to(torch.uint8)}
        return own | {f"density.{key}": value for key, value in self.density.tensors().items()}

    def record(self) -> dict[str, Any]:
        """Return the form of the density and its settings."""
        return {"density": self.density.name, **self.density.settings()}

    @classmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Restore the experts from `record` and `tensors`."""
        settings = {key: value for key, value in record.items() if key != "density"}
        density = STORED[record["density"]].from_tensors(without_prefix(tensors, "density."), settings)
        restored = cls(tensors["center"], tensors["scale"], tensors["kept"].bool(), density)
        restored._require_sound()
        return restored

    def _require_sound(self) -> None:
        """Check what was stored, by comparing an empty scan with it.

        Raises:
            InputError: Numbers are missing, or are none of a density.
        """
        experts = len(self.center)
        alike = self.center.shape == self.scale.shape == self.kept.shape == (experts,)
        if alike and self.center.is_floating_point() and bool((self.scale > 0).all()) and bool(self.kept.any()):
            empty = self.measure(torch.zeros(1, experts, 2, 2), None)
            if bool(torch.isfinite(self.compare(empty))) and bool(torch.isfinite(self.floor())):
                return
        raise InputError(
            "The prior is damaged: center, scale, kept and density of a layer must have a number for each expert, with "
            "deviations and densities above 0. Fit the prior again, or copy the file again."
        )


@dataclass(frozen=True)
class ExpertFamily:
    """One family of experts (CNN or PCA) with its layers."""

    experts: Experts
    layers: dict[str, LayerExperts]

    def measure(self, recording: Recording, padding: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        """Yield additive statistics of one batch by layer, differentiable."""
        for group, values, weights in self.experts.outputs(recording, padding):
            if group in self.layers:
                yield group, self.layers[group].measure(values, weights)

    def compare(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the divergence of each layer, scalars, from statistics named `family/layer`."""
        each = [statistics[f"{self.experts.name}/{group}"] for group in self.layers]
        return dict(zip(self.layers, self._side_by_side.compare(torch.cat(each, 1)).unbind(), strict=True))

    @cached_property
    def _side_by_side(self) -> "_SideBySide":
        return _SideBySide.of(list(self.layers.values()))

    def with_layers(self, change: Callable[[LayerExperts], LayerExperts]) -> Self:
        """Return a copy with every layer changed."""
        return replace(self, layers={group: change(layer) for group, layer in self.layers.items()})

    def folded(self, maps: Mapping[str, Affine]) -> Self:
        """Return the family for a network whose layers' outputs went through affine maps."""
        experts, left = self.experts.folded(maps)
        layers = {g: layer.folded(left[g]) if g in left else layer for g, layer in self.layers.items()}
        return type(self)(experts, layers)

    def to(self, device: torch.device) -> Self:
        """Return a copy on a device."""
        tensors = {key: value.to(device) for key, value in self.experts.tensors().items()}
        return replace(self.with_layers(lambda layer: layer.to(device)), experts=replace(self.experts, **tensors))  # type: ignore[type-var]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that are stored, by name."""
        for key, value in self.experts.tensors().items():
            yield f"experts/{key}", value
        for group, layer in self.layers.items():
            for key, value in layer.tensors().items():
                yield f"{group}/{key}", value

    def record(self) -> dict[str, Any]:
        """Return everything but the tensors, as JSON."""
        groups = {group: layer.record() for group, layer in self.layers.items()}
        return {"experts": self.experts.record(), "groups": groups}

    @classmethod
    def restore(cls, name: str, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Restore the family from `record` and `tensors`."""
        experts = EXPERTS[name].restore(record["experts"], without_prefix(tensors, "experts/"))
        layers = {
            name: LayerExperts.restore(entry, without_prefix(tensors, f"{name}/"))
            for name, entry in record["groups"].items()
        }
        known = {*experts.layers(), *([OUTPUT] if "output" in record["experts"] else [])}
        if unknown := set(layers) - known:
            raise InputError(
                f"The prior is damaged: it has densities of {', '.join(sorted(unknown))}, but no experts there. Fit "
                "the prior again, or copy the file again."
            )
        restored = cls(experts, layers)
        restored._require_alike()
        return restored

    def _require_alike(self) -> None:
        """Check that the densities of all groups can be compared at once, by comparing an empty scan with them.

        Raises:
            InputError: They are of different numbers of subjects, or of other shapes.
        """
        try:
            empty = [layer.measure(torch.zeros(1, len(layer.center), 2, 2), None) for layer in self.layers.values()]
            found = self._side_by_side.compare(torch.cat(empty, 1))
            alike = found.shape == (len(self.layers),) and bool(torch.isfinite(found).all())
        except (RuntimeError, IndexError):
            alike = False
        if not alike:
            raise InputError(
                "The prior is damaged: the densities of all layers must be of the same form and number of subjects. "
                "Fit the prior again, or copy the file again."
            )


@dataclass(frozen=True)
class _SideBySide:
    """Experts of several layers side by side, to be compared at once.

    Args:
        density: Of all experts.
        divergence: The divergence by which they are compared.
        kept: Whether an expert counts `(experts,)`.
        shares: An expert's share of its layer's mean `(layers, experts)`.
    """

    density: Density
    divergence: Divergence
    kept: Tensor
    shares: Tensor

    @classmethod
    def of(cls, layers: Sequence[LayerExperts]) -> Self:
        density = type(layers[0].density).beside([layer.density for layer in layers])
        rows = [layer.kept / layer.kept.sum() for layer in layers]
        return cls(density, layers[0].divergence, torch.cat([each.kept for each in layers]), torch.block_diag(*rows))  # type: ignore[no-untyped-call]

    def compare(self, statistics: Tensor) -> Tensor:
        """Return the mean divergence of each layer, `(layers,)`, from statistics `(statistics, experts)`."""
        values = self.divergence.value(self.density, self.density.estimate(statistics))
        return self.shares.to(values) @ torch.where(self.kept, values, 0)


def with_enough_patches(statistics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the statistics without PCA experts of too few active patches."""
    return {
        key: value
        for key, value in statistics.items()
        if not key.startswith("pca/") or float(value[0, 0]) >= MINIMUM_ACTIVE
    }


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, by names without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
