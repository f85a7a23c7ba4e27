"""What each method costs: seconds a step, and megabytes in the model file (the table of docs/methods.md).

    OMP_NUM_THREADS=1 python scripts/method_costs.py [--steps 4]

16 slices of 128 x 128 made-up pixels, the default network untrained, one CPU thread, processor time, median of
all steps but the first; every patch counts as active.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scantune
from scantune import AdaptableNetwork, FieldOfExperts, Model
from scantune.backends.slices import Preprocessing
from scantune.experts import PatchSettings
from scantune.networks import Denoiser, Helper, registration_network
from scantune.tasks import Registration, Segmentation
from scantune.training.autoencoders import UNET_LAYERS, new_autoencoders

SUBJECTS = 20
ALL = PatchSettings(threshold=0.0)


def made_up(seed: int) -> Tensor:
    return torch.rand(16, 1, 128, 128, generator=torch.Generator().manual_seed(seed))


def megabytes(network: AdaptableNetwork, **parts: Any) -> float:
    """Size of a model file in float32."""
    model = Model(network, {"a": 1, "b": 2, "c": 3}, Preprocessing(), {"kind": "unet", "classes": 4}, **parts)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.safetensors")
        return (Path(folder) / "model.safetensors").stat().st_size / 1e6


def seconds(network: AdaptableNetwork | Model, steps: int, **settings: Any) -> float:
    """Processor time of a step, the first left out; a model gets slices with heights."""
    marks = []
    heights = torch.arange(16.0).view(16, 1, 1, 1).expand(16, 1, 128, 128)
    scantune.adapt(
        network,
        torch.cat([made_up(9), heights], dim=1) if isinstance(network, Model) else made_up(9),
        steps=steps,
        guard=False,
        device="cpu",
        on_step=lambda *_: marks.append(time.process_time()),
        **settings,
    )
    return statistics.median(later - sooner for sooner, later in itertools.pairwise(marks))


def sizes(network: AdaptableNetwork, helpers: dict[str, Helper]) -> dict[str, FieldOfExperts]:
    """Print what helper networks and priors add to a model file, and return priors of two subjects by density."""
    bare = megabytes(network)
    for name, helper in helpers.items():
        print(f"{name}: {megabytes(network, helpers={name: helper}) - bare:.1f} MB")
    priors = {}
    for density in ("gaussian", "kde", "histogram"):
        one, two = (
            FieldOfExperts.fit(network, [made_up(n) for n in range(people)], density=density, patches=ALL)
            for people in (1, 2)
        )
        priors[density] = two
        first, second = (megabytes(network, prior=prior) - bare for prior in (one, two))
        print(f"{density} prior of {SUBJECTS} subjects: {first + (SUBJECTS - 1) * (second - first):.1f} MB")
    return priors


def main(steps: int) -> None:
    """Print all costs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = AdaptableNetwork.default(classes=4).eval()
    helpers: dict[str, Helper] = {
        "dae": Denoiser(classes=4, depth=16, spacing=1.0).eval().requires_grad_(False),
        "ae": new_autoencoders(net, Segmentation(), made_up(9)[:1], UNET_LAYERS).eval().requires_grad_(False),
    }
    priors = sizes(net, helpers)
    bending = Model(
        registration_network(16, 128, 128, classes=4), {"a": 1}, Preprocessing(), {"kind": "register"}, Registration()
    )
    for preset in ("fast", "paper"):
        for method in ("entropy", "dae", "ae"):
            took = seconds(net, steps, method=method, preset=preset, helpers=helpers)
            print(f"{preset} {method}: {took:.2f} s")
        for density, prior in priors.items():
            for method in ("foe-cnn", "foe-cnn-pca"):
                took = seconds(net, steps, method=method, preset=preset, prior=prior)
                print(f"{preset} {method} {density}: {took:.2f} s")
        print(f"{preset} instance: {seconds(bending, steps, method='instance', preset=preset):.2f} s")
    start = time.process_time()
    scantune.adapt(net, made_up(9), method="batchnorm", guard=False, device="cpu")
    print(f"batchnorm: {time.process_time() - start:.1f} s in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="steps of each method; the first is left out")
    main(parser.parse_args().steps)
