"""Fit: what a model carries to the test site, computed from the cases it was trained on."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from scantune.devices import find_device
from scantune.estimation import blank
from scantune.experts import PatchSettings
from scantune.modelfile import Model
from scantune.preprocess import Prepared
from scantune.prior import FieldOfExperts


def fit(
    model: Model,
    cases: Iterable[Prepared],
    held_out: Iterable[Prepared] = (),
    *,
    patches: PatchSettings | None = None,
    density: str = "gaussian",
    summarise: bool = False,
    device: str = "auto",
) -> Model:
    """Computes the prior of a model from its training cases; the network is left as it is.

    Args:
        model: A trained model, its weights already in the precision they are stored in.
        cases: The prepared training cases.
        held_out: Prepared cases of the same site that the network was not trained on; with these the prior is
            calibrated.
        patches: Patch size, stride, components and threshold of the PCA experts.
        density: The form of the experts' densities, a name of `scantune.densities.DENSITIES`.
        summarise: Whether to keep seven numbers per expert and none of any single subject.
        device: Where to compute.
    """
    if summarise:
        blank(density).summary()  # says now, not after the passes, where there is none
    where = find_device(device)
    network = deepcopy(model.network).to(where)
    training, new = ([_on(case, where) for case in split] for split in (cases, held_out))
    volumes, masks = [volume for volume, _ in training], [mask for _, mask in training]
    prior = FieldOfExperts.fit(network, volumes, masks=masks, patches=patches, density=density, task=model.task)
    if new:
        prior = prior.calibrated(network, new, training, model.task)
    prior = prior.to(torch.device("cpu"))
    return replace(model, prior=prior.summarised() if summarise else prior)


def _on(case: Prepared, device: torch.device) -> tuple[Tensor, Tensor | None]:
    return case.volume.to(device), None if case.padding is None else case.padding.to(device)
