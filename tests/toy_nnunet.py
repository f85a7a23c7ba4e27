"""A tiny nnU-Net in its real layout, trained for a moment on made-up scans, and what nnU-Net itself predicts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import torch

from tests.toy_bundle import toy_volume, write_volume

LABELS = {"background": 0, "organ": 1, "core": 2}

REGIONS = {"background": 0, "whole": [1, 2], "core": 2}

PATCHES = {"2d": (16, 24), "3d_fullres": (12, 16, 24)}
"""Smaller than the scans, so that predictions are made of several windows."""

SPACINGS = {"2d": (1.4, 1.3), "3d_fullres": (2.2, 1.4, 1.3)}
"""Others than those of the scans, so that preprocessing resamples them."""


def dataset_json(labels=LABELS, channels=1):
    """What a raw data set says of itself."""
    about = {
        "channel_names": {str(number): f"MRI {number}" for number in range(channels)},
        "labels": labels,
        "numTraining": 4,
        "file_ending": ".nii.gz",
    }
    return about | ({"regions_class_order": [1, 2]} if labels is REGIONS else {})


def plans(channels=1):
    """Plans as nnU-Net's planner writes them, of a network with two small stages."""
    resampling = "resample_data_or_seg_to_shape"
    image = {"is_seg": False, "order": 3, "order_z": 0, "force_separate_z": None}
    configurations = {}
    for name, patch in PATCHES.items():
        dimensions = len(patch)
        configurations[name] = {
            "data_identifier": f"nnUNetPlans_{name}",
            "preprocessor_name": "DefaultPreprocessor",
            "batch_size": 2,
            "patch_size": list(patch),
            "median_image_size_in_voxels": [24.0] * dimensions,
            "spacing": list(SPACINGS[name]),
            "normalization_schemes": ["ZScoreNormalization"] * channels,
            "use_mask_for_norm": [False] * channels,
            "resampling_fn_data": resampling,
            "resampling_fn_seg": resampling,
            "resampling_fn_data_kwargs": image,
            "resampling_fn_seg_kwargs": {**image, "is_seg": True, "order": 1},
            "resampling_fn_probabilities": resampling,
            "resampling_fn_probabilities_kwargs": {**image, "order": 1},
            "architecture": {
                "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
                "arch_kwargs": {
                    "n_stages": 2,
                    "features_per_stage": [6, 12],
                    "conv_op": f"torch.nn.modules.conv.Conv{dimensions}d",
                    "kernel_sizes": [[3] * dimensions] * 2,
                    "strides": [[1] * dimensions, [2] * dimensions],
                    "n_conv_per_stage": [1, 1],
                    "n_conv_per_stage_decoder": [1],
                    "conv_bias": True,
                    "norm_op": f"torch.nn.modules.instancenorm.InstanceNorm{dimensions}d",
                    "norm_op_kwargs": {"eps": 1e-05, "affine": True},
                    "dropout_op": None,
                    "dropout_op_kwargs": None,
                    "nonlin": "torch.nn.LeakyReLU",
                    "nonlin_kwargs": {"inplace": True},
                },
                "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
            },
            "batch_dice": dimensions == 2,
        }
    return {
        "dataset_name": "Dataset501_Balls",
        "plans_name": "nnUNetPlans",
        "original_median_spacing_after_transp": [2.5, 1.5, 1.2],
        "original_median_shape_after_transp": [14, 24, 26],
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": [0, 2, 1],
        "transpose_backward": [0, 2, 1],
        "configurations": configurations,
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {str(number): {} for number in range(channels)},
    }


def channel(image, number):
    """The image in the contrast of a further channel."""
    return image if number == 0 else (1 - image) ** np.float32(1 + number)


def write_scan(folder, name, image, channels=1):
    """Files in nnU-Net's numbering."""
    return [write_volume(folder / f"{name}_{n:04d}.nii.gz", channel(image, n)) for n in range(channels)]


def write_raw(folder, count=4, labels=LABELS, channels=1, volume=toy_volume):
    """Labelled scans as a raw data set."""
    for seed in range(count):
        image, reference = volume(seed)
        write_scan(folder / "imagesTr", f"ball_{seed}", image, channels)
        write_volume(folder / "labelsTr" / f"ball_{seed}.nii.gz", reference)
    (folder / "dataset.json").write_text(json.dumps(dataset_json(labels, channels)), encoding="utf-8")
    return folder


def write_results(
    root, configuration="2d", folds=(0,), labels=LABELS, channels=1, iterations=150, plan=None, volume=toy_volume
):
    """A results folder as nnU-Net leaves it, its networks trained for a moment."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    root = root / "Dataset501_Balls" / f"nnUNetTrainer__nnUNetPlans__{configuration}"
    root.mkdir(parents=True)
    plan, about = plan or plans(channels), dataset_json(labels, channels)
    (root / "plans.json").write_text(json.dumps(plan), encoding="utf-8")
    (root / "dataset.json").write_text(json.dumps(about), encoding="utf-8")
    manager = PlansManager(plan)
    settings = manager.get_configuration(configuration)
    for fold in folds:
        torch.manual_seed(0 if fold == "all" else int(fold))
        network = nnUNetTrainer.build_network_architecture(
            manager, settings, channels, manager.get_label_manager(about).num_segmentation_heads, False
        )
        if iterations:
            train(network, iterations, channels, labels is REGIONS, settings.patch_size, volume)
        (root / f"fold_{fold}").mkdir()
        checkpoint = {
            "network_weights": network.state_dict(),
            "logging": {"mean_fg_dice": [np.float64(0.5)]},
            "init_args": {"configuration": configuration, "fold": fold, "dataset_json": about, "plans": plan},
            "trainer_name": "nnUNetTrainer",
            "inference_allowed_mirroring_axes": tuple(range(len(PATCHES[configuration]))),
        }
        torch.save(checkpoint, root / f"fold_{fold}" / "checkpoint_final.pth")
    return root


def train(network, iterations, channels, regions, patch, volume):
    """Steps of Adam on z-scored toy scans in nnU-Net's order of axes, at their own spacing."""
    adam = torch.optim.Adam(network.train().parameters(), 0.02)
    flat = next(iter(network.parameters())).ndim == 4
    scans = []
    for seed in range(20, 24):
        image, reference = (torch.from_numpy(part).permute(2, 0, 1) for part in volume(seed))
        images = torch.stack([torch.from_numpy(channel(image.numpy(), n)) for n in range(channels)])
        images = (images - images.mean((1, 2, 3), True)) / images.std((1, 2, 3), keepdim=True)
        reference = reference.long()
        scans.append((images.transpose(0, 1), reference) if flat else (images[None], reference[None]))
    for iteration in range(iterations):
        images, reference = scans[iteration % len(scans)]
        sizes = [(min(extent, n), n) for extent, n in zip(patch, reference.shape[1:], strict=True)]
        starts = [int(torch.randint(n - extent + 1, ())) for extent, n in sizes]
        place = [slice(start, start + extent) for start, (extent, _) in zip(starts, sizes, strict=True)]
        output, part = network(images[(..., *place)]), reference[(..., *place)]
        if regions:
            target = torch.stack([part > 0, part > 1], dim=1).float()
            # Otherwise so short a training does not get to the core, which is small.
            rare = torch.tensor(5.0)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(output, target, pos_weight=rare)
        else:
            loss = torch.nn.functional.cross_entropy(output, part)
        adam.zero_grad()
        loss.backward()
        adam.step()
    network.eval()


def predict_by_hand(root, files, out):
    """What nnU-Net's predictor writes for one scan, in this process."""
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(root), None)
    out.mkdir()
    predictor.predict_from_files_sequential([[str(file) for file in files]], [str(out / "ball")])
    return np.asarray(nibabel.load(out / "ball.nii.gz").dataobj)


def predict_by_nnunet(root, folder, out, folds=("0",)):
    """What the command `nnUNetv2_predict_from_modelfolder` writes for the scans of a folder."""
    words = [
        "-i",
        str(folder),
        "-o",
        str(out),
        "-m",
        str(root),
        "-f",
        *folds,
        "-device",
        "cpu",
        "-npp",
        "1",
        "-nps",
        "1",
    ]
    call = "from nnunetv2.inference.predict_from_raw_data import predict_entry_point_modelfolder as main; main()"
    where = Path(out).parent
    places = {f"nnUNet_{kind}": str(where / kind) for kind in ("raw", "preprocessed", "results")}
    subprocess.run(
        [sys.executable, "-c", call, *words], check=True, env={**os.environ, **places, "nnUNet_def_n_proc": "1"}
    )
