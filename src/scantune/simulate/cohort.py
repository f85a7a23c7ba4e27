"""Cohorts: an anatomy seen by several centres, as cases that look like those of a real data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.simulate.acquisition import acquire
from scantune.simulate.anatomy import Anatomy
from scantune.simulate.atlas import Atlas
from scantune.simulate.cache import Cache
from scantune.simulate.protocols import Centre, bundled_centres
from scantune.simulate.subject import Subject


@dataclass(frozen=True)
class Cohort:
    """A simulated multi-centre data set.

    Attributes:
        name: What it is called.
        anatomy: Makes the anatomy that is used unless another is given.
        labels: Label value of each structure; 0 is background.
        people: What the random numbers of its subjects start from; cohorts of the same people share it.
        made_from: Makes an anatomy of this cohort from an atlas that is given; by default the atlas itself.
        given: Centres to use instead of those that come with scantune under the cohort's name.
    """

    name: str
    anatomy: Callable[[], Anatomy]
    labels: Mapping[str, int]
    people: str = ""
    made_from: Callable[[Atlas], Anatomy] = lambda atlas: atlas
    given: Mapping[str, Centre] | None = None

    @cached_property
    def centres(self) -> Mapping[str, Centre]:
        """Return the centres by name; the first is the source."""
        return bundled_centres(self.name) if self.given is None else self.given

    @property
    def source(self) -> str:
        """Name of the centre that networks are trained at."""
        return next(iter(self.centres))

    def labels_of(self, anatomy: Anatomy | None = None) -> dict[str, int]:
        """Label value of each structure when subjects are made from an anatomy; None for the cohort's own.

        An anatomy with other structures brings its own labels.
        """
        known = anatomy is None or set(self.labels) <= set(anatomy.labels)
        return dict(self.labels if known or anatomy is None else anatomy.labels)

    def cases(
        self,
        centre: str,
        split: str,
        *,
        seed: int = 0,
        anatomy: Anatomy | None = None,
        count: int | None = None,
        start: int = 0,
        slices: int | None = None,
        device: str | torch.device = "cpu",
        cache: str | Path | None = None,
    ) -> Iterator[Case]:
        """Simulate the subjects of one centre's split, one after the other.

        A subject depends on the seed, cohort, centre, split and its number alone; no two share a random stream.

        Args:
            centre: Name of a centre.
            split: Name of one of its splits.
            seed: Another seed gives other people.
            anatomy: What to use instead of the cohort's own anatomy.
            count: Number of subjects; None for the split's own.
            start: The first of them that is wanted, from 0: those before it are counted, but not simulated.
            slices: Slices per scan, spread over the anatomy; None for the protocol's own.
            device: Where to compute.
            cache: A folder in which scans are kept and looked for before they are simulated again.

        Raises:
            InputError: There is no such centre or split.
        """
        site = self._centre(centre)
        if split not in site.splits:
            raise InputError(f"Unknown split {split!r} of centre {centre}. Available: {', '.join(site.splits)}.")
        numbers = range(start, site.splits[split] if count is None else count)
        people = (anatomy or self.anatomy()).to(device)
        kept = None if cache is None else Cache(Path(cache))
        return self._simulated(people, site, split, seed, numbers, slices, kept)

    def _centre(self, name: str) -> Centre:
        if name not in self.centres:
            raise InputError(f"Unknown centre {name!r} of cohort {self.name}. Available: {', '.join(self.centres)}.")
        return self.centres[name]

    def _simulated(
        self,
        anatomy: Anatomy,
        centre: Centre,
        split: str,
        seed: int,
        numbers: range,
        slices: int | None,
        cache: Cache | None,
    ) -> Iterator[Case]:
        made = "" if cache is None else anatomy.fingerprint()
        for index in numbers:
            for state in anatomy.states:
                who = (self.people or self.name, centre.protocol.name, split, seed, index)

                def make(state: str = state, who: tuple[str | int, ...] = who) -> Case:
                    return self._case(anatomy, centre, split, who, state, slices)

                if cache is None:
                    yield make()
                else:
                    yield cache.get((*who, state, slices, centre.identity, repr(self.labels_of(anatomy)), made), make)

    def _case(
        self,
        anatomy: Anatomy,
        centre: Centre,
        split: str,
        who: tuple[str | int, ...],
        state: str,
        slices: int | None,
    ) -> Case:
        rng = np.random.default_rng(_stream(*who))
        protocol = centre.protocol_of(np.random.default_rng(_stream(*who, "protocol")))
        subject = anatomy.subject(rng, protocol.view(slices), state)
        session = protocol.session(tuple(dict.fromkeys(region.tissue for region in anatomy.regions)), rng)
        if state:  # another moment of the same examination has noise of its own
            rng = np.random.default_rng(_stream(*who, state))
        image = acquire(subject, session, rng)
        *_, seed, index = who
        person = f"{self.people or self.name}_{protocol.name}_{split}-{int(index) + 1:03d}" + (
            f"_seed-{seed}" if seed else ""
        )
        return Case(
            name=f"{person}_{state}" if state else person,
            image=_xyz(image),
            affine=_affine(subject),
            reference=_xyz(subject.labels(self.labels_of(anatomy))),
            subject=person,
            site=protocol.name,
            split=split,
        )


def _stream(*parts: str | int) -> int:
    """Derive a seed from names and numbers, the same on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def _xyz(volume: torch.Tensor) -> NDArray[Any]:
    """Convert a volume `(slices, height, width)` to an array `(x, y, z)`."""
    turned: NDArray[Any] = volume.permute(2, 1, 0).contiguous().cpu().numpy()
    return turned


def _affine(subject: Subject) -> NDArray[np.float64]:
    affine = np.diag([*reversed(subject.spacing), 1.0])
    affine[:3, 3] = subject.origin[::-1]
    return affine
