"""The prior: a Field of Experts (Eq. 9), all experts' densities of the training subjects."""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from scantune.densities import ALPHA, Density, Divergence
from scantune.errors import InputError
from scantune.experts import LayerChoice, PatchSettings, Recorder, Recording
from scantune.networks import AdaptableNetwork, Affine, eager_network, in_evaluation
from scantune.prior.calibration import Calibration, predicted_proportions
from scantune.prior.coverage import Coverage, Shown
from scantune.prior.fit import FitSettings, fit_experts, seen_by
from scantune.prior.home_readings import HomeReadings
from scantune.prior.layer import ExpertFamily, with_enough_patches, without_prefix
from scantune.prior.prediction_reader import HomeScan, count_structures, read_home
from scantune.scans.tensors import read_tensors, write_tensors
from scantune.scans.volume import Volume, is_finite
from scantune.tasks import Foreground, OutputChoice, Segmentation, Task, task_from_record, task_record

Statistics = dict[str, Tensor]
"""Additive statistics by group, `family/layer` -> `(statistics, experts)`."""

READ_SUBJECTS = 20
"""Most training subjects whose predictions are read in a fit."""

_TRAINED = "trained/"


def _extent(window: tuple[int, ...] | None) -> str:
    return "whole slices or volumes" if window is None else f"windows of {' x '.join(map(str, window))}"


@dataclass(frozen=True)
class FieldOfExperts:
    """Prior that travels to the test site: experts and their 1D densities over the training subjects (Eq. 9).

    Args:
        families: `cnn`, and `pca` if the training subjects had enough active patches.
        subjects: Number of training subjects.
        notes: Sentences on experts and subjects that the fit left out.
        calibration: What is typical of source subjects, if `calibrated` was called.
        window: Spatial size of the windows that the network sees at once. None if it sees whole slices or volumes.
        task: How the network's output is read; None in files of older versions.
        trained: Readings of predictions for training subjects, by which scans are assessed as long as nothing is known
            of held-out ones. None if no prediction was read.
    """

    families: dict[str, ExpertFamily]
    subjects: int
    notes: tuple[str, ...] = ()
    calibration: Calibration | None = None
    window: tuple[int, ...] | None = None
    task: Task | None = None
    trained: HomeReadings | None = None

    @classmethod
    def fit(
        cls,
        network: nn.Module,
        volumes: Iterable[Tensor],
        layers: LayerChoice = None,
        last: str | None = None,
        foreground: Foreground = None,
        *,
        masks: Sequence[Tensor | None] | None = None,
        patches: PatchSettings | None = None,
        batch: int = 8,
        density: str = "gaussian",
        alpha: float = ALPHA,
        output_experts: bool = False,
        task: Task | None = None,
        window: Sequence[int] | None = None,
        output: OutputChoice = None,
        read: int = READ_SUBJECTS,
    ) -> Self:
        """Fit the densities of the training subjects, and read the predictions for them.

        Args:
            network: Any network; it is not changed.
            volumes: One tensor `(slices, channels, *spatial)` per subject.
            layers: See `FitSettings`.
            last: See `FitSettings`.
            foreground: See `FitSettings`.
            masks: True where a volume is padding, one `(slices, 1, *spatial)` (or None) per subject.
            patches: See `FitSettings`.
            batch: See `FitSettings`.
            density: See `FitSettings`.
            alpha: See `FitSettings`.
            output_experts: See `FitSettings`.
            task: See `FitSettings`.
            window: See `FitSettings`.
            output: See `FitSettings`.
            read: Most subjects whose predictions are read, by which predictions for other scans are assessed. 0 leaves
                this to `calibrated`.
        """
        extent = None if window is None else tuple(window)
        settings = FitSettings(
            layers, last, foreground, patches, batch, density, alpha, output_experts, task, extent, output
        )
        subjects = list(volumes)
        fitted = fit_experts(network, subjects, masks, settings)
        prior = cls(fitted.families, fitted.subjects, fitted.notes, window=extent, task=fitted.task)
        pairs = zip(subjects, masks or [None] * len(subjects), strict=True)
        return prior.with_trained(network, [HomeScan(Volume(*pair)) for pair in pairs][:read])

    def with_trained(self, network: nn.Module, subjects: Sequence[HomeScan]) -> Self:
        """Return a copy that knows the readings of predictions for training subjects.

        Args:
            network: The network the prior was fitted on.
            subjects: Scans of training subjects; without any, nothing changes.
        """
        task = self.task
        if not subjects or task is None or task.judged_by != "stability":
            return self
        network = AdaptableNetwork.bare(eager_network(network))
        with in_evaluation(network):
            scans = [replace(subject, volume=self._seen(network, subject.volume, task)) for subject in subjects]
            read = read_home(network, scans, task, count_structures(network, scans[0].volume, task))
        # The network has seen these people, so that none of them counts as held out.
        return replace(self, trained=replace(read, people=0))

    @property
    def home(self) -> HomeReadings | None:
        """Return the readings of held-out source scans, or else of training scans; None if neither are known."""
        known = None if self.calibration is None else self.calibration.home
        return self.trained if known is None else known

    def calibrated(
        self,
        network: nn.Module,
        held_out: Iterable[Tensor | tuple[Tensor, Tensor | None] | HomeScan],
        training: Iterable[tuple[Tensor, Tensor | None]] = (),
        task: Task | None = None,
    ) -> Self:
        """Return a copy with a calibration on source subjects, by which scans and predictions are assessed.

        Args:
            network: The network the prior was fitted on.
            held_out: Volumes of source subjects that the network was not trained on, with or without masks, or
                `HomeScan`s, which may have references. Without references an estimate is not of the Dice but of the
                agreement with predictions at home.
            training: Volumes and masks of training subjects; they count for proportions and coverage. Their energies,
                each from the prior of the others, need no volume. Their predictions are not read: the network has
                seen them, so that they look too good.
            task: How the output is read; by default as in the fit.
        """
        network = AdaptableNetwork.bare(eager_network(network))
        with in_evaluation(network):
            task = task or self.task
            scans = [replace(scan, volume=self._seen(network, scan.volume, task)) for scan in map(_home_scan, held_out)]
            volumes = [self._seen(network, Volume(*scan), task) for scan in training]
            return self._calibrated(network, scans, volumes, task)

    def _calibrated(
        self, network: AdaptableNetwork, scans: Sequence[HomeScan], volumes: Sequence[Volume], task: Task | None
    ) -> Self:
        """Return a copy with a calibration, given scans as a network in evaluation mode sees them."""
        if not scans:
            raise InputError("A calibration needs at least one held-out source subject, got none.")
        new, seen = (
            [(volume.images, volume.padding) for volume in split]
            for split in ([scan.volume for scan in scans], volumes)
        )
        task = task or Segmentation.detect(network, new[0][0][:1])
        shares = torch.stack([predicted_proportions(network, volume, task) for volume, _ in (*new, *seen)])
        left_out = {
            f"{name}/{group}": layer.left_out().cpu()
            for name, family in self.families.items()
            for group, layer in family.layers.items()
        }
        known = Calibration.of(self._energies_of(network, new), left_out, shares, Coverage.of([*new, *seen]))
        if task.judged_by == "stability":
            known = replace(known, home=read_home(network, scans, task, shares.shape[1]))
        return replace(self, calibration=known)

    def with_shown(self, scans: Sequence[Shown]) -> Self:
        """Return a copy whose calibration knows what source scans show."""
        if self.calibration is None or self.calibration.coverage is None:
            return self
        coverage = self.calibration.coverage.with_shown(scans)
        return replace(self, calibration=replace(self.calibration, coverage=coverage))

    def _energies_of(self, network: nn.Module, scans: Iterable[tuple[Tensor, Tensor | None]]) -> dict[str, Tensor]:
        """Return energies of scans, `family/layer` -> `(scans,)`; without enough patches a scan has no PCA energy."""
        found: dict[str, list[float]] = {}
        for volume, mask in scans:
            for family, groups in self.energies(with_enough_patches(self.statistics(network, volume, mask))).items():
                for group, value in groups.items():
                    found.setdefault(f"{family}/{group}", []).append(float(value))
        return {key: torch.tensor(values) for key, values in found.items()}

    def layers(self) -> list[str]:
        """Return every layer whose features the experts read."""
        return list(dict.fromkeys(layer for f in self.families.values() for layer in f.experts.layers()))

    def measure(self, recording: Recording, padding: Tensor | None = None) -> Statistics:
        """Return additive statistics of one batch, differentiable."""
        return {
            f"{name}/{group}": part
            for name, family in self.families.items()
            for group, part in family.measure(recording, padding)
        }

    def energies(self, statistics: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Return the expected divergence of each layer of each family with statistics; in nats, unless `compared`."""
        present = {key.split("/")[0] for key in statistics}
        return {n: family.compare(statistics) for n, family in self.families.items() if n in present}

    def compared(
        self, divergence: Divergence, refer: Callable[[Density], Density], layers: Container[str] | None = None
    ) -> Self:
        """Return a copy whose `energies` are another divergence, from other densities.

        Args:
            divergence: What is computed instead of the expected KL.
            refer: What each group's densities are replaced by, such as `Density.expected`.
            layers: The CNN experts' layers that are compared; None for all.
        """
        families = {
            name: family.with_layers(lambda layer: replace(layer, divergence=divergence, density=refer(layer.density)))
            for name, family in self.families.items()
        }
        if layers is not None:
            chosen = {name: layer for name, layer in families["cnn"].layers.items() if name in layers}
            families["cnn"] = replace(families["cnn"], layers=chosen)
        return replace(self, families=families)

    @torch.no_grad()
    def statistics(self, network: nn.Module, volume: Tensor, mask: Tensor | None = None, batch: int = 8) -> Statistics:
        """Return statistics of a whole volume, summed over batches in double precision."""
        total: Statistics = {}
        network = AdaptableNetwork.bare(eager_network(network))
        with in_evaluation(network):
            seen = self._seen(network, Volume(volume, mask), self.task)
            with Recorder(network, self.layers()) as record:
                for part in seen.batches(batch if volume.ndim == 4 else 1):
                    for key, value in self.measure(record(part.images), part.padding).items():
                        total[key] = total.get(key, 0) + value.double()
        return total

    def _seen(self, network: AdaptableNetwork, volume: Volume, task: Task | None) -> Volume:
        """Return what a network in evaluation mode sees of a volume."""
        single = replace(volume, images=volume.images.float())
        return seen_by(network, single, self.window, None if task is None else task.output)

    def energy(self, network: nn.Module, volume: Tensor, mask: Tensor | None = None) -> float:
        """Return the FoE-CNN energy of a scan (Eq. 13): E_s KL(p_s || p_t), mean over channels, then over layers.

        Args:
            network: The network the prior was fitted on, plain or behind a normaliser.
            volume: The scan `(slices, channels, *spatial)`.
            mask: True where the volume is padding, which is left out; None counts every pixel.

        Returns:
            Nats. At best `floor()`, not zero, unless all training subjects are alike.
        """
        if not is_finite(volume):
            raise InputError("The volume holds NaN or infinite values; repair it before its energy is taken.")
        groups = self.energies(self.statistics(network, volume, mask))["cnn"]
        return float(torch.stack(list(groups.values())).mean())

    def floor(self) -> float:
        """Return the smallest energy that any scan can reach, in nats."""
        return float(torch.stack([layer.floor() for layer in self.families["cnn"].layers.values()]).mean())

    def require_fit(self, network: nn.Module) -> None:
        """Raise an error if the prior was fitted on another architecture than the network's."""
        modules = Recorder(network, self.layers()).modules
        for layer, experts in self._channels():
            channels = getattr(modules.get(layer.split("@")[0]), "out_channels", experts)
            if channels != experts:
                raise InputError(
                    f"The prior does not match the network: layer {layer} has {channels} channels, the prior "
                    f"{experts} experts; use the prior that was fitted on this network, or fit it again."
                )

    def require_window(self, window: tuple[int, ...] | None) -> None:
        """Raise an error if the prior was fitted with another window than a network sees at once.

        Args:
            window: Spatial size of the window; None or empty if the network sees whole slices or volumes.
        """
        if (window or None) != self.window:
            mine, theirs = (_extent(each) for each in (self.window, window or None))
            raise InputError(
                f"The prior was fitted to {mine}, but the network sees {theirs}, whose statistics differ. Use the same "
                "window, or fit the prior again."
            )

    def _channels(self) -> Iterator[tuple[str, int]]:
        """Yield layers, and how many channels the experts expect there."""
        for name, layer in self.families["cnn"].layers.items():
            yield name, layer.center.numel()
        if "pca" in self.families:
            patches = self.families["pca"].experts
            channels = len(patches.tensors()["mean"]) // len(patches.layers())
            yield from ((layer, channels) for layer in patches.layers())

    def summarised(self) -> Self:
        """Return a copy with seven numbers per expert and none of a single subject; Gaussian densities only."""
        known = None if self.calibration is None else self.calibration.summarised()
        plain = self._with_families(lambda family: family.with_layers(lambda layer: layer.summarised()))
        return replace(plain, calibration=known)

    def folded(self, maps: Mapping[str, Affine]) -> Self:
        """Return the prior for a network whose batch norms were folded into its convolutions."""
        return self._with_families(lambda family: family.folded(maps))

    def to(self, device: torch.device) -> Self:
        """Return a copy on a device."""
        return self._with_families(lambda family: family.to(device))

    def _with_families(self, change: Callable[[ExpertFamily], ExpertFamily]) -> Self:
        return replace(self, families={name: change(family) for name, family in self.families.items()})

    def without(self, name: str) -> Self:
        """Return a copy without one family of experts."""
        return replace(self, families={key: value for key, value in self.families.items() if key != name})

    def only(self, names: Container[str]) -> Self:
        """Return a copy with some families of experts."""
        return replace(self, families={key: value for key, value in self.families.items() if key in names})

    def choose_layers(self, choice: str) -> list[str]:
        """Return the CNN experts' layers by a choice, from the input side.

        Args:
            choice: `all`, `first`, or names with spaces between them.

        Raises:
            InputError: A name is not that of an expert layer.
        """
        known = list(self.families["cnn"].layers)
        if choice == "all":
            return known
        wanted = known[:1] if choice == "first" else choice.split()
        unknown = [layer for layer in wanted if layer not in known]
        if unknown or not wanted:
            raise InputError(
                f"The prior has no expert layer {' '.join(unknown) or choice!r}; "
                f"layers takes all, first, or names out of: {' '.join(known)}."
            )
        return [layer for layer in known if layer in wanted]

    def tensors(self) -> dict[str, Tensor]:
        """Return every number, by name, as a model file stores them."""
        return {key: value.contiguous() for key, value in self._tensors()}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        if self.calibration is not None:
            for key, value in self.calibration.tensors().items():
                yield f"calibration/{key}", value
        if self.trained is not None:
            yield from ((f"{_TRAINED}{key}", value) for key, value in self.trained.tensors().items())
        for name, family in self.families.items():
            for key, value in family.tensors():
                yield f"{name}/{key}", value

    def record(self) -> dict[str, Any]:
        """Return everything but the numbers, as JSON."""
        return {
            "families": {name: family.record() for name, family in self.families.items()},
            "subjects": self.subjects,
            "notes": list(self.notes),
            "floor": self.floor(),
            **({} if self.window is None else {"window": list(self.window)}),
            **({} if self.task is None else {"task": task_record(self.task)}),
        }

    @classmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Restore a prior from its `record` and `tensors`."""
        families = {
            name: ExpertFamily.restore(name, entry, without_prefix(tensors, f"{name}/"))
            for name, entry in record["families"].items()
        }
        stored = without_prefix(tensors, "calibration/")
        calibration = Calibration.from_tensors(stored) if stored else None
        window = tuple(map(int, record["window"])) if record.get("window") else None
        task = task_from_record(record["task"]) if record.get("task") else None
        trained = HomeReadings.from_tensors(without_prefix(tensors, _TRAINED))
        return cls(families, int(record["subjects"]), tuple(record["notes"]), calibration, window, task, trained)

    def save(self, path: str | Path) -> None:
        """Write the prior alone to a `.safetensors` file."""
        write_tensors(Path(path), self.tensors(), {"scantune-prior": json.dumps(self.record())})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a prior written by `save`, without unpickling anything."""
        tensors, metadata = read_tensors(Path(path))
        if "scantune-prior" not in metadata:
            raise InputError(f"{path} is not a prior file; expected one written by FieldOfExperts.save.")
        return cls.restore(json.loads(metadata["scantune-prior"]), tensors)


def _home_scan(scan: Tensor | tuple[Tensor, Tensor | None] | HomeScan) -> HomeScan:
    """Return a held-out scan, given as a volume, as a volume and its mask, or as it is returned."""
    if isinstance(scan, HomeScan):
        return scan
    return HomeScan(Volume(scan) if isinstance(scan, Tensor) else Volume(*scan))
