"""Steps that a GPU replays are the steps it was shown."""

from copy import deepcopy

import pytest
import torch

from scantune.adaptation.sampling import RandomSlices, WholeVolume
from scantune.methods import METHODS, ModelParts
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("sampling", [WholeVolume(), WholeVolume(kept=0), RandomSlices()])
@pytest.mark.parametrize("method", ["foe-cnn", "foe-cnn-pca"])
def test_replayed_objectives_and_gradients_are_those_of_the_work_itself(sampling, method, toy, monkeypatch):
    network = deepcopy(toy.network).cuda().requires_grad_(False)
    runner = METHODS[method](ModelParts(Segmentation(), toy.prior.to(torch.device("cuda"))))
    moving = list(runner.parameters(network).values())
    runner.prepare(network)
    for parameter in moving:
        parameter.requires_grad_(True)
    volume = Volume(toy_scan(167)[0].cuda() ** 1.5)
    generator = torch.Generator()
    replayed = sampling.gradients(runner, volume, generator)
    monkeypatch.setattr("scantune.adaptation.gradients.unrepeatable_layer", lambda _: torch.nn.Module)
    monkeypatch.setattr("scantune.adaptation.sampling.replayable", lambda *_: False)
    plain = sampling.gradients(runner, volume, generator)
    for step in range(4):
        found = []
        for gradients in (plain, replayed):
            gradients.clear()
            generator.manual_seed(step)
            terms = gradients()
            gradient = torch.cat([p.grad.flatten() for p in moving if p.grad is not None])
            found.append(torch.cat([terms.objective.detach().view(1), gradient]))
        torch.testing.assert_close(*found, atol=1e-6, rtol=1e-4)
        with torch.no_grad():
            for parameter in moving:
                parameter -= 0.01 * parameter.grad
    assert replayed.replay.work.recorded
    assert getattr(plain, "replay", None) is None
    runner.finish()
