"""Networks of one adaptation: the source network in front of a scan, and the copy that steps move."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from scantune.errors import InputError
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork, copied, eager_network, precision_of, set_memory_layout
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.prior.fit import read_by
from scantune.scans.volume import Volume
from scantune.tasks import OutputChoice, Task
from scantune.tasks.trial import require_answer


def asked_task(
    network: nn.Module | Model, prior: FieldOfExperts | None, task: Task | None = None, output: OutputChoice = None
) -> Task | None:
    """Return how a network's output is read: as asked, as a model says, or as a prior was fitted; None if none says."""
    known = task or (network.task if isinstance(network, Model) else None if prior is None else prior.task)
    return read_by(known, output)


def source_network(network: nn.Module, volume: Volume, device: torch.device, seed: int) -> AdaptableNetwork:
    """Return a copy of an eager network in evaluation mode, with a normaliser for a volume in front."""
    channels, dimensions = volume.images.shape[1], volume.images.ndim - 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = AdaptableNetwork.around(copied(network), channels, dimensions).to(device).eval()
    source.normalizer.float()
    set_memory_layout(source, "channels last")
    if not _runs(source, volume.images[:1]):
        set_memory_layout(source, "channels first")
    return source


def eager_part(network: nn.Module | Model) -> nn.Module:
    """Return the network of a model, or a network, without the wrapper of `torch.compile`.

    Raises:
        InputError: It is no network, or a frozen graph.
    """
    return eager_network(network.network if isinstance(network, Model) else network)


def working_copy(network: AdaptableNetwork, volume: Volume, choice: OutputChoice) -> AdaptableNetwork:
    """Return the copy that steps move, in single precision: gradients of means over all pixels vanish in half."""
    working = deepcopy(network).requires_grad_(False)
    kind = precision_of(working.task)
    if kind == torch.float32:
        return working
    require_answer(network, volume.images[:1], choice)
    try:
        require_answer(working.float(), volume.images[:1], choice)
    except InputError as error:
        raise InputError(
            f"Steps are computed in single precision, which the network does not take although it takes {kind}. Set no "
            f"precision within it. {error}"
        ) from error
    return working


@torch.no_grad()
def _runs(network: nn.Module, images: Tensor) -> bool:
    """Return True if a network takes channels-last features, which a `view` of them may not."""
    try:
        network(images)
    except Exception:  # of any kind; a later trial reports what the layout does not cause
        return False
    return True
