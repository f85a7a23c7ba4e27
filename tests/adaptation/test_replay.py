"""Steps that a GPU replays are the steps it was shown."""

from copy import deepcopy

import pytest
import torch

from scantune.adaptation.replay import Replay
from scantune.adaptation.sampling import RandomSlices, WholeVolume
from scantune.methods import METHODS, ModelParts
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("sampling", [WholeVolume(), WholeVolume(kept=0), RandomSlices()])
@pytest.mark.parametrize("method", ["foe-cnn", "foe-cnn-pca"])
def test_replayed_objectives_and_gradients_are_those_of_the_work_itself(sampling, method, toy):
    network = deepcopy(toy.network).cuda().requires_grad_(False)
    runner = METHODS[method](ModelParts(Segmentation(), toy.prior.to(torch.device("cuda"))))
    moving = list(runner.parameters(network).values())
    runner.prepare(network)
    for parameter in moving:
        parameter.requires_grad_(True)
    volume, replay = Volume(toy_scan(167)[0].cuda() ** 1.5), Replay(moving)
    for step in range(4):
        found = []
        for way in (None, replay):
            for parameter in moving:
                parameter.grad = None
            terms = sampling.gradient(runner, volume, torch.Generator().manual_seed(step), way)
            gradient = torch.cat([p.grad.flatten() for p in moving if p.grad is not None])
            found.append(torch.cat([terms.objective.detach().view(1), gradient]))
        torch.testing.assert_close(*found, atol=1e-6, rtol=1e-4)
        with torch.no_grad():
            for parameter in moving:
                parameter -= 0.01 * parameter.grad
    assert replay.work.recorded
    runner.finish()
