"""Instance optimisation: match the warped atlas to one scan, as registration tools do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.experts.base import image_weights
from scantune.methods.base import Method, MethodOptions, Parameters, Terms
from scantune.networks import AdaptableNetwork, CorrectedNetwork
from scantune.networks.diffeomorphism import local_correlation, spatial_gradients
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch, Volume


@dataclass(frozen=True)
class InstanceOptions(MethodOptions):
    """What can be chosen; `moving` plays no part, for the velocities move and nothing else."""

    learning_rate: float = 0.1
    """Adam's, in pixels of the velocity field."""
    smoothness: float = 0.1
    """Weight of the corrections' roughness beside one minus the local correlation."""
    window: int = 9
    """Side in pixels of the windows in which warped atlas and image are correlated; an odd number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smoothness < 0:
            raise InputError(f"The option smoothness must be 0 or more, got {self.smoothness}.")
        if self.window < 3 or self.window % 2 == 0:
            raise InputError(f"The option window must be an odd number from 3, got {self.window}.")


class Instance(Method):
    """Corrects the network's velocities of each slice until the warped atlas matches the image.

    No network moves and no prior counts: it is what users of registration tools would try first. The pictures are
    compared by their squared correlation in small windows, which does not mind another contrast or a bias field. What
    is to be smooth is the correction: a network whose velocities are rough and right must not be smoothed for a scan.
    """

    name: ClassVar[str] = "instance"
    objective: ClassVar[str] = "unlikeness and roughness"
    version: ClassVar[int] = 2
    Options = InstanceOptions
    options: InstanceOptions
    serves_site: ClassVar[bool] = False  # a deformation is that of one scan
    refuses: ClassVar[dict[str, str]] = {
        "segmentation": "it optimises the deformation of an atlas for image similarity, and a segmentation network "
        "has neither an atlas nor a deformation"
    }

    def equip(self, network: AdaptableNetwork, volume: Volume) -> AdaptableNetwork:
        """Add a correction of the velocities of every slice."""
        return CorrectedNetwork(network, volume.images)

    def parameters(self, network: AdaptableNetwork) -> Parameters:
        """Return the corrections."""
        return {name: parameter for name, parameter in network.named_parameters() if name == "correction"}

    def measure(self, batch: Batch) -> Statistics:
        """Return count and sum, `(2,)` each, of one minus the correlation and of the corrections' squared gradients."""
        output = self.network(batch.images)
        alike, weights = atlas_correlation(output, batch, self.network.channels, self.options.window)
        squares = spatial_gradients(self.network.beside(batch.images)[-1]).square().sum((1, 2))
        return {
            "unlike": torch.stack([weights.sum(), ((1 - alike) * weights).sum()]),
            "roughness": torch.stack([squares.new_tensor(squares.numel()), squares.sum()]),
        }

    def terms(self, statistics: Statistics) -> Terms:
        """Return the weighted sum of both means."""
        unlike, roughness = (_mean(statistics[name]) for name in ("unlike", "roughness"))
        objective = unlike + self.options.smoothness * roughness
        return Terms(objective, {"unlike": unlike, "roughness": roughness})


def _mean(statistics: Tensor) -> Tensor:
    return statistics[1] / statistics[0].clamp_min(1)


def atlas_correlation(
    output: Mapping[str, Tensor], batch: Batch, channels: int | None, window: int = 9
) -> tuple[Tensor, Tensor]:
    """Return the squared correlation of warped atlas and scan in a window about each pixel, and the pixels' weights.

    The image is the scan itself, not the normalised one, which is for the network alone. Padding has no weight.
    """
    values = local_correlation(output["warped"], batch.images[:, :channels].mean(1, keepdim=True), window)
    weights = image_weights(batch.padding, values)
    return values, torch.ones_like(values) if weights is None else weights
