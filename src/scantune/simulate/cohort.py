"""Cohorts: an anatomy seen by several centres, as cases that look like those of a real data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.scans import Case
from scantune.simulate.acquisition import Protocol, acquire
from scantune.simulate.anatomy import Anatomy, FieldOfView, Subject


@dataclass(frozen=True)
class Centre:
    """One centre of a cohort.

    Attributes:
        protocol: How it scans.
        splits: Number of subjects in each of its splits.
    """

    protocol: Protocol
    splits: Mapping[str, int]


@dataclass(frozen=True)
class Cohort:
    """A simulated multi-centre data set.

    Attributes:
        name: What it is called.
        labels: Label value of each structure; 0 is background.
        tissue_labels: Label value of each tissue of the anatomy.
        anatomy: Makes the anatomy that is used unless another is given.
        centres: The centres by name; the first is the source.
    """

    name: str
    labels: Mapping[str, int]
    tissue_labels: Mapping[str, int]
    anatomy: Callable[[], Anatomy]
    centres: Mapping[str, Centre]

    @property
    def source(self) -> str:
        """Name of the centre that networks are trained at."""
        return next(iter(self.centres))

    def cases(
        self,
        centre: str,
        split: str,
        *,
        seed: int = 0,
        anatomy: Anatomy | None = None,
        count: int | None = None,
        slices: int = 16,
        device: str | torch.device = "cpu",
    ) -> Iterator[Case]:
        """Simulate the subjects of one centre's split, one after the other.

        A subject depends on the seed, cohort, centre, split and its number alone; no two share a random stream.

        Args:
            centre: Name of a centre.
            split: Name of one of its splits.
            seed: Another seed gives other people.
            anatomy: What to use instead of the cohort's own anatomy.
            count: Number of subjects; None for the split's own.
            slices: Axial slices per scan, spread over the anatomy.
            device: Where to compute.

        Raises:
            InputError: There is no such centre or split.
        """
        site = self._centre(centre)
        if split not in site.splits:
            raise InputError(f"Unknown split {split!r} of centre {centre}. Available: {', '.join(site.splits)}.")
        number = site.splits[split] if count is None else count
        people = (anatomy or self.anatomy()).to(device)
        return (self._case(people, centre, split, seed, index, slices) for index in range(number))

    def _centre(self, name: str) -> Centre:
        if name not in self.centres:
            raise InputError(f"Unknown centre {name!r} of cohort {self.name}. Available: {', '.join(self.centres)}.")
        return self.centres[name]

    def _case(self, anatomy: Anatomy, centre: str, split: str, seed: int, index: int, slices: int) -> Case:
        rng = np.random.default_rng(_stream(self.name, centre, split, seed, index))
        protocol = self.centres[centre].protocol
        view = FieldOfView(slices=slices, in_plane=protocol.in_plane, thickness=protocol.thickness)
        subject = anatomy.subject(rng, view)
        image = acquire(subject, protocol.jittered(rng), rng)
        name = f"{self.name}_{centre}_{split}-{index + 1:03d}" + (f"_seed-{seed}" if seed else "")
        return Case(
            name=name,
            image=_xyz(image),
            affine=_affine(subject),
            reference=_xyz(subject.labels(self.tissue_labels)),
            subject=name,
            site=centre,
            split=split,
        )


def _stream(*parts: str | int) -> int:
    """A seed from names and numbers, the same on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def _xyz(volume: torch.Tensor) -> NDArray[Any]:
    """An array `(x, y, z)` of a volume `(slices, height, width)`."""
    return np.ascontiguousarray(volume.cpu().numpy().transpose(2, 1, 0))


def _affine(subject: Subject) -> NDArray[np.float64]:
    affine = np.diag([*reversed(subject.spacing), 1.0])
    affine[:3, 3] = subject.origin[::-1]
    return affine
