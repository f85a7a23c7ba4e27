"""The paper's experiments as files: every number of its methods section, and what they expand to."""

import tomllib

import pytest

from scantune.benchmark.expand import Selection, expand
from scantune.benchmark.experiment import Experiment, bundled_experiments
from scantune.benchmark.jobs import JOBS
from scantune.benchmark.jobs.networks import FineTuning, HelperTraining, Training
from scantune.benchmark.run import experiment_text
from scantune.config.settings import FINE_TUNING
from scantune.errors import InputError
from scantune.methods.ae import VARIANTS
from tests.toy_experiment import write_experiment, write_scans

ANATOMIES = ("prostate", "cardiac", "spine", "brain", "wmh")
ANALYSES = ("kde", "lambda", "ae-variants")


def of_kind(graph, kind):
    return [job for job in graph.chosen(Selection()) if type(job) is kind]


@pytest.fixture(scope="module")
def graphs():
    return {name: expand(Experiment.read(name)) for name in bundled_experiments()}


@pytest.mark.parametrize("name", bundled_experiments())
def test_every_bundled_experiment_expands(name, graphs):
    graph = graphs[name]
    assert graph.rows
    order = [job.key for job in graph.chosen(Selection())]
    for job in graph.chosen(Selection()):
        assert all(order.index(needed.key) < order.index(job.key) for needed in job.inputs)
    assert JOBS.keys() >= {job.kind for job in graph.chosen(Selection())}


def test_there_is_one_for_every_experiment_of_the_paper():
    assert set(bundled_experiments()) == {*ANATOMIES, *ANALYSES, "registration"}


def test_registration_is_compared_with_what_can_register(graphs):
    rows = {job.row for job in graphs["registration"].rows if job.scan.site != "HCP"}
    assert rows == {
        "baseline",
        "strong baseline",
        "ae",
        "foe-cnn-pca",
        "foe-cnn-pca, guard",
        "instance, default",
        "supervised",
    }
    assert {job.scan.site for job in graphs["registration"].rows} == {"HCP", "AS", "OASIS"}
    (network, _) = of_kind(graphs["registration"], Training)
    assert network.settings()["task"]["name"] == "registration"


@pytest.mark.parametrize(
    ("name", "people", "homes"), [("prostate", 50, 10), ("cardiac", 40, 20), ("spine", 27, 9), ("brain", 10, 10)]
)
def test_ten_people_of_each_test_centre_and_nine_of_the_spine(name, people, homes, graphs):
    # Hearts are scanned twice; baselines are scored at home, too. Every other row is not.
    graph = graphs[name]
    home = graph.rows[0].network.plan.source.known.source
    assert len({job.scan.identity for job in graph.rows if job.scan.site != home}) == people
    assert len({job.scan.identity for job in graph.rows if job.scan.site == home}) == homes
    assert {job.row for job in graph.rows if job.scan.site == home} == {"baseline", "strong baseline"}


@pytest.mark.parametrize("name", ANATOMIES)
def test_the_methods_section_is_in_the_file(name, graphs):
    experiment = Experiment.read(name)
    paper, options = experiment.adapt.paper, experiment.adapt.options
    assert paper == {"steps": 200 if name == "brain" else 1000, "batch": 2 if name == "spine" else 8}
    rates = {method: table["learning_rate"] for method, table in options.items()}
    assert rates == {"entropy": 1e-4, "dae": 1e-3, "ae": 1e-5, "foe-cnn": 1e-4, "foe-cnn-pca": 1e-4}
    assert (options["ae"]["orthogonality"], options["foe-cnn-pca"]["weight"]) == (1.0, 0.1)
    prior = experiment.recipe.prior
    assert (prior.size, prior.components, prior.threshold) == (16, 10, 0.8)
    assert prior.stride == (2 if name == "wmh" else 8)
    train, tuning = experiment.recipe.train, experiment.supervised()
    assert (train.iterations, train.batch, train.learning_rate) == (30_000, 16, 1e-3)
    for field in ("iterations", "batch", "learning_rate"):
        assert getattr(tuning, field) == getattr(FINE_TUNING, field)
    assert experiment.table.seeds == ((0, 1, 2, 3) if name == "wmh" else (0,))
    spacing = {"prostate": 0.625, "cardiac": 1.33, "spine": 0.25, "brain": 0.7, "wmh": 1.0}
    assert experiment.recipe.preprocessing["spacing"] == spacing[name]
    size = experiment.recipe.preprocessing["size"]
    assert size == ([200, 200] if name == "spine" else [256, 256])
    assert all(job.start.plan.recipe.train.augment == "strong" for job in of_kind(graphs[name], FineTuning))


def test_the_brain_is_denoised_on_every_fourth_slice():
    # 0.7 mm is the distance of the slices in HCP.
    assert Experiment.read("brain").recipe.real["helpers"]["dae"]["spacing"] == pytest.approx(4 * 0.7)


@pytest.mark.parametrize("name", ANALYSES)
def test_analyses_use_the_networks_of_the_prostate(name, graphs):
    networks = {job.key for job in of_kind(graphs["prostate"], Training)}
    assert {job.key for job in of_kind(graphs[name], Training)} < networks
    helpers = {job.key for job in of_kind(graphs["prostate"], HelperTraining)}
    assert {job.key for job in of_kind(graphs[name], HelperTraining)} <= helpers


def test_rows_that_ask_for_the_same_are_one_job(graphs):
    known = {job.key for job in graphs["prostate"].rows if job.row == "foe-cnn-pca" and not job.keep}
    same = {job.key for job in graphs["kde"].rows if job.row == "foe-cnn-pca"}
    # The prostate's are looked at on their way, which makes another trace.
    assert not known & same
    unwatched = expand(Experiment.read("prostate", ["experiment.watch=[]", "experiment.keep=0"]))
    assert {job.key for job in unwatched.rows if job.row == "foe-cnn-pca"} == same
    weighted = {job.key for job in graphs["lambda"].rows if job.row == "foe-cnn-pca, lambda 0.1"}
    assert weighted == same


def test_the_variants_of_ae_are_those_of_the_method():
    experiment = Experiment.read("ae-variants")
    own = {"losses": "input-output", "start": "random", "instance_norm": False, "learning_rate": 1e-5}
    for name, options in VARIANTS.items():
        used = experiment.adapt.settings(experiment.rows[f"ae, {name}"]).options
        assert used == {**own, "orthogonality": 1.0, **options}
    assert experiment.table.watch == (0, 10, 100, 1000)


def test_a_data_set_takes_the_place_of_the_cohort_by_one_line(tmp_path):
    structures = ["data.site=home", "data.structures.GM=1", "data.structures.WM=2"]
    experiment = Experiment.read("spine", structures, [("csv", str(write_scans(tmp_path)))])
    assert experiment.recipe.preprocessing["n4"] is True
    assert Experiment.read("spine").recipe.preprocessing["n4"] is False
    graph = expand(experiment)
    assert [job.scan.site for job in graph.rows if job.row == "entropy"] == ["north", "north", "south"]
    assert {job.cohort for job in graph.rows} == {"csv"}
    assert all(job.how.batch == 2 for job in graph.rows if job.how.preset == "paper")


def test_a_second_data_set_adds_centres_to_test_at(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    first, second = write_scans(one), write_scans(other)
    second = second.rename(other / "more.csv")
    second.write_text(second.read_text(encoding="utf-8").replace(",south,", ",west,").replace(",north,", ",east,"))
    structures = ["data.site=home", "data.structures.GM=1", "data.structures.WM=2"]
    further = [word.replace("data.", "tests.csv.") for word in structures]
    experiment = Experiment.read("spine", structures + further, [("csv", str(first)), ("csv", str(second))])
    graph = expand(experiment)
    assert {job.scan.site for job in graph.rows} == {"home", "north", "south", "east", "west"}


def test_what_differs_for_real_scans_is_said_of_the_data_sets_in_use_alone():
    brains = Experiment.read("registration", (), [("hcp", "HCP"), ("oasis", "OASIS")])
    assert brains.recipe.tests == {"oasis": {"dataset": "oasis", "root": "OASIS"}}
    assert brains.recipe.data["grouping"] == "registration"
    more = Experiment.read("registration", (), [("hcp", "HCP"), ("abide", "ABIDE")])
    assert more.recipe.tests["abide"]["grouping"] == "registration"
    assert more.table.centres == ("HCP", "AS", "OASIS")


def test_a_run_experiment_reads_as_itself(tmp_path):
    experiment = Experiment.read("ae-variants", ["train.iterations=10", "experiment.tier=1"])
    path = tmp_path / "experiment.toml"
    path.write_text(experiment_text(experiment))
    assert tomllib.loads(path.read_text(encoding="utf-8")) == experiment.tables
    again = expand(Experiment.read(path))
    assert [job.key for job in again.rows] == [job.key for job in expand(experiment).rows]
    assert again.rows[0].tier == "1"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["adapt.options.entropy.learning_rate=1e-2"], {"entropy"}),
        (["prior.stride=3"], {"strong baseline", "entropy", "foe-cnn"}),
        (["supervised.iterations=5"], {"supervised"}),
        (["train.iterations=7"], {"strong baseline", "entropy", "foe-cnn", "supervised"}),
        (["experiment.tier=2"], set()),
        (["train.checkpoint_every=5"], set()),
        (["train.device=cpu"], set()),
    ],
)
def test_a_setting_changes_the_jobs_that_depend_on_it_and_no_others(words, changed, tmp_path):
    path = write_experiment(tmp_path)
    before, after = (expand(Experiment.read(path, sets)) for sets in ((), words))
    pairs = list(zip(before.rows, after.rows, strict=True))
    assert {one.row for one, other in pairs if one.key != other.key} == changed
    # Prior and energy are there for all adapted rows, so that settings of theirs change as the keys do.
    assert {one.row for one, other in pairs if one.settings_key != other.settings_key} == changed


def test_what_a_scan_holds_is_part_of_its_jobs_and_where_it_lies_is_not(tmp_path):
    first = expand(Experiment.read(write_experiment(tmp_path / "one")))
    moved = expand(Experiment.read(write_experiment(tmp_path / "two")))
    assert [job.key for job in first.rows] == [job.key for job in moved.rows]
    scan = tmp_path / "two" / "north3_image.nii.gz"
    scan.write_bytes((tmp_path / "two" / "north2_image.nii.gz").read_bytes())
    other = expand(Experiment.read(tmp_path / "two" / "toy.toml"))
    pairs = zip(first.rows, other.rows, strict=True)
    assert {one.scan.title for one, two in pairs if one.key != two.key} == {"north north3_image"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["experiment.methods=['best']"], "Unknown row 'best'"),
        (["experiment.centres=['mars']"], "There is no centre 'mars'"),
        (["adapt.options.entropy.speed=1"], "Unknown setting 'speed' in the options of method entropy"),
        (["adapt.paper.speed=1"], "takes steps and batch, got speed"),
        (["prior.size=0"], "size of the prior must be above 0"),
        (["speed.of=1"], "unknown table \\[speed\\]"),
        (["train=1"], "train must be a table"),
        (["experiment.rows.mine.method='best'"], "Unknown method 'best'"),
        (["experiment.methods=1"], "must be a list with text each, got 1"),
    ],
)
def test_mistakes_are_told_before_anything_runs(words, told, tmp_path):
    path = write_experiment(tmp_path)
    with pytest.raises(InputError, match=told):
        expand(Experiment.read(path, words))


def test_what_is_no_experiment_is_told(tmp_path):
    (tmp_path / "plain.toml").write_text('[data]\ncohort = "spine"\n')
    with pytest.raises(InputError, match=r"has no table \[experiment\]"):
        Experiment.read(tmp_path / "plain.toml")
    with pytest.raises(InputError, match="There is no experiment nothing: .*prostate"):
        Experiment.read("nothing")


def test_an_experiment_can_adapt_with_the_preset_converged(tmp_path):
    sets = ["adapt.preset=converged", "adapt.converged.steps=7", "adapt.converged.batch=3"]
    jobs = expand(Experiment.read("kde", sets)).rows
    assert {(job.how.preset, job.how.steps, job.how.batch) for job in jobs} == {("converged", 7, 3)}
    assert {job.settings()["preset"] for job in jobs} == {"converged"}
    with pytest.raises(InputError, match="takes steps and batch, got slices"):
        Experiment.read("kde", ["adapt.converged.slices=2"])
