"""What the guard lets pass, on label maps of a hundred pixels."""

import pytest
import torch

from scantune.calibration import Calibration, Levels
from scantune.guard import AGREEMENT, ODD, ODDNESS, Guard, judge

SOURCE_SITE = Calibration(Levels(0.1, 0.1, 1.0), torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.1]))
TOLERANT = Calibration(Levels(0.1, 0.1, 1.0), torch.tensor([0.6, 0.4]), torch.tensor([10.0, 10.0]))


def labels(first, second, background=50):
    """Background, then so many pixels of each structure, `(1, pixels)`."""
    return torch.tensor([[0] * background + [1] * first + [2] * second])


def accepts(before, after, known=SOURCE_SITE):
    return Guard(before, 2, known).verdict(after, None) == "accepted"


@pytest.mark.parametrize(("first", "second"), [(60, 40), (10, 90), (100, 0)])
def test_the_same_prediction_is_accepted_however_odd(first, second):
    assert accepts(labels(first, second), labels(first, second))


def test_proportions_that_get_odder_are_refused():
    before, after = labels(60, 40), labels(50, 50)  # from 0 to 1 deviation
    assert Guard(before, 2, SOURCE_SITE).agreement(after) > AGREEMENT
    assert not accepts(before, after)
    assert accepts(before, after, TOLERANT)


def test_proportions_may_always_be_a_little_odd():
    assert 0.4 < ODDNESS < 0.6
    assert accepts(labels(60, 40), labels(56, 44))
    assert not accepts(labels(60, 40), labels(54, 46))


def test_odd_proportions_may_get_less_odd_and_not_more():
    odd, less_odd = labels(40, 60), labels(48, 52)  # 2 deviations, and 1.2
    assert accepts(odd, less_odd)
    assert not accepts(less_odd, odd)
    assert accepts(less_odd, odd, TOLERANT)


def test_a_prediction_that_has_moved_too_far_is_refused():
    """Shifted by n of 50 pixels, each structure and the background keep their sizes and a Dice of 1 - n / 50."""
    before = torch.tensor([[1] * 50 + [2] * 50 + [0] * 50])
    known = Calibration(Levels(0.1, 0.1, 1.0), torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.1]))
    guard = Guard(before, 2, known)
    for shift, verdict in ((5, True), (9, True), (11, False), (25, False)):
        after = before.roll(shift, dims=1)
        assert guard.agreement(after) == pytest.approx(1 - shift / 50)
        assert (guard.verdict(after, None) == "accepted") is verdict


def test_agreement_is_monais_dice_over_the_structures_of_the_source(rng):
    from monai.metrics import compute_dice
    from monai.networks.utils import one_hot

    known = Calibration(Levels(0.1, 0.1, 1.0), torch.full((3,), 1 / 3), torch.ones(3))
    for absent in (None, 3):
        before, after = (torch.randint(0, 4, (5, 12, 9), generator=rng) for _ in range(2))
        before[before == absent] = 0
        pair = (one_hot(volume[None, None], 4) for volume in (after, before))
        scores = compute_dice(*pair, include_background=False)
        assert scores.isnan().sum() == (0 if absent is None else 1)
        assert Guard(before, 3, known).agreement(after) == pytest.approx(float(scores.nanmean()), rel=1e-6)


def test_a_source_without_structures_may_turn_into_anything():
    empty = labels(0, 0, 150)
    guard = Guard(empty, 2, SOURCE_SITE)
    assert guard.agreement(labels(10, 90)) == 1
    for after in (empty, labels(60, 40), labels(10, 90)):
        assert guard.verdict(after, None) == "accepted"


def test_a_prediction_may_not_be_emptied():
    assert not accepts(labels(60, 40), labels(0, 0, 150))
    assert not accepts(labels(60, 40), labels(0, 0, 150), TOLERANT)


TYPICAL, SHIFTED = 0.05, 0.2  # energies below and above the source site's level of 0.1


def test_an_odd_prediction_may_change_wholly_if_scan_and_prediction_become_typical():
    failed, repaired = labels(5, 95), torch.tensor([[1] * 60 + [2] * 40 + [0] * 50])
    guard = Guard(failed, 2, SOURCE_SITE)
    assert guard.before > ODD
    assert guard.agreement(repaired) < AGREEMENT
    assert guard.verdict(repaired, SHIFTED) == "refused"
    assert guard.verdict(repaired, None) == "refused"
    assert guard.verdict(labels(95, 5), TYPICAL) == "refused"
    assert guard.verdict(repaired, TYPICAL) == "accepted"


def test_a_usual_prediction_may_not_change_wholly_however_typical_its_scan_becomes():
    usual, other = labels(60, 40), torch.tensor([[1] * 60 + [2] * 40 + [0] * 50])
    assert Guard(usual, 2, SOURCE_SITE).verdict(other, TYPICAL) == "strayed"


def test_once_strayed_an_odd_prediction_is_only_accepted_as_a_repair():
    guard = Guard(labels(5, 95), 2, SOURCE_SITE)
    assert guard.verdict(labels(8, 92), SHIFTED) == "accepted"
    assert guard.verdict(labels(90, 10), SHIFTED) == "refused"
    assert guard.verdict(labels(8, 92), SHIFTED) == "refused"


FULL, EMPTY = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0])


@pytest.mark.parametrize(
    ("before", "after", "source", "adapted", "action", "reason"),
    [
        (2.0, 1.0, FULL, FULL, "kept", "the objective fell from 2 to 1."),
        (2.0, 1.0, EMPTY, EMPTY, "kept", "the objective fell from 2 to 1."),
        (2.0, 1.0, FULL, EMPTY, "rolled back", "the adapted prediction collapsed to one class; the source had 3."),
        (1.0, 1.0, FULL, FULL, "rolled back", "no step that the guard accepts lowered the objective from 1."),
        (1.0, float("inf"), FULL, FULL, "rolled back", "no step that the guard accepts lowered the objective from 1."),
        (1.0, float("nan"), FULL, FULL, "rolled back", "no step that the guard accepts lowered the objective from 1."),
    ],
)
def test_a_finished_adaptation_is_judged(before, after, source, adapted, action, reason):
    decision = judge(before, after, source, adapted)
    assert decision.action == action
    assert decision.reason == reason
