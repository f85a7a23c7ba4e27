"""Experiments go through the folds of their data sets by themselves, and every person is tested once."""

from collections import Counter
from dataclasses import astuple

import pytest

from scantune.benchmark.expand import Selection, expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.folds import folds_of
from scantune.benchmark.jobs import FineTuning, Training
from scantune.benchmark.run import bench
from scantune.datasets import DATASETS
from scantune.evaluation.rows import ROWS_FILE, SCORE_COLUMNS, read_rows, write_rows
from scantune.report.scores import read_scores
from scantune.report.study import Study
from scantune.training.sources import DataSetSource
from tests.benchmark.test_run import Here
from tests.datasets.test_public_datasets import TREES
from tests.evaluation.test_rows import ROW


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Miniatures of two data sets with folds, and of one without."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("scgm", "promise12", "nci-isbi-2013")}
    for name, root in made.items():
        for do in TREES[name](root):
            do()
    return made


@pytest.fixture(scope="module")
def spine(roots):
    return expand(Experiment.read("spine", datasets=[("scgm", str(roots["scgm"]))]))


def of_kind(jobs, kind):
    return {job.key: job for end in jobs for job in end.before() if isinstance(job, kind)}


@pytest.mark.parametrize("name", [name for name, kind in DATASETS.items() if kind.folds > 1])
def test_the_folds_of_a_data_set_test_whoever_it_tests_when_they_are_pooled(name, tmp_path):
    for do in TREES[name](tmp_path):
        do()

    def tested(fold):
        entries = DATASETS[name].open(tmp_path, fold=fold).entries()
        return Counter(entry.name for entry in entries if entry.split == "test")

    turns = sum((tested(fold) for fold in range(1, DATASETS[name].folds + 1)), Counter())
    assert set(turns.values()) == {1}
    # Pooled, the training site is split as in fold 1, so that networks can be trained on it.
    home = {entry.name for entry in DATASETS[name].open(tmp_path).entries() if entry.site == DATASETS[name].sites[0]}
    assert turns.keys() - home == tested(0).keys() - home


def test_every_person_is_tested_once_by_a_network_that_has_not_seen_them(spine):
    rows = [job for job in spine.rows if job.row == "strong baseline"]
    assert Counter(job.scan.site for job in rows) == {"PM": 9, "USZ": 9, "VU": 9, "UCL": 9}
    assert len({job.scan.identity for job in rows}) == len(rows)
    assert Counter(job.fold for job in rows) == {"1": 12, "2": 12, "3": 12}
    for job in rows:
        seen = [entry.name for split in ("train", "validation") for entry in job.network.plan.source.entries(split)]
        assert len(seen) == 7 and job.scan.entry.name not in seen


def test_each_fold_has_networks_of_its_own_that_all_its_rows_share(spine):
    for row in ("strong baseline", "foe-cnn-pca", "entropy"):
        networks = {(job.fold, job.network.key) for job in spine.rows if job.row == row}
        assert len(networks) == 3 and len({key for _, key in networks}) == 3
    strong = [job for job in spine.rows if job.row in ("strong baseline", "foe-cnn-pca")]
    assert {job.title for job in of_kind(strong, Training).values()} == {
        f"train the strong baseline, seed 0, fold {number}" for number in (1, 2, 3)
    }


def test_people_are_counted_through_all_folds(spine):
    numbers = sorted(job.scan.number for job in spine.rows if (job.row, job.scan.site) == ("entropy", "UCL"))
    assert numbers == list(range(9))
    few = [job for job in spine.chosen(Selection(count=3)) if isinstance(job, Training)]
    assert {job.title.rsplit(", ", 1)[1] for job in few} == {"fold 1"}


def test_a_fold_that_is_asked_for_is_the_only_one(roots, spine):
    asked = expand(Experiment.read("spine", ["data.fold=2"], [("scgm", str(roots["scgm"]))]))
    assert {job.fold for job in asked.rows} == {""}
    networks = {job.network.key for job in asked.rows if job.row == "strong baseline"}
    assert networks == {job.network.key for job in spine.rows if (job.row, job.fold) == ("strong baseline", "2")}


def test_folds_of_a_data_set_for_testing_share_the_network_but_not_what_goes_on_training_there(roots):
    names = ("nci-isbi-2013", "promise12")
    rows = expand(Experiment.read("prostate", datasets=[(name, str(roots[name])) for name in names])).rows
    there = [job for job in rows if job.scan.site == "HK"]
    assert Counter(job.fold for job in there if job.row == "entropy") == {"1": 5, "2": 5}
    assert len({job.network.key for job in there if job.row == "entropy"}) == 1
    assert len(of_kind([job for job in there if job.row == "supervised"], FineTuning)) == 2
    at_home = [job for job in rows if (job.row, job.scan.site) == ("strong baseline", "RUNMC")]
    assert {job.fold for job in at_home} == {"1"} and len({job.scan.identity for job in at_home}) == len(at_home)


def test_without_folds_there_is_one_turn_with_the_sources_as_they_are():
    plain = [DataSetSource("nci-isbi-2013", "NCI"), DataSetSource("promise12", "P", {"fold": 0})]
    (turn,) = folds_of(plain)
    assert (turn.name, turn.home, turn.tested) == ("", plain[0], tuple(plain))


def test_a_data_set_with_fewer_folds_takes_no_part_in_later_tests():
    turns = folds_of([DataSetSource("promise12", "P"), DataSetSource("scgm", "S"), DataSetSource("nci-isbi-2013", "N")])
    told = [[(source.name, source.options.get("fold")) for source in turn.tested] for turn in turns]
    assert told == [
        [("promise12", 1), ("scgm", 1), ("nci-isbi-2013", None)],
        [("promise12", 2), ("scgm", 2)],
        [("scgm", 3)],
    ]
    assert [turn.home.options["fold"] for turn in turns] == [1, 2, 1]


def test_rows_tell_the_fold_and_a_report_pools_the_people_of_all(roots, tmp_path):
    tiny = ["train.iterations=2", "train.batch=2", "train.validate_every=1", "network.width=2"]
    tiny += ["train.precision=float32", "preprocessing.size=[16, 16]", "preprocessing.n4=false", "prior.size=4"]
    tiny += ["prior.stride=2", "prior.components=2", "adapt.preset=fast", "adapt.fast.steps=1", "experiment.keep=0"]
    tiny += ["experiment.methods=['strong baseline', 'entropy']", "experiment.centres=['UCL']", "experiment.watch=[]"]
    experiment = Experiment.read("spine", tiny, [("scgm", str(roots["scgm"]))])
    summary = bench(experiment, tmp_path, lambda store: Here(store, []))
    assert not summary.failed
    rows = [row for row in read_rows(tmp_path) if row.structure == "mean"]
    assert Counter((row.method, row.fold) for row in rows) == {
        (method, fold): 3 for method in ("strong baseline", "entropy") for fold in "123"
    }
    study = Study.of(read_scores(tmp_path))
    cells = study.scores.cells
    assert {len(people) for people in cells.values()} == {9}


def test_rows_of_older_versions_have_no_fold(tmp_path):
    write_rows(tmp_path / ROWS_FILE, [ROW])
    lines = [line.rsplit(",", 2) for line in (tmp_path / ROWS_FILE).read_text(encoding="utf-8").splitlines()]
    assert lines[0][1:] == list(SCORE_COLUMNS[-2:]) == ["fold", "data"]
    (tmp_path / ROWS_FILE).write_text("\n".join(line[0] for line in lines) + "\n")
    assert [astuple(row) for row in read_rows(tmp_path)] == [astuple(ROW)]
