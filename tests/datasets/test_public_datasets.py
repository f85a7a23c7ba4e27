"""The public data sets of the paper, each as a miniature tree in its official layout."""

import itertools
import random
from collections import Counter
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK

from scantune.datasets import DATASETS
from scantune.datasets.freesurfer import group_labels, label_names
from scantune.datasets.label_grid import place_on_grid
from scantune.datasets.splits import split_by_fold
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case, LabelMap
from scantune.simulate import COHORTS
from scantune.simulate.anatomies.labelmaps import STRUCTURE_SCHEME, TISSUE_SCHEME

SHAPE = (6, 5, 4)
ODD = np.array([[0, 0, -3.0, 20], [-0.7, 0, 0, 5], [0, 0.9, 0, -40], [0, 0, 0, 1]])  # axes shuffled and flipped


def image(seed=0, shape=SHAPE):
    return np.random.default_rng(seed).integers(1, 200, shape).astype(np.int16)


def label_map(values, shape=SHAPE):
    """Every value somewhere, and asymmetric: no flip or turn maps it onto itself."""
    labels = np.zeros(shape, np.int16)
    labels.reshape(-1)[1 : 1 + len(values)] = values
    return labels


def nifti(path, array, affine=ODD, kind=nibabel.Nifti1Image):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(kind(array, affine), path)


def mgz(path, array, affine=ODD):
    nifti(path, array.astype(np.int32), affine, nibabel.MGHImage)


def as_itk(array, affine):
    volume = SimpleITK.GetImageFromArray(array.transpose(2, 1, 0))
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    volume.SetSpacing(spacing.tolist())
    volume.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    volume.SetOrigin(lps[:3, 3].tolist())
    return volume


def itk(path, array, affine=ODD):
    path.parent.mkdir(parents=True, exist_ok=True)
    SimpleITK.WriteImage(as_itk(array, affine), str(path))


def dicom(folder, array, affine, series, backwards=True):
    """A series of slices, numbered against the direction they are stacked in, as some scanners do."""
    folder.mkdir(parents=True, exist_ok=True)
    volume = as_itk(array, affine)
    direction = np.reshape(volume.GetDirection(), (3, 3))
    writer = SimpleITK.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for z in range(array.shape[2]):
        piece = volume[:, :, z]
        corner = volume.TransformIndexToPhysicalPoint((0, 0, z))
        number = array.shape[2] - z if backwards else z + 1
        for key, value in {
            "0008|0060": "MR",
            "0008|0018": f"1.2.3.{series}.{z}",
            "0020|000d": "1.2.3",
            "0020|000e": f"1.2.3.{series}",
            "0020|0013": str(number),
            "0020|0032": "\\".join(f"{x:.6f}" for x in corner),
            "0020|0037": "\\".join(f"{x:.6f}" for x in direction[:, :2].T.ravel()),
            "0018|0050": str(volume.GetSpacing()[2]),
        }.items():
            piece.SetMetaData(key, value)
        writer.SetFileName(str(folder / f"{number - 1:06d}.dcm"))
        writer.Execute(piece)


def sample(data):
    """One entry per site and split, the first by name."""
    return {(e.site, e.split): e for e in reversed(data.entries())}.values()


def counts(data):
    return Counter((entry.site, entry.split) for entry in data.entries())


def refusal(call):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


def spacing_of(affine):
    return pytest.approx(np.linalg.norm(affine[:3, :3], axis=0).tolist(), abs=1e-4)


# --- one builder per data set: a list of (do one case) to be done in any order --------------------------------------


def promise12_tree(root):
    def case(number):
        folder = root / f"TrainingData_Part{1 + number // 18}"
        itk(folder / f"Case{number:02d}.mhd", image(number))
        itk(folder / f"Case{number:02d}_segmentation.mhd", label_map([1]).astype(np.int8))

    yield from [lambda n=n: case(n) for n in range(50)]
    yield lambda: itk(root / "TestData" / "Case00.mhd", image(99))  # no outline, same name


def wmh_tree(root, folder="training"):
    def case(site, number):
        person = root / folder / site / str(number)
        nifti(person / "pre" / "FLAIR.nii.gz", image(number))
        nifti(person / "orig" / "FLAIR.nii.gz", image(number))
        nifti(person / "wmh.nii.gz", label_map([1, 2]).astype(np.float32))

    people = {"Utrecht": [0, 2, 4, 6, 8, 11, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 49]}
    people["Singapore"] = list(range(50, 70))
    yield from [lambda s=s, n=n: case(s, n) for s, numbers in people.items() for n in numbers]
    yield lambda: nifti(root / "test" / "Utrecht" / "1" / "pre" / "FLAIR.nii.gz", image())
    yield lambda: nifti(root / "training" / "Amsterdam" / "GE3T" / "100" / "pre" / "FLAIR.nii.gz", image())


def scgm_tree(root):
    def case(site, person):
        name = f"site{site}-sc{person:02d}"
        folder = root / ("training-data-gm-sc-challenge-ismrm16-v20160302b" if person < 11 else "test-data")
        nifti(folder / f"{name}-image.nii.gz", image(person))
        for rater in range(1, 5) if person < 11 else ():
            nifti(folder / f"{name}-mask-r{rater}.nii.gz", label_map([1, 2, rater % 3]).astype(np.uint8))

    yield from [lambda s=s, n=n: case(s, n) for s in range(1, 5) for n in range(1, 13)]


def mms_codes():
    from scantune.datasets.mms import CODES

    return {site: codes.split() for site, codes in CODES.items()}


def mms_table(root):
    centres = {"HVHD": 1, "CSF": 2, "UHE": 3}
    rows = [f"{code},Philips,B,{centres[site]},3,1" for site, codes in mms_codes().items() for code in codes]
    text = "External code,VendorName,Vendor,Centre,ED,ES\n" + "\n".join([*rows, "Z9Z9Z9,Canon,D,5,0,1"])
    root.mkdir(parents=True, exist_ok=True)
    (root / "211230_M&Ms_Dataset_information_diagnosis_opendataset.csv").write_text(text + "\n")


def mms_tree(root, folder="OpenDataset/Training/Labeled"):
    def case(code, folder=folder):
        frames = np.stack([image(n) for n in range(4)], -1)
        drawn = np.zeros_like(frames)
        drawn[..., 3], drawn[..., 1] = label_map([1, 2, 3]), label_map([3, 2])
        nifti(root / folder / code / f"{code}_sa.nii.gz", frames)
        nifti(root / folder / code / f"{code}_sa_gt.nii.gz", drawn)

    yield lambda: mms_table(root)
    yield from [lambda c=c: case(c) for codes in mms_codes().values() for c in codes]
    yield lambda: case("Z9Z9Z9", "OpenDataset/Testing")


AXIAL = np.array([[-0.6, 0, 0, 30], [0, -0.6, 0, 40], [0, 0, 3.6, -50], [0, 0, 0, 1.0]])
BOSTON = [1, 5, 44, 45, 58, 59, 83]


def nci_tree(root):
    def case(collection, person, series):
        study = root / "manifest-1" / collection / person / "1.3.6.1.4.1" / f"1.3.6.1.4.1.{series}"
        dicom(study, image(series), AXIAL, series)
        itk(root / "Training" / f"{person}.nrrd", label_map([1, 2, 2]).astype(np.uint8), AXIAL)

    names = [("Prostate-3T", f"Prostate3T-01-{n:04d}") for n in range(1, 31)]
    names += [("PROSTATE-DIAGNOSIS", f"ProstateDx-01-{n:04d}") for n in BOSTON]
    yield from [lambda c=c, p=p, n=n: case(c, p, n + 1) for n, (c, p) in enumerate(names)]
    # more people of the collection, who are not in the challenge, and cases of other parts
    yield lambda: dicom(root / "manifest-1/PROSTATE-DIAGNOSIS/ProstateDx-01-0090/1/2", image(), AXIAL, 90)
    yield lambda: itk(root / "Test" / "Prostate3T-03-0001_truth.nrrd", label_map([1]).astype(np.uint8), AXIAL)


FREESURFER = [2, 1035, 8, 24, 16, 999]


def hcp_tree(root, people=62):
    def case(n):
        folder = root / f"{100000 + n}_3T_Structural_preproc" / str(100000 + n) / "T1w"
        nifti(folder / "T1w_acpc_dc_restore_brain.nii.gz", image(n))
        nifti(folder / "aparc+aseg.nii.gz", label_map(FREESURFER))

    yield from [lambda n=n: case(n) for n in range(people)]


def abide_tree(root):
    def case(site, n):
        folder = root / "freesurfer" / f"{site}_{51000 + n:07d}" / "mri"
        mgz(folder / "orig.mgz", image(n))
        mgz(folder / "brainmask.mgz", (np.arange(120).reshape(SHAPE) < 60) * 100)
        mgz(folder / "aparc+aseg.mgz", label_map(FREESURFER))

    yield from [lambda s=s, n=n: case(s, n) for s in ("Caltech", "Stanford") for n in range(27)]


def oasis_tree(root):
    def case(person, session):
        folder = root / "disc1" / f"OAS1_{person:04d}_MR{session}" / "mri"
        mgz(folder / "orig.mgz", image(person))
        mgz(folder / "brainmask.mgz", (np.arange(120).reshape(SHAPE) < 60) * 100)
        mgz(folder / "aparc+aseg.mgz", label_map(FREESURFER))

    yield from [lambda n=n, s=s: case(n, s) for n in range(1, 28) for s in ((1, 2) if n in (3, 20) else (1,))]
    yield lambda: mgz(root / "fsaverage" / "mri" / "aparc+aseg.mgz", label_map(FREESURFER))


TREES = {
    "promise12": promise12_tree,
    "wmh-2017": wmh_tree,
    "scgm": scgm_tree,
    "mms": mms_tree,
    "nci-isbi-2013": nci_tree,
    "hcp": hcp_tree,
    "abide": abide_tree,
    "oasis": oasis_tree,
}
PAPER = {  # Table 1; folds as the default has them, cardiac volumes twice, and of Boston's only those of the tree
    "promise12": {
        (s, k): n
        for s, rest in {"UCL": 3, "HK": 2, "BIDMC": 2}.items()
        for k, n in (("test", 10), ("validation", rest))
    },
    "wmh-2017": {
        ("UMC", "train"): 10,
        ("UMC", "validation"): 5,
        ("UMC", "test"): 5,
        ("NUHS", "test"): 10,
        ("NUHS", "validation"): 10,
    },
    "scgm": {("PM", "train"): 5, ("PM", "validation"): 2, ("PM", "test"): 3}
    | {(s, k): n for s in ("USZ", "VU", "UCL") for k, n in (("test", 9), ("validation", 1))},
    "mms": {
        (s, k): 2 * n
        for s, parts in {"CSF": (30, 10, 10), "UHE": (10, 5, 10), "HVHD": (55, 10, 10)}.items()
        for k, n in zip(("train", "validation", "test"), parts, strict=True)
    },
    "nci-isbi-2013": {("RUNMC", "train"): 15, ("RUNMC", "validation"): 5, ("RUNMC", "test"): 10}
    | {("BMC", "train"): 3, ("BMC", "validation"): 2, ("BMC", "test"): 2},
    "hcp": {("HCP", "train"): 20, ("HCP", "validation"): 5, ("HCP", "test"): 10},
    "abide": {(s, k): n for s in ("AC", "AS") for k, n in (("train", 10), ("validation", 5), ("test", 10))},
    "oasis": {("OASIS", "train"): 11, ("OASIS", "validation"): 5, ("OASIS", "test"): 11},  # two people twice
}


def plant(name, root, seed):
    steps = list(TREES[name](root))
    random.Random(seed).shuffle(steps)
    for step in steps:
        step()
    return root


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    made = {}

    def tree(name):
        if name not in made:
            made[name] = plant(name, tmp_path_factory.mktemp(name), seed=1)
        return made[name]

    return tree


# --- what holds for all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_sites_and_splits_are_those_of_the_paper(name, trees):
    data = DATASETS[name].open(trees(name))
    assert data.name == name
    assert counts(data) == PAPER[name]
    assert {site for site, _ in counts(data)} == set(data.sites)


@pytest.mark.parametrize("name", TREES)
def test_nobody_is_in_two_splits_and_no_name_comes_twice(name, trees):
    entries = DATASETS[name].open(trees(name)).entries()
    splits = {}
    for entry in entries:
        splits.setdefault(entry.subject, set()).add(entry.split)
    assert all(len(found) == 1 for found in splits.values())
    assert len({entry.name for entry in entries}) == len(entries)


@pytest.mark.parametrize("name", TREES)
def test_scans_read_with_known_labels_on_the_grid_of_their_header(name, trees):
    data = DATASETS[name].open(trees(name))
    affine = AXIAL if name == "nci-isbi-2013" else ODD
    for entry in sample(data):
        entry.check()
        case = entry.read()
        assert (case.name, case.subject, case.site, case.split) == (entry.name, entry.subject, entry.site, entry.split)
        assert case.spacing == spacing_of(affine)
        assert case.shape == case.reference.shape == SHAPE
        assert set(np.unique(case.reference)) <= {0, *data.labels.values()}
        assert case.reference.any()
        assert entry.header_shift() < 1e-6
        assert all(path.is_file() for path in entry.files())


@pytest.mark.parametrize("name", TREES)
def test_the_order_in_which_files_were_written_changes_nothing(name, trees, tmp_path):
    def listed(root):
        entries = DATASETS[name].open(root).entries()
        return [(e.name, e.subject, e.site, e.split, [p.relative_to(root) for p in e.files()]) for e in entries]

    assert listed(trees(name)) == listed(plant(name, tmp_path, seed=2))


@pytest.mark.parametrize("name", TREES)
def test_an_empty_folder_an_absent_one_and_unknown_options_are_refused(name, trees, tmp_path):
    assert "does not look like" in refusal(lambda: DATASETS[name].open(tmp_path))
    assert "not a folder" in refusal(lambda: DATASETS[name].open(tmp_path / "absent"))
    assert "flavour" in refusal(lambda: DATASETS[name].open(trees(name), flavour=1))


@pytest.mark.parametrize("name", TREES)
def test_sites_and_labels_are_named_as_in_the_simulated_cohorts(name, trees):
    data = DATASETS[name].open(trees(name))
    cohorts = [cohort for cohort in COHORTS.values() if set(data.sites) & set(cohort.centres)]
    assert cohorts
    assert set(data.sites) <= {centre for cohort in cohorts for centre in cohort.centres}
    if name not in ("promise12", "hcp", "abide"):  # whole gland; 14 structures
        assert data.labels in [dict(cohort.labels) for cohort in cohorts]


def stored(path):
    """The voxels of a label map and how to write others in its place."""
    if path.suffix in (".mhd", ".nrrd"):
        return SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path))).transpose(2, 1, 0), itk
    array = np.asarray(nibabel.load(path).dataobj)
    return array, mgz if path.suffix == ".mgz" else nifti


@pytest.mark.parametrize("part", ["image", "labels"])
@pytest.mark.parametrize("name", TREES)
def test_whoever_lacks_a_file_is_named_and_nobody_moves_to_another_split(name, part, trees):
    before = DATASETS[name].open(trees(name)).entries()
    victim = next(entry for entry in before if entry.split == "validation")
    path, aside = getattr(victim, part), trees(name) / "aside"
    path.rename(aside)
    try:
        after = DATASETS[name].open(trees(name)).entries()
        message = refusal(next(entry for entry in after if entry.name == victim.name).check)
    finally:
        aside.rename(path)
    assert [(entry.name, entry.split) for entry in after] == [(entry.name, entry.split) for entry in before]
    assert message.startswith(victim.name) and "is missing" in message


@pytest.mark.parametrize("name", TREES)
def test_a_label_map_of_fewer_slices_is_told_or_placed_where_it_was_drawn(name, trees):
    entry = next(entry for entry in DATASETS[name].open(trees(name)).entries() if entry.split == "test")
    whole = entry.read().reference
    array, write = stored(entry.labels)
    affine = AXIAL if name == "nci-isbi-2013" else ODD
    try:
        write(entry.labels, array[:, :, : SHAPE[2] - 1], affine)
        if entry.labels_on_grid():
            for look in (entry.check, entry.read):
                assert f"has shape {(*SHAPE[:2], SHAPE[2] - 1)}, not {SHAPE}" in refusal(look)
        else:
            entry.check()
            found = entry.read().reference
            np.testing.assert_array_equal(found[..., :-1], whole[..., :-1])
            assert not found[..., -1].any()
    finally:
        write(entry.labels, array, affine)


@pytest.mark.parametrize("part", ["image", "labels"])
@pytest.mark.parametrize("name", TREES)
def test_a_damaged_file_is_named_by_its_path(name, part, trees):
    entry = DATASETS[name].open(trees(name)).entries()[0]
    path = getattr(entry, part)
    files = sorted(path.rglob("*.dcm")) if path.is_dir() else [path]
    kept = [file.read_bytes() for file in files]
    try:
        for file in files:
            file.write_bytes(b"no image")
        assert str(path) in refusal(entry.read)
    finally:
        for file, content in zip(files, kept, strict=True):
            file.write_bytes(content)


# --- prostate -------------------------------------------------------------------------------------------------------


def test_promise12_folds_are_five_test_cases_from_the_end(trees):
    first, second = (DATASETS["promise12"].open(trees("promise12"), fold=fold) for fold in (1, 2))
    parts = {"UCL": (6, 2, 5), "HK": (5, 2, 5), "BIDMC": (5, 2, 5)}
    expected = {(s, k): n for s, p in parts.items() for k, n in zip(("train", "validation", "test"), p, strict=True)}
    assert counts(first) == counts(second) == expected

    def tested(data, site):
        return [entry.name for entry in data.entries() if (entry.site, entry.split) == (site, "test")]

    assert tested(first, "UCL") == ["Case33", "Case34", "Case35", "Case36", "Case37"]
    assert tested(second, "UCL") == ["Case28", "Case29", "Case30", "Case31", "Case32"]
    assert tested(first, "BIDMC") == ["Case08", "Case09", "Case10", "Case11", "Case12"]
    assert "fold" in refusal(lambda: DATASETS["promise12"].open(trees("promise12"), fold=3))


def test_promise12_lists_the_data_files_behind_its_headers(trees):
    entry = DATASETS["promise12"].open(trees("promise12")).entries()[0]
    assert [path.suffix for path in entry.files()] == [".mhd", ".raw", ".mhd", ".raw"]


def test_a_missing_case_moves_nobody_and_is_named(tmp_path):
    steps = list(promise12_tree(tmp_path))
    for number in (1, 26, 28, 29, 30, 31):
        steps[number]()
    entries = {entry.name: entry for entry in DATASETS["promise12"].open(tmp_path).entries()}
    assert {entry.site for entry in entries.values()} == {"UCL"}
    assert len(entries) == 13 and entries["Case30"].split == "test" and entries["Case26"].split == "validation"
    for look in (entries["Case27"].read, entries["Case27"].check):
        assert "Case27.mhd is missing" in refusal(look)
    (tmp_path / "TrainingData_Part2" / "Case28.mhd").unlink()
    assert "Case28.mhd is missing" in refusal(entries["Case28"].read)


def test_a_case_that_is_there_twice_is_refused(tmp_path):
    steps = list(promise12_tree(tmp_path))
    steps[1]()
    itk(tmp_path / "copy" / "Case01_segmentation.mhd", label_map([1]).astype(np.uint8))
    assert "same case" in refusal(lambda: DATASETS["promise12"].open(tmp_path))


def test_nci_zones_swap_their_values_and_lie_where_they_were_drawn(trees):
    entries = {entry.name: entry for entry in DATASETS["nci-isbi-2013"].open(trees("nci-isbi-2013")).entries()}
    assert "ProstateDx-01-0090" not in entries
    case = entries["Prostate3T-01-0007"].read()
    np.testing.assert_allclose(case.affine, AXIAL, atol=1e-4)
    np.testing.assert_array_equal(case.image, image(7))
    np.testing.assert_array_equal(case.reference, label_map([2, 1, 1]))  # peripheral zone 1 -> 2, central gland 2 -> 1


@pytest.mark.parametrize("first", [0, 5])
def test_nci_labels_on_23_of_34_slices_leave_the_others_background(tmp_path, first):
    person, shape = "ProstateDx-01-0055", (6, 5, 34)
    dicom(tmp_path / "PROSTATE-DIAGNOSIS" / person / "study" / "series", image(0, shape), AXIAL, 1)
    drawn = np.random.default_rng(1).integers(0, 3, (6, 5, 23)).astype(np.uint8)
    moved = AXIAL.copy()
    moved[:3, 3] += first * AXIAL[:3, 2]
    itk(tmp_path / "Labels" / f"{person}.nrrd", drawn, moved)
    case = DATASETS["nci-isbi-2013"].open(tmp_path).entries()[0].read()
    expected = np.zeros(shape, np.uint8)
    expected[..., first : first + 23] = np.array([0, 2, 1])[drawn]
    np.testing.assert_array_equal(case.reference, expected)


def test_nci_labels_without_a_place_are_padded_at_the_end(tmp_path):
    person, shape = "ProstateDx-01-0055", (6, 5, 34)
    dicom(tmp_path / person, image(0, shape), AXIAL, 1)
    drawn = np.random.default_rng(1).integers(0, 3, (6, 5, 23)).astype(np.uint8)
    itk(tmp_path / f"{person}.nrrd", drawn, np.diag([-1.0, -1.0, 1.0, 1.0]))
    case = DATASETS["nci-isbi-2013"].open(tmp_path).entries()[0].read()
    np.testing.assert_array_equal(case.reference[..., :23], np.array([0, 2, 1])[drawn])
    assert not case.reference[..., 23:].any()
    itk(tmp_path / f"{person}.nrrd", drawn[:5], np.diag([-1.0, -1.0, 1.0, 1.0]))
    assert "slices" in refusal(DATASETS["nci-isbi-2013"].open(tmp_path).entries()[0].read)


def test_nci_labels_of_another_place_are_refused(tmp_path):
    person = "Prostate3T-01-0001"
    dicom(tmp_path / person, image(), AXIAL, 1)
    elsewhere, coarser = AXIAL.copy(), AXIAL.copy()
    elsewhere[0, 3] += 100
    coarser[:3, :3] *= 2
    for affine, shape, word in ((elsewhere, SHAPE, "mL"), (coarser, (3, 2, 2), "by its header")):
        itk(tmp_path / f"{person}.nrrd", label_map([1, 2] * 5, shape).astype(np.uint8), affine)
        assert word in refusal(DATASETS["nci-isbi-2013"].open(tmp_path).entries()[0].read)


def test_nci_takes_the_series_that_was_drawn_on_and_the_corrected_labels(tmp_path):
    person = "ProstateDx-01-0006"
    turned = np.array([[0, 0, 3.0, 0], [-0.6, 0, 0, 4], [0, -0.6, 0, 5], [0, 0, 0, 1]])
    dicom(tmp_path / person / "09-23-2008-MRI" / "301-T2AX-1", image(3), AXIAL, 1)
    dicom(tmp_path / person / "09-23-2008-MRI" / "401-T2WTSECOR-06613", image(4), turned, 2)
    itk(tmp_path / f"{person}.nrrd", label_map([1]).astype(np.uint8), AXIAL)
    itk(tmp_path / f"{person}_correctedLabels.nrrd", label_map([2]).astype(np.uint8), AXIAL)
    entry = DATASETS["nci-isbi-2013"].open(tmp_path).entries()[0]
    case = entry.read()
    np.testing.assert_array_equal(case.image, image(3))
    np.testing.assert_array_equal(case.reference, label_map([1]))
    dicom(tmp_path / person / "09-23-2008-MRI" / "501-T1AX-1", image(5), AXIAL, 3)
    assert "of 3 series 2 fit" in refusal(entry.read)


@pytest.mark.parametrize("turn", [(90, 0, 0), (0, 90, 0), (20, -15, 70)])
def test_nci_series_may_be_acquired_in_any_direction(tmp_path, turn):
    from scipy.spatial.transform import Rotation

    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", turn, degrees=True).as_matrix() * (0.6, 0.7, 3.0)
    affine[:3, 3] = (11, -7, 30)
    dicom(tmp_path / "Prostate3T-01-0001", image(3), affine, 1)
    itk(tmp_path / "Prostate3T-01-0001.nrrd", label_map([1, 2, 2]).astype(np.uint8), affine)
    case = DATASETS["nci-isbi-2013"].open(tmp_path).entries()[0].read()
    np.testing.assert_allclose(case.affine, affine, atol=1e-4)
    np.testing.assert_array_equal(case.image, image(3))
    np.testing.assert_array_equal(case.reference, label_map([2, 1, 1]))


def test_an_nci_person_without_scan_is_named(tmp_path):
    person = "Prostate3T-01-0003"
    itk(tmp_path / f"{person}.nrrd", label_map([1]).astype(np.uint8), AXIAL)
    (tmp_path / "Prostate3T-01-0004").mkdir()
    entries = {entry.name: entry for entry in DATASETS["nci-isbi-2013"].open(tmp_path).entries()}
    assert len(entries) == 30
    assert f"{person} is missing" in refusal(entries[person].check)
    itk(tmp_path / "Prostate3T-01-0004.nrrd", label_map([1]).astype(np.uint8), AXIAL)
    assert "holds none" in refusal(DATASETS["nci-isbi-2013"].open(tmp_path).entries()[3].check)


# --- heart ----------------------------------------------------------------------------------------------------------


def test_mms_gives_both_phases_from_the_frames_of_the_table(trees):
    entries = {entry.name: entry for entry in DATASETS["mms"].open(trees("mms")).entries()}
    diastole, systole = entries["A1D0Q7_ED"].read(), entries["A1D0Q7_ES"].read()
    np.testing.assert_array_equal(diastole.image, image(3))
    np.testing.assert_array_equal(systole.image, image(1))
    np.testing.assert_array_equal(diastole.reference, label_map([1, 2, 3]))
    np.testing.assert_array_equal(systole.reference, label_map([3, 2]))
    assert diastole.subject == systole.subject == "A1D0Q7"
    assert "Z9Z9Z9_ED" not in entries
    splits = {
        code: entries[f"{code}_ED"].split for code in ("G4L8Z7", "G9L0O9", "J4J9W6", "J9L6N9", "C4S8W9", "T9U9W2")
    }
    assert list(splits.values()) == ["train", "validation", "validation", "test", "train", "test"]


def test_mms_takes_flat_folders_and_says_what_is_wrong_with_the_table(tmp_path):
    steps = list(mms_tree(tmp_path, folder="."))
    steps[1]()
    assert "CSV" in refusal(lambda: DATASETS["mms"].open(tmp_path))
    steps[0]()
    entries = DATASETS["mms"].open(tmp_path).entries()
    assert {entry.site for entry in entries} == {"CSF"} and len(entries) == 100
    entries[0].read()
    assert "A3B7E5_sa.nii.gz is missing" in refusal(entries[2].read)
    table = next(tmp_path.glob("*.csv"))
    original = table.read_text(encoding="utf-8")
    for wrong, word in (("2,2,1", "empty"), ("2,9,1", "counted from 0"), ("3,3,1", "centre"), ("2,,1", "whole")):
        table.write_text(original.replace("A1D0Q7,Philips,B,2,3,1", f"A1D0Q7,Philips,B,{wrong}"))
        assert word in refusal(lambda: DATASETS["mms"].open(tmp_path).entries()[0].read())


# --- spine ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fold", "validation", "test"), [(1, (6, 7), (8, 9, 10)), (2, (3, 4), (5, 6, 7)), (3, (1, 10), (2, 3, 4))]
)
def test_scgm_folds_are_those_of_the_authors(trees, fold, validation, test):
    data = DATASETS["scgm"].open(trees("scgm"), fold=fold)
    for site in data.sites:
        found = {entry.split: [] for entry in data.entries()}
        for entry in data.entries():
            if entry.site == site:
                found[entry.split].append(int(entry.name[-2:]))
        assert tuple(found["validation"]) == validation
        assert tuple(found["test"]) == test
        assert len(found["train"]) == 5


def test_scgm_takes_one_rater_or_what_most_say(tmp_path):
    nifti(tmp_path / "site2-sc01-image.nii.gz", image())
    votes = np.random.default_rng(0).integers(0, 3, (4, *SHAPE)).astype(np.uint8)
    for rater, mask in enumerate(votes, start=1):
        nifti(tmp_path / f"site2-sc01-mask-r{rater}.nii.gz", mask)

    def reference(**options):
        return DATASETS["scgm"].open(tmp_path, **options).entries()[0].read().reference

    np.testing.assert_array_equal(reference(), votes[0])
    np.testing.assert_array_equal(reference(rater=3), votes[2])
    majority = reference(rater="majority")
    for voxel in itertools.product(*map(range, SHAPE)):
        ballots = votes[(slice(None), *voxel)].tolist()
        most = max(map(ballots.count, ballots))
        winners = [value for value in ballots if ballots.count(value) == most]
        assert majority[voxel] == (ballots[0] if ballots[0] in winners else winners[0])
    assert "rater" in refusal(lambda: reference(rater=5))
    (tmp_path / "site2-sc01-mask-r4.nii.gz").unlink()
    assert "mask-r4.nii.gz is missing" in refusal(lambda: reference(rater="majority"))


# --- lesions --------------------------------------------------------------------------------------------------------


def test_wmh_takes_other_pathology_as_background_and_the_corrected_scan(trees):
    entry = DATASETS["wmh-2017"].open(trees("wmh-2017")).entries()[0]
    assert entry.image.parent.name == "pre"
    np.testing.assert_array_equal(entry.read().reference, label_map([1, 0]))


def test_wmh_reads_the_first_release_and_other_observers(tmp_path):
    for step in wmh_tree(tmp_path, folder="."):
        step()
    data = DATASETS["wmh-2017"].open(tmp_path, fold=2)
    assert counts(data) == {
        (s, k): n for s in ("UMC", "NUHS") for k, n in (("train", 10), ("validation", 5), ("test", 5))
    }
    tested = [entry.name for entry in data.entries() if entry.split == "test"]
    assert tested == [f"UMC-{n}" for n in (25, 27, 29, 31, 33)] + [f"NUHS-{n}" for n in range(60, 65)]
    other = tmp_path / "additional_annotations" / "observer_o3" / "training" / "Utrecht" / "0" / "result.nii.gz"
    nifti(other, label_map([0, 1]))
    first, second = DATASETS["wmh-2017"].open(tmp_path, observer="o3").entries()[:2]
    np.testing.assert_array_equal(first.read().reference, label_map([0, 1]))
    assert "result.nii.gz is missing" in refusal(second.read)


# --- brain ----------------------------------------------------------------------------------------------------------


def test_freesurfer_labels_group_into_the_papers_structures():
    names = label_names("structures")
    assert list(names.values()) == list(range(1, 15))
    assert set(names) == {region.structure for region in STRUCTURE_SCHEME.values()}
    ours = group_labels("structures")
    by_name = {value: name for name, value in names.items()}
    for theirs, name in {
        2: "cerebral WM", 41: "cerebral WM", 253: "cerebral WM", 77: "cerebral WM", 3: "cerebral GM",
        1035: "cerebral GM", 2002: "cerebral GM", 26: "cerebral GM", 7: "cerebellar WM", 47: "cerebellar GM",
        10: "thalamus", 53: "hippocampus", 18: "amygdala", 15: "ventricles", 31: "ventricles", 50: "caudate",
        12: "putamen", 52: "pallidum", 28: "ventral DC", 24: "CSF", 16: "brain stem",
    }.items():  # fmt: skip
        assert by_name[ours[theirs]] == name
    assert names["cerebellar GM"] == 1 and names["brain stem"] == 14
    assert not {0, 999, 3000} & ours.keys()


def test_tissues_are_those_of_the_simulated_brains_and_registration_leaves_fluid_out():
    structures, tissues, two = (group_labels(kind) for kind in ("structures", "tissues", "registration"))
    by_structure = {region.structure: value for value, region in STRUCTURE_SCHEME.items()}
    for name, value in label_names("structures").items():
        tissue = TISSUE_SCHEME[by_structure[name]].structure
        for theirs in (theirs for theirs, ours in structures.items() if ours == value):
            assert tissues[theirs] == label_names("tissues")[tissue]
            assert two.get(theirs, 0) == label_names("registration").get(tissue, 0)


def test_hcp_is_split_by_the_order_of_names(trees):
    entries = DATASETS["hcp"].open(trees("hcp")).entries()
    assert [int(entry.name) - 100000 for entry in entries] == [*range(25), *range(50, 60)]
    shifted = DATASETS["hcp"].open(trees("hcp"), first_test=25).entries()
    assert [int(entry.name) - 100000 for entry in shifted] == list(range(35))
    assert "two splits" in refusal(lambda: DATASETS["hcp"].open(trees("hcp"), first_test=24))
    assert "holds 62" in refusal(lambda: DATASETS["hcp"].open(trees("hcp"), first_test=60))


def test_brains_come_grouped_as_asked(trees):
    for grouping, values in (("structures", [4, 3, 1, 13, 14, 0]), ("tissues", [3, 2, 2, 1, 3, 0])):
        data = DATASETS["hcp"].open(trees("hcp"), grouping=grouping)
        np.testing.assert_array_equal(data.entries()[0].read().reference, label_map(values))
    data = DATASETS["oasis"].open(trees("oasis"))
    assert data.labels == {"GM": 1, "WM": 2}
    np.testing.assert_array_equal(data.entries()[0].read().reference, label_map([2, 1, 1, 0, 2, 0]))


def test_skulls_are_stripped_by_the_mask_or_by_the_labels_or_not(trees):
    def read(**options):
        return DATASETS["abide"].open(trees("abide"), **options).entries()[0].read()

    whole = image(0).astype(np.float32)
    np.testing.assert_array_equal(read().image, whole * (np.arange(120).reshape(SHAPE) < 60))
    np.testing.assert_array_equal(read(strip="none").image, whole)
    labelled = np.where(label_map(FREESURFER) % 999 > 0, whole, 0)  # 999 is no brain structure
    np.testing.assert_array_equal(read(strip="labels").image, labelled)
    np.testing.assert_array_equal(read(strip="labels", grouping="registration").image, labelled)


@pytest.mark.parametrize("down", [1, -1])
@pytest.mark.parametrize(("options", "offsets"), [({}, {"AC": 0, "AS": 10}), ({"offset": -3.0}, {"AC": -3, "AS": -3})])
def test_central_slices_lie_about_the_middle_shifted_at_stanford(tmp_path, down, options, offsets):
    affine = np.diag([1.0, 1.0, down * 1.0, 1.0])
    voxels = np.random.default_rng(0).integers(1, 99, (3, 4, 41))
    for prefix in ("Caltech", "Stanford"):
        for number in range(27):
            folder = tmp_path / f"{prefix}_{51000 + number:07d}" / "mri"
            mgz(folder / "orig.mgz", voxels, affine)
            mgz(folder / "aparc+aseg.mgz", voxels % 2 * 41, affine)
    data = DATASETS["abide"].open(tmp_path, strip="none", central=11.0, **options)
    for site, offset in offsets.items():
        case = next(entry for entry in data.entries() if entry.site == site).read()
        first = 15 + down * offset  # 11 of 41 slices, the middle one of which is number 20
        np.testing.assert_array_equal(case.image, voxels[..., first : first + 11])
        np.testing.assert_array_equal(case.reference > 0, voxels[..., first : first + 11] % 2 == 1)
        assert case.affine[2, 3] == down * first
    too_high = DATASETS["abide"].open(tmp_path, strip="none", central=99.0).entries()[0]
    assert "must hold 99 mm about its middle" in refusal(too_high.read)
    assert "0 or more" in refusal(lambda: DATASETS["abide"].open(tmp_path, central=-1.0))


def test_labels_that_experts_drew_take_the_place_of_freesurfers(tmp_path):
    for step in oasis_tree(tmp_path):
        step()
    drawn = label_map([3, 1, 0, 2, 2, 1])
    for folder in tmp_path.glob("disc1/*"):
        nifti(folder / "experts.nii.gz", drawn.astype(np.uint8))
    plain = DATASETS["oasis"].open(tmp_path, drawn="experts.nii.gz")
    np.testing.assert_array_equal(plain.entries()[0].read().reference, np.where(drawn < 3, drawn, 0))
    values = {"GM": [3, 2], "WM": [1]}
    grouped = DATASETS["oasis"].open(tmp_path, drawn="experts.nii.gz", drawn_values=values)
    np.testing.assert_array_equal(grouped.entries()[0].read().reference, np.array([0, 2, 1, 1])[drawn])
    assert "is missing" in refusal(DATASETS["oasis"].open(tmp_path, drawn="none.nii.gz").entries()[0].read)
    for options in ({"drawn": "a", "drawn_values": {"GM": [1]}}, {"drawn_values": values}):
        assert "GM, WM" in refusal(lambda options=options: DATASETS["oasis"].open(tmp_path, **options))


def test_whole_glands_have_one_name_at_all_hospitals(trees):
    zones, whole = (DATASETS["nci-isbi-2013"].open(trees("nci-isbi-2013"), **o) for o in ({}, {"grouping": "whole"}))
    assert whole.labels == DATASETS["promise12"].open(trees("promise12")).labels == {"prostate": 1}
    one, other = (data.entries()[0].read().reference for data in (zones, whole))
    assert set(np.unique(one)) == {0, 1, 2}
    np.testing.assert_array_equal(other, one > 0)


def test_caltechs_sixteenth_person_is_skipped_and_those_whom_the_authors_left_out(tmp_path):
    for number in range(33250, 33278):
        folder = tmp_path / "CALTECH" / f"A000{number}"
        nifti(folder / "MPRAGE.nii", image())
        nifti(folder / "orig_labels_aligned_with_true_image.nii.gz", label_map(FREESURFER))
    entries = DATASETS["abide"].open(tmp_path, strip="none").entries()
    kept = [number for number in range(33250, 33278) if number != 33264]
    assert [entry.name for entry in entries] == [f"AC-A000{number}" for number in [*kept[:15], *kept[16:26]]]
    assert entries[0].image.name == "MPRAGE.nii"
    np.testing.assert_array_equal(entries[0].read().reference, label_map([4, 3, 1, 13, 14, 0]))
    unmasked = DATASETS["abide"].open(tmp_path).entries()[0]
    assert "no brain mask" in refusal(unmasked.read)
    assert "no brain mask" in refusal(unmasked.check)
    for number in range(33270, 33278):
        for file in (tmp_path / "CALTECH" / f"A000{number}").iterdir():
            file.unlink()
    assert "needs 26 people" in refusal(DATASETS["abide"].open(tmp_path).entries)


@pytest.mark.parametrize("layout", ["{n}/session_1/anat_1/mprage.nii.gz", "sub-{n}/anat/sub-{n}_T1w.nii.gz"])
def test_labels_on_freesurfers_grid_come_to_the_grid_of_the_scan(trees, tmp_path, layout):
    for step in abide_tree(tmp_path):
        step()
    finer = ODD.copy()
    finer[:3, :3] /= 2
    finer[:3, 3] -= ODD[:3, :3] @ [0.25, 0.25, 0.25]  # two voxels in each of FreeSurfer's
    nifti(tmp_path / "RawData" / "Caltech" / layout.format(n="0051000"), image(1, (12, 10, 8)), finer)
    entry = DATASETS["abide"].open(tmp_path).entries()[0]
    case = entry.read()
    coarse = label_map([4, 3, 1, 13, 14, 0])
    np.testing.assert_array_equal(case.reference, coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2))
    mask = (np.arange(120).reshape(SHAPE) < 60).repeat(2, 0).repeat(2, 1).repeat(2, 2)
    np.testing.assert_array_equal(case.image, image(1, (12, 10, 8)) * mask)


def test_sessions_of_one_person_stay_together(trees):
    entries = DATASETS["oasis"].open(trees("oasis")).entries()
    twice = [entry for entry in entries if entry.subject in ("OAS1_0003", "OAS1_0020")]
    assert [(entry.name, entry.split) for entry in twice] == [
        ("OAS1_0003_MR1", "train"),
        ("OAS1_0003_MR2", "train"),
        ("OAS1_0020_MR1", "test"),
        ("OAS1_0020_MR2", "test"),
    ]


def test_a_damaged_mgz_is_named_by_its_own_path(tmp_path):
    for step in oasis_tree(tmp_path):
        step()
    folder = tmp_path / "disc1" / "OAS1_0001_MR1" / "mri"
    (folder / "orig.mgz").write_bytes(b"no image")
    entry = DATASETS["oasis"].open(tmp_path).entries()[0]
    assert str(folder / "orig.mgz") in refusal(entry.read)
    mgz(folder / "orig.mgz", np.full(SHAPE, 7))
    message = refusal(entry.read)
    assert str(folder / "orig.mgz") in message and "every voxel is 7" in message


# --- shared parts ---------------------------------------------------------------------------------------------------


def test_placing_gives_each_voxel_the_nearest_label():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn * (1.1, 0.8, 1.7), (-2, 3, 1)
    labels = LabelMap("map", rng.integers(0, 4, (7, 8, 6)).astype(np.uint8), affine)
    centre = affine @ [3, 3.5, 2.5, 1]
    grid = np.eye(4)
    grid[:3, 3] = centre[:3] - 3.01  # no voxel just between two labels
    scan = Case("scan", np.zeros((7, 7, 7), np.float32), grid)
    found = place_on_grid(labels, scan)
    for voxel in itertools.product(range(7), repeat=3):
        at = np.linalg.solve(affine, grid @ [*voxel, 1])[:3]
        near = tuple(np.floor(at + 0.5).astype(int))
        inside = all(0 <= n < size for n, size in zip(near, labels.shape, strict=True))
        assert found.labels[voxel] == (labels.labels[near] if inside else 0)
    far = grid.copy()
    far[:3, 3] += 100
    with pytest.raises(ScanError, match="mL"):
        place_on_grid(labels, Case("scan", scan.image, far))


def test_pooled_folds_test_whoever_is_tested_in_one_of_them():
    people = [str(n) for n in range(12)]
    folds = [split_by_fold(people, fold, validation=2, test=5, folds=2) for fold in (0, 1, 2)]
    for person in people:
        tested = "test" in (folds[1][person], folds[2][person])
        assert (folds[0][person] == "test") == tested


def test_files_of_the_finder_are_no_cases(trees, tmp_path):
    plant("promise12", tmp_path, 0)
    (tmp_path / "._Case03_segmentation.mhd").write_text("")
    assert len(DATASETS["promise12"].open(Path(tmp_path)).entries()) == 37
