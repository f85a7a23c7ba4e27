"""A tiny MONAI bundle in its real layout, trained for a moment on made-up scans, and MONAI's own inference by hand."""

import json
from pathlib import Path

import nibabel
import numpy as np
import torch

AFFINE = np.array([[0.0, -1.5, 0.0, 12.0], [1.2, 0.0, 0.0, -20.0], [0.0, 0.0, 2.5, 4.0], [0.0, 0.0, 0.0, 1.0]])
"""A grid that is neither RAS nor isotropic, so that preprocessing turns and resamples it."""

CONFIG = {
    "imports": ["$import glob", "$import os"],
    "bundle_root": ".",
    "output_dir": "$@bundle_root + '/eval'",
    "dataset_dir": "/workspace/data",
    "datalist": "$list(sorted(glob.glob(@dataset_dir + '/*.nii.gz')))",
    "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
    "network_def": {
        "_target_": "UNet",
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 3,
        "channels": [4, 8],
        "strides": [2],
        "norm": "batch",
    },
    "network": "$@network_def.to(@device)",
    "preprocessing": {
        "_target_": "Compose",
        "transforms": [
            {"_target_": "LoadImaged", "keys": "image"},
            {"_target_": "EnsureChannelFirstd", "keys": "image"},
            {"_target_": "Orientationd", "keys": "image", "axcodes": "RAS"},
            {"_target_": "Spacingd", "keys": "image", "pixdim": [1.5, 1.5, 2.0], "mode": "bilinear"},
            {"_target_": "ScaleIntensityRanged", "keys": "image", "a_min": 0, "a_max": 1, "b_min": 0, "b_max": 1},
            {"_target_": "EnsureTyped", "keys": "image"},
        ],
    },
    "dataset": {"_target_": "Dataset", "data": "$[{'image': i} for i in @datalist]", "transform": "@preprocessing"},
    "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
    "inferer": {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 16], "sw_batch_size": 2, "overlap": 0.5},
    "postprocessing": {
        "_target_": "Compose",
        "transforms": [
            {"_target_": "Activationsd", "keys": "pred", "softmax": True},
            {
                "_target_": "Invertd",
                "keys": "pred",
                "transform": "@preprocessing",
                "orig_keys": "image",
                "nearest_interp": False,
                "to_tensor": True,
            },
            {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
            {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir", "separate_folder": False},
        ],
    },
    "handlers": [{"_target_": "StatsHandler", "iteration_log": False}],
    "evaluator": {
        "_target_": "SupervisedEvaluator",
        "device": "@device",
        "val_data_loader": "@dataloader",
        "network": "@network",
        "inferer": "@inferer",
        "postprocessing": "@postprocessing",
        "val_handlers": "@handlers",
    },
    "checkpointloader": {
        "_target_": "CheckpointLoader",
        "load_path": "$@bundle_root + '/models/model.pt'",
        "load_dict": {"model": "@network"},
    },
    "initialize": ["$monai.utils.set_determinism(seed=123)", "$@checkpointloader(@evaluator)"],
    "run": ["$@evaluator.run()"],
}

METADATA = {
    "version": "0.1.0",
    "task": "Made-up segmentation",
    "network_data_format": {
        "inputs": {"image": {"type": "image", "num_channels": 1, "channel_def": {"0": "image"}}},
        "outputs": {
            "pred": {
                "type": "image",
                "format": "segmentation",
                "num_channels": 3,
                "channel_def": {"0": "background", "1": "organ", "2": "core"},
            }
        },
    },
}


def toy_volume(seed, shape=(26, 24, 14)):
    """A bright ball with a brighter core in noise, `(x, y, z)`, and its labels."""
    rng = np.random.default_rng(seed)
    steps = np.linalg.norm(AFFINE[:3, :3], axis=0)
    places = np.meshgrid(*[step * (np.arange(n) - n / 2) for n, step in zip(shape, steps, strict=True)], indexing="ij")
    distance = np.linalg.norm(np.stack(places) - rng.uniform(-3, 3, (3, 1, 1, 1)), axis=0)
    radius = rng.uniform(9, 12)
    labels = np.select([distance < radius / 2, distance < radius], [2, 1], 0).astype(np.uint8)
    return (np.array([0.1, 0.5, 0.8])[labels] + rng.normal(0, 0.04, shape)).clip(0, 1).astype(np.float32), labels


def write_volume(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, AFFINE), path)
    return path


def write_data(folder, count=4):
    """Labelled scans in the layout of the decathlon, which MONAI's bundles are mostly trained on."""
    listed = []
    for seed in range(count):
        item = {"image": f"./imagesTr/ball_{seed}.nii.gz", "label": f"./labelsTr/ball_{seed}.nii.gz"}
        for name, array in zip(item.values(), toy_volume(seed), strict=True):
            write_volume(folder / name, array)
        listed.append(item)
    about = {
        "modality": {"0": "MRI"},
        "labels": {"0": "background", "1": "organ", "2": "core"},
        "training": listed,
        "test": [],
    }
    (folder / "dataset.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


def write_bundle(root, config=CONFIG, metadata=METADATA, iterations=60, as_yaml=False):
    """Train the network of a config on prepared toy scans, and write the bundle."""
    import monai.networks.nets as nets

    (root / "configs").mkdir(parents=True)
    (root / "models").mkdir()
    if as_yaml:
        import yaml

        (root / "configs" / "inference.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    else:
        (root / "configs" / "inference.json").write_text(json.dumps(config), encoding="utf-8")
    (root / "configs" / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    (root / "configs" / "logging.conf").write_text("[loggers]\nkeys=__import__('os').abort()\n", encoding="utf-8")
    torch.manual_seed(0)
    definition = {name: value for name, value in config["network_def"].items() if name != "_target_"}
    network = getattr(nets, config["network_def"]["_target_"])(**definition)
    if iterations:
        _train(network, iterations, definition["in_channels"], definition["out_channels"])
    torch.save(network.state_dict(), root / "models" / "model.pt")
    return root


def _train(network, iterations, channels, classes):
    adam = torch.optim.Adam(network.parameters(), 0.02)
    for module in network.modules():
        if hasattr(module, "momentum"):
            module.momentum = 0.2
    scans = [[torch.from_numpy(part[:24, :24, :14]) for part in toy_volume(seed)] for seed in range(20, 24)]
    for iteration in range(iterations):
        image, labels = scans[iteration % len(scans)]
        output = network.train()(image[None, None].expand(1, channels, -1, -1, -1))
        if classes == 3:
            loss = torch.nn.functional.cross_entropy(output, labels[None].long())
        else:  # regions that overlap: all of the organ, and its core
            target = torch.stack([labels > 0, labels > 1][:classes])[None].float()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(output, target)
        adam.zero_grad()
        loss.backward()
        adam.step()


def infer_by_hand(root, files, out):
    """What MONAI's evaluator does, by the config's own parts and in its order; returns the label map that it saves."""
    from monai.bundle import ConfigParser
    from monai.data import decollate_batch

    parser = ConfigParser()
    parser.read_config(str(next((root / "configs").glob("inference.*"))))
    parser["bundle_root"], parser["output_dir"], parser["device"] = str(root), str(out), "$torch.device('cpu')"
    parser["datalist"] = [str(file) for file in files] if len(files) == 1 else [[str(file) for file in files]]
    network = parser.get_parsed_content("network")
    network.load_state_dict(torch.load(root / "models" / "model.pt", weights_only=True))
    inferer, post = (parser.get_parsed_content(name) for name in ("inferer", "postprocessing"))
    for batch in parser.get_parsed_content("dataloader"):
        with torch.no_grad():
            batch["pred"] = inferer(batch["image"], network.eval())
        for one in decollate_batch(batch):
            post(one)
    (saved,) = Path(out).glob("*.nii.gz")
    return nibabel.load(saved)


def infer_by_monai(root, folder, out):
    """MONAI's own workflow on the scans of a folder, which needs ignite; writes `NAME_trans.nii.gz`."""
    from monai.bundle import ConfigWorkflow

    places = {"bundle_root": str(root), "dataset_dir": str(folder), "output_dir": str(out)}
    config = str(next((root / "configs").glob("inference.*")))
    workflow = ConfigWorkflow(
        config, logging_file=False, workflow_type="infer", device="$torch.device('cpu')", **places
    )
    workflow.initialize()
    workflow.run()
