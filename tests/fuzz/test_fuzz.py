"""A slice of the fuzz campaign, and the campaign itself: it notices what it is there to notice."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.__main__ import record, table, write_row
from fuzz.base import Fault, Kind, refused, require
from fuzz.campaign import Campaign
from fuzz.kinds import KINDS
from fuzz.mutations import ACCIDENTS, damaged
from fuzz.worker import try_one

from fuzz import campaign
from scantune.errors import InputError

COUNTS = {"nifti": 250, "nrrd-mhd": 100, "detached": 60, "dicom": 40, "dicom-seg": 30, "model": 80, "cli": 60}


@pytest.mark.parametrize("kind", KINDS)
def test_hard_inputs_give_a_correct_result_or_a_sentence(kind):
    found = campaign.run(kind, COUNTS[kind], seed=0)
    assert found.findings == {}
    assert found.counts["accepted"] > 0
    assert found.counts["refused"] > 0
    assert sum(found.counts.values()) == COUNTS[kind]


class Bad(Kind):
    name = "bad"

    def attempt(self, rng, folder):
        require(rng.random() < 0, "as it must")
        return ""


class Odd(Bad):
    def attempt(self, rng, folder):
        raise ZeroDivisionError


@pytest.mark.parametrize(("kind", "what"), [(Bad, "Fault: as it must"), (Odd, "ZeroDivisionError")])
def test_whatever_is_wrong_with_an_input_is_a_fault(tmp_path, kind, what):
    report = try_one(kind(tmp_path), 1, 7, tmp_path)
    assert (report["number"], report["outcome"]) == (7, "fault")
    assert report["what"].startswith(what)


def test_a_refusal_must_be_a_sentence():
    assert refused(InputError("This file cannot be read as an image.")) == "refused"
    for words in ("oops", "Traceback (most recent call last): and so on"):
        with pytest.raises(Fault):
            refused(InputError(words))


@pytest.mark.parametrize(
    ("code", "outcome"), [("os.kill(os.getpid(), 11)", "died"), ("time.sleep(60)", "hung"), ("sys.exit(0)", "died")]
)
def test_a_worker_that_dies_or_hangs_is_found_and_the_next_goes_on(monkeypatch, code, outcome):
    """Workers of a few lines, the first of which ends at the second input."""
    script = (
        "import json, os, sys, time\n"
        "print(json.dumps({'number': None}), flush=True)\n"
        "for n in range(int(sys.argv[5]), int(sys.argv[6])):\n"
        f"    if n == 1: {code}\n"
        "    print(json.dumps({'number': n, 'outcome': 'refused'}), flush=True)\n"
    )
    start = subprocess.Popen
    monkeypatch.setattr(
        campaign.subprocess, "Popen", lambda words, **more: start([sys.executable, "-c", script, *words[1:]], **more)
    )
    monkeypatch.setattr(Path, "read_text", lambda self, errors=None: "")
    found = campaign.run("nifti", 4, 5, seconds=1)
    assert dict(found.counts) == {"refused": 3, outcome: 1}
    assert list(found.findings) == ["5:1"]


def test_the_same_seed_makes_the_same_damage():
    data, other = bytes(range(256)) * 4, b"other" * 50
    made = [[damaged(random.Random(seed), data, other, 100) for seed in range(200)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 150
    assert len(ACCIDENTS) > 10


def test_rows_are_kept_by_kind_and_seed_and_become_a_table(tmp_path):
    path = tmp_path / "fuzz.csv"
    for seed, count in ((2, 5), (1, 7), (2, 9)):
        done = Campaign("nifti", seed, seconds=3.2)
        done.counts.update({"accepted": 1, "refused": count - 1})
        write_row(path, record(done))
    done = Campaign("dicom", 1, findings={"1:3": "oops"})
    done.counts.update({"died": 1})
    write_row(path, record(done))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["nifti", "1", "7"],
        ["nifti", "2", "9"],
        ["dicom", "1", "1"],
    ]
    page = table(path)
    assert "| nifti | 16 | 2 | 14 | 0 | 0 | 0 |" in page
    assert "dicom: 1:3" in page


def test_one_input_can_be_shown_again(tmp_path):
    root = Path(__file__).parents[2]
    words = [sys.executable, "-m", "fuzz", "replay", "nifti", "0:3", "--keep", str(tmp_path)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.split()[0] in ("accepted", "refused")
    assert list((tmp_path / "input").iterdir())
    assert json.dumps(done.returncode) == "0"
