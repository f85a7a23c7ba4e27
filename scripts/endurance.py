"""Long runs and runs that are killed: memory, lines of the log, and what is left in the output folder.

    python scripts/endurance.py many --scans 500 --out results/endurance.csv
    python scripts/endurance.py killed --scans 12 --kills 10 --seed 1 --out results/endurance-killed.csv
    python scripts/endurance.py table --out results/endurance.md

Both run `scantune adapt` in a process of its own over made-up scans of a few voxels, with a network of a few channels.
`many` counts the lines of the log and notes the resident memory at each. `killed` ends the process by SIGKILL at random
moments, looks at the folder after each, and goes on with the same command until all scans are done.
"""

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nibabel
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the toy model of the fuzz campaign
LINE = re.compile(r"^(\d+) of (\d+): ")
WARM_UP = 50
"""Scans before memory is taken to be that of a run which goes on."""


def make_scans(folder: Path, count: int) -> Path:
    """Write scans of a few voxels, and the model; returns its file."""
    folder.mkdir(parents=True)
    for number in range(count):
        image = np.random.default_rng(number).random((20, 18, 3), dtype=np.float32)
        image[5:12, 4:11] += 2
        nibabel.save(nibabel.Nifti1Image(image, np.diag([1.0, 1, 3, 1])), folder / f"scan{number:04d}.nii.gz")
    from fuzz.model import toy

    model = folder.parent / "toy.safetensors"
    toy().save(model)
    return model


def start(scans: Path, model: Path, out: Path) -> subprocess.Popen[str]:
    """The command over all scans, as in a log: without a terminal."""
    words = ["adapt", scans, "--model", model, "--out", out, "--method", "foe-cnn", "--steps", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "scantune", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def memory_mb(process: int) -> float:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def lines_of(run: subprocess.Popen[str]) -> Iterator[int]:
    """The number of each line about a scan, as soon as it is there."""
    assert run.stderr is not None
    for line in run.stderr:
        found = LINE.match(line)
        if found:
            yield int(found[1])


def many(count: int) -> list[dict[str, object]]:
    """Memory and time at each line of a run over many scans."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = make_scans(place / "in", count)
        begun, rows = time.perf_counter(), []
        with start(place / "in", model, place / "out") as run:
            for number in lines_of(run):
                seconds = round(time.perf_counter() - begun, 2)
                rows.append({"scan": number, "seconds": seconds, "memory_mb": round(memory_mb(run.pid), 1)})
        entries = json.loads((place / "out" / "manifest.json").read_text(encoding="utf-8"))["scans"]
        if run.returncode or len(entries) != count or any(entry["status"] != "done" for entry in entries.values()):
            raise SystemExit(f"exit code {run.returncode}, {len(entries)} entries")
    return rows


def growth(rows: Sequence[dict[str, object]], warm_up: int = WARM_UP) -> float:
    """MiB by which memory grows over 100 scans, by a straight line through all after the warm-up."""
    late = rows[warm_up:]
    numbers, memory = ([float(str(row[key])) for row in late] for key in ("scan", "memory_mb"))
    return float(np.polyfit(numbers, memory, 1)[0]) * 100


def contents(out: Path) -> dict[str, bytes]:
    """The label maps of a folder. Each must be whole: nibabel reads all of its voxels."""
    found = {}
    for path in sorted(out.glob("*_seg.nii.gz")):
        if not path.name.startswith("."):
            found[path.name] = np.asarray(nibabel.load(path).dataobj).tobytes()
    return found


def look(out: Path, undisturbed: dict[str, bytes], before: set[str]) -> dict[str, object]:
    """What a killed run has left, and what is wrong with it."""
    text = (out / "manifest.json").read_text(encoding="utf-8") if (out / "manifest.json").exists() else '{"scans": {}}'
    entries = json.loads(text)["scans"]
    done = {name for name, entry in entries.items() if entry["status"] == "done"}
    present = contents(out)
    lacking = [file for name in done for file in entries[name]["outputs"].values() if not (out / file).is_file()]
    pages = [path for path in out.glob("*.html") if "</html>" not in path.read_text(encoding="utf-8")[-200:]]
    return {
        "done": len(done),
        "lost": len(before - done),
        "half_written": len(pages) + sum(undisturbed[name] != data for name, data in present.items()),
        "outputs_lacking": len(lacking),
        "hidden_left": sum(path.name.startswith(".") for path in out.iterdir()) if out.exists() else 0,
        "names": done,
    }


def killed(count: int, kills: int, seed: int) -> list[dict[str, object]]:
    """What is left after each of several kills, and after the run that finishes the work."""
    rng, rows = random.Random(seed), []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = make_scans(place / "in", count)
        begun = time.perf_counter()
        with start(place / "in", model, place / "whole") as run:
            marks = [time.perf_counter() for _ in lines_of(run)]
        if run.returncode:
            raise SystemExit(f"the undisturbed run ended with {run.returncode}")
        undisturbed, first, each = contents(place / "whole"), marks[0] - begun, (marks[-1] - marks[0]) / count
        done: set[str] = set()
        while len(rows) < kills:
            if len(done) == count:  # nothing is left to do for a run that is to be killed
                shutil.rmtree(place / "out")
                done = set()
            with start(place / "in", model, place / "out") as run:
                if rng.random() < 0.7:
                    next(lines_of(run), None)
                    time.sleep(rng.random() * each)
                else:
                    time.sleep(rng.random() * (first + 2 * each))
                run.send_signal(signal.SIGKILL)
            seen = look(place / "out", undisturbed, done) | {"kill": len(rows) + 1, "exit": run.returncode}
            done = seen.pop("names")  # type: ignore[assignment]
            if run.returncode == -signal.SIGKILL:
                rows.append(seen)
        with start(place / "in", model, place / "out") as run:
            list(lines_of(run))
        seen = look(place / "out", undisturbed, done) | {"kill": 0, "exit": run.returncode}
        if seen.pop("names") != {f"scan{number:04d}" for number in range(count)} or len(undisturbed) != 2 * count:
            raise SystemExit("scans are missing after the last run")
        rows.append(seen)
    return rows


HEAD = """# Endurance

By `scripts/endurance.py`, on a CPU that other programs share: `scantune adapt` over made-up scans of 20 x 18 x 3 voxels
with a network of a few channels, with pages, in one process that logs to a pipe.

{count} scans gave {count} lines of the log. Resident memory of the process at these lines; from scan {first} on it
grows by {growth:+.2f} MiB over 100 scans:

| scan | seconds | MiB |
|---|---|---|
"""

KILLED = """
SIGKILL at random moments, and what was in the output folder: finished scans in the manifest, finished scans of the
earlier look that are gone, files that are not whole or differ from those of an undisturbed run, outputs of finished
scans that are not there, and hidden temporary files. The same command then finished the work.

| kill | finished | lost | half-written | lacking | hidden |
|---|---|---|---|---|---|
"""


def read(path: Path) -> list[dict[str, object]]:
    """The rows of a CSV file."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def table(folder: Path) -> str:
    """The rows of both parts as a page."""
    rows, ends = read(folder / "endurance.csv"), read(folder / "endurance-killed.csv")
    shown = [rows[number - 1] for number in (1, WARM_UP, 100, 200, 300, 400, 500) if number <= len(rows)]
    lines = [[row[key] for key in ("scan", "seconds", "memory_mb")] for row in shown]
    keys = ("done", "lost", "half_written", "outputs_lacking", "hidden_left")
    kills = [["end" if row["kill"] == "0" else row["kill"], *(row[key] for key in keys)] for row in ends]
    one, other = ("".join(f"| {' | '.join(map(str, cells))} |\n" for cells in part) for part in (lines, kills))
    return HEAD.format(count=len(rows), first=WARM_UP, growth=growth(rows)) + one + KILLED + other


def write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """Rows as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(words: Sequence[str] | None = None) -> None:
    """Run one part and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("many", "killed", "table"))
    parser.add_argument("--scans", type=int, default=500)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    if given.part == "table":
        given.out.write_text(table(given.out.parent))
        return
    if given.part == "killed":
        rows = killed(given.scans, given.kills, given.seed)
        wrong = sum(int(str(row[key])) for row in rows for key in ("lost", "half_written", "outputs_lacking"))
        print(f"{given.kills} kills, then done: {wrong} wrong, {rows[-1]['hidden_left']} hidden files left")
    else:
        rows = many(given.scans)
        late = rows[min(WARM_UP, len(rows) // 2) :]
        print(
            f"{len(rows)} lines for {given.scans} scans; memory {late[0]['memory_mb']} MiB at scan {late[0]['scan']}, "
            f"{late[-1]['memory_mb']} at the last: {growth(rows, min(WARM_UP, len(rows) // 2)):+.2f} per 100 scans"
        )
    write(given.out, rows)


if __name__ == "__main__":
    main()
