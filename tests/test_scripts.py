"""The scripts that make the results: what turns rows into tables, on made-up rows."""

import csv
import importlib.util
import json
from argparse import Namespace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_brain_results_averages_structures_then_scans(tmp_path, capsys):
    results = script("brain_results")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, results.COLUMNS)
        rows.writeheader()
        for name, *_ in results.METHODS:
            for subject, gain in (("one", 0.1), ("two", -0.2)):
                for structure, score in (("CSF", 0.4), ("GM", 0.5), ("WM", 0.6)):
                    dice = score + (gain if name == "foe-cnn-pca" else 0)
                    row = {"site": "ir-3T", "subject": subject, "method": name, "seed": 0, "structure": structure}
                    rows.writerow({**row, "dice": dice, "decision": "kept"})
    results.table(Namespace(files=[tmp_path / "rows.csv"]))
    printed = capsys.readouterr().out
    assert "| source (strong baseline) | 0.500 |" in printed
    assert "| foe-cnn-pca | 0.450 |" in printed
    assert "| foe-cnn-pca | -0.050 (-0.200, +0.100); 2/2 |" in printed


def test_an_interrupted_run_knows_what_it_has_finished(tmp_path):
    results = script("brain_results")
    path = tmp_path / "rows.csv"
    assert results._done(path) == set()
    path.write_text(
        "seed,subject,method,structure\n0,one,entropy,CSF\n0,one,entropy,GM\n0,one,entropy,WM\n0,two,entropy,CSF\n"
    )
    assert results._done(path) == {("0", "one", "entropy")}


CALIBRATION = {"typical": 0.1, "shares": [0.2, 0.3, 0.5], "spread": [0.1, 0.1, 0.1]}


def step(dice, objective, counts=(0, 20, 30, 50), agree=1.0, energy=0.5):
    return {
        "dice": [dice] * 3,
        "obj": objective,
        "frac": list(counts),
        "agree": [agree] * 3,
        "energy": energy,
        "valid": True,
    }


@pytest.mark.parametrize(
    ("path", "chosen"),
    [
        pytest.param([step(0.5, 3, energy=0.05), step(0.6, 2)], 0, id="typical from the start"),
        pytest.param([step(0.5, 3), step(0.6, 2), step(0.7, 1)], 2, id="all is well"),
        pytest.param([step(0.5, 3), step(0.6, 2, energy=0.1), step(0.7, 1)], 1, id="stops where typical"),
        pytest.param([step(0.5, 3), step(0.6, 2, agree=0.5), step(0.7, 1)], 0, id="strays"),
        pytest.param(
            [step(0.1, 3, (0, 90, 5, 5)), step(0.6, 2, agree=0.5), step(0.7, 1, agree=0.5, energy=0.1)], 2, id="repair"
        ),
    ],
)
def test_the_rules_are_played_back_as_the_guard_applies_them(path, chosen):
    guard = script("choose_guard")
    assert guard.play_back(path, CALIBRATION, guard.Rule(0.5, 0.8, (3.0, 2.0))) == chosen


def test_the_table_of_rules_has_a_line_for_each(tmp_path, capsys):
    guard = script("choose_guard")
    row = {"centre": "ir-3T", "variant": "foe-cnn", "calibration": CALIBRATION, "path": [step(0.5, 3), step(0.6, 2)]}
    rows = [row | {"variant": name} for name in guard.VARIANTS]
    (tmp_path / "paths.json").write_text(json.dumps(rows))
    guard.table(Namespace(files=[tmp_path / "paths.json"]))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| foe-cnn |")]
    assert len(lines) == 3 * len(guard.RULES)
    assert all("| +100 | +100.0 | +0.100 | 0/1 |" in line for line in lines)
