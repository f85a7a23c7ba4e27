"""The folder of a simulated cohort: scans, label maps and their manifest."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.scans.files import require_writable
from scantune.scans.io import read_labels, read_scan, write_image, write_labels
from scantune.scans.manifest import MANIFEST, MANIFEST_FORMAT, ManifestEntry, read_manifest, write_manifest
from scantune.simulate import SEQUENCES, Centre
from scantune.simulate.coils import COILS
from scantune.simulate.varied import record as varied_record

COHORT_SPLITS = ("train", "validation", "test")
CONTACT_SHEET, RECIPE_FILE = "contact.png", "recipe.toml"

_IDENTITY = {
    "cohort": "cohort",
    "seed": "seed",
    "slices": "number of slices",
    "labels": "set of structures",
    "anatomy": "anatomy",
    "simulator": "version of the simulator",
}
"""Entries of the manifest that decide every scan, and their names in messages."""
_OPAQUE = ("anatomy", "simulator")
"""Entries whose values mean nothing to a user."""
_SIMULATORS_BY_HASH = {"9db06d88e0c43114b3be563f8ed734aa434d4ce884eb7e4d9a678241fbed9987": 1}
"""Versions of the simulator by the hash of its source, which version 0.1 wrote instead of a number."""


@dataclass(frozen=True)
class CentreSummary:
    """The scans of one centre in a folder.

    Attributes:
        name: The centre.
        record: Its protocol, vendor, scanner, source and assumptions, as in the manifest.
        scans: Number of scans in each split.
    """

    name: str
    record: Mapping[str, Any]
    scans: Mapping[str, int]


@dataclass(frozen=True)
class CohortFolder:
    """A folder of simulated scans.

    Attributes:
        path: Path of the folder.
        manifest: Content of its manifest. Every new scan adds an entry.
    """

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: Path, head: Mapping[str, Any], centres: Mapping[str, Centre]) -> "CohortFolder":
        """Create a folder for scans, or continue one that has the same settings.

        Args:
            path: The folder. It is created if needed.
            head: Entries of the manifest about all scans.
            centres: The centres to simulate.

        Raises:
            InputError: The folder is not writable, or holds something else.
        """
        before = read_manifest(path)
        records = {name: centre_record(centre) for name, centre in centres.items()}
        if (path / MANIFEST).exists():
            _require_same(path, before, head, records)
        else:
            _require_free(path, [*centres, CONTACT_SHEET, RECIPE_FILE])
        require_writable(path)
        manifest = {
            "format": MANIFEST_FORMAT,
            **head,
            "centres": before.get("centres", {}) | records,
            "scans": before["scans"],
        }
        folder = cls(path, manifest)
        write_manifest(path, manifest)
        return folder

    @property
    def labels(self) -> dict[str, int]:
        """Return the label value of each structure."""
        return dict(self.manifest["labels"])

    def missing(self, centre: str, split: str, scans: int) -> list[int]:
        """Return the numbers below a number of scans that the folder does not have."""
        present = {entry["number"] for entry in self._entries(centre, split)}
        return [number for number in range(scans) if number not in present]

    def add(self, case: Case, number: int) -> None:
        """Write a scan with its label map, then add it to the manifest.

        Args:
            case: The scan.
            number: Number of the scan within its centre and split.
        """
        assert case.reference is not None  # every simulated scan has one
        place = Path(case.site) / case.split
        files = {part: (place / f"{case.name}_{part}.nii.gz").as_posix() for part in ("image", "labels")}
        write_image(self.path / files["image"], case.image, case)
        write_labels(self.path / files["labels"], case.reference, case)
        self.manifest["scans"][case.name] = files | {
            "subject": case.subject,
            "site": case.site,
            "split": case.split,
            "number": number,
            "shape": list(case.shape),
            "spacing": [round(edge, 6) for edge in case.spacing],
        }
        write_manifest(self.path, self.manifest)

    def centres(self) -> tuple[CentreSummary, ...]:
        """Return the centres that have scans, in the order of the manifest."""
        counts = {
            name: {split: n for split in COHORT_SPLITS if (n := len(self._entries(name, split)))}
            for name in self.manifest["centres"]
        }
        return tuple(
            CentreSummary(name, record, counts[name])
            for name, record in self.manifest["centres"].items()
            if counts[name]
        )

    def example(self, centre: CentreSummary, *splits: str) -> Case:
        """Read the first scan of the first of these splits that the centre has."""
        split = next(split for split in splits if split in centre.scans)
        entry = self._entries(centre.name, split)[0]
        return read_scan(self.path / entry["image"]).with_reference(read_labels(self.path / entry["labels"]))

    def _entries(self, centre: str, split: str) -> list[ManifestEntry]:
        """Return the entries of the scans of a split whose files exist."""
        entries = [
            entry
            for entry in self.manifest["scans"].values()
            if (entry["site"], entry["split"]) == (centre, split)
            and all((self.path / entry[part]).is_file() for part in ("image", "labels"))
        ]
        return sorted(entries, key=lambda entry: entry["number"])


def centre_record(centre: Centre) -> dict[str, Any]:
    """Return a centre as values for JSON, its protocol as a table of a protocol file."""
    protocol: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(centre.protocol)))
    for key, family in (("sequence", SEQUENCES), ("coil", COILS)):
        member = type(getattr(centre.protocol, key))
        kind = next((name for name, known in family.items() if known is member), member.__name__)
        protocol[key] = {"kind": kind} | protocol[key]
    if centre.varied:
        protocol["varied"] = varied_record(centre.varied)
    about = {key: getattr(centre, key) for key in ("vendor", "scanner", "source")}
    return {"protocol": protocol, **about, "assumed": list(centre.assumed)}


def _require_same(
    path: Path, before: Mapping[str, Any], head: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse a folder whose scans have other settings than those to simulate."""
    advice = "Choose another output folder, or delete this one first."
    if "centres" not in before:
        raise InputError(f"{path} holds results of another command, such as scantune adapt. {advice}")
    sites = {entry["site"] for entry in before["scans"].values()}
    simulator = before.get("simulator")
    before = {**before, "simulator": _SIMULATORS_BY_HASH.get(str(simulator), simulator)}
    for key, word in _IDENTITY.items():
        if sites and before.get(key) != head[key]:
            values = "" if key in _OPAQUE else f" ({_in_words(before.get(key))}; expected {_in_words(head[key])})"
            raise InputError(f"{path} holds scans of another {word}{values}. {advice}")
    for name, record in records.items():
        if name in sites and before["centres"][name]["protocol"] != record["protocol"]:
            raise InputError(f"{path} holds scans of a centre {name} with another protocol. {advice}")


def _require_free(path: Path, names: list[str]) -> None:
    """Refuse to replace files that no manifest lists."""
    for name in names:
        if (path / name).exists():
            raise InputError(
                f"{path / name} exists already, but no manifest says that scantune simulate made it. Choose "
                "another output folder, or move it away."
            )


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {entry}" for name, entry in value.items())
    return "the protocols' own" if value is None else str(value)
