"""Tier 1 of the results: what is run, in which order, and what the tables say of made-up rows."""

from argparse import Namespace
from dataclasses import replace

import pytest

from scantune.benchmark.engines import EngineSettings
from scantune.benchmark.expand import expand
from scantune.benchmark.jobs import Adaptation
from scantune.benchmark.run import experiment_text
from scantune.benchmark.store import Store
from scantune.evaluation.rows import ScoreRow, write_rows
from scantune.report.study import training_sites
from scantune.training.sources import SimulatedSource
from tests.scripts.test_scripts import SCRIPTS, script

NOTHING = float("nan")


@pytest.fixture(scope="module", autouse=True)
def neighbours():
    """Scripts take parts of their neighbours, here for fixtures of the whole module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield


@pytest.fixture(scope="module")
def tier1():
    return script("tier1")


@pytest.fixture(scope="module")
def runs():
    return script("bench_runs")


@pytest.fixture(scope="module")
def graphs(tier1):
    return {name: expand(tier1.experiment(name)) for name in tier1.NAMES}


def test_every_method_has_a_guarded_row_that_differs_by_the_guard_alone(tier1):
    for name in tier1.NAMES:
        rows = tier1.experiment(name).rows
        guarded = [row for row in rows if row.endswith("guarded")]
        assert len(guarded) == (3 if name == "registration" else 6 + (name in tier1.COLLAPSES))
        for row in guarded:
            plain = rows[row.removesuffix("guarded").rstrip(" ,")]
            assert rows[row].guard and not plain.guard
            assert replace(rows[row], guard=None) == plain


def test_there_are_twelve_centres_to_segment_at_and_two_to_register_at(graphs):
    away = {name: {job.scan.site for job in graph.rows if job.row == "foe-cnn"} for name, graph in graphs.items()}
    assert sum(len(sites) for name, sites in away.items() if name != "registration") == 12
    assert len(away["registration"]) == 2
    assert all(training_sites()[name] not in sites for name, sites in away.items())


def test_networks_come_first_and_people_of_all_experiments_in_turn(tier1, graphs):
    jobs = tier1.ordered(graphs.values(), people=2)
    ranks = [job.kind for job in jobs if not isinstance(job, Adaptation)]
    assert ranks == ["train"] * 12 + [kind for kind in ranks if kind in ("prior", "helper")] + ["supervise"] * 14
    assert [job.title for job in jobs[:6]] == ["train the strong baseline, seed 0"] * 6
    numbers = [job.scan.number for job in jobs if isinstance(job, Adaptation)]
    assert numbers == sorted(numbers) and set(numbers) == {0, 1}
    place = {job.key: number for number, job in enumerate(jobs)}
    assert all(place[needed.key] < place[job.key] for job in jobs for needed in job.inputs)


def test_until_urgent_networks_are_there_only_as_many_jobs_run(runs, tmp_path):
    store = Store(tmp_path)
    store.open()
    pool = runs.Pool(store, EngineSettings(workers=5), ahead=None, urgent=["one", "two"])
    assert pool.slots == 5  # processes to start
    pool.started = True
    assert pool.slots == 2
    (store.finished / "one").mkdir()
    assert pool.slots == 2
    (store.finished / "two").mkdir()
    assert pool.slots == 5


def test_scans_are_simulated_once_for_all_jobs_those_that_networks_are_made_from_first(tier1, runs, graphs):
    jobs = tier1.ordered([graphs["spine"]], people=1)
    ahead = runs.Ahead(jobs, processes=2)
    plan = ahead.plans["spine"]
    urgent = [unit for unit, later in plan if not later]
    home = [("PM", "train", number) for number in range(5)] + [("PM", "validation", number) for number in range(2)]
    assert [unit[1:] for unit in urgent] == home and [later for _, later in plan[:7]] == [False] * 7
    others = [unit[1:] for unit, later in plan if later]
    assert len(plan) == 7 + 3 * 7 + 4 == len({unit for unit, _ in plan})
    assert [centre for centre, split, _ in others if split == "test"] == ["PM", "USZ", "VU", "UCL"]
    assert {unit[0] for unit, _ in plan} == {SimulatedSource("spine")}
    ahead.done.update(urgent)
    assert [job.kind for job in jobs if ahead.ready(job)] == ["train"] * 2 + ["prior"] + ["helper"] * 2
    ahead.done.add((SimulatedSource("spine"), "VU", "test", 0))
    assert {job.scan.site for job in jobs if job.kind == "adapt" and ahead.ready(job)} == {"VU"}


def row(method, person, dice, decision="adapted", site="USZ"):
    return ScoreRow(
        *("spine", site, person, "", method, 0, "GM", dice, *[NOTHING] * 6, decision, 3, 1.5),
        *(0.5, 10.0, "cpu", "abc", "s", "1", f"{method}-{person}"),
    )


@pytest.fixture
def made_up(tier1, tmp_path):
    """The tables' script, and rows of three people: one gains, one loses much, and one is not finished."""
    tables = script("tier1_tables")
    wanted = tier1.experiment("spine")
    rows = [row(name, person, 0.7) for person in ("one", "two") for name in wanted.rows]
    changed = {("foe-cnn-pca", "one"): 0.8, ("foe-cnn-pca, guarded", "one"): 0.75, ("foe-cnn-pca", "two"): 0.6}
    changed |= {("supervised", "one"): 0.8, ("supervised", "two"): 0.8}
    rows = [replace(one, dice=changed.get((one.method, one.subject), one.dice)) for one in rows]
    acted = ("foe-cnn-pca, guarded", "two")
    rows = [replace(one, decision="unsolved") if (one.method, one.subject) == acted else one for one in rows]
    home = [row(name, "three", 0.9, site="PM") for name in ("baseline", "strong baseline")]
    return tables, wanted, [*rows, row("baseline", "four", 0.5), *home], tmp_path


def test_people_without_every_row_do_not_count(made_up):
    tables, wanted, rows, _ = made_up
    assert {one.subject for one in tables.complete(rows, wanted, "PM")} == {"one", "two", "three"}
    assert {one.subject for one in tables.complete(rows[1:], wanted, "PM")} == {"two", "three"}


def test_the_page_says_what_the_guard_did(made_up, capsys):
    tables, wanted, rows, folder = made_up
    write_rows(folder / "tier1-spine.csv", tables.complete(rows, wanted, "PM"))
    (folder / "tier1-spine.toml").write_text(experiment_text(wanted))
    tables.page(Namespace(results=folder))
    printed = capsys.readouterr().out
    assert (
        "| spine, foe-cnn-pca | 2 | 1, 0 | 1, 1 | 1 of 1 | 1 of 2 | +0.0250 of +0.0000 | +0.000 of -0.100 |" in printed
    )
    assert "| spine, USZ | 2 | 0.700 | 0.700 | 0.725 | +0.000 | 1 | 1 | 0 |" in printed
    assert "**Not finished**: prostate, cardiac, brain, wmh, registration" in printed
    assert "| foe-cnn-pca | 1.50 |" in printed
    assert "| foe-cnn-pca, guarded | 0.725 | 25 % | 1 | 0 | +0.025 |" in printed
    assert "10000 iterations of 16 slices" in printed and "spine 3." in printed


def test_the_area_under_the_curve_is_that_of_scikit_learn(made_up):
    from sklearn.metrics import roc_auc_score

    tables, *_ = made_up
    home, away = [0.1, 0.2, 0.2, 0.5], [0.2, 0.4, 0.6]
    expected = roc_auc_score([0] * len(home) + [1] * len(away), home + away)
    assert tables.auroc(home, away) == pytest.approx(expected)
