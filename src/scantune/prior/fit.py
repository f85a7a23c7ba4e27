"""Fitting a Field of Experts: two or three passes over the training subjects, a mini-batch in memory at a time."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scantune.densities import ALPHA, DENSITIES, Density, Gaussian
from scantune.errors import InputError
from scantune.experts import (
    OUTPUT,
    CNNExperts,
    LayerChoice,
    PatchScatter,
    PatchSettings,
    Recorder,
    Recording,
    choose_layers,
)
from scantune.prior.layer import ExpertFamily, LayerExperts
from scantune.tasks import Foreground, Segmentation, Task

MINIMUM_ACTIVE = 32
"""Fewer active patches than this in a volume do not make a density."""


@dataclass(frozen=True)
class Fitted:
    """What the fit found: the expert families, by name, with the densities of their groups."""

    families: dict[str, ExpertFamily]
    subjects: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TrainingSubjects:
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
    density: Density,
    output_experts: bool,
    task: Task | None,
) -> Fitted:
    """Fits CNN experts, then PCA experts; the arguments are those of `FieldOfExperts.fit`, but for a blank density."""
    _check(volumes, masks)
    network = deepcopy(network).eval()
    source = TrainingSubjects(network, volumes, masks or [None] * len(volumes), batch)
    first = volumes[0][:1]
    chosen = choose_layers(network, first, layers)
    if output_experts and OUTPUT in chosen:
        raise InputError(
            f"The network has a layer named {OUTPUT!r}, as the output experts are; leave it out of layers=."
        )
    task = task or Segmentation.detect(network, first, foreground)
    settings = patches or PatchSettings.for_dimensions(volumes[0].ndim - 2)
    scatter = PatchScatter(last or chosen[-1], settings, task)

    # A foreground given as a function has no part in the probabilities, and cannot be stored.
    output = replace(task, rule=None) if isinstance(task, Segmentation) else task
    cnn = CNNExperts(tuple(chosen), output if output_experts else None)
    moments = _first_pass(source, cnn, scatter)
    fields, notes = _named_fields(moments)
    families = {cnn.name: ExpertFamily(cnn.narrowed(fields), fields)}

    pca, more = _second_pass(source, scatter)
    if pca is not None:
        families[pca.experts.name] = pca
    # The moments that standardise are Gaussian densities already; others are taken of what they standardised.
    if not isinstance(density, Gaussian):
        families = _third_pass(source, families, density)
    return Fitted(families, len(volumes), (*notes, *more))


def density_template(name: str, alpha: float = ALPHA) -> Density:
    """A density by its name, of no subject; alpha is of density `kde`."""
    if name not in DENSITIES:
        raise InputError(f"Unknown density {name!r}. Available: {', '.join(DENSITIES)}.")
    return DENSITIES[name].blank({"alpha": alpha})


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


def _first_pass(source: TrainingSubjects, cnn: CNNExperts, scatter: PatchScatter) -> dict[str, Gaussian]:
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
    return {layer: Gaussian.joined([Gaussian.estimate(total[layer]) for total in subjects]) for layer in subjects[0]}


def _second_pass(source: TrainingSubjects, scatter: PatchScatter) -> tuple[ExpertFamily | None, list[str]]:
    """PCA experts and their loadings' densities over subjects with enough active patches, and what was left out."""
    pca = scatter.experts()
    if pca is None:
        few = f"{scatter.number} active patches in all training subjects, too few"
        return None, [f"No PCA experts: {few} for {scatter.settings.components} components."]
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
    fields, dropped = _named_fields({pca.layer: Gaussian.joined(usable)})
    return ExpertFamily(pca, fields), notes + dropped


def _third_pass(
    source: TrainingSubjects, families: dict[str, ExpertFamily], density: Density
) -> dict[str, ExpertFamily]:
    """The same families with densities of another form, of the subjects that have enough samples."""
    blanks = {name: family.each(lambda field: replace(field, density=density)) for name, family in families.items()}
    found: dict[str, list[Density]] = {}
    layers = [layer for family in families.values() for layer in family.experts.layers()]
    with Recorder(source.network, dict.fromkeys(layers)) as record:
        for subject in range(len(source.volumes)):
            total: dict[str, Tensor] = {}
            for recording, padding in source.recordings(subject, record):
                for name, family in blanks.items():
                    for group, part in family.measure(recording, padding):
                        total[f"{name}/{group}"] = total.get(f"{name}/{group}", 0) + part.double()
            for key, statistics in total.items():
                if not key.startswith("pca/") or float(statistics[0, 0]) >= MINIMUM_ACTIVE:
                    found.setdefault(key, []).append(density.estimate(statistics.float()))
    return {
        name: replace(
            family,
            fields={
                group: replace(field, density=density.joined(found[f"{name}/{group}"]))
                for group, field in family.fields.items()
            },
        )
        for name, family in families.items()
    }


def _named_fields(moments: dict[str, Gaussian]) -> tuple[dict[str, LayerExperts], list[str]]:
    """Fields by layer, and a sentence for every layer with experts that had to be dropped."""
    fields = {layer: LayerExperts.from_moments(gaussian) for layer, gaussian in moments.items()}
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
