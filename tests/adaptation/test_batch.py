"""Runs over many scans: what is skipped, what fails, and what the manifest tells."""

import json
from importlib import import_module
from types import SimpleNamespace

import pytest

from scantune.adaptation.batch import adapt_scans, name_scans
from scantune.adaptation.output_folder import OutputFolder
from scantune.adaptation.scan_run import ScanObserver
from scantune.adaptation.settings import AdaptSettings
from scantune.errors import InputError, ScanError
from scantune.scans.files import require_writable
from scantune.scans.manifest import OUTPUT_ENDINGS, read_manifest
from scantune.scans.names import images_in, scan_name

SETTINGS = AdaptSettings(method="source", steps=2)
MODEL = SimpleNamespace(
    name="toy",
    fingerprint="f1",
    labels={"background": 0, "gm": 1},
    task=SimpleNamespace(name="segmentation"),
    backend=SimpleNamespace(channels=1),
    prior=None,
    helpers={},
)


class FakeResult:
    """Stands for a result: writes two files that hold the scan's text."""

    def __init__(self, path):
        self.path = path

    def text(self):
        return self.path.read_text(encoding="utf-8")

    def write_segmentations(self, folder, naming=None):
        name = scan_name(self.path)
        outputs = {"segmentation": f"{name}_seg.nii.gz", "source": f"{name}_source_seg.nii.gz"}
        for file in outputs.values():
            (folder / file).write_text(self.text())
        return {"decision": "adapted", "reason": "It fell.", "energy_after": float("nan"), "outputs": outputs}

    def with_page(self, folder, entry):
        name = f"{scan_name(self.path)}_page.html"
        if self.text() == "no page":
            return entry | {"page_failure": "The page is too large."}
        (folder / name).write_text(self.text())
        return entry | {"outputs": entry["outputs"] | {"page": name}}


@pytest.fixture
def adapted(monkeypatch):
    """Replaces the adaptation; scans whose text is an error's name raise it. Lists the calls."""
    calls = []

    def adapt(model, path, *, on_step, **settings):
        calls.append(SimpleNamespace(name=scan_name(path), **settings))
        for step in range(settings["steps"]):
            on_step(step + 1, settings["steps"])
        errors = {"bad": ScanError(f"{path} is bad."), "crash": KeyError("oops"), "full": MemoryError("42 GB")}
        text = path.read_text(encoding="utf-8") if path.is_file() else "" if path.is_dir() else "bad"
        if text in errors:
            raise errors[text]
        return FakeResult(path)

    monkeypatch.setattr(import_module("scantune.adaptation.adapt"), "adapt", adapt)
    return calls


@pytest.fixture
def scan(tmp_path):
    def make(name, text="fine", folder="in"):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return make


def statuses(outcomes):
    return {outcome.name: outcome.status for outcome in outcomes}


def test_settings_reach_the_adaptation(adapted, scan, tmp_path):
    expected = {"method": "source", "preset": "paper", "steps": 3, "guard": False, "device": "cpu", "seed": 7}
    expected |= {"options": {"learning_rate": 0.5}, "stop": "never", "batch": 4}
    adapt_scans([scan("a.nii.gz")], MODEL, tmp_path / "out", AdaptSettings(**expected))
    assert vars(adapted[0]) == {"name": "a", **expected}


def test_the_manifest_tells_of_run_and_scans(adapted, scan, tmp_path):
    out = tmp_path / "deep" / "out"
    adapt_scans([scan("a.nii.gz"), scan("b.nii")], MODEL, out, SETTINGS)
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["format"] == 1
    assert manifest["model"] == {"name": "toy", "fingerprint": "f1"}
    assert manifest["labels"] == MODEL.labels
    assert manifest["settings"]["method"] == "source"
    assert list(manifest["scans"]) == ["a", "b"]
    assert "decision" not in manifest
    entry = manifest["scans"]["b"]
    assert (entry["status"], entry["decision"], entry["input"]) == ("done", "adapted", "b.nii")
    assert entry["energy_after"] is None
    assert sorted(path.name for path in out.iterdir()) == [
        *("a_page.html", "a_seg.nii.gz", "a_source_seg.nii.gz"),
        *("b_page.html", "b_seg.nii.gz", "b_source_seg.nii.gz", "index.html", "manifest.json"),
    ]


def test_the_decision_of_an_only_scan_stands_at_the_top(adapted, scan, tmp_path):
    adapt_scans([scan("a.nii.gz")], MODEL, tmp_path / "out", SETTINGS)
    manifest = read_manifest(tmp_path / "out")
    assert (manifest["decision"], manifest["reason"]) == ("adapted", "It fell.")


def test_no_path_of_the_machine_is_written(adapted, scan, tmp_path):
    adapt_scans([scan("a.nii.gz")], MODEL, tmp_path / "out", SETTINGS)
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")


def test_what_is_done_is_skipped_on_any_device(adapted, scan, tmp_path):
    paths = [scan("a.nii.gz"), scan("b.nii.gz")]
    adapt_scans(paths[:1], MODEL, tmp_path / "out", SETTINGS)
    on_cpu = AdaptSettings(method="source", steps=2, device="cpu")
    outcomes = adapt_scans(paths, MODEL, tmp_path / "out", on_cpu)
    assert statuses(outcomes) == {"a": "already done", "b": "done"}
    assert [call.name for call in adapted] == ["a", "b"]
    assert list(read_manifest(tmp_path / "out")["scans"]) == ["a", "b"]


def test_pages_can_be_left_out_and_asked_for_later(adapted, scan, tmp_path):
    paths, out = [scan("a.nii.gz")], tmp_path / "out"
    adapt_scans(paths, MODEL, out, SETTINGS, pages=False)
    assert not (out / "a_page.html").exists()
    assert statuses(adapt_scans(paths, MODEL, out, SETTINGS, pages=False)) == {"a": "already done"}
    assert statuses(adapt_scans(paths, MODEL, out, SETTINGS)) == {"a": "done"}
    assert (out / "a_page.html").exists()
    assert 'href="a_page.html"' in (out / "index.html").read_text(encoding="utf-8")
    assert statuses(adapt_scans(paths, MODEL, out, SETTINGS, pages=False)) == {"a": "already done"}


class Remarks(ScanObserver):
    def __init__(self):
        self.remarks = []

    def remark(self, sentence):
        self.remarks.append(sentence)


def test_an_index_of_another_program_is_left_alone_and_told_of(adapted, scan, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("mine")
    observer = Remarks()
    adapt_scans([scan("a.nii.gz")], MODEL, tmp_path / "out", SETTINGS, observer=observer)
    assert (tmp_path / "out" / "index.html").read_text(encoding="utf-8") == "mine"
    assert observer.remarks == ["There is no index of the pages: another program made index.html, which stays."]


def test_a_scan_whose_page_cannot_be_written_is_done_and_tried_again_for_its_page(adapted, scan, tmp_path):
    path, out = scan("a.nii.gz", "no page"), tmp_path / "out"
    for _ in range(2):
        (outcome,) = adapt_scans([path, path], MODEL, out, SETTINGS)
        assert (outcome.status, outcome.entry["page_failure"]) == ("done", "The page is too large.")
        entry = read_manifest(out)["scans"]["a"]
        assert (entry["status"], entry["decision"], entry["page_failure"]) == (
            "done",
            "adapted",
            "The page is too large.",
        )
        assert list(entry["outputs"]) == ["segmentation", "source"]
    assert statuses(adapt_scans([path], MODEL, out, SETTINGS, pages=False)) == {"a": "already done"}
    path.write_text("fine")
    adapt_scans([path], MODEL, out, SETTINGS, overwrite=True)
    assert "page_failure" not in read_manifest(out)["scans"]["a"]


def test_an_index_that_cannot_be_written_leaves_every_scan_done(adapted, scan, tmp_path, monkeypatch):
    def full(*_):
        raise InputError("The disk is full.")

    monkeypatch.setattr("scantune.pages.index.write_index", full)
    observer = Remarks()
    assert statuses(adapt_scans([scan("a.nii")], MODEL, tmp_path, SETTINGS, observer=observer)) == {"a": "done"}
    assert observer.remarks == ["The disk is full."]


def test_who_is_stopped_at_a_page_finds_the_segmentations_in_the_manifest(adapted, scan, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    path, out = scan("a.nii"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(FakeResult, "with_page", stopped)
        with pytest.raises(KeyboardInterrupt):
            adapt_scans([path], MODEL, out, SETTINGS)
    assert list(read_manifest(out)["scans"]["a"]["outputs"]) == ["segmentation", "source"]
    assert statuses(adapt_scans([path], MODEL, out, SETTINGS)) == {"a": "done"}


def test_a_page_of_an_earlier_result_goes_with_it(adapted, scan, tmp_path):
    path, out = scan("a.nii"), tmp_path / "out"
    adapt_scans([path], MODEL, out, SETTINGS)
    adapt_scans([path], MODEL, out, SETTINGS, overwrite=True, pages=False)
    assert sorted(file.name for file in out.glob("a_*")) == ["a_seg.nii.gz", "a_source_seg.nii.gz"]
    path.write_text("crash")
    (out / "a_source_seg.nii.gz").unlink()
    adapt_scans([path], MODEL, out, SETTINGS, overwrite=True)
    assert (out / "a_seg.nii.gz").read_text(encoding="utf-8") == "fine"  # a failure removes nothing


def other_settings(out, paths):
    return adapt_scans(paths, MODEL, out, AdaptSettings(method="source", steps=2, seed=1))


def other_options(out, paths):
    return adapt_scans(paths, MODEL, out, AdaptSettings(method="source", steps=2, options={"moving": "all"}))


def other_model(out, paths):
    return adapt_scans(paths, SimpleNamespace(**vars(MODEL) | {"fingerprint": "f2"}), out, SETTINGS)


def lost_output(out, paths):
    (out / "a_source_seg.nii.gz").unlink()
    return adapt_scans(paths, MODEL, out, SETTINGS)


def told_to_overwrite(out, paths):
    return adapt_scans(paths, MODEL, out, SETTINGS, overwrite=True)


@pytest.mark.parametrize("again", [other_settings, other_options, other_model, lost_output, told_to_overwrite])
def test_what_would_come_out_differently_is_done_again(adapted, scan, tmp_path, again):
    paths = [scan("a.nii.gz")]
    adapt_scans(paths, MODEL, tmp_path / "out", SETTINGS)
    assert statuses(again(tmp_path / "out", paths)) == {"a": "done"}
    assert len(adapted) == 2


def test_another_scan_of_the_same_name_does_not_pass_for_done_nor_replace_it(adapted, scan, tmp_path):
    first, second = scan("a.nii.gz", "north"), scan("a.nii.gz", "south", folder="other")
    adapt_scans([first], MODEL, tmp_path / "out", SETTINGS)
    (outcome,) = adapt_scans([second], MODEL, tmp_path / "out", SETTINGS)
    assert outcome.is_bad_input
    assert "another scan named a" in outcome.entry["reason"]
    assert (tmp_path / "out" / "a_seg.nii.gz").read_text(encoding="utf-8") == "north"
    adapt_scans([second], MODEL, tmp_path / "out", SETTINGS, overwrite=True)
    assert (tmp_path / "out" / "a_seg.nii.gz").read_text(encoding="utf-8") == "south"


def test_files_of_another_origin_are_not_replaced(adapted, scan, tmp_path):
    path = scan("a.nii.gz")
    by_hand = scan("a_seg.nii.gz", "by hand")
    (outcome,) = adapt_scans([path], MODEL, path.parent, SETTINGS)
    assert outcome.is_bad_input
    assert by_hand.read_text(encoding="utf-8") == "by hand"
    adapt_scans([path], MODEL, path.parent, SETTINGS, overwrite=True)
    assert by_hand.read_text(encoding="utf-8") == "fine"


@pytest.mark.parametrize("kind", OUTPUT_ENDINGS)
@pytest.mark.parametrize("earlier", [False, True])
def test_no_kind_of_file_that_a_run_may_write_is_replaced(adapted, scan, tmp_path, kind, earlier):
    path, out = scan("a.nii.gz"), tmp_path / "out"
    if earlier:
        adapt_scans([path], MODEL, out, SETTINGS, pages=False)
    by_hand = scan(f"a_{OUTPUT_ENDINGS[kind]}", "by hand", folder="out")
    (outcome,) = adapt_scans([path], MODEL, out, AdaptSettings(method="source", steps=1))
    if earlier and kind in ("segmentation", "source"):  # the manifest tells of these
        assert outcome.status == "done"
        return
    assert outcome.is_bad_input
    assert f"{by_hand} already exists" in outcome.entry["reason"]
    assert by_hand.read_text(encoding="utf-8") == "by hand"


def test_outputs_of_a_killed_run_that_the_manifest_does_not_list_are_replaced(adapted, scan, tmp_path, monkeypatch):
    path, out = scan("a.nii.gz"), tmp_path / "out"

    def die(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("scantune.adaptation.output_folder.OutputFolder.note", die)
        with pytest.raises(SystemExit):
            adapt_scans([path], MODEL, out, SETTINGS)
    assert (out / "a_seg.nii.gz").exists()
    assert not (out / "manifest.json").exists()
    assert statuses(adapt_scans([path], MODEL, out, SETTINGS)) == {"a": "done"}
    assert not [file for file in out.iterdir() if file.name.startswith(".")]


def test_a_failure_halfway_may_be_tried_again(adapted, scan, tmp_path, monkeypatch):
    path, out = scan("a.nii.gz"), tmp_path / "out"

    def half(result, folder, naming=None):
        (folder / "a_seg.nii.gz").write_text("half")
        raise ScanError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(FakeResult, "write_segmentations", half)
        assert statuses(adapt_scans([path], MODEL, out, SETTINGS)) == {"a": "failed"}
    assert statuses(adapt_scans([path], MODEL, out, SETTINGS)) == {"a": "done"}


def test_a_bad_scan_does_not_stop_the_others(adapted, scan, tmp_path):
    paths = [scan("a.nii", "bad"), scan("b.nii", "crash"), scan("c.nii", "full"), tmp_path / "lost.nii", scan("e.nii")]
    outcomes = adapt_scans(paths, MODEL, tmp_path / "out", SETTINGS)
    assert [outcome.status for outcome in outcomes] == ["failed"] * 4 + ["done"]
    assert [outcome.is_bad_input for outcome in outcomes] == [True, False, False, True, False]
    told = {name: entry["reason"] for name, entry in read_manifest(tmp_path / "out")["scans"].items()}
    assert told["a"] == f"{paths[0]} is bad."
    assert "unforeseen" in told["b"]
    assert "KeyError" in told["b"]
    assert "more memory" in told["c"]
    assert not list((tmp_path / "out").glob("[abc]_*"))


def test_failed_scans_are_tried_again(adapted, scan, tmp_path):
    path = scan("a.nii", "crash")
    adapt_scans([path], MODEL, tmp_path / "out", SETTINGS)
    path.write_text("fine")
    assert statuses(adapt_scans([path], MODEL, tmp_path / "out", SETTINGS)) == {"a": "done"}
    assert read_manifest(tmp_path / "out")["decision"] == "adapted"


def test_results_of_an_earlier_run_stay_described_after_a_failure(adapted, scan, tmp_path):
    path = scan("a.nii")
    adapt_scans([path], MODEL, tmp_path / "out", SETTINGS)
    path.write_text("crash")
    (outcome,) = adapt_scans([path], MODEL, tmp_path / "out", SETTINGS, overwrite=True)
    assert outcome.status == "failed"
    entry = read_manifest(tmp_path / "out")["scans"]["a"]
    assert entry["status"] == "done"
    assert entry["later_failure"] == outcome.entry["reason"]


def test_an_interruption_leaves_finished_scans_in_the_manifest(adapted, scan, tmp_path):
    class Impatient(ScanObserver):
        def start(self, name):
            if name == "b":
                raise KeyboardInterrupt

    paths = [scan("a.nii"), scan("b.nii")]
    with pytest.raises(KeyboardInterrupt):
        adapt_scans(paths, MODEL, tmp_path / "out", SETTINGS, observer=Impatient())
    assert list(read_manifest(tmp_path / "out")["scans"]) == ["a"]


def test_observers_see_everything_in_order(adapted, scan, tmp_path):
    class Diary(ScanObserver):
        def __init__(self):
            self.lines = []

        def begin(self, names, at_once=1):
            self.lines.append(("begin", *names))

        def start(self, name):
            self.lines.append(("start", name))

        def step(self, name, step, steps):
            self.lines.append((step, steps))

        def end(self, outcome):
            self.lines.append(("end", outcome.name, outcome.status))

    diary = Diary()
    adapt_scans([scan("a.nii")], MODEL, tmp_path / "out", SETTINGS)
    adapt_scans([scan("a.nii"), scan("b.nii")], MODEL, tmp_path / "out", SETTINGS, observer=diary)
    assert diary.lines == [("begin", "b"), ("start", "b"), (1, 2), (2, 2), ("end", "b", "done")]


def test_a_scan_that_is_given_twice_counts_once(scan):
    path = scan("a.nii")
    assert list(name_scans([path, path.parent / ".." / "in" / "a.nii"])) == ["a"]


@pytest.mark.parametrize(("paths", "sentence"), [([], "no scan"), (["nowhere/a.nii"], "nowhere/a.nii does not exist")])
def test_no_scan_at_all_is_told_at_once(tmp_path, paths, sentence):
    with pytest.raises(InputError, match=sentence):
        adapt_scans(paths, MODEL, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"method": "magic"},
            "Unknown method 'magic'. Available: source, batchnorm, entropy, dae, ae, foe-cnn, foe-cnn-pca",
        ),
        ({"preset": "slow"}, "Unknown preset 'slow'. Available: fast, paper, converged"),
        ({"steps": -1}, "steps must be 0 or more, got -1"),
        ({"device": "abacus"}, "abacus"),
        ({"method": "foe-cnn"}, "needs a prior"),
        ({"options": {"speed": 3}}, "Unknown setting 'speed' in the options of method source"),
    ],
)
def test_settings_that_cannot_work_are_told_before_the_first_scan(adapted, scan, tmp_path, wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        adapt_scans([scan("a.nii")], MODEL, tmp_path / "out", AdaptSettings(**{"method": "source"} | wrong))
    assert not adapted


def test_a_gpu_that_is_not_there_is_told(adapted, scan, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="device cuda:99 .* no GPU .* use auto or cpu"):
        adapt_scans([scan("a.nii")], MODEL, tmp_path / "out", AdaptSettings(method="source", device="cuda:99"))


def test_the_gpus_that_are_there_are_named(adapted, scan, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(InputError, match="cuda:99 .* finds only cuda:0, cuda:1 .* use auto, cuda:0, cuda:1 or cpu"):
        adapt_scans([scan("a.nii")], MODEL, tmp_path / "out", AdaptSettings(method="source", device="cuda:99"))


def test_a_folder_that_cannot_be_written_is_told_before_the_work(adapted, scan, tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(InputError, match=f"{out} cannot be written"):
            adapt_scans([scan("a.nii")], MODEL, out, SETTINGS)
    assert not adapted


def test_checking_a_folder_leaves_nothing_in_it(tmp_path):
    require_writable(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{broken", "something else"), ('["mine"]', "something else"), ('{"format": 2, "scans": {}}', "format 2")],
)
def test_a_manifest_of_another_program_is_not_touched(adapted, scan, tmp_path, text, sentence):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=sentence):
        adapt_scans([scan("a.nii")], MODEL, tmp_path, SETTINGS)
    assert (tmp_path / "manifest.json").read_text(encoding="utf-8") == text


def test_an_entry_without_outputs_holds_nothing(tmp_path):
    folder = OutputFolder(tmp_path)
    assert folder.entry("a") == {}
    assert not folder.holds({})


def test_a_folder_that_cannot_be_listed_is_told(tmp_path):
    with pytest.raises(InputError, match="lost cannot be read"):
        images_in(tmp_path / "lost")


def test_a_dicom_folder_is_done_when_its_files_are_the_same(adapted, scan, tmp_path, monkeypatch):
    folder = scan("IM1").parent
    monkeypatch.setattr(FakeResult, "text", lambda self: "a series")
    for expected in ("done", "already done"):
        assert statuses(adapt_scans([folder], MODEL, tmp_path / "out", SETTINGS)) == {"in": expected}
    scan("IM2")
    (outcome,) = adapt_scans([folder], MODEL, tmp_path / "out", SETTINGS)
    assert "another scan named in" in outcome.entry["reason"]
