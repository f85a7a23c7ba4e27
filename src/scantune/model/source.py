"""A model that is still to be loaded. Nothing heavy is imported, and a source can be sent to worker processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scantune.model.model import Model


@dataclass(frozen=True)
class ModelSource:
    """What `scantune.load` takes, and a prior.

    Attributes:
        path: A model file or folder, or the name of a bundled model.
        network: What makes the network of a file with an architecture of the user's own: its kind, such as
            `package.module:factory`, or a record of `kind` and arguments.
        prior: A file with a prior, which takes the place of the model's own.
        trust: Whether code that a folder holds may run.
    """

    path: Path | str
    network: str | Mapping[str, Any] | None = field(default=None, hash=False)
    prior: Path | None = None
    trust: bool = False

    def load(self) -> "Model":
        """Load the model.

        Raises:
            InputError: It cannot be loaded, or the prior does not fit it.
        """
        from scantune.model.model import load
        from scantune.prior.field_of_experts import FieldOfExperts

        model = load(self.path, self.network, trust=self.trust)
        if self.prior is None:
            return model
        prior = FieldOfExperts.load(self.prior)
        prior.require_fit(model.network)
        prior.require_window(model.backend.window)
        return replace(model, prior=prior)
