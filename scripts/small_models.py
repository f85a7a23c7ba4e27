"""Networks of the simulated cohorts at about half the paper's resolution, for experiments without a GPU.

    python scripts/small_models.py MODELS [--recipes prostate spine] [--iterations 1500] [--cache FOLDER]
    python scripts/small_models.py MODELS --version v2 --coarse --augment none    # minutes each, on one core

Writes MODELS/COHORT-AUGMENT-SEED.safetensors, trained by the bundled recipes but for what `SMALL` says, with prior and
calibration. With --coarse, pixels, slices and iterations are those of `cohort_versions.py`. An interrupted run goes on
when the command is given again.
"""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from cohort_versions import COARSE, anatomy_of

from scantune.config.recipe import read_recipe
from scantune.training.fit import fit_model
from scantune.training.plan import TrainingPlan
from scantune.training.train import train_model

ITERATIONS = 1500
SMALL: dict[str, dict[str, Any]] = {
    "prostate": {"size": [128, 128], "spacing": 1.25},
    "cardiac": {"size": [128, 128], "spacing": 2.66},
    "spine": {"size": [104, 104], "spacing": 0.5},
    "wmh": {"size": [128, 128], "spacing": 1.5},
    "hcp": {"size": [128, 128], "spacing": 1.4},
}


def smaller(grid: dict[str, Any], times: int) -> dict[str, Any]:
    """The same field of view with larger pixels; the network halves sizes three times."""
    return {"size": [side // times // 8 * 8 for side in grid["size"]], "spacing": grid["spacing"] * times}


COARSE_WIDTH, HELD_OUT = 8, 10
"""Channels of the first level of coarse networks, and people that calibrate them."""


def cohort_of(recipe_name: str, version: str) -> str:
    """The cohort that a network is trained on."""
    name = str(read_recipe(recipe_name).data["cohort"])
    return name if version == "v1" else f"{name}-{version}"


def plan(recipe_name: str, arguments: argparse.Namespace) -> TrainingPlan:
    """The bundled recipe, made small."""
    recipe = read_recipe(recipe_name)
    cohort = cohort_of(recipe_name, arguments.version)
    pixels, spacing, slices, iterations = COARSE[anatomy_of(cohort)]
    iterations = arguments.iterations or (iterations if arguments.coarse else ITERATIONS)
    every = max(iterations // 6, 1)
    train = replace(
        recipe.train,
        iterations=iterations,
        batch=8,
        augment=arguments.augment,
        seed=arguments.seed,
        validate_every=every,
        checkpoint_every=every,
        compile=False,
        device=arguments.device,
    )
    grid = {"size": [pixels, pixels], "spacing": spacing}
    small = {**recipe.preprocessing, **(grid if arguments.coarse else smaller(SMALL[recipe_name], arguments.shrink))}
    network = {**recipe.network, "width": COARSE_WIDTH if arguments.coarse else arguments.width}
    data = {"cohort": cohort, **({"cache": arguments.cache} if arguments.cache else {})}
    if arguments.coarse:
        data |= {"slices": slices, "validation": HELD_OUT}
        train = replace(train, precision="float32")
    return TrainingPlan.read(replace(recipe, train=train, preprocessing=small, network=network), data)


def main(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.models)
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    for name in arguments.recipes:
        path = folder / f"{cohort_of(name, arguments.version)}-{arguments.augment}-{arguments.seed}.safetensors"
        if path.exists():
            continue
        chosen = plan(name, arguments)
        model = train_model(chosen, command=command, checkpoint=path.with_suffix(".run"))
        print(name, model.provenance["validation_dice"], model.provenance["seconds"], "s", flush=True)
        fit_model(model, chosen, command=command, device=arguments.device).save(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models")
    parser.add_argument("--recipes", nargs="+", default=list(SMALL), choices=list(SMALL))
    parser.add_argument("--version", default="v1", choices=["v1", "v2"], help="of the cohorts")
    parser.add_argument("--coarse", action="store_true", help="the pixels of cohort_versions.py")
    parser.add_argument("--iterations", type=int, default=0, help=f"by default {ITERATIONS}, or those of --coarse")
    parser.add_argument("--shrink", type=int, default=1, help="times that pixels are larger still")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--augment", default="strong", choices=["strong", "none"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", default="", help="folder in which simulated scans are kept")
    parser.add_argument("--device", default="auto")
    main(parser.parse_args())
