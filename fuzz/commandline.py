"""The command line: odd words, odd files under odd names, in odd folders."""

import contextlib
import io
import json
import os
import random
import shutil
from pathlib import Path

import nibabel
import numpy as np
import torch

from fuzz.base import ACCEPTED, REFUSED, Kind, chance, require, some
from fuzz.model import toy
from fuzz.mutations import TEXTS, damaged, odd_lines
from scantune.cli.main import COMMANDS, main
from scantune.scans.io import read_labels

NAMES = (
    *(
        "a",
        "a b",
        "scän ☃",
        "-x",
        "--model",
        "x\ny",
        "[bold]",
        "%s{}",
        "a'\"b",
        "\udcff\udcfe",
        "n" * 200,
        "x..",
        "a.b.c",
    ),
    *("a_seg", "b_labels", "a", "a"),
)
"""Stems of file names that systems allow, the last ones as bytes that are no text."""

NUMBERS = ("-1", "0", "1", "x", "1.5", "", "nan", "1e3", "٣", "99999999999999999999")
MANIFESTS = ("", "{", "[]", "null", '{"format": 1, "scans": {"a": []}}', '{"format": 9, "scans": {}}')
RECIPE = """[data]
images = "nowhere/*_image.nii.gz"
labels = "nowhere/*_labels.nii.gz"
structures = { disc = 1 }
[preprocessing]
size = [16, 16]
spacing = 1.0
[network]
classes = 2
[train]
iterations = 1
batch = 1
"""
FIELDS = (
    "images",
    "labels",
    "cohort",
    "dataset",
    "root",
    "size",
    "plane",
    "n4",
    "classes",
    "width",
    "seed",
    "batch",
    "task",
)


class CommandLine(Kind):
    """One call of `main`."""

    name = "cli"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        torch.set_num_threads(1)
        os.environ.pop("SCANTUNE_TRACEBACK", None)
        self.model = folder / "toy.safetensors"
        toy().save(self.model)
        rng = np.random.default_rng(0)
        image = rng.random((12, 10, 2), dtype=np.float32)
        image[3:8, 3:8] += 2
        nibabel.save(nibabel.Nifti1Image(image, np.diag([1, 1, 3, 1])), folder / "scan.nii.gz")
        nibabel.save(nibabel.Nifti1Image((image > 2).astype(np.uint8), np.diag([1, 1, 3, 1])), folder / "map.nii.gz")
        self.scan, self.map = (folder / "scan.nii.gz").read_bytes(), (folder / "map.nii.gz").read_bytes()

    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Makes files and words, and looks at the exit code, at what is said, and at what is written."""
        made = self._files(rng, folder)
        command = rng.choice((*["adapt"] * 10, *["evaluate"] * 4, *["check"] * 3, *["info"] * 2, *COMMANDS))
        words = [command, *getattr(self, f"_{command}")(rng, folder, made)]
        if chance(rng, 0.1):
            words = _shuffled(rng, words)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
            code = main(words)
        said = []
        for stream in (out, err):
            stream.flush()
            said.append(stream.buffer.getvalue().decode("utf-8", "replace"))
        told = f"{words} -> {code}: {said[1][-600:]}"
        require(code in (0, 2, 3), told)
        require("Traceback" not in said[0] + said[1], told)
        require(code == 0 or said[1].strip() or said[0].strip(), f"nothing is said: {told}")
        self._written(folder / "out", told)
        return REFUSED if code == 2 else ACCEPTED

    def _written(self, out: Path, told: str) -> None:
        """Whatever lies in the output folder is whole."""
        for path in out.rglob("*") if out.is_dir() else ():
            known = not path.name.startswith(".") or path.name == ".bidsignore"
            require(known or path.is_dir() or path.suffix == ".lock", f"{path.name} is left: {told}")
            if path.name.endswith("_seg.nii.gz") and path.is_file() and path.stat().st_size:
                read_labels(path)
        text = (out / "manifest.json").read_text("utf-8") if (out / "manifest.json").is_file() else ""
        if text and text not in MANIFESTS:
            manifest = json.loads(text)
            for name, entry in manifest.get("scans", {}).items():
                require("traceback" not in entry, f"{name}: {entry.get('traceback', [''])[-3:]} {told}")
                for file in entry.get("outputs", {}).values():
                    require((out / file).is_file(), f"{file} is missing: {told}")

    def _files(self, rng: random.Random, folder: Path) -> list[str]:
        """Scans, label maps, damaged ones, texts, folders; returns their paths."""
        made = []
        for name in some(rng, NAMES, 4):
            ending = rng.choice((".nii.gz", ".nii.gz", ".nii", ".nrrd", ".txt", ".csv", ""))
            place = folder / rng.choice((".", ".", "in", "in put"))
            place.mkdir(exist_ok=True)
            path = place / (name + ending)
            data = rng.choice((self.scan, self.scan, self.map, damaged(rng, self.scan, self.map, 300), b"", b"hello"))
            with contextlib.suppress(OSError):
                path.write_bytes(data)
                made.append(str(path) if chance(rng, 0.8) else str(path.parent))
        (folder / "recipe.toml").write_text(odd_lines(rng, RECIPE, FIELDS, " = ") if chance(rng, 0.8) else RECIPE)
        if chance(rng, 0.1):
            self._odd_out(rng, folder)
        return [*made, str(folder / rng.choice(("in", "nowhere", "recipe.toml", "x" * 300)))]

    def _odd_out(self, rng: random.Random, folder: Path) -> None:
        """An output folder with something in it already, or a file in its place."""
        if chance(rng, 0.3):
            (folder / "out").write_text("in the way")
            return
        (folder / "out").mkdir()
        (folder / "out" / "manifest.json").write_text(rng.choice(MANIFESTS))

    def _model_words(self, rng: random.Random, folder: Path) -> str:
        if chance(rng, 0.8):
            return str(self.model)
        path = folder / "m.safetensors"
        shutil.copy(self.model, path)
        path.write_bytes(damaged(rng, path.read_bytes(), self.scan, 5000))
        return rng.choice((str(path), "nowhere", "", ".", str(folder)))

    def _adapt(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        scans = [str(self.folder / "scan.nii.gz")] if chance(rng, 0.4) else some(rng, made, 3)
        words = [*scans, "--model", self._model_words(rng, folder), "--out", str(folder / "out")]
        words += ["--method", rng.choice((*["source"] * 12, "batchnorm", "foe-cnn", "entropy", "dae", "x", ""))]
        words += ["--steps", "1"] if chance(rng, 0.8) else ["--steps", rng.choice(NUMBERS[:7])]
        words += [] if chance(rng, 0.1) else ["--no-page"]
        odd = {
            "--seed": NUMBERS,
            "--device": ("cpu", "cuda", "cuda:99", "meta", "x", "", "cpu:7", "auto"),
            "--preset": ("fast", "paper", "slow", ""),
            "--options": ("moving=norm-affine", "learning_rate=x", "=", "x=1", "learning_rate=nan", "weight=-1", "a"),
            "--series": ("1", "T1*", "[", "", "\x1b[31m"),
        }
        for flag, values in odd.items():
            words += [flag, rng.choice(values)] if chance(rng, 0.15) else []
        return words + [
            flag for flag in ("--no-guard", "--overwrite", "--strict", "--bids", "--dicom-seg") if chance(rng, 0.2)
        ]

    def _evaluate(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        words = [rng.choice(made), rng.choice(made)]
        words += (
            ["--labels", *some(rng, ("disc=1", "x=0", "a=b=2", "x=99999999999", "=1", "x", "ü=3"), 3)]
            if chance(rng, 0.3)
            else []
        )
        return words + (
            ["--out", str(folder / rng.choice(("s.csv", "x/y/s.csv", ".", "")))] if chance(rng, 0.4) else []
        )

    def _check(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        words = [rng.choice(made), "--workers", rng.choice(("1", "1", "1", "0", "-1", "x"))]
        words += (
            ["--dataset", rng.choice(("folder", "csv", "bids", "nnunet", "decathlon", "x", ""))]
            if chance(rng, 0.4)
            else []
        )
        options = (
            "images=*.nii.gz",
            "labels=*_labels.nii.gz",
            "images=[",
            "images=../*",
            "structures.a=1",
            "x",
            "a=1",
            "=",
        )
        words += ["--options", *some(rng, options, 3)] if chance(rng, 0.5) else []
        return words + (["--out", str(folder / "out")] if chance(rng, 0.3) else [])

    def _models(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        return [rng.choice((*made, str(folder)))] if chance(rng, 0.5) else []

    def _info(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        return [rng.choice((self._model_words(rng, folder), rng.choice(made)))]

    def _train(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        words = [
            rng.choice((str(folder / "recipe.toml"), rng.choice(made), "nowhere")),
            "--out",
            str(folder / "m" / "x"),
        ]
        return words + (["--iterations", rng.choice(("-1", "0", "1", "x"))] if chance(rng, 0.5) else [])

    def _fit(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        words = [self._model_words(rng, folder), "--data", rng.choice((str(folder / "recipe.toml"), rng.choice(made)))]
        words += ["--method", rng.choice(("foe", "dae", "ae", "x"))] if chance(rng, 0.5) else []
        return words + (["--set", rng.choice(TEXTS)] if chance(rng, 0.3) else [])

    def _simulate(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        words = [rng.choice(("spine", "x", "")), "--out", rng.choice((*made, str(folder / "out")))]
        return [*words, "--centres", rng.choice(TEXTS), "--count", rng.choice(("-1", "0", "x", "1"))]

    def _demo(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        return [
            "--model",
            rng.choice((str(self.model), *made)),
            "--out",
            str(folder / "out"),
            "--centres",
            rng.choice(TEXTS),
        ]

    def _bench(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        return [rng.choice((str(folder / "recipe.toml"), *made)), "--out", str(folder / "out")]

    def _report(self, rng: random.Random, folder: Path, made: list[str]) -> list[str]:
        return [rng.choice(made), *(["--out", str(folder / "out")] if chance(rng, 0.7) else [])]


def _shuffled(rng: random.Random, words: list[str]) -> list[str]:
    """Words that are left out, doubled, in another order, or followed by an odd one."""
    what = rng.randrange(4)
    if what == 0:
        return rng.sample(words, rng.randrange(len(words) + 1))
    if what == 1:
        return [*words, rng.choice(words)]
    if what == 2:
        return [*words, rng.choice(("--x", "--", "-h", "--help", "", "ü", "--model"))]
    return [word for word in words if chance(rng, 0.85)]
