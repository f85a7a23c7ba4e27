"""The fit of a model's prior from the cases that it was trained on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace

import torch
from torch import Tensor, nn

from scantune.backends import Prepared
from scantune.config.settings import PriorSettings
from scantune.experts import PatchSettings
from scantune.model.model import Model
from scantune.prior.coverage import Shown
from scantune.prior.field_of_experts import READ_SUBJECTS, FieldOfExperts
from scantune.prior.fit import density_template
from scantune.prior.prediction_reader import READ_SLICES, HomeScan
from scantune.runtime.devices import find_device
from scantune.scans.volume import Volume
from scantune.training.plan import TrainingPlan
from scantune.training.sources import source_record

OnProgress = Callable[[int, int], None]
"""Called with the number of slices that have gone through the network, and of all."""


def ignore_progress(done: int, slices: int) -> None:
    """Do nothing with the progress."""
    del done, slices


def fit_model(
    model: Model,
    plan: TrainingPlan,
    *,
    settings: PriorSettings | None = None,
    device: str = "auto",
    command: str = "",
    on_progress: OnProgress = ignore_progress,
) -> Model:
    """Fit the prior of a model on the training cases of a plan, and calibrate it on the validation cases.

    Args:
        model: A trained model; its helper networks are kept.
        plan: Where the cases are.
        settings: The prior's settings; by default the table [prior] of the plan's recipe.
        device: Where to compute.
        command: The command line, for the record.
        on_progress: Called after each batch of slices.
    """
    chosen = settings or plan.recipe.prior
    training, held_out = plan.cases(model.backend, device)
    prior = fit_prior(model, training, held_out, settings=chosen, device=device, on_progress=on_progress)
    record = {"fit command": command, "fit data": source_record(plan.source), "fit settings": asdict(chosen)}
    return replace(model, prior=prior, provenance=model.provenance | record)


def fit_prior(
    model: Model,
    cases: Iterable[Prepared],
    held_out: Iterable[Prepared] = (),
    *,
    settings: PriorSettings | None = None,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> FieldOfExperts:
    """Fit a prior of a model's network to prepared cases.

    Args:
        model: A trained model, its weights already in the precision they are stored in.
        cases: The prepared training cases.
        held_out: Prepared cases of the same site that the network was not trained on. The prior is calibrated if there
            are any.
        settings: The prior's settings; by default the paper's.
        device: Where to compute.
        on_progress: Called after each batch of slices.
    """
    chosen = settings or PriorSettings()
    if chosen.summarise:
        density_template(chosen.density).summary()  # refuses a density without summary before the work, not after it
    where = find_device(device)
    network = deepcopy(model.network).to(where)
    shown: list[Shown] = []
    old, new = (
        [
            HomeScan(model.backend.windows(_noted(case, model, shown)).to(where), model.backend.voxel_ml(case))
            for case in split
        ]
        for split in (cases, held_out)
    )
    training = [scan.volume for scan in old]
    with _counted(network, _slices(training, new, chosen), on_progress):
        prior = FieldOfExperts.fit(
            network,
            [volume.images for volume in training],
            masks=[volume.padding for volume in training],
            patches=PatchSettings(chosen.size, chosen.stride, chosen.components, chosen.threshold),
            density=chosen.density,
            alpha=chosen.alpha,
            output_experts=chosen.output_experts,
            task=model.task,
            read=0,
        )
        if not new:
            prior = prior.with_trained(network, old[:READ_SUBJECTS])
        else:
            seen = [(volume.images, volume.padding) for volume in training]
            prior = prior.calibrated(network, new, seen, model.task).with_shown(shown)
    # The cases are windows already.
    prior = replace(prior, window=model.backend.window or None).to(torch.device("cpu"))
    return prior.summarised() if chosen.summarise else prior


def _noted(case: Prepared, model: Model, shown: list[Shown]) -> Prepared:
    """Return a case, and note what it shows."""
    shown.append(Shown.of(case.volume, case.padding, model.backend.voxel_ml(case)))
    return case


def _slices(training: Sequence[Volume], held_out: Sequence[HomeScan], settings: PriorSettings) -> int:
    """Count the slices that go through the network in a fit, those that are read several times as often."""
    passes = 2 + (settings.density != "gaussian") + bool(held_out)
    new = [len(scan.volume.images) for scan in held_out]
    read = sum(2 * slices + 3 * min(slices, READ_SLICES) for slices in new)
    return passes * sum(len(volume.images) for volume in training) + read


@contextmanager
def _counted(network: nn.Module, slices: int, on_progress: OnProgress) -> Iterator[None]:
    """Report the slices that go through a network, and through copies of it that are made meanwhile."""
    done = 0

    def count(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal done
        on_progress(min(done, slices), slices)
        done += len(inputs[0])

    handle = network.register_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()
        on_progress(slices, slices)
