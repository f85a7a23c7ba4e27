"""The backend of nnU-Net folders: nnU-Net's own preprocessing, windows, mirroring and export.

Everything numerical is nnU-Net's code, so that a prediction without adaptation equals that of `nnUNetv2_predict`.
"""

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantune.backends.base import Backend, Prepared, ReadOutput, plain_copy
from scantune.backends.quiet import quiet
from scantune.backends.scan_files import NIFTI, files_of, write_temporary
from scantune.backends.tiling import Tiling, bounded_number
from scantune.errors import ScanError, error_message
from scantune.scans.case import Case
from scantune.scans.volume import Volume, batch_size


@dataclass(frozen=True, eq=False)
class NnUnetScan(Prepared):
    """Scan as nnU-Net has prepared it. Slices of the 2d configuration are along the first axis of its tensors.

    Attributes:
        properties: What nnU-Net noted on the way, for the way back.
        grid: Shape of the scan's own grid, `(x, y, z)`.
        name: Name of the scan.
    """

    properties: Mapping[str, Any]
    grid: tuple[int, ...]
    name: str


@dataclass(frozen=True, eq=False)
class NnUnet(Backend[NnUnetScan]):
    """An nnU-Net folder's way from files to a network and back.

    Args:
        plans: The plans, as nnU-Net's `PlansManager`.
        configuration: Name of the configuration, such as `3d_fullres`.
        dataset: The content of dataset.json.
        mirrored: Axes along which predictions are mirrored and averaged. None for no mirroring.
        settings: What identifies the folder: data set, plans, folds.
    """

    plans: Any
    configuration: str
    dataset: Mapping[str, Any]
    mirrored: tuple[int, ...] | None
    settings: Mapping[str, Any]

    @cached_property
    def config(self) -> Any:
        """Return the configuration, as nnU-Net's `ConfigurationManager`."""
        return self.plans.get_configuration(self.configuration)

    @property
    def channels(self) -> int:
        """Return the number of images that a scan consists of."""
        return len(self.dataset["channel_names"])

    @property
    def window(self) -> tuple[int, ...]:
        """Return the size of nnU-Net's patches."""
        return tuple(map(int, self.config.patch_size))

    @property
    def gives_scores(self) -> bool:
        """Return True: nnU-Net's export takes logits."""
        return True

    @property
    def _sees_slices(self) -> bool:
        return len(self.window) == 2

    @property
    def _overlapping(self) -> bool:
        return bool(self._labels.has_regions)

    @cached_property
    def _labels(self) -> Any:
        return self.plans.get_label_manager(self.dataset)

    def prepare(self, case: Case) -> NnUnetScan:
        """Prepare a scan by nnU-Net's own preprocessing, from its files.

        Raises:
            ScanError: nnU-Net cannot read or prepare it.
        """
        endings = (*self.plans.image_reader_writer_class.supported_file_endings, *NIFTI)
        with files_of(case, endings) as files, tempfile.TemporaryDirectory() as folder:
            labels = None
            if case.reference is not None and not self._overlapping:
                labels = write_temporary(Path(folder) / "labels.nii", case.reference.astype(np.int16), case)
            try:
                with quiet():
                    preprocessor = self.config.preprocessor_class(verbose=False)
                    data, found, properties = preprocessor.run_case(
                        files, labels, self.plans, self.config, self.dataset
                    )
            except Exception as error:  # of any kind, from readers of any format
                raise ScanError(
                    f"nnU-Net's preprocessing fails on {case.name} ({type(error).__name__}: {error_message(error)}). "
                    "Give scans as the network was trained on."
                ) from error
        volume = torch.as_tensor(np.asarray(data)).float().contiguous()
        reference = None
        if labels is not None:
            # nnU-Net gives -1 to what lies outside the part of a scan that is not 0.
            reference = torch.as_tensor(np.asarray(found)).long().clamp_min(0)
        if self._sees_slices:
            reference = None if reference is None else reference[0]
            return NnUnetScan(volume.transpose(0, 1), None, reference, properties, case.shape, case.name)
        return NnUnetScan(volume[None], None, reference, properties, case.shape, case.name)

    def windows(self, prepared: NnUnetScan) -> Volume:
        """Return windows of the size of nnU-Net's patches: all, or a bounded number with much content."""
        most = bounded_number(self.window)
        return Tiling(self.window).sample(prepared.volume, None, prepared.reference, most)

    def predict(self, network: nn.Module, prepared: NnUnetScan, read: ReadOutput) -> Tensor:  # noqa: ARG002
        """Return nnU-Net's logits `(slices, classes, *spatial)` for a whole scan, averaged over folds.

        Args:
            network: The network. Windows go to its device.
            prepared: The scan.
            read: Is not used, since nnU-Net's networks give a tensor.
        """
        from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

        folds = [plain_copy(fold) for fold in _members(network)]
        data = prepared.volume.transpose(0, 1) if self._sees_slices else prepared.volume[0]
        with quiet():
            predictor = nnUNetPredictor(device=next(network.parameters()).device, allow_tqdm=False)
            weights = [fold.state_dict() for fold in folds]
            predictor.manual_initialization(
                folds[0], self.plans, self.config, weights, dict(self.dataset), "", self.mirrored
            )
            logits: Tensor = predictor.predict_logits_from_preprocessed_data(data.contiguous())
        # A copy, because tensors of the inference mode take part in no further computation.
        logits = logits.cpu().clone()
        return logits.transpose(0, 1) if self._sees_slices else logits[None]

    @torch.no_grad()
    def readings(self, network: nn.Module, volume: Volume, read: ReadOutput) -> dict[str, float]:
        """Return the mean Dice between the predictions of folds, over structures that any of them finds.

        Args:
            network: The network.
            volume: Windows of the scan.
            read: Turns outputs into probabilities.
        """
        folds = _members(network)
        if len(folds) == 1:
            return {}
        shared: Tensor | float = 0.0
        for batch in volume.batches(batch_size(volume.images)):
            found = [_found(read(fold(batch.images)), self._overlapping) for fold in folds]
            maps = torch.stack(found).double()
            shared = shared + torch.einsum("isv,jsv->sij", maps, maps)
        return {"fold_agreement": _mean_dice(torch.as_tensor(shared))}

    def restore(self, scores: Tensor, prepared: NnUnetScan) -> NDArray[np.uint8]:
        """Return the labels `(x, y, z)` that nnU-Net writes."""
        return self._on_grid(self._exported(scores, prepared), prepared)

    def restore_each(self, scores: Tensor, prepared: NnUnetScan) -> NDArray[np.uint8]:
        """Return maps of 0 and 1 of regions `(regions, x, y, z)`, before nnU-Net joins them to one label map."""
        _, probabilities = self._exported(scores, prepared, probabilities=True)
        return np.stack([self._on_grid((region > 0.5).astype(np.uint8), prepared) for region in probabilities])

    def joined(self, scores: Tensor, prepared: NnUnetScan) -> NDArray[np.uint8] | None:
        """Return the label map `(x, y, z)` that nnU-Net joins regions to."""
        return self.restore(scores, prepared) if self._overlapping else None

    def _exported(self, scores: Tensor, prepared: NnUnetScan, probabilities: bool = False) -> Any:
        """Return what nnU-Net makes of logits on the scan's grid, in its order of the axes."""
        from nnunetv2.inference import export_prediction

        logits = scores.transpose(0, 1) if self._sees_slices else scores[0]
        with quiet():
            return export_prediction.convert_predicted_logits_to_segmentation_with_correct_shape(
                logits.contiguous().numpy(),
                self.plans,
                self.config,
                self._labels,
                prepared.properties,
                return_probabilities=probabilities,
                num_threads_torch=torch.get_num_threads(),
            )

    def _on_grid(self, labels: NDArray[Any], prepared: NnUnetScan) -> NDArray[np.uint8]:
        """Return labels in the order of the scan's axes, by nnU-Net's own writer, which may turn them back."""
        import nibabel

        with tempfile.TemporaryDirectory() as folder, quiet():
            file = str(Path(folder) / "labels.nii.gz")
            self.plans.image_reader_writer_class().write_seg(labels, file, prepared.properties)
            written = np.asarray(nibabel.load(file).dataobj)
        if written.shape != prepared.grid or int(written.max()) > 255:
            raise ScanError(
                f"nnU-Net must give labels from 0 to 255 on the grid {prepared.grid} of {prepared.name}, but gives "
                f"{written.dtype} of shape {written.shape}. Convert the scan to NIfTI."
            )
        return written.astype(np.uint8)

    def voxel_ml(self, prepared: NnUnetScan) -> float:
        """Return the volume in mL of a voxel of a prepared scan."""
        own = [float(prepared.properties["spacing"][axis]) for axis in self.plans.transpose_forward]
        spacing = [float(side) for side in self.config.spacing]
        return math.prod(own[: len(own) - len(spacing)] + spacing) / 1000

    def record(self) -> dict[str, Any]:
        """Return what identifies the folder, as plain JSON values."""
        mirrored = None if self.mirrored is None else list(self.mirrored)
        window = {"configuration": self.configuration, "window": list(self.window), "channels": self.channels}
        return {"kind": "nnunet", **self.settings, **window, "mirrored": mirrored}


def _members(network: nn.Module) -> list[nn.Module]:
    """Return the networks of an ensemble, or a network by itself."""
    return list(getattr(network, "members", [network]))


def _found(probabilities: Tensor, overlapping: bool) -> Tensor:
    """Return where each structure is found, `(structures, voxels)`."""
    if overlapping:
        return (probabilities > 0.5).transpose(0, 1).flatten(1)
    labels = probabilities.argmax(1)
    return torch.stack([(labels == label).flatten() for label in range(1, probabilities.shape[1])])


def _mean_dice(shared: Tensor) -> float:
    """Return the mean Dice of pairs, given the voxels that two share, `(structures, maps, maps)`; 1 without any."""
    sizes = shared.diagonal(dim1=1, dim2=2)
    both = sizes[:, :, None] + sizes[:, None, :]
    dice = torch.where(both > 0, 2 * shared / both.clamp_min(1), torch.nan)
    one, other = torch.triu_indices(shared.shape[1], shared.shape[1], offset=1)
    return float(dice[:, one, other].nanmean().nan_to_num(1.0))
