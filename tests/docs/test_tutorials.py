"""The tutorials, run from top to bottom: commands, recipes and Python lines, on made-up scans and with few steps."""

import csv
import re
import shlex
import shutil
from pathlib import Path

import pytest

from scantune.benchmark.engines import ENGINES
from scantune.cli.main import main
from tests import toy_nnunet
from tests.benchmark.test_run import Here
from tests.docs.test_readme import desk, write_scan  # noqa: F401
from tests.toy_bundle import toy_volume, write_volume
from tests.toy_experiment import write_scans
from tests.toy_nnunet import write_raw, write_results

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

SETTINGS = ["train.iterations=1", "train.batch=2", "network.width=2", "prior.size=4", "adapt.fast.steps=1"]
QUICK = {
    "simulate": {"--slices": ["2"]},
    "adapt": {"--device": ["cpu"], "--steps": ["1"]},
    "bench": {"--device": ["cpu"], "--seeds": ["0"], "--count": ["1"], "--centres": ["north"], "--set": SETTINGS},
}
"""Flags that are added to a command of a tutorial, unless it has them, to make it quick."""

RECIPES = {"my_recipe.toml": "\n[train]\niterations = 1\nbatch = 2\n"}
"""What is added to a recipe."""


def run_command(line):
    """Run a command of scantune; others install it or start containers, which tests of the package do."""
    program, *words = shlex.split(line, comments=True)
    if program == "pip":
        assert re.fullmatch(r"pip install -c constraints.txt (\.|'\.\[\w+\]')", line)
        return
    assert program == "scantune"
    if words[:1] == ["bench"]:  # a cluster takes long to start, and has tests of its own
        words = [word for word in words if word not in ("--engine", "ray")]
    quick = {flag: values for flag, values in QUICK.get(words[0], {}).items() if flag not in words}
    assert main([*words, *(word for flag, values in quick.items() for word in (flag, *values))]) == 0, line


def run_page(name):
    """Run every block of a page in order, in one folder and one namespace."""
    names = {}
    for language, block in BLOCK.findall((TUTORIALS / f"{name}.md").read_text(encoding="utf-8")):
        if language == "console":
            for line in block.replace("\\\n", " ").splitlines():
                run_command(line)
        elif language == "toml":
            file = block.splitlines()[0].removeprefix("# ")
            assert file.endswith(".toml")
            Path(file).write_text(block + RECIPES.get(file, ""), encoding="utf-8")
        elif language == "python":
            exec(compile(block, f"{name}.md", "exec"), names)
        else:
            assert language == "text"
    return names


def rows_of(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_a_first_scan(desk, capsys):  # noqa: F811
    shutil.copytree(ROOT / "scripts", "scripts", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    names = run_page("first-scan")
    assert names["result"].prediction.ndim == 3
    assert len(list(Path("out").glob("*_page.html"))) == 2
    assert Path("coil/contact.png").exists()
    assert {row["structure"] for row in rows_of("scores.csv")} >= {"CSF", "GM", "WM"}
    assert {row["method"] for row in rows_of("scores.csv")} == {"source", "foe-cnn-pca"}  # the scan is NAME_image
    assert Path("my_out/my_T1_seg.nii.gz").exists()


def test_my_nnunet_model(tmp_path, monkeypatch, capsys):
    pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: pip install 'scantune[nnunet]'")
    monkeypatch.chdir(tmp_path)
    root = write_results(tmp_path / "results", iterations=40)
    root.rename(tmp_path / root.name)
    write_raw(tmp_path / "nnUNet_raw" / "Dataset501_Balls", count=3)
    image, labels = toy_volume(7)
    toy_nnunet.write_scan(tmp_path, "case", image)
    write_volume(tmp_path / "references" / "case_0000.nii.gz", labels)
    names = run_page("nnunet")
    assert names["result"].prediction.shape == image.shape
    assert rows_of("adapted.csv")
    assert rows_of("source.csv")


def test_train_fit_and_adapt_on_my_data(desk, capsys):  # noqa: F811
    write_scan(Path("references/my_T1"), 1).rename("references/my_T1.nii.gz")
    run_page("own-data")
    assert Path("checked/contact.png").exists()
    assert {row["structure"] for row in rows_of("scores.csv")} >= {"CSF", "GM", "WM"}


def test_read_a_page(desk):  # noqa: F811
    run_page("read-a-page")
    assert Path("out/index.html").exists()


def test_compare_methods_on_a_cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ENGINES, "local", lambda store, settings: Here(store, []))  # processes take long to start
    write_scans(tmp_path)
    run_page("compare-methods")
    rows = rows_of("comparison/rows.csv")
    assert {row["method"] for row in rows} == {
        *("strong baseline", "entropy", "batchnorm", "foe-cnn-pca", "foe-cnn-pca, guarded")
    }
    assert Path("comparison/report/report.md").exists()
    assert Path("report/report.md").exists()
