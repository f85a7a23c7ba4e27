"""Records what scantune computes, and compares two records bit by bit: a proof that moving code changes nothing.

    PYTHONPATH=OLD/src python scripts/compare_baseline.py record old
    PYTHONPATH=src python scripts/compare_baseline.py record new
    python scripts/compare_baseline.py compare old new

A record is a folder with a subfolder per item of `ITEMS`, which holds the files that the product wrote. It is made by
the command line and by names that users' scripts rely on, so that the same script runs on either code; with one thread,
since the last digits depend on their number. Real scans come from the folder that SCANTUNE_DATA names. A whole record
takes about five minutes of a core; `--items` makes a part of it again.

Compared are voxels, tensors, cells, entries and the numbers in texts. What differs from run to run is left out: see
`LEFT_OUT`, `SKIPPED` and `READERS`. Texts may be reworded: where they differ, or pictures, which show
words, they are listed as wording, which is no failure.
"""

import argparse
import base64
import csv
import gzip
import json
import math
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

FIXED = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MPLBACKEND": "Agg",
    "PYTHONSAFEPATH": "1",  # folders of a record are no packages
}
"""The surroundings of every run."""

LEFT_OUT = {
    *("seconds", "seconds_per_step"),  # times
    "peak_memory_mb",
    *("scantune", "torch", "versions", "commit", "simulator"),  # versions; the last is a hash of source text
    *("job", "fingerprint", "sha256"),  # hashes over source text, or over a model's record with its times and versions
}
"""Keys of JSON and TOML, columns of CSV and metadata of tensors that are not compared."""

SKIPPED = ("bench/jobs", "bench/running", "bench/report/pages")
"""Not compared: folders whose names are hashes of source text; see `bench/scans` for what is in them."""

WORDING = {
    *("decision", "action", "reason", "verdict", "note", "notes", "refused"),
    *("warnings", "remarks", "reading_before", "reading_after", "readings_before"),
    *("words", "picture"),  # of text files and images, by their readers
}
"""Keys under which texts and pictures may differ; numbers under them may not."""

SHOWN = 12
"""Differences of an item that are printed."""

CODE = "import scantune, torch; print(scantune.__file__, 'torch', torch.__version__, torch.get_num_threads(), 'thread')"

STEPS = {"fast": 4, "paper": 6, "converged": 5}
"""Of each preset, for toy scans."""


# What is recorded ----------------------------------------------------------------------------------------------------


def record(folder: Path, items: list[str]) -> None:
    """Run the product, item by item, and store what it writes."""
    folder.mkdir(parents=True, exist_ok=True)
    print("The code is that of", run(folder, "code", "-c", CODE).strip(), flush=True)
    for name in items:
        started, before = time.perf_counter(), spent()
        shutil.rmtree(folder / name, ignore_errors=True)
        remark = ITEMS[name](folder)
        took = f"{time.perf_counter() - started:.0f} s, {spent() - before:.0f} s of them on a core"
        print(f"{name}: {remark or 'recorded'}, {took}", flush=True)


def spent() -> float:
    """Tell the processor seconds of all runs so far, which other programs change less."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder: Path, name: str, *command: str) -> str:
    """Run a Python command line in the folder, so that all paths are relative; what it prints."""
    (folder / "log").mkdir(exist_ok=True)
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = {**os.environ, **FIXED, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    with (folder / "log" / f"{name}.txt").open("a", encoding="utf-8") as log:
        log.write(f"{shlex.join(command)}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed in {folder}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def call(folder: Path, name: str, *words: str) -> None:
    """Run a command of scantune on the CPU."""
    device = () if words[0] == "report" else ("--device", "cpu")
    run(folder, name, "-m", "scantune", *words, *device)


def demo(folder: Path) -> None:
    """Record the demo at three centres: scores, pages with segmentations, figures."""
    call(folder, "demo", "demo", "--out", "demo", "--centres", "spgr-1.5T", "surface-coil-3T", "lowres-1.5T")


def real_scans(folder: Path) -> list[str]:
    """Thin three real scans to every 12th slice, one also to every 5th; their names, none without SCANTUNE_DATA."""
    if not os.environ.get("SCANTUNE_DATA"):
        return []
    scans = sorted((Path(os.environ["SCANTUNE_DATA"]) / "oasis").glob("*_T1w.nii.gz"))[:3]
    (folder / "adapt").mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(scans):
        image = nibabel.load(path)
        nibabel.save(image.slicer[:, :, ::12], folder / "adapt" / f"scan{number}.nii")
    nibabel.save(nibabel.load(scans[0]).slicer[:, :, ::5], folder / "adapt" / "brain.nii")
    return [f"adapt/scan{number}.nii" for number in range(len(scans))]


def adapt(folder: Path) -> str:
    """Record adaptations to real scans: segmentations, a deformation, manifests, pages."""
    scans = real_scans(folder)
    if not scans:
        return "skipped, as SCANTUNE_DATA does not name a folder of real scans"
    for name, *words in (
        ("guarded", *scans, "--model", "brain", "--steps", "5"),
        ("unguarded", scans[0], "--model", "brain", "--no-guard", "--preset", "converged", "--steps", "3"),
        ("registered", "adapt/brain.nii", "--model", "brain-register", "--steps", "6"),
    ):
        call(folder, "adapt", "adapt", *words, "--out", f"adapt/{name}", "--workers", "1")
    return ""


def simulate(folder: Path) -> None:
    """Record a small export of every cohort: images, labels, manifests, contact sheets."""
    few = ("--splits", "test", "--count", "1", "--slices", "2")
    for cohort in ("prostate", "cardiac", "spine", "brain", "wmh", "registration", "contrasts"):
        call(folder, "simulate", "simulate", cohort, "--out", f"simulate/{cohort}", *few)


# Toys: scans, training, experiment, methods --------------------------------------------------------------------------

DISCS = """
[data]
dataset = "csv"
root = "train/discs.csv"
site = "home"
structures = { rim = 1, core = 2 }
[preprocessing]
size = [32, 32]
[network]
width = 4
[train]
iterations = 60
batch = 4
learning_rate = 1e-2
validate_every = 20
checkpoint_every = 20
[supervised]
iterations = 4
learning_rate = 1e-4
validate_every = 2
[prior]
size = 4
stride = 2
components = 2
[helpers.ae]
iterations = 20
batch = 2
learning_rate = 1e-2
validate_every = 10
[helpers.dae]
iterations = 6
learning_rate = 1e-2
width = 2
validate_every = 3
corruptions = 4
[adapt]
preset = "paper"
[adapt.paper]
steps = 3
batch = 2
[adapt.fast]
steps = 3
"""

EXPERIMENT = """
[experiment]
methods = [
  "strong baseline", "batchnorm", "entropy", "dae", "ae", "foe-cnn", "foe-cnn-pca", "foe-cnn, fast", "supervised"
]
score = "whole"
tier = "toy"
watch = [0, 2]
keep = 1
[experiment.rows."foe-cnn, fast"]
method = "foe-cnn"
preset = "fast"
guard = true
"""

HEADS = """
[task]
name = "registration"
atlas = "train/home0_image.nii"
atlas_labels = "train/home0_labels.nii"
smoothness = 0.05
[data]
dataset = "csv"
root = "train/heads.csv"
site = "home"
structures = { rim = 1, core = 2 }
[preprocessing]
size = [48, 48]
spacing = 1.0
content = "nonzero"
slab = [10.0, 14.0]
[network]
width = 4
shrink = 2
squarings = 4
[train]
iterations = 20
batch = 4
learning_rate = 1e-2
validate_every = 10
checkpoint_every = 10
[prior]
size = 4
stride = 2
components = 2
[helpers.ae]
iterations = 6
batch = 2
validate_every = 3
features = "none"
"""

PEOPLE: dict[str, dict[str, tuple[str, ...]]] = {
    "discs": {
        "home": ("train", "train", "validation", "test"),
        "north": ("train", "validation", "test", "test"),
        "south": ("train", "validation", "test"),
    },
    "heads": {"home": ("train", "train", "validation", "test")},
}
POWERS = {"home": 1.0, "north": 1.2, "south": 0.85}
"""The contrast of each centre."""


def disc(rng: np.random.Generator, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw a disc with a core in noise: image and labels."""
    x, y, _ = np.meshgrid(*[np.arange(n) - (n - 1) / 2 for n in (30, 32, 3)], indexing="ij")
    radius = np.hypot(x - rng.uniform(-3, 3), y - rng.uniform(-3, 3))
    labels = np.select([radius < 4, radius < 9], [2, 1], 0).astype(np.uint8)
    clean = np.clip(0.1 + 0.4 * labels + rng.normal(0, 0.03, labels.shape), 0, 1)
    return (clean**power).astype(np.float32), labels


def head(rng: np.random.Generator, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw an ellipsoid with a core and nothing around it: image and labels."""
    x, y, z = np.meshgrid(*[(np.arange(n) - (n - 1) / 2) / n for n in (40, 44, 8)], indexing="ij")
    radius = 2.6 * np.sqrt((x - rng.uniform(-0.04, 0.04)) ** 2 + (y - rng.uniform(-0.04, 0.04)) ** 2 + z**2)
    labels = (radius < 1).astype(np.uint8) + (radius < 0.6)
    image = np.where(labels > 0, (0.4 * labels) ** power + rng.normal(0, 0.02, labels.shape), 0)
    return image.astype(np.float32), labels.astype(np.uint8)


def write_people(folder: Path, kind: str, prefix: str = "") -> None:
    """Write the toy scans of a kind with the table of them."""
    draw = {"discs": disc, "heads": head}[kind]
    lines = [["image", "labels", "subject", "site", "split"]]
    for site, splits in PEOPLE[kind].items():
        for number, split in enumerate(splits):
            name = f"{prefix}{site}{number}"
            for part, volume in zip(
                ("image", "labels"), draw(np.random.default_rng([len(lines)]), POWERS[site]), strict=True
            ):
                nibabel.save(nibabel.Nifti1Image(volume, np.diag([1.0, 1.0, 4.0, 1.0])), folder / f"{name}_{part}.nii")
            lines.append([f"{name}_image.nii", f"{name}_labels.nii", name, site, split])
    with (folder / f"{kind}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def train(folder: Path) -> None:
    """Record the training of toy networks, of their priors of all kinds, and of their helper networks."""
    place = folder / "train"
    place.mkdir()
    write_people(place, "discs", "disc-")
    write_people(place, "heads")
    for name, text in (("discs", DISCS), ("heads", HEADS)):
        (place / f"{name}.toml").write_text(text, encoding="utf-8")
    for kind in PEOPLE:
        recipe, model = f"train/{kind}.toml", f"train/{kind}.safetensors"
        call(folder, "train", "train", recipe, "--out", model)
        for method in ("foe", "ae", "dae")[: 3 if kind == "discs" else 2]:
            call(folder, "train", "fit", model, "--data", recipe, "--method", method)
    for density, *more in (("kde",), ("histogram",), ("gaussian", "--summarise")):
        copy = f"train/discs-{'-'.join([density, *more]).replace('--', '')}.safetensors"
        shutil.copy(place / "discs.safetensors", folder / copy)
        call(folder, "train", "fit", copy, "--data", "train/discs.toml", "--density", density, *more)


def bench(folder: Path) -> None:
    """Record an experiment on the toy scans, and the report of it: rows, traces, tables, figures."""
    (folder / "log" / "bench.toml").write_text(DISCS + EXPERIMENT, encoding="utf-8")
    call(folder, "bench", "bench", "log/bench.toml", "--out", "bench")
    with (folder / "bench" / "rows.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {name: "1.0" for name in ("seconds", "seconds_per_step", "peak_memory_mb") if row[name]}
        place = folder / "bench" / "scans" / row["method"] / row["subject"]
        if not place.exists():
            shutil.copytree(folder / "bench" / "jobs" / row["job"], place, ignore=shutil.ignore_patterns("rows.*"))
    with (folder / "bench" / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    call(folder, "bench", "report", "bench")


def methods(folder: Path) -> None:
    """Record every method on toy scans, in another process, whose threads are fixed."""
    (folder / "methods").mkdir()
    run(folder, "methods", str(Path(__file__).resolve()), "methods", "methods", "train")


def adapt_by_methods(out: Path, models: Path) -> None:
    """Adapt toy models to toy scans by every method, preset, and with the guard or without it."""
    import torch

    import scantune
    from scantune.methods import METHODS

    north = np.asanyarray(nibabel.load(models / "disc-north2_image.nii").dataobj)
    tensor = torch.tensor(north[1:].T[:, None, :, :] ** 1.5)[..., :28]
    tensor = torch.nn.functional.pad(tensor, (2, 2))
    for file in sorted(models.glob("*.safetensors")):
        model = scantune.load(file)
        scan = models / "home3_image.nii" if file.stem == "heads" else tensor
        for method in METHODS if file.stem in PEOPLE else ("foe-cnn", "foe-cnn-pca"):
            for preset, steps in STEPS.items():
                for guard in (True, False):
                    name = f"{file.stem} {method} {preset} {'guarded' if guard else 'unguarded'}"
                    try:
                        result = scantune.adapt(
                            model, scan, method=method, preset=preset, steps=steps, guard=guard, device="cpu", seed=3
                        )
                    except scantune.InputError as error:
                        write_json(out / f"{name}.json", {"refused": str(error)})
                    else:
                        write_result(out / name, result)


def write_result(path: Path, result: Any) -> None:
    """Write what an adaptation gave back: prediction and network as tensors, the rest as JSON."""
    from safetensors.numpy import save_file

    tensors = {f"network.{name}": value.numpy() for name, value in result.network.state_dict().items()}
    tensors["prediction"] = np.ascontiguousarray(result.prediction)
    save_file(tensors, path.with_name(f"{path.name}.safetensors"))
    energies = {"before": result.energy_before, "after": result.energy_after}
    told = {"decision": vars(result.decision), "energies": energies, "trace": result.trace}
    write_json(path.with_name(f"{path.name}.json"), told)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, every digit of its numbers."""
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


ITEMS: dict[str, Callable[[Path], str | None]] = {
    "demo": demo,
    "adapt": adapt,
    "train": train,
    "bench": bench,
    "methods": methods,
    "simulate": simulate,
}
"""What is recorded, in this order: `bench` and `methods` use what `train` made."""


# How files are read --------------------------------------------------------------------------------------------------


def read_image(path: Path) -> Any:
    """Read voxels as they are stored, and where they lie."""
    image = nibabel.load(path)
    return {"voxels": np.asanyarray(image.dataobj), "affine": image.affine}


def read_tensors(path: Path) -> Any:
    """Read tensors and the record in their file's metadata."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        told = file.metadata() or {}
    # The product's own record has the name of the product, which elsewhere tells its version.
    return {"tensors": tensors, "record": {f"of {k}": json.loads(v) for k, v in told.items() if v.startswith("{")}}


def read_arrays(path: Path) -> Any:
    """Read the arrays of an NPZ file."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def read_rows(path: Path) -> Any:
    """Read rows as text, by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_text(path: Path) -> Any:
    """Read the numbers of a text, and its words."""
    text = path.read_text(encoding="utf-8")
    return {"numbers": re.findall(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text), "words": text}


def read_picture(path: Path) -> Any:
    """Read pixels in 8 bits; the same code may draw a pixel one grey level apart in another run."""
    from matplotlib.image import imread

    return {"picture": np.rint(255 * imread(path)).astype(np.uint8)}


def read_page(path: Path) -> Any:
    """Read the volumes inside a page, which are gzipped NIfTI in base64; its words and charts are left out."""
    packed = re.findall(r"\bH4sI[A-Za-z0-9+/]{40,}={0,2}", path.read_text(encoding="utf-8"))
    volumes = [gzip.decompress(base64.b64decode(text)) for text in packed]
    niftis = [nibabel.Nifti1Image.from_bytes(data) for data in volumes if data[344:347] in (b"n+1", b"ni1")]
    return [{"voxels": np.asanyarray(image.dataobj), "affine": image.affine} for image in niftis]


READERS: dict[str, Callable[[Path], Any]] = {
    ".nii": read_image,
    ".nii.gz": read_image,
    ".safetensors": read_tensors,
    ".npz": read_arrays,
    ".csv": read_rows,
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".toml": lambda path: tomllib.loads(path.read_text(encoding="utf-8")),
    ".md": read_text,
    ".tex": read_text,
    ".png": read_picture,
    ".html": read_page,
}
"""By the ending. Others are left out: SVG repeats PNG, and Parquet repeats CSV."""


def readable(folder: Path, item: str) -> dict[str, Callable[[Path], Any]]:
    """Find the files of an item that are compared, and what reads them."""
    found = {}
    for path in sorted((folder / item).rglob("*")):
        name = path.relative_to(folder).as_posix()
        ending = next((ending for ending in READERS if name.endswith(ending)), None)
        if path.is_file() and ending and not any(name.startswith(f"{part}/") for part in SKIPPED):
            found[name] = READERS[ending]
    return found


# How two records are compared ----------------------------------------------------------------------------------------


@dataclass
class Findings:
    """What a comparison has found.

    Attributes:
        values: How many values were compared; an array counts once.
        differences: Where, and what differs.
        wording: The same of texts for people and of pictures.
    """

    values: int = 0
    differences: list[str] = field(default_factory=list)
    wording: list[str] = field(default_factory=list)


def compare(old: Path, new: Path) -> int:
    """Print for each item whether it is equal or what differs; 1 where anything but words does."""
    failed = False
    for item in ITEMS:
        there = [(folder / item).is_dir() for folder in (old, new)]
        if not any(there):
            print(f"{item}: in neither record")
            continue
        found = compare_item(old, new, item)
        failed |= bool(found.differences)
        print(f"{item}: {summary(found)}")
        for title, lines in (("differs", found.differences), ("wording", found.wording)):
            for line in lines[:SHOWN]:
                print(f"  {title}: {line}")
            if len(lines) > SHOWN:
                print(f"  {title}: and {len(lines) - SHOWN} more")
    return int(failed)


def summary(found: Findings) -> str:
    """Tell in a few words how an item fared."""
    if not found.values and not found.differences:
        found.differences.append("nothing was compared")
    state = f"{len(found.differences)} DIFFERENCES in" if found.differences else "equal,"
    words = f"; wording or pictures differ: {len(found.wording)}" if found.wording else ""
    return f"{state} {found.values} values{words}"


def compare_item(old: Path, new: Path, item: str) -> Findings:
    """Compare the files of an item."""
    found = Findings()
    ours, theirs = readable(old, item), readable(new, item)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs or name not in ours:
            found.differences.append(f"{name}: only in the {'old' if name in ours else 'new'} record")
        else:
            compare_values((name,), ours[name](old / name), theirs[name](new / name), found)
    return found


def compare_values(where: tuple[str, ...], old: Any, new: Any, found: Findings) -> None:
    """Compare two values of any kind, exactly.

    Args:
        where: The file, and the keys that lead to the value.
        old: From the one record.
        new: From the other.
        found: Is told.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        old, new = ({key: value for key, value in part.items() if key not in LEFT_OUT} for part in (old, new))
        for key in old.keys() ^ new.keys():
            found.differences.append(f"{place(where)}: {key} only in the {'old' if key in old else 'new'} record")
        for key in [key for key in old if key in new]:
            compare_values((*where, str(key)), old[key], new[key], found)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            found.differences.append(f"{place(where)}: {len(old)} entries are now {len(new)}")
        for number, (one, other) in enumerate(zip(old, new, strict=False)):
            compare_values((*where, str(number)), one, other, found)
    else:
        found.values += 1
        difference = "".join(differing(old, new))
        if difference:
            words = all(isinstance(value, str | np.ndarray) for value in (old, new)) and not WORDING.isdisjoint(where)
            (found.wording if words else found.differences).append(f"{place(where)}: {difference}")


def differing(old: Any, new: Any) -> Iterator[str]:
    """Tell how two values differ, if they do; numbers are the same when all their digits and their kinds are."""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            yield f"{old.dtype} {old.shape} is now {new.dtype} {new.shape}"
        elif old.tobytes() != new.tobytes():
            yield from apart(old, new)
    elif repr(old) != repr(new):
        yield f"{told(old, new)} is now {told(new, old)}"


def told(value: Any, other: Any) -> str:
    """Show a value; of a long text, the part where it begins to differ from another."""
    if not (isinstance(value, str) and isinstance(other, str)):
        return repr(value)[:160]
    same = next((n for n, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), min(len(value), len(other)))
    start = max(same - 40, 0)
    return repr(value[start : start + 120])


def apart(old: np.ndarray, new: np.ndarray) -> Iterator[str]:
    """Tell how far arrays of the same kind and shape are apart."""
    unequal = old != new
    count = int(np.count_nonzero(unequal))
    yield f"{count} of {old.size} elements differ"
    if count and old.dtype.kind in "fiu":
        most = np.nanmax(np.abs(old.astype(np.float64) - new.astype(np.float64)))
        yield f", by {most:.3g} at most" if math.isfinite(most) else ""


def place(where: tuple[str, ...]) -> str:
    """Name a value by its file and keys."""
    return " > ".join(where)


def main(words: list[str] | None = None) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the product and store what it computes")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--items", nargs="+", choices=ITEMS, default=list(ITEMS))
    comparing = commands.add_parser("compare", help="tell for each item whether two records are equal")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    adapting = commands.add_parser("methods", help="what record itself calls for every method")
    adapting.add_argument("out", type=Path)
    adapting.add_argument("models", type=Path)
    chosen = parser.parse_args(words)
    if chosen.command == "compare":
        return compare(chosen.old, chosen.new)
    if chosen.command == "record":
        record(chosen.folder.resolve(), chosen.items)
    else:
        adapt_by_methods(chosen.out.resolve(), chosen.models)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
