"""Fit of a Field of Experts: two or three passes over the training subjects, a mini-batch in memory at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scantune.backends.tiling import Tiling
from scantune.densities import ALPHA, DENSITIES, Density, Gaussian
from scantune.errors import InputError
from scantune.experts import (
    OUTPUT,
    CNNExperts,
    LayerChoice,
    PatchScatter,
    PatchSettings,
    PCAExperts,
    Recorder,
    Recording,
    choose_layers,
    last_layers,
)
from scantune.networks import AdaptableNetwork, copied
from scantune.prior.layer import MINIMUM_ACTIVE, ExpertFamily, LayerExperts, with_enough_patches
from scantune.scans.volume import Volume, is_finite
from scantune.tasks import Foreground, OutputChoice, Segmentation, Task
from scantune.tasks.trial import padded_for, require_answer


@dataclass(frozen=True)
class FitSettings:
    """Choice of experts and of their densities.

    Args:
        layers: Expert layers of the task network, names or a rule; by default every convolution but the last whose
            output has 16 positions or more.
        last: The layer whose patches feed the PCA experts; by default the last expert layer, of an ensemble that of
            each network.
        foreground: Output channels that are foreground, or a function of the output; by default all but the
            background. `max` takes the probability of the likeliest class, as the authors' code does, not of any.
        patches: Patch size, stride, components and threshold of the PCA experts.
        batch: Slices per forward pass.
        density: A name of `scantune.densities.DENSITIES`.
        alpha: Sharpness of the kernel exp(-alpha u^2) of density `kde`, on standardised values.
        output_experts: Whether the class probabilities are CNN experts too, a last layer named `output`, as in the
            authors' code.
        task: How the output is read; by default a segmentation, detected from the network's output. With it,
            `foreground` is the task's own.
        output: Where the class scores are in the network's output: a key, an index or a function. By default what the
            task says, or a tensor, the first of a tuple, or `out`, `logits` or `pred` of a dictionary.
        window: Spatial size of the windows that are taken from larger volumes, here and whenever the prior is used.
    """

    layers: LayerChoice = None
    last: str | None = None
    foreground: Foreground = None
    patches: PatchSettings | None = None
    batch: int = 8
    density: str = "gaussian"
    alpha: float = ALPHA
    output_experts: bool = False
    task: Task | None = None
    window: tuple[int, ...] | None = None
    output: OutputChoice = None


@dataclass(frozen=True)
class FittedExperts:
    """Expert families, by name, with the densities of their layers, notes on what was left out, and the task."""

    families: dict[str, ExpertFamily]
    subjects: int
    notes: tuple[str, ...]
    task: Task


@dataclass(frozen=True)
class TrainingSubjects:
    """The training subjects, seen through the network a mini-batch at a time."""

    network: nn.Module
    volumes: Sequence[Tensor]
    masks: Sequence[Tensor | None]
    batch: int

    def __len__(self) -> int:
        return len(self.volumes)

    def recordings(self, subject: int, record: Recorder) -> Iterator[tuple[Recording, Tensor | None]]:
        """Yield forward passes over one subject's slices, with the padding of each."""
        volume, mask = self.volumes[subject], self.masks[subject]
        size = self.batch if volume.ndim == 4 else 1
        for start in range(0, len(volume), size):
            stop = start + size
            yield record(volume[start:stop]), None if mask is None else mask[start:stop]


@torch.no_grad()
def fit_experts(
    network: nn.Module, volumes: Sequence[Tensor], masks: Sequence[Tensor | None] | None, settings: FitSettings
) -> FittedExperts:
    """Fit CNN experts (Eq. 7 to 9), then PCA experts (Sec. 3.2.3); see `FieldOfExperts.fit`."""
    _require_volumes(volumes, masks)
    density = density_template(settings.density, settings.alpha)
    network = AdaptableNetwork.bare(copied(network)).eval()
    given = zip(volumes, masks or [None] * len(volumes), strict=True)
    asked = read_by(settings.task, settings.output)
    choice = output_of(asked, settings.output)
    seen = [seen_by(network, Volume(each.float(), mask), settings.window, choice) for each, mask in given]
    volumes, masks = [volume.images for volume in seen], [volume.padding for volume in seen]
    subjects = TrainingSubjects(network, volumes, masks, settings.batch)
    first = volumes[0][:1]
    chosen = choose_layers(network, first, settings.layers)
    if settings.output_experts and OUTPUT in chosen:
        raise InputError(
            f"The network has a layer named {OUTPUT!r}, as the output experts are; leave it out of layers=."
        )
    task = asked or Segmentation.detect(network, first, settings.foreground, settings.output)
    patches = settings.patches or PatchSettings.for_dimensions(volumes[0].ndim - 2)
    last = last_layers(network, chosen) if settings.last is None else [settings.last]
    scatters = [PatchScatter(layer, patches, task) for layer in last or chosen[-1:]]

    # A foreground given as a function has no part in the probabilities, and cannot be stored.
    output = replace(task, rule=None) if isinstance(task, Segmentation) else task
    cnn = CNNExperts(tuple(chosen), output if settings.output_experts else None)
    layers, notes = _layers_from_moments(_measure_cnn_moments(subjects, cnn, scatters))
    families = {cnn.name: ExpertFamily(cnn.narrowed(layers), layers)}

    pca, pca_notes = _fit_pca(subjects, scatters)
    if pca is not None:
        families[pca.experts.name] = pca
    # The moments that standardise are Gaussian densities already; others are estimated from standardised values.
    if not isinstance(density, Gaussian):
        families = _refit_densities(subjects, families, density)
    return FittedExperts(families, len(volumes), (*notes, *pca_notes, *task.remarks), output)


def seen_by(network: nn.Module, volume: Volume, window: tuple[int, ...] | None, choice: OutputChoice) -> Volume:
    """Return what a network in evaluation mode sees of a volume: windows, or all of it, padded if it must be.

    Raises:
        InputError: The network does not take it, or its output cannot be read.
    """
    if window is None:
        return padded_for(network, volume, choice)
    windows = windows_of(volume, window)
    require_answer(network, windows.images[:1], choice)  # windows have the size that was chosen for them
    return windows


def windows_of(volume: Volume, window: tuple[int, ...] | None) -> Volume:
    """Return windows of a larger volume; a volume of a window's size, or without a window, as it is."""
    if window is None or tuple(volume.images.shape[2:]) == window:
        return volume
    return Tiling(window).sample(volume.images, volume.padding, volume.reference)


def output_of(task: Task | None, output: OutputChoice) -> OutputChoice:
    """Return where the class scores are in a network's output: what was asked for, or what the task says."""
    return task.output if output is None and task is not None else output


def read_by(task: Task | None, output: OutputChoice) -> Task | None:
    """Return a task that reads another part of the network's output, if one was asked for.

    Raises:
        InputError: The task is not a segmentation.
    """
    if output is None or task is None:
        return task
    if not isinstance(task, Segmentation):
        raise InputError(f"output= is for segmentation; the output of {task.name} is what its network gives.")
    return replace(task, output=output)


def density_template(name: str, alpha: float = ALPHA) -> Density:
    """Return a density by its name, of no subject; alpha belongs to density `kde`."""
    if name not in DENSITIES:
        raise InputError(f"Unknown density {name!r}. Available: {', '.join(DENSITIES)}.")
    return DENSITIES[name].blank({"alpha": alpha})


def _require_volumes(volumes: Sequence[Tensor], masks: Sequence[Tensor | None] | None) -> None:
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
        if not is_finite(volume):
            raise InputError(f"Training volume {number} holds NaN or infinite values; leave it out or repair it.")


def _measure_cnn_moments(
    subjects: TrainingSubjects, cnn: CNNExperts, scatters: Sequence[PatchScatter]
) -> dict[str, Gaussian]:
    """Return raw moments of every layer's channels `(subjects, channels)`, and add patches to the scatter matrices."""
    moments: list[dict[str, Tensor]] = []
    with Recorder(subjects.network, [*cnn.layers(), *(scatter.layer for scatter in scatters)]) as record:
        for subject in range(len(subjects)):
            total: dict[str, Tensor] = {}
            for recording, padding in subjects.recordings(subject, record):
                for layer, values, weights in cnn.outputs(recording, padding):
                    total[layer] = total.get(layer, 0) + _double_moments(values, weights)
                for scatter in scatters:
                    scatter.add(recording, padding)
            if min(float(statistics[0].min()) for statistics in total.values()) < 1:
                raise InputError(f"Training volume {subject} is all padding at some layer; leave it out.")
            moments.append(total)
    return {layer: Gaussian.joined([Gaussian.estimate(total[layer]) for total in moments]) for layer in moments[0]}


def _fit_pca(subjects: TrainingSubjects, scatters: Sequence[PatchScatter]) -> tuple[ExpertFamily | None, list[str]]:
    """Fit PCA experts on the subjects with enough active patches, and note what was left out."""
    each = [experts for scatter in scatters if (experts := scatter.experts()) is not None]
    if len(each) < len(scatters):
        fewest = min(scatters, key=lambda scatter: scatter.number)
        few = f"{fewest.number} active patches in all training subjects, too few"
        return None, [f"No PCA experts: {few} for {fewest.settings.components} components."]
    pca = PCAExperts.joined(each)
    densities: dict[str, list[Gaussian]] = {layer: [] for layer in pca.layers()}
    with Recorder(subjects.network, pca.layers()) as record:
        for subject in range(len(subjects)):
            total: dict[str, Tensor] = {}
            for recording, padding in subjects.recordings(subject, record):
                for layer, values, weights in pca.outputs(recording, padding):
                    total[layer] = total.get(layer, 0) + _double_moments(values, weights)
            if total and min(float(moments[0, 0]) for moments in total.values()) >= MINIMUM_ACTIVE:
                for layer, moments in total.items():
                    densities[layer].append(Gaussian.estimate(moments))
    used = len(densities[pca.layers()[0]])
    left_out = len(subjects) - used
    notes = (
        [f"PCA experts leave out {left_out} subjects with under {MINIMUM_ACTIVE} active patches."] if left_out else []
    )
    if not used:
        return None, notes
    layers, dropped = _layers_from_moments({layer: Gaussian.joined(found) for layer, found in densities.items()})
    return ExpertFamily(pca, layers), notes + dropped


def _refit_densities(
    subjects: TrainingSubjects, families: dict[str, ExpertFamily], density: Density
) -> dict[str, ExpertFamily]:
    """Return the families with densities of another form, estimated from the subjects that have enough samples."""
    templates = {
        name: family.with_layers(lambda layer: replace(layer, density=density)) for name, family in families.items()
    }
    found: dict[str, list[Density]] = {}
    layers = [layer for family in families.values() for layer in family.experts.layers()]
    with Recorder(subjects.network, dict.fromkeys(layers)) as record:
        for subject in range(len(subjects)):
            total: dict[str, Tensor] = {}
            for recording, padding in subjects.recordings(subject, record):
                for name, family in templates.items():
                    for layer, part in family.measure(recording, padding):
                        total[f"{name}/{layer}"] = total.get(f"{name}/{layer}", 0) + part.double()
            for key, statistics in with_enough_patches(total).items():
                found.setdefault(key, []).append(density.estimate(statistics.float()))
    return {
        name: replace(
            family,
            layers={
                layer: replace(experts, density=density.joined(found[f"{name}/{layer}"]))
                for layer, experts in family.layers.items()
            },
        )
        for name, family in families.items()
    }


def _double_moments(values: Tensor, weights: Tensor | None) -> Tensor:
    return Gaussian.measure(values.double(), None if weights is None else weights.double())


def _layers_from_moments(moments: dict[str, Gaussian]) -> tuple[dict[str, LayerExperts], list[str]]:
    """Standardise the experts of each layer, and note the layers with experts that had to be dropped."""
    layers = {name: LayerExperts.from_moments(gaussian) for name, gaussian in moments.items()}
    notes = []
    for name, layer in layers.items():
        dropped = (~layer.kept).nonzero().flatten().tolist()
        if dropped:
            names = ", ".join(map(str, dropped))
            notes.append(f"Layer {name}: experts {names} hardly vary in training and are dropped.")
    kept = {name: layer for name, layer in layers.items() if bool(layer.kept.any())}
    if not kept:
        raise InputError("No expert varies over the training volumes; is the network constant, or are the volumes?")
    return kept, notes
