"""Networks of the simulated cohorts at about half the paper's resolution, for experiments without a GPU.

    python scripts/small_models.py MODELS [--recipes prostate spine] [--iterations 1500] [--cache FOLDER]

Writes MODELS/RECIPE-AUGMENT-SEED.safetensors, trained by the bundled recipes but for what `SMALL` says, with prior and
calibration. An interrupted run goes on when the command is given again.
"""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from scantune.config.recipe import read_recipe
from scantune.training.fit import fit_model
from scantune.training.plan import TrainingPlan
from scantune.training.train import train_model

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


def plan(recipe_name: str, arguments: argparse.Namespace) -> TrainingPlan:
    """The bundled recipe, made small."""
    recipe = read_recipe(recipe_name)
    every = max(arguments.iterations // 6, 1)
    train = replace(
        recipe.train,
        iterations=arguments.iterations,
        batch=8,
        augment=arguments.augment,
        seed=arguments.seed,
        validate_every=every,
        checkpoint_every=every,
        compile=False,
        device=arguments.device,
    )
    small = {**recipe.preprocessing, **smaller(SMALL[recipe_name], arguments.shrink)}
    network = {**recipe.network, "width": arguments.width}
    data = {"cache": arguments.cache} if arguments.cache else {}
    return TrainingPlan.read(replace(recipe, train=train, preprocessing=small, network=network), data)


def main(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.models)
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    for name in arguments.recipes:
        path = folder / f"{name}-{arguments.augment}-{arguments.seed}.safetensors"
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
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--shrink", type=int, default=1, help="times that pixels are larger still")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--augment", default="strong", choices=["strong", "none"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", default="", help="folder in which simulated scans are kept")
    parser.add_argument("--device", default="auto")
    main(parser.parse_args())
