"""The command that runs experiments."""

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from scantune.cli.train import NetworkWords
from scantune.errors import InputError

if TYPE_CHECKING:
    from scantune.benchmark.run import BenchSummary

SOME_FAILED = 3
FROM_EXPERIMENT = "(default: the experiment's)"


@dataclass(frozen=True)
class Bench:
    """Run an experiment: methods x scans x training runs. It can be interrupted."""

    experiment: Annotated[str, Positional, arg(metavar="EXPERIMENT")]
    """A TOML file, or the name of one that comes with scantune: prostate, cardiac, spine, brain, wmh, ..."""
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Where to write rows.csv and all results. The same command, given again, does only what is missing or has
    changed."""
    methods: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint=FROM_EXPERIMENT)] = ()
    """The rows to run now."""
    centres: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint=FROM_EXPERIMENT)] = ()
    """The centres to run now."""
    seeds: Annotated[tuple[int, ...], arg(metavar="N ...", help_behavior_hint=FROM_EXPERIMENT)] = ()
    """The training runs to do now."""
    count: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_EXPERIMENT)] = None
    """The number of subjects per centre to run now."""
    dataset: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint=FROM_EXPERIMENT)] = ()
    """Data sets to use instead of simulated scans. Networks are trained on the first. docs/data.md lists them."""
    root: Annotated[tuple[str, ...], arg(metavar="FOLDER ...", help_behavior_hint="")] = ()
    """The folder of each data set."""
    set: Annotated[tuple[str, ...], arg(metavar="TABLE.NAME=VALUE ...", help_behavior_hint=FROM_EXPERIMENT)] = ()
    """Other settings, such as train.iterations=10000 or adapt.preset=fast."""
    network: NetworkWords = ()
    """What makes the networks, instead of [network] of the experiment: a function of your own, which is imported, or a
    name such as monai:UNet."""
    engine: Annotated[Literal["local", "ray"], arg(metavar="local|ray")] = "local"
    """Where to run jobs: in processes of this machine, or on a Ray cluster (that of RAY_ADDRESS, or a new one)."""
    workers: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 1; ray: all)")] = None
    """The number of jobs at a time."""
    threads: Annotated[int, arg(metavar="N")] = 1
    """The number of threads per job. The last digits of results depend on it."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto uses a GPU if there is one."""
    collect: Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")] = False
    """Run nothing, but write rows.csv again from all finished jobs, such as those copied from another machine."""

    def run(self) -> int:
        """Run the jobs, then show the means."""
        if len(self.dataset) != len(self.root):
            raise InputError(
                f"--dataset and --root belong together, one folder for each data set, got {len(self.dataset)} and "
                f"{len(self.root)}."
            )
        from scantune.benchmark.engines import ENGINES, EngineSettings
        from scantune.benchmark.expand import Selection
        from scantune.benchmark.experiment import Experiment
        from scantune.benchmark.run import bench
        from scantune.cli import console as terminal
        from scantune.cli.bench_display import BenchDisplay, bench_table
        from scantune.model.architecture import architecture_from_words

        network = architecture_from_words(self.network)
        datasets = list(zip(self.dataset, self.root, strict=True))
        experiment = Experiment.read(self.experiment, self.set, datasets, network)
        settings = EngineSettings(self.workers, self.threads, self.device, network)
        engine = None if self.collect else functools.partial(ENGINES[self.engine], settings=settings)
        selection = Selection(self.methods, self.centres, self.seeds, self.count)
        with BenchDisplay(terminal.console(stderr=True)) as display:
            summary = bench(experiment, self.out, engine, selection, display)
        screen = terminal.console()
        if summary.rows:
            screen.print(bench_table(summary.rows, experiment.table.score))
        self._tell(summary)
        return SOME_FAILED if summary.failed else 0

    def _tell(self, summary: "BenchSummary") -> None:
        from scantune.cli import console as terminal

        screen, errors = terminal.console(), terminal.console(stderr=True)
        jobs = terminal.counted(summary.jobs, "job")
        counts = f"{jobs}: {summary.done} done now, {summary.already} before, {len(summary.failed)} failed"
        terminal.say(screen, f"{counts}. {terminal.counted(len(summary.rows), 'row')} in {self.out / 'rows.csv'}")
        if len(summary.versions) > 1:
            terminal.say(errors, f"The rows are from several versions of scantune: {', '.join(summary.versions)}")
        for job, reason in summary.failed:
            print(f"  {job.title}: {reason}", file=sys.stderr)  # noqa: T201
        if summary.failed:
            terminal.say(errors, f"Details are in {self.out / 'failed'}; the same command tries again.")
