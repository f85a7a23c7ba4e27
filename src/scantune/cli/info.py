"""The command `info`: the content of a model file."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from scantune.cli.train import Flag, NetworkWords


@dataclass(frozen=True)
class Info:
    """Describe a model file."""

    model: Annotated[str, Positional, arg(metavar="MODEL")]
    """A model file or folder, or the name of a model that comes with scantune, such as brain."""
    network: Annotated[NetworkWords, arg(metavar="MODULE:FACTORY ...")] = ()
    """The function that makes the network, for an architecture of your own; the weights are checked against it."""
    trust: Flag = False
    """Run code in a model's folder. Model files hold no code."""

    def run(self) -> int:
        """Print the description."""
        from scantune.model.architecture import architecture_from_words
        from scantune.model.describe import describe_model
        from scantune.model.model import load_for_description

        print(describe_model(load_for_description(self.model, architecture_from_words(self.network), self.trust)))
        return 0
