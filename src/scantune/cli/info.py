"""The command `info`: the content of a model file."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Info:
    """Describe a model file."""

    model: Annotated[str, Positional, arg(metavar="MODEL")]
    """A model file, or the name of a model that comes with scantune, such as brain."""

    def run(self) -> int:
        """Print the description."""
        from scantune.model.describe import describe_model
        from scantune.model.model import load

        print(describe_model(load(self.model)))
        return 0
