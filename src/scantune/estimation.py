"""Fitting a Field of Experts: two passes over the training subjects, a mini-batch in memory at a time."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scantune.densities import Gaussian
from scantune.errors import InputError
from scantune.experts import (
    CNNExperts,
    Experts,
    LayerChoice,
    PatchScatter,
    PatchSettings,
    PCAExperts,
    Recorder,
    Recording,
    choose_layers,
)
from scantune.fields import Field
from scantune.tasks import Foreground, Segmentation

MINIMUM_ACTIVE = 32
"""Fewer active patches than this in a volume do not make a density."""


@dataclass(frozen=True)
class Fitted:
    """What the fit found: the expert families with the densities of their groups."""

    families: list[tuple[Experts, dict[str, Field]]]
    subjects: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The training subjects, seen through the network a mini-batch at a time."""

    network: nn.Module
    volumes: Sequence[Tensor]
    masks: Sequence[Tensor | None]
    batch: int

    def recordings(self, subject: int, record: Recorder) -> Iterator[tuple[Recording, Tensor | None]]:
        """Forward passes over one subject's slices, with the padding of each."""
        volume, mask = self.volumes[subject], self.masks[subject]
        for start in range(0, len(volume), self.batch):
            stop = start + self.batch
            yield record(volume[start:stop]), None if mask is None else mask[start:stop]


@torch.no_grad()
def estimate(
    network: nn.Module,
    volumes: Sequence[Tensor],
    masks: Sequence[Tensor | None] | None,
    *,
    layers: LayerChoice,
    last: str | None,
    foreground: Foreground,
    patches: PatchSettings | None,
    batch: int,
) -> Fitted:
    """Fits CNN experts, then PCA experts; the arguments are those of `FieldOfExperts.fit`."""
    _check(volumes, masks)
    network = deepcopy(network).eval()
    source = Source(network, volumes, masks or [None] * len(volumes), batch)
    first = volumes[0][:1]
    chosen = choose_layers(network, first, layers)
    task = Segmentation.detect(network, first, foreground)
    settings = patches or PatchSettings.for_dimensions(volumes[0].ndim - 2)
    scatter = PatchScatter(last or chosen[-1], settings, task)

    cnn = CNNExperts(tuple(chosen))
    moments = _first_pass(source, cnn, scatter)
    fields, notes = _named_fields(moments)
    families: list[tuple[Experts, dict[str, Field]]] = [(CNNExperts(tuple(fields)), fields)]

    pca = scatter.experts()
    if pca is not None:
        field, note = _second_pass(source, pca)
        if field is not None:
            families.append((pca, {pca.layer: field}))
        notes += note
    else:
        notes.append(
            f"No PCA experts: {scatter.number} active patches in all training subjects, too few for "
            f"{settings.components} components."
        )
    return Fitted(families, len(volumes), tuple(notes))


def _check(volumes: Sequence[Tensor], masks: Sequence[Tensor | None] | None) -> None:
    if not volumes:
        raise InputError("A prior needs at least one training volume, got none.")
    if masks is not None and len(masks) != len(volumes):
        raise InputError(f"masks must hold one entry per volume: {len(volumes)} volumes, {len(masks)} masks.")
    for number, volume in enumerate(volumes):
        if volume.ndim not in (4, 5) or not volume.numel():
            raise InputError(
                f"Training volume {number} has shape {tuple(volume.shape)}, expected (slices, channels, height, "
                "width), or (1, channels, depth, height, width) for a 3D network."
            )
        if not torch.isfinite(volume).all():
            raise InputError(f"Training volume {number} holds NaN or infinite values; leave it out or repair it.")


def _first_pass(source: Source, cnn: CNNExperts, scatter: PatchScatter) -> dict[str, Gaussian]:
    """Raw moments of every layer's channels `(subjects, channels)`, and the patches' scatter, in double precision."""
    subjects: list[dict[str, Tensor]] = []
    with Recorder(source.network, [*cnn.layers(), scatter.layer]) as record:
        for subject in range(len(source.volumes)):
            total: dict[str, Tensor] = {}
            for recording, padding in source.recordings(subject, record):
                for layer, values, weights in cnn.outputs(recording, padding):
                    counted = None if weights is None else weights.double()
                    total[layer] = total.get(layer, 0) + Gaussian.measure(values.double(), counted)
                scatter.add(recording, padding)
            if min(float(statistics[0].min()) for statistics in total.values()) < 1:
                raise InputError(f"Training volume {subject} is all padding at some layer; leave it out.")
            subjects.append(total)
    return {layer: _stack([Gaussian.estimate(total[layer]) for total in subjects]) for layer in subjects[0]}


def _second_pass(source: Source, pca: PCAExperts) -> tuple[Field | None, list[str]]:
    """The density of the loadings over subjects with enough active patches."""
    usable: list[Gaussian] = []
    with Recorder(source.network, pca.layers()) as record:
        for subject in range(len(source.volumes)):
            total: Tensor | None = None
            for recording, padding in source.recordings(subject, record):
                for _, values, weights in pca.outputs(recording, padding):
                    counted = None if weights is None else weights.double()
                    part = Gaussian.measure(values.double(), counted)
                    total = part if total is None else total + part
            if total is not None and float(total[0, 0]) >= MINIMUM_ACTIVE:
                usable.append(Gaussian.estimate(total))
    left_out = len(source.volumes) - len(usable)
    notes = (
        [f"PCA experts leave out {left_out} subjects with under {MINIMUM_ACTIVE} active patches."] if left_out else []
    )
    if not usable:
        return None, notes
    fields, dropped = _named_fields({pca.layer: _stack(usable)})
    return fields.get(pca.layer), notes + dropped


def _stack(densities: Sequence[Gaussian]) -> Gaussian:
    return Gaussian(torch.cat([d.mean for d in densities]), torch.cat([d.variance for d in densities]))


def _named_fields(moments: dict[str, Gaussian]) -> tuple[dict[str, Field], list[str]]:
    """Fields by layer, and a sentence for every layer with experts that had to be dropped."""
    fields = {layer: Field.from_moments(gaussian) for layer, gaussian in moments.items()}
    notes = []
    for layer, field in fields.items():
        dropped = (~field.kept).nonzero().flatten().tolist()
        if dropped:
            names = ", ".join(map(str, dropped))
            notes.append(f"Layer {layer}: experts {names} hardly vary in training and are dropped.")
    kept = {layer: field for layer, field in fields.items() if bool(field.kept.any())}
    if not kept:
        raise InputError("No expert varies over the training volumes; is the network constant, or are the volumes?")
    return kept, notes
