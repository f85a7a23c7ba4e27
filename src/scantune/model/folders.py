"""Folders of other frameworks that a model is made from, and the trust that some of them need.

Nothing heavy is imported here: the module of a kind is imported when a folder of it is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from scantune.errors import InputError

if TYPE_CHECKING:
    from scantune.model.model import Model


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder that a model is made from.

    Attributes:
        name: What it is, for messages, such as `an nnU-Net folder`.
        content: Files that it has, for messages.
        holds: Returns whether a folder is of this kind.
        module: The module whose `load_folder(path, trust)` returns the model.
    """

    name: str
    content: str
    holds: Callable[[Path], bool]
    module: str


BUNDLE_CONFIGS = ("configs/inference.json", "configs/inference.yaml", "configs/inference.yml")
"""Where a MONAI bundle says how it infers."""


def _holds_bundle(path: Path) -> bool:
    return any((path / name).is_file() for name in BUNDLE_CONFIGS)


NNUNET_CHECKPOINT = "checkpoint_final.pth"
"""Name of the checkpoint of a fold that nnU-Net predicts with."""


def _holds_nnunet(path: Path) -> bool:
    """Return whether a folder is one of nnU-Net's results, or one of their folds."""
    if (path / NNUNET_CHECKPOINT).is_file():
        return (path.parent / "plans.json").is_file()
    return (path / "plans.json").is_file() and any(path.glob(f"fold_*/{NNUNET_CHECKPOINT}"))


FOLDERS: tuple[FolderKind, ...] = (
    FolderKind("a MONAI bundle", "configs/inference.json or yaml", _holds_bundle, "scantune.model.bundle"),
    FolderKind(
        "an nnU-Net folder", f"plans.json and fold_0/{NNUNET_CHECKPOINT}", _holds_nnunet, "scantune.model.nnunet"
    ),
)
"""Kinds of folders. The first one that a folder is of counts."""


def load_folder(path: Path, trust: bool = False) -> "Model":
    """Return the model of a folder.

    Args:
        path: The folder.
        trust: Whether code that the folder holds may run.

    Raises:
        InputError: The folder is of no known kind, or it holds code and is not trusted.
    """
    kind = next((kind for kind in FOLDERS if kind.holds(path)), None)
    if kind is None:
        known = "".join(f"; {kind.name} has {kind.content}" for kind in FOLDERS)
        raise InputError(
            f"{path} is a folder, but not one of a network that scantune can load{known}. Give a model file, or check "
            "the path."
        )
    model: Model = import_module(kind.module).load_folder(path, trust)
    return model


def require_trust(path: Path, trust: bool, why: str) -> None:
    """Check that a folder that holds code is trusted.

    Args:
        path: The folder.
        trust: Whether the user trusts it.
        why: What in it can run code, as a clause such as `its checkpoints are pickles, which can run any code`.

    Raises:
        InputError: The user does not.
    """
    if not trust:
        raise InputError(
            f"{path} is not loaded, because {why}. If you know where it comes from, give --trust, or trust=True in "
            "Python."
        )
