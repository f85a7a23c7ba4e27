"""The demonstration: simulated scans, adapted to, scored and drawn."""

import csv
import dataclasses
import re

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from sklearn.metrics import f1_score

from scantune import AdaptableNetwork, FieldOfExperts, Model
from scantune.adaptation.guard.base import Decision
from scantune.adaptation.scan_guard import ScanGuard
from scantune.adaptation.scan_run import ScanObserver
from scantune.backends.slices import Preprocessing
from scantune.cli.main import main
from scantune.demo import demo
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
    """An untrained network and its prior, on 4 mm pixels."""
    torch.manual_seed(3)
    network = AdaptableNetwork.default(**SHAPE).eval()
    preprocessing = Preprocessing(size=(52, 44), spacing=4.0, content="nonzero")
    cases = BRAIN.cases(BRAIN.source, "train", anatomy=anatomy, count=2, slices=3)
    prior = FieldOfExperts.fit(network, [preprocessing.prepare(case).volume for case in cases])
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
    showings = demo(model, out, centres=["pd-3T", "ir-3T", "pd-3T"], steps=1, anatomy=anatomy, observer=diary)
    return out, showings, diary


def test_the_source_centre_is_the_reference_and_each_chosen_centre_is_adapted_to_once(run):
    _, (source, *shifted), diary = run
    assert source.centre == BRAIN.source
    assert source.figure is None
    assert source.dice_before == source.dice_after
    assert source.result.decision.action == "left alone"
    assert [showing.centre for showing in shifted] == ["pd-3T", "ir-3T"]
    for showing in shifted:
        assert showing.result.facts["method"] == "foe-cnn-pca"
        assert showing.result.facts["preset"] == "fast"
        assert len(showing.result.trace) == 2
    decisions = [(showing.centre, showing.result.decision.action) for showing in shifted]
    assert diary.seen == [
        *(("pd-3T", "ir-3T"), "pd-3T", (1, 1), decisions[0]),
        *("ir-3T", (1, 1), decisions[1]),
    ]


def test_scans_are_those_of_the_cohorts_test_subjects_with_eight_slices(run, anatomy):
    for showing in run[1]:
        case = next(BRAIN.cases(showing.centre, "test", anatomy=anatomy, slices=8))
        np.testing.assert_array_equal(showing.result.case.image, case.image)
        np.testing.assert_array_equal(showing.result.case.reference, case.reference)


def test_dice_is_scored_on_the_scans_own_grid(run):
    for showing in run[1]:
        case, result = showing.result.case, showing.result
        for found, mean in ((result.source_prediction, showing.dice_before), (result.prediction, showing.dice_after)):
            assert found.shape == case.reference.shape
            wanted = f1_score(case.reference.ravel(), found.ravel(), labels=[1, 2, 3], average="macro")
            assert mean == pytest.approx(wanted, abs=1e-12)


def test_every_score_is_in_the_file(run):
    out, showings, _ = run
    with (out / "demo.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    found = {(row["site"], row["method"], row["structure"]): float(row["dice"]) for row in rows}
    wanted = {}
    for showing in showings:
        for method, scores in (("source", showing.before), ("foe-cnn-pca", showing.after)):
            if showing.figure or method == "source":
                wanted |= {(showing.centre, method, name): dice for name, dice in scores.items()}
    assert len(rows) == len(wanted) == 3 + 2 * 6
    assert found == pytest.approx(wanted, abs=1e-6)
    assert {row["cohort"] for row in rows} == {"contrasts"}
    assert tuple(rows[0]) == EVALUATION_COLUMNS[:7]


def test_each_shifted_centre_has_a_figure(run):
    out, (_, *shifted), _ = run
    assert sorted(path.name for path in out.iterdir()) == [
        *("demo.csv", "index.html", "ir-3T.png", "ir-3T_page.html", "pd-3T.png", "pd-3T_page.html"),
        "source-3T-mprage_page.html",
    ]
    for showing in shifted:
        assert showing.figure == out / f"{showing.centre}.png"
        picture = imread(showing.figure)[..., :3]
        assert picture.shape[1] > 1000
        assert np.median(picture) < 0.1  # dark ground


@pytest.mark.parametrize("name", ["mars-7T", BRAIN.source])
def test_an_unknown_centre_is_reported_with_the_known_ones(name, tmp_path):
    with pytest.raises(InputError, match=f"no shifted centre '{name}'.*Available: {', '.join(SHIFTED)}"):
        demo("brain", tmp_path, centres=["pd-3T", name])


def test_a_folder_that_is_not_writable_is_refused_before_the_model_is_loaded(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file cannot be written"):
        demo("no such model", tmp_path / "file")


def test_a_model_that_cannot_be_shown_is_refused(model, anatomy, tmp_path):
    other = dataclasses.replace(model, labels={"heart": 1})
    with pytest.raises(InputError, match="CSF = 1, GM = 2, WM = 3, but the model toy has heart = 1"):
        demo(other, tmp_path, anatomy=anatomy)
    bare = dataclasses.replace(model, prior=None)
    with pytest.raises(InputError, match="needs a prior"):
        demo(bare, tmp_path, anatomy=anatomy)


@pytest.fixture
def typed(model, anatomy, tmp_path, monkeypatch):
    """Words of the command, on a cohort whose anatomy is quickly made."""
    monkeypatch.setitem(COHORTS, "contrasts", dataclasses.replace(BRAIN, anatomy=lambda: anatomy))
    model.save(tmp_path / "toy.safetensors")
    words = ["demo", "--model", str(tmp_path / "toy.safetensors"), "--out", str(tmp_path / "out")]
    return [*words, "--centres", "pd-3T", "--steps", "1", "--device", "cpu"]


def test_the_command_shows_scores_and_the_next_command(typed, tmp_path, capsys):
    assert main(typed) == 0
    shown = capsys.readouterr()
    assert "Simulated scans" in shown.out
    assert re.search(rf"{BRAIN.source} +0\.\d{{3}} +\d\.\d{{4}} +not adapted", shown.out)
    assert re.search(
        r"pd-3T +0\.\d{3} -> 0\.\d{3} +\d\.\d{4} -> \d\.\d{4} +(adapted|unsolved|left alone) +\d+\.\d s", shown.out
    )
    assert f"Open {tmp_path / 'out' / 'index.html'}" in shown.out
    assert f"scantune adapt my_T1.nii.gz --model {tmp_path / 'toy.safetensors'} --out out" in shown.out
    table = re.split("^(?:pd-3T is unsolved|A figure)", shown.out, maxsplit=1, flags=re.MULTILINE)[0]
    assert "trained for." in table
    assert max(map(len, table.splitlines())) <= 80
    assert "1 of 1: pd-3T" in shown.err
    assert (tmp_path / "out" / "pd-3T.png").exists()


def test_the_command_says_why_a_scan_is_unsolved(typed, capsys, monkeypatch):
    decided = Decision("unsolved", "it got worse.")
    monkeypatch.setattr(ScanGuard, "decide", lambda *_, **__: decided)
    assert main(typed) == 0
    shown = capsys.readouterr().out
    before, after = re.search(r"pd-3T +(\S+) -> (\S+)", shown).groups()
    assert before == after
    assert "pd-3T is unsolved: it got worse." in shown


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
    _, showing = demo(model, tmp_path / "out", centres=["AS"], steps=1, slices=3, anatomy=anatomy)
    assert showing.centre == "AS"
    assert set(showing.before) == {"GM", "WM"}
    assert showing.figure.is_file()
