"""What the guard lets pass, on label maps of a hundred pixels and looks made by hand."""

from dataclasses import replace

import pytest
import torch

from scantune import AdaptableNetwork, FieldOfExperts
from scantune.adaptation.guard.stability import StabilityGuard, StabilityReading, StabilityRules
from scantune.adaptation.prediction import predict
from scantune.adaptation.scan_guard import guard_scan
from scantune.prior.calibration import Calibration, EnergyLevels
from scantune.scans.volume import Volume
from tests.conftest import SEGMENTATION, toy_scan

RULES = StabilityRules(charge=0.1, worst=0.5, patience=3, fall=0.5)
SITE = Calibration(EnergyLevels(0.05, 0.1, 1.0), torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.1]))


def look(stability, agreement=1.0, counts=(60, 40)):
    return StabilityReading((stability,) * 2, (agreement,) * 2, counts)


SOURCE = look(0.8)


def verdicts(*looks, source=SOURCE, rules=RULES):
    guard = StabilityGuard(source, rules)
    return [guard.verdict(each) for each in looks]


def test_a_step_that_makes_the_prediction_stabler_is_accepted():
    assert verdicts(look(0.9)) == ["accepted"]
    assert verdicts(look(0.8)) == verdicts(look(0.7)) == ["refused"]


def test_the_least_stable_structure_counts_as_much_as_all():
    """Of 0.9 and 0.7 the mean is 0.8, the least 0.7."""
    uneven = StabilityReading((0.9, 0.7), (1.0, 1.0), (60, 40))
    assert uneven.steadiness(RULES) == pytest.approx(0.75)
    assert [uneven.steadiness(StabilityRules(worst=share)) for share in (0, 1)] == pytest.approx([0.8, 0.7])
    assert verdicts(uneven, source=look(0.76)) == ["refused"]
    assert verdicts(look(0.76), source=uneven) == ["accepted"]


def test_the_more_of_the_prediction_changes_the_stabler_it_must_become():
    """A fifth of the prediction changes, at a tenth: 0.02 is asked."""
    assert verdicts(look(0.819, agreement=0.8)) == ["refused"]
    assert verdicts(look(0.821, agreement=0.8)) == ["accepted"]
    assert verdicts(look(0.821, agreement=0.8), rules=StabilityRules(charge=0.15)) == ["refused"]


def test_later_steps_must_be_better_than_the_best_so_far():
    assert verdicts(look(0.85), look(0.84), look(0.86), look(0.855)) == ["accepted", "refused", "accepted", "refused"]


def test_patience_ends_where_looks_in_a_row_were_no_better():
    assert verdicts(look(0.85), look(0.84), look(0.84), look(0.84))[1:] == ["refused", "refused", "strayed"]
    after_a_better_one = verdicts(look(0.7), look(0.7), look(0.85), look(0.7), look(0.7), look(0.7))
    assert after_a_better_one == ["refused", "refused", "accepted", "refused", "refused", "strayed"]


@pytest.mark.parametrize("counts", [(0, 40), (0, 0)])
def test_a_prediction_that_lost_a_structure_is_refused_however_stable(counts):
    assert verdicts(look(1.0, counts=counts)) == ["refused"]


def test_a_source_that_found_nothing_may_find_something():
    empty = look(0.5, counts=(0, 0))
    assert verdicts(look(0.9, 0.0, (10, 0)), source=empty) == ["accepted"]
    assert verdicts(look(1.0, 1.0, (0, 0)), source=empty) == ["refused"]


TYPICAL, SHIFTED = 0.09, 0.11


def test_a_failed_prediction_may_change_wholly_if_scan_and_prediction_become_those_of_source_subjects():
    failed, usual, odd = look(0.97, counts=(5, 95)), look(0.9, 0.1, (55, 45)), look(0.9, 0.1, (30, 70))
    for step, energy, verdict in (
        (usual, TYPICAL, "accepted"),
        (usual, SHIFTED, "refused"),
        (usual, None, "refused"),
        (odd, TYPICAL, "refused"),
    ):
        assert StabilityGuard(failed, RULES, SITE).verdict(step, energy) == verdict
    assert StabilityGuard(failed, RULES).verdict(usual, TYPICAL) == "refused"
    guard = StabilityGuard(failed, RULES, SITE)
    guard.verdict(usual, TYPICAL)
    assert guard.decision().reason == "the source prediction had odd proportions, which became usual."


def test_usual_proportions_may_not_become_odd_however_stable():
    """The first structure has 0.6 of the foreground in source subjects, give or take 0.1."""
    for source, step, verdict in (
        ((60, 40), (79, 21), "accepted"),
        ((60, 40), (81, 19), "refused"),
        ((35, 65), (36, 64), "accepted"),
        ((35, 65), (34, 66), "refused"),
    ):
        assert StabilityGuard(look(0.8, counts=source), RULES, SITE).verdict(look(0.9, counts=step)) == verdict
    assert StabilityGuard(look(0.8), RULES).verdict(look(0.9, counts=(81, 19))) == "accepted"


def test_a_usual_prediction_needs_no_repair():
    assert StabilityGuard(look(0.97), RULES, SITE).verdict(look(0.9, 0.1), TYPICAL) == "refused"


def test_the_search_for_a_repair_has_patience_and_the_most_stable_repair_is_taken():
    guard = StabilityGuard(look(0.97, counts=(5, 95)), RULES, SITE)
    assert {guard.verdict(look(0.5, 0.5, (5, 95)), SHIFTED) for _ in range(9)} == {"refused"}
    repairs = [guard.verdict(look(stability, 0.1), TYPICAL) for stability in (0.8, 0.7, 0.9)]
    assert repairs == ["accepted", "refused", "accepted"]


def test_of_one_structure_alone_the_energy_must_fall_too():
    source, step = StabilityReading((0.8,), (1.0,), (60,)), StabilityReading((0.9,), (0.95,), (50,))
    assert StabilityGuard(source, RULES, energy=0.2).verdict(step, 0.09) == "accepted"
    assert StabilityGuard(source, RULES, energy=0.2).verdict(step, 0.11) == "refused"
    assert StabilityGuard(source, RULES, energy=0.2).verdict(step, None) == "accepted"
    assert StabilityGuard(source, RULES).verdict(step, 0.11) == "accepted"
    assert StabilityGuard(look(0.8), RULES, energy=0.2).verdict(look(0.9), 0.19) == "accepted"


def test_of_one_structure_alone_the_energy_is_measured_where_a_method_does_not_know_it(toy):
    network, scan = AdaptableNetwork.default(classes=2, width=8).eval(), Volume(toy_scan(300)[0])
    prior = FieldOfExperts.fit(network, toy.volumes[:2])
    before = predict(network, scan, SEGMENTATION, prior)
    watched = guard_scan(network, scan, before, prior)
    assert watched.measure_energy(network) == pytest.approx(before.energy)
    unsure = replace(
        watched, guard=StabilityGuard(StabilityReading((-1.0,), (1.0,), (0,)), RULES, energy=before.energy)
    )
    assert (unsure.verdict(network, None), unsure.verdict(network, 0.4 * before.energy)) == ("refused", "accepted")
    assert (
        guard_scan(toy.network, scan, predict(toy.network, scan, SEGMENTATION, toy.prior), toy.prior).measure_energy
        is None
    )


def test_the_decision_tells_of_the_best_look_in_a_sentence_with_its_numbers():
    guard = StabilityGuard(look(0.8), RULES)
    for each in (look(0.85, 0.95), look(0.9, 0.9), look(0.7, 0.2)):
        guard.verdict(each)
    decision = guard.decision()
    assert decision.action == "adapted"
    assert decision.reason == (
        "the prediction became more stable, 0.800 to 0.900, and has a Dice of 0.900 with the source prediction."
    )
    wanted = {"stability_before": 0.8, "stability_after": 0.9, "agreement": 0.9, "looks": 3.0}
    assert decision.numbers == pytest.approx(wanted)


def test_a_rollback_says_why():
    nothing, worse, emptied = (StabilityGuard(look(0.8), RULES) for _ in range(3))
    worse.verdict(look(0.7))
    emptied.verdict(look(1.0, 0.0, (0, 0)))
    reasons = [guard.decision().reason for guard in (nothing, worse, emptied)]
    assert {guard.decision().action for guard in (nothing, worse, emptied)} == {"unsolved"}
    assert reasons[0] == "no step lowered the objective."
    assert reasons[1].startswith("no step made the prediction more stable (0.800 before)")
    assert reasons[2] == "structures of the source prediction were lost on the way."


def test_a_look_is_made_of_dice_by_structure():
    own = torch.tensor([[1] * 50 + [2] * 50 + [0] * 50])
    moved = [own.roll(shift, dims=1) for shift in (5, 15)]  # Dice 0.9 and 0.7 of each structure
    found = StabilityReading.at([own, *moved], 2, own.roll(25, dims=1))
    assert found.stability == pytest.approx((0.8, 0.8))
    assert found.agreement == pytest.approx((0.5, 0.5))
    assert found.counts == (50, 50)
    assert StabilityReading.at([own, own], 2).agreement == (1, 1)
    assert found.score(RULES) == pytest.approx(0.8 - 0.1 * 0.5)
