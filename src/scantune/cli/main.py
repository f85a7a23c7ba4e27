"""The command line: parse, call the verb, print the result. Heavy imports wait until a command runs."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Protocol

import tyro
from tyro.conf import Positional, arg

from scantune import __version__
from scantune.adaptation.batch import adapt_scans
from scantune.adaptation.brain_masks import masks_of
from scantune.adaptation.outcomes import Outcome
from scantune.adaptation.settings import PRESET_NAMES, AdaptSettings, Preset, Stop
from scantune.cli.bench import Bench
from scantune.cli.check import Check
from scantune.cli.demo import Demo
from scantune.cli.evaluate import Evaluate
from scantune.cli.exits import BAD_INPUT, SOME_FAILED, STOPPED, UNFORESEEN, complain, end_of
from scantune.cli.info import Info
from scantune.cli.report import Report
from scantune.cli.simulate import Simulate
from scantune.cli.train import Fit, Flag, Train
from scantune.errors import InputError
from scantune.scans.names import find_scans

BY_TASK = "foe-cnn-pca; of registrations instance"
"""The methods of `Task.method`, which would take long to import."""


class Command(Protocol):
    """A subcommand, its fields filled in from the command line."""

    def run(self) -> int:
        """Do the work and return the exit code."""


@dataclass(frozen=True)
class Adapt:
    """Adapt a model to each scan, and segment it on the scan's own grid."""

    scans: Annotated[tuple[Path, ...], Positional, arg(metavar="SCAN [SCAN ...]", help_behavior_hint="")]
    """Image files (NIfTI, MetaImage, NRRD, ...), folders of images, or folders with one DICOM series."""
    model: Annotated[str, arg(metavar="MODEL")]
    """A model file, or the name of a model that comes with scantune, such as brain."""
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Gets NAME_seg.nii.gz, NAME_source_seg.nii.gz (not adapted), of registrations NAME_deformation.nii.gz,
    NAME_page.html to look at, manifest.json. What is done is skipped."""
    brain_mask: Annotated[tuple[str, ...], arg(metavar="MASK ...", help_behavior_hint="(default: none)")] = ()
    """Set scans to 0 outside masks, where a model wants no skull: a file per scan, in their order, or in quotes a
    pattern of files beside them, such as '*_mask.nii.gz'."""
    method: Annotated[str | None, arg(metavar="NAME", help_behavior_hint=f"(default: {BY_TASK})")] = None
    """foe-cnn-pca: match the training scans' statistics of features and patches;
    foe-cnn: of features alone;
    entropy: make predictions confident;
    dae: make predictions plausible, by a denoising autoencoder;
    ae: make image and prediction familiar, by autoencoders;
    batchnorm: take the scan's own norm statistics;
    instance: bend an atlas until it looks like the scan (registration only);
    source: adapt nothing."""
    options: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="(default: the paper's)")] = ()
    """The method's options, such as moving=norm-affine or learning_rate=1e-3; docs/methods.md lists them."""
    preset: Annotated[Preset, arg(metavar="|".join(PRESET_NAMES))] = AdaptSettings.preset
    """How long to look for the best match: fast takes few exact steps, paper follows the publication, converged gets as
    far as paper in tens of exact steps."""
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the preset's)")] = None
    """The number of steps per scan."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = AdaptSettings.device
    """Where to compute; auto takes a GPU where there is one."""
    seed: Annotated[int, arg(metavar="N")] = AdaptSettings.seed
    """Fixes every random choice."""
    stop: Annotated[Stop, arg(metavar="stable|typical|never")] = AdaptSettings.stop
    """When fast ends early: where predictions no longer get better, also where the scan is typical, or never."""
    workers: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: as many as pay)")] = None
    """Processes that adapt to scans side by side; results are the same."""
    site: Flag = False
    """The scans are of one site: each starts where the last good adaptation ended."""
    no_guard: Flag = False
    """Keep every adaptation. By default one that does not make the prediction more stable, or the warped atlas more
    like the scan, is rolled back."""
    no_page: Flag = False
    """Leave out the pages."""
    overwrite: Flag = False
    """Adapt again to scans that are done, and replace files that scantune did not make."""
    strict: Flag = False
    """Exit with code 3 when a scan was rolled back, as when one failed."""

    def run(self) -> int:
        """Adapt to all scans, then show what became of them."""
        scans = find_scans(self.scans)
        masks = masks_of(scans, self.brain_mask)
        settings = AdaptSettings(
            method=self.method,
            preset=self.preset,
            steps=self.steps,
            guard=not self.no_guard,
            device=self.device,
            seed=self.seed,
            options=self._options(),
            stop=self.stop,
            site=self.site,
        )
        from scantune.cli.adapt_display import Display
        from scantune.cli.console import console

        with Display(console(stderr=True)) as display:
            outcomes = adapt_scans(
                scans,
                self.model,
                self.out,
                settings,
                overwrite=self.overwrite,
                pages=not self.no_page,
                workers=self.workers,
                observer=display,
                brain_masks=masks,
            )
        self._show(outcomes)
        return self._exit_code(outcomes)

    def _options(self) -> dict[str, Any]:
        if not self.options:
            return {}
        from scantune.config.assignments import table_from_assignments
        from scantune.methods import find_method
        from scantune.model.model import load

        method = load(self.model).task.method if self.method is None else self.method
        return table_from_assignments(find_method(method).Options, self.options, "--options")

    def _show(self, outcomes: Sequence[Outcome]) -> None:
        from scantune.cli import console as terminal
        from scantune.cli.adapt_display import outcome_table

        failed = [outcome for outcome in outcomes if outcome.status == "failed"]
        if len(outcomes) == len(failed) == 1:
            return complain(failed[0].entry["reason"])
        screen = terminal.console()
        screen.print(outcome_table(outcomes))
        for outcome in outcomes:
            if outcome.entry["decision"] == "rolled back":
                terminal.say(screen, f"{outcome.name} was rolled back: {outcome.entry['reason']}")
            for remark in outcome.entry.get("remarks", ()):
                terminal.say(screen, f"{outcome.name}: {remark}")
            if "page_failure" in outcome.entry and not self.no_page:
                terminal.say(screen, f"{outcome.name} is done, but has no page: {outcome.entry['page_failure']}")
        if len(failed) < len(outcomes):
            terminal.say(screen, f"Segmentations and manifest.json are in {self.out}.{self._where_to_look(outcomes)}")
        if failed:
            complain(f"{len(failed)} of {len(outcomes)} scans failed.")
            for outcome in failed:
                print(f"  {outcome.name}: {outcome.entry['reason']}", file=sys.stderr)
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
        rolled_back = any(outcome.entry["decision"] == "rolled back" for outcome in outcomes)
        failed = any(outcome.status == "failed" for outcome in outcomes)
        return SOME_FAILED if failed or (self.strict and rolled_back) else 0


COMMANDS: dict[str, Callable[..., Command]] = {
    "adapt": Adapt,
    "train": Train,
    "fit": Fit,
    "evaluate": Evaluate,
    "bench": Bench,
    "report": Report,
    "info": Info,
    "check": Check,
    "simulate": Simulate,
    "demo": Demo,
}
"""The verbs, in the order of the help."""

DESCRIPTION = """Adapts a trained medical-image network to every single scan it meets.

scantune COMMAND --help tells about a command, scantune --version the version.

Exit codes: 0 all is well, 2 the input is at fault, 3 some scans failed.

For research use only."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after `scantune`; by default those that were typed.

    Returns:
        The exit code: 0 all is well, 2 the input is at fault, 3 some scans failed or have problems (under
        `--strict`, or were rolled back), 130 stopped by the user, 1 something unforeseen.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be no text
    if words == ["--version"]:
        print(f"scantune {__version__}")
        return 0
    try:
        command: Command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="scantune", description=DESCRIPTION, args=words or ["--help"]
        )
        with _told_to_stop():
            return command.run()
    except SystemExit as end:  # how the parser ends after help (0) and mistakes (2)
        code = end.code or 0
        return (code if isinstance(code, int) else UNFORESEEN) if words else BAD_INPUT
    except InputError as error:
        complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        complain(
            "stopped. What is finished is kept; adapt, train, bench and simulate go on from there when given again."
        )
        return STOPPED
    except Exception as error:
        if "SCANTUNE_TRACEBACK" in os.environ:
            raise
        return end_of(error)


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """Have a request to end (SIGTERM) treated as one of the user, so that nothing half-written is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
