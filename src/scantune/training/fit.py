"""Fit: what a model carries to the test site, computed from the cases it was trained on."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from scantune.config.settings import PriorSettings
from scantune.experts import PatchSettings
from scantune.model.model import Model
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.prior.fit import density_template
from scantune.runtime.devices import find_device
from scantune.scans.preprocess import Prepared


def fit(
    model: Model,
    cases: Iterable[Prepared],
    held_out: Iterable[Prepared] = (),
    *,
    settings: PriorSettings | None = None,
    device: str = "auto",
) -> Model:
    """Computes the prior of a model from its training cases; the network is left as it is.

    Args:
        model: A trained model, its weights already in the precision they are stored in.
        cases: The prepared training cases.
        held_out: Prepared cases of the same site that the network was not trained on; with these the prior is
            calibrated.
        settings: What the prior is made of; by default the paper's choices.
        device: Where to compute.
    """
    chosen = settings or PriorSettings()
    if chosen.summarise:
        density_template(chosen.density).summary()  # says now, not after the passes, where there is none
    where = find_device(device)
    network = deepcopy(model.network).to(where)
    training, new = ([_on(case, where) for case in split] for split in (cases, held_out))
    volumes, masks = [volume for volume, _ in training], [mask for _, mask in training]
    prior = FieldOfExperts.fit(
        network,
        volumes,
        masks=masks,
        patches=PatchSettings(chosen.size, chosen.stride, chosen.components, chosen.threshold),
        density=chosen.density,
        alpha=chosen.alpha,
        output_experts=chosen.output_experts,
        task=model.task,
    )
    if new:
        prior = prior.calibrated(network, new, training, model.task)
    prior = prior.to(torch.device("cpu"))
    return replace(model, prior=prior.summarised() if chosen.summarise else prior)


def _on(case: Prepared, device: torch.device) -> tuple[Tensor, Tensor | None]:
    return case.volume.to(device), None if case.padding is None else case.padding.to(device)
