"""The command line of the campaign: run, replay, table."""

import argparse
import csv
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fuzz.campaign import MEBIBYTES, SECONDS, Campaign, run
from fuzz.kinds import KINDS, find_kind

COLUMNS = ("kind", "seed", "inputs", "accepted", "refused", "fault", "died", "hung", "seconds", "date", "findings")
HEAD = """# Hard inputs

Made by `python -m fuzz run KIND --count N --seed S --out results/fuzz.csv` for each kind, then `python -m fuzz table
results/fuzz.csv`. Every input is made from a seed: a valid file of a few voxels (or a tiny model, or a command) with
accidents to it. *Accepted* inputs gave a correct result, *refused* ones a sentence. A *fault* is a traceback, a wrong
result, a half-written file, a wrong exit code; *died* is a process that ended, *hung* one that took over {seconds:g} s;
each has {mebibytes} MiB of memory beyond what it needs at its start. `python -m fuzz replay KIND SEED` shows one input.

| kind | inputs | accepted | refused | fault | died | hung | seconds | seeds | date |
|---|---|---|---|---|---|---|---|---|---|
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; 1 where a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=sys.modules["fuzz"].__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="try many inputs of a kind")
    running.add_argument("kind", choices=KINDS)
    running.add_argument("--count", type=int, default=20000)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--out", type=Path, help="CSV file that gets a line about it")
    running.add_argument("--seconds", type=float, default=SECONDS)
    again = commands.add_parser("replay", help="try one input again, in this process")
    again.add_argument("kind", choices=KINDS)
    again.add_argument("seed", help="SEED:NUMBER")
    again.add_argument("--keep", type=Path, help="folder that gets the input")
    tabled = commands.add_parser("table", help="make a table of a CSV file")
    tabled.add_argument("csv", type=Path)
    given = parser.parse_args(words)
    if given.command == "run":
        return _run(given.kind, given.count, given.seed, given.out, given.seconds)
    if given.command == "replay":
        return _replay(given.kind, given.seed, given.keep)
    given.csv.with_suffix(".md").write_text(table(given.csv))
    return 0


def _run(kind: str, count: int, seed: int, out: Path | None, seconds: float) -> int:
    def tell(report: Mapping[str, Any]) -> None:
        if "what" in report:
            print(f"{kind} {seed}:{report['number']} {report['outcome']}: {report['what'][:300]}", flush=True)
            print("\n".join(f"    {line}" for line in report.get("lines", ())[-12:]), flush=True)
        elif report["number"] % 1000 == 999:
            print(f"{kind}: {report['number'] + 1} of {count}", flush=True)

    campaign = run(kind, count, seed, tell, seconds)
    row = record(campaign)
    print(", ".join(f"{name} {row[name]}" for name in COLUMNS))
    if out is not None:
        write_row(out, row)
    return int(bool(campaign.findings))


def _replay(kind: str, seed: str, keep: Path | None) -> int:
    """In this process, so that a traceback or a debugger shows all; a crash ends it."""
    import faulthandler

    from fuzz.worker import limit_memory, try_one

    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder) / "shared"
        shared.mkdir()
        tried = find_kind(kind)(shared)
        limit_memory(MEBIBYTES)
        base, number = map(int, seed.split(":"))
        place = Path(folder) if keep is None else keep
        place.mkdir(parents=True, exist_ok=True)
        report = try_one(tried, base, number, place)
    print(report["outcome"], report.get("what", ""))
    print("\n".join(map(str, report.get("lines", ()))))  # type: ignore[call-overload]
    return int("what" in report)


def record(campaign: Campaign) -> dict[str, Any]:
    """A campaign as a line of the CSV file."""
    outcomes = {name: campaign.counts[name] for name in ("accepted", "refused", "fault", "died", "hung")}
    return {
        "kind": campaign.kind,
        "seed": campaign.seed,
        "inputs": sum(campaign.counts.values()),
        **outcomes,
        "seconds": round(campaign.seconds),
        "date": datetime.now(UTC).date().isoformat(),
        "findings": " ".join(campaign.findings),
    }


def write_row(path: Path, row: Mapping[str, Any]) -> None:
    """Put a line into the file, in place of one of the same kind and seed."""
    rows = [old for old in _rows(path) if (old["kind"], old["seed"]) != (row["kind"], str(row["seed"]))]
    order = list(KINDS)
    rows = sorted([*rows, dict(row)], key=lambda line: (order.index(line["kind"]), int(line["seed"])))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def table(path: Path) -> str:
    """The CSV file as a page: a line for each kind, over all its seeds."""
    rows = _rows(path)
    lines = []
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        if own:
            sums = [sum(int(row[name]) for row in own) for name in COLUMNS[2:9]]
            seeds = ", ".join(row["seed"] for row in own)
            dates = sorted({row["date"] for row in own})
            lines.append(f"| {kind} | {' | '.join(f'{value:,}' for value in sums)} | {seeds} | {dates[-1]} |")
    packages = ", ".join(f"{name} {version(name)}" for name in ("nibabel", "SimpleITK", "safetensors", "torch"))
    found = [f"* {row['kind']}: {row['findings']}" for row in rows if row["findings"]]
    ending = f"\nPython {platform.python_version()}, {packages}.\n"
    if found:
        ending += "\nSeeds of what was found:\n\n" + "\n".join(found) + "\n"
    return HEAD.format(seconds=SECONDS, mebibytes=MEBIBYTES) + "\n".join(lines) + "\n" + ending


if __name__ == "__main__":
    sys.exit(main())
