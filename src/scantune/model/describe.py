"""The description of a model file, as text for a terminal."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from scantune.model.model import Model
from scantune.prior.calibration import Calibration
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.prior.home_readings import HomeReadings
from scantune.prior.local_fit import PEOPLE_FOR_A_FIT

TEXT_WIDTH = 64
"""Width of the second column; with the first it fits a terminal of 80."""


def describe_model(model: Model) -> str:
    """Return the contents of a model file as text for a terminal."""
    weights = sum(parameter.numel() for parameter in model.network.parameters())
    structures = ", ".join(f"{name} = {value}" for name, value in model.labels.items())
    entries = [
        ("model", [f"{model.name} ({model.fingerprint})"]),
        ("task", textwrap.wrap(f"{model.task.name}: {structures}", TEXT_WIDTH)),
        ("network", _lines(model.architecture | {"weights": weights})),
        ("input", _lines(model.backend.record())),
        ("prior", _prior_lines(model.prior)),
        *([("helpers", [", ".join(model.helpers)])] if model.helpers else []),
        *((key.replace("_", " "), _lines(value)) for key, value in _filled_entries(model.provenance)),
    ]
    margin = 2 + max(len(key) for key, _ in entries)
    return "\n".join(key.ljust(margin) + ("\n" + " " * margin).join(lines) for key, lines in entries)


def _prior_lines(prior: FieldOfExperts | None) -> list[str]:
    if prior is None:
        return ["none (foe methods need one: scantune fit)"]
    families = ", ".join(
        f"{sum(int(field.kept.sum()) for field in family.layers.values())} {name.upper()} experts"
        for name, family in prior.families.items()
    )
    contents = f"{prior.subjects} subjects, {families}, floor {prior.floor():.4g} nats"
    known = prior.calibration
    typical = "not calibrated" if known is None else _levels(known)
    assessment = [] if known is None or known.home is None else [_assessment(known.home)]
    texts = (f"{contents}, {typical}", *assessment, *prior.notes)
    return [line for text in texts for line in textwrap.wrap(text, TEXT_WIDTH)]


def _assessment(home: HomeReadings) -> str:
    """Return what predictions are assessed by."""
    kind = "agreement" if home.dice is None else "Dice"
    known = f"assessment: {kind}, home readings of {home.people} scans"
    if home.local is None:
        return f"{known}, shipped coefficients (local ones need labels and {PEOPLE_FOR_A_FIT} people)"
    error = home.local.error
    better = "local coefficients" if home.local.wins else "shipped coefficients, which do better than local ones"
    return f"{known}, {better} (error {error.local:.3f} local, {error.shipped:.3f} shipped)"


def _levels(known: Calibration) -> str:
    far = "" if math.isinf(known.levels.far) else f", far out beyond {known.levels.far:.4g}"
    shown = None if known.coverage is None else known.coverage.shown
    seen = "" if shown is None else f", scans that show {shown.ml[0]:.0f} to {shown.ml[1]:.0f} mL"
    return f"typical up to {known.typical:.4g} nats{far}{seen}"


def _lines(value: Any) -> list[str]:
    """Return a recorded value as lines: the entries of a dictionary in rows, anything else as it is."""
    if not isinstance(value, Mapping):
        return [_value_text(value)]
    # A space that does not break keeps an entry's name and value on one line.
    phrases = [phrase.replace(" ", "\N{NO-BREAK SPACE}") for phrase in _phrases(value)]
    rows = textwrap.wrap(", ".join(phrases), TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)
    return [row.replace("\N{NO-BREAK SPACE}", " ") for row in rows] or ["nothing"]


def _phrases(record: Mapping[str, Any]) -> list[str]:
    """Return names with values; a seed is written as it is typed."""
    return [
        f"{name.replace('_', ' ')} {value if name == 'seed' else _value_text(value)}"
        for name, value in _filled_entries(record)
    ]


def _filled_entries(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the entries that are not empty."""
    return [(name, value) for name, value in record.items() if value is not None and value != ""]


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({', '.join(_phrases(value))})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
