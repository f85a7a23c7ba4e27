"""A model that is still to be loaded. Nothing heavy is imported, and a source can be sent to worker processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scantune.model.model import Model


@dataclass(frozen=True)
class ModelSource:
    """What `scantune.load` takes.

    Attributes:
        path: A model file, or the name of a bundled model.
        network: What makes the network of a file with an architecture of the user's own: its kind, such as
            `package.module:factory`, or a record of `kind` and arguments.
    """

    path: Path | str
    network: str | Mapping[str, Any] | None = field(default=None, hash=False)

    def load(self) -> "Model":
        """Load the model."""
        from scantune.model.model import load

        return load(self.path, self.network)
