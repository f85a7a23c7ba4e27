"""The command `adapt`: its options, the progress it shows, and the table of outcomes."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from scantune.adaptation.batch import adapt_scans, masks_of
from scantune.adaptation.channel_patterns import find_channels
from scantune.adaptation.output_names import BidsNames, PlainNames
from scantune.adaptation.scan_run import Outcome, ScanObserver
from scantune.adaptation.settings import AdaptSettings, Stop
from scantune.cli.console import ScanBar, console, counted, duration, say
from scantune.cli.exits import BAD_INPUT, SOME_FAILED, complain, printable
from scantune.cli.train import Flag, NetworkWords
from scantune.config.presets import PRESET_NAMES, Preset
from scantune.errors import InputError
from scantune.model.source import ModelSource
from scantune.scans.channels import ScanFiles
from scantune.scans.discovery import find_scans

BY_TASK = "foe-cnn-pca; for registration instance"
"""The methods of `Task.method`, which would take long to import."""


@dataclass(frozen=True)
class Adapt:
    """Adapt a model to each scan, and write the segmentation on the scan's own grid."""

    scans: Annotated[tuple[Path, ...], Positional, arg(metavar="SCAN [SCAN ...]", help_behavior_hint="")]
    """Image files (NIfTI, MetaImage, NRRD, ...), DICOM series, or folders of these, such as BIDS data sets. A network
    of several channels takes 4D NIfTI files, or CASE_0000.nii.gz, CASE_0001.nii.gz, ..."""
    model: Annotated[str, arg(metavar="MODEL")]
    """A model file or folder, or the name of a model that comes with scantune, such as brain."""
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Where to write NAME_seg.nii.gz, NAME_source_seg.nii.gz (before adaptation), NAME_page.html and manifest.json; for
    registration NAME_deformation.nii.gz, too. Finished scans are skipped."""
    channels: Annotated[tuple[str, ...], arg(metavar="FILE FILE ...", help_behavior_hint="(default: none)")] = ()
    """The files of one scan, one per channel, instead of SCAN. Or a quoted pattern per channel, such as '*_T1w.nii.gz'
    '*_FLAIR.nii.gz', for all scans in the folders SCAN (default: in this folder)."""
    network: NetworkWords = ()
    """The function that makes the network, for a model file with an architecture of your own, and the arguments that
    the file lacks. Its package is imported."""
    prior: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: the model's own)")] = None
    """A prior in a file of its own, as scantune fit --out writes it."""
    trust: Flag = False
    """Run code in a model's folder. Model files hold no code."""
    series: Annotated[str | None, arg(metavar="SERIES", help_behavior_hint="(default: the only one)")] = None
    """The DICOM series to take from each folder: its number, UID, or quoted description, such as 'T1*'. The error
    without it lists the series."""
    brain_mask: Annotated[tuple[str, ...], arg(metavar="MASK ...", help_behavior_hint="(default: none)")] = ()
    """Set scans to 0 outside a mask, for models of brains without the skull: a file per scan, in the same order, or a
    quoted pattern of files beside them, such as '*_mask.nii.gz'."""
    method: Annotated[str | None, arg(metavar="NAME", help_behavior_hint=f"(default: {BY_TASK})")] = None
    """foe-cnn-pca: match the training scans' statistics of features and patches;
    foe-cnn: of features alone;
    entropy: make predictions confident;
    dae: make predictions plausible, by a denoising autoencoder;
    ae: make image and prediction easy to reconstruct, by autoencoders;
    batchnorm: use the scan's own statistics in batch norms;
    instance: deform an atlas until it matches the scan (registration only);
    source: adapt nothing."""
    options: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="(default: the paper's)")] = ()
    """The method's options, such as moving=norm-affine or learning_rate=1e-3; docs/methods.md lists them."""
    preset: Annotated[Preset, arg(metavar="|".join(PRESET_NAMES))] = AdaptSettings.preset
    """How to minimise: fast takes few exact steps, paper follows the publication and has no guard, converged reaches
    about the objective of paper in tens of exact steps."""
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the preset's)")] = None
    """The number of steps per scan."""
    batch: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the preset's)")] = None
    """The number of slices at a time. With paper, which draws them, results depend on it."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = AdaptSettings.device
    """Where to compute; auto uses a GPU if there is one."""
    seed: Annotated[int, arg(metavar="N")] = AdaptSettings.seed
    """Fixes every random choice."""
    stop: Annotated[Stop, arg(metavar="stable|typical|never")] = AdaptSettings.stop
    """When preset fast stops early, for priors without home readings: stable, when predictions no longer improve;
    typical, also when the scan has become typical; never."""
    workers: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: chosen for the device)")] = None
    """How many scans to adapt to at the same time. Results do not depend on it."""
    site: Flag = False
    """The scans are of one site: start each one from the last good adaptation."""
    guard: Flag = False
    """Use the guard with preset paper, too."""
    no_guard: Flag = False
    """Keep every adaptation. By default a fine prediction is left alone, and an adaptation is kept only if it is
    expected to improve the prediction (in registration, the match with the atlas)."""
    bids: Flag = False
    """Name results as BIDS derivatives: sub-01/anat/sub-01_desc-scantuneT1w_dseg.nii.gz for sub-01_T1w.nii.gz, with
    dataset_description.json."""
    dicom_seg: Flag = False
    """Also write NAME_seg.dcm (DICOM-SEG) for scans from DICOM files. It contains the patient's name, as they do."""
    no_page: Flag = False
    """Write no pages."""
    overwrite: Flag = False
    """Adapt again to finished scans, and replace files that scantune did not write."""
    strict: Flag = False
    """Exit with code 3 if a scan is unsolved or has a warning, too, and not only if one failed."""
    quiet: Flag = False
    """Print errors only."""
    verbose: Flag = False
    """Print a line for each step, and the details of errors."""

    def run(self) -> int:
        """Adapt to all scans, then show what became of them."""
        scans, left_out = self._found()
        for path, reason in left_out.items():
            say(console(stderr=True, quiet=self.quiet), f"{path} is left out: {reason}.", style="yellow")
        if self.guard and self.no_guard:
            raise InputError("The guard cannot be both on and off. Leave out --guard or --no-guard.")
        masks = masks_of([files[0] for files in scans], self.brain_mask)
        source = self._source()
        settings = AdaptSettings(
            method=self.method,
            preset=self.preset,
            steps=self.steps,
            guard=False if self.no_guard else True if self.guard else None,
            batch=self.batch,
            device=self.device,
            seed=self.seed,
            options=self._options(source),
            stop=self.stop,
            site=self.site,
        )
        if self.verbose:
            logging.basicConfig(format="%(message)s")
            logging.getLogger("scantune").setLevel(logging.DEBUG)
        with Display(console(stderr=True, quiet=self.quiet), verbose=self.verbose) as display:
            outcomes = adapt_scans(
                [files[0] if len(files) == 1 else files for files in scans],
                source,
                self.out,
                settings,
                overwrite=self.overwrite,
                pages=not self.no_page,
                workers=self.workers,
                observer=display,
                brain_masks=masks,
                series=self.series,
                dicom=self.dicom_seg,
                naming=BidsNames() if self.bids else PlainNames(),
            )
        self._show(outcomes)
        return self._exit_code(outcomes)

    def _found(self) -> tuple[list[ScanFiles], dict[Path, str]]:
        """Return the files of each scan, and why others are left out."""
        if self.channels:
            joined = find_channels(self.channels, self.scans)
            return joined.scans, joined.left_out
        found = find_scans(self.scans)
        return [(path,) for path in found.scans], found.left_out

    def _source(self) -> ModelSource:
        from scantune.model.architecture import architecture_from_words

        return ModelSource(self.model, architecture_from_words(self.network), self.prior, self.trust)

    def _options(self, source: ModelSource) -> dict[str, Any]:
        if not self.options:
            return {}
        from scantune.config.assignments import table_from_assignments
        from scantune.methods import find_method

        method = source.load().task.method if self.method is None else self.method
        return table_from_assignments(find_method(method).Options, self.options, "--options")

    def _show(self, outcomes: Sequence[Outcome]) -> None:
        failed = [outcome for outcome in outcomes if outcome.status == "failed"]
        if len(outcomes) == len(failed) == 1:
            return complain(failed[0].entry["reason"])
        screen = console(quiet=self.quiet)
        screen.print(outcome_table(outcomes))
        for outcome in outcomes:
            _show_notes(screen, outcome)
            if "dicom_failure" in outcome.entry and self.dicom_seg:
                say(screen, f"{outcome.name} has no DICOM segmentation: {outcome.entry['dicom_failure']}")
            if "page_failure" in outcome.entry and not self.no_page:
                say(screen, f"{outcome.name} is done, but has no page: {outcome.entry['page_failure']}")
        if len(failed) < len(outcomes):
            say(screen, f"Segmentations and manifest.json are in {self.out}.{self._where_to_look(outcomes)}")
        if failed:
            complain(f"{len(failed)} of {len(outcomes)} scans failed.")
            for outcome in failed:
                say(console(stderr=True), f"  {outcome.name}: {outcome.entry['reason']}")
        return None

    def _where_to_look(self, outcomes: Sequence[Outcome]) -> str:
        from scantune.pages.index import INDEX, is_index

        if self.no_page or not any("page" in outcome.entry.get("outputs", {}) for outcome in outcomes):
            return ""
        index = self.out / INDEX
        return f" Look at them: {index if is_index(index) else self.out / '*_page.html'}"

    def _exit_code(self, outcomes: Sequence[Outcome]) -> int:
        if all(outcome.is_bad_input for outcome in outcomes):
            return BAD_INPUT
        suspect = any(outcome.entry["decision"] == "unsolved" or outcome.entry.get("warnings") for outcome in outcomes)
        failed = any(outcome.status == "failed" for outcome in outcomes)
        return SOME_FAILED if failed or (self.strict and suspect) else 0


def _show_notes(screen: Console, outcome: Outcome) -> None:
    """Print why a scan is unsolved, what looks wrong about it, and what was repaired."""
    if outcome.entry["decision"] == "unsolved":
        kept = "" if outcome.entry.get("adapted_kept") else " No improvement found; original segmentation kept."
        say(screen, f"{outcome.name} is unsolved: {outcome.entry['reason']}{kept}")
    for warning in outcome.entry.get("warnings", ()):
        say(screen, f"{outcome.name}: warning: {warning}", style="yellow")
    for remark in outcome.entry.get("remarks", ()):
        say(screen, f"{outcome.name}: {remark}")


STYLES = {"adapted": "green", "left alone": "cyan", "unsolved": "yellow", "failed": "red"}


class Display(ScanBar, ScanObserver):
    """Shows a run over scans: how long it will take, and a bar with the time left; in a log, a line for each scan.

    Args:
        to: The console to print on.
        verbose: Whether each step gets a line.
    """

    def __init__(self, to: Console, *, verbose: bool = False) -> None:
        super().__init__(to, "Loading the model", "{task.fields[done]}")
        self.verbose = verbose
        self.estimated = False
        self.marks: dict[str, list[float]] = {}
        self.reached: dict[str, float] = {}
        self.done = self.scans = self.at_once = 0

    def begin(self, names: Sequence[str], at_once: int = 1) -> None:
        """Start the bar."""
        self.status.stop()
        self.scans, self.at_once = len(names), at_once
        if names:
            self.bar = self.progress.add_task("", total=len(names), done=0)
        if names and self.console.is_terminal:
            self.progress.start()

    def start(self, name: str) -> None:
        """Name the scan."""
        self.marks[name], self.reached[name] = [time.perf_counter()], 0.0
        self._move(name)

    def step(self, name: str, step: int, steps: int) -> None:
        """Move the bar; after the first steps, report how long the run will take."""
        marks = self.marks[name]
        marks.append(time.perf_counter())
        self.reached[name] = step / steps
        self._move(f"{name}, step {step} of {steps}")
        if self.verbose:
            say(self.console, f"{name}: step {step} of {steps}")
        if step == min(4, steps):
            self._estimate(expected_seconds(marks, steps))

    def end(self, outcome: Outcome) -> None:
        """Count the scan, and report a failure at once."""
        self.done += 1
        begun = self.marks.pop(outcome.name)[0]
        del self.reached[outcome.name]
        self.progress.update(self.bar, completed=self.done + sum(self.reached.values()), done=self.done)
        if self.done < self.scans:
            self._estimate(time.perf_counter() - begun)
        if not self.console.is_terminal and self.scans > 1:
            took = duration(time.perf_counter() - begun)
            say(self.console, f"{self.done} of {self.scans}: {outcome.name}, {outcome.entry['decision']}, {took}.")
        elif outcome.status == "failed" and self.scans > 1:
            say(self.console, f"{outcome.name} failed.", style="red")

    def _move(self, where: str) -> None:
        others = f", and {len(self.reached) - 1} more" if len(self.reached) > 1 else ""
        self.progress.update(
            self.bar, completed=self.done + sum(self.reached.values()), description=printable(where + others)
        )

    def remark(self, sentence: str) -> None:
        """Tell it."""
        say(self.console, sentence, style="yellow")

    def _estimate(self, each: float) -> None:
        """Tell how long the run will take, from the seconds of one scan."""
        if not self.estimated:
            scans = counted(self.scans, "scan")
            side_by_side = f", {self.at_once} at once" if self.at_once > 1 else ""
            seconds = each * math.ceil(self.scans / self.at_once)
            say(
                self.console,
                f"{scans} to adapt to{side_by_side}: about {duration(seconds)}, measured on the first steps.",
            )
        self.estimated = True


def expected_seconds(marks: Sequence[float], steps: int) -> float:
    """Return the time that a scan will take.

    Args:
        marks: When the scan was begun, and when each of its first steps was done, in seconds.
        steps: How many steps there will be.
    """
    first = marks[1] - marks[0]
    each = (marks[-1] - marks[1]) / (len(marks) - 2) if len(marks) > 2 else first
    return first + (steps - 1) * each


def outcome_table(outcomes: Iterable[Outcome]) -> Table:
    """Lay out what became of each scan."""
    table = Table(box=box.SIMPLE_HEAD)
    outcomes = list(outcomes)
    assessed = any("verdict" in outcome.entry for outcome in outcomes)
    table.add_column("Scan", overflow="fold")
    for title in (*(("Expected Dice", "Verdict") if assessed else ("Energy in nats", "Reading")), "Decision"):
        table.add_column(title, no_wrap=True)
    table.add_column("Time", justify="right", no_wrap=True)
    for outcome in outcomes:
        entry = outcome.entry
        decision = str(entry["decision"])
        before, after = entry.get("energy_before"), entry.get("energy_after")
        table.add_row(
            outcome.name,
            *(
                _assessed_cells(entry)
                if assessed
                else (_arrow(before, after, 4), str(entry.get("reading_before", "-")))
            ),
            Text(decision, style=STYLES.get(decision, "")),
            _time(outcome),
        )
    return table


def _assessed_cells(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the expected Dice and the verdict of a scan, before and after where they differ."""
    before, after = entry.get("expected_before"), entry.get("expected")
    verdicts = " -> ".join(dict.fromkeys(str(entry.get(key, "-")) for key in ("verdict_before", "verdict")))
    if before is not None and after is None:
        return f"{before:.2f} -> unknown", verdicts
    return f"{after:.2f}" if before == after and after is not None else _arrow(before, after, 2), verdicts


def _arrow(before: float | None, after: float | None, digits: int) -> str:
    """Return a number before and after, or a dash if either is unknown."""
    return "-" if before is None or after is None else f"{before:.{digits}f} -> {after:.{digits}f}"


def _time(outcome: Outcome) -> str:
    if outcome.status == "already done":
        return "earlier run"
    return f"{outcome.entry['seconds']:.1f} s" if "seconds" in outcome.entry else "-"
