"""The commands about scans themselves: simulate a cohort, check a data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Simulate:
    """Simulate the scans of several centres, as files to train on and to test with."""

    cohort: Annotated[str, Positional, arg(metavar="COHORT")]
    """What to simulate: prostate, cardiac, spine, brain, wmh, registration or contrasts."""
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Gets CENTRE/SPLIT/NAME_image.nii.gz, NAME_labels.nii.gz, manifest.json, contact.png, recipe.toml. What is there
    already is skipped."""
    centres: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """The centres to simulate."""
    splits: Annotated[
        tuple[Literal["train", "validation", "test"], ...],
        arg(metavar="train|validation|test ...", help_behavior_hint="(default: all that a centre has)"),
    ] = ()
    """The splits to simulate."""
    count: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the cohort's)")] = None
    """People per centre and split."""
    slices: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the protocol's)")] = None
    """Slices per scan, spread over the anatomy."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Another seed gives other people."""
    label_maps: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: the cohort's anatomy)")] = (
        None
    )
    """Your own label maps, to make the people from."""
    scheme: Annotated[Path | None, arg(metavar="FILE.toml", help_behavior_hint="(default: 14 brain structures)")] = None
    """What each label of the maps is."""
    protocols: Annotated[Path | None, arg(metavar="FILE.toml", help_behavior_hint="(default: the cohort's)")] = None
    """Your own centres, and how they scan."""
    atlas: Annotated[Path | None, arg(metavar="FILE.npz", help_behavior_hint="(default: the cohort's anatomy)")] = None
    """An exported atlas, where nilearn is not installed."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto takes a GPU where there is one."""

    def run(self) -> int:
        """Simulate, then show what lies where."""
        from scantune.cli import console as terminal
        from scantune.cli.cohort_display import SimulationDisplay, show_cohort
        from scantune.cohorts.write import CohortSettings, write_cohort

        names = ("centres", "splits", "count", "slices", "seed", "label_maps", "scheme", "protocols", "atlas")
        settings = CohortSettings(self.cohort, **{name: getattr(self, name) for name in names})
        with SimulationDisplay(terminal.console(stderr=True)) as display:
            made = write_cohort(settings, self.out, device=self.device, on_scan=display.update)
        show_cohort(terminal.console(), made)
        return 0


@dataclass(frozen=True)
class Check:
    """Tell what a data set holds, and what is wrong with it, before it is used."""

    data: Annotated[str, Positional, arg(metavar="DATA")]
    """A folder of scans, a CSV file that lists them, or a recipe."""
    dataset: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: as the folder tells)")] = ""
    """The layout: folder, csv, bids, nnunet, decathlon, simulated, or a public data set."""
    options: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="(default: none)")] = ()
    """The layout's options, such as images=*_T1w.nii.gz labels=*_seg.nii.gz; docs/data.md lists them."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Gets check.json and contact.png, with a slice of a scan of each site."""
    workers: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="(default: one per core)")] = None
    """Number of processes that read scans."""

    def run(self) -> int:
        """Read everything, then show what there is; 3 where something is wrong."""
        from scantune.check import check
        from scantune.cli import console as terminal
        from scantune.cli.check_display import show_report
        from scantune.cli.cohort_display import SimulationDisplay
        from scantune.config.assignments import table_of_words

        options = table_of_words(self.options, "--options")
        with SimulationDisplay(terminal.console(stderr=True), "Looking for scans") as display:
            report = check(self.data, self.dataset, options, out=self.out, workers=self.workers, on_scan=display.update)
        show_report(terminal.console(), report)
        if self.out is not None:
            terminal.say(terminal.console(), f"check.json and contact.png are in {self.out}")
        return 3 if report.problems else 0
