"""Values as TOML writes them."""

import json
import re
from collections.abc import Mapping
from typing import Any


def toml(value: Any) -> str:
    """A value as TOML writes it, tables in one line."""
    if isinstance(value, Mapping):
        names = (name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name) for name in value)
        entries = (f"{name} = {toml(entry)}" for name, entry in zip(names, value.values(), strict=True))
        return f"{{ {', '.join(entries)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
