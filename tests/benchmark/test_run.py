"""The runner: what is done is not done again, what is lost is made again, and rows are the same whatever happened."""

import io
import json
import math
import shutil
from dataclasses import astuple, replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

import scantune
from scantune.backends.slices import Preprocessing
from scantune.benchmark.engines.base import Engine, EngineSettings, JobOutcome, run_job
from scantune.benchmark.expand import Selection, expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import MODEL, Adaptation, JobEnvironment
from scantune.benchmark.jobs.scoring import restrict_to_slab
from scantune.benchmark.run import BenchObserver, bench
from scantune.benchmark.store import Store
from scantune.cli.bench_display import BenchDisplay, bench_table
from scantune.cli.main import main
from scantune.errors import InputError
from scantune.evaluation.metrics import dice, surface_distances
from scantune.evaluation.rows import MEASURED_COLUMNS, ROWS_FILE, read_rows
from scantune.runtime.version import installed_version
from scantune.scans.case import Case
from scantune.scans.io import read_labels
from tests.toy_experiment import write_experiment


class Here(Engine):
    """Does jobs in this process, and remembers which."""

    slots = 1

    def __init__(self, store, done):
        super().__init__(store, EngineSettings())
        self.done, self.ended = done, []

    def start(self):
        pass

    def stop(self):
        pass

    def submit(self, job):
        self.done.append(job)
        place = JobEnvironment(self.store.finished, self.store.running, "cpu")
        self.ended.append(run_job(job, place, self.store))

    def wait(self, seconds):
        ended, self.ended = self.ended, []
        return ended


def run(path, out, *sets, selection=None, observer=None):
    """The summary of a run in this process, and the jobs that were done."""
    done = []
    summary = bench(Experiment.read(path, sets), out, lambda store: Here(store, done), selection, observer)
    return summary, done


def timeless(folder):
    """The text of the rows without what differs from run to run."""
    blank = dict.fromkeys(MEASURED_COLUMNS, 0.0)
    return "\n".join(str(astuple(replace(row, **blank))) for row in read_rows(folder))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_experiment(tmp_path_factory.mktemp("toy"), iterations=60, every=20)


@pytest.fixture(scope="module")
def whole(path, tmp_path_factory):
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("whole")
    summary, done = run(path, out)
    assert not summary.failed and len(done) == summary.done == summary.jobs
    return out


def test_a_run_leaves_a_row_for_every_scan_and_structure(whole):
    rows = read_rows(whole)
    assert [row.structure for row in rows[:4]] == ["rim", "core", "whole", "mean"]
    people = {(row.method, row.subject) for row in rows}
    tests = {"north2", "north3", "south2"}
    assert people == {
        *{("strong baseline", person) for person in {*tests, "home3"}},
        *{(method, person) for method in ("entropy", "foe-cnn", "supervised") for person in tests},
    }
    assert len(rows) == 4 * len(people)
    assert {(row.tier, row.cohort, row.device, row.commit) for row in rows} == {
        ("toy", "csv", "cpu", installed_version())
    }
    assert (whole / "rows.parquet").exists() == (find_spec("pyarrow") is not None)


def test_a_row_says_what_a_plain_adaptation_gives(path, whole):
    job = next(job for job in expand(Experiment.read(path)).rows if job.row == "foe-cnn")
    place = JobEnvironment(whole / "jobs", whole / "running", "cpu")
    model = replace(place.model(job.network), prior=place.model(job.prior).prior)
    case = job.scan.read(torch.device("cpu"))
    result = scantune.adapt(
        model, case, method="foe-cnn", preset="paper", steps=2, batch=2, guard=False, device="cpu", seed=0
    )
    rows = {row.structure: row for row in read_rows(whole / "jobs" / job.key)}
    assert (case.subject, job.scan.site) == ("north2", "north")
    reference = read_labels(path.parent / "north2_labels.nii.gz").labels
    for name, value in (("rim", 1), ("core", 2)):
        assert rows[name].dice == dice(result.prediction, reference, value) > 0.1
        assert (rows[name].hd95, rows[name].asd) == surface_distances(
            result.prediction, reference, value, (1.0, 1.0, 4.0)
        )
        assert rows[name].reference_ml == pytest.approx(4 * np.sum(reference == value) / 1000)
    assert rows["whole"].dice == dice(np.minimum(result.prediction, 1), np.minimum(reference, 1), 1)
    assert rows["mean"].dice == pytest.approx((rows["rim"].dice + rows["core"].dice) / 2)
    assert (rows["rim"].energy_before, rows["rim"].energy_after) == (result.energy_before, result.energy_after)
    assert (rows["rim"].steps, rows["rim"].decision, rows["rim"].job) == (2, "adapted", job.key)
    manifest = json.loads((whole / "jobs" / job.key / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["energies_after"] == result.adapted.energies
    trace = json.loads((whole / "jobs" / job.key / "trace.json").read_text(encoding="utf-8"))
    assert [row["objective"] for row in trace] == [row["objective"] for row in result.trace]


def test_a_row_can_be_adapted_with_the_preset_converged(path, whole, tmp_path):
    out = tmp_path / "converged"
    shutil.copytree(whole, out)
    sets = ["adapt.preset=converged", "adapt.converged.steps=2"]
    summary, done = run(path, out, *sets, selection=Selection(methods=["foe-cnn"], centres=["south"]))
    assert not summary.failed and len(done) == 1
    row = next(row for row in read_rows(out) if row.method == "foe-cnn" and row.site == "south")
    assert row.steps == 2
    manifest = json.loads((out / "jobs" / row.job / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["run"]["preset"] == manifest["facts"]["preset"] == "converged"


def test_the_benchmark_starts_from_the_strong_baseline_with_scans_of_the_centre(path, whole):
    rows = [job for job in expand(Experiment.read(path)).rows if job.row == "supervised"]
    place = JobEnvironment(whole / "jobs", whole / "running", "cpu")
    for job in rows:
        record = place.model(job.network).provenance
        assert record["data"]["site"] == (job.scan.site,) or record["data"]["site"] == [job.scan.site]
        assert record["start"]["fingerprint"] == place.model(job.network.start).fingerprint
    assert len({job.network.key for job in rows}) == 2
    energies = {row.energy_before for row in read_rows(whole) if row.method == "supervised"}
    assert all(math.isnan(energy) for energy in energies)


def test_a_second_run_does_nothing(path, whole):
    before = (whole / ROWS_FILE).read_bytes()
    summary, done = run(path, whole)
    assert (done, summary.already) == ([], summary.jobs)
    assert (whole / ROWS_FILE).read_bytes() == before


def test_a_change_does_again_what_depends_on_it(path, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    summary, done = run(path, out, "adapt.options.entropy.learning_rate=1e-2")
    assert {job.row for job in done} == {"entropy"} and len(done) == 3
    old, new = read_rows(whole), read_rows(out)
    assert [row for row in old if row.method != "entropy"] == [row for row in new if row.method != "entropy"]
    assert {row.settings for row in old if row.method == "entropy"}.isdisjoint(
        row.settings for row in new if row.method == "entropy"
    )
    _, done = run(path, out)
    assert not done and (out / ROWS_FILE).read_bytes() == (whole / ROWS_FILE).read_bytes()
    assert summary.already == summary.jobs - 3


def test_the_stores_of_two_machines_make_one(path, whole, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    rows = ("strong baseline", "entropy")
    expected = [line for line in timeless(whole).splitlines() if any(f"'{row}'" in line for row in rows)]
    for out, centres in ((one, ("home", "north")), (other, ("south",))):
        run(path, out, selection=Selection(methods=rows, centres=centres))
        assert {row.site for row in read_rows(out)} == set(centres)
    shutil.copytree(other / "jobs", one / "jobs", dirs_exist_ok=True)
    summary = bench(Experiment.read(path), one, None)
    assert (summary.done, summary.failed) == (0, [])
    assert timeless(one).splitlines() == expected
    assert not run(path, one, selection=Selection(methods=rows))[1]


def test_a_part_can_be_run_first_and_its_rows_stay(path, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    for job in expand(Experiment.read(path)).rows:
        if job.row != "strong baseline":
            shutil.rmtree(out / "jobs" / job.key)
    part = Selection(methods=("entropy",), count=1, centres=("north",))
    _, done = run(path, out, selection=part)
    assert [job.title for job in done] == ["entropy, north north2_image"]
    assert {(row.method, row.site) for row in read_rows(out)} == {
        ("entropy", "north"),
        *{("strong baseline", site) for site in ("home", "north", "south")},
    }
    seeds = expand(Experiment.read(path).with_seeds([3]))
    assert {job.seed for job in seeds.rows} == {0, 3}
    with pytest.raises(InputError, match="no row 'best'. Available: strong baseline, entropy"):
        run(path, out, selection=Selection(methods=("best",)))


def test_steps_are_watched_and_scans_kept_without_changing_a_row(path, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    sets = ["experiment.watch=[0, 2, 9]", "experiment.keep=1"]
    run(path, out, *sets, selection=Selection(methods=("strong baseline", "foe-cnn")))
    blank = {**dict.fromkeys(MEASURED_COLUMNS, 0.0), "settings": "", "job": ""}
    plain, watched = ([replace(row, **blank) for row in read_rows(folder)] for folder in (whole, out))
    assert [row for row in plain if row.method == "foe-cnn"] == [row for row in watched if row.method == "foe-cnn"]
    jobs = {(job.row, job.scan.site, job.scan.number): job.key for job in expand(Experiment.read(path, sets)).rows}
    folder = out / "jobs" / jobs["foe-cnn", "north", 0]
    trace = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
    noted = {row["step"]: row["dices"] for row in trace if "dices" in row}
    assert {row["step"]: row["dice"] for row in trace if "dice" in row} == {n: d["whole"] for n, d in noted.items()}
    baseline = {row.structure: row.dice for row in read_rows(out / "jobs" / jobs["strong baseline", "north", 0])}
    assert noted.keys() == {0, 2} and noted[0] == baseline
    with np.load(folder / "case.npz") as kept:
        assert kept["image"].dtype == np.uint8
        assert kept["image"].shape == kept["reference"].shape == kept["after"].shape == (30, 32, 3)
        found = {row.structure: row.dice for row in read_rows(folder)}
        assert dice(kept["after"], kept["reference"], 1) == found["rim"]
        assert dice(kept["before"], kept["reference"], 2) == baseline["core"]
        assert json.loads(str(kept["labels"])) == {"rim": 1, "core": 2}
    assert not (out / "jobs" / jobs["foe-cnn", "north", 1] / "case.npz").exists()


def test_a_method_that_draws_its_start_is_watched_from_there(path, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    sets = ["experiment.watch=[0]", 'experiment.methods=["strong baseline", "ae"]']
    run(path, out, *sets, selection=Selection(methods=("strong baseline", "ae"), centres=("south",)))
    jobs = {job.row: job.key for job in expand(Experiment.read(path, sets)).rows if job.scan.site == "south"}
    first = json.loads((out / "jobs" / jobs["ae"] / "trace.json").read_text(encoding="utf-8"))[0]
    source = {row.structure: row.dice for row in read_rows(out / "jobs" / jobs["strong baseline"])}
    assert first["dices"].keys() == source.keys() and first["dices"]["mean"] != source["mean"]


def test_a_failure_takes_only_what_needs_it(path, whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    told = []

    class Listener(BenchObserver):
        def end(self, job, ended):
            told.append((job.kind, bool(ended.reason)))

    summary, _ = run(path, out, "supervised.learning_rate=1e30", observer=Listener())
    titles = [job.title for job, _ in summary.failed]
    assert titles[0] == "go on training at north, seed 0" and len(titles) == 5
    lost = [reason for job, reason in summary.failed if job.kind == "adapt"]
    assert lost == [f"It needs what failed: go on training at {site}, seed 0." for site in ("north", "north", "south")]
    assert told == [("supervise", True), ("supervise", True)]
    assert {row.method for row in read_rows(out)} == {"strong baseline", "entropy", "foe-cnn"}
    failed = list((out / "failed").iterdir())
    assert len(failed) == 2 and "The training loss is nan" in failed[0].read_text(encoding="utf-8")
    assert not list((out / "running").glob("*.new")) + list((out / "running").glob("*.json"))


def test_one_bench_at_a_time_works_in_a_folder(path, tmp_path):
    with Store(tmp_path).alone(), pytest.raises(InputError, match="Another scantune bench is running"):
        run(path, tmp_path)


def test_unfinished_folders_are_cleared_away_and_count_for_nothing(path, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    job = expand(Experiment.read(path)).rows[-1]
    (out / "jobs" / job.key).rename(out / "running" / f"{job.key}-1234.new")
    _, done = run(path, out)
    assert [one.key for one in done] == [job.key]
    assert not list((out / "running").iterdir())
    assert timeless(out) == timeless(whole)


def test_the_command_shows_means_and_tells_of_failures(path, whole, tmp_path, capsys):
    assert main(["bench", str(path), "--out", str(whole), "--collect"]) == 0
    shown = capsys.readouterr()
    assert "Dice, whole; mean over subjects" in shown.out and "supervised" in shown.out
    assert f"rows in {whole / 'rows.csv'}" in shown.out.replace("\n", "")
    assert main(["bench", str(path), "--out", str(tmp_path), "--dataset", "csv"]) == 2
    assert "--dataset and --root belong together" in capsys.readouterr().err
    assert main(["bench", "nothing", "--out", str(tmp_path)]) == 2
    assert main(["bench", str(path), "--out", str(tmp_path), "--workers", "0"]) == 2


def test_every_job_about_networks_leaves_a_model(path, whole):
    for job in expand(Experiment.read(path)).chosen(Selection()):
        assert (whole / "jobs" / job.key / MODEL).exists() == (job.kind != "adapt")


def test_what_lies_beyond_a_slab_is_not_scored():
    rng = np.random.default_rng(0)
    case = Case("scan", rng.random((24, 24, 20), np.float32), np.eye(4), rng.integers(0, 3, (24, 24, 20)))
    whole = Preprocessing(size=(24, 24))
    assert restrict_to_slab(case, whole) is case
    slab = replace(whole, slab=(6.0, 8.0))
    first, count = (slab.prepare(case).slab.first, slab.prepare(case).slab.count)
    reference = restrict_to_slab(case, slab).reference
    inside = slice(first, first + count)
    assert count == 6 and np.array_equal(reference[..., inside], case.reference[..., inside])
    assert reference.sum() == case.reference[..., inside].sum()


def test_a_model_that_is_there_is_used_instead_of_training_one(path, whole, tmp_path):
    network = expand(Experiment.read(path)).rows[0].network
    model = whole / "jobs" / network.key / MODEL
    _, done = run(
        path, tmp_path, f"experiment.models.strong={model}", selection=Selection(methods=("entropy",), count=1)
    )
    assert [job.kind for job in done] == ["given", "prior", "adapt", "adapt"]
    plain = {(row.subject, row.structure): row.dice for row in read_rows(whole) if row.method == "entropy"}
    found = {(row.subject, row.structure): row.dice for row in read_rows(tmp_path)}
    assert found == {key: value for key, value in plain.items() if key in found} and found
    with pytest.raises(InputError, match="are strong and none, got weak"):
        Experiment.read(path, [f"experiment.models.weak={model}"])


def test_the_display_counts_jobs_and_tells_the_time_left(tmp_path):
    text = io.StringIO()
    with BenchDisplay(Console(file=text, force_terminal=True, width=100)) as display:
        jobs = [SimpleNamespace(key=f"a{n}", kind="adapt", title=f"entropy, north {n}") for n in range(4)]
        display.begin(jobs, 3)
        assert display.line() == "3 done, 0 running, 4 to do, 0 failed; left: -"
        for job in jobs[:2]:
            display.start(job)
        Store(tmp_path).note_progress("a1", {"done": 5, "steps": 12})
        display.end(jobs[0], JobOutcome("a0"))
        display.took["adapt"] = [60.0]
        assert display.seconds_left() == pytest.approx(3 * 60, abs=5)
        display.tick(Store(tmp_path))
        display.start(jobs[2])
        assert display.seconds_left() == pytest.approx(3 * 60 / 2, abs=5)
        display.end(jobs[2], JobOutcome("a2", "No reason."))
        assert display.line().startswith("4 done, 1 running, 1 to do, 1 failed; left: ")
        display.live.refresh()
    assert "entropy, north 1, 5 of 12" in text.getvalue()
    assert "entropy, north 2 failed: No reason." in text.getvalue()


def test_the_table_averages_scans_of_a_person_first(whole):
    row = next(row for row in read_rows(whole) if row.structure == "mean")
    rows = [replace(row, subject=who, dice=dice) for who, dice in (("a", 0.2), ("a", 0.4), ("b", 0.9), ("c", math.nan))]
    text = io.StringIO()
    Console(file=text, width=100).print(bench_table(rows, "mean"))
    assert "0.600" in text.getvalue()  # of 0.3 and 0.9


@pytest.mark.parametrize("text", ["junk\n", "", None])
def test_a_finished_job_with_damaged_rows_is_named(text, path, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    here, other = [job.key for job in expand(Experiment.read(path)).rows[:2]]
    rows = out / "jobs" / here / "rows.csv"
    rows.write_text((out / "jobs" / other / "rows.csv").read_text(encoding="utf-8") if text is None else text)
    with pytest.raises(InputError, match=f"Remove the folder .*{here} to run the job again"):
        run(path, out)


def test_models_that_only_finished_rows_need_are_not_made_again(path, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    graph = expand(Experiment.read(path))
    supervised = next(job for job in graph.rows if job.row == "supervised")
    for job in (supervised.network, supervised.network.start):
        shutil.rmtree(out / "jobs" / job.key)
    summary, done = run(path, out)
    assert (done, summary.already) == ([], summary.jobs)
    shutil.rmtree(out / "jobs" / supervised.key)
    _, done = run(path, out)
    assert [job.key for job in done] == [job.key for job in (supervised.network.start, supervised.network, supervised)]
    assert timeless(out) == timeless(whole)


def test_people_of_all_centres_come_in_turn_and_the_rows_of_a_scan_together(path):
    jobs = [job for job in expand(Experiment.read(path)).chosen(Selection()) if isinstance(job, Adaptation)]
    scans = [job.scan.title for job in jobs]
    assert list(dict.fromkeys(scans)) == [
        "home home3_image", "north north2_image", "south south2_image", "north north3_image"
    ]  # fmt: skip
    assert scans == sorted(scans, key=scans.index)
