"""Small networks of several kinds, trained on made-up scans in a minute."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from toys import SHIFTS, STRUCTURES, scan

from scantune.networks import AdaptableNetwork
from scantune.tasks import soft_dice_loss

ITERATIONS, TRAINING_PEOPLE, HOME_PEOPLE = 360, 12, 10
HOME, TEST = 100, 200
"""First numbers of held-out people and of those with shifted scans; training people begin at 0."""

RATES = {"none": 2e-3}
USUAL_RATE = 4e-3


def normalisation(kind: str, channels: int, dimensions: int) -> nn.Module:
    """Return a layer that normalises features."""
    if kind == "batch":
        return (nn.BatchNorm2d if dimensions == 2 else nn.BatchNorm3d)(channels)
    if kind == "instance":
        return (nn.InstanceNorm2d if dimensions == 2 else nn.InstanceNorm3d)(channels, affine=True)
    return nn.GroupNorm(4, channels) if kind == "group" else nn.Identity()


def block(inputs: int, outputs: int, kind: str, dimensions: int) -> nn.Sequential:
    """Return two convolutions with normalisation."""
    convolution = nn.Conv2d if dimensions == 2 else nn.Conv3d
    parts: list[nn.Module] = []
    for channels in (inputs, outputs):
        parts += [convolution(channels, outputs, 3, padding=1), normalisation(kind, outputs, dimensions), nn.ReLU()]
    return nn.Sequential(*parts)


class SmallUNet(nn.Module):
    """U-Net of three levels, 2D or 3D, with any normalisation."""

    def __init__(self, classes: int, kind: str, width: int = 8, dimensions: int = 2) -> None:
        super().__init__()
        pool, mode = (nn.MaxPool2d, "bilinear") if dimensions == 2 else (nn.MaxPool3d, "trilinear")
        self.down, self.up = pool(2), nn.Upsample(scale_factor=2, mode=mode, align_corners=False)
        sizes = ((1, width), (width, 2 * width), (2 * width, 4 * width), (6 * width, 2 * width), (3 * width, width))
        self.blocks = nn.ModuleList(block(*size, kind, dimensions) for size in sizes)
        self.last = (nn.Conv2d if dimensions == 2 else nn.Conv3d)(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        top = self.blocks[0](images)
        middle = self.blocks[1](self.down(top))
        deep = self.blocks[2](self.down(middle))
        middle = self.blocks[3](torch.cat([self.up(deep), middle], 1))
        return self.last(self.blocks[4](torch.cat([self.up(middle), top], 1)))


@dataclass(frozen=True)
class ToyNetwork:
    """A network of the benchmark: what it sees, how it is built, and from which seed.

    Args:
        seed: Of weights and people.
        kind: The anatomy.
        design: `own`, `own3d`, or a network of MONAI: `unet`, `basic`, `segres`.
        norm: `batch`, `instance`, `group` or `none`.
        augmented: Whether intensities vary in training.
        people: How many have shifted scans.
    """

    seed: int
    kind: str
    design: str
    norm: str
    augmented: bool = False
    people: int = 1

    @property
    def name(self) -> str:
        """Return a name that tells all."""
        return f"{self.kind}-{self.design}-{self.norm}{'-augmented' if self.augmented else ''}-{self.seed}"

    @property
    def structures(self) -> int:
        """Count the structures."""
        return STRUCTURES[self.kind]

    @property
    def volumetric(self) -> bool:
        """Return True for a 3D network."""
        return self.design.endswith("3d")

    def scan(self, number: int, shift: str = "none") -> tuple[Tensor, Tensor]:
        """Return a scan of a person as the network takes it, and its labels, `(slices, *spatial)` without channels."""
        images, labels = scan(self.kind, 1000 * self.seed + number, shift, 8 if self.volumetric else 6)
        return (images.transpose(0, 1)[None].contiguous(), labels[None]) if self.volumetric else (images, labels)

    def shifted(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the shift of each scan that is adapted."""
        for person in range(self.people):
            yield from ((TEST + person, shift) for shift in SHIFTS[(self.seed + person) % 2])

    def built(self) -> nn.Module:
        """Return the untrained network."""
        torch.manual_seed(self.seed)
        classes = self.structures + 1
        if self.design.startswith("own"):
            return SmallUNet(classes, self.norm, dimensions=3 if self.volumetric else 2)
        from monai.networks import nets

        norm = ("group", {"num_groups": 4}) if self.norm == "group" else self.norm
        if self.design == "unet":
            return nets.UNet(2, 1, classes, (8, 16, 32), (2, 2), num_res_units=1, norm=norm)
        if self.design == "basic":
            return nets.BasicUNet(2, 1, classes, features=(8, 8, 16, 32, 32, 8), norm=norm)
        return nets.SegResNet(2, 8, 1, classes, blocks_down=(1, 2, 2), blocks_up=(1, 1), norm=norm)

    def train(self, network: nn.Module, iterations: int = ITERATIONS) -> nn.Module:
        """Train a network on scans of the training people, and return it in evaluation mode."""
        torch.manual_seed(self.seed)
        scans = [self.scan(number) for number in range(TRAINING_PEOPLE)]
        rate = RATES.get(self.norm, USUAL_RATE)
        adam = torch.optim.Adam(network.parameters(), rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(adam, rate, total_steps=iterations)
        network.train()
        for _ in range(iterations):
            images, labels = scans[int(torch.randint(TRAINING_PEOPLE, (1,)))]
            images = augment(images) if self.augmented else images
            adam.zero_grad()
            logits = network(images)
            loss = soft_dice_loss(logits.softmax(1), labels) + nn.functional.cross_entropy(logits, labels)
            loss.backward()
            adam.step()
            schedule.step()
        return network.eval()

    def adaptable(self, network: nn.Module) -> AdaptableNetwork:
        """Return a network with a normaliser in front, the same each time."""
        torch.manual_seed(self.seed)
        return AdaptableNetwork.around(network).eval()


def augment(images: Tensor) -> Tensor:
    """Return scans with another gamma, gain and offset."""
    gamma, gain, offset = torch.rand(3).tolist()
    return (images ** (0.6 + 1.2 * gamma) * (0.7 + 0.5 * gain) + 0.15 * (offset - 0.3)).clamp(0, 1)


DEVELOPMENT = (
    ToyNetwork(30, "organ", "own", "batch", people=2),
    ToyNetwork(31, "brain", "own", "batch", people=2),
    ToyNetwork(32, "heart", "own", "instance", people=2),
    ToyNetwork(33, "single", "own", "batch", people=2),
    ToyNetwork(34, "heart", "unet", "batch", people=2),
    ToyNetwork(35, "organ", "basic", "group", augmented=True, people=2),
    ToyNetwork(36, "organ", "own", "instance"),
    ToyNetwork(37, "heart", "own", "none"),
    ToyNetwork(38, "brain", "own", "none", augmented=True),
    ToyNetwork(39, "single", "own", "none"),
    ToyNetwork(40, "organ", "own", "instance", augmented=True),
    ToyNetwork(41, "brain", "segres", "group"),
    ToyNetwork(42, "heart", "own3d", "batch"),
    ToyNetwork(43, "brain", "unet", "instance"),
    ToyNetwork(44, "organ", "own", "none"),
    ToyNetwork(45, "heart", "basic", "instance", augmented=True),
)
"""Networks on which rules may be chosen."""

SEEN_NETWORKS = (
    ToyNetwork(50, "organ", "own", "instance"),
    ToyNetwork(51, "brain", "own", "group"),
    ToyNetwork(52, "heart", "own", "batch"),
    ToyNetwork(53, "single", "own", "group"),
    ToyNetwork(54, "organ", "segres", "group"),
    ToyNetwork(55, "brain", "unet", "batch"),
    ToyNetwork(56, "heart", "own", "none"),
    ToyNetwork(57, "brain", "basic", "instance", augmented=True),
    ToyNetwork(58, "organ", "own3d", "batch"),
    ToyNetwork(59, "single", "unet", "instance"),
    ToyNetwork(60, "brain", "own", "none", augmented=True),
    ToyNetwork(61, "heart", "segres", "group"),
    ToyNetwork(62, "organ", "own", "batch", augmented=True),
    ToyNetwork(63, "single", "own", "batch"),
    ToyNetwork(64, "brain", "own", "instance"),
    ToyNetwork(65, "heart", "basic", "batch"),
)
"""Networks of an earlier report. They have been looked at, so that rules may be chosen on them, too."""

TEST_NETWORKS = tuple(replace(toy, seed=toy.seed + 20) for toy in SEEN_NETWORKS)
"""Networks of the same kinds on which nothing is chosen: of other seeds, with scans of other people."""
