"""Models from nnU-Net results: folders with `plans.json`, `dataset.json` and `fold_0/checkpoint_final.pth`."""

from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scantune.backends.nnunet import NnUnet
from scantune.backends.quiet import quiet
from scantune.errors import InputError, error_message
from scantune.model.folders import NNUNET_CHECKPOINT, require_trust
from scantune.model.model import Model
from scantune.networks import AdaptableEnsemble, Ensemble
from scantune.tasks import Segmentation

WHY = (
    "its checkpoints are pickles and its plans name Python classes, so that a folder made for that can run any code "
    "when it is read"
)

CONFIGURATIONS = ("2d", "3d_fullres", "3d_lowres")
"""Configurations that need no prediction of another one."""


def load_folder(path: Path, trust: bool = False) -> Model:
    """Load a results folder of nnU-Net, such as `Dataset501_Name/nnUNetTrainer__nnUNetPlans__3d_fullres`.

    Args:
        path: The folder, for all of its folds; or that of one fold in it, such as `fold_0`.
        trust: Whether code that the folder holds may run.

    Raises:
        InputError: The folder is not whole, its configuration is not supported, or it is not trusted.
    """
    require_trust(path, trust, WHY)
    if find_spec("nnunetv2") is None:
        raise InputError(f"{path} needs nnU-Net, which is missing: pip install 'scantune[nnunet]'.")
    root, folds = _folds(path)
    predictor = _read(root, folds)
    plans, dataset = predictor.plans_manager, predictor.dataset_json
    configuration = _configuration(predictor)
    if configuration not in CONFIGURATIONS:
        raise InputError(
            f"{path} is of the configuration {configuration}, which takes the prediction of another network; supported "
            f"are {', '.join(CONFIGURATIONS)}. Give a folder of one of these."
        )
    labels = plans.get_label_manager(dataset)
    mirrored = predictor.allowed_mirroring_axes
    settings = {"dataset": str(plans.dataset_name), "plans": str(plans.plans_name), "folds": folds}
    held_out = _held_out(root, folds, str(dataset["file_ending"]))
    name = f"{plans.dataset_name} {configuration}"
    return Model(
        network=_network(predictor),
        labels=_names(labels),
        backend=NnUnet(plans, configuration, dataset, None if mirrored is None else tuple(mirrored), settings),
        architecture={"kind": "nnunet", "network": type(predictor.network).__name__},
        task=Segmentation(overlapping=labels.has_regions),
        provenance={**settings, "configuration": configuration, "trainer": str(predictor.trainer_name), **held_out},
        name=name,
    )


def _folds(path: Path) -> tuple[Path, list[str]]:
    """Return the results folder, and the names of its folds that are used."""
    if (path / NNUNET_CHECKPOINT).is_file():
        return path.parent, [path.name.removeprefix("fold_")]
    found = sorted(file.parent.name.removeprefix("fold_") for file in path.glob(f"fold_*/{NNUNET_CHECKPOINT}"))
    # As nnU-Net does: the network of all cases is used only if it is alone.
    return path, [fold for fold in found if fold != "all"] or found


def _read(root: Path, folds: list[str]) -> Any:
    """Return nnU-Net's predictor with the networks of some folds, on the CPU."""
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    try:
        with quiet():
            predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
            predictor.initialize_from_trained_model_folder(str(root), folds, NNUNET_CHECKPOINT)
    except Exception as error:  # of any kind, from pickles and from code that they name
        raise InputError(
            f"nnU-Net cannot read {root} ({type(error).__name__}: {error_message(error)}). Does nnUNetv2_predict run "
            "with this folder?"
        ) from error
    return predictor


def _configuration(predictor: Any) -> str:
    """Return the name of the configuration that a predictor has read."""
    plans, own = predictor.plans_manager, predictor.configuration_manager.configuration
    named = plans.plans["configurations"]
    return next(str(name) for name in named if plans.get_configuration(name).configuration == own)


def _network(predictor: Any) -> nn.Module:
    """Return the network of a single fold, or those of several behind a normaliser each."""
    members: list[nn.Module] = []
    for parameters in predictor.list_of_parameters:
        predictor.network.load_state_dict(parameters)
        members.append(deepcopy(predictor.network).eval())
    if len(members) == 1:
        return members[0]
    channels = len(predictor.dataset_json["channel_names"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AdaptableEnsemble.around(Ensemble(members, channels)).eval()


def _held_out(root: Path, folds: list[str], ending: str) -> dict[str, list[str]]:
    """Return the cases that the network of a single fold was validated on, if nnU-Net has left their predictions."""
    if len(folds) > 1:
        return {}
    files = (root / f"fold_{folds[0]}" / "validation").glob(f"*{ending}")
    names = sorted(file.name.removesuffix(ending) for file in files)
    return {"held_out": names} if names else {}


def _names(labels: Any) -> dict[str, int]:
    """Return the value of each structure, or the number of each region, counted from 1."""
    names = [name for name in labels.label_dict if name not in ("background", "ignore")]
    if labels.has_regions:
        return {name: number for number, name in enumerate(names, start=1)}
    return {name: int(labels.label_dict[name]) for name in sorted(names, key=lambda name: labels.label_dict[name])}
