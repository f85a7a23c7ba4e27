"""Made-up scans: people of four anatomies, and shifts of contrast, gain, noise and sharpness."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

SIZE = 64
STRUCTURES = {"organ": 2, "brain": 3, "heart": 3, "single": 1}
INTENSITIES = {
    "organ": (0.03, 0.30, 0.55, 0.85),
    "brain": (0.0, 0.22, 0.52, 0.82),
    "heart": (0.03, 0.25, 0.50, 0.85),
    "single": (0.03, 0.35, 0.62, 0.80),
}
"""Of air and three tissues, at home."""

NOISE = 0.03
SHIFTS = (
    ("none", "contrast", "dark", "ramp", "curve", "invert", "gain"),
    ("mild", "bright", "dark", "noise", "curve", "ramp", "blur"),
)
"""Two lists of shifts, of which a person's scans have one."""

ROWS, COLUMNS = torch.meshgrid(torch.arange(SIZE).float(), torch.arange(SIZE).float(), indexing="ij")
Waves = tuple[tuple[int, float, float], ...]


class Dice:
    """Random numbers of one person."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def even(self) -> float:
        """Draw a number between 0 and 1."""
        return float(torch.rand(1, generator=self.generator))

    def normal(self, deviation: float = 1.0) -> float:
        """Draw a number around 0."""
        return deviation * float(torch.randn(1, generator=self.generator))

    def field(self, slices: int, coarse: int) -> Tensor:
        """Draw a smooth field `(slices, SIZE, SIZE)` of mean 0 and deviation 1."""
        knots = torch.randn(1, 1, max(2, coarse // 2), coarse, coarse, generator=self.generator)
        field = F.interpolate(knots, size=(slices, SIZE, SIZE), mode="trilinear", align_corners=True)[0, 0]
        return (field - field.mean()) / field.std()


def blob(centre: tuple[float, float], axes: tuple[float, float], angle: float = 0.0, waves: Waves = ()) -> Tensor:
    """Return distances from the centre of an ellipse with a wavy outline; below 1 inside."""
    y, x = ROWS - centre[0], COLUMNS - centre[1]
    u = (math.cos(angle) * y + math.sin(angle) * x) / axes[0]
    v = (math.cos(angle) * x - math.sin(angle) * y) / axes[1]
    around = torch.atan2(u, v)
    return (u * u + v * v).sqrt() / (1 + sum(height * torch.cos(count * around + at) for count, height, at in waves))


@dataclass(frozen=True)
class Body:
    """Sizes and shapes of one person."""

    big: float
    parts: tuple[float, ...]
    middle: tuple[float, float]
    angle: float
    aspect: float
    phases: tuple[float, ...]
    alike: tuple[tuple[float, float], ...]
    """Angle and size of blobs near the rim that look like structures, and are none."""

    @classmethod
    def of(cls, dice: Dice) -> "Body":
        """Draw a person."""
        return cls(
            math.exp(dice.normal(0.10)),
            tuple(math.exp(dice.normal(0.08)) for _ in range(4)),
            (SIZE / 2 + dice.normal(2), SIZE / 2 + dice.normal(2)),
            dice.normal(0.2),
            math.exp(dice.normal(0.06)),
            tuple(6.28 * dice.even() for _ in range(8)),
            tuple((6.28 * dice.even(), dice.even()) for _ in range(6)),
        )


Slice = tuple[Tensor, Tensor]
"""Tissues and labels of a slice `(SIZE, SIZE)`."""


def paint(pictures: Slice, where: Tensor, tissue: int, label: int) -> None:
    """Set tissue and label of a region."""
    pictures[0][where], pictures[1][where] = tissue, label


def trunk(pictures: Slice, body: Body, number: int) -> None:
    """Paint a trunk with look-alikes at its rim."""
    paint(pictures, blob((SIZE / 2, SIZE / 2), (29, 27 * body.aspect)) < 1, 1, 0)
    for angle, size in body.alike:
        at = angle + 0.15 * number
        where = (SIZE / 2 + 22 * math.sin(at), SIZE / 2 + 20 * math.cos(at))
        paint(pictures, blob(where, (2 + 2 * size, 2 + 2 * size)) < 1, 3, 0)


def organ(pictures: Slice, body: Body, number: int, middle: tuple[float, float], profile: float) -> None:
    """Paint an organ with a bright core."""
    trunk(pictures, body, number)
    outer, inner = 13 * body.big * profile, 6.5 * body.big * profile * body.parts[0]
    waves = ((2, 0.05, body.phases[0]), (3, 0.04, body.phases[1]))
    around = blob(middle, (outer, 0.9 * outer * body.aspect), body.angle, waves) < 1
    paint(pictures, around, 2, 1)
    paint(pictures, around & (blob((middle[0] + 2.5, middle[1] - 1.5), (inner, 0.85 * inner)) < 1), 3, 2)


def single(pictures: Slice, body: Body, number: int, middle: tuple[float, float], profile: float) -> None:
    """Paint one structure."""
    trunk(pictures, body, number)
    size = 9 * body.big * profile
    paint(pictures, blob(middle, (size, 0.8 * size * body.aspect), body.angle, ((3, 0.08, body.phases[0]),)) < 1, 2, 1)


def heart(pictures: Slice, body: Body, number: int, middle: tuple[float, float], profile: float) -> None:
    """Paint a chamber, a ring, and the chamber inside the ring."""
    trunk(pictures, body, number)
    left, right = 11 * body.big * profile, body.big * profile * body.parts[1]
    ring = blob((middle[0], middle[1] + 4), (left, left * body.aspect))
    paint(pictures, blob((middle[0] - 1, middle[1] - 8 * body.big), (10 * right, 8 * right), body.angle) < 1, 3, 1)
    paint(pictures, ring < 1, 2, 2)
    paint(pictures, ring < 0.6 * body.parts[0], 3, 3)


def brain(pictures: Slice, body: Body, number: int, _middle: tuple[float, float], profile: float) -> None:  # noqa: ARG001
    """Paint fluid, a wavy grey shell and white matter around a ventricle."""
    centre = (0.5 * (SIZE / 2 + body.middle[0]), 0.5 * (SIZE / 2 + body.middle[1]))
    size, phases = 25 * body.big * profile, body.phases
    folds = ((5, 0.04, phases[0]), (8, 0.03, phases[1]), (2, 0.04, phases[2]))
    deeper = ((5, 0.10, phases[0]), (9, 0.10, phases[4]), (2, 0.05, phases[2]))
    grey, white = 0.9 * size, 0.9 * size * body.parts[0]
    hole = body.big * profile * body.parts[1]
    head = blob(centre, (size, 0.82 * size * body.aspect), body.angle, ((2, 0.03, phases[3]),))
    paint(pictures, head < 1, 1, 1)
    paint(pictures, blob(centre, (grey, 0.82 * grey * body.aspect), body.angle, folds) < 1, 2, 2)
    paint(pictures, blob(centre, (0.70 * white, 0.57 * white * body.aspect), body.angle, deeper) < 1, 3, 3)
    paint(pictures, blob(centre, (5 * hole, 3.2 * hole), body.angle) < 1, 1, 1)


ANATOMIES: dict[str, Callable[[Slice, Body, int, tuple[float, float], float], None]] = {
    "organ": organ,
    "brain": brain,
    "heart": heart,
    "single": single,
}


def person(kind: str, seed: int, slices: int) -> tuple[Tensor, Tensor]:
    """Return tissues and labels `(slices, SIZE, SIZE)` of a person."""
    dice = Dice(7919 * seed + 1 + list(STRUCTURES).index(kind))
    body = Body.of(dice)
    tissues = torch.zeros(slices, SIZE, SIZE, dtype=torch.long)
    labels = torch.zeros_like(tissues)
    for number in range(slices):
        height = (number - (slices - 1) / 2) / (slices / 2)
        middle = (body.middle[0] + dice.normal(0.4), body.middle[1] + dice.normal(0.4))
        ANATOMIES[kind]((tissues[number], labels[number]), body, number, middle, math.sqrt(1 - (0.75 * height) ** 2))
    return tissues, labels


def scan(kind: str, seed: int, shift: str = "none", slices: int = 6) -> tuple[Tensor, Tensor]:
    """Return a scan `(slices, 1, SIZE, SIZE)` between 0 and 1, and its labels `(slices, SIZE, SIZE)`."""
    tissues, labels = person(kind, seed, slices)
    dice, other = Dice(104729 * seed + 17), Dice(31 * seed + 1009 * sum(map(ord, shift)))
    table = torch.tensor([INTENSITIES[kind][0], *(value + dice.normal(0.02) for value in INTENSITIES[kind][1:])])
    inside = tissues > 0
    clean = table[tissues] + 0.03 * dice.field(slices, 12) * inside
    clean = clean * (1 + 0.05 * dice.field(slices, 3))
    image, noise = shifted((0.5 * (clean + blurred(clean, 3))).clamp(0, 1), shift, other)
    image = image + noise * torch.randn(image.shape, generator=dice.generator)
    # Brains come without a skull, as their networks expect them.
    image = image * inside if kind == "brain" else image
    return image.clamp(0, 1)[:, None].float(), labels


def blurred(image: Tensor, side: int) -> Tensor:
    """Return slices averaged over squares."""
    return F.avg_pool2d(F.pad(image[:, None], (side // 2,) * 4, mode="replicate"), side, 1)[:, 0]


def curved(image: Tensor, dice: Dice, some: float) -> Tensor:
    """Return intensities through a curve of five knots, which rises in half of the cases and has any order else."""
    knots = torch.rand(5, generator=dice.generator)
    knots = knots.sort().values if some < 0.5 else knots
    at = 4 * image.clamp(0, 0.999)
    below = at.long()
    return knots[below] + (at - below) * (knots[below + 1] - knots[below])


def shifted(image: Tensor, shift: str, dice: Dice) -> tuple[Tensor, float]:
    """Return a scan `(slices, SIZE, SIZE)` as another scanner shows it, and the deviation of its noise."""
    some = dice.even()
    ramp = torch.linspace(0.3 + 0.3 * some, 1.3, SIZE)
    changes: dict[str, Callable[[], Tensor]] = {
        "none": lambda: image,
        "mild": lambda: image ** (0.8 + 0.45 * some),
        "contrast": lambda: (0.6 - 0.3 * some) * image + 0.2 + 0.2 * some,
        "dark": lambda: image ** (1.6 + 1.4 * some),
        "bright": lambda: image ** (0.65 - 0.3 * some),
        "ramp": lambda: ramp * image ** (1.2 + some),
        "invert": lambda: 0.95 - image,
        "curve": lambda: curved(image, dice, some),
        "gain": lambda: image * torch.exp((0.3 + 0.3 * some) * dice.field(len(image), 3)),
        "noise": lambda: image,
        "blur": lambda: blurred(blurred(image, 3 if some < 0.4 else 5), 3 if some < 0.4 else 5),
    }
    noise = {"mild": NOISE * (1 + some), "noise": 0.08 + 0.12 * some}.get(shift, NOISE)
    return changes[shift](), noise
