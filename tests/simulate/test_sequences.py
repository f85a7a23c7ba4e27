"""Signal equations against a Bloch simulation and closed-form limits; the tissue table against known contrasts."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from scantune.errors import InputError
from scantune.simulate.sequences import (
    SEQUENCES,
    BalancedSsfp,
    Flair,
    Given,
    InflowGradientEcho,
    Mprage,
    SpinEcho,
    SpoiledGradientEcho,
)
from scantune.simulate.tissues import TISSUES, Relaxation, Tissue

FIELDS = (1.5, 3.0)
SOME = ("white", "CSF", "spinal CSF", "fat", "blood", "muscle")
NAMES = """CSF, cortex, deep grey, white, brain stem, lesion, cord grey, cord white,
    cord grey 2, cord white 2, fat, muscle, bone, marrow, disc,
    blood, myocardium, lung, air, peripheral zone, transition zone, urine, rectal wall, stool, balloon, liver, skin,
    vessel, ligament"""
GOOD = {
    "spin-echo": {"tr": 500.0, "te": 12.0},
    "spoiled-gradient-echo": {"tr": 24.0, "te": 5.0, "flip": 25.0},
    "inflow-gradient-echo": {"tr": 539.0, "te": 12.4, "flip": 35.0, "inflow": 0.8},
    "mprage": {"tr": 2300.0, "ti": 900.0, "te": 3.0, "flip": 9.0, "echo_spacing": 7.0, "echoes": 176},
    "flair": {"tr": 9000.0, "ti": 2500.0, "te": 100.0},
    "balanced-ssfp": {"tr": 3.2, "te": 1.6, "flip": 55.0},
    "given": {"values": {"white": 1.0, "cortex": 0.6}},
}

# Bloch simulation: 4 x 4 matrices that act on (Mx, My, Mz, 1), equilibrium Mz = 1.


def pulse(degrees):
    """Rotation about x."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[1, 0, 0, 0], [0, c, -s, 0], [0, s, c, 0], [0, 0, 0, 1.0]])


def wait(time, t1, t2, off_resonance=0.0):
    """Relaxation and precession by `off_resonance` radians per ms."""
    c, s = math.cos(off_resonance * time), math.sin(off_resonance * time)
    e1, e2 = math.exp(-time / t1), math.exp(-time / t2)
    return np.array([[e2 * c, -e2 * s, 0, 0], [e2 * s, e2 * c, 0, 0], [0, 0, e1, 1 - e1], [0, 0, 0, 1.0]])


SPOIL = np.diag([0.0, 0.0, 1.0, 1.0])


def play(*events):
    """One matrix for events in the order of time."""
    return functools.reduce(lambda done, event: event @ done, events, np.eye(4))


def echo(until_echo, after_echo):
    """Complex transverse magnetisation at the echo, after very many repetitions of both parts."""
    many = np.linalg.matrix_power(play(until_echo, after_echo), 2**16)
    mx, my, *_ = until_echo @ many @ np.array([0, 0, 1.0, 1])
    return complex(mx, my)


def bloch_spin_echo(q, r):
    def one(off):
        half = wait(q.te / 2, r.t1, r.t2, off)
        return echo(play(pulse(90), half, pulse(180), half), play(wait(q.tr - q.te, r.t1, r.t2), SPOIL))

    return abs(np.mean([one(off) for off in np.linspace(-1, 1, 7)]))


def bloch_spoiled_gradient_echo(q, r):
    return abs(
        echo(
            play(pulse(q.flip), wait(q.te, r.t1, r.t2_star)),
            play(wait(q.tr - q.te, r.t1, r.t2_star), SPOIL),
        )
    )


def bloch_mprage(q, r):
    before = q.echoes // 2
    after = q.echoes - before - 1
    shot = [pulse(q.flip), wait(q.echo_spacing, r.t1, r.t2_star), SPOIL]
    first = [pulse(180), wait(q.ti - before * q.echo_spacing, r.t1, r.t2_star)]
    rest = wait(q.tr - q.ti - (after + 1) * q.echo_spacing, r.t1, r.t2_star)
    centre = [pulse(q.flip), wait(q.te, r.t1, r.t2_star)]
    return abs(
        echo(
            play(*first, *shot * before, *centre),
            play(wait(q.echo_spacing - q.te, r.t1, r.t2_star), SPOIL, *shot * after, rest),
        )
    )


def bloch_flair(q, r):
    half = wait(q.te / 2, r.t1, r.t2)
    return abs(
        echo(
            play(pulse(180), wait(q.ti, r.t1, r.t2), pulse(90), half, pulse(180), half),
            play(wait(q.tr - q.ti - q.te, r.t1, r.t2), SPOIL),
        )
    )


def bloch_balanced_ssfp(q, r):
    return abs(
        echo(
            play(pulse(q.flip), wait(q.te, r.t1, r.t2)),
            play(wait(q.tr - q.te, r.t1, r.t2), pulse(-q.flip), wait(q.tr, r.t1, r.t2)),
        )
    )


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("sequence", "bloch"),
    [
        (SpinEcho(500, 12), bloch_spin_echo),
        (SpinEcho(600, 300), bloch_spin_echo),
        (SpoiledGradientEcho(24, 5, 25), bloch_spoiled_gradient_echo),
        (SpoiledGradientEcho(600, 20, 110), bloch_spoiled_gradient_echo),
        (Mprage(2300, 900, 3, 9, 7, 176), bloch_mprage),
        (Mprage(1462, 641, 4, 10, 9.7, 127), bloch_mprage),
        (Mprage(1500, 400, 2, 30, 10, 1), bloch_mprage),
        (Flair(9000, 2500, 100), bloch_flair),
        (Flair(2000, 750, 300), bloch_flair),
        (BalancedSsfp(3.2, 1.6, 55), bloch_balanced_ssfp),
        (BalancedSsfp(40, 10, 120), bloch_balanced_ssfp),
    ],
    ids=lambda value: type(value).__name__ if dataclasses.is_dataclass(value) else "",
)
def test_equations_agree_with_a_bloch_simulation(sequence, bloch, name, field):
    tissue = TISSUES[name]
    expected = tissue.density * bloch(sequence, tissue.relaxation(field))
    assert sequence.signal(tissue, field) == pytest.approx(expected, rel=1e-9, abs=1e-12)


WATERY = Tissue(0.9, {3.0: Relaxation(1000.0, 100.0, 50.0)})
SHORT, LONG = 1e-6, 1e6


def test_spin_echo_becomes_proton_density_at_long_tr_and_short_te():
    assert SpinEcho(LONG, SHORT).signal(WATERY, 3.0) == pytest.approx(0.9, rel=1e-6)


def test_spin_echo_decays_with_t2_at_long_tr():
    assert SpinEcho(LONG, 80).signal(WATERY, 3.0) == pytest.approx(0.9 * math.exp(-0.8), rel=1e-9)


def test_spin_echo_is_saturation_recovery_at_short_te():
    assert SpinEcho(500, SHORT).signal(WATERY, 3.0) == pytest.approx(0.9 * (1 - math.exp(-0.5)), rel=1e-6)


def test_gradient_echo_decays_with_t2_star():
    early, late = (SpoiledGradientEcho(LONG, te, 90).signal(WATERY, 3.0) for te in (SHORT, 25))
    assert early == pytest.approx(0.9, rel=1e-6)
    assert late / early == pytest.approx(math.exp(-0.5), rel=1e-6)


@pytest.mark.parametrize("inflow", [0.0, 0.4, 1.0])
def test_fluid_that_flows_in_has_met_no_pulse(inflow):
    times = {"tr": 539.0, "te": 12.4, "flip": 35.0}
    still = SpoiledGradientEcho(**times).signals(SOME, 3.0)
    flowing = InflowGradientEcho(**times, inflow=inflow).signals(SOME, 3.0)
    for name in SOME:
        tissue = TISSUES[name]
        fresh = tissue.density * math.sin(math.radians(35)) * math.exp(-12.4 / tissue.relaxation(3.0).t2_star)
        moves = name in ("CSF", "spinal CSF", "blood")
        expected = inflow * fresh + (1 - inflow) * still[name] if moves else still[name]
        assert flowing[name] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match="inflow of the sequence inflow-gradient-echo must be from 0 to 1"):
        InflowGradientEcho(**times, inflow=1.2)


def test_gradient_echo_is_brightest_at_the_ernst_angle():
    angles = np.arange(1, 90, 0.05)
    signals = [SpoiledGradientEcho(50, 5, float(angle)).signal(WATERY, 3.0) for angle in angles]
    ernst = math.degrees(math.acos(math.exp(-50 / 1000)))
    assert angles[np.argmax(signals)] == pytest.approx(ernst, abs=0.06)


@pytest.mark.parametrize("t1", [300.0, 1000.0, 4000.0])
def test_inversion_nulls_at_t1_ln_2(t1):
    tissue = Tissue(1.0, {3.0: Relaxation(t1, 100.0, 50.0)})
    ti = t1 * math.log(2)
    assert Flair(LONG, ti, 10).signal(tissue, 3.0) == pytest.approx(0, abs=1e-9)
    assert Mprage(LONG, ti, 2, 90, 10, 1).signal(tissue, 3.0) == pytest.approx(0, abs=1e-9)
    assert Flair(LONG, 1.1 * ti, 10).signal(tissue, 3.0) > 0.01


def test_flair_is_a_magnitude():
    assert Flair(LONG, SHORT, SHORT).signal(WATERY, 3.0) == pytest.approx(0.9, rel=1e-6)


def test_mprage_with_feeble_pulses_is_a_plain_inversion_recovery():
    flip = 1e-4
    got = Mprage(2000, 700, SHORT, flip, 8, 100).signal(WATERY, 3.0) / math.radians(flip)
    expected = 0.9 * abs(1 - 2 * math.exp(-0.7) / (1 + math.exp(-2)))
    assert got == pytest.approx(expected, rel=1e-6)


def test_mprage_forgets_the_inversion_in_a_long_train():
    train = Mprage(60_000, 25_000, 3, 12, 10, 4000)
    steady = SpoiledGradientEcho(10, 3, 12)
    assert train.signal(WATERY, 3.0) == pytest.approx(steady.signal(WATERY, 3.0), rel=1e-6)


def test_balanced_ssfp_depends_on_t1_over_t2_only_when_tr_is_short():
    angle = math.radians(50)
    expected = 0.9 * math.sin(angle) / (1 + math.cos(angle) + (1 - math.cos(angle)) * 1000 / 100)
    assert BalancedSsfp(2 * SHORT, SHORT, 50).signal(WATERY, 3.0) == pytest.approx(expected, rel=1e-6)


def test_balanced_ssfp_cannot_exceed_half_the_equilibrium_when_t1_is_t2():
    tissue = Tissue(1.0, {3.0: Relaxation(500.0, 500.0, 500.0)})
    assert BalancedSsfp(2 * SHORT, SHORT, 90).signal(tissue, 3.0) == pytest.approx(0.5, rel=1e-6)


def test_the_table_has_every_tissue():
    assert {" ".join(name.split()) for name in NAMES.split(",")} <= set(TISSUES)


@pytest.mark.parametrize("name", TISSUES)
def test_relaxation_times_are_in_their_natural_order(name):
    tissue = TISSUES[name]
    assert 0 <= tissue.density <= 1.1
    assert sorted(tissue.at) == [1.5, 3.0]
    low, high = (tissue.relaxation(field) for field in FIELDS)
    for one in (low, high):
        assert 0 < one.t2_star <= one.t2 <= one.t1 < math.inf
    assert low.t1 <= high.t1 and low.t2_star >= high.t2_star and low.t2 >= high.t2


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", [name for name in SEQUENCES if name != "given"])
def test_air_and_the_coil_balloon_give_nothing(name, field):
    signals = SEQUENCES[name](**GOOD[name]).signals(("air", "balloon", "white"), field)
    assert signals["air"] == signals["balloon"] == 0 < signals["white"]


def falls(sequence, field, *names, by=1.05):
    """Signals fall along the names, each by a factor that the eye can see."""
    values = list(sequence.signals(names, field).values())
    assert all(a > by * b for a, b in itertools.pairwise(values)), dict(zip(names, values, strict=True))
    return values


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "sequence",
    [
        Mprage(2300, 900, 3, 9, 7, 176),
        Mprage(1462, 641, 4, 10, 9.7, 128),
        SpoiledGradientEcho(24, 5, 25),
        SpinEcho(500, 12),
    ],
)
def test_t1_weighting_shows_white_over_grey_matter_over_csf(sequence, field):
    falls(sequence, field, "white", "deep grey", "CSF")
    falls(sequence, field, "white", "cortex", "CSF", by=1.15)
    falls(sequence, field, "white", "lesion")


@pytest.mark.parametrize("field", FIELDS)
def test_t2_weighting_shows_csf_over_grey_over_white_matter(field):
    falls(SpinEcho(4500, 100), field, "CSF", "lesion", "cortex", "deep grey", "white", by=1.1)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("times", [(11000, 2800, 125), (9000, 2500, 82), (8000, 2340, 126)])
def test_flair_shows_lesions_and_nulls_csf(times, field):
    falls(Flair(*times), field, "lesion", "cortex", "white", by=1.15)
    signals = Flair(*times).signals(("CSF", "white"), field)
    assert signals["CSF"] < 0.2 * signals["white"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("flip", [35, 45, 60])
def test_cine_shows_blood_over_myocardium_over_lung_and_fat_bright(flip, field):
    cine = BalancedSsfp(3.2, 1.6, flip)
    falls(cine, field, "blood", "myocardium", "lung", by=1.8)
    falls(cine, field, "fat", "blood")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("te", [90, 120])
def test_prostate_t2_weighting_shows_the_zones_and_bright_urine_and_fat(te, field):
    turbo = SpinEcho(4000, te)
    falls(turbo, field, "urine", "peripheral zone", "transition zone", "muscle", "bone", by=1.2)
    falls(turbo, field, "fat", "transition zone", "rectal wall", by=1.2)
    assert turbo.signals(["vessel"], field)["vessel"] < 1e-4


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("tr", [600, 1000])
@pytest.mark.parametrize("te", [13, 25])
@pytest.mark.parametrize("flip", [28, 35])
def test_cord_t2_star_weighting_shows_csf_over_grey_a_little_over_white_matter(tr, te, flip, field):
    _, grey, white = falls(SpoiledGradientEcho(tr, te, flip), field, "spinal CSF", "cord grey", "cord white", by=1.1)
    assert 1.10 < grey / white < 1.20


def test_signals_come_by_name_and_in_order():
    sequence = SpinEcho(500, 12)
    signals = sequence.signals(iter(("white", "CSF")), 3.0)
    assert list(signals) == ["white", "CSF"]
    assert signals["CSF"] == sequence.signal(TISSUES["CSF"], 3.0)


def test_given_signals_are_what_was_stated_at_any_field():
    given = Given({"white": 1.0, "cortex": 0.6, "my own": 2})
    assert given.signals(("my own", "cortex"), 7.0) == {"my own": 2.0, "cortex": 0.6}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_survive_a_record(name):
    sequence = SEQUENCES[name](**GOOD[name])
    assert dataclasses.asdict(sequence) == GOOD[name]
    assert SEQUENCES[name](**dataclasses.asdict(sequence)) == sequence


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        *((name, {"te": -1.0}, "te of .* positive number of ms, but is -1.0") for name in GOOD if name != "given"),
        *((name, {"tr": 0.0}, "tr of .* positive") for name in GOOD if name != "given"),
        *((name, {"te": math.nan}, "te of .* positive number") for name in GOOD if name != "given"),
        *((name, {"tr": "fast"}, "tr of .* positive number of ms, but is 'fast'") for name in GOOD if name != "given"),
        *((name, {"tr": True}, "tr of .* but is True") for name in GOOD if name != "given"),
        ("spin-echo", {"te": 600.0}, "te of .* shorter than its tr, 500 ms, but is 600 ms"),
        ("spin-echo", {"te": 500.0}, "te of .* shorter than its tr"),
        ("spoiled-gradient-echo", {"te": 30.0}, "te of .* shorter than its tr, 24 ms"),
        ("balanced-ssfp", {"te": 5.0}, "te of .* shorter than its tr, 3.2 ms"),
        ("mprage", {"te": 8.0}, "te of .* shorter than its echo_spacing, 7 ms"),
        ("mprage", {"ti": 2400.0}, "ti of .* shorter than its tr"),
        ("mprage", {"ti": -5.0}, "ti of .* positive"),
        ("mprage", {"echo_spacing": 0.0}, "echo_spacing of .* positive"),
        ("mprage", {"ti": 500.0}, "train of .* lasts from -116 to 1116 ms. Change ti"),
        ("mprage", {"tr": 1200.0}, "train of .* 0 to 1200 ms, but lasts from 284 to 1516 ms"),
        ("mprage", {"echoes": 0}, "echoes of .* whole number from 1, but is 0"),
        ("mprage", {"echoes": 1.5}, "echoes of .* whole number from 1, but is 1.5"),
        ("flair", {"ti": 9500.0}, "ti of .* shorter than its tr, 9000 ms"),
        ("flair", {"ti": 0.0}, "ti of .* positive"),
        ("flair", {"te": 9500.0}, "te of .* shorter than its tr"),
        ("flair", {"te": 6800.0}, "ti and te of .* together be shorter than its tr, 9000 ms, but are 2500 and 6800 ms"),
        *(
            (name, {"flip": flip}, f"flip of .* between 0 and 180 degrees, but is {flip!r}")
            for name in ("spoiled-gradient-echo", "mprage", "balanced-ssfp")
            for flip in (0.0, 180.0, -10.0, "wide")
        ),
        ("given", {"values": {"white": -0.5}}, "value of white .* number from 0, but is -0.5"),
        ("given", {"values": {"white": math.inf}}, "value of white .* number from 0, but is inf"),
    ],
)
def test_bad_values_get_a_sentence_that_names_sequence_and_field(name, change, words):
    with pytest.raises(InputError, match=words) as caught:
        SEQUENCES[name](**GOOD[name] | change)
    assert f"sequence {name}" in str(caught.value)
    assert str(caught.value).endswith(".")


def test_an_unknown_tissue_gets_a_sentence_that_lists_the_known_ones():
    with pytest.raises(InputError, match="tissue 'whit' is not in the table of tissues. There are: CSF, .*cortex"):
        SpinEcho(500, 12).signals(["white", "whit"], 3.0)
    with pytest.raises(InputError, match="tissue 'CSF' is not in the values of the sequence given. There are: white"):
        Given({"white": 1.0}).signals(["CSF"], 3.0)


@pytest.mark.parametrize("field", [0.5, 7.0])
def test_an_unknown_field_strength_gets_a_sentence(field):
    with pytest.raises(InputError, match=f"field strength must be 1.5 or 3 T, .* but is {field} T. Choose 1.5 or 3."):
        SpinEcho(500, 12).signals(["white"], field)
