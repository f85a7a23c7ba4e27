"""scantune adapts a trained medical-image network to every single scan it meets.

The public names are imported when first used, so that `import scantune` and `scantune --help` are quick.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scantune import datasets, densities, experts, methods, networks, simulate, tasks
    from scantune.adapt import adapt
    from scantune.errors import InputError
    from scantune.modelfile import Model, load
    from scantune.networks import AdaptableNetwork
    from scantune.prior import FieldOfExperts
    from scantune.results import Result
    from scantune.scans import Case
    from scantune.site import Site

__version__ = version("scantune")

_HOMES = {
    "AdaptableNetwork": "networks",
    "Case": "scans",
    "FieldOfExperts": "prior",
    "InputError": "errors",
    "Model": "modelfile",
    "Result": "results",
    "Site": "site",
    "load": "modelfile",
}
_MODULES = ("adapt", "datasets", "densities", "experts", "methods", "networks", "simulate", "tasks")

__all__ = [
    "AdaptableNetwork",
    "Case",
    "FieldOfExperts",
    "InputError",
    "Model",
    "Result",
    "Site",
    "adapt",
    "datasets",
    "densities",
    "experts",
    "load",
    "methods",
    "networks",
    "simulate",
    "tasks",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"scantune.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"scantune.{name}")
    raise AttributeError(f"module 'scantune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
