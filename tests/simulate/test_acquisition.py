"""From anatomy to image: coils, readouts, noise, and what a protocol makes of a subject."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch
from scipy import stats

from scantune.errors import InputError
from scantune.simulate import FieldOfView, Protocol, Region, Session, Subject, acquire
from scantune.simulate.acquisition import rician
from scantune.simulate.anatomies.brain import TISSUES
from scantune.simulate.coils import COILS, CoilBody, Endorectal, Surface
from scantune.simulate.fields import lattice_points
from scantune.simulate.protocols import bundled_centres
from scantune.simulate.readouts import READOUTS, circular_normal
from scantune.simulate.sequences import Given, SpinEcho

CPU = torch.device("cpu")
SOURCE = bundled_centres("contrasts")["source-3T-mprage"].protocol
EVEN = Given(dict.fromkeys([region.tissue for region in TISSUES], 1.0))
PLAIN = {"texture": 0.0, "bias": 0.0, "snr": 1e6, "resolution": 0.1, "readout": "blurred"}
TRUNCATED = READOUTS["truncated"]


def rng(seed=0):
    return np.random.default_rng(seed)


class Centred:
    """Stands for random numbers that put a coil exactly where it belongs."""

    def normal(self, mean, deviation, count):
        return np.full(count, mean)


def plain(sequence=EVEN, **settings):
    return Protocol("plain", sequence, **{**PLAIN, "scale": 1.0, **settings})


def ball(spacing=(4.0, 1.0, 1.0), shape=(3, 40, 40), around="CSF"):
    """A subject of pure white matter inside a circle; what is around it was stripped away, or is air."""
    points = lattice_points(shape, spacing, [-s * (n - 1) / 2 for s, n in zip(spacing, shape, strict=True)], CPU)
    fractions = torch.zeros(len(TISSUES), *shape)
    fractions[3] = (points[..., 1:].norm(dim=-1) < 16).float()
    return Subject(fractions, TISSUES, spacing, tuple(points[0, 0, 0].tolist()), around=around)


def scan(subject, protocol, seed=0):
    """A scan exactly as the protocol says, without jitter."""
    tissues = [region.tissue for region in subject.regions]
    return acquire(subject, Session(protocol, protocol.sequence.signals(tissues, protocol.field)), rng(seed))


# Coils


POINTS = lattice_points((3, 41, 41), (20.0, 5.0, 5.0), (-20.0, -100.0, -100.0), CPU)
MIDDLE = (1, 20, 20)


def test_a_body_coil_is_even():
    assert torch.equal(CoilBody().gain(POINTS, {}, rng()), torch.ones(3, 41, 41))


@pytest.mark.parametrize(("side", "brightest"), [("front", (1, 40, 20)), ("back", (1, 0, 20))])
def test_a_surface_coil_is_brightest_at_its_side_and_falls_exponentially(side, brightest):
    gain = Surface(side, strength=0.7, reach=100.0).gain(POINTS, {}, Centred())
    assert np.unravel_index(int(gain.argmax()), gain.shape) == brightest
    assert gain[MIDDLE] == pytest.approx(1)
    towards = gain[1, :, 20].log().diff() * (1 if side == "front" else -1)
    np.testing.assert_allclose(towards, 0.7 * 5 / 100, atol=1e-5)


@pytest.mark.parametrize("strength", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("side", ["both", "around"])
def test_coils_on_opposite_sides_are_symmetric_and_brighter_than_the_middle(side, strength):
    gain = Surface(side, strength).gain(POINTS, {}, Centred())
    torch.testing.assert_close(gain, gain.flip(1))
    torch.testing.assert_close(gain, gain.flip(2))
    assert gain[MIDDLE] == pytest.approx(1)
    assert 0.9 * np.exp(strength) < gain[1, 0, 20] <= np.exp(strength)  # at an element
    assert (gain[1, 21:, 20].diff() > 0).all()
    across = gain[1, 20, 0]
    assert across == pytest.approx(float(gain[1, 0, 20])) if side == "around" else across < 1


@pytest.mark.parametrize("side", ["front", "back", "both", "around"])
def test_a_surface_coil_is_one_on_average_in_the_middle(side):
    at = POINTS[1:2, 20:21, 20:21]
    gains = [Surface(side).gain(at, {}, generator).item() for generator in [rng()] * 400]
    assert np.mean(gains) == pytest.approx(1, abs=0.03)
    assert np.std(gains) > 0.01 or side in ("both", "around")  # coils never lie quite alike


RECTUM = (0.0, -40.0, 10.0)


def test_an_endorectal_coil_is_as_strong_as_told_beside_it_and_falls_to_one():
    along = torch.stack([torch.zeros(400), -40.0 + torch.arange(400.0), torch.full((400,), 10.0)], -1)[None, None]
    gain = Endorectal(strength=6.0, reach=25.0).gain(along, {"rectum": RECTUM}, Centred())[0, 0]
    assert gain[0] == pytest.approx(6.0)
    assert (gain.diff() < 0).all()
    assert gain[25] == pytest.approx(1 + 5 / 2**1.5, rel=1e-4)
    assert gain[100] < 1.1
    assert gain[399] == pytest.approx(1, abs=0.005)
    assert (gain > 1).all()


def test_an_endorectal_coil_is_even_along_its_length_only():
    up = torch.stack([torch.arange(100.0), torch.full((100,), -40.0), torch.full((100,), 10.0)], -1)[None, None]
    gain = Endorectal(strength=4.0, length=60.0).gain(up, {"rectum": RECTUM}, Centred())[0, 0]
    np.testing.assert_allclose(gain[:31], 4.0, rtol=1e-5)
    assert (gain[31:].diff() < 0).all()


def test_every_coil_takes_the_same_random_numbers():
    """So that another coil does not change the noise."""
    after = set()
    for coil in COILS.values():
        generator = rng(5)
        coil().gain(POINTS, {"rectum": RECTUM}, generator)
        after.add(generator.random())
    assert len(after) == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Endorectal().gain(POINTS, {"skin": RECTUM}, rng()), "needs an anatomy with a rectum; choose another"),
        (lambda: Endorectal(strength=0.5), "strength of at least 1 .* got 0.5"),
        (lambda: Endorectal(reach=0.0), "reach and a length above 0"),
        (lambda: Surface(side="left"), "must be one of front, back, both, around, got 'left'"),
        (lambda: Surface(strength=-0.1), "strength of 0 or more"),
        (lambda: Surface(reach=0.0), "reach above 0"),
    ],
)
def test_bad_coils_are_told_in_a_sentence(make, says):
    with pytest.raises(InputError, match=says):
        make()


# Readouts


def truncated(image, edge, around=0.0, inside=None):
    image = torch.as_tensor(image, dtype=torch.float32)
    return TRUNCATED.resolve(image, torch.ones_like(image) if inside is None else inside, around, edge).numpy()


@pytest.mark.parametrize("edge", [0.5, 1.0, 1.7, 4.0])
@pytest.mark.parametrize("shape", [(2, 32, 48), (1, 31, 33), (1, 32, 33)])
def test_a_constant_image_stays_constant(edge, shape):
    np.testing.assert_allclose(truncated(np.full(shape, 0.7), edge), 0.7, atol=1e-6)


def rise(edge):
    """Overshoot and 10-90 % width, in voxels, of a step."""
    step = np.zeros((1, 8, 128))
    step[..., 32:96] = 1
    row = truncated(step, edge)[0, 3]
    up = row[16:64]
    places = [int(np.argmax(up > level)) for level in (0.1, 0.9)]
    exact = [p - 1 + (v - up[p - 1]) / (up[p] - up[p - 1]) for p, v in zip(places, (0.1, 0.9), strict=True)]
    return row.max() - 1, exact[1] - exact[0]


def test_a_step_rings_and_gets_wider_with_the_acquired_voxel():
    edges = (1.0, 2.0, 3.0, 4.0, 6.0)
    overshoot, width = zip(*map(rise, edges), strict=True)
    assert all(0.02 < one < 0.10 for one in overshoot)
    assert list(width) == sorted(width)
    np.testing.assert_allclose(np.array(width[1:]) / edges[1:], 0.97, atol=0.08)  # about one acquired voxel


@pytest.mark.parametrize("edge", [1.0, 1.6, 3.0])
@pytest.mark.parametrize("shape", [(1, 40, 64), (2, 41, 33)])
def test_frequencies_that_were_not_acquired_are_gone_and_the_others_stay(edge, shape):
    image = rng().random(shape)
    ours, theirs = (np.fft.fft2(one) for one in (truncated(image, edge), image))
    y, x = (np.abs(np.fft.fftfreq(n)) * 2 * edge for n in shape[1:])
    lost = (y[:, None] > 1) | (x > 1)
    kept = (y[:, None] < 0.85) & (x < 0.85)
    assert lost.any() or edge == 1.0
    assert np.abs(ours[:, lost]).max(initial=0) < 1e-4
    np.testing.assert_allclose(ours[:, kept], theirs[:, kept], atol=2e-4)
    assert (np.abs(ours) <= np.abs(theirs) + 1e-3).all()


def test_beyond_what_was_stripped_lies_fluid_and_not_darkness():
    inside = torch.zeros(1, 32, 32)
    inside[:, 8:24, 8:24] = 1
    np.testing.assert_allclose(truncated(0.3 * inside, 3.0, 0.3, inside), 0.3, atol=1e-6)


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize(("edge", "shape"), [(1.0, (12, 64, 96)), (2.0, (24, 65, 96)), (3.5, (40, 96, 81))])
def test_noise_has_unit_deviation_in_both_channels(readout, edge, shape):
    real, imaginary = READOUTS[readout].noise(torch.Size(shape), edge, rng(), torch.zeros(1)).numpy()
    for channel in (real, imaginary):
        assert channel.shape == shape
        assert channel.mean() == pytest.approx(0, abs=0.03)
        assert channel.std() == pytest.approx(1, abs=0.015)
        assert stats.kurtosis(channel.ravel()) == pytest.approx(0, abs=0.1)
    assert np.corrcoef(real.ravel(), imaginary.ravel())[0, 1] == pytest.approx(0, abs=0.02)


def test_drawn_numbers_are_normal_in_both_parts_and_in_all_directions():
    numbers = circular_normal(rng(), (3, 401, 333), torch.device("cpu")).numpy()
    for part in (numbers.real.ravel(), numbers.imag.ravel(), (numbers * np.exp(0.7j)).real.ravel()):
        assert stats.kstest(part, "norm").pvalue > 0.01
        assert part.mean() == pytest.approx(0, abs=0.006)
        assert part.var() == pytest.approx(1, abs=0.01)
        assert stats.skew(part) == pytest.approx(0, abs=0.015)
        assert stats.kurtosis(part) == pytest.approx(0, abs=0.03)
    assert stats.kstest(np.abs(numbers).ravel(), "rayleigh").pvalue > 0.01
    assert 4 < np.abs(numbers.real).max() < 4.9
    flat = numbers.ravel()
    assert abs(np.corrcoef(flat.real, flat.imag)[0, 1]) < 0.006
    assert abs(np.corrcoef(flat[1:].real, flat[:-1].real)[0, 1]) < 0.006


@pytest.mark.parametrize("edge", [1.0, 2.5])
def test_the_noise_of_the_blurred_readout_never_changes(edge):
    noise = READOUTS["blurred"].noise(torch.Size((2, 5, 7)), edge, rng(), torch.zeros(1))
    np.testing.assert_array_equal(noise, rng().standard_normal((2, 2, 5, 7), dtype=np.float32))


def test_noise_of_interpolated_images_is_as_coarse_as_they_are():
    def alike(readout, edge, lag):
        noise = READOUTS[readout].noise(torch.Size((16, 96, 96)), edge, rng(), torch.zeros(1)).numpy()
        return np.corrcoef(noise[..., lag:].ravel(), noise[..., :-lag].ravel())[0, 1]

    for edge, lag in itertools.product((1.0, 1.5, 2.0, 3.0), (1, 2)):
        assert alike("truncated", edge, lag) == pytest.approx(np.sinc(lag / edge), abs=0.12)
        assert alike("blurred", edge, lag) == pytest.approx(0, abs=0.02)
    assert alike("truncated", 1.0, 1) < alike("truncated", 2.0, 1) - 0.3 < alike("truncated", 4.0, 1) - 0.3


# Magnitude images


@pytest.mark.parametrize("signal", [0.0, 0.5, 3.0])
def test_noise_is_rician(signal):
    noise = 0.4 * torch.from_numpy(rng().standard_normal((2, 200_000), dtype=np.float32))
    noisy = rician(torch.full((200_000,), signal), noise).numpy()
    truth = stats.rice(signal / 0.4, scale=0.4)
    assert noisy.mean() == pytest.approx(truth.mean(), rel=5e-3)
    assert noisy.std() == pytest.approx(truth.std(), rel=1e-2)
    assert np.quantile(noisy, [0.1, 0.5, 0.9]) == pytest.approx(truth.ppf([0.1, 0.5, 0.9]), rel=2e-2)


@pytest.mark.parametrize(("readout", "resolution"), [("blurred", 1.3), ("truncated", 0.8), ("truncated", 2.0)])
def test_noise_in_air_has_the_moments_of_rayleighs_distribution(readout, resolution):
    subject = ball(shape=(40, 64, 64), around="")
    subject.fractions[:, 1:] = 0  # all but one slice are air
    image = scan(subject, plain(snr=20.0, readout=readout, resolution=resolution))[1:].double().numpy()
    sigma = 1 / 20
    assert image.mean() == pytest.approx(sigma * np.sqrt(np.pi / 2), rel=0.01)
    assert (image**2).mean() == pytest.approx(2 * sigma**2, rel=0.02)
    truth = stats.rayleigh(scale=sigma)
    assert image.std() == pytest.approx(truth.std(), rel=0.02)
    assert np.quantile(image, [0.05, 0.5, 0.95]) == pytest.approx(truth.ppf([0.05, 0.5, 0.95]), rel=0.03)


@pytest.mark.parametrize("readout", READOUTS)
def test_noise_in_tissue_is_rician_at_the_protocols_snr(readout):
    subject = ball(shape=(30, 48, 48), around="")
    subject.fractions[:] = 0
    subject.fractions[3] = 1
    dim = Given(dict.fromkeys(EVEN.values, 0.4))
    image = scan(subject, plain(dim, snr=4.0, readout=readout)).numpy()
    truth = stats.rice(4.0, scale=1 / 4)
    middle = image[:, 12:36, 12:36]  # a blurred body is dark beyond the image's border
    assert middle.mean() == pytest.approx(truth.mean(), rel=0.01)
    assert middle.std() == pytest.approx(truth.std(), rel=0.03)


def test_a_perfect_scan_shows_the_signals_of_the_protocol():
    subject = ball()
    subject.fractions[:, :, :, 20:] = 0
    subject.fractions[0, :, 10:30, 20:30] = 0.25
    subject.fractions[1, :, 10:30, 20:30] = 0.75
    image = scan(subject, plain(SOURCE.sequence, gamma=2.0, scale=500.0))
    assert image[1, 20, 10] == pytest.approx(500.0, rel=1e-3)
    mixed = 0.25 * SOURCE.sequence.values["CSF"] + 0.75 * SOURCE.sequence.values["cortex"]
    assert image[1, 20, 25] == pytest.approx(500.0 * mixed**2, rel=1e-3)
    assert image[1, 0, 0] == 0


def test_the_signals_of_a_pulse_sequence_reach_the_image():
    regions = (Region("bladder", "urine"), Region("muscle", "muscle"))
    fractions = torch.zeros(2, 1, 32, 32)
    fractions[0, ..., :16], fractions[1, ..., 16:] = 1, 1
    subject = Subject(fractions, regions, (3.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    sequence = SpinEcho(tr=4000.0, te=100.0)
    image = scan(subject, plain(sequence, field=1.5, scale=800.0))
    signals = sequence.signals(["urine", "muscle"], 1.5)
    assert image[0, 16, 8] == pytest.approx(800.0, rel=1e-3)
    assert image[0, 16, 24] == pytest.approx(800.0 * signals["muscle"] / signals["urine"], rel=1e-3)


def test_noise_and_gain_are_as_strong_as_the_protocol_says():
    subject = ball(shape=(20, 40, 40))
    inside = subject.fractions[3] > 0
    noisy = scan(subject, plain(snr=25.0))
    assert noisy[inside].std().item() == pytest.approx(1 / 25, rel=0.05)
    gains = [float(scan(subject, plain(bias=0.2), seed)[10, 20, 20].log()) for seed in range(60)]
    assert np.std(gains) == pytest.approx(0.2, rel=0.3)


def test_a_surface_coil_brightens_the_back_of_the_head():
    image = scan(ball(), plain(coil=Surface("back", strength=1.0)))
    assert float((image[1, 6, 20] / image[1, 34, 20]).log()) == pytest.approx(0.28, abs=0.02)  # 28 mm apart


def test_an_endorectal_coil_brightens_what_lies_at_the_rectum():
    subject = dataclasses.replace(ball(), landmarks={"rectum": (0.0, -14.0, 0.0)})
    image = scan(subject, plain(coil=Endorectal(strength=6.0, reach=10.0)))
    assert image[1, 6, 20] > 3
    assert image[1, 34, 20] < 2


def test_a_worse_resolution_blurs_an_edge_and_leaves_the_border_bright():
    subject = ball()
    subject.fractions[0, :, :, 20:] = subject.fractions[3, :, :, 20:]
    subject.fractions[3, :, :, 20:] = 0
    blurred = scan(subject, plain(SOURCE.sequence, resolution=4.0))[1, 20]
    profile = stats.norm.cdf((np.arange(6, 34) - 19.5) / (4.0 / 2.3548))
    expected = 1.0 + (0.18 - 1.0) * profile
    np.testing.assert_allclose(blurred[6:34], expected, atol=0.02)


@pytest.mark.parametrize("readout", READOUTS)
def test_outside_is_zero_where_something_was_stripped_and_noise_where_there_is_air(readout):
    protocol = plain(SOURCE.sequence, readout=readout, snr=20.0, resolution=1.5)
    stripped, bare = (scan(ball(around=around), protocol) for around in ("CSF", ""))
    outside = ball().fractions.sum(0) == 0
    assert (stripped[outside] == 0).all()
    assert (stripped[~outside] > 0).all()
    assert (bare[outside] > 0).all()
    assert bare[outside].mean() < 0.2


def test_grain_is_as_strong_as_the_contrast_makes_it_and_only_where_there_is_texture():
    subject = ball(shape=(12, 64, 64), around="")
    subject.fractions[:] = 0
    subject.fractions[3, :, :, :32], subject.fractions[0, :, :, 32:] = 1, 1
    sequence = Given({"CSF": 2.0, "cortex": 0.2, "deep grey": 0.6, "white": 1.0, "brain stem": 0.9})
    deviations = []
    for seed in range(6):
        image = scan(subject, plain(sequence, texture=0.1), seed)[:, 8:56]
        deviations.append(float((image[..., 4:28] - 0.5).square().mean().sqrt()))
        assert image[..., 36:60].std() < 1e-4
    assert np.mean(deviations) == pytest.approx(0.1 * (1.0 - 0.2) / 2.0, rel=0.15)


def test_a_ghost_is_the_picture_shifted_to_either_side():
    subject = ball(shape=(3, 64, 24), around="")
    subject.fractions[:] = 0
    subject.fractions[3, :, 32, 12] = 1
    image = scan(subject, plain(ghosts=0.2))
    for plane in image:
        bright = plane[:, 12]
        assert bright[32] == pytest.approx(1, abs=0.02)
        assert bright.square().sum() == pytest.approx(1 + 2 * 0.1**2, abs=0.03)
        mirrored = bright[1:].flip(0)
        assert mirrored.numpy() == pytest.approx(bright[1:].numpy(), abs=0.02)
        near = bright[32 - 6 : 32].sum() + bright[33 : 32 + 7].sum()
        assert near < 0.1  # ghosts lie a tenth of the field of view away, or more
        assert plane[:, [0, 23]].abs().max() < 1e-3
    assert not torch.allclose(image[0], image[1])


def test_ghosts_leave_noise_and_a_scan_without_them_alone():
    subject = ball()
    assert torch.equal(scan(subject, plain(snr=20.0, ghosts=0.0)), scan(subject, plain(snr=20.0)))
    empty = dataclasses.replace(subject, fractions=torch.zeros_like(subject.fractions), around="")
    assert torch.equal(scan(empty, plain(snr=20.0, ghosts=0.5)), scan(empty, plain(snr=20.0)))


# Protocols and sessions


def tissues_of(protocol):
    return tuple(protocol.sequence.values)


def test_jitter_is_modest_and_keeps_the_order_of_tissues():
    protocol = bundled_centres("contrasts")["spinecho-1.5T"].protocol
    drawn = [protocol.session(tissues_of(protocol), rng(i)) for i in range(400)]
    cortex = np.array([one.signals["cortex"] for one in drawn])
    assert cortex.std() == pytest.approx(0.05 * (1.0 - 0.51), rel=0.2)
    assert cortex.mean() == pytest.approx(0.92, abs=0.005)
    assert np.mean([one.signals["CSF"] < one.signals["cortex"] < one.signals["white"] for one in drawn]) > 0.95
    for name, rate in {"bias": 5, "snr": 3, "gamma": 1, "scale": 3}.items():
        spread = np.log([getattr(one.protocol, name) / getattr(protocol, name) for one in drawn])
        assert spread.mean() == pytest.approx(0, abs=4 * 0.05 * rate / 20)
        assert spread.std() == pytest.approx(0.05 * rate, rel=0.15)


def test_jitter_changes_nothing_else_and_no_jitter_nothing_at_all():
    protocol = dataclasses.replace(SOURCE, jitter=0.0)
    still = protocol.session(tissues_of(protocol), rng())
    assert still == Session(protocol, dict(protocol.sequence.values))
    moved = SOURCE.session(tissues_of(SOURCE), rng()).protocol
    back = dataclasses.replace(moved, **{name: getattr(SOURCE, name) for name in ("bias", "snr", "gamma", "scale")})
    assert back == SOURCE


def test_fat_suppression_takes_fat_and_marrow_alone():
    sequence = Given({"fat": 1.0, "marrow": 0.8, "muscle": 0.6})
    drawn = plain(sequence, jitter=0.0, fat=0.25).session(("fat", "marrow", "muscle"), rng())
    assert drawn.signals == pytest.approx({"fat": 0.25, "marrow": 0.2, "muscle": 0.6})


def test_a_protocol_tells_later_settings_only_where_they_are_used():
    assert not {"border", "ghosts", "fat"} & set(re.findall(r"(\w+)=", repr(plain())))
    told = repr(plain(border=1.5, ghosts=0.1, fat=0.2))
    assert told == repr(plain()).removesuffix(")") + ", border=1.5, ghosts=0.1, fat=0.2)"


def test_signals_never_get_negative():
    protocol = plain(Given({"air": 0.0, "fat": 1.0}), jitter=0.3)
    drawn = [protocol.session(("air", "fat"), rng(i)).signals for i in range(100)]
    assert min(min(one.values()) for one in drawn) == 0


def test_a_session_asks_for_the_tissues_of_the_anatomy():
    protocol = plain(SpinEcho(tr=4000.0, te=100.0), jitter=0.0)
    assert set(protocol.session(("fat", "urine"), rng()).signals) == {"fat", "urine"}


def test_slices_lie_a_thickness_and_a_gap_apart():
    protocol = plain(thickness=3.0, gap=0.6, slices=20, fov=(180.0, 160.0), in_plane=0.8, slice_edges=0.2)
    view = protocol.view()
    assert view == FieldOfView(20, 180.0, 160.0, 0.8, 3.0, 3.6, 0.2)
    assert view.shape == (20, 225, 200)
    spacing, origin = view.grid((-30.0, 10.0), 0.25)
    assert spacing == (3.6, 0.8, 0.8)
    assert origin[0] + 3.6 * 19 / 2 == pytest.approx(-10 + 0.25 * 3.6)
    assert origin[1:] == pytest.approx((-0.8 * 224 / 2, -0.8 * 199 / 2))


@pytest.mark.parametrize(("gap", "slices"), [(0.6, 8), (None, 8), (None, None)])
def test_slices_that_were_asked_for_are_spread_over_the_anatomy(gap, slices):
    protocol = plain(thickness=3.0, gap=gap, slices=5)
    view = protocol.view(slices)
    count = slices or 5
    assert (view.slices, view.spacing) == (count, None)
    (between, *_), (first, *_) = view.grid((-30.0, 10.0), 0.0)
    assert between == pytest.approx(40 / count)
    assert first - between / 2 == pytest.approx(-30)
    assert first + between * (count - 0.5) == pytest.approx(10)


def test_a_view_tells_whether_a_coil_presses_on_the_organs():
    assert plain(coil=Endorectal()).view().endorectal
    assert not plain(coil=Surface()).view().endorectal


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: plain(snr=-1), "snr of protocol plain must be above 0, but is -1"),
        (lambda: plain(field=0), "field of protocol plain must be above 0"),
        (lambda: plain(thickness=float("nan")), "thickness of protocol plain must be above 0, but is nan"),
        (lambda: plain(gap=-0.1), "gap of protocol plain must be 0 or more, but is -0.1"),
        (lambda: plain(gap=float("nan")), "gap of protocol plain must be 0 or more, but is nan"),
        (lambda: plain(scale=float("inf")), "scale of protocol plain must be above 0, but is inf"),
        (lambda: plain(fov=(160.0, float("nan"))), r"fov of protocol plain .*, but is \(160.0, nan\)"),
        (lambda: plain(jitter=-0.1), "jitter of protocol plain must be 0 or more"),
        (lambda: plain(border=-1.0), "border of protocol plain must be 0 or more"),
        (lambda: plain(ghosts=-1.0), "ghosts of protocol plain must be 0 or more"),
        (lambda: plain(fat=float("inf")), "fat of protocol plain must be 0 or more"),
        (lambda: plain(slice_edges=1.5), "slice_edges of protocol plain must be 1 or less, but is 1.5"),
        (lambda: plain(slices=0), "Protocol plain must have at least 1 slice, but has 0"),
        (lambda: plain(fov=(160.0, 5.0)), r"fov of protocol plain .* at least 8 voxels each, but is \(160.0, 5.0\)"),
        (lambda: plain(readout="spiral"), "readout of protocol plain must be one of blurred, truncated, .*'spiral'"),
        (lambda: plain().session(("CSF", "bone"), rng()), "The tissue 'bone' is not in the values of the sequence"),
        (
            lambda: plain(SpinEcho(tr=4000.0, te=100.0)).session(("plastic",), rng()),
            "The tissue 'plastic' is not in the table of tissues. There are: CSF",
        ),
        (
            lambda: plain(SpinEcho(tr=4000.0, te=100.0), field=7.0).session(("fat",), rng()),
            "field strength must be 1.5 or 3 T, .* but is 7.0 T",
        ),
        (lambda: plain(Given({"a": 0.0})).session(("a",), rng()), "Protocol plain must give one of the tissues a sig"),
        (lambda: FieldOfView(slices=0), "at least 1 slice, but 0 were asked for"),
    ],
)
def test_bad_protocols_are_told_in_a_sentence(make, says):
    with pytest.raises(InputError, match=says):
        make()
