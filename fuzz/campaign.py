"""The process that waits: starts workers, and notices when one dies, hangs or tells of a fault."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS, MEBIBYTES = 120.0, 2048
"""Limits: of one input, and of the memory beyond what a worker needs to begin."""

PATIENCE = 5
"""So many times as long is waited for a worker that the machine hardly lets run."""


@dataclass
class Campaign:
    """What became of all inputs.

    Args:
        kind: Kind of input.
        seed: The campaign's.
        counts: Number of inputs by outcome: accepted, refused, fault, died, hung.
        findings: What was wrong, by the input's seed.
        seconds: How long it took.
    """

    kind: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def run(
    kind: str,
    count: int,
    seed: int,
    on_report: Callable[[dict[str, Any]], None] | None = None,
    seconds: float = SECONDS,
    mebibytes: int = MEBIBYTES,
) -> Campaign:
    """Try so many inputs of a kind, one after another.

    Args:
        kind: A name of `fuzz.kinds.KINDS`.
        count: Number of inputs.
        seed: Another seed makes other inputs.
        on_report: Called with what is told of each input.
        seconds: Limit of one input.
        mebibytes: Limit of a worker's memory.
    """
    campaign, started = Campaign(kind, seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        number = 0
        while number < count:
            for report in _reports(kind, seed, number, count, Path(folder), seconds, mebibytes):
                number = report["number"] + 1
                campaign.counts[report["outcome"]] += 1
                if "what" in report:
                    campaign.findings[f"{seed}:{report['number']}"] = report["what"]
                if on_report is not None:
                    on_report(report)
    campaign.seconds = time.monotonic() - started
    return campaign


def _reports(
    kind: str, seed: int, first: int, stop: int, folder: Path, seconds: float, mebibytes: int
) -> Iterator[dict[str, Any]]:
    """What one worker tells, until it is done or gone; its end is reported for the input it was at."""
    words = [sys.executable, "-m", "fuzz.worker", kind, str(seed), str(first), str(stop), str(folder), str(mebibytes)]
    number = first
    with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0, cwd=Path(__file__).parents[1]) as worker:
        lines = _lines(worker, seconds)
        if next(lines, None) is None:
            worker.kill()
            raise SystemExit(f"The worker for {kind} does not start: see python -m fuzz replay {kind} {seed}:{first}")
        for line in lines:
            report = json.loads(line)
            number = report["number"] + 1
            yield report
        hung = not _ended(worker)
        worker.kill()
    if number < stop:
        what = f"no answer in {seconds:g} s" if hung else f"the process ended with {worker.returncode}"
        crash = (folder / "stderr").read_text(errors="replace").splitlines()[-30:]
        yield {"number": number, "outcome": "hung" if hung else "died", "what": what, "lines": crash}


def _ended(worker: subprocess.Popen[bytes]) -> bool:
    try:
        worker.wait(2)
    except subprocess.TimeoutExpired:
        return False
    return True


def _processor(process: int) -> float:
    """Seconds that a process has had of a processor."""
    numbers = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def _lines(worker: subprocess.Popen[bytes], seconds: float) -> Iterator[bytes]:
    """Lines of a worker, until it ends or is silent for too long; its start may take longer."""
    assert worker.stdout is not None
    limit, pending = max(seconds, 120.0), b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(worker.stdout, selectors.EVENT_READ)
        while True:
            before = _processor(worker.pid)
            if not waiting.select(limit):
                busy = _processor(worker.pid) - before > 0.2 * limit
                # On a busy machine it may have had no time to answer.
                if busy or not waiting.select(PATIENCE * limit):
                    return
            arrived = os.read(worker.stdout.fileno(), 1 << 16)
            if not arrived:
                return
            *whole, pending = (pending + arrived).split(b"\n")
            limit = seconds
            yield from whole
