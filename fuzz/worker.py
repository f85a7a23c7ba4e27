"""The process that is put at risk: makes inputs one after another, and reports each on a pipe."""

import faulthandler
import json
import os
import random
import resource
import shutil
import sys
import traceback
from pathlib import Path

from fuzz.base import Fault, Kind
from fuzz.kinds import find_kind


def try_one(kind: Kind, seed: int, number: int, folder: Path) -> dict[str, object]:
    """What becomes of one input: its outcome, and for a fault what was seen."""
    place = folder / "input"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        outcome = kind.attempt(random.Random(f"{kind.name}:{seed}:{number}"), place)
    except Fault as fault:
        return {"number": number, "outcome": "fault", "what": f"Fault: {fault}"}
    except BaseException as error:
        lines = "".join(traceback.format_exception(error)).splitlines()
        return {"number": number, "outcome": "fault", "what": f"{type(error).__name__}: {error}", "lines": lines}
    return {"number": number, "outcome": outcome}


def limit_memory(mebibytes: int) -> None:
    """Let the process take so much more address space than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(name: str, seed: int, first: int, stop: int, folder: Path, mebibytes: int) -> None:
    """Try inputs from a first one on, and report each; what the product prints goes elsewhere."""
    report = os.fdopen(os.dup(1), "w")
    quiet = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    faulthandler.enable(os.fdopen(quiet, "w"))
    shared = folder / "shared"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    kind = find_kind(name)(shared)
    limit_memory(mebibytes)
    print(json.dumps({"number": None}), file=report, flush=True)
    for number in range(first, stop):
        print(json.dumps(try_one(kind, seed, number, folder)), file=report, flush=True)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]), int(sys.argv[6]))
