"""Words and numbers as HTML: everything that comes from elsewhere passes through here."""

import html
import json
import math
import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any
from urllib.parse import quote

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
"""With it a browser loads nothing but the page itself, whatever is in it."""

UNKNOWN = "\N{EN DASH}"


def text(value: object) -> str:
    """Any value as text or attribute of HTML."""
    return html.escape(str(value), quote=True)


def link(file: str) -> str:
    """The address of a file beside the page, as an attribute."""
    return quote(os.fsencode(file))


def embedded(value: Any) -> str:
    """A value as JSON that stands in a script element, whatever strings are in it."""
    dumped = json.dumps(value, ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        dumped = dumped.replace(sign, f"\\u{ord(sign):04x}")
    return dumped


def number(value: float | None, digits: int = 3) -> str:
    """To so many significant digits, never with an exponent; a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if not value:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(decimals, 0)}f}"


def fixed(value: float | None, decimals: int = 3) -> str:
    """To so many decimals; a dash for what is not known."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"


def duration(seconds: float | None) -> str:
    """In words that fit its length."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def sentence(decision: str, reason: str) -> str:
    """The guard's decision and its reason as one sentence."""
    words = f"{decision}: {reason}" if reason else decision
    words = words[:1].upper() + words[1:]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def generator() -> str:
    """What tells which version made a page."""
    return f'<meta name="generator" content="scantune {text(version("scantune"))}">'


@cache
def asset(name: str) -> str:
    """A file of this folder, such as a style sheet."""
    return files("scantune.pages").joinpath(name).read_text(encoding="utf-8")


def page(title: str, body: str, scripts: Mapping[str, str], code: str) -> str:
    """A whole page.

    Args:
        title: Of the window, plain text.
        body: HTML.
        scripts: Data by id, text that needs no escaping.
        code: JavaScript that runs at the end.
    """
    data = "\n".join(f'<script type="text/plain" id="{name}">{value}</script>' for name, value in scripts.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
{generator()}
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("assets/page.css")}</style>
</head>
<body>
{body}
{data}
<script>
{code}</script>
</body>
</html>
"""
