"""Protocol files: those that come with scantune, and what users may get wrong in theirs."""

import dataclasses
import tomllib
from importlib import resources

import numpy as np
import pytest
import torch

from scantune.errors import InputError
from scantune.simulate import COHORTS, TISSUES, Protocol, Subject, acquire, read_centres
from scantune.simulate.coils import COILS, CoilBody, Endorectal, Surface
from scantune.simulate.protocols import bundled_centres, centres_from_toml
from scantune.simulate.sequences import SEQUENCES, Given, SpinEcho
from tests.simulate.test_cohorts import small_anatomy

FOLDER = resources.files("scantune") / "simulate" / "centres"
FILES = sorted(entry.name.removesuffix(".toml") for entry in FOLDER.iterdir() if entry.name.endswith(".toml"))
TABLES = {name: tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8")) for name in FILES}
CENTRES = [(name, centre) for name in FILES for centre in TABLES[name]]
SPLITS = {  # train / validation / test: the paper's Table 1
    "prostate": {
        "RUNMC": (15, 5, 10),
        "BMC": (15, 5, 10),
        "UCL": (6, 2, 10),
        "HK": (5, 2, 10),
        "BIDMC": (5, 2, 10),
        "USZ": (48, 10, 10),
    },
    "cardiac": {"CSF": (30, 10, 10), "UHE": (10, 5, 10), "HVHD": (55, 10, 10)},
    "spine": dict.fromkeys(("PM", "USZ", "VU", "UCL"), (5, 2, 9)),
    "brain": {"HCP": (20, 5, 10), "AC": (10, 5, 10)},
    "wmh": {"UMC": (10, 5, 10), "NUHS": (10, 5, 10)},
}
SEQUENCE_OF = {
    "prostate": {"spin-echo"},
    "cardiac": {"balanced-ssfp"},
    "spine": {"spoiled-gradient-echo"},
    "brain": {"mprage"},
    "registration": {"mprage", "spoiled-gradient-echo"},
    "wmh": {"flair"},
    "contrasts": {"given"},
    "spine-varied": {"inflow-gradient-echo"},
}
MADE_UP = ("contrasts", "spine-varied")
"""Cohorts whose centres are those of no real scanner."""


def test_every_cohort_has_its_file_and_every_file_parses():
    assert set(FILES) >= {*SEQUENCE_OF, *COHORTS}
    for name in FILES:
        centres = bundled_centres(name)
        assert list(centres) == list(TABLES[name])
        assert all(centre.protocol.name == own for own, centre in centres.items())


@pytest.mark.parametrize("cohort", SPLITS)
def test_centres_and_splits_are_those_of_the_papers_table(cohort):
    centres = bundled_centres(cohort)
    found = {
        name: tuple(centre.splits[key] for key in ("train", "validation", "test")) for name, centre in centres.items()
    }
    assert found == SPLITS[cohort]
    assert next(iter(centres)) == next(iter(SPLITS[cohort]))  # the one to train at


SECOND = [name for name in FILES if name.endswith("-v2")]


@pytest.mark.parametrize("name", SECOND)
def test_a_second_version_changes_nothing_that_is_published(name):
    first = TABLES[name.removesuffix("-v2")]
    assert list(TABLES[name]) == list(first)
    for centre, table in TABLES[name].items():
        changed = {key for key in table if table[key] != first[centre].get(key)} - {"assumed"}
        for key in {"sequence", "coil"} & changed:
            one, other = table[key], first[centre][key]
            changed |= {f"{key}.{part}" for part in one if part != "kind" and one[part] != other.get(part)}
            changed.remove(key)
        assert changed <= set(table["assumed"]), f"{centre} changes what is published"


def test_the_registration_centres_are_those_of_the_paper():
    assert list(bundled_centres("registration")) == ["HCP", "AS", "OASIS"]


@pytest.mark.parametrize(("cohort", "name"), CENTRES)
def test_a_centre_tells_what_it_is_and_what_was_assumed(cohort, name):
    centre, table = bundled_centres(cohort)[name], TABLES[cohort][name]
    assert table["sequence"]["kind"] in SEQUENCE_OF.get(cohort, SEQUENCES)
    for path in centre.assumed:
        entry = table
        for part in path.split("."):
            assert part in entry, f"{path} is assumed, but is not in the table"
            entry = entry[part]
    assert len(set(centre.assumed)) == len(centre.assumed)
    if cohort not in MADE_UP:
        assert centre.vendor in {"Siemens", "Philips", "GE"}
        assert centre.source
        assert centre.assumed
        given = {field.name for field in dataclasses.fields(Protocol)} & set(table)
        assert given >= {"field", "fov", "in_plane", "resolution", "thickness", "gap", "slices", "snr"}


@pytest.mark.parametrize(("cohort", "name"), CENTRES)
def test_every_tissue_has_a_signal_at_the_centres_field(cohort, name):
    protocol = bundled_centres(cohort)[name].protocol
    known = isinstance(protocol.sequence, Given)
    signals = protocol.sequence.signals(protocol.sequence.values if known else TISSUES, protocol.field)
    assert all(np.isfinite(value) and 0 <= value <= 1 for value in signals.values())
    assert max(signals.values()) > 0
    assert known or signals["air"] == 0


@pytest.mark.parametrize(("cohort", "name"), [pair for pair in CENTRES if pair[0] in COHORTS])
def test_a_centre_scans_the_tissues_of_its_cohort(cohort, name):
    """On noise-like anatomy of a few voxels that holds every region."""
    protocol = dataclasses.replace(bundled_centres(cohort)[name].protocol, fov=(24.0, 20.0))
    regions = small_anatomy(COHORTS[cohort]).regions
    rng = np.random.default_rng(0)
    session = protocol.session(tuple(dict.fromkeys(region.tissue for region in regions)), rng)
    view = protocol.view(2)
    spacing, origin = view.grid((-10.0, 10.0), 0.0)
    shares = rng.dirichlet(np.full(len(regions) + 1, 0.1), view.shape).transpose(3, 0, 1, 2)[:-1]
    subject = Subject(torch.from_numpy(shares).float(), regions, spacing, origin, {"rectum": (0.0, -8.0, 0.0)})
    image = acquire(subject, session, rng)
    assert image.shape == (2, round(24 / protocol.in_plane), round(20 / protocol.in_plane))
    assert torch.isfinite(image).all()
    assert image.min() >= 0
    assert image.std() > 0.05 * image.mean()


def test_the_coils_differ_between_prostate_centres():
    kinds = {name: type(centre.protocol.coil) for name, centre in bundled_centres("prostate").items()}
    assert {name for name, kind in kinds.items() if kind is Endorectal} == {"BMC", "HK", "BIDMC", "USZ"}
    assert {kinds["RUNMC"], kinds["UCL"]} == {Surface}


USER = """
[my-scanner]
vendor = "Acme"
field = 1.5
sequence = { kind = "spin-echo", tr = 4000, te = 100.0 }
coil = { kind = "surface", side = "front", strength = 0.4 }
fov = [160, 120.0]
snr = 20
assumed = ["snr", "coil.side"]

[other]
sequence = { kind = "given", values = { CSF = 1, white = 0.5 } }
splits = { train = 3, test = 0 }
"""


def test_a_users_file_becomes_centres(tmp_path):
    (tmp_path / "mine.toml").write_text(USER)
    mine, other = read_centres(tmp_path / "mine.toml").values()
    assert mine.protocol == Protocol(
        "my-scanner", SpinEcho(4000, 100.0), 1.5, Surface("front", 0.4), fov=(160, 120.0), snr=20
    )
    assert (mine.vendor, mine.scanner, mine.assumed) == ("Acme", "", ("snr", "coil.side"))
    assert dict(mine.splits) == {"test": 10}
    assert other.protocol.sequence.signals(["white"], 3.0) == {"white": 0.5}
    assert other.protocol.coil == CoilBody()
    assert dict(other.splits) == {"train": 3, "test": 0}


def centre(sequence='{ kind = "spin-echo", tr = 4000, te = 100 }', rest=""):
    return f"[a]\nsequence = {sequence}\n{rest}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            centre('{ kind = "spin-echo", tr = 4000, te = -5 }'),
            "te of the sequence spin-echo must be a positive number",
        ),
        (centre('{ kind = "spin-echo", tr = 50, te = 80 }'), "te of the sequence .* shorter than its tr, 50 ms, .* 80"),
        (
            centre('{ kind = "flair", tr = 2000, ti = 2500, te = 80 }'),
            "ti of the sequence flair must be shorter than its tr",
        ),
        (
            centre('{ kind = "spoiled-gradient-echo", tr = 20, te = 5, flip = 200 }'),
            "flip of the sequence .* between 0 and 180 degrees, but is 200",
        ),
        (
            centre('{ kind = "radial" }'),
            rf"The sequence in \[a\] of mine.toml must have a kind out of {', '.join(SEQUENCES)}, got 'radial'",
        ),
        (centre("{ tr = 4000, te = 100 }"), "must have a kind out of .* got None"),
        (centre('"spin-echo"'), "must have a kind out of .* got None"),
        (centre('{ kind = ["spin-echo"] }'), r"must have a kind out of .* got \['spin-echo'\]"),
        (centre('{ kind = "spin-echo", tr = 4000 }'), r"the sequence in \[a\] .* must have the setting te: a number"),
        (centre('{ kind = "spin-echo", tr = "4 s", te = 100 }'), "setting tr in the sequence .* a number, got '4 s'"),
        (centre('{ kind = "spin-echo", tr = 4000, te = 100, ti = 9 }'), "Unknown setting 'ti' in the sequence"),
        (centre('{ kind = "given", values = { CSF = -1 } }'), "value of CSF in the sequence given must be a number"),
        (centre('{ kind = "given", values = { CSF = "dark" } }'), "a table of names with a number each"),
        (
            centre(rest='coil = { kind = "phased" }'),
            rf"The coil in \[a\] of mine.toml must have a kind out of {', '.join(COILS)}, got 'phased'",
        ),
        (centre(rest='coil = { kind = "surface", side = "left" }'), "setting side in the coil .* 'front', .*'left'"),
        (centre(rest='coil = { kind = "endorectal", strength = 0.2 }'), "strength of at least 1"),
        (centre(rest="snrr = 5"), r"Unknown setting 'snrr' in \[a\] of mine.toml; known: .*snr"),
        (centre(rest='snr = "high"'), r"The setting snr in \[a\] of mine.toml must be a number, got 'high'"),
        (centre(rest="slices = 2.5"), "setting slices in .* a whole number, got 2.5"),
        (centre(rest="fov = 200"), r"setting fov in .* a list \[a number, a number\], got 200"),
        (centre(rest="snr = -3"), "snr of protocol a must be above 0, but is -3"),
        (centre(rest="fov = [5, 200]"), r"fov of protocol a .* at least 8 voxels each, but is \(5, 200\) at 1.0 mm"),
        (centre(rest='readout = "spiral"'), "readout of protocol a must be one of blurred, truncated"),
        (centre(rest='name = "b"'), r"\[a\] of mine.toml must not have the setting name"),
        (centre(rest="splits = { test = -1 }"), "splits in .* numbers of people, such as { test = 10 }"),
        (centre(rest="splits = { tests = 3 }"), "splits in .* numbers of people"),
        (centre(rest="splits = { test = true }"), "splits in .* numbers of people"),
        (centre(rest="splits = 10"), "splits in .* numbers of people"),
        (centre(rest='assumed = "snr"'), r"\[a\] of mine.toml, assumed must be a list of settings, .* got 'snr'"),
        (centre(rest="assumed = 3"), "assumed must be a list of settings"),
        ("[a]\nsnr = 5", r"\[a\] of mine.toml must say how it scans: sequence = "),
        ("snr = 5", r"mine.toml must hold one table per centre, such as \[my-scanner\]"),
        ("", "mine.toml must hold one table per centre"),
        ("[a\nsnr", "mine.toml is not a valid TOML file"),
    ],
)
def test_bad_protocols_are_told_in_a_sentence(text, says):
    with pytest.raises(InputError, match=says):
        centres_from_toml(text, "mine.toml")


def test_a_file_that_cannot_be_read_is_told_in_a_sentence(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere.toml", tmp_path, tmp_path / "binary.toml"):
        with pytest.raises(InputError, match=f"{path} must be a protocol file, but cannot be read .* Check the path"):
            read_centres(path)


def test_a_tissue_that_a_given_contrast_does_not_state_is_told():
    protocol = centres_from_toml(centre('{ kind = "given", values = { CSF = 1.0 } }'), "mine.toml")["a"].protocol
    with pytest.raises(InputError, match="tissue 'white' is not in the values of the sequence given. There are: CSF"):
        protocol.session(("CSF", "white"), np.random.default_rng(0))
