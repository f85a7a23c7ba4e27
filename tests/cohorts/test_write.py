"""Simulated cohorts as files: their scans, what a second run adds, and settings that cannot be."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from scantune.cohorts.write import CohortSettings, write_cohort
from scantune.errors import InputError
from scantune.scans.io import read_labels, read_scan
from scantune.simulate import COHORTS, label_maps, read_centres
from scantune.simulate.scheme import labelled_atlas, read_scheme
from tests.toy_cohort import SCANNERS, manifest, read, stamps, toy_map, toy_settings


def test_the_files_are_the_cases_of_the_cohort(simulated, cohort_inputs):
    anatomy = labelled_atlas(cohort_inputs / "maps", read_scheme(cohort_inputs / "scheme.toml"))
    cohort = dataclasses.replace(
        COHORTS["contrasts"], given=read_centres(cohort_inputs / "scanners.toml"), labels=dict(anatomy.labels)
    )
    scans = manifest(simulated[0].folder)["scans"]
    found = 0
    for centre, one in cohort.centres.items():
        for split in one.splits:
            for number, case in enumerate(cohort.cases(centre, split, anatomy=anatomy)):
                entry = scans[case.name]
                assert entry["image"] == f"{centre}/{split}/{case.name}_image.nii.gz"
                assert entry["labels"] == f"{centre}/{split}/{case.name}_labels.nii.gz"
                read = read_scan(simulated[0].folder / entry["image"])
                read = read.with_reference(read_labels(simulated[0].folder / entry["labels"]))
                np.testing.assert_array_equal(read.image, case.image)
                np.testing.assert_array_equal(read.reference, case.reference)
                np.testing.assert_allclose(read.affine, case.affine, atol=1e-6)
                assert (entry["subject"], entry["site"], entry["split"]) == (case.subject, centre, split)
                assert (entry["number"], tuple(entry["shape"])) == (number, case.shape)
                assert entry["spacing"] == pytest.approx(case.spacing)
                found += 1
    assert found == len(scans) == 6
    assert len(list(simulated[0].folder.rglob("*.nii.gz"))) == 12


def test_progress_is_reported_scan_by_scan(simulated):
    done, progress = simulated
    assert [report[:2] for report in progress] == [(number, 6) for number in range(7)]
    assert progress[-1][2].startswith("brain_away_test-002")
    assert (done.simulated, done.kept) == (6, 0)
    assert [(one.name, dict(one.scans)) for one in done.centres] == [
        *(("home", {"train": 2, "validation": 1, "test": 1}), ("away", {"test": 2}))
    ]


def test_a_second_run_does_what_is_left(simulated, cohort_inputs):
    folder = simulated[0].folder
    (folder / "recipe.toml").write_text("# edited")
    before = stamps(folder)
    gone = sorted(before)[-1]
    kept = gone.read_bytes()
    gone.unlink()
    again = write_cohort(toy_settings(cohort_inputs), folder, device="cpu")
    assert (again.simulated, again.kept) == (1, 5)
    np.testing.assert_array_equal(gone.read_bytes()[10:], kept[10:])  # the first bytes of gzip files are their date
    partner = folder / str(gone).replace("_labels", "_image")
    assert {path for path, stamp in stamps(folder).items() if before[path] != stamp} == {gone, partner}
    assert (folder / "recipe.toml").read_text(encoding="utf-8") == "# edited"
    (folder / "recipe.toml").unlink()
    sheet = (folder / "contact.png").stat().st_mtime_ns
    assert write_cohort(toy_settings(cohort_inputs), folder, device="cpu").simulated == 0
    assert (folder / "contact.png").stat().st_mtime_ns == sheet
    assert "[data]" in (folder / "recipe.toml").read_text(encoding="utf-8")


def test_more_people_and_centres_add_to_what_is_there(cohort_inputs, tmp_path):
    write_cohort(toy_settings(cohort_inputs, centres=["away"], count=1), tmp_path, device="cpu")
    before = stamps(tmp_path)
    more = write_cohort(toy_settings(cohort_inputs, count=2, splits=["test"]), tmp_path, device="cpu")
    assert (more.simulated, more.kept, more.recipe) == (3, 1, None)
    assert before.items() <= stamps(tmp_path).items()
    assert {one.name: dict(one.scans) for one in more.centres} == {"away": {"test": 2}, "home": {"test": 2}}
    assert not (tmp_path / "recipe.toml").exists()


def test_a_scheme_without_label_maps_and_an_unknown_split_are_refused():
    with pytest.raises(InputError, match="Give them with --label-maps"):
        CohortSettings("contrasts", scheme=Path("s.toml"))
    with pytest.raises(InputError, match="Unknown split 'tset'. Available: train, validation, test"):
        CohortSettings("contrasts", splits=["tset"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[away]", '["a/b"]', "A centre's name must do for file patterns"),
        ("[away]", '[".away"]', "no dot first, but is '.away'"),
        ("field = 1.5", "field = 7.0", "The centre away cannot scan this anatomy: The field strength must be"),
        ('"spin-echo", tr = 500, te = 12', '"given", values = { CSF = 1.0 }', "'cortex' is not in the values"),
        ('kind = "surface"', 'kind = "endorectal"', "needs an anatomy with a rectum"),
    ],
)
def test_protocols_that_cannot_be_used_are_refused(cohort_inputs, tmp_path, old, new, message):
    (tmp_path / "scanners.toml").write_text(SCANNERS.replace(old, new))
    wrong = toy_settings(cohort_inputs, protocols=tmp_path / "scanners.toml", splits=["test"], count=1)
    with pytest.raises(InputError, match=message):
        write_cohort(wrong, tmp_path / "out", device="cpu")
    mended = dataclasses.replace(wrong, protocols=cohort_inputs / "scanners.toml")
    assert write_cohort(mended, tmp_path / "out", device="cpu").centres[-1].scans == {"test": 1}


def test_structures_of_a_scheme_have_the_lowest_of_their_labels_and_background_has_none(simulated):
    labels = {int(value) for path in simulated[0].folder.rglob("*_labels.nii.gz") for value in np.unique(read(path))}
    assert labels == {0, 1, 2, 8}


def test_without_a_scheme_label_maps_hold_the_papers_structures(cohort_inputs, tmp_path):
    plain = toy_settings(cohort_inputs, scheme=None, centres=["home"], splits=["test"])
    write_cohort(plain, tmp_path, device="cpu")
    labels = manifest(tmp_path)["labels"]
    assert len(labels) == 14
    found = np.unique(read(next(tmp_path.rglob("*_labels.nii.gz"))))
    assert {1, 2, 8, 10} <= set(found.tolist()) <= {0, *labels.values()}


def test_an_exported_atlas_is_used(cohort_inputs, tmp_path):
    label_maps([toy_map()]).save(tmp_path / "atlas.npz")
    given = {"label_maps": None, "scheme": None, "centres": ["home"], "splits": ["test"]}
    write_cohort(toy_settings(cohort_inputs, atlas=tmp_path / "atlas.npz", **given), tmp_path / "out", device="cpu")
    assert manifest(tmp_path / "out")["labels"] == {"CSF": 1, "GM": 2, "WM": 3}


def test_the_contact_sheet_is_in_the_folder(simulated):
    picture = imread(simulated[0].folder / "contact.png")[..., :3]
    assert np.median(picture) < 0.1  # dark ground
    assert min(picture.shape[:2]) > 300
