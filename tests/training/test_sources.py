"""Where training cases come from: files paired by their names, and simulated cohorts."""

from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch

from scantune.backends.slices import Preprocessing
from scantune.datasets import DATASETS
from scantune.datasets.patterns import pair_files
from scantune.errors import InputError
from scantune.simulate import COHORTS, Atlas, Cohort, label_maps
from scantune.simulate.anatomies.labelmaps import STRUCTURE_SCHEME
from scantune.training.sources import FileSource, SimulatedSource, read_source, source_record
from tests.toy_cohort import toy_map

BRAIN = COHORTS["contrasts"]
CPU = torch.device("cpu")
WHERE = "[data] of the recipe toy"


def write_pair(image, labels, values=(0, 1, 2), shift=0.0):
    """A made-up scan and its label map, on one grid unless shifted."""
    rng = np.random.default_rng(0)
    affine = np.diag([1.0, 1.0, 3.0, 1.0])
    moved = affine + np.pad([[shift]], ((0, 3), (3, 0)))
    for path, volume, grid in (
        (image, rng.random((6, 5, 2), dtype=np.float32), affine),
        (labels, rng.choice(np.array(values, np.uint8), (6, 5, 2)), moved),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(volume, grid), path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder that the command runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    """An exported anatomy of toy brains."""
    path = tmp_path_factory.mktemp("atlas") / "atlas.npz"
    label_maps([toy_map()]).save(path)
    return str(path)


@pytest.mark.parametrize(
    ("images", "labels", "files"),
    [
        ("data/*_T1w.nii", "data/*_tissue.nii", [("data/a_T1w.nii", "data/a_tissue.nii")]),
        ("./i/*.nii", "l/*_seg.nii", [("i/a.nii", "l/a_seg.nii"), ("i/b.nii", "l/b_seg.nii")]),
        ("*/T1.nii", "*/labels.nii", [("a/T1.nii", "a/labels.nii"), ("b/T1.nii", "b/labels.nii")]),
        ("s-*/s-*_w-*_T1.nii", "s-*_w-*_seg.nii", [("s-1/s-1_w-2_T1.nii", "s-1_w-2_seg.nii")]),
        ("**/i-*.nii", "**/l-*.nii", [("x/y/i-1.nii", "z/l-1.nii"), ("x/i-2.nii", "l-2.nii")]),
        ("T?-*.nii", "L?-*.nii", [("T1-a.nii", "L7-a.nii")]),
        ("scan.nii", "scan_labels.nii", [("scan.nii", "scan_labels.nii")]),
        ("t[12].nii", "t[12]_seg.nii", [("t1.nii", "t1_seg.nii"), ("t2.nii", "t2_seg.nii")]),
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_files_are_paired_by_what_the_stars_stand_for(here, images, labels, files, absolute):
    for name in (name for pair in files for name in pair):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    root = f"{here}/" if absolute else ""
    found = pair_files(root + images, root + labels)
    relative = {tuple(file.path.resolve().relative_to(here).as_posix() for file in files) for _, *files in found}
    assert relative == set(files)


def test_pairs_come_in_order_of_name(here):
    for name in ("c", "a", "b"):
        write_pair(here / f"{name}_T1w.nii", here / f"{name}_seg.nii")
    (here / "folder_T1w.nii").mkdir()  # not a file, so not an image
    assert [name for name, *_ in pair_files("*_T1w.nii", "*_seg.nii")] == ["a", "b", "c"]


def test_the_home_folder_may_be_written_as_a_tilde(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    write_pair(here / "home" / "a.nii", here / "home" / "a_seg.nii")
    assert [image.path for _, image, _ in pair_files("~/?.nii", "~/*_seg.nii")] == [here / "home" / "a.nii"]


@pytest.mark.parametrize(
    ("files", "images", "labels", "told"),
    [
        (["a_T1.nii", "b_T1.nii", "a_seg.nii"], "*_T1.nii", "*_seg.nii", r"1 of the files .* no partner: b\."),
        (["a_T1.nii", "a_seg.nii", "c_seg.nii"], "*_T1.nii", "*_seg.nii", r"no partner: c\."),
        (["a_T1.nii"], "*_T1.nii", "*_seg.nii", r"No file matches \*_seg.nii"),
        (["a_seg.nii"], "*_T1.nii", "*_seg.nii", r"No file matches \*_T1.nii"),
        (["x/a_T1.nii", "y/a_T1.nii", "a_seg.nii"], "**/*_T1.nii", "*_seg.nii", "have the same name a. Give every"),
        (["a_T1.nii"], "", "*_seg.nii", "is not a file pattern"),
        (["a_T1.nii"], "a**b/*_T1.nii", "*_seg.nii", r"a\*\*b/.* is not a file pattern"),
    ],
)
def test_files_that_cannot_be_paired_are_told(here, files, images, labels, told):
    for name in files:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    with pytest.raises(InputError, match=told):
        pair_files(images, labels)


def test_a_pair_is_read_as_a_case_with_its_reference(here):
    write_pair(here / "a_T1w.nii", here / "a_seg.nii")
    (case,) = FileSource("*_T1w.nii", "*_seg.nii", {"rim": 1, "core": 2}).cases("train", CPU)
    assert (case.name, case.subject, case.split) == ("a_T1w", "a", "train")
    np.testing.assert_array_equal(case.image, nibabel.load("a_T1w.nii").get_fdata(dtype=np.float32))
    np.testing.assert_array_equal(case.reference, np.asarray(nibabel.load("a_seg.nii").dataobj))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"values": (0, 1, 7)}, "a_seg.nii has unknown labels: expected only 0, 1, 2, but it also holds 7"),
        ({"shift": 2.0}, "a_seg must lie on the grid of a_T1w, but is up to 2 mm away"),
    ],
)
def test_label_maps_that_do_not_belong_are_refused(here, wrong, told):
    write_pair(here / "a_T1w.nii", here / "a_seg.nii", **wrong)
    files = FileSource("*_T1w.nii", "*_seg.nii", {"rim": 1, "core": 2})
    with pytest.raises(InputError, match=told):
        list(files.cases("train", CPU))


@pytest.mark.parametrize(("share", "chosen"), [(0.2, "ej"), (0.5, "bdfhj"), (0.3, "dgj")])
def test_every_file_is_in_one_split(here, share, chosen):
    for name in "abcdefghij":
        write_pair(here / f"{name}.nii", here / f"{name}_seg.nii")
    files = FileSource("?.nii", "?_seg.nii", {"rim": 1, "core": 2}, validation=share)
    train, validation = ([case.name for case in files.cases(split, CPU)] for split in ("train", "validation"))
    assert validation == list(chosen)
    assert sorted(train + validation) == list("abcdefghij")
    assert files.names() == {"rim": 1, "core": 2}


FILES = {"images": "*.nii", "labels": "*_seg.nii", "structures": {"GM": 2}}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({}, r"\[data\] of the recipe toy must say where the scans are: give cohort=, dataset= and root=, or images="),
        ({"cohort": "brian"}, "Unknown cohort 'brian'. Available: .*brain"),
        ({"cohort": "contrasts", "train": "many"}, "train in .* must be a whole number or absent, got 'many'"),
        ({"cohort": "contrasts", "images": "*.nii"}, "Unknown setting 'images'"),
        ({"images": "*.nii", "structures": {"GM": 2}}, "must have the setting labels: text"),
        ({"images": "*.nii", "labels": "*_seg.nii"}, "setting structures: a table of names with a whole number each"),
        (FILES | {"structures": {"GM": "two"}}, r"a table of names with a whole number each, got \{'GM': 'two'\}"),
        (FILES | {"structures": 2}, "a table of names with a whole number each, got 2"),
        (FILES | {"structures": {}}, r"structures = \{ GM = 2, WM = 3 \}, say; got \{\}"),
        (FILES | {"structures": {"GM": 0}}, "must each have a label value of their own above 0"),
        (FILES | {"structures": {"GM": 1, "WM": 1}}, "of their own"),
        (FILES | {"validation": 0.0}, "above 0 and at most 0.5, got 0.0"),
        (FILES | {"validation": 0.7}, "above 0 and at most 0.5, got 0.7"),
    ],
)
def test_a_data_table_that_cannot_be_right_is_refused(table, told):
    with pytest.raises(InputError, match=told):
        read_source(table, WHERE).names()


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            {"dataset": "magic", "root": "."},
            "Unknown data set 'magic' in .data. of the recipe toy. Available: folder, csv",
        ),
        ({"dataset": "folder"}, "must have the setting root: the folder .* of the data set folder"),
        ({"dataset": "folder", "root": 3}, "root in .* must be text, got 3"),
        (
            {"dataset": "folder", "root": ".", "site": 3},
            "site in .* must be the name of a site or a list of them, got 3",
        ),
        (
            {"dataset": "folder", "root": ".", "images": "*.nii"},
            "does not say what its labels are. Name the structures",
        ),
        (
            {"dataset": "folder", "root": ".", "images": "*.nii", "atlas": "x"},
            "Unknown setting 'atlas' in the options of",
        ),
        ({"dataset": "bids", "root": "nowhere"}, "nowhere must be a folder, for the data set bids, but there is none"),
    ],
)
def test_a_data_set_that_cannot_be_right_is_refused(here, table, told):
    with pytest.raises(InputError, match=told):
        read_source(table, WHERE).names()


@pytest.fixture
def study(here):
    """The table of a data set of two sites with three people each."""
    for site in "AB":
        for name in "234":
            write_pair(here / f"{site}_{name}_T1.nii", here / f"{site}_{name}_seg.nii")
    table = {"dataset": "folder", "root": ".", "images": "{site}_*_T1.nii", "labels": "{site}_*_seg.nii"}
    return table | {"structures": {"rim": 1, "core": 2}, "validation": 0.25}


def test_a_site_is_trained_at_alone(study):
    def names(split, **more):
        return [case.name.removesuffix("_T1") for case in read_source(study | more, WHERE).cases(split, CPU)]

    assert names("train") == ["A_2", "A_3", "B_2", "B_3"]
    assert names("validation") == ["A_4", "B_4"]
    assert names("train", site="A") == ["A_2", "A_3"]
    assert names("train", site=["A", "B"]) == names("train")
    with pytest.raises(InputError, match="has no site 'C'. Available: A, B"):
        names("train", site="C")
    with pytest.raises(InputError, match="has no scan for validation at B; choose another site"):
        names("train", site="B", validation=0.0)


def test_all_scans_that_cannot_be_used_are_named_before_the_first_is_read(here, monkeypatch):
    for name in "abcdef":
        write_pair(here / f"{name}.nii", here / f"{name}_seg.nii", shift=2.0 if name == "e" else 0.0)
    (here / "b.nii").write_bytes((here / "b.nii").read_bytes()[:400])
    (here / "d_seg.nii").write_text("no labels")
    files = FileSource("?.nii", "?_seg.nii", {"rim": 1, "core": 2})
    monkeypatch.setattr("scantune.datasets.layered_entry.read_scan", None)
    for split in ("train", "validation"):
        with pytest.raises(InputError, match=r"3 of 6 scans cannot be used.*\n  b: .*\n  d: .*\n  e: .*2 mm away"):
            files.prepared(split, Preprocessing(size=(8, 8)), CPU)


@pytest.mark.parametrize("cache", ["", "kept"])
def test_scans_are_read_before_the_slow_correction_of_the_first(here, monkeypatch, cache):
    for name in "abcdef":
        write_pair(here / f"{name}.nii", here / f"{name}_seg.nii")
    image, labels = nibabel.load(here / "b.nii"), nibabel.load(here / "e_seg.nii")
    nibabel.save(nibabel.Nifti1Image(np.full(image.shape, 3.0, np.float32), image.affine), here / "b.nii")
    nibabel.save(nibabel.Nifti1Image(np.full(labels.shape, 9, np.uint8), labels.affine), here / "e_seg.nii")
    files = FileSource("?.nii", "?_seg.nii", {"rim": 1, "core": 2}, cache=cache)
    monkeypatch.setattr("scantune.backends.scaling.remove_bias", None)
    for split in ("train", "validation"):
        with pytest.raises(
            InputError, match=r"2 of 6 scans cannot be used.*\n  b: .*every voxel is 3.*\n  e: .*holds 9"
        ):
            files.prepared(split, Preprocessing(size=(8, 8), n4=True), CPU)
    assert files == FileSource("?.nii", "?_seg.nii", {"rim": 1, "core": 2}, cache=cache)


def test_scans_without_a_reference_cannot_be_trained_on(here):
    write_pair(here / "a.nii", here / "a_seg.nii")
    (here / "scans.csv").write_text("image,labels,split\na.nii,a_seg.nii,train\nb.nii,,validation\n")
    write_pair(here / "b.nii", here / "b_seg.nii")
    source = read_source({"dataset": "csv", "root": "scans.csv", "structures": {"rim": 1, "core": 2}}, WHERE)
    with pytest.raises(InputError, match="1 of 2 scans cannot be used.*\n  b: There is no reference for it"):
        source.cases("train", CPU)


def test_people_in_two_splits_cannot_be_trained_on(here):
    for split in ("train", "validation"):
        write_pair(here / split / f"7_ses-{split}.nii", here / split / f"7_ses-{split}_seg.nii")
    files = FileSource("{split}/*n.nii", "{split}/*n_seg.nii", {"rim": 1, "core": 2})
    with pytest.raises(InputError, match=r"1 people have scans in more than one split.*: 7 \(train, validation\)"):
        files.cases("train", CPU)


def test_files_of_a_person_stay_together(here):
    for name in ("1_ses-1", "1_ses-2", "2_ses-1", "2_ses-2"):
        write_pair(here / f"{name}_T1.nii", here / f"{name}_seg.nii")
    files = FileSource("*_T1.nii", "*_seg.nii", {"rim": 1, "core": 2}, validation=0.5)
    assert [case.name for case in files.cases("train", CPU)] == ["1_ses-1_T1", "1_ses-2_T1"]
    sorted_otherwise = replace(files, person=r"ses-\d")
    assert [case.name for case in sorted_otherwise.cases("train", CPU)] == ["1_ses-1_T1", "2_ses-1_T1"]


def test_a_public_data_set_is_trained_at_its_first_site(study, monkeypatch):
    class Public(DATASETS["folder"]):
        sites = ("B", "A")

    monkeypatch.setitem(DATASETS, "public", Public)
    cases = read_source(study | {"dataset": "public"}, WHERE).cases("train", CPU)
    assert [case.name for case in cases] == ["B_2_T1", "B_3_T1"]


def test_the_data_table_tells_files_from_simulation():
    assert read_source(FILES, WHERE) == FileSource("*.nii", "*_seg.nii", {"GM": 2})
    simulated = read_source({"cohort": "contrasts", "train": 3}, WHERE)
    assert simulated == SimulatedSource("contrasts", train=3)
    assert simulated.names() == {"CSF": 1, "GM": 2, "WM": 3}


def test_simulated_brains_are_stripped_and_bodies_are_not(atlas):
    source = SimulatedSource("contrasts", train=1, slices=1, atlas=atlas)
    assert source.stripped()
    assert (next(source.cases("train", CPU)).image == 0).mean() > 0.2
    assert not SimulatedSource("spine").stripped()


def test_simulated_cases_are_those_of_the_cohort(atlas):
    source = SimulatedSource("contrasts", train=2, validation=1, slices=1, seed=5, atlas=atlas)
    anatomy = Atlas.load(atlas)
    for split, count in (("train", 2), ("validation", 1)):
        expected = BRAIN.cases(BRAIN.source, split, seed=5, anatomy=anatomy, count=count, slices=1)
        for ours, theirs in zip(source.cases(split, CPU), expected, strict=True):
            np.testing.assert_array_equal(ours.image, theirs.image)
            assert ours.name == theirs.name


@pytest.mark.parametrize("exported", [False, True])
def test_half_of_the_simulated_subjects_are_made_from_label_maps(atlas, tmp_path, exported):
    small = toy_map().labels[::-1, 4:-4]
    nibabel.save(nibabel.Nifti1Image(small, np.diag([4.0, 4.0, 4.0, 1.0])), tmp_path / "real.nii")
    real = label_maps(tmp_path)
    if exported:
        real.save(tmp_path / "real.npz")
    maps = tmp_path / "real.npz" if exported else tmp_path
    source = SimulatedSource("contrasts", centre=BRAIN.source, train=1, slices=1, atlas=atlas, label_maps=str(maps))
    mixture = Atlas.load(atlas).mixed_with(real)
    expected = next(BRAIN.cases(BRAIN.source, "train", anatomy=mixture, count=1, slices=1))
    np.testing.assert_array_equal(next(source.cases("train", CPU)).image, expected.image)


def test_without_an_atlas_the_cohorts_own_anatomy_is_used(atlas, monkeypatch):
    monkeypatch.setitem(COHORTS, "contrasts", replace(BRAIN, anatomy=lambda: Atlas.load(atlas)))
    ours, theirs = (
        next(SimulatedSource("contrasts", slices=1, atlas=path).cases("train", CPU)) for path in ("", atlas)
    )
    np.testing.assert_array_equal(ours.image, theirs.image)


def test_a_centre_that_is_not_for_training_is_refused(atlas):
    with pytest.raises(InputError, match="Unknown split 'train' of centre pd-3T. Available: validation, test"):
        SimulatedSource("contrasts", centre="pd-3T", atlas=atlas).cases("train", CPU)


@pytest.mark.parametrize("where", ["atlas", "label_maps"])
def test_an_atlas_of_another_organ_is_refused(atlas, where):
    with pytest.raises(InputError, match="for the cohort prostate must hold TZ, PZ, but hold CSF, GM, WM"):
        SimulatedSource("prostate", **{"atlas": atlas, where: atlas}).cases("train", CPU)


def test_prepared_cases_keep_their_names(here):
    write_pair(here / "a.nii", here / "a_seg.nii")
    files, preprocessing = FileSource("?.nii", "?_seg.nii", {"rim": 1, "core": 2}), Preprocessing(size=(8, 8))
    [(name, prepared)] = files.prepared("train", preprocessing, CPU)
    assert name == "a"
    assert prepared.volume.shape == (2, 1, 8, 8)
    assert prepared.reference.shape == (2, 8, 8)


def test_every_structure_of_label_maps_can_be_one_of_its_own(tmp_path):
    single = label_maps([toy_map()], STRUCTURE_SCHEME)
    single.save(tmp_path / "maps.npz")
    source = SimulatedSource("contrasts", train=1, slices=2, label_maps=str(tmp_path / "maps.npz"), structures="single")
    assert source.names() == {region.structure: value for value, region in STRUCTURE_SCHEME.items()}
    expected = next(BRAIN.cases(BRAIN.source, "train", anatomy=single, count=1, slices=2))
    case = next(source.cases("train", CPU))
    np.testing.assert_array_equal(case.reference, expected.reference)
    assert set(np.unique(case.reference)) >= {0, 1, 2, 8, 14}


def test_the_last_label_maps_make_test_people_alone(tmp_path):
    wide, tall = toy_map(), toy_map(affine=np.diag([3.0, 4.5, 4.0, 1.0]))
    both = tmp_path / "both"
    for name, maps in (("wide", [wide]), ("tall", [tall]), ("both", [wide, tall])):
        (tmp_path / name).mkdir()
        for number, one in enumerate(maps):
            nibabel.save(nibabel.Nifti1Image(one.labels, one.affine), tmp_path / name / f"{number}.nii.gz")
    known = {"train": 1, "slices": 1, "structures": "single"}
    source = SimulatedSource("brain", label_maps=str(both), test_maps=1, **known)
    for split, name in (("train", "wide"), ("test", "tall")):
        alone = SimulatedSource("brain", label_maps=str(tmp_path / name), **known)
        one, other = (next(each.people("AC", split, CPU, stop=1)).reference for each in (source, alone))
        np.testing.assert_array_equal(one, other)
    assert source.names() == {region.structure: value for value, region in STRUCTURE_SCHEME.items()}
    with pytest.raises(InputError, match="are about label maps"):
        SimulatedSource("brain", structures="single")
    with pytest.raises(InputError, match="at least one template"):
        SimulatedSource("brain", label_maps=str(both), test_maps=2, **known).names()


def test_numbers_that_are_not_given_are_the_centres_own(atlas):
    source = SimulatedSource("contrasts", slices=1, atlas=atlas)
    splits = BRAIN.centres[BRAIN.source].splits
    assert sum(1 for _ in source.cases("validation", CPU)) == splits["validation"]
    whole = next(SimulatedSource("contrasts", atlas=atlas).cases("train", CPU))
    assert whole.shape[2] == BRAIN.centres[BRAIN.source].protocol.slices


def test_a_source_can_keep_its_scans(atlas, tmp_path, monkeypatch):
    source = SimulatedSource("contrasts", train=1, slices=1, atlas=atlas, cache=str(tmp_path / "kept"))
    first = next(source.cases("train", CPU))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    monkeypatch.setattr(Cohort, "_case", None)  # nothing is simulated any more
    np.testing.assert_array_equal(next(source.cases("train", CPU)).image, first.image)


def test_no_folder_of_the_machine_is_recorded():
    simulated = SimulatedSource(
        "contrasts", atlas="/home/me/atlas.npz", label_maps="/data/maps", train=7, cache="/data/kept"
    )
    record = source_record(simulated)
    assert (record["atlas"], record["label_maps"], record["train"]) == ("atlas.npz", "maps", 7)
    assert record["cache"] == "kept"
    files = source_record(FileSource("/data/study/*.nii", "/data/study/*_seg.nii", {"GM": 2}))
    expected = {"images": "*.nii", "labels": "*_seg.nii", "structures": {"GM": 2}, "validation": 0.2}
    assert files == expected | {"person": "", "cache": ""}
    table = {"dataset": "folder", "root": "/data/study", "images": "/else/*.nii", "seed": 3}
    listed = source_record(read_source(table, WHERE))
    assert (listed["root"], listed["options"]) == ("study", {"images": "*.nii", "seed": 3})
