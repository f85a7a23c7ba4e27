"""The simulation of a cohort into a folder: scans, label maps, a manifest, a contact sheet and a recipe."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scantune import __version__
from scantune.cohorts.folder import COHORT_SPLITS, CONTACT_SHEET, RECIPE_FILE, CentreSummary, CohortFolder
from scantune.cohorts.recipe import bundled_preprocessing, recipe_text, suggested_preprocessing
from scantune.errors import InputError
from scantune.plots.contact_sheet import CentreView, contact_sheet, scanner_summary
from scantune.plots.files import save_figure
from scantune.runtime.devices import find_device
from scantune.scans.case import Case
from scantune.scans.files import write_text
from scantune.simulate import COHORTS, Anatomy, Atlas, Cohort, read_centres
from scantune.simulate.cache import VERSION
from scantune.simulate.scheme import labelled_atlas, read_scheme


@dataclass(frozen=True)
class CohortSettings:
    """The choice of what to simulate.

    Attributes:
        cohort: A name of `scantune.simulate.COHORTS`.
        centres: Names of centres; all if empty.
        splits: Names of splits; all splits of a centre if empty.
        count: Number of people per centre and split; None for the cohort's own numbers.
        slices: Number of slices per scan, spread over the anatomy; None for the protocols' own.
        seed: Seed of all random numbers. Another seed gives other people.
        label_maps: A folder of label maps to use as anatomy.
        scheme: A file that describes their labels; None for the 14 brain structures.
        protocols: A protocol file with centres to use instead of the cohort's.
        atlas: An exported atlas, for machines without nilearn.
    """

    cohort: str
    centres: Sequence[str] = ()
    splits: Sequence[str] = ()
    count: int | None = None
    slices: int | None = None
    seed: int = 0
    label_maps: Path | None = None
    scheme: Path | None = None
    protocols: Path | None = None
    atlas: Path | None = None

    def __post_init__(self) -> None:
        if self.cohort not in COHORTS:
            raise InputError(f"Unknown cohort {self.cohort!r}. Available: {', '.join(COHORTS)}.")
        for name, least in (("count", 1), ("slices", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name} must be a whole number from {least}, got {value}.")
        if self.scheme is not None and self.label_maps is None:
            raise InputError(f"The scheme {self.scheme} describes label maps. Give them with --label-maps.")
        if self.label_maps is not None and self.atlas is not None:
            raise InputError("People are made from --label-maps or from --atlas, not from both. Leave one of them out.")
        for split in self.splits:
            if split not in COHORT_SPLITS:
                raise InputError(f"Unknown split {split!r}. Available: {', '.join(COHORT_SPLITS)}.")

    def people(self) -> tuple[Cohort, Anatomy]:
        """Return the cohort, with the user's centres and structures if given, and the anatomy of its people."""
        cohort = COHORTS[self.cohort]
        if self.protocols is not None:
            cohort = dataclasses.replace(cohort, given=read_centres(self.protocols))
        if self.label_maps is None:
            return cohort, cohort.anatomy() if self.atlas is None else cohort.made_from(Atlas.load(self.atlas))
        atlas = labelled_atlas(self.label_maps, None if self.scheme is None else read_scheme(self.scheme))
        anatomy = cohort.made_from(atlas)
        if anatomy is atlas:  # without the cohort's own anatomy all of the user's structures count
            cohort = dataclasses.replace(cohort, labels=dict(atlas.labels))
        return cohort, anatomy


@dataclass(frozen=True)
class WrittenCohort:
    """A simulated cohort in a folder.

    Attributes:
        folder: Path of the folder.
        centres: Its centres, those of earlier runs included.
        simulated: Number of scans that this run added.
        kept: Number of requested scans that existed already.
        recipe: The training recipe; None if no centre has training and validation scans.
    """

    folder: Path
    centres: tuple[CentreSummary, ...]
    simulated: int
    kept: int
    recipe: Path | None


def write_cohort(
    settings: CohortSettings,
    out: str | Path,
    *,
    device: str = "auto",
    on_scan: Callable[[int, int, str], None] = lambda done, scans, name: None,  # noqa: ARG005
) -> WrittenCohort:
    """Simulate a cohort into a folder. Existing scans of the folder stay as they are.

    Writes `CENTRE/SPLIT/NAME_image.nii.gz` and `NAME_labels.nii.gz`, and about all of them `manifest.json` (renewed
    after every scan), `contact.png` and, unless it exists, `recipe.toml`.

    Args:
        settings: What to simulate.
        out: The output folder. It is created if needed.
        device: `auto`, `cpu`, `cuda`, ...
        on_scan: Called before the first scan and after every scan, with the number of finished scans, the number of
            scans of this run, and the name of the scan.

    Raises:
        InputError: The settings contradict each other or the cohort, or the folder holds something else.
    """
    out = Path(out)
    torch_device = find_device(device)
    _require_plain("The output folder", str(out))
    cohort, anatomy = settings.people()
    chosen = _choose(cohort, anatomy, settings)
    folder = CohortFolder.open(
        out, _head(settings, cohort, anatomy), {name: cohort.centres[name] for name, _ in chosen}
    )
    jobs = {
        (name, split): folder.missing(name, split, people * len(anatomy.states))
        for name, splits in chosen
        for split, people in splits.items()
    }
    scans = sum(map(len, jobs.values()))
    requested = sum(sum(splits.values()) for _, splits in chosen) * len(anatomy.states)
    on_scan(0, scans, "")
    for done, case in enumerate(_simulated(cohort, anatomy, settings, jobs, torch_device, folder), start=1):
        on_scan(done, scans, case.name)
    if scans or not (out / CONTACT_SHEET).exists():
        _draw_contact_sheet(folder)
    return WrittenCohort(out, folder.centres(), scans, requested - scans, _write_recipe(folder, settings))


def _simulated(
    cohort: Cohort,
    anatomy: Anatomy,
    settings: CohortSettings,
    jobs: Mapping[tuple[str, str], Sequence[int]],
    device: torch.device,
    folder: CohortFolder,
) -> Iterator[Case]:
    """Simulate and write the missing scans."""
    states = len(anatomy.states)
    anatomy = anatomy.to(device)
    for (centre, split), missing in jobs.items():
        for person in dict.fromkeys(number // states for number in missing):
            cases = cohort.cases(
                centre,
                split,
                seed=settings.seed,
                anatomy=anatomy,
                start=person,
                count=person + 1,
                slices=settings.slices,
                device=device,
            )
            for number, case in enumerate(cases, start=person * states):
                if number in missing:
                    folder.add(case, number)
                    yield case


def _choose(cohort: Cohort, anatomy: Anatomy, settings: CohortSettings) -> list[tuple[str, dict[str, int]]]:
    """Return the requested centres with the number of people per split, after checks.

    Raises:
        InputError: A centre is unknown or cannot scan the anatomy, or no centre has a requested split.
    """
    for name in settings.centres:
        if name not in cohort.centres:
            raise InputError(f"Unknown centre {name!r} of {cohort.name}. Available: {', '.join(cohort.centres)}.")
    tissues = tuple(dict.fromkeys(region.tissue for region in anatomy.regions))
    chosen = []
    for name in dict.fromkeys(settings.centres or cohort.centres):
        _require_plain("A centre's name", name, more="/\\")
        centre = cohort.centres[name]
        try:
            centre.protocol.sequence.signals(tissues, centre.protocol.field)
        except InputError as error:
            raise InputError(f"The centre {name} cannot scan this anatomy: {error}") from error
        splits = {
            split: centre.splits[split] if settings.count is None else settings.count
            for split in COHORT_SPLITS
            if split in (settings.splits or COHORT_SPLITS) and centre.splits.get(split, 0)
        }
        if splits:
            chosen.append((name, splits))
    if not chosen:
        raise InputError(
            f"None of the centres {', '.join(settings.centres or cohort.centres)} has a split "
            f"{' or '.join(settings.splits or COHORT_SPLITS)}. Choose other splits or centres."
        )
    return chosen


def _require_plain(what: str, name: str, more: str = "") -> None:
    """Refuse names that cannot be part of the recipe's file patterns."""
    if re.search(f"[{re.escape('*?[]{}' + more)}]", name) or (more and name.startswith(".")):
        raise InputError(
            f"{what} must do for file patterns, without any of * ? [ ] {{ }}{' / and no dot first' if more else ''}, "
            f"but is {name!r}. Choose another name."
        )


def _head(settings: CohortSettings, cohort: Cohort, anatomy: Anatomy) -> dict[str, Any]:
    """Return the entries of the manifest about all scans."""
    return {
        "note": "Simulated scans, made by scantune simulate. They are no substitute for real ones.",
        "scantune": __version__,
        "cohort": cohort.name,
        "seed": settings.seed,
        "slices": settings.slices,
        "labels": cohort.labels_of(anatomy),
        "anatomy": anatomy.fingerprint(),
        "simulator": VERSION,
    }


def _draw_contact_sheet(folder: CohortFolder) -> None:
    """Draw the contact sheet: a slice of the first test scan of each centre."""
    views = [
        CentreView(centre.name, scanner_summary(centre.record), folder.example(centre, "test", "validation", "train"))
        for centre in folder.centres()
    ]
    title = f"Simulated cohort {folder.manifest['cohort']}, seed {folder.manifest['seed']}"
    save_figure(contact_sheet(views, folder.labels, title), folder.path / CONTACT_SHEET, dots_per_inch=150)


def _write_recipe(folder: CohortFolder, settings: CohortSettings) -> Path | None:
    """Write a recipe for the first centre with training data, unless one exists, which the user may have edited."""
    path = folder.path / RECIPE_FILE
    centre = next((one for one in folder.centres() if {"train", "validation"} <= one.scans.keys()), None)
    if centre is None:
        return None
    if not path.exists():
        own = settings.label_maps is None and settings.protocols is None
        bundled = bundled_preprocessing(settings.cohort) if own else None
        preprocessing = bundled or suggested_preprocessing(folder.example(centre, "train"))
        write_text(path, recipe_text(folder.path, centre.name, settings.cohort, folder.labels, preprocessing))
    return path
