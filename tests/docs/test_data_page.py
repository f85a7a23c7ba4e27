"""What docs/data.md prints is run, on miniature data in the layouts that it tells of."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

import scantune
from scantune.cli.main import main
from scantune.config.recipe import read_recipe
from scantune.datasets import DATASETS
from scantune.datasets.generic import GenericDataSet, GenericOptions
from scantune.training.plan import TrainingPlan
from tests.datasets.test_datasets import box, image, labels

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
PARTS = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
SECTIONS = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))
LAYOUTS = [name.strip("`") for name in SECTIONS if name.startswith("`")]
ABOUT = {"modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "background", "1": "TZ", "2": "PZ"}}


def block(language, section):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return found


def folder():
    for n in range(5):
        image(Path(f"scans/sub-{n}_T1w.nii.gz"), n)
        labels(Path(f"scans/sub-{n}_seg.nii.gz"))


def csv():
    rows = ["image,labels,site"]
    for n in range(5):
        image(Path(f"{n}.nii.gz"), n)
        labels(Path(f"{n}_seg.nii.gz"))
        rows.append(f"{n}.nii.gz,{n}_seg.nii.gz,{'south' if n == 2 else 'north'}")
    Path("study.csv").write_text("\n".join(rows))


def bids():
    for n in range(3):
        name = f"sub-{n}/anat/sub-{n}_T2starw"
        image(Path(f"study/{name}.nii.gz"), n)
        box(Path(f"study/derivatives/labels/{name}_seg.nii.gz"), 4)
        box(Path(f"study/derivatives/labels/{name}_gmseg.nii.gz"), 2)
    Path("study/dataset_description.json").write_text("{}")
    Path("study/participants.tsv").write_text("participant_id\tSite\nsub-0\tnorth\nsub-1\tnorth\nsub-2\tnorth\n")


def nnunet():
    root = Path("Dataset042_Prostate")
    for n, case in enumerate(("case01_visit1", "case01_visit2", "case02_visit1", "case03_visit1")):
        for channel in (0, 1):
            image(root / "imagesTr" / f"{case}_000{channel}.nii.gz", 2 * n + channel)
        labels(root / "labelsTr" / f"{case}.nii.gz")
    (root / "dataset.json").write_text(json.dumps(ABOUT))


def decathlon():
    root = Path("Task05_Prostate")
    for n in range(3):
        image(root / f"imagesTr/p_{n}.nii.gz", n, (6, 5, 4, 2))
        labels(root / f"labelsTr/p_{n}.nii.gz")
    listed = [{"image": f"./imagesTr/p_{n}.nii.gz", "label": f"./labelsTr/p_{n}.nii.gz"} for n in range(3)]
    (root / "dataset.json").write_text(json.dumps(ABOUT | {"training": listed, "test": []}))


def simulated():
    scans = {}
    for n, split in enumerate(("train", "validation")):
        files = {"image": f"home/{split}/{n}_image.nii.gz", "labels": f"home/{split}/{n}_labels.nii.gz"}
        image(Path("cohort") / files["image"], n)
        labels(Path("cohort") / files["labels"])
        scans[str(n)] = files | {"subject": str(n), "site": "home", "split": split}
    manifest = {"format": 1, "labels": {"a": 1, "b": 2}, "centres": {"home": {}}, "scans": scans}
    Path("cohort/manifest.json").write_text(json.dumps(manifest))


WRITERS = {writer.__name__: writer for writer in (folder, csv, bids, nnunet, decathlon, simulated)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layouts_command_and_recipe_run(layout, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    WRITERS[layout]()
    for line in block("console", SECTIONS[f"`{layout}`"]).splitlines():
        program, *words = shlex.split(line)
        assert program == "scantune"
        assert main(words) == 0, capsys.readouterr()
    assert "No problems" in capsys.readouterr().out
    recipe = block("toml", SECTIONS[f"`{layout}`"])
    Path("my_recipe.toml").write_text(f"{recipe}\n[preprocessing]\nsize = [16, 16]\n[train]\ndevice = 'cpu'\n")
    assert main(["check", "my_recipe.toml"]) == 0
    plan = TrainingPlan.read(read_recipe("my_recipe.toml"))
    assert sorted(plan.source.names().values()) == [1, 2]
    for split in ("train", "validation"):
        for example in plan.examples(split):
            assert set(example.reference.unique().tolist()) == {0, 1, 2}
    assert Path("prepared").exists() == ("cache" in recipe)


def test_a_folder_whose_layout_is_known_needs_no_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    WRITERS["nnunet"]()
    root = block("console", SECTIONS["`nnunet`"]).split()[2]
    plan = TrainingPlan.of_data(root, {"background": 0, "rim": 1, "core": 2})
    assert plan.source.names() == {"rim": 1, "core": 2}
    assert len(plan.source.entries("train")) > len(plan.source.entries("validation")) > 0


def test_a_network_is_trained_on_a_data_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bids()
    recipe = block("toml", SECTIONS["`bids`"]) + "cache = 'kept'\n[preprocessing]\nsize = [16, 16]\nspacing = 0.15\n"
    Path("r.toml").write_text(f"{recipe}[network]\nwidth = 2\n[train]\niterations = 1\nbatch = 2\ndevice = 'cpu'\n")
    Path("anywhere.toml").write_text(Path("r.toml").read_text(encoding="utf-8").replace('root = "study"\n', ""))
    assert main(["train", "anywhere.toml", "--root", "study", "--out", "m.safetensors"]) == 0
    assert len(list(Path("kept").iterdir())) == 3
    weights = Path("m.safetensors").read_bytes()
    assert main(["fit", "m.safetensors", "--data", "r.toml", "--out", "prior.safetensors"]) == 0
    assert Path("m.safetensors").read_bytes() == weights
    assert main(["fit", "m.safetensors", "--data", "anywhere.toml", "--root", "study"]) == 0
    alone, within = scantune.FieldOfExperts.load("prior.safetensors"), scantune.load("m.safetensors").prior
    assert alone.record() == within.record()
    assert len(list(Path("kept").iterdir())) == 3
    assert "GM" in capsys.readouterr().out
    Path("study/sub-0/anat/sub-0_T2starw.nii.gz").write_text("spoilt")
    Path("study/derivatives/labels/sub-1/anat/sub-1_T2starw_seg.nii.gz").unlink()
    assert main(["train", "r.toml", "--out", "n.safetensors"]) == 2
    told = capsys.readouterr().err
    assert "2 of 3 scans cannot be used" in told
    assert "\n  sub-0_T2starw: " in told
    assert "\n  sub-1_T2starw: " in told
    assert not Path("n.safetensors").exists()


def test_every_data_set_and_option_is_on_the_page():
    assert set(LAYOUTS) | set(re.findall(r"^\| `([\w-]+)` \|", SECTIONS["Public data sets"], re.MULTILINE)) == set(
        DATASETS
    )
    for name, sites in re.findall(r"^\| `([\w-]+)` \| .*? \| (.*?) \|", SECTIONS["Public data sets"], re.MULTILINE):
        assert tuple(sites.split(", ")) == DATASETS[name].sites
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", SECTIONS["People and splits"], re.MULTILINE)
    assert [name for name, _ in rows] == [field.name for field in fields(GenericOptions)]
    for field, (_, default) in zip(fields(GenericOptions), rows, strict=True):
        assert default == "none" or default == f"`{field.default}`"
    for name in LAYOUTS:
        if issubclass(DATASETS[name], GenericDataSet):
            known = {field.name for field in fields(GenericOptions)}
            own = [field.name for field in fields(DATASETS[name].options_type) if field.name not in known]
            assert all(option in SECTIONS[f"`{name}`"] for option in own)


def test_links_lead_to_files():
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / link).exists()
