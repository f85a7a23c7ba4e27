"""Templates of pages: the Jinja2 environment, and the filters that write numbers and links."""

import math
import os
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

UNKNOWN = "\N{EN DASH}"
"""Stands for a value that is not known."""

GENERATOR = f"scantune {version('scantune')}"
"""Names the version that made a page, in its head."""


def render(template: str, **values: Any) -> str:
    """Render a template of the folder `templates`.

    Args:
        template: File name of the template.
        values: What the template uses. Strings are escaped; a missing value is an error.
    """
    return environment().get_template(template).render(**values)


@cache
def environment() -> Environment:
    """Return the environment of all templates."""
    environment = Environment(
        loader=PackageLoader("scantune.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "allow_nan": False}
    environment.filters |= {"number": number, "fixed": fixed, "duration": duration, "link": link}
    environment.globals |= {"asset": asset, "generator": GENERATOR}
    return environment


@cache
def asset(name: str) -> str:
    """Read a file of this folder, such as a style sheet."""
    return files("scantune.pages").joinpath(name).read_text(encoding="utf-8")


def link(file: str) -> str:
    """Return the URL of a file beside the page."""
    return quote(os.fsencode(file))


def number(value: float | None, digits: int = 3) -> str:
    """Format a number to a number of significant digits, never with an exponent; an unknown one as a dash."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if not value:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(decimals, 0)}f}"


def fixed(value: float | None, decimals: int = 3) -> str:
    """Format a number to a number of decimals; an unknown one as a dash."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"


def duration(seconds: float | None) -> str:
    """Format a time as seconds, or as minutes and seconds; an unknown one as a dash."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
