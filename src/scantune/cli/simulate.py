"""The command `simulate`: a simulated cohort as files."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from scantune.cli.console import ScanProgress, console, counted, say

if TYPE_CHECKING:
    from scantune.cohorts.write import WrittenCohort


@dataclass(frozen=True)
class Simulate:
    """Simulate scans of several centres, for training and testing."""

    cohort: Annotated[str, Positional, arg(metavar="COHORT")]
    """What to simulate: prostate, cardiac, spine, brain, wmh, registration or contrasts; with harder shifts,
    prostate-v2, cardiac-v2, spine-v2, brain-v2 or wmh-v2; or, of many protocols, spine-varied."""
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Where to write CENTRE/SPLIT/NAME_image.nii.gz, NAME_labels.nii.gz, manifest.json, contact.png and recipe.toml.
    Existing scans are kept."""
    centres: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """The centres to simulate."""
    splits: Annotated[
        tuple[Literal["train", "validation", "test"], ...],
        arg(metavar="train|validation|test ...", help_behavior_hint="(default: all that a centre has)"),
    ] = ()
    """The splits to simulate."""
    count: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the cohort's)")] = None
    """The number of subjects per centre and split."""
    slices: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the protocol's)")] = None
    """The number of slices per scan, spread over the anatomy."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of all random numbers. Another seed gives other subjects."""
    label_maps: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: the cohort's anatomy)")] = (
        None
    )
    """Label maps of your own, as the anatomy of the subjects."""
    scheme: Annotated[Path | None, arg(metavar="FILE.toml", help_behavior_hint="(default: 14 brain structures)")] = None
    """What each label of the maps means."""
    protocols: Annotated[Path | None, arg(metavar="FILE.toml", help_behavior_hint="(default: the cohort's)")] = None
    """Centres of your own, with their protocols."""
    atlas: Annotated[Path | None, arg(metavar="FILE.npz", help_behavior_hint="(default: the cohort's anatomy)")] = None
    """An exported atlas, if nilearn is not installed."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto uses a GPU if there is one."""

    def run(self) -> int:
        """Simulate, then show the folder."""
        from scantune.cohorts.write import CohortSettings, write_cohort

        names = ("centres", "splits", "count", "slices", "seed", "label_maps", "scheme", "protocols", "atlas")
        settings = CohortSettings(self.cohort, **{name: getattr(self, name) for name in names})
        with ScanProgress(console(stderr=True), "Loading the anatomy") as display:
            made = write_cohort(settings, self.out, device=self.device, on_scan=display.update)
        show_cohort(console(), made)
        return 0


def show_cohort(to: Console, made: "WrittenCohort") -> None:
    """Print the content of the folder, and the next command."""
    to.print(cohort_table(made))
    kept = f", {made.kept} existed already" if made.kept else ""
    say(to, f"{counted(made.simulated, 'scan')} simulated{kept}: a stress test, which does not replace real scans.")
    say(to, f"All are in {made.folder}, described in manifest.json.")
    say(to, f"Look at {made.folder / 'contact.png'} first: a slice of each centre.")
    folder = shlex.quote(str(made.folder))
    if made.recipe is not None:
        say(to, f"Next: scantune train {folder}/{made.recipe.name} --out {folder}/model.safetensors")
    else:
        centre = made.centres[0]
        split = list(centre.scans)[-1]
        say(to, f"Next: scantune adapt {shlex.quote(str(made.folder / centre.name / split))} --model MODEL --out out")


def cohort_table(made: "WrittenCohort") -> Table:
    """Lay out the centres of a cohort with their numbers of scans."""
    splits = list(dict.fromkeys(split for centre in made.centres for split in centre.scans))
    splits.sort(key=("train", "validation", "test").index)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Centre", overflow="fold")
    table.add_column("Scanner", overflow="fold")
    for split in splits:
        table.add_column(split.capitalize(), justify="right", no_wrap=True)
    for centre in made.centres:
        protocol = centre.record["protocol"]
        scanner = ", ".join(part for part in (centre.record["vendor"], f"{protocol['field']:g} T") if part)
        counts = [str(centre.scans.get(split, "-")) for split in splits]
        table.add_row(centre.name, f"{scanner}, {protocol['sequence']['kind']}", *counts)
    return table
