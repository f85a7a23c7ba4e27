"""The demonstration: simulated scans, adapted to, scored and drawn."""

import csv
import dataclasses
import html
import re

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from sklearn.metrics import f1_score

from scantune import AdaptableNetwork, FieldOfExperts, Model, load
from scantune.adaptation.guard.base import Decision
from scantune.adaptation.scan_guard import ScanGuard
from scantune.adaptation.scan_run import ScanObserver
from scantune.backends.slices import Preprocessing
from scantune.cli.main import main
from scantune.demo import RULE, Show, by_outcome, demo, summary
from scantune.errors import InputError
from scantune.evaluation.evaluate import EVALUATION_COLUMNS
from scantune.scans.case import LabelMap
from scantune.scans.io import write_image, write_labels
from scantune.simulate import COHORTS, label_maps
from scantune.training.registration import RegistrationNetworkSettings, RegistrationSettings, new_registration

SHAPE = {"classes": 4, "channels": 1, "dimensions": 2, "width": 2}
BRAIN = COHORTS["contrasts"]
SHIFTED = [name for name in BRAIN.centres if name != BRAIN.source]


@pytest.fixture(scope="module")
def anatomy():
    """Nested ellipsoids, 4 mm: CSF around grey around white matter."""
    x, y, z = np.meshgrid(*[4.0 * (np.arange(n) - (n - 1) / 2) for n in (40, 48, 28)], indexing="ij")
    radius = np.sqrt((x / 62) ** 2 + (y / 80) ** 2 + (z / 80) ** 2)
    labels = np.select([radius < 0.7, radius < 0.9, radius < 1], [1, 2, 13], 0).astype(np.uint8)
    return label_maps([LabelMap("toy", labels, np.diag([4.0, 4.0, 4.0, 1.0]))])


@pytest.fixture(scope="module")
def model(anatomy):
    """An untrained network and its prior, on 4 mm pixels, without readings of predictions: every scan is adapted to."""
    torch.manual_seed(3)
    network = AdaptableNetwork.default(**SHAPE).eval()
    preprocessing = Preprocessing(size=(52, 44), spacing=4.0, content="nonzero")
    cases = BRAIN.cases(BRAIN.source, "train", anatomy=anatomy, count=2, slices=3)
    prior = FieldOfExperts.fit(network, [preprocessing.prepare(case).volume for case in cases])
    prior = dataclasses.replace(prior, trained=None)
    return Model(network, dict(BRAIN.labels), preprocessing, {"kind": "unet", **SHAPE}, prior=prior, name="toy")


class Diary(ScanObserver):
    def __init__(self):
        self.seen = []

    def begin(self, names, at_once=1):
        self.seen.append(tuple(names))

    def start(self, name):
        self.seen.append(name)

    def step(self, name, step, steps):
        self.seen.append((step, steps))

    def end(self, outcome):
        self.seen.append((outcome.name, outcome.entry["decision"]))


@pytest.fixture(scope="module")
def run(model, anatomy, tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new"
    diary = Diary()
    scans = demo([model], out, centres=["pd-3T", "ir-3T", "pd-3T"], steps=1, anatomy=anatomy, observer=diary)
    return out, scans, diary


def test_the_training_centre_is_shown_first_then_each_chosen_centre_once(run):
    _, scans, diary = run
    assert [scan.centre for scan in scans] == [BRAIN.source, "pd-3T", "ir-3T"]
    assert [scan.at_home for scan in scans] == [True, False, False]
    for scan in scans:
        assert scan.result.facts["method"] == "foe-cnn-pca"
        assert scan.result.facts["preset"] == "fast"
        assert len(scan.result.trace) == 2
    names = tuple(f"toy-{scan.centre}" for scan in scans)
    told = (event for name, scan in zip(names, scans, strict=True) for event in (name, (1, 1), (name, scan.action)))
    assert diary.seen == [names, *told]


def test_scans_are_those_of_the_first_validation_people_with_eight_slices(run, anatomy):
    for scan in run[1]:
        case = next(BRAIN.cases(scan.centre, "validation", seed=1, anatomy=anatomy, slices=8))
        np.testing.assert_array_equal(scan.result.case.image, case.image)
        np.testing.assert_array_equal(scan.result.case.reference, case.reference)


def test_dice_is_scored_on_the_scans_own_grid(run):
    for scan in run[1]:
        case, result = scan.result.case, scan.result
        for found, mean in ((result.source_prediction, scan.dice_before), (result.prediction, scan.dice_after)):
            assert found.shape == case.reference.shape
            wanted = f1_score(case.reference.ravel(), found.ravel(), labels=[1, 2, 3], average="macro")
            assert mean == pytest.approx(wanted, abs=1e-12)


def test_every_score_is_in_the_file(run):
    out, scans, _ = run
    with (out / "demo.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    found = {(row["site"], row["method"], row["structure"]): float(row["dice"]) for row in rows}
    wanted = {
        (scan.centre, method, name): dice
        for scan in scans
        for method, scores in (("source", scan.before), ("foe-cnn-pca", scan.after))
        for name, dice in scores.items()
    }
    assert len(rows) == len(wanted) == 3 * 6
    assert found == pytest.approx(wanted, abs=1e-6)
    assert {row["cohort"] for row in rows} == {"contrasts"}
    assert tuple(rows[0]) == EVALUATION_COLUMNS[:7]


def test_each_scan_has_a_figure_and_a_page(run):
    out, scans, _ = run
    kinds = (".png", "_page.html")
    wanted = {f"toy-{scan.centre}{kind}" for scan in scans for kind in kinds}
    assert {path.name for path in out.iterdir()} == {"demo.csv", "index.html", *wanted}
    for scan in scans:
        picture = imread(out / f"toy-{scan.centre}.png")[..., :3]
        assert picture.shape[1] > 1000
        assert np.median(picture) < 0.1  # dark ground


def test_the_index_says_how_scans_were_drawn_and_shows_each_before_and_after_the_truth_beside_it(run):
    out, scans, _ = run
    page = html.unescape((out / "index.html").read_text("utf-8"))
    assert "examples of simulated scans" in page
    assert RULE in page
    for sentence in summary(scans):
        assert sentence in page
    for scan in scans:
        article = next(each for each in page.split("<article>")[1:] if scan.title in each)
        captions = re.findall("<figcaption>(.+?)</figcaption>", article)
        assert captions == ["Scan", "Before", "After", "Reference"]
        assert f'href="toy-{scan.centre}_page.html"' in article
        assert f"{scan.dice_before:.2f}" in article


def decided(scan, action, before, after, at_home=False):
    """The scan with another decision and other scores."""
    result = dataclasses.replace(scan.result, decision=Decision(action, "so."))
    return dataclasses.replace(scan, result=result, before={"GM": before}, after={"GM": after}, at_home=at_home)


def test_the_summary_counts_outcomes_and_changes_of_other_scanners(run):
    scan = run[1][0]
    scans = [
        *(decided(scan, "left alone", 0.99, 0.99, at_home=True), decided(scan, "left alone", 0.9, 0.9)),
        *(decided(scan, "adapted", 0.5, 0.8), decided(scan, "adapted", 0.7, 0.6), decided(scan, "unsolved", 0.3, 0.3)),
    ]
    counted, changed = summary(scans)
    assert counted == (
        "Of 4 shifted scans, 2 were adapted (Dice 0.60 before, 0.70 after), 1 was left alone (Dice 0.90) "
        "and 1 is flagged as unsolved (Dice 0.30 before, 0.30 after)."
    )
    assert changed == "Their mean Dice changed by +0.050, and that of the worst scan by -0.100."
    assert summary(scans[:1]) == []
    assert [(words.heading, len(found)) for words, found in by_outcome(scans)] == [
        *(("Adapted", 2), ("Left alone", 2), ("Flagged as unsolved", 1))
    ]


def test_every_centre_is_shown_unless_some_are_named():
    assert Show.of(load("brain")).centres == (BRAIN.source, *SHIFTED)


@pytest.mark.parametrize("name", ["mars-7T", BRAIN.source])
def test_an_unknown_centre_is_reported_with_the_known_ones(name, tmp_path):
    with pytest.raises(InputError, match=f"no shifted centre '{name}'.*Available: {', '.join(SHIFTED)}"):
        demo(["brain"], tmp_path, centres=["pd-3T", name])


def test_a_folder_that_is_not_writable_is_refused_before_the_model_is_loaded(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file cannot be written"):
        demo(["no such model"], tmp_path / "file")


def test_a_model_that_cannot_be_shown_is_refused(model, anatomy, tmp_path):
    other = dataclasses.replace(model, labels={"heart": 1})
    with pytest.raises(InputError, match="CSF = 1, GM = 2, WM = 3; GM = 1, WM = 2, but the model toy has heart = 1"):
        demo([other], tmp_path, anatomy=anatomy)
    bare = dataclasses.replace(model, prior=None)
    with pytest.raises(InputError, match="needs a prior"):
        demo([bare], tmp_path, anatomy=anatomy)


@pytest.fixture
def typed(model, anatomy, tmp_path, monkeypatch):
    """Words of the command, on a cohort whose anatomy is quickly made."""
    monkeypatch.setitem(COHORTS, "contrasts", dataclasses.replace(BRAIN, anatomy=lambda: anatomy))
    model.save(tmp_path / "toy.safetensors")
    words = ["demo", "--model", str(tmp_path / "toy.safetensors"), "--out", str(tmp_path / "out")]
    return [*words, "--centres", "pd-3T", "--steps", "1", "--device", "cpu"]


def test_the_command_shows_scores_in_groups_a_summary_and_the_next_command(typed, tmp_path, capsys):
    assert main(typed) == 0
    shown = capsys.readouterr()
    assert "The scans are simulated" in shown.out
    dice = r"0\.\d\d( -> 0\.\d\d)?"
    assert re.search(rf"toy, {BRAIN.source} \(training site\) +{dice} +- +\d+ s", shown.out)
    assert re.search(rf"toy, pd-3T +{dice} +- +\d+ s", shown.out)
    assert "Of 1 shifted scan, 1 " in shown.out
    assert f"Open {tmp_path / 'out' / 'index.html'}" in shown.out
    assert "scantune adapt my_T1.nii.gz --model brain --out out" in shown.out
    table = shown.out.split("Of 1 shifted scan", maxsplit=1)[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "2 of 2: toy-pd-3T" in shown.err
    assert (tmp_path / "out" / "toy-pd-3T.png").exists()


def test_the_command_flags_a_scan_that_is_unsolved(typed, capsys, monkeypatch):
    monkeypatch.setattr(ScanGuard, "decide", lambda *_, **__: Decision("unsolved", "it got worse."))
    assert main(typed) == 0
    shown = capsys.readouterr().out
    assert "Flagged as unsolved" in shown
    before, after = re.search(r"pd-3T +(\S+) -> (\S+)", shown).groups()
    assert before == after
    assert "1 is flagged as unsolved" in shown


def test_a_wrong_centre_is_one_line(typed, capsys):
    typed[typed.index("pd-3T")] = "mars-7T"
    assert main(typed) == 2
    assert capsys.readouterr().err.startswith("scantune: error: There is no shifted centre 'mars-7T'")


def test_a_registration_model_is_shown_on_the_cohort_for_registration(anatomy, tmp_path):
    cohort = COHORTS["registration"]
    atlas = next(cohort.cases(cohort.source, "train", anatomy=anatomy, count=1))
    write_image(tmp_path / "atlas.nii.gz", atlas.image, atlas)
    write_labels(tmp_path / "labels.nii.gz", atlas.reference, atlas)
    task = RegistrationSettings(atlas=str(tmp_path / "atlas.nii.gz"), atlas_labels=str(tmp_path / "labels.nii.gz"))
    preprocessing = Preprocessing(size=(48, 40), spacing=4.0, content="nonzero", slab=(40.0, 60.0))
    model = new_registration(task, RegistrationNetworkSettings(3, width=2), dict(cohort.labels), preprocessing)
    volume = preprocessing.prepare(atlas).volume
    model = dataclasses.replace(model, prior=FieldOfExperts.fit(model.network, [volume], task=model.task))
    _, scan = demo([model], tmp_path / "out", centres=["AS"], steps=1, slices=3, anatomy=anatomy)
    assert scan.centre == "AS"
    assert set(scan.before) == {"GM", "WM"}
    assert (tmp_path / "out" / f"{model.name}-AS.png").is_file()


def test_changes_of_brightness_are_those_of_the_training_sites_scan(model):
    spine = COHORTS["spine"]
    cord = dataclasses.replace(model, labels=dict(spine.labels))
    show = Show.of(cord)
    names = show.centres[len(spine.centres) :]
    assert names == ("gamma-0", "gamma-1", "gain-0", "gain-1", "curve-0", "curve-1", "inverted-0")
    home, *changed = (show.case(name, spine.anatomy(), 2) for name in (spine.source, *names))
    plain = home.image.astype(np.float64)
    unit = np.clip((plain - np.percentile(plain, 1)) / np.ptp(np.percentile(plain, (1, 99))), 0, 1)
    assert [case.name for case in changed] == [f"{home.name}_{name}" for name in names]
    for case in changed:
        np.testing.assert_array_equal(case.reference, home.reference)
        assert case.image.min() == 0
        assert case.image.max() == 1
    np.testing.assert_allclose(changed[-1].image, 1 - unit, atol=1e-6)
    bend = np.exp(1.8)
    assert min(np.abs(changed[0].image - unit**power).max() for power in (bend, 1 / bend)) < 1e-4
