"""`scantune simulate`: cohorts as files, their manifest, contact sheet and recipe; and the page that tells of it."""

import dataclasses
import json
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from matplotlib.image import imread

from scantune.cli.console import ScanProgress
from scantune.cli.main import main
from scantune.cohorts.folder import centre_record
from scantune.cohorts.recipe import bundled_preprocessing, suggested_preprocessing
from scantune.cohorts.write import CohortSettings, write_cohort
from scantune.config.recipe import read_recipe
from scantune.config.toml import toml
from scantune.errors import InputError
from scantune.plots.contact_sheet import CentreView, contact_sheet, scanner_summary
from scantune.scans.case import Case
from scantune.scans.io import read_labels, read_scan
from scantune.scans.preprocess import Preprocessing
from scantune.simulate import COHORTS, SEQUENCES, TISSUES, Protocol, label_maps, read_centres
from scantune.simulate.coils import COILS
from scantune.simulate.protocols import bundled_centres, centres_from_toml
from scantune.simulate.scheme import labelled_atlas, read_scheme
from scantune.training.sources import FileSource
from tests.simulate.test_simulate import toy_map

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")
CPU = torch.device("cpu")
SCANNERS = """
[home]
vendor = "Acme"
sequence = { kind = "mprage", tr = 2300, ti = 1050, te = 3, flip = 9, echo_spacing = 7, echoes = 176 }
in_plane = 4.0
resolution = 4.0
slices = 3
splits = { train = 2, validation = 1, test = 1 }
source = "made up"
assumed = ["snr"]
[away]
field = 1.5
sequence = { kind = "spin-echo", tr = 500, te = 12 }
coil = { kind = "surface" }
in_plane = 5.0
resolution = 5.0
slices = 2
splits = { test = 2 }
"""
SCHEME = """
[labels]
1 = { name = "WM", tissue = "white" }
2 = { name = "GM", tissue = "cortex" }
8 = { name = "ventricles", tissue = "CSF" }
10 = { name = "GM", tissue = "deep grey" }
13 = { name = "CSF", tissue = "CSF", structure = "" }
14 = { name = "stem", tissue = "brain stem", structure = "WM", texture = 0.5 }
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with a user's label maps, protocol file and scheme."""
    path = tmp_path_factory.mktemp("desk")
    toy = toy_map()
    (path / "maps").mkdir()
    nibabel.save(nibabel.Nifti1Image(toy.labels, toy.affine), path / "maps" / "toy.nii.gz")
    (path / "scanners.toml").write_text(SCANNERS)
    (path / "scheme.toml").write_text(SCHEME)
    return path


@pytest.fixture
def here(desk, monkeypatch):
    monkeypatch.chdir(desk)
    return desk


def words(out, *more):
    given = ["--label-maps", "maps", "--scheme", "scheme.toml", "--protocols", "scanners.toml", "--device", "cpu"]
    return ["simulate", "contrasts", "--out", str(out), *given, *map(str, more)]


def settings(desk, **changes):
    given = {name: desk / f"{name}.toml" for name in ("scheme",)}
    return CohortSettings(
        "contrasts", **({"label_maps": desk / "maps", "protocols": desk / "scanners.toml"} | given | changes)
    )


@pytest.fixture(scope="module")
def made(desk):
    """The toy cohort, simulated, and what was told meanwhile."""
    told = []
    done = write_cohort(settings(desk), desk / "made", device="cpu", on_scan=lambda *news: told.append(news))
    return done, told


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def error_line(capsys):
    """The one line on the error stream."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_the_files_are_the_cases_of_the_cohort(made, desk):
    anatomy = labelled_atlas(desk / "maps", read_scheme(desk / "scheme.toml"))
    cohort = dataclasses.replace(
        COHORTS["contrasts"], given=read_centres(desk / "scanners.toml"), labels=dict(anatomy.labels)
    )
    scans = manifest(made[0].folder)["scans"]
    found = 0
    for centre, one in cohort.centres.items():
        for split in one.splits:
            for number, case in enumerate(cohort.cases(centre, split, anatomy=anatomy)):
                entry = scans[case.name]
                assert entry["image"] == f"{centre}/{split}/{case.name}_image.nii.gz"
                assert entry["labels"] == f"{centre}/{split}/{case.name}_labels.nii.gz"
                read = read_scan(made[0].folder / entry["image"])
                read = read.with_reference(read_labels(made[0].folder / entry["labels"]))
                np.testing.assert_array_equal(read.image, case.image)
                np.testing.assert_array_equal(read.reference, case.reference)
                np.testing.assert_allclose(read.affine, case.affine, atol=1e-6)
                assert (entry["subject"], entry["site"], entry["split"]) == (case.subject, centre, split)
                assert (entry["number"], tuple(entry["shape"])) == (number, case.shape)
                assert entry["spacing"] == pytest.approx(case.spacing)
                found += 1
    assert found == len(scans) == 6
    assert len(list(made[0].folder.rglob("*.nii.gz"))) == 12


def test_the_manifest_tells_how_the_scans_came_to_be(made, desk):
    told = manifest(made[0].folder)
    assert (told["cohort"], told["seed"], told["labels"]) == ("contrasts", 0, {"WM": 1, "GM": 2, "ventricles": 8})
    assert "Simulated" in told["note"]
    home = told["centres"]["home"]
    assert (home["vendor"], home["source"], home["assumed"]) == ("Acme", "made up", ["snr"])
    assert str(desk) not in json.dumps(told)


@pytest.mark.parametrize("cohort", ["contrasts", "registration", "brain", "prostate"])
def test_a_protocol_can_be_made_again_from_the_manifest(cohort):
    for name, centre in bundled_centres(cohort).items():
        table = centre_record(centre)["protocol"]
        text = "\n".join(
            f"{key} = {toml(value)}" for key, value in table.items() if key != "name" and value is not None
        )
        assert centres_from_toml(f'["{name}"]\n{text}', "manifest")[name].protocol == centre.protocol


def test_progress_is_told_scan_by_scan(made):
    done, told = made
    assert [news[:2] for news in told] == [(number, 6) for number in range(7)]
    assert told[-1][2].startswith("brain_away_test-002")
    assert (done.simulated, done.kept) == (6, 0)
    assert [(one.name, dict(one.scans)) for one in done.centres] == [
        *(("home", {"train": 2, "validation": 1, "test": 1}), ("away", {"test": 2}))
    ]


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nii.gz")}


def test_a_second_run_does_what_is_left(made, desk):
    folder = made[0].folder
    (folder / "recipe.toml").write_text("# edited")
    before = stamps(folder)
    gone = sorted(before)[-1]
    kept = gone.read_bytes()
    gone.unlink()
    again = write_cohort(settings(desk), folder, device="cpu")
    assert (again.simulated, again.kept) == (1, 5)
    np.testing.assert_array_equal(gone.read_bytes()[10:], kept[10:])  # the first bytes of gzip files are their date
    partner = folder / str(gone).replace("_labels", "_image")
    assert {path for path, stamp in stamps(folder).items() if before[path] != stamp} == {gone, partner}
    assert (folder / "recipe.toml").read_text(encoding="utf-8") == "# edited"
    (folder / "recipe.toml").unlink()
    sheet = (folder / "contact.png").stat().st_mtime_ns
    assert write_cohort(settings(desk), folder, device="cpu").simulated == 0
    assert (folder / "contact.png").stat().st_mtime_ns == sheet
    assert "[data]" in (folder / "recipe.toml").read_text(encoding="utf-8")


def test_an_interrupted_run_goes_on(here, tmp_path, capsys, monkeypatch):
    update, seen = ScanProgress.update, []

    def stop_at_two(display, done, scans, name):
        update(display, done, scans, name)
        seen.append((done, scans))
        if (done, scans) == (2, 6):
            raise KeyboardInterrupt

    monkeypatch.setattr(ScanProgress, "update", stop_at_two)
    assert main(words(tmp_path / "out")) == 130
    assert "simulate go on" in error_line(capsys)
    assert len(manifest(tmp_path / "out")["scans"]) == 2
    first = stamps(tmp_path / "out")
    assert main(words(tmp_path / "out")) == 0
    assert seen[3:] == [(number, 4) for number in range(5)]
    assert "4 scans simulated, 2 existed already: " in capsys.readouterr().out
    assert first.items() <= stamps(tmp_path / "out").items()


def test_more_people_and_centres_add_to_what_is_there(desk, tmp_path):
    write_cohort(settings(desk, centres=["away"], count=1), tmp_path, device="cpu")
    before = stamps(tmp_path)
    more = write_cohort(settings(desk, count=2, splits=["test"]), tmp_path, device="cpu")
    assert (more.simulated, more.kept, more.recipe) == (3, 1, None)
    assert before.items() <= stamps(tmp_path).items()
    assert {one.name: dict(one.scans) for one in more.centres} == {"away": {"test": 2}, "home": {"test": 2}}
    assert not (tmp_path / "recipe.toml").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 3}, r"holds scans of another seed \(0; expected 3\). Choose another output folder"),
        ({"slices": 1}, r"another number of slices \(the protocols' own; expected 1\)"),
        ({"cohort": "brain"}, r"another cohort \(contrasts; expected"),
        ({"scheme": None}, r"another set of structures \(WM = 1, GM = 2, ventricles = 8; expected cerebral WM"),
    ],
)
def test_other_settings_are_refused_in_the_same_folder(made, desk, changes, told):
    with pytest.raises(InputError, match=told):
        write_cohort(dataclasses.replace(settings(desk), **changes), made[0].folder, device="cpu")
    assert manifest(made[0].folder)["seed"] == 0


def test_another_anatomy_or_protocol_is_refused_in_the_same_folder(made, desk, tmp_path):
    nibabel.save(nibabel.Nifti1Image(toy_map().labels[::-1], np.diag([4.0, 4, 5, 1])), tmp_path / "other.nii")
    with pytest.raises(InputError, match="made holds scans of another anatomy. Choose"):
        write_cohort(settings(desk, label_maps=tmp_path), made[0].folder, device="cpu")
    (tmp_path / "new.toml").write_text(SCANNERS.replace("te = 12", "te = 13"))
    with pytest.raises(InputError, match="a centre away with another protocol"):
        write_cohort(settings(desk, protocols=tmp_path / "new.toml"), made[0].folder, device="cpu")


def test_what_scantune_did_not_simulate_is_left_alone(desk, tmp_path):
    (tmp_path / "home").mkdir()
    with pytest.raises(InputError, match="home exists already, but no manifest says"):
        write_cohort(settings(desk), tmp_path, device="cpu")
    (tmp_path / "manifest.json").write_text('{"format": 1, "scans": {}, "model": {}}')
    with pytest.raises(InputError, match="holds results of another command"):
        write_cohort(settings(desk), tmp_path, device="cpu")
    assert [path.name for path in tmp_path.rglob("*.nii.gz")] == []


def test_a_network_can_be_trained_by_the_recipe_as_it_stands(here, capsys):
    out = Path("trained here")
    assert main(words(out)) == 0
    shown = capsys.readouterr().out
    next_command = re.search(r"^Next: scantune (.*)$", shown, re.MULTILINE)[1]
    recipe = read_recipe(out / "recipe.toml")
    assert recipe.preprocessing == {"plane": "axial", "size": [56, 48], "spacing": 4.0, "content": "nonzero"}
    assert main([*shlex.split(next_command), "--iterations", "2", "--device", "cpu"]) == 0
    assert "validation Dice" in capsys.readouterr().out
    assert (out / "model.safetensors").exists()


def test_the_terminal_shows_what_lies_where(here, tmp_path, capsys):
    assert main(words(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert re.search(r"home +Acme, 3 T, mprage +2 +1 +1", shown)
    assert re.search(r"away +1.5 T, spin-echo +- +- +2", shown)
    assert "6 scans simulated: a stress test, no substitute for real ones." in shown
    assert f"All are in {tmp_path / 'out'}, described in manifest.json" in shown
    assert str(tmp_path / "out" / "contact.png") in shown
    assert main(words(tmp_path / "few", "--splits", "test", "--count", "1")) == 0
    shown = capsys.readouterr().out
    assert f"Next: scantune adapt {tmp_path / 'few' / 'home' / 'test'} --model MODEL --out out" in shown
    assert "Validation" not in shown


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--centres", "moon"], "Unknown centre 'moon' of contrasts. Available: home, away."),
        (["--centres", "away", "--splits", "train"], "None of the centres away has a split train."),
        (["--count", "0"], "--count must be a whole number from 1, got 0."),
        (["--slices", "-1"], "--slices must be a whole number from 1"),
        (["--seed", "-1"], "--seed must be a whole number from 0"),
        (["--device", "abacus"], "The device abacus is not available"),
        (["--atlas", "a.npz"], "--label-maps or from --atlas, not from both"),
        (["--label-maps", "nowhere"], "nowhere must be a folder with NIfTI label maps"),
        (["--scheme", "nowhere.toml"], "nowhere.toml must be a label scheme, but cannot be read"),
        (["--protocols", "nowhere.toml"], "nowhere.toml must be a protocol file, but cannot be read"),
        (["--out", "o[1]"], "The output folder must do for file patterns"),
        (["--out", "scheme.toml"], "scheme.toml cannot be written"),
    ],
)
def test_wrong_words_are_told_in_one_line(here, tmp_path, capsys, more, told):
    assert main(words(tmp_path / "out", *more)) == 2
    assert told in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_an_unknown_cohort_is_told_with_those_there_are(capsys):
    assert main(["simulate", "brian", "--out", "x"]) == 2
    assert f"Unknown cohort 'brian'. Available: {', '.join(COHORTS)}." in error_line(capsys)


def test_every_cohort_is_named_in_the_help(capsys):
    assert main(["simulate", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"{', '.join(list(COHORTS)[:-1])} or {list(COHORTS)[-1]}" in told


def test_a_scheme_without_label_maps_and_an_unknown_split_are_told():
    with pytest.raises(InputError, match="Give them with --label-maps"):
        CohortSettings("contrasts", scheme=Path("s.toml"))
    with pytest.raises(InputError, match="Unknown split 'tset'. Available: train, validation, test"):
        CohortSettings("contrasts", splits=["tset"])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[away]", '["a/b"]', "A centre's name must do for file patterns"),
        ("[away]", '[".away"]', "no dot first, but is '.away'"),
        ("field = 1.5", "field = 7.0", "The centre away cannot scan this anatomy: The field strength must be"),
        ('"spin-echo", tr = 500, te = 12', '"given", values = { CSF = 1.0 }', "'cortex' is not in the values"),
        ('kind = "surface"', 'kind = "endorectal"', "needs an anatomy with a rectum"),
    ],
)
def test_protocols_that_cannot_be_used_are_told(desk, tmp_path, old, new, told):
    (tmp_path / "scanners.toml").write_text(SCANNERS.replace(old, new))
    wrong = settings(desk, protocols=tmp_path / "scanners.toml", splits=["test"], count=1)
    with pytest.raises(InputError, match=told):
        write_cohort(wrong, tmp_path / "out", device="cpu")
    mended = dataclasses.replace(wrong, protocols=desk / "scanners.toml")
    assert write_cohort(mended, tmp_path / "out", device="cpu").centres[-1].scans == {"test": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"must hold the one table \[labels\], with a line such as 1 = "),
        ("[labels]", r"must hold the one table \[labels\]"),
        ("[labels]\n1 = 2\n[other]", r"must hold the one table \[labels\]"),
        ("[labels", "is not a valid TOML file"),
        ("[labels]\n1 = 'WM'", "Label 1 in .* must be a table, such as 1 = .*, got 'WM'"),
        ("[labels]\n0 = { name = 'a', tissue = 'CSF' }", r"whole numbers from 1 \(0 is outside the body\), got '0'"),
        ("[labels]\nWM = { name = 'a', tissue = 'CSF' }", "got 'WM'"),
        ("[labels]\n1 = { tissue = 'CSF' }", "label 1 in .* must have the setting name"),
        ("[labels]\n1 = { name = 'a', tisue = 'CSF' }", "Unknown setting 'tisue'"),
        ("[labels]\n1 = { name = 'a', tissue = 'grey' }", "unknown tissue 'grey'. Known: CSF, spinal CSF, cortex, "),
        ("[labels]\n1 = { name = 'a', tissue = 'CSF', texture = -1 }", "texture of label 1 .* 0 or more, got -1"),
        ("[labels]\n1 = { name = 'a', tissue = 'CSF', structure = '' }", "must name at least one structure"),
        ("[labels]\n1000 = { name = 'a', tissue = 'CSF' }", "a label up to 255 for every structure"),
    ],
)
def test_schemes_that_cannot_be_are_told(tmp_path, text, told):
    (tmp_path / "scheme.toml").write_text(text)
    with pytest.raises(InputError, match=told):
        read_scheme(tmp_path / "scheme.toml")


def test_a_scheme_says_what_each_label_is(desk):
    scheme = read_scheme(desk / "scheme.toml")
    assert {value: (one.tissue, one.structure, one.texture) for value, one in scheme.items()} == {
        1: ("white", "WM", 1.0),
        2: ("cortex", "GM", 1.0),
        8: ("CSF", "ventricles", 0.0),
        10: ("deep grey", "GM", 1.0),
        13: ("CSF", "", 0.0),
        14: ("brain stem", "WM", 0.5),
    }


def test_structures_of_a_scheme_have_the_lowest_of_their_labels_and_background_has_none(made):
    labels = {int(value) for path in made[0].folder.rglob("*_labels.nii.gz") for value in np.unique(read(path))}
    assert labels == {0, 1, 2, 8}


def read(path):
    return np.asarray(nibabel.load(path).dataobj)


def test_a_body_is_not_stripped_and_a_brain_is(desk, tmp_path):
    (tmp_path / "body.toml").write_text(SCHEME.replace('"brain stem"', '"muscle"'))
    body = labelled_atlas(desk / "maps", read_scheme(tmp_path / "body.toml"))
    brain = labelled_atlas(desk / "maps", read_scheme(desk / "scheme.toml"))
    assert [one.templates[0].variation.stripping is None for one in (body, brain)] == [True, False]
    assert [len(one.templates[0].swelling_at) for one in (body, brain)] == [2, 2]
    (tmp_path / "plain.toml").write_text(SCHEME.replace('"ventricles"', '"fluid"'))
    assert len(labelled_atlas(desk / "maps", read_scheme(tmp_path / "plain.toml")).templates[0].swelling_at) == 0


def test_without_a_scheme_label_maps_hold_the_papers_structures(desk, tmp_path):
    plain = settings(desk, scheme=None, centres=["home"], splits=["test"])
    write_cohort(plain, tmp_path, device="cpu")
    labels = manifest(tmp_path)["labels"]
    assert len(labels) == 14
    found = np.unique(read(next(tmp_path.rglob("*_labels.nii.gz"))))
    assert {1, 2, 8, 10} <= set(found.tolist()) <= {0, *labels.values()}


def test_an_exported_atlas_is_used(desk, tmp_path):
    label_maps([toy_map()]).save(tmp_path / "atlas.npz")
    given = {"label_maps": None, "scheme": None, "centres": ["home"], "splits": ["test"]}
    write_cohort(settings(desk, atlas=tmp_path / "atlas.npz", **given), tmp_path / "out", device="cpu")
    assert manifest(tmp_path / "out")["labels"] == {"CSF": 1, "GM": 2, "WM": 3}


def case(shape=(20, 30, 3), spacing=(2.0, 2.0, 5.0), at=slice(8, 14)):
    """Noise with a bright box of label 2 and a smaller one of label 1 in it, on the last two slices."""
    image = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    labels = np.zeros(shape, np.uint8)
    labels[at, at, 1:] = 2
    labels[at.start + 2 : at.stop - 2, at.start + 2 : at.stop - 2, 1:] = 1
    return Case("toy", image + labels, np.diag([*spacing, 1.0]), reference=labels)


@pytest.mark.parametrize("centres", [1, 3, 7])
def test_the_contact_sheet_has_a_pair_of_panels_for_every_centre(centres):
    views = [CentreView(f"centre {number}", "3 T, spin echo", case()) for number in range(centres)]
    figure = contact_sheet(views, {"core": 1, "rim": 2}, "toys")
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == [view.centre for view in views]
    assert len(figure.axes) == 2 * centres
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["core", "rim"]


def test_a_contact_sheet_shows_the_middle_of_the_largest_structure():
    figure = contact_sheet([CentreView("c", "", case())], {"core": 1, "rim": 2}, "")
    upper, lower = figure.axes
    np.testing.assert_array_equal(upper.images[0].get_array(), case().image[::-1, ::-1, 2].T)
    left, right = lower.get_xlim()
    assert right - left < 20 * 2.0  # the box is small, so the lower panel is a close-up
    outlines = [tuple(round(float(c), 3) for c in one.get_edgecolor()[0][:3]) for one in lower.collections]
    assert len(set(outlines)) == 2


def test_structures_that_fill_the_picture_have_no_close_up():
    upper, lower = contact_sheet([CentreView("c", "", case(at=slice(2, 18)))], {"core": 1, "rim": 2}, "").axes
    assert upper.get_xlim() == lower.get_xlim()
    assert not upper.patches


def test_all_centres_are_drawn_on_one_scale():
    views = [CentreView("small", "", case()), CentreView("large", "", case((40, 60, 3)))]
    panels = contact_sheet(views, {"core": 1, "rim": 2}, "").axes[::2]
    assert panels[0].get_xlim() == panels[1].get_xlim() == pytest.approx((-40, 40))
    assert panels[0].images[0].get_extent() == pytest.approx([-20, 20, -30, 30])


def test_a_scan_without_structures_can_be_drawn():
    empty = dataclasses.replace(case(), reference=np.zeros((20, 30, 3), np.uint8))
    upper, _ = contact_sheet([CentreView("c", "", empty)], {"core": 1}, "").axes
    np.testing.assert_array_equal(upper.images[0].get_array(), empty.image[::-1, ::-1, 1].T)


def test_captions_tell_vendor_field_sequence_and_coil(made):
    home, away = (scanner_summary(one.record) for one in made[0].centres)
    assert home == "Acme 3 T, MPRAGE, TR 2300, TI 1050, TE 3 ms, 9°, 4 mm, slices 1.5 mm"
    assert away == "1.5 T, spin echo, TR 500, TE 12 ms, surface coil, 5 mm, slices 1.5 mm"


def test_the_contact_sheet_is_in_the_folder(made):
    picture = imread(made[0].folder / "contact.png")[..., :3]
    assert np.median(picture) < 0.1  # dark ground
    assert min(picture.shape[:2]) > 300


def test_the_recipes_size_holds_the_scan():
    suggested = suggested_preprocessing(case((50, 61, 2), (0.7, 0.7, 3.0)))
    assert suggested == {"plane": "axial", "size": [64, 56], "spacing": 0.7, "content": "all"}
    prepared = Preprocessing(size=tuple(suggested["size"]), spacing=0.7).apply(case((50, 61, 2), (0.7, 0.7, 3.0)))
    assert int((prepared.reference > 0).sum()) == int((case((50, 61, 2)).reference > 0).sum())


def test_a_cohort_with_a_bundled_recipe_is_prepared_as_there():
    assert bundled_preprocessing("contrasts") == read_recipe("brain").preprocessing
    assert bundled_preprocessing("nothing") is None


@pytest.mark.parametrize(
    "value", [{"a b": 1, "c": [1.5, 2]}, 'with "quotes" and \\', [True, "ä"], {"nested": {"x": -1}}]
)
def test_values_survive_toml(value):
    assert tomllib.loads(f"v = {toml(value)}")["v"] == value


def test_files_are_split_by_their_patterns(made, here):
    files = FileSource(
        "made/home/{split}/*_image.nii.gz", "made/home/{split}/*_labels.nii.gz", {"WM": 1, "GM": 2, "V": 8}
    )
    names = {split: [case.name for case in files.cases(split, CPU)] for split in ("train", "validation")}
    assert names == {
        "train": ["brain_home_train-001_image", "brain_home_train-002_image"],
        "validation": ["brain_home_validation-001_image"],
    }


def test_both_patterns_name_the_split_or_neither():
    with pytest.raises(InputError, match=r"must both have \{split\} or neither, got a/\{split\}/\*.nii and b/\*.nii"):
        FileSource("a/{split}/*.nii", "b/*.nii", {"WM": 1})


# The page


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def reader(desk, tmp_path, monkeypatch):
    """A folder with the page's files, where simulating and training take next to no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maps").symlink_to(desk / "maps")
    for block in blocks("toml"):
        (tmp_path / re.match(r"# (\S+\.toml)\n", block)[1]).write_text(block)
    for name in ("contrasts", "brain"):
        cohort = COHORTS[name]
        coarse = {
            key: dataclasses.replace(
                one, protocol=dataclasses.replace(one.protocol, in_plane=4.0, resolution=4.0, slices=2)
            )
            for key, one in cohort.centres.items()
        }
        monkeypatch.setitem(
            COHORTS, name, dataclasses.replace(cohort, anatomy=lambda: label_maps([toy_map()]), given=coarse)
        )
    presets = import_module("scantune.adaptation.adapt").PRESETS
    monkeypatch.setitem(presets, "fast", dataclasses.replace(presets["fast"], steps=1))
    return tmp_path


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0][:60])
def test_commands_of_the_page_run(block, reader):
    for line in block.splitlines():
        program, *typed = shlex.split(line)
        assert program == "scantune"
        if typed[0] == "simulate":
            typed += ["--slices", "2"]
        if typed[0] == "train":
            with Path(typed[1]).open("a") as recipe:
                recipe.write("\n[network]\nwidth = 2\n[train]\niterations = 1\nbatch = 2\n")
        assert main(typed) == 0, line
    for out in re.findall("--out (cohort|ours|mine) ", block):
        for name in ("manifest.json", "contact.png", "recipe.toml"):
            assert (reader / out / name).exists()


def test_the_pages_recipe_can_be_read():
    (block,) = (block for block in blocks("toml") if block.startswith("# sorted.toml"))
    tables = tomllib.loads(block)
    assert FileSource(**tables["data"]).names() == {"CSF": 1, "GM": 2, "WM": 3}
    assert Preprocessing(**tables["preprocessing"] | {"size": (208, 176)})


def named(text):
    return set(re.findall(r"`([^`]+)`", text))


def test_the_page_tells_of_every_key_and_its_default():
    table = PAGE.split("| key | unit | default | |\n")[1].split("\n\n")[0]
    told = {name for row in table.splitlines()[1:] for name in named(row.split("|")[1])}
    fields = {one.name: one.default for one in dataclasses.fields(Protocol)}
    assert told == (set(fields) - {"name"}) | {"splits", "vendor", "scanner", "source", "assumed"}
    for row in table.splitlines()[1:]:
        _, key, _, default, *_ = (cell.strip(" `") for cell in row.split("|"))
        if isinstance(fields.get(key), float | int):
            assert float(default) == fields[key], key


@pytest.mark.parametrize(("heading", "family"), [("Sequences,", SEQUENCES), ("Coils:", COILS)])
def test_the_page_tells_of_every_sequence_and_coil_with_its_keys(heading, family):
    table = PAGE.split(heading)[1].split("\n\n")[1].partition("---|\n")[2]
    told = {kind: named(keys) for kind, keys in re.findall(r"^\| `(.*?)` \|(.*?)\|", table, re.MULTILINE)}
    assert told == {kind: {one.name for one in dataclasses.fields(member)} for kind, member in family.items()}


def test_the_page_tells_of_every_tissue():
    assert named(PAGE.split("Tissues with known relaxation times")[1]) == set(TISSUES)


def test_the_pages_links_lead_to_files():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / link).exists(), link
