"""Label schemes: what each label value of a user's label maps stands for, read from a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.simulate.anatomies.brain import FIELDS
from scantune.simulate.anatomies.labelmaps import BODY_VARIATION, BRAIN_VARIATION, STRUCTURE_SCHEME, label_maps
from scantune.simulate.atlas import Atlas
from scantune.simulate.subject import Region
from scantune.simulate.tissues import TISSUES

_EXAMPLE = '1 = { name = "WM", tissue = "white" }'
_SMOOTH = {"CSF", "spinal CSF", "urine", "blood", "vessel", "air", "balloon"}  # fluids and gas have no grain
_BRAIN = {*FIELDS, "lesion"}
_VENTRICLES = "ventricles"  # the name about which brains differ by swelling
_MOST = 255  # simulated label maps are 8 bits deep


@dataclasses.dataclass(frozen=True)
class _Label:
    """One entry of the table [labels]; see `Region`."""

    name: str
    tissue: str
    structure: str | None = None
    texture: float | None = None

    def region(self) -> Region:
        grain = 0.0 if self.tissue in _SMOOTH else 1.0
        return Region(
            self.name,
            self.tissue,
            self.name if self.structure is None else self.structure,
            grain if self.texture is None else float(self.texture),
        )


def read_scheme(path: str | Path) -> dict[int, Region]:
    """Read what each label value stands for.

    Raises:
        InputError: The file is not there, is not TOML, or says something that cannot be.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a label scheme, but cannot be read ({error}). Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a valid TOML file: {error}.") from error
    table = tables.get("labels")
    if set(tables) != {"labels"} or not isinstance(table, dict) or not table:
        raise InputError(f"{path} must hold the one table [labels], with a line such as {_EXAMPLE} for each label.")
    scheme = {_value(key, path): _region(key, entry, path) for key, entry in table.items()}
    if max(structure_values(scheme).values(), default=0) > _MOST or not any(r.structure for r in scheme.values()):
        raise InputError(
            f"{path} must name at least one structure, and a label up to {_MOST} for every structure; what is not to "
            'be segmented gets structure = "". Give the label maps smaller numbers where needed.'
        )
    return scheme


def structure_values(scheme: Mapping[int, Region]) -> dict[str, int]:
    """Label value of each structure: the lowest of those that stand for it."""
    values: dict[str, int] = {}
    for value, region in sorted(scheme.items()):
        if region.structure:
            values.setdefault(region.structure, value)
    return values


def labelled_atlas(folder: str | Path, scheme: Mapping[int, Region] | None = None) -> Atlas:
    """Build an anatomy from a user's label maps, in which every structure of the scheme is a region of its own.

    Maps of brain tissues alone, CSF among them, vary as brains do, and what is around them is stripped away; in all
    others only the shape varies.

    Args:
        folder: Holds NIfTI label maps.
        scheme: What the label values stand for; None for the 14 brain structures of `STRUCTURE_SCHEME`.

    Raises:
        InputError: There is no label map, or one holds none of the labels.
    """
    if scheme is None:
        return label_maps(folder, STRUCTURE_SCHEME)
    tissues = {region.tissue for region in scheme.values()}
    variation = BRAIN_VARIATION if "CSF" in tissues and tissues <= _BRAIN else BODY_VARIATION
    swelling = next((value for value, region in scheme.items() if region.name.lower() == _VENTRICLES), -1)
    return dataclasses.replace(label_maps(folder, scheme, swelling, variation), labels=structure_values(scheme))


def _value(key: str, path: Path) -> int:
    if not key.isdecimal() or int(key) < 1:
        raise InputError(
            f"The labels in {path} must be whole numbers from 1 (0 is outside the body), got {key!r}. Write lines "
            f"such as {_EXAMPLE}."
        )
    return int(key)


def _region(key: str, entry: Any, path: Path) -> Region:
    if not isinstance(entry, dict):
        raise InputError(f"Label {key} in {path} must be a table, such as {_EXAMPLE}, got {entry!r}.")
    label = settings_from_table(_Label, entry, f"label {key} in {path}")
    if label.tissue not in TISSUES:
        raise InputError(f"Label {key} in {path} has an unknown tissue {label.tissue!r}. Known: {', '.join(TISSUES)}.")
    if label.texture is not None and label.texture < 0:
        raise InputError(f"The texture of label {key} in {path} must be 0 or more, got {label.texture}.")
    return label.region()
