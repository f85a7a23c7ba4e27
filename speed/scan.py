"""Where the time of `scantune adapt` goes, from the command to the page: a table of stages.

    python speed/scan.py [--device cpu] [--slices 16] [--size 256] [--scans 3] [--n4] [--out FILE]
    python speed/scan.py --shrinks 1 2 4 8 [--out results/speed-n4.md]

The command is run as it is, in this process, on scans that are simulated and written as NIfTI files; the model is the
bundled `brain` with pictures of the size that is asked for. Every stage is timed by itself, without those that it
calls. The first scan of a run also pays for what is done once: late imports and, on a GPU, kernels. Times are wall
times; --clock processor gives processor time, which other work on the machine disturbs less. --n4 is for a model that
asks for N4; --shrinks tells what N4 costs by its shrink factor, and what that does to the field.
"""

import argparse
import datetime
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

SCAN = "everything else of a scan"
STAGES = {
    "scantune.model.model:load": "model load",
    "scantune.adaptation.scan_run:ScanRun.adapt": SCAN,
    "scantune.scans.data_files:content_hash": "hash of the scan's file",
    "scantune.adaptation.input:read_scan": "reading",
    "scantune.backends.slices:Preprocessing.prepare": "preprocessing",
    "scantune.backends.scaling:remove_bias": "bias field (N4)",
    "scantune.adaptation.adapt:source_network": "copy of the network",
    "scantune.adaptation.adapt:predict": "predictions with energies, before and after",
    "scantune.adaptation.adapt:optimise": "set-up and choice of steps",
    "scantune.adaptation.gradients:VolumeGradients.__call__": "steps",
    "scantune.adaptation.gradients:ThreadedGradients.__call__": "steps",
    "scantune.adaptation.gradients:ReplayedGradients.__call__": "steps",
    "scantune.adaptation.sampling:WholeVolume.objective": "steps",
    "scantune.adaptation.guard.stability:PerturbedSlices.labels": "looks of the guard",
    "scantune.backends.slices:PreparedSlices.to_native": "resampling back",
    "scantune.scans.io:write_nifti": "writing segmentations",
    "scantune.adaptation.output_folder:OutputFolder.note": "manifest",
    "scantune.pages:write_case": "page",
    "scantune.pages:write_folder_index": "index of the pages",
}
"""What is timed, and what it is called; times of the same name add up."""

DISTINCT = 6
"""Scans that are not copies."""

ONCE = ("import", "model load", "index of the pages")


class Stopwatch:
    """Times functions by themselves: while one calls another, only the inner one's time runs.

    Attributes:
        spent: Seconds by stage, of each scan in turn; of the command after the last.
    """

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick, self.running = tick, ["the command"]
        self.spent: list[dict[str, float]] = [{}]
        self.mark = tick()

    def charge(self) -> None:
        """Let the running stage pay for the time since the last call."""
        now, stage = self.tick(), self.running[-1]
        self.spent[-1][stage] = self.spent[-1].get(stage, 0.0) + now - self.mark
        self.mark = now

    def watching(self, place: str, stage: str) -> AbstractContextManager[object]:
        """Time a function while this is entered, wherever it is looked up under its name."""
        module, name = place.split(":")
        home: Any = import_module(module)
        *path, last = name.split(".")
        for part in path:
            home = getattr(home, part)
        work = getattr(home, last)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.charge()
            self.running.append(stage)
            try:
                return work(*args, **kwargs)
            finally:
                self.charge()
                self.running.pop()
                if stage == SCAN:
                    self.spent.append({})

        return patch.object(home, last, timed)


def clock(kind: str, device: str) -> Callable[[], float]:
    """Wall time or processor time, once a GPU has done what it was given."""
    tick = time.process_time if kind == "processor" else time.perf_counter

    def now() -> float:
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
        return tick()

    return now


def simulated(folder: Path, slices: int, size: int, scans: int, device: str) -> list[Path]:
    """Scans `(size, size, slices)` as files: the middle of a simulated one, up to `DISTINCT` times with other noise."""
    import numpy as np

    from scantune.scans.case import Case
    from scantune.scans.io import write_image
    from scantune.simulate import COHORTS

    case = next(COHORTS["contrasts"].cases("spgr-1.5T", "test", seed=1, count=1, slices=slices, device=device))
    whole = 1000 * case.image / case.image.max()
    for axis in (0, 1):
        whole = np.pad(whole, [(size // 2 if axis == other else 0,) * 2 for other in range(3)])
        start = (whole.shape[axis] - size) // 2
        whole = np.take(whole, range(start, start + size), axis)
    paths = []
    for number in range(min(scans, DISTINCT)):
        noise = np.random.default_rng(number).normal(0, 5, whole.shape)
        image = np.rint(np.where(whole > 0, (whole + noise).clip(1), 0)).astype(np.int16)
        paths.append(folder / f"scan-{number + 1}.nii.gz")
        write_image(paths[-1], image, Case(paths[-1].name, image, case.affine))
    for number in range(DISTINCT, scans):
        paths.append(folder / f"scan-{number + 1}.nii.gz")
        shutil.copy(paths[number % DISTINCT], paths[-1])
    return paths


def model_file(folder: Path, size: int, n4: bool) -> Path:
    """The bundled `brain` with pictures of another size, and maybe N4."""
    from scantune.model.model import load

    model, path = load("brain"), folder / "brain.safetensors"
    replace(model, backend=replace(model.backend, size=(size, size), n4=n4)).save(path)
    return path


def stages(arguments: argparse.Namespace) -> list[str]:
    """The table: the first scan of a run, and a later one."""
    start = time.process_time() if arguments.clock == "processor" else time.perf_counter()
    from scantune.cli import main as cli

    for place in STAGES:
        import_module(place.split(":")[0])
    tick = clock(arguments.clock, arguments.device)
    imported = tick() - start
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scans = simulated(folder, arguments.slices, arguments.size, arguments.scans, arguments.device)
        model = model_file(folder, arguments.size, arguments.n4)
        words = ["adapt", *map(str, scans), "--model", str(model), "--out", str(folder / "out")]
        words += ["--no-page"] if arguments.no_page else []
        with ExitStack() as stack:
            watch = Stopwatch(tick)
            for place, stage in STAGES.items():
                stack.enter_context(watch.watching(place, stage))
            if code := cli.main([*words, "--device", arguments.device, "--workers", "1"]):
                raise SystemExit(code)
            watch.charge()
    first, *later, command = watch.spent
    return _laid_out(first, later, {"import": imported, **command})


def _laid_out(first: dict[str, float], later: list[dict[str, float]], command: dict[str, float]) -> list[str]:
    for stage in (*ONCE, "the command"):
        command[stage] = command.get(stage, 0.0) + first.pop(stage, 0.0)
    names = [name for name in dict.fromkeys(STAGES.values()) if name in first]
    usual = {name: sum(scan.get(name, 0.0) for scan in later) / max(len(later), 1) for name in names}
    whole = sum(usual.values()) or 1.0
    lines = ["| stage | once, s | first scan, s | a later scan, s | share of it |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {command[name]:.2f} | | | |" for name in (*ONCE, "the command")]
    lines += [
        f"| {name} | | {first[name]:.2f} | {usual[name]:.2f} | {100 * usual[name] / whole:.0f} % |" for name in names
    ]
    return [*lines, f"| all | {sum(command.values()):.2f} | {sum(first.values()):.2f} | {sum(usual.values()):.2f} | |"]


def shrinks(arguments: argparse.Namespace) -> list[str]:
    """What N4 costs by its shrink factor, and how far its field is from that of the smallest factor."""
    import numpy as np

    from scantune.scans import bias_field as biasfield
    from scantune.scans.io import read_scan

    with tempfile.TemporaryDirectory() as name:
        (path,) = simulated(Path(name), arguments.slices, arguments.size, 1, arguments.device)
        case = read_scan(path)
    content = case.image != 0
    lines = ["| shrink factor | seconds | the field, apart from that of the first |", "|---|---|---|"]
    fields = []
    biasfield.remove_bias(case, content)
    for factor in arguments.shrinks:
        biasfield.N4_SHRINK = factor
        tick = clock(arguments.clock, "cpu")
        start = tick()
        image = biasfield.remove_bias(case, content)
        took = tick() - start
        field = np.log(case.image[content] / image[content])
        fields.append(field - field.mean())
        apart = fields[-1] - fields[0]
        lines.append(
            f"| {factor} | {took:.2f} | {100 * apart.std():.2f} %, at most {100 * np.abs(apart).max():.1f} % |"
        )
    return [*lines, f"| the field itself | | {100 * fields[0].std():.2f} % |"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--slices", type=int, default=16)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--scans", type=int, default=3)
    parser.add_argument("--n4", action="store_true")
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--shrinks", type=int, nargs="+")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = shrinks(given) if given.shrinks else stages(given)
    import torch

    where = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} threads of a CPU"
    what = f"{given.slices} x {given.size} x {given.size}, {given.clock} time"
    head = [f"By `python speed/scan.py {' '.join(sys.argv[1:])}`:"]
    head += [f"{datetime.date.today()}, {where}, torch {torch.__version__}; {what}", ""]
    print("\n".join([*head, *lines]))
    if given.out:
        given.out.write_text("\n".join(["# Speed, stage by stage", "", *head, *lines, ""]), encoding="utf-8")
