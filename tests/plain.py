"""The plain rendering of FoE-CNN-PCA: Eq. 7 to 15 as one would first write them, to compare and to time against.

Eager, float32, every parameter's gradient on, batch norms as they are, features standardised pixel by pixel, patches
cut out one by one, every training subject compared with; of the network PyTorch's own operations alone, none of our
programs for pooling, upsampling and bumps. Gaussian densities, 2D networks, the default options.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune import AdaptableNetwork, FieldOfExperts
from scantune.densities.gaussian import VARIANCE_FLOOR
from scantune.networks import UNet
from scantune.networks.normalizer import Bump

WEIGHT = 0.1  # lambda


class PlainUNet(UNet):
    """By PyTorch's pooling and upsampling."""

    def _pooled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.pool(x)

    def _joined(self, x: Tensor, skip: Tensor, conv: nn.Module) -> Tensor:
        return torch.cat([F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False), skip], dim=1)


class PlainBump(Bump):
    """As its formula is written."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-x.square() / self.sigma.square().clamp_min(1e-6))


class Plain:
    """One network and its prior; `objective` can be differentiated, `epoch` does what a step of the paper does."""

    def __init__(self, network: AdaptableNetwork, prior: FieldOfExperts) -> None:
        self.network = network.eval()
        for module in network.modules():
            # They have nothing that the others do not have.
            module.__class__ = {UNet: PlainUNet, Bump: PlainBump}.get(type(module), type(module))
        self.prior = prior
        self.term = torch.zeros(())
        self.features: dict[str, Tensor] = {}
        modules = dict(self.network.task.named_modules())
        for layer in prior.layers():
            modules[layer].register_forward_hook(self._keep(layer))

    @classmethod
    def of(cls, network: AdaptableNetwork, prior: FieldOfExperts) -> "Plain":
        """Of a copy of the network, every parameter's gradient on."""
        return cls(deepcopy(network).requires_grad_(True), prior)

    def _keep(self, layer: str):
        def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            self.features[layer] = output
            return output.clone()  # what follows may work in place

        return keep

    def objective(self, images: Tensor, padding: Tensor | None = None) -> Tensor:
        """Eq. 15 of a batch `(slices, channels, height, width)`, a scalar."""
        output = self.network(images)
        layers = []
        for layer, field in self.prior.families["cnn"].layers.items():
            channels = self.features[layer]
            samples = channels.movedim(1, 0).flatten(1)  # (channels, slices * pixels)
            if padding is not None:
                outside = F.adaptive_max_pool2d(padding.float(), channels.shape[2:]) > 0
                samples = samples[:, ~outside.flatten()]
            layers.append(self._divergence(field, samples))
        self.term = term = torch.stack(layers).mean()
        if "pca" not in self.prior.families:
            return term
        loadings = self._loadings(output, padding)
        return term + WEIGHT * self._divergence(*loadings) if loadings else term

    def _divergence(self, field, samples: Tensor) -> Tensor:
        """Mean over experts of the mean over subjects of KL(p_s || p_t), from samples `(experts, number)`."""
        standard = (samples - field.center[:, None]) / field.scale[:, None]
        mean, variance = standard.mean(1), standard.var(1, correction=0) + VARIANCE_FLOOR
        own_mean, own_variance = field.density.mean, field.density.variance + VARIANCE_FLOOR  # (subjects, experts)
        ratio = (own_variance + (own_mean - mean) ** 2) / variance
        each = 0.5 * (variance.log() - own_variance.log() + ratio - 1)
        return each.mean(0)[field.kept].mean()

    def _loadings(self, output: Tensor, padding: Tensor | None) -> tuple[object, Tensor] | None:
        """The PCA experts' field, and the loadings `(channels * components, patches)` of the active patches."""
        family = self.prior.families["pca"]
        experts = family.experts
        size, stride = experts.settings.size, experts.settings.stride
        channels = self.features[experts.chosen[0]]
        patches = F.unfold(channels, size, stride=stride).unflatten(1, (channels.shape[1], -1))
        foreground = experts.task.foreground(output)
        if padding is not None:
            foreground = foreground * ~padding
        rows, columns = ((length - size) // stride + 1 for length in channels.shape[2:])
        centre = foreground[:, 0, size // 2 :: stride, size // 2 :: stride][:, :rows, :columns]
        active = (centre > experts.settings.threshold).flatten(1)  # (slices, positions)
        chosen = patches.movedim(3, 1)[active]  # (patches, channels, size * size)
        if not len(chosen):
            return None
        components = experts.components.flatten(2)
        loadings = torch.einsum("ncp,cgp->cgn", chosen - experts.mean.flatten(1), components)
        return family.layers[experts.chosen[0]], loadings.flatten(0, 1)

    def gradient(self, images: Tensor, padding: Tensor | None = None) -> tuple[float, list[Tensor]]:
        """The objective of one batch, and its gradient at the normaliser's parameters."""
        self.network.zero_grad()
        objective = self.objective(images, padding)
        objective.backward()
        return float(objective.detach()), [p.grad for p in self.network.normalizer.parameters() if p.grad is not None]

    def epoch(self, images: Tensor, generator: torch.Generator, batch: int = 8) -> float:
        """The gradient of as many batches of random slices as cover the volume."""
        self.network.zero_grad()
        count = -(-len(images) // batch)
        total = 0.0
        for _ in range(count):
            chosen = torch.randint(len(images), (batch,), generator=generator)
            objective = self.objective(images[chosen.to(images.device)]) / count
            objective.backward()
            total += float(objective.detach())
        return total
