"""The command line, called in-process: exit codes, what is printed, and the whole way from scan to scores."""

import csv
import json
import re
import runpy
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module

import nibabel
import numpy as np
import pytest
import torch
from rich.table import Table

from scantune import AdaptableNetwork, FieldOfExperts, Model, __version__
from scantune.adaptation.scan_run import Outcome
from scantune.backends.slices import Preprocessing
from scantune.cli.adapt import BY_TASK, Adapt, Display, expected_seconds, outcome_table
from scantune.cli.console import console, counted, duration, say
from scantune.cli.evaluate import parse_labels
from scantune.cli.exits import complain
from scantune.cli.main import COMMANDS, main
from scantune.errors import InputError
from scantune.methods import METHODS
from scantune.tasks import TASKS

AFFINE = np.array([[0.0, 1.5, 0.0, -9.0], [-1.5, 0.0, 0.0, 4.0], [0.0, 0.0, 4.0, 2.0], [0.0, 0.0, 0.0, 1.0]])


def picture(seed=0, shape=(20, 18, 3)):
    rng = np.random.default_rng(seed)
    image = rng.random(shape).astype(np.float32)
    image[6:14, 5:12] += 2.0
    return image


def write(path, volume):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(volume, AFFINE), path)
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model file with an untrained, narrow network and its prior, by which every scan is adapted to."""
    torch.manual_seed(0)
    shape = {"classes": 3, "channels": 1, "dimensions": 2, "width": 2}
    network = AdaptableNetwork.default(**shape).eval()
    volumes = [torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    toy = Model(
        network=network,
        labels={"background": 0, "disc": 1, "ring": 2},
        backend=Preprocessing(size=(32, 32)),
        architecture={"kind": "unet", **shape},
        prior=replace(FieldOfExperts.fit(network, volumes), trained=None),
    )
    path = tmp_path_factory.mktemp("model") / "toy.safetensors"
    toy.save(path)
    return str(path)


def error_line(capsys):
    """The one line on the error stream."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("scantune: error: ")
    return lines[0]


def test_from_scans_to_scores(model, tmp_path, capsys):
    scans = [write(tmp_path / "in" / f"sub-{number}.nii.gz", picture(number)) for number in (1, 2)]
    out = tmp_path / "out"
    assert main(["adapt", *scans, "--model", model, "--out", str(out), "--steps", "2", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "sub-1" in shown.out
    assert "->" in shown.out
    assert str(out) in shown.out
    assert "2 scans to adapt to: about" in shown.err
    assert "Traceback" not in shown.err

    for name in ("sub-1_seg", "sub-1_source_seg", "sub-2_seg", "sub-2_source_seg"):
        image = nibabel.load(out / f"{name}.nii.gz")
        assert image.shape == (20, 18, 3)
        assert np.allclose(image.affine, AFFINE, atol=1e-6)
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    entry = manifest["scans"]["sub-1"]
    assert (entry["method"], entry["preset"], entry["steps"], entry["seed"]) == ("foe-cnn-pca", "fast", 2, 0)
    assert entry["decision"] in ("adapted", "unsolved")
    assert entry["energy_before"] > 0
    labels = np.asarray(nibabel.load(out / "sub-1_seg.nii.gz").dataobj)
    assert entry["volumes_ml"]["disc"] == pytest.approx((labels == 1).sum() * 9e-3, abs=1e-3)

    truth = write(tmp_path / "truth" / "sub-1_labels.nii.gz", labels)
    scores = tmp_path / "scores.csv"
    assert main(["evaluate", str(out), str(tmp_path / "truth"), "--out", str(scores)]) == 0
    shown = capsys.readouterr()
    assert "Without a reference, not scored: sub-2_seg.nii.gz, sub-2_source_seg.nii.gz" in shown.err
    assert truth not in shown.err
    with scores.open() as stream:
        rows = list(csv.DictReader(stream))
    adapted = [row for row in rows if row["method"] == "foe-cnn-pca"]
    assert [row["structure"] for row in adapted] == ["disc", "ring"]
    assert {row["dice"] for row in adapted} <= {"1", "nan"}
    assert {row["method"] for row in rows} == {"foe-cnn-pca", "source"}


def test_the_help_of_adapt_names_the_method_of_every_task():
    default = BY_TASK.split("; for registration ")
    assert default == [TASKS[name].method for name in ("segmentation", "registration")]


def test_a_methods_options_are_used_recorded_and_decide_the_result(model, tmp_path, capsys):
    scan = write(tmp_path / "a.nii.gz", picture())
    out = tmp_path / "out"
    words = ["adapt", scan, "--model", model, "--out", str(out), "--steps", "1", "--no-guard", "--options"]
    given = ["moving=norm-affine", "weight=0", "learning_rate=1e-3", "layers=up.2.second.conv"]
    assert main([*words, *given]) == 0
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    asked = {"moving": "norm-affine", "weight": 0, "learning_rate": 0.001, "layers": "up.2.second.conv"}
    assert manifest["settings"]["options"] == manifest["scans"]["a"]["settings"]["options"] == asked
    used = manifest["scans"]["a"]["options"]
    assert {name: used[name] for name in asked} == asked
    assert used["divergence"] == "kl"
    capsys.readouterr()
    assert main([*words, *given]) == 0
    assert "earlier run" in capsys.readouterr().out
    assert main([*words, *given[:-1]]) == 0
    assert "earlier run" not in capsys.readouterr().out


def test_a_page_that_cannot_be_written_is_a_remark(model, tmp_path, capsys, monkeypatch):
    scans = [write(tmp_path / "in" / f"{name}.nii.gz", picture()) for name in ("a", "b")]
    words = ["adapt", *scans, "--model", model, "--out", str(tmp_path / "out"), "--method", "source"]
    written = import_module("scantune.pages").write_case

    def unless_a(path, view):
        if view.name == "a":
            raise InputError(f"{path} cannot be written (Disk full).")
        written(path, view)

    monkeypatch.setattr("scantune.pages.write_case", unless_a)
    assert main(words) == 0
    told = capsys.readouterr()
    assert f"a is done, but has no page: {tmp_path / 'out' / 'a_page.html'} cannot be written (Disk full)." in told.out
    assert f"Look at them: {tmp_path / 'out' / 'index.html'}" in told.out
    assert "failed" not in told.out + told.err
    index = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "a_page.html cannot be written (Disk full)" in index
    assert 'href="b_page.html"' in index and 'href="a_page.html"' not in index

    (tmp_path / "out" / "index.html").unlink()
    (tmp_path / "out" / "index.html").mkdir()
    assert main([*words, "--overwrite"]) == 0
    told = capsys.readouterr()
    assert "another program made index.html, which stays" in told.err
    assert f"Look at them: {tmp_path / 'out' / '*_page.html'}" in told.out


def test_a_second_run_has_nothing_to_do(model, tmp_path, capsys):
    scan = write(tmp_path / "a.nii.gz", picture())
    words = ["adapt", scan, "--model", model, "--out", str(tmp_path / "out"), "--method", "source"]
    assert main(words) == 0
    made = (tmp_path / "out" / "a_seg.nii.gz").stat().st_mtime_ns
    assert main(words) == 0
    assert "earlier run" in capsys.readouterr().out
    assert (tmp_path / "out" / "a_seg.nii.gz").stat().st_mtime_ns == made
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / "out" / "a_seg.nii.gz").stat().st_mtime_ns > made


def test_a_folder_of_images_is_adapted_to_whole_and_bad_scans_are_listed(model, tmp_path, capsys):
    write(tmp_path / "in" / "good.nii.gz", picture())
    write(tmp_path / "in" / "flat [1].nii.gz", picture() * 0)
    (tmp_path / "in" / "torn.nii.gz").write_bytes(b"no image")
    words = ["adapt", str(tmp_path / "in"), "--model", model, "--out", str(tmp_path / "out")]
    assert main([*words, "--method", "source"]) == 3
    shown = capsys.readouterr()
    assert "scantune: error: 2 of 3 scans failed." in shown.err
    assert "  flat [1]: " in shown.err
    assert "every voxel is 0" in shown.err
    assert "cannot be read as an image" in shown.err
    assert "Traceback" not in shown.err
    assert sorted(path.name for path in (tmp_path / "out").glob("*.nii.gz")) == [
        *("good_seg.nii.gz", "good_source_seg.nii.gz")
    ]


def test_scans_that_are_all_bad_are_the_users_fault(model, tmp_path, capsys):
    scan = write(tmp_path / "a.nii.gz", picture() * np.nan)
    assert main(["adapt", scan, "--model", model, "--out", str(tmp_path / "out"), "--method", "source"]) == 2
    assert "NaN" in error_line(capsys)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]


def test_scans_of_a_site_are_not_adapted_to_side_by_side(model, tmp_path, capsys):
    scans = [write(tmp_path / "in" / f"{name}.nii.gz", picture()) for name in "ab"]
    words = ["adapt", *scans, "--model", model, "--out", str(tmp_path / "out"), "--site", "--workers", "2"]
    assert main(words) == 2
    assert "--site goes with one worker, got 2" in error_line(capsys)
    assert list((tmp_path / "out").iterdir()) == []


def bad_words(toy, tmp_path, **wrong):
    """Words of `adapt` with some of them wrong."""
    options = {"model": toy, "out": str(tmp_path / "out"), "method": "source"} | wrong
    return ["adapt", *(word for name, value in options.items() for word in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"method": "magic"},
            "Unknown method 'magic'. Available: source, batchnorm, entropy, dae, ae, foe-cnn, foe-cnn-pca, instance.",
        ),
        ({"device": "abacus"}, "abacus"),
        ({"model": "nothing.safetensors"}, "nothing.safetensors"),
        ({"steps": "-3"}, "0 or more, got -3"),
        (
            {"options": "speed=3"},
            "Unknown setting 'speed' in the options of method source; known: moving, learning_rate, update.",
        ),
        (
            {"options": "moving=feet"},
            "moving in the options of method source must be one of 'normalizer', 'norm-affine'",
        ),
        (
            {"options": "learning_rate=fast"},
            "learning_rate in the options of method source must be a number, got 'fast'",
        ),
        ({"options": "moving"}, "--options takes NAME=VALUE, such as learning_rate=1e-3, but got 'moving'."),
        ({"options": "moving=all", "method": "magic"}, "Unknown method 'magic'."),
    ],
)
def test_wrong_settings_are_told_in_one_line(model, tmp_path, capsys, wrong, told):
    command, *words = bad_words(model, tmp_path, **wrong)
    assert main([command, write(tmp_path / "a.nii.gz", picture()), *words]) == 2
    assert told in error_line(capsys)


def test_a_gpu_that_is_not_there_is_told_in_one_line(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    scan = write(tmp_path / "a.nii.gz", picture())
    assert main([*bad_words(model, tmp_path, device="cuda:99"), scan]) == 2
    told = "The device cuda:99 is not available, as PyTorch finds no GPU on this machine; use auto or cpu."
    assert error_line(capsys) == f"scantune: error: {told}"


def test_bad_paths_are_told_in_one_line(model, tmp_path, capsys):
    assert main([*bad_words(model, tmp_path), str(tmp_path / "lost.nii")]) == 2
    assert "lost.nii does not exist" in error_line(capsys)
    assert main(bad_words(model, tmp_path)) == 2
    assert "no scan" in error_line(capsys)
    scan = write(tmp_path / "a.nii.gz", picture())
    assert main([*bad_words(model, tmp_path, out=scan), scan]) == 2
    assert "cannot be written" in error_line(capsys)
    assert main(["evaluate", scan, str(tmp_path / "lost.nii")]) == 2
    assert "lost.nii does not exist" in error_line(capsys)
    assert main(["info", scan]) == 2
    assert scan in error_line(capsys)


@pytest.mark.parametrize("words", [["frob"], ["adapt", "x.nii"], ["adapt", "x", "--preset", "slow"], ["evaluate"]])
def test_mistyped_commands_exit_with_2(words, capsys):
    assert main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_info_tells_what_is_in_a_model_file(model, capsys):
    assert main(["info", model]) == 0
    told = capsys.readouterr().out
    assert "disc = 1" in told
    assert "3 subjects" in told


def test_pairs_that_cannot_be_scored_are_listed(tmp_path, capsys):
    labels = np.ones((4, 4, 4), np.uint8)
    for name in "ab":
        write(tmp_path / "pred" / f"{name}_seg.nii.gz", labels)
    write(tmp_path / "ref" / "a.nii.gz", labels)
    write(tmp_path / "ref" / "b.nii.gz", labels[:2])
    folders = [str(tmp_path / "pred"), str(tmp_path / "ref")]
    assert main(["evaluate", *folders, "--labels", "cube=1", "hole=2"]) == 3
    shown = capsys.readouterr()
    assert "cube" in shown.out
    assert "1.000" in shown.out
    assert "1 of 2 pairs could not be scored" in shown.err
    assert "b_seg.nii.gz: " in shown.err


def test_labels_are_names_with_values():
    assert parse_labels(["gm=2", "a=b=3", "core=1,3"]) == {"gm": 2, "a=b": 3, "core": (1, 3)}
    assert parse_labels([]) is None


@pytest.mark.parametrize(
    "words", [["gm"], ["=2"], ["gm=two"], ["gm=-1"], ["gm=1,"], ["gm=1", "gm=2"], ["gm=1", "wm=1"]]
)
def test_labels_that_are_not_are_refused(words, capsys):
    with pytest.raises(InputError, match=words[-1]):
        parse_labels(words)


def outcome(decision="adapted", status="done", **entry):
    return Outcome("a", status, {"decision": decision, "reason": "so", **entry})


BAD, CRASHED = outcome("failed", "failed"), outcome("failed", "failed", traceback=["oops"])
BACK, WARNED = outcome("unsolved"), outcome("left alone", warnings=["The segmentation is empty."])


@pytest.mark.parametrize(
    ("outcomes", "strict", "code"),
    [
        ([outcome(), outcome("left alone")], True, 0),
        ([outcome(), BACK], False, 0),
        ([outcome(), BACK], True, 3),
        ([outcome("unsolved", "already done")], True, 3),
        ([outcome(), WARNED], False, 0),
        ([outcome(), WARNED], True, 3),
        ([outcome(), BAD], False, 3),
        ([BAD, BAD], False, 2),
        ([BAD, CRASHED], False, 3),
        ([CRASHED], False, 3),
    ],
)
def test_exit_codes(outcomes, strict, code):
    command = Adapt(scans=(), model="", out=None, strict=strict)
    assert command._exit_code(outcomes) == code


def test_every_method_is_named_in_the_help(capsys):
    assert main(["adapt", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in METHODS)
    assert "TTA" not in told


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_fits_a_terminal(words, capsys):
    assert main(words) == 0
    # The first line names every command between braces, which the parser does not break.
    usage, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 82
    assert len(re.sub(r"\{.*\}", "COMMAND", usage)) <= 82


def test_a_mistyped_command_gets_a_suggestion(capsys):
    assert main(["adpt", "scan.nii.gz"]) == 2
    assert "there is no command 'adpt'. Did you mean adapt?" in capsys.readouterr().err
    assert main(["zzz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("words", ["info brain", "--help", "adapt --help"])
def test_a_reader_that_has_seen_enough_is_no_error(words):
    script = f"import sys; from scantune.cli.main import main; sys.exit(main({words.split()!r}))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        told = run.stderr.read()
        assert run.wait(60) == 0
    assert told == b""


def test_escape_codes_in_names_do_not_reach_the_terminal(capsys):
    bad = "a\x1b[31mred\x9b2J\nb"
    complain(bad)
    say(console(stderr=True), bad)
    table = Table()
    table.add_column(bad)
    console(stderr=True).print(table)
    told = capsys.readouterr().err
    assert not {"\x1b", "\x9b"} & set(told)
    assert told.count("a\\x1b[31mred\\x9b2J") == 3


def test_quiet_prints_nothing_but_errors(model, tmp_path, capsys):
    scans = [write(tmp_path / f"{name}.nii.gz", picture(seed)) for seed, name in enumerate("ab")]
    assert main(["adapt", *scans, "--model", model, "--out", str(tmp_path / "out"), "--steps", "1", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_a_log_gets_a_line_for_each_scan_and_each_step_on_request(model, tmp_path, capsys):
    scans = [write(tmp_path / f"{name}.nii.gz", picture(seed)) for seed, name in enumerate("ab")]
    assert main(["adapt", *scans, "--model", model, "--out", str(tmp_path / "out"), "--steps", "1", "--verbose"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines if " of 2: " in line] == ["1 of 2", "2 of 2"]
    assert any("step 1 of" in line for line in lines)


def test_no_words_show_the_help(capsys):
    assert main([]) == 2
    assert "adapt" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"scantune {__version__}\n"


def test_help_is_quick_and_imports_nothing_heavy():
    heavy = {"torch", "numpy", "nibabel", "SimpleITK", "monai", "scipy", "matplotlib"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "scantune", "--help"],
        capture_output=True,
        encoding="utf-8",  # whatever locale SimpleITK has set meanwhile
        check=True,
    )
    assert "adapt" in done.stdout
    imported = {line.rsplit("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "scantune.cli.main" in imported
    assert not heavy & imported
    assert time.perf_counter() - started < 2  # 0.25 s on an idle machine; the margin is for busy ones


def test_the_package_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scantune", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("scantune", run_name="__main__")
    assert end.value.code == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [(KeyboardInterrupt(), 130, "stopped"), (RuntimeError("gremlins"), 1, "RuntimeError: gremlins")],
)
def test_interruptions_and_surprises_are_one_line(monkeypatch, capsys, error, code, told):
    def fail(*_):
        raise error

    monkeypatch.delenv("SCANTUNE_TRACEBACK", raising=False)
    monkeypatch.setattr(import_module("scantune.model.model"), "load", fail)
    assert main(["info", "brain"]) == code
    assert told in error_line(capsys)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (
            TypeError("too long\nException raised from unpack at x.h:79\nframe #0: y"),
            1,
            "(TypeError: too long). Please",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 64 bytes"), 2, "more memory than there is"),
        (MemoryError(), 2, "more memory than there is (no message)"),
        (RecursionError("x" * 5000), 1, "RecursionError: xxx"),
        (SystemExit("a library's words"), 1, ""),
    ],
)
def test_whatever_a_command_ends_by_is_a_line_and_a_code(monkeypatch, capsys, error, code, told):
    def fail(*_):
        raise error

    monkeypatch.delenv("SCANTUNE_TRACEBACK", raising=False)
    monkeypatch.setattr(import_module("scantune.model.model"), "load", fail)
    assert main(["info", "brain"]) == code
    words = capsys.readouterr().err
    assert told in words
    assert words.count("\n") <= 1
    assert len(words) < 600
    assert "frame #" not in words


RECIPE = """[data]
images = "nowhere/*_image.nii.gz"
labels = "nowhere/*_labels.nii.gz"
structures = {{ disc = {label} }}
[network]
width = {width}
classes = {classes}
[train]
batch = {batch}
"""


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"classes": 2**64}, "below 2^63"),
        ({"classes": 257}, "2 to 256 classes"),
        ({"classes": 10**9, "label": 10**8}, "2 to 256 classes"),
        ({"width": 10**6}, "a width of 1 to 1024"),
        ({"width": -(2**70)}, "below 2^63"),
        ({"batch": 2**63}, "below 2^63"),
    ],
)
def test_numbers_that_no_network_can_have_are_told_before_it_is_built(tmp_path, capsys, entry, told):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(**{"classes": 2, "width": 2, "batch": 1, "label": 1} | entry))
    assert main(["train", str(recipe), "--out", str(tmp_path / "m.safetensors")]) == 2
    assert told in error_line(capsys)


def test_the_traceback_of_a_surprise_can_be_had(monkeypatch):
    monkeypatch.setenv("SCANTUNE_TRACEBACK", "1")
    monkeypatch.setattr(import_module("scantune.model.model"), "load", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["info", "brain"])


def test_the_time_is_estimated_from_the_first_steps():
    assert expected_seconds([10.0, 13.0, 14.0, 15.0, 16.0], steps=40) == pytest.approx(3 + 39 * 1.0)
    assert expected_seconds([0.0, 2.0], steps=5) == pytest.approx(10.0)


def test_one_thing_has_no_plural():
    assert [counted(number, "scan") for number in (0, 1, 2)] == ["0 scans", "1 scan", "2 scans"]


def test_durations_are_said_as_people_do():
    assert [duration(seconds) for seconds in (0.01, 42.4, 100, 3540, 7800)] == [
        *("1 s", "42 s", "2 min", "59 min", "2 h 10 min")
    ]


def test_scans_without_steps_are_estimated_from_the_first_scan(capsys):
    with Display(console(stderr=True)) as display:
        display.begin(["a", "b"])
        display.start("a")
        display.end(outcome())
        display.start("b")
        display.end(replace(outcome(), name="b"))
    assert capsys.readouterr().err.count("2 scans to adapt to: about 1 s") == 1


def test_scans_side_by_side_are_estimated_and_drawn_together(capsys):
    with Display(console(stderr=True)) as display:
        display.begin(["a", "b", "c"], 2)
        display.start("a")
        display.start("b")
        display.step("a", 1, 2)
        display.step("b", 1, 4)
        task = display.progress.tasks[0]
        assert task.completed == pytest.approx(1 / 2 + 1 / 4)
        assert task.description == "b, step 1 of 4, and 1 more"
        display.end(outcome())
        assert task.completed == pytest.approx(1 + 1 / 4)
    assert "3 scans to adapt to, 2 at once: about 1 s" in capsys.readouterr().err


def test_rolled_back_scans_tell_their_reason(capsys, tmp_path):
    Adapt(scans=(), model="", out=tmp_path)._show([BACK, outcome(energy_before=1.0, energy_after=0.5)])
    told = capsys.readouterr().out
    assert "a is unsolved: so No improvement found; original segmentation kept." in told
    assert "1.0000 -> 0.5000" in told
    assert outcome_table([BACK]).row_count == 1


def test_an_estimate_that_cannot_be_trusted_is_unknown_on_the_screen(capsys, tmp_path):
    facts = {"verdict_before": "failed", "verdict": "doubtful", "expected_before": 0.31}
    known = {"verdict_before": "fine", "verdict": "fine", "expected_before": 0.9, "expected": 0.9}
    Adapt(scans=(), model="", out=tmp_path)._show([outcome(**facts, expected=None), outcome(**known)])
    told = capsys.readouterr().out
    assert "0.31 -> unknown" in told
    assert " 0.90 " in told
