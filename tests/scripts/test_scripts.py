"""The scripts that make the results: what turns rows into tables, on made-up rows."""

import csv
import importlib.util
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from scantune.config.recipe import read_recipe
from scantune.scans.case import Case
from scantune.training.plan import TrainingPlan
from tests.datasets.test_datasets import image, labels

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def neighbours(monkeypatch):
    """Scripts take parts of their neighbours."""
    monkeypatch.syspath_prepend(SCRIPTS)


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


def shift_rows(path, results):
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, results.COLUMNS)
        rows.writeheader()
        for method, loss in (("baseline", 0.2), ("strong baseline", 0.05)):
            for site, split, score in (("UMC", "train", 0.9), ("UMC", "test", 0.88), ("NUHS", "test", 0.88 - loss)):
                for subject, spread in (("one", 0.01), ("two", -0.01)):
                    row = {"cohort": "wmh", "site": site, "split": split, "method": method, "seed": 0}
                    rows.writerow({**row, "subject": subject, "structure": "WMH", "dice": score + spread})


def test_the_table_of_shifts_compares_new_people_with_seen_ones_and_centres_with_the_source(tmp_path, capsys):
    results = script("simulated_shift")
    shift_rows(tmp_path / "rows.csv", results)
    results.table(Namespace(files=[tmp_path / "rows.csv"]))
    printed = capsys.readouterr().out
    assert "| wmh | UMC | 0.880 | +0.020 | 0.880 | +0.020 |" in printed
    assert "| wmh | NUHS | 0.680 | +0.200 | 0.830 | +0.050 |" in printed
    assert "Of 1 test centres the baseline loses 0.15 or more at 1;" in printed
    assert "smaller at 1 and still above 0.03 at 1" in printed


def test_the_table_of_methods_averages_people_and_counts_falling_objectives(tmp_path, capsys):
    results = script("methods_results")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, results.COLUMNS)
        rows.writeheader()
        for method, gain in (("source", 0.0), ("foe-cnn", 0.1)):
            for subject, after in (("one", 0.5), ("two", 1.5)):
                objective = {} if method == "source" else {"objective_before": 1.0, "objective_after": after}
                row = {"cohort": "wmh", "site": "NUHS", "subject": subject, "method": method, "seed": 0}
                rows.writerow({**row, **objective, "structure": "WMH", "dice": 0.6 + gain, "seconds": 2.0})
    results.table(Namespace(files=[tmp_path / "rows.csv"]))
    printed = capsys.readouterr().out
    assert "| foe-cnn | 0.700 |" in printed
    assert "| foe-cnn | 2 | 1 of 2 | +0.100 (+0.100, +0.100) | 2.0 |" in printed


def test_real_cords_are_cut_out_without_moving_in_space():
    results = script("transfer_results")
    image = np.random.default_rng(0).random((200, 180, 4)).astype(np.float32)
    cord = np.zeros(image.shape, bool)
    cord[120:130, 60:70, 1:3] = True
    affine = np.diag([0.5, 0.5, 3.0, 1.0])
    case = Case("x", image, affine, cord.astype(np.uint8))
    cut = results.around_cord(case, cord)
    assert cut.shape == (100, 100, 2)
    where = np.argwhere(cut.reference)[0]
    np.testing.assert_allclose(cut.affine @ [*where, 1], affine @ [120, 60, 1, 1])
    np.testing.assert_array_equal(cut.image[tuple(where)], image[120, 60, 1])


def test_real_scans_are_thinned_evenly_and_stay_in_place(monkeypatch):
    results = script("real_results")
    image = np.random.default_rng(0).random((3, 2, 21)).astype(np.float32)
    case = Case("x", image, np.diag([0.5, 0.5, 3.0, 1.0]), (image > 0.5).astype(np.uint8))
    thin = results.thinned(case, 8)
    assert thin.shape == (3, 2, 7)
    np.testing.assert_array_equal(thin.image, image[:, :, 1::3])
    np.testing.assert_array_equal(thin.reference, case.reference[:, :, 1::3])
    np.testing.assert_allclose(thin.affine @ [0, 0, 2, 1], case.affine @ [0, 0, 7, 1])
    np.testing.assert_array_equal(results.thinned(case, 0).image, image)


def test_the_table_of_real_results_averages_structures_and_counts_what_the_guard_kept(tmp_path, capsys, monkeypatch):
    results = script("real_results")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, results.COLUMNS)
        rows.writeheader()
        for subject, gain in (("one", 0.1), ("two", -0.2)):
            for structure, source in (("GM", 0.5), ("WM", 0.7)):
                for method in ("source", "default, guard"):
                    row = {
                        "cohort": "spine",
                        "site": "UCL",
                        "subject": subject,
                        "method": method,
                        "structure": structure,
                    }
                    change = 0 if method == "source" else gain
                    rows.writerow({**row, "dice": source + change, "decision": "kept" if gain > 0 else "rolled back"})
    results.table(Namespace(files=[tmp_path / "rows.csv"]))
    printed = capsys.readouterr().out
    assert "| spine | UCL | 2 | source | 0.600 |  |  |" in printed
    assert "| spine | UCL | 2 | default, guard | 0.550 | -0.050 (-0.200, +0.100) | 1/2 |" in printed
    assert "| all |" not in printed  # there is one site alone


@pytest.mark.parametrize(
    ("recipe", "scan", "reference", "validation", "test"),
    [
        ("lgg-du", "DU_{}_FLAIR", "DU_{}_lesion", (3, 7, 11, 15, 19), ()),
        ("oasis-tissue", "{}_T1w", "{}_tissue", (2, 7, 14), (4, 9, 12, 17, 19)),
    ],
)
def test_the_recipes_of_real_scans_put_the_same_people_aside(recipe, scan, reference, validation, test, tmp_path):
    for person in range(20):
        image(tmp_path / f"{scan.format(100 + person)}.nii", person)
        labels(tmp_path / f"{reference.format(100 + person)}.nii", (0, 1))
    text = (SCRIPTS / "recipes" / f"{recipe}.toml").read_text(encoding="utf-8").replace(".nii.gz", ".nii")
    (tmp_path / "recipe.toml").write_text(text)
    plan = TrainingPlan.read(read_recipe(tmp_path / "recipe.toml"), {"root": str(tmp_path)})
    splits = {n: entry.split for n, entry in enumerate(plan.source.chosen())}
    aside = dict.fromkeys(validation, "validation") | dict.fromkeys(test, "test")
    assert splits == dict.fromkeys(range(20), "train") | aside
    assert plan.preprocessing.spacing == 2.0  # half of the headers' 1 mm


def test_the_table_of_registration_results_tests_changes_of_people_and_tells_harm(tmp_path, capsys):
    from scipy.stats import permutation_test

    results = script("registration_results")
    changes = [0.01, 0.03, -0.02, 0.05, 0.04, 0.02]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, results.COLUMNS)
        rows.writeheader()
        for person, change in enumerate(changes):
            for method in ("none", "strong", "foe-cnn-pca, guard"):
                gain = change if "guard" in method else 0
                for structure, score in (("GM", 0.5), ("WM", 0.7)):
                    row = {"cohort": "registration", "site": "AS", "subject": person, "method": method, "seed": 0}
                    told = {"decision": "rolled back" if gain < 0 else "kept", "folding": 0.001, "seconds": 2}
                    rows.writerow({**row, "structure": structure, "dice": score + gain, **(told if gain else {})})
    results.table(Namespace(files=[tmp_path / "rows.csv"]))
    printed = capsys.readouterr().out
    p = permutation_test((changes,), np.mean, permutation_type="samples").pvalue
    assert "| strong | 0.600 |" in printed
    assert f"| foe-cnn-pca, guard | +0.022 (-0.020, +0.050), p {p:.3f} |" in printed
    assert "| foe-cnn-pca, guard | 6 | 5 | 1 | 0 | 0.001 | - | 2 |" in printed


def test_registration_results_take_every_fourth_slice_about_the_middle():
    results = script("registration_results")
    image = np.arange(2 * 2 * 12, dtype=np.float32).reshape(2, 2, 12)
    affine = np.diag([1.0, 1.0, 2.0, 1.0])
    case = results.thinned(Case("a", image, affine, image.astype(int)), first=1, count=9)
    assert np.array_equal(case.image, image[:, :, [3, 7]])
    assert np.allclose(case.affine @ [0, 0, 1, 1], affine @ [0, 0, 7, 1])


def test_the_bench_of_a_scan_times_functions_that_are_there(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS.parent / "speed")
    places = importlib.import_module("scan").STAGES
    for place in places:
        module, name = place.split(":")
        home = importlib.import_module(module)
        for part in name.split("."):
            home = getattr(home, part)
        assert callable(home), place


@pytest.mark.parametrize(
    ("change", "state", "told"),
    [
        pytest.param({}, 0, "demo: equal, 8 values\n", id="equal"),
        pytest.param({"seconds": 2, "torch": "3"}, 0, "demo: equal, 8 values\n", id="left out"),
        pytest.param({"reason": "It fell."}, 0, "demo: equal, 8 values; wording or pictures differ: 1", id="wording"),
        pytest.param(
            {"energy": 0.1 + 0.2}, 1, "differs: demo/m.json > energy: 0.3 is now 0.30000000000000004", id="digit"
        ),
        pytest.param({"steps": 5.0}, 1, "differs: demo/m.json > steps: 5 is now 5.0", id="kind"),
        pytest.param({"more": 1}, 1, "differs: demo/m.json: more only in the new record", id="key"),
        pytest.param(
            {"numbers": {"looks": 2, "reason": 4}}, 1, "numbers > reason: 3 is now 4", id="number under words"
        ),
    ],
)
def test_two_records_are_compared_to_the_last_digit(change, state, told, tmp_path, capsys):
    baseline = script("compare_baseline")
    entry = {"energy": 0.3, "steps": 5, "reason": "it fell.", "seconds": 1, "numbers": {"looks": 2, "reason": 3}}
    for name, changes in (("old", {}), ("new", change)):
        (tmp_path / name / "demo").mkdir(parents=True)
        (tmp_path / name / "demo" / "m.json").write_text(json.dumps(entry | changes))
        (tmp_path / name / "demo" / "rows.csv").write_text("dice,seconds\n0.5,1\n0.6,2\n")
        np.savez(tmp_path / name / "demo" / "case.npz", image=np.ones(3))
    assert baseline.compare(tmp_path / "old", tmp_path / "new") == state
    assert told in capsys.readouterr().out


def test_one_voxel_of_a_record_is_enough(tmp_path, capsys):
    import nibabel

    baseline = script("compare_baseline")
    for name, value in (("old", 1), ("new", 3)):
        (tmp_path / name / "simulate").mkdir(parents=True)
        voxels = np.ones((2, 2, 2), np.uint8)
        voxels[0, 1, 1] = value
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / name / "simulate" / "a.nii.gz")
    assert baseline.main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert "simulate/a.nii.gz > voxels: 1 of 8 elements differ, by 2 at most" in capsys.readouterr().out


def test_tables_of_pages_are_those_of_the_rows():
    tables = script("readme_tables")
    for name in tables.PAGES:
        page = (SCRIPTS.parent / name).read_text(encoding="utf-8")
        assert tables.with_tables(page) == page, f"run scripts/readme_tables.py: {name} differs from its rows"
        assert "<!-- table " in page
    stale = "Before.\n\n<!-- table means -->\n\n| 9 |\n\n<!-- end -->\n\nAfter."
    made = tables.with_tables(stale)
    assert made == stale.replace("| 9 |", tables.means_table())


def test_means_of_the_page_are_those_of_tier_1():
    """A second opinion: the page of tier 1 is made by the report."""
    report = (SCRIPTS.parent / "results" / "tier1.md").read_text(encoding="utf-8")
    table = script("readme_tables").means_table().splitlines()
    assert len(table) == 17
    assert all(line in report.splitlines() for line in table)


def test_a_drop_within_a_factor_of_two():
    within = script("readme_tables").within_factor_two
    assert [within(0.2, here) for here in (0.09, 0.1, 0.4, 0.41)] == [False, True, True, False]
    assert not within(-0.04, 0.0)


def test_decisions_of_the_readme_are_counted_by_a_plain_loop():
    tables = script("readme_tables")
    with (SCRIPTS.parent / "results" / "assessment.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == "test"]
    sources = [row for row in rows if float(row["step"]) == 0]
    failing = [row for row in sources if float(row["dice"]) < 0.7]
    line = next(line for line in tables.decisions_table().splitlines() if line.startswith("| toy networks, below"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    counts = [sum(row["action"] == action for row in failing) for action in ("left alone", "adapted", "unsolved")]
    assert [int(cells[1]), *map(int, cells[-3:])] == [len(failing), *counts]
    assert float(cells[2]) == pytest.approx(sum(float(row["dice"]) for row in failing) / len(failing), abs=6e-4)
