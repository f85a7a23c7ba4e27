"""The one writer of TOML texts."""

from collections.abc import Mapping
from typing import Any

import tomli_w


def toml_text(tables: Mapping[str, Any], comment: str = "") -> str:
    """Return tables as TOML.

    Args:
        tables: Names with values, lists and tables.
        comment: Text to stand at the top, as comment lines.
    """
    lines = (f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return "".join([*lines, "\n" if comment else "", tomli_w.dumps(_plain(tables))])


def _plain(value: Any) -> Any:
    """Return a value with dictionaries for other mappings, which the writer does not know."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
