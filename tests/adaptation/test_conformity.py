"""Networks of many kinds, tiny and untrained: each is adapted and left untouched, or refused in a sentence."""

import importlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import scantune
from scantune import FieldOfExperts
from scantune.tasks import Segmentation


class PlainUNet(nn.Module):
    """A U-Net of one level as people write it, with a norm of a kind."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d, channels: int = 1, classes: int = 3) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 6, 3, padding=1), norm(6)
        self.deep, self.up = nn.Conv2d(6, 8, 3, padding=1), nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.drop, self.classify = nn.Dropout2d(0.5), nn.Conv2d(12, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.norm(self.first(x)), inplace=True)
        deep = self.drop(F.relu(self.deep(F.max_pool2d(skip, 2))))
        return self.classify(torch.cat([skip, self.up(deep)], 1))


class LayerNorm(nn.Module):
    """A layer norm over channels, as in ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class Giving(nn.Module):
    """A network whose output another one turns into something else."""

    def __init__(self, network: nn.Module, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.network, self.change = network, change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.network(x))


class WithCoordinates(nn.Module):
    """A network that appends the coordinates of pixels to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.network = PlainUNet(channels=3)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (torch.linspace(-1, 1, length) for length in x.shape[2:])
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
        return self.network(torch.cat([x, grid.expand(len(x), -1, -1, -1).to(x)], 1))


def monai(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    usual = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
    return lambda: getattr(importlib.import_module("monai.networks.nets"), name)(**usual | arguments)


def of_package(package: str, build: Callable[[Any], nn.Module]) -> Callable[[], nn.Module]:
    """A network of a package that may be missing, or may not load on the installed PyTorch."""

    def made() -> nn.Module:
        try:
            module = importlib.import_module(package)
        except (ImportError, RuntimeError) as error:
            pytest.skip(f"{package} does not load here ({type(error).__name__}: {str(error)[:80]})")
        return build(module)

    return made


@dataclass(frozen=True)
class Kind:
    """A network, what it takes, how its user reads it, and what scantune has to be told."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (2, 1, 32, 32)
    read: Callable[[Any], Tensor] = lambda output: output.argmax(1)
    told: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32


def above_a_half(output: Any) -> Tensor:
    return output.sigmoid() > 0.5


UNET = {"channels": (4, 8), "strides": (2,)}
FEATURES = (4, 4, 8, 8, 8, 4)
DYN = {
    "kernel_size": (3, 3, 3),
    "strides": (1, 2, 2),
    "upsample_kernel_size": (2, 2),
    "filters": (4, 8, 8),
    "deep_supervision": True,
    "deep_supr_num": 1,
}
SWIN = {"feature_size": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}
TRANSFORMER = {"feature_size": 4, "hidden_size": 12, "mlp_dim": 16, "num_heads": 3}
THREE_D = {"spatial_dims": 3}
CUBE = (1, 1, 16, 16, 16)

KINDS = {
    "UNet 2D, instance norm": Kind(monai("UNet", **UNET, norm="instance")),
    "UNet 2D, batch norm": Kind(monai("UNet", **UNET, norm="batch")),
    "UNet 3D, instance norm": Kind(monai("UNet", **THREE_D, **UNET, norm="instance"), CUBE),
    "UNet 3D, batch norm": Kind(monai("UNet", **THREE_D, **UNET, norm="batch"), CUBE),
    "DynUNet 2D, deep supervision": Kind(monai("DynUNet", **DYN)),
    "DynUNet 3D, deep supervision": Kind(monai("DynUNet", **THREE_D, **DYN), CUBE),
    "SegResNet 2D": Kind(monai("SegResNet", init_filters=8, blocks_down=(1, 1), blocks_up=(1,))),
    "SegResNet 3D": Kind(monai("SegResNet", **THREE_D, init_filters=8, blocks_down=(1, 1), blocks_up=(1,)), CUBE),
    "BasicUNet 2D": Kind(monai("BasicUNet", features=FEATURES)),
    "BasicUNet 3D": Kind(monai("BasicUNet", **THREE_D, features=FEATURES), (1, 1, 16, 16, 32)),
    "AttentionUnet 2D": Kind(monai("AttentionUnet", **UNET)),
    "AttentionUnet 3D": Kind(monai("AttentionUnet", **THREE_D, **UNET), CUBE),
    "UNETR 2D": Kind(monai("UNETR", img_size=(32, 32), **TRANSFORMER)),
    "UNETR 3D": Kind(monai("UNETR", **THREE_D, img_size=(16, 16, 16), **TRANSFORMER), CUBE),
    "SwinUNETR 2D": Kind(monai("SwinUNETR", **SWIN), (2, 1, 64, 64)),
    "SwinUNETR 3D": Kind(monai("SwinUNETR", **THREE_D, **SWIN), (1, 1, 32, 32, 64)),
    "smp Unet, resnet18": Kind(
        of_package(
            "segmentation_models_pytorch",
            lambda smp: smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=3),
        ),
        (2, 1, 64, 64),
    ),
    "smp Unet, timm regnet": Kind(
        of_package(
            "segmentation_models_pytorch",
            lambda smp: smp.Unet("timm-regnetx_002", encoder_weights=None, in_channels=1, classes=3),
        ),
        (2, 1, 64, 64),
    ),
    "smp Segformer, mit_b0": Kind(
        of_package(
            "segmentation_models_pytorch",
            lambda smp: smp.Segformer("mit_b0", encoder_weights=None, in_channels=1, classes=3),
        ),
        (2, 1, 64, 64),
    ),
    "torchvision DeepLabV3": Kind(
        of_package(
            "torchvision.models.segmentation",
            lambda models: models.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3),
        ),
        (2, 3, 64, 64),
        lambda output: output["out"].argmax(1),
        {"task": Segmentation()},  # untrained, it gives next to nothing, which looks like probabilities
    ),
    "no norm": Kind(lambda: PlainUNet(lambda _: nn.Identity())),
    "group norm": Kind(lambda: PlainUNet(lambda channels: nn.GroupNorm(2, channels))),
    "instance norm": Kind(lambda: PlainUNet(nn.InstanceNorm2d)),
    "layer norm": Kind(lambda: PlainUNet(LayerNorm)),
    "batch norm and dropout": Kind(PlainUNet),
    "four channels": Kind(lambda: PlainUNet(channels=4), (2, 4, 32, 32)),
    "not square": Kind(PlainUNet, (2, 1, 16, 48)),
    "coordinates appended inside": Kind(WithCoordinates),
    "float16": Kind(PlainUNet, dtype=torch.float16),
    "bfloat16": Kind(PlainUNet, dtype=torch.bfloat16),
    "float64": Kind(PlainUNet, dtype=torch.float64),
    "compiled": Kind(lambda: torch.compile(PlainUNet(), backend="eager")),
    "DataParallel": Kind(lambda: nn.DataParallel(PlainUNet())),
    "torch.fx": Kind(lambda: torch.fx.symbolic_trace(PlainUNet())),
    "weight norm": Kind(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 1, 1)), PlainUNet())),
    "tuple": Kind(lambda: Giving(PlainUNet(), lambda y: (y, y.mean())), read=lambda output: output[0].argmax(1)),
    "list, full resolution first": Kind(
        lambda: Giving(PlainUNet(), lambda y: [y, F.avg_pool2d(y, 2)]), read=lambda output: output[0].argmax(1)
    ),
    "list, low resolution first": Kind(
        lambda: Giving(PlainUNet(), lambda y: [F.avg_pool2d(y, 2), y]),
        read=lambda output: output[1].argmax(1),
        told={"output": 1},
    ),
    "features and logits": Kind(
        lambda: Giving(PlainUNet(), lambda y: {"features": F.avg_pool2d(y, 2), "logits": y}),
        read=lambda output: output["logits"].argmax(1),
    ),
    "pred": Kind(
        lambda: Giving(PlainUNet(), lambda y: {"embedding": y.mean((2, 3)), "pred": y}),
        read=lambda output: output["pred"].argmax(1),
    ),
    "a key of its own": Kind(
        lambda: Giving(PlainUNet(), lambda y: {"features": y.exp(), "scores": y}),
        read=lambda output: output["scores"].argmax(1),
        told={"output": "scores"},
    ),
    "stacked heads": Kind(
        lambda: Giving(PlainUNet(), lambda y: torch.stack([y, y.flip(1)], 1)),
        read=lambda output: output[:, 0].argmax(1),
        told={"output": lambda output: output[:, 0]},
    ),
    "softmax probabilities": Kind(lambda: Giving(PlainUNet(), lambda y: y.softmax(1))),
    "one logit": Kind(lambda: PlainUNet(classes=1), read=lambda output: above_a_half(output)[:, 0]),
    "regions of BraTS, logits": Kind(PlainUNet, read=above_a_half, told={"task": Segmentation(overlapping=True)}),
    "regions of BraTS, probabilities": Kind(
        lambda: Giving(PlainUNet(), torch.sigmoid), read=lambda output: output > 0.5
    ),
}


def state_of(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, bool], list[str]]:
    """Everything that must stay: weights and buffers, the mode of each module, and hooks."""
    modes = {name: module.training for name, module in network.named_modules()}
    hooks = [name for name, module in network.named_modules() if module._forward_hooks or module._forward_pre_hooks]
    return deepcopy(network.state_dict()), modes, hooks


@pytest.mark.parametrize("name", KINDS)
def test_a_network_is_adapted_as_it_is(name):
    torch.manual_seed(0)
    kind = KINDS[name]
    network = kind.build().to(kind.dtype)
    next(module for module in network.modules() if not list(module.children())).eval()  # some are frozen, some are not
    volumes = [torch.rand(kind.shape) for _ in range(2)]
    scan = torch.rand(kind.shape) ** 2
    weights, modes, hooks = state_of(network)

    prior = FieldOfExperts.fit(network, volumes, **kind.told)
    energy = prior.energy(network, scan)
    result = scantune.adapt(network, scan, prior=prior, steps=2, guard=False, device="cpu")

    after, modes_after, hooks_after = state_of(network)
    assert modes_after == modes
    assert hooks_after == hooks
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[key], weights[key]) and after[key].dtype == weights[key].dtype for key in weights)
    with torch.no_grad():
        own = kind.read(network.eval()(scan.to(kind.dtype)))
    assert torch.equal(result.source_prediction, own)
    assert result.prediction.shape == own.shape
    assert result.energy_before == pytest.approx(energy, rel=1e-3)
    assert result.energy_after < result.energy_before
    assert {each.dtype for each in result.network.task.parameters()} == {kind.dtype}
    assert {each.dtype for each in result.network.normalizer.parameters()} == {torch.float32}
