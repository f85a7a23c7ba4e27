"""Entropy minimisation (Wang et al. 2020, as compared in the paper): make predictions confident."""

from typing import ClassVar

import torch
from torch import Tensor

from scantune.experts.base import at_least_float32, image_weights
from scantune.methods.base import Method, Terms
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch


class Entropy(Method):
    """Lowers the mean entropy of the pixels' predicted classes, in nats."""

    name: ClassVar[str] = "entropy"
    objective: ClassVar[str] = "entropy in nats"
    refuses: ClassVar[dict[str, str]] = {
        "registration": "entropy is that of a probability distribution over a fixed number of classes, which a "
        "registration network does not give; how to extend it to a regression, such as of a deformation, is unclear"
    }

    def measure(self, batch: Batch) -> Statistics:
        """Return the number of pixels and the sum of their entropies."""
        probabilities = at_least_float32(self.task.probabilities(self.network(batch.images)))
        entropy = -_xlogx(probabilities)
        if not self.task.exclusive:
            entropy = entropy - _xlogx(1 - probabilities)
        weights = image_weights(batch.padding, probabilities)
        counted = entropy if weights is None else entropy * weights
        pixels = probabilities[:, :1].numel() if weights is None else weights.sum()
        return {"entropy": torch.stack([torch.as_tensor(pixels).to(counted), counted.sum()])}

    def terms(self, statistics: Statistics) -> Terms:
        """Return the mean entropy of the pixels."""
        pixels, total = statistics["entropy"]
        entropy = total / pixels.clamp_min(1)
        return Terms(entropy, {"entropy": entropy})


def _xlogx(p: Tensor) -> Tensor:
    return p * p.clamp_min(1e-12).log()
