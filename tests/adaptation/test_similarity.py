"""How the guard judges registrations: by the likeness of warped atlas and scan, and by how a deformation behaves."""

from dataclasses import replace
from statistics import fmean

import pytest
import torch

import scantune
from scantune.adaptation.guard.similarity import SimilarityGuard, SimilarityReading, SimilarityRules
from scantune.evaluation.metrics import dice
from scantune.methods import METHODS, Instance
from scantune.networks.diffeomorphism import folding_share, local_correlation, roughness
from scantune.scans.volume import Volume
from scantune.tasks import TASKS
from tests.conftest import toy_scan, with_heights
from tests.scripts.test_scripts import script

RULES = SimilarityRules(charge=0.1, patience=2, folding=0.01, rougher=2.0, smooth=0.2)
SOURCE = SimilarityReading(0.2, 0.03, 0.5, 1.0, (60, 40))


def verdicts(*looks, rules=RULES):
    guard = SimilarityGuard(SOURCE, rules)
    return [guard.verdict(each) for each in looks], guard.decision()


def test_a_step_that_makes_atlas_and_scan_more_alike_is_accepted_and_later_ones_must_be_better():
    better, less, best = (replace(SOURCE, likeness=value) for value in (0.3, 0.25, 0.31))
    found, decision = verdicts(SOURCE, better, less, best)
    assert found == ["refused", "accepted", "refused", "accepted"]
    assert decision.reason == (
        "atlas and scan became more alike, 0.200 to 0.310, "
        "and the prediction has a Dice of 1.000 with the source prediction."
    )
    wanted = {"likeness_before": 0.2, "likeness_after": 0.31, "folding_before": 0.03, "folding_after": 0.03}
    assert decision.numbers == {
        **wanted,
        "roughness_before": 0.5,
        "roughness_after": 0.5,
        "agreement": 1.0,
        "looks": 4.0,
    }


def test_the_more_of_the_prediction_changes_the_more_alike_they_must_become():
    """A fifth of the prediction changes, at a tenth: 0.02 is asked."""
    for likeness, verdict in ((0.219, "refused"), (0.221, "accepted")):
        assert verdicts(replace(SOURCE, likeness=likeness, agreement=0.8))[0] == [verdict]


def test_patience_ends_where_looks_in_a_row_were_no_better():
    assert verdicts(SOURCE, SOURCE)[0] == ["refused", "strayed"]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"folding": 0.039}, "accepted"),
        ({"folding": 0.041}, "refused"),
        ({"roughness": 0.99}, "accepted"),
        ({"roughness": 1.01}, "refused"),
        ({"counts": (100, 0)}, "refused"),
    ],
)
def test_a_deformation_that_folds_or_crumples_or_loses_a_structure_is_refused_however_alike(change, verdict):
    assert verdicts(replace(SOURCE, likeness=0.9, **change))[0] == [verdict]


def test_a_source_without_a_deformation_may_get_a_smooth_one():
    still = replace(SOURCE, roughness=0.0)
    for roughness_after, verdict in ((0.19, "accepted"), (0.21, "refused")):
        step = replace(still, likeness=0.3, roughness=roughness_after)
        assert SimilarityGuard(still, RULES).verdict(step) == verdict


def test_a_rollback_says_what_was_missing():
    assert verdicts()[1].reason == "no step lowered the objective."
    asked = "no step made atlas and scan more alike (0.200 before) in proportion to how much it changed the prediction."
    assert verdicts(SOURCE)[1].reason == asked
    torn = verdicts(replace(SOURCE, likeness=0.9, folding=0.5))[1]
    assert (torn.action, torn.reason) == (
        "unsolved",
        "the deformation that makes atlas and scan more alike folds or is too rough.",
    )


def test_a_look_is_the_mean_over_all_slices_and_padding_counts_nothing(toy_registration):
    toy, scan = toy_registration, with_heights(toy_scan(94)[0])
    padding = torch.zeros_like(scan[:, :1], dtype=torch.bool)
    padding[..., :5] = True
    with torch.no_grad():
        output = toy.network(scan)
    alike = local_correlation(output["warped"], scan[:, :1])
    labels = output["out"].argmax(1)
    other = labels.roll(1, -1)
    for given, expected in ((None, alike.mean()), (padding, alike[..., 5:].mean())):
        look = SimilarityReading.of(toy.network, Volume(scan, given), toy.task, other, 2, 1)
        assert look.likeness == pytest.approx(float(expected), rel=1e-4)
        assert look.folding == folding_share(output["displacement"])
        assert look.roughness == pytest.approx(float(roughness(output["displacement"])), rel=1e-4)
        assert look.counts == tuple(int((labels == value).sum()) for value in (1, 2))
        assert look.agreement == pytest.approx(fmean(dice(labels.numpy(), other.numpy(), value) for value in (1, 2)))


def test_without_a_method_a_network_is_adapted_by_that_of_its_task(toy, toy_registration):
    registered = scantune.adapt(toy_registration.model, with_heights(toy_scan(95)[0]), steps=6)
    assert registered.facts["method"] == "instance"
    assert registered.decision.action == "adapted"
    numbers = registered.decision.numbers
    assert numbers["likeness_after"] > numbers["likeness_before"]
    assert scantune.adapt(toy.network, toy_scan(95)[0], toy.prior, steps=1).facts["method"] == "foe-cnn-pca"


def test_every_task_names_a_method_that_applies_to_it():
    for name, task in TASKS.items():
        assert name not in METHODS[task.method].refuses


class Estranged(Instance):
    """Makes atlas and scan less alike."""

    name = "estranged"

    def terms(self, statistics):
        terms = super().terms(statistics)
        return replace(terms, objective=-terms.objective)


def test_what_makes_atlas_and_scan_less_alike_is_rolled_back_by_either_preset(toy_registration):
    scan = with_heights(toy_scan(96)[0])
    for preset in ("fast", "paper"):
        result = scantune.adapt(toy_registration.model, scan, method=Estranged, preset=preset, steps=3, guard=True)
        assert result.trace[-1]["objective"] < result.trace[0]["objective"]
        assert result.decision.action == "unsolved"
        assert result.network.state_dict().keys() == toy_registration.network.state_dict().keys()


def test_a_typical_scan_is_registered_better_all_the_same(toy_registration):
    toy, scan = toy_registration, toy_registration.volumes[0]
    prior = toy.prior.calibrated(toy.network, [(volume, None) for volume in toy.volumes], task=toy.task)
    levels = replace(prior.calibration.levels, middle=10.0, typical=11.0, far=20.0)
    prior = replace(prior, calibration=replace(prior.calibration, levels=levels))
    assert scantune.adapt(toy.model, scan, prior, steps=3).decision.action == "adapted"


def test_a_deformation_is_no_start_for_the_next_scan_of_a_site(toy_registration):
    site = scantune.Site(toy_registration.model, steps=3)
    for seed, slices in ((97, 6), (98, 4)):
        result = site.adapt(with_heights(toy_scan(seed)[0])[:slices])
        assert (result.decision.action, result.facts["started_from"], result.state) == ("adapted", None, {})


def test_rules_are_played_back_on_paths_as_the_guard_would_judge_them():
    def row(step, dice, likeness, folding=0.0, objective=None):
        seen = {"likeness": likeness, "folding": folding, "roughness": 1.0, "agreement": 1.0, "counts": [60, 40]}
        return {"step": step, "dice": [dice], "smoothed": objective or -step, "valid": True, "resemblance": seen}

    path = [row(0, 0.7, 0.2), row(1, 0.75, 0.3), row(2, 0.9, 0.4, objective=5), row(3, 0.8, 0.5, 0.005)]
    rules = script("likeness_rules")
    assert [rules.play(path, SimilarityRules(folding=bound))["step"] for bound in (0.01, 0.001)] == [3, 1]
    worse = [row(0, 0.7, 0.2), row(1, 0.6, 0.1)]
    told = rules.summary([path, worse], SimilarityRules(folding=0.01, rougher=2.0))
    changes, free = (0.8 - 0.7, 0.0), (0.8 - 0.7, 0.6 - 0.7)
    expected = ["2", f"{fmean(changes):+.4f}", f"{fmean(free):+.4f}", "+0.0000", "1/1", "+5.0e-03", "1.00"]
    assert told == expected
    lines = [{"model": "toy", "run": "instance", "path": path}]
    assert "| toy | instance | 0.1 | 1 | 3 | 1 | +0.1000 | +0.1000 | +0.1000 | 1/1 |" in rules.table(lines)


def test_a_path_notes_what_the_guard_could_know_at_every_step(toy_registration):
    paths, rules = script("likeness_paths"), script("likeness_rules")
    images, labels = toy_scan(96)
    scan = Volume(with_heights(images))
    first, *others = paths.follow(toy_registration.model, scan, labels, paths.Run("instance", steps=3))
    assert [row["step"] for row in others] == list(range(1, len(others) + 1))
    source = toy_registration.model.task.predict(toy_registration.network(scan.images))
    assert first["dice"] == pytest.approx([dice(source.numpy(), labels.numpy(), value) for value in (1, 2)])
    assert first["resemblance"]["agreement"] == 1
    assert rules.play([first, *others], SimilarityRules())["resemblance"]["likeness"] > first["resemblance"]["likeness"]
