"""Scans of one site, one after another."""

import json

import numpy as np
import pytest
import torch

import scantune
from scantune import InputError, Model, Site
from scantune.backends.slices import Preprocessing
from scantune.cli.main import main
from tests.conftest import dice, toy_scan

ARCHITECTURE = {"kind": "unet", "classes": 3, "width": 8}

GOOD, NEXT = toy_scan(300)[0] ** 2, toy_scan(301)[0] ** 2


def bad_scan():
    """Noise: there is nothing in it to find."""
    return torch.rand(4, 1, 48, 48, generator=torch.Generator().manual_seed(1))


def site(toy):
    return Site(toy.network, prior=toy.prior, method="foe-cnn", steps=8, device="cpu")


@pytest.fixture(scope="module")
def visited(toy):
    """A site after one good scan, and that scan's result."""
    here = site(toy)
    return here, here.adapt(GOOD)


def test_the_first_scan_starts_at_the_source(toy, visited):
    here, first = visited
    alone = scantune.adapt(toy.network, GOOD, prior=toy.prior, method="foe-cnn", steps=8, device="cpu")
    assert first.decision == alone.decision
    assert torch.equal(first.prediction, alone.prediction)
    assert first.facts["started_from"] is None
    assert here.remembered.keys() == alone.state.keys()


def test_the_next_one_starts_where_the_last_good_one_ended(toy, visited):
    here, _ = visited
    again = site(toy)
    again.remembered, again.origin = here.remembered, here.origin
    second = again.adapt(NEXT)
    cold = scantune.adapt(toy.network, NEXT, prior=toy.prior, method="foe-cnn", steps=8, device="cpu")
    assert second.decision.action == "adapted"
    assert second.facts["started_from"] == "a volume"
    assert second.trace[0]["objective"] < 0.5 * cold.trace[0]["objective"]
    labels = toy_scan(301)[1]
    assert dice(second.prediction, labels) > dice(cold.source_prediction, labels)


def test_a_bad_scan_does_not_spoil_the_next(toy, visited):
    here, _ = visited
    spoilt, clean = site(toy), site(toy)
    for each in (spoilt, clean):
        each.remembered, each.origin = here.remembered, here.origin
    bad = spoilt.adapt(bad_scan())
    assert bad.decision.action == "unsolved"
    assert torch.equal(bad.prediction, toy.network(bad_scan()).argmax(1))
    after, untouched = spoilt.adapt(NEXT), clean.adapt(NEXT)
    assert torch.equal(after.adapted.probabilities, untouched.adapted.probabilities)
    assert after.decision == untouched.decision


def test_a_harmful_memory_is_not_used(toy, visited):
    """A start that makes nonsense of a scan is refused; the scan is adapted to from the source, and that remembered."""
    here, _ = visited
    harmed = site(toy)
    harmed.remembered = {name: 5 * torch.ones_like(value) for name, value in here.remembered.items()}
    harmed.origin = "a bad one"
    result = harmed.adapt(NEXT)
    cold = scantune.adapt(toy.network, NEXT, prior=toy.prior, method="foe-cnn", steps=8, device="cpu")
    assert result.facts["started_from"] is None
    assert torch.equal(result.adapted.probabilities, cold.adapted.probabilities)
    assert all(torch.equal(harmed.remembered[name], cold.state[name]) for name in cold.state)


def test_the_command_line_adapts_scan_after_scan_of_a_site(toy, tmp_path):
    """The manifest tells where each scan started: the first at the source, the second where the first ended."""
    import nibabel

    model = Model(toy.network, {"rim": 1, "core": 2}, Preprocessing(size=(48, 48)), ARCHITECTURE, prior=toy.prior)
    model.save(tmp_path / "toy.safetensors")
    scans = [tmp_path / name for name in ("a.nii.gz", "b.nii.gz")]
    for path, volume in zip(scans, (GOOD**1.5, NEXT**1.5), strict=True):
        array = (200 * volume[:, 0]).permute(2, 1, 0).numpy()
        nibabel.save(nibabel.Nifti1Image(array, np.diag([-1.0, -1.0, 3.0, 1.0])), path)
    words = [*map(str, scans), "--model", str(tmp_path / "toy.safetensors"), "--out", str(tmp_path / "out")]
    assert main(["adapt", *words, "--site", "--method", "foe-cnn", "--steps", "8", "--no-page"]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings"]["site"]
    assert [manifest["scans"][name]["started_from"] for name in "ab"] == [None, "a"]
    assert manifest["scans"]["a"]["decision"] == "adapted"


def test_a_scan_that_is_left_alone_started_nowhere(toy, visited):
    here, _ = visited
    again = site(toy)
    again.remembered, again.origin = here.remembered, here.origin
    result = again.adapt(toy_scan(302)[0])
    assert result.decision.action == "left alone"
    assert result.facts["started_from"] is None


def test_a_site_needs_the_guard(toy):
    with pytest.raises(InputError, match="needs the guard"):
        Site(toy.network, guard=False)
