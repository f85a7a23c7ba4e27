"""Long runs and killed runs, by the script that measures them, with a few scans."""

import json

import pytest

from tests.scripts.test_scripts import script


@pytest.fixture(scope="module")
def endurance():
    return script("endurance")


def test_growth_is_the_slope_of_memory_after_the_warm_up(endurance):
    rows = [{"scan": n, "memory_mb": 900 if n <= 5 else 300 + 0.02 * n} for n in range(1, 21)]
    assert endurance.growth(rows, 5) == pytest.approx(2.0)


def test_every_scan_has_a_line_in_the_log(endurance, tmp_path, capsys):
    endurance.main(["many", "--scans", "3", "--out", str(tmp_path / "many.csv")])
    assert capsys.readouterr().out.startswith("3 lines for 3 scans")
    assert len((tmp_path / "many.csv").read_text(encoding="utf-8").splitlines()) == 4


def test_a_killed_run_loses_nothing_and_goes_on(endurance, tmp_path, capsys):
    endurance.main(["killed", "--scans", "2", "--kills", "1", "--out", str(tmp_path / "killed.csv")])
    assert "1 kills, then done: 0 wrong" in capsys.readouterr().out


def test_what_is_wrong_with_a_folder_is_seen(endurance, tmp_path):
    entries = {"a": {"status": "done", "outputs": {"segmentation": "a_seg.nii.gz"}}}
    (tmp_path / "manifest.json").write_text(json.dumps({"scans": entries}))
    (tmp_path / "b_page.html").write_text("<html>half")
    seen = endurance.look(tmp_path, {}, {"a", "lost"})
    assert (seen["done"], seen["lost"], seen["half_written"], seen["outputs_lacking"]) == (1, 1, 1, 1)
