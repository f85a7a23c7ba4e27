"""`scantune simulate`: what it shows, interruptions, and wrong words."""

import re
import shlex
from pathlib import Path

import pytest

from scantune.cli.console import ScanProgress
from scantune.cli.main import main
from scantune.config.recipe import read_recipe
from scantune.simulate import COHORTS
from tests.toy_cohort import manifest, simulate_command, stamps


def error_line(capsys):
    """The one line on the error stream."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_an_interrupted_run_goes_on(cohort_folder, tmp_path, capsys, monkeypatch):
    update, seen = ScanProgress.update, []

    def stop_at_two(display, done, scans, name):
        update(display, done, scans, name)
        seen.append((done, scans))
        if (done, scans) == (2, 6):
            raise KeyboardInterrupt

    monkeypatch.setattr(ScanProgress, "update", stop_at_two)
    assert main(simulate_command(tmp_path / "out")) == 130
    assert "simulate go on" in error_line(capsys)
    assert len(manifest(tmp_path / "out")["scans"]) == 2
    first = stamps(tmp_path / "out")
    assert main(simulate_command(tmp_path / "out")) == 0
    assert seen[3:] == [(number, 4) for number in range(5)]
    assert "4 scans simulated, 2 existed already: " in capsys.readouterr().out
    assert first.items() <= stamps(tmp_path / "out").items()


def test_a_network_can_be_trained_by_the_recipe_as_it_stands(cohort_folder, capsys):
    out = Path("trained here")
    assert main(simulate_command(out)) == 0
    shown = capsys.readouterr().out
    next_command = re.search(r"^Next: scantune (.*)$", shown, re.MULTILINE)[1]
    recipe = read_recipe(out / "recipe.toml")
    assert recipe.preprocessing == {"plane": "axial", "size": [56, 48], "spacing": 4.0, "content": "nonzero"}
    assert main([*shlex.split(next_command), "--iterations", "2", "--device", "cpu"]) == 0
    assert "validation Dice" in capsys.readouterr().out
    assert (out / "model.safetensors").exists()


def test_the_terminal_shows_what_lies_where(cohort_folder, tmp_path, capsys):
    assert main(simulate_command(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert re.search(r"home +Acme, 3 T, mprage +2 +1 +1", shown)
    assert re.search(r"away +1.5 T, spin-echo +- +- +2", shown)
    assert "6 scans simulated: a stress test, which does not replace real scans." in shown
    assert f"All are in {tmp_path / 'out'}, described in manifest.json" in shown
    assert str(tmp_path / "out" / "contact.png") in shown
    assert main(simulate_command(tmp_path / "few", "--splits", "test", "--count", "1")) == 0
    shown = capsys.readouterr().out
    assert f"Next: scantune adapt {tmp_path / 'few' / 'home' / 'test'} --model MODEL --out out" in shown
    assert "Validation" not in shown


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--centres", "moon"], "Unknown centre 'moon' of contrasts. Available: home, away."),
        (["--centres", "away", "--splits", "train"], "None of the centres away has a split train."),
        (["--count", "0"], "--count must be a whole number from 1, got 0."),
        (["--slices", "-1"], "--slices must be a whole number from 1"),
        (["--seed", "-1"], "--seed must be a whole number from 0"),
        (["--device", "abacus"], "The device abacus is not available"),
        (["--atlas", "a.npz"], "--label-maps or from --atlas, not from both"),
        (["--label-maps", "nowhere"], "nowhere must be a folder with NIfTI label maps"),
        (["--scheme", "nowhere.toml"], "nowhere.toml must be a label scheme, but cannot be read"),
        (["--protocols", "nowhere.toml"], "nowhere.toml must be a protocol file, but cannot be read"),
        (["--out", "o[1]"], "The output folder must do for file patterns"),
        (["--out", "scheme.toml"], "scheme.toml cannot be written"),
    ],
)
def test_wrong_options_are_reported_in_one_line(cohort_folder, tmp_path, capsys, more, text):
    assert main(simulate_command(tmp_path / "out", *more)) == 2
    assert text in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_an_unknown_cohort_is_reported_with_the_known_ones(capsys):
    assert main(["simulate", "brian", "--out", "x"]) == 2
    assert f"Unknown cohort 'brian'. Available: {', '.join(COHORTS)}." in error_line(capsys)


def test_every_cohort_is_named_in_the_help(capsys):
    assert main(["simulate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    words = re.findall(r"[a-z0-9-]+", re.search(r"What to simulate: (.*?) \(required\)", text)[1])
    assert sorted(set(words) - {"or", "with", "harder", "shifts", "of", "many", "protocols"}) == sorted(COHORTS)
