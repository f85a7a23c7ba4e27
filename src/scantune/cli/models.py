"""The command `models`: the models that come with scantune."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from scantune.cli.console import console, say


@dataclass(frozen=True)
class Models:
    """List the models that come with scantune."""

    def run(self) -> int:
        """Print a table with a line for each model."""
        from scantune.model.model import BUNDLED, load

        table = Table(box=box.SIMPLE_HEAD)
        for title in ("Model", "Task", "Structures", "Trained on"):
            table.add_column(title, overflow="fold")
        for name in BUNDLED:
            model = load(name)
            structures = ", ".join(key for key, value in model.labels.items() if value)
            table.add_row(name, model.task.name, structures, _origin(model.provenance))
        to = console()
        to.print(table)
        say(to, "scantune info MODEL describes one; scantune adapt SCAN --model MODEL --out FOLDER uses it.")
        return 0


def _origin(provenance: Mapping[str, Any]) -> str:
    """Return what a model was trained on, as its record says it."""
    data = provenance.get("data")
    if not isinstance(data, Mapping) or "cohort" not in data:
        return "not recorded"
    return f"scans of {data.get('train', 'some')} simulated subjects (cohort {data['cohort']})"
