"""Registration: the output is an atlas, bent to fit the scan; its labels are the prediction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from scantune.networks.adaptable import block_means
from scantune.networks.diffeomorphism import folding_share, local_correlation, roughness
from scantune.tasks.base import Measure, Task, soft_dice_loss

World = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Registration(Task):
    """Reads what `scantune.networks.RegistrationNetwork` gives: label probabilities and the deformation that made them.

    Args:
        smoothness: Weight of the roughness of the velocities in the training loss, beside one minus the soft Dice.
        similarity: Weight of one minus the local correlation of the warped atlas and the image in it.
        atlas: What the atlas is called.
        world: From height in mm, row and column of the atlas to its world in mm (RAS+), four rows of four.
    """

    name: ClassVar[str] = "registration"
    method: ClassVar[str] = "instance"
    judged_by: ClassVar[Measure] = "likeness"
    exclusive = True
    overlapping = False
    output = None
    smoothness: float = 0.0
    similarity: float = 0.0
    atlas: str = ""
    world: World = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))

    def probabilities(self, output: Any) -> Tensor:
        """Return the warped labels of the atlas, `(slices, classes, *spatial)`, with fractions at borders."""
        return self.scores(output)

    def labels(self, probabilities: Tensor) -> Tensor:
        """Return the label with the largest share of a pixel."""
        return probabilities.argmax(1)

    def foreground(self, output: Any) -> Tensor:
        """Return the share of any structure of the warped atlas, `(slices, 1, *spatial)`.

        The paper does not say which patches of a registration network are active: here these are the ones on which a
        structure of the atlas has come to lie.
        """
        return 1 - self.probabilities(output)[:, :1]

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """Return one minus the soft Dice with the scan's labels, plus two weighted further terms."""
        loss = soft_dice_loss(self.probabilities(output), target)
        if self.smoothness:
            loss = loss + self.smoothness * roughness(output["velocity"])
        if self.similarity:
            fixed = output["fixed"]
            warped = block_means(output["warped"], -(-output["warped"].shape[-1] // fixed.shape[-1]))
            loss = loss + self.similarity * (1 - local_correlation(warped, fixed).mean())
        return loss

    def maps(self, output: Any) -> dict[str, Tensor]:
        """Return the displacement in pixels, `(slices, dimensions, *spatial)`."""
        return {"displacement": output["displacement"]}

    def quality(self, maps: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the share of pixels at which the deformation folds, and its roughness."""
        displacement = maps["displacement"]
        return {"folding": folding_share(displacement), "roughness": float(roughness(displacement))}

    def record(self) -> dict[str, Any]:
        """Return the task as JSON."""
        return {
            "smoothness": self.smoothness,
            "similarity": self.similarity,
            "atlas": self.atlas,
            "world": [list(row) for row in self.world],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Restore the task from JSON."""
        world = tuple(tuple(float(value) for value in row) for row in record["world"])
        return cls(record["smoothness"], record["similarity"], record["atlas"], world)
