"""scantune adapts a trained medical-image network to every single scan it meets.

The public names are imported when first used, so that `import scantune` and `scantune --help` are quick.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scantune import datasets, densities, experts, methods, networks, simulate, tasks
    from scantune.adaptation.adapt import adapt
    from scantune.adaptation.result import Result
    from scantune.adaptation.site import Site
    from scantune.errors import InputError
    from scantune.model.model import Model, load
    from scantune.networks import AdaptableNetwork
    from scantune.prior.field_of_experts import FieldOfExperts
    from scantune.scans.case import Case

__version__ = version("scantune")

_HOMES = {
    "AdaptableNetwork": "networks",
    "Case": "scans.case",
    "FieldOfExperts": "prior.field_of_experts",
    "InputError": "errors",
    "Model": "model.model",
    "Result": "adaptation.result",
    "Site": "adaptation.site",
    "adapt": "adaptation.adapt",
    "load": "model.model",
}
_MODULES = ("datasets", "densities", "experts", "methods", "networks", "simulate", "tasks")

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
