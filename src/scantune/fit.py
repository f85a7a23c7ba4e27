"""Fit: what a model carries to the test site, computed from the cases it was trained on."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import torch

from scantune.devices import find_device
from scantune.experts import PatchSettings
from scantune.modelfile import Model
from scantune.preprocess import Prepared
from scantune.prior import FieldOfExperts


def fit(
    model: Model,
    cases: Iterable[Prepared],
    *,
    patches: PatchSettings | None = None,
    summarise: bool = False,
    device: str = "auto",
) -> Model:
    """Computes the prior of a model from its training cases; the network is left as it is.

    Args:
        model: A trained model, its weights already in the precision they are stored in.
        cases: The prepared training cases.
        patches: Patch size, stride, components and threshold of the PCA experts.
        summarise: Whether to keep seven numbers per expert and none of any single subject.
        device: Where to compute.
    """
    where = find_device(device)
    prepared = list(cases)
    network = deepcopy(model.network).to(where)
    prior = FieldOfExperts.fit(
        network,
        [case.volume.to(where) for case in prepared],
        masks=[None if case.padding is None else case.padding.to(where) for case in prepared],
        patches=patches,
    ).to(torch.device("cpu"))
    return replace(model, prior=prior.summarised() if summarise else prior)
