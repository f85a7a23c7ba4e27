"""What every measurement of `speed/speed.py` stands on: a device, a clock, the bundled model and its scans."""

import argparse
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

import scantune
from scantune import AdaptableNetwork, FieldOfExperts
from scantune.adaptation.sampling import WholeVolume
from scantune.methods import ModelParts
from scantune.methods.foe import FoECNNPCA
from scantune.networks import set_memory_layout
from scantune.scans.volume import Volume
from scantune.simulate import COHORTS
from scantune.tasks import Segmentation

Row = tuple[str, str]

WARM = 2
"""Calls that are not timed: the first compiles kernels, the second records them, where there is a GPU."""


class Ground:
    """One device, one clock, one model."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.quick, self.paper_steps = arguments.quick, arguments.paper_steps
        self.device = torch.device(arguments.device)
        self.tick = time.process_time if arguments.clock == "processor" else time.perf_counter
        self.repeats = 2 if arguments.quick else 5
        self.slices, self.size = arguments.slices, arguments.size
        self.centre, self.person = arguments.centre, arguments.person
        self.model = scantune.load("brain")
        assert self.model.prior is not None
        self.network = self.model.network.to(self.device).eval()
        self.prior = self.model.prior.to(self.device)
        self.cohort = COHORTS["contrasts"]

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.tick()

    def best(self, work: Callable[[], object]) -> float:
        """Seconds of one call, the best of some after those that warm up."""
        return self.race(work)[0]

    def race(self, *works: Callable[[], object]) -> list[float]:
        """The same of each, by turns, so that a machine that is slower for a while is so for all."""
        times: list[list[float]] = [[] for _ in works]
        for _ in range(self.repeats + WARM):
            for work, each in zip(works, times, strict=True):
                start = self.now()
                work()
                each.append(self.now() - start)
        return [min(each[WARM:]) for each in times]

    def scan(self, centre: str, slices: int, size: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """A simulated scan `(slices, 1, size, size)` and its labels `(slices, size, size)`."""
        case = next(self.cohort.cases(centre, "test", start=start, count=start + 1, slices=min(slices, 16)))
        prepared = self.model.backend.prepare(case)
        assert prepared.reference is not None
        images = F.interpolate(prepared.volume, size=(size, size), mode="bilinear")
        labels = F.interpolate(prepared.reference[:, None].float(), size=(size, size)).long()[:, 0]
        again = torch.arange(slices) % len(images)
        return images[again].to(self.device), labels[again].to(self.device)

    def step(
        self, network: AdaptableNetwork, prior: FieldOfExperts, images: Tensor, kept: int | None = None
    ) -> Callable[[], object]:
        """What one step of `fast` computes."""
        method = FoECNNPCA(ModelParts(Segmentation(), prior))
        working = deepcopy(network).requires_grad_(False)
        set_memory_layout(working, "channels last")
        moving = method.parameters(working)
        method.prepare(working)
        for parameter in moving.values():
            parameter.requires_grad_(True)
        volume, generator = Volume(images), torch.Generator()
        method.start(volume, generator)
        gradients = WholeVolume(kept=kept).gradients(method, volume, generator)

        def work() -> object:
            gradients.clear()
            return gradients()

        return work
