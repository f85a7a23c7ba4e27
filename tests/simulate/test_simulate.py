"""Brains from templates: random fields, deformations, atlases and label maps, and the scans of the seven contrasts."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from scantune.errors import InputError
from scantune.scans.case import LabelMap
from scantune.simulate import COHORTS, Atlas, FieldOfView, Region, Subject, icbm152, label_maps
from scantune.simulate.anatomies.brain import LABELS, TISSUES
from scantune.simulate.anatomies.icbm152 import _CENTRE, export_atlas
from scantune.simulate.anatomies.labelmaps import BODY_VARIATION, STRUCTURE_SCHEME, TISSUE_SCHEME
from scantune.simulate.cohort import _stream
from scantune.simulate.deform import integrate, random_deformation
from scantune.simulate.fields import gaussian_blur, lattice_points, sample_at, smooth_noise
from tests.toy_cohort import toy_map

BRAIN = COHORTS["contrasts"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def toy():
    return label_maps([toy_map()])


@pytest.fixture(scope="module")
def case(toy):
    return next(BRAIN.cases(BRAIN.source, "test", anatomy=toy, slices=4))


def rng(seed=0):
    return np.random.default_rng(seed)


def test_there_is_a_source_centre_and_at_least_five_shifted_ones():
    assert BRAIN.source == next(iter(BRAIN.centres))
    assert dict(BRAIN.centres[BRAIN.source].splits) == {"train": 20, "validation": 5, "test": 10}
    shifted = [centre for name, centre in BRAIN.centres.items() if name != BRAIN.source]
    assert len(shifted) >= 5
    assert all(dict(centre.splits) == {"validation": 2, "test": 10} for centre in shifted)
    assert BRAIN.labels == {"CSF": 1, "GM": 2, "WM": 3}


def test_the_same_seed_gives_the_same_scans_and_another_seed_other_people(toy):
    def scans(seed):
        return list(BRAIN.cases("ir-3T", "test", seed=seed, anatomy=toy, count=2, slices=2))

    for one, again, other in zip(scans(3), scans(3), scans(4), strict=True):
        np.testing.assert_array_equal(one.image, again.image)
        np.testing.assert_array_equal(one.reference, again.reference)
        assert (one.name, one.affine.tolist()) == (again.name, again.affine.tolist())
        assert not np.array_equal(one.reference, other.reference)
        assert one.name != other.name


def test_a_case_does_not_depend_on_how_many_are_asked_for(toy):
    few = list(BRAIN.cases(BRAIN.source, "train", anatomy=toy, count=1, slices=2))
    more = list(BRAIN.cases(BRAIN.source, "train", anatomy=toy, count=2, slices=2))
    np.testing.assert_array_equal(few[0].image, more[0].image)
    assert not np.array_equal(more[0].reference, more[1].reference)


def test_no_subject_is_in_two_splits_or_centres(toy):
    everyone = [
        (BRAIN.people, name, split, seed, index)
        for name, centre in BRAIN.centres.items()
        for split, count in centre.splits.items()
        for seed, index in itertools.product(range(3), range(count))
    ]
    assert len({_stream(*person) for person in everyone}) == len(everyone)
    scans = [
        next(BRAIN.cases(name, split, anatomy=toy, slices=1))
        for name, centre in BRAIN.centres.items()
        if centre.protocol.in_plane == 1.0
        for split in centre.splits
    ]
    assert len({scan.subject for scan in scans}) == len(scans)
    for one, other in itertools.combinations(scans, 2):
        assert not np.array_equal(one.reference, other.reference)


def test_a_case_is_a_scan_with_every_label_and_nothing_outside_the_brain(case):
    assert case.image.dtype == np.float32
    assert case.reference.dtype == np.uint8
    assert case.image.shape == case.reference.shape == (176, 208, 4)
    assert set(np.unique(case.reference)) == {0, 1, 2, 3}
    assert np.isfinite(case.image).all()
    np.testing.assert_array_equal(case.image == 0, case.reference == 0)
    assert (case.site, case.split) == (BRAIN.source, "test")


STREAMS = {  # voxels of each label, and mean of the image in them: as when the bundled model was trained
    "source-3T-mprage": ([49738, 881, 8609, 13988], [383.33, 621.14, 1063.92]),
    "spgr-1.5T": ([54056, 710, 11107, 17599], [191.81, 274.89, 362.48]),
    "spinecho-1.5T": ([54176, 2, 6830, 12208], [136.34, 170.11, 190.85]),
    "ir-3T": ([50273, 173, 8580, 14190], [494.23, 528.96, 1683.37]),
    "pd-3T": ([51565, 673, 8975, 12003], [610.14, 753.78, 672.96]),
    "surface-coil-3T": ([55896, 899, 8018, 8403], [566.62, 929.46, 1758.97]),
    "lowres-1.5T": ([31369, 620, 6182, 8641], [154.33, 208.93, 269.06]),
}


@pytest.mark.parametrize("name", BRAIN.centres)
def test_the_scans_of_a_centre_never_change(toy, name):
    """The bundled model and the published scores rest on them."""
    scan = next(BRAIN.cases(name, "test", anatomy=toy, slices=2))
    counts, means = STREAMS[name]
    assert scan.name == f"brain_{name}_test-001"
    np.testing.assert_allclose(np.bincount(scan.reference.ravel()), counts, atol=20)  # machines round differently
    for label, mean in zip((2, 3), means[1:], strict=True):
        assert scan.image[scan.reference == label].mean(dtype=float) == pytest.approx(mean, rel=1e-3)


def test_tissues_of_the_source_are_ordered_as_in_t1w_scans(case):
    csf, grey, white = (case.image[case.reference == label].mean() for label in (1, 2, 3))
    assert csf < 0.7 * grey < 0.7 * white


@pytest.mark.parametrize("name", BRAIN.centres)
def test_the_affine_tells_the_centres_resolution(toy, name):
    scan = next(BRAIN.cases(name, "test", anatomy=toy, slices=2))
    edge = BRAIN.centres[name].protocol.in_plane
    assert scan.spacing[:2] == pytest.approx((edge, edge))
    assert scan.image.shape[:2] == (round(176 / edge), round(208 / edge))
    low, high = toy.templates[0].coverage
    assert scan.spacing[2] == pytest.approx((high - low) / 2)
    middle = scan.affine @ [*[(n - 1) / 2 for n in scan.shape], 1]
    assert middle[:2] == pytest.approx((0, 0))


def test_fractions_add_up_to_one_inside_the_brain_and_to_zero_outside(toy):
    total = toy.subject(rng(), FieldOfView(slices=3)).fractions.sum(0)
    assert ((total - 1).abs().minimum(total.abs()) < 1e-5).all()
    assert 0.1 < total.mean() < 0.9


def test_the_reference_is_what_fills_most_of_a_voxel():
    fractions = torch.from_numpy(rng().dirichlet(np.ones(6), (2, 3, 4)).transpose(3, 0, 1, 2)[:5]).float()
    labels = Subject(fractions, TISSUES, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)).labels(LABELS)
    for at in np.ndindex(2, 3, 4):
        csf, cortex, deep, white, stem = fractions[(slice(None), *at)].tolist()
        shares = [1 - csf - cortex - deep - white - stem, csf, cortex + deep, white + stem]
        assert labels[at] == int(np.argmax(shares))


@pytest.mark.parametrize("seed", range(4))
def test_deformations_never_fold(seed):
    centres = torch.tensor([[0.0, 0.0, 13.0], [0.0, 0.0, -13.0]])
    deformation = random_deformation(rng(seed), (112.0, 208.0, 176.0), centres, CPU)
    points = lattice_points((30, 53, 45), (4.0,) * 3, (-58.0, -104.0, -88.0), CPU)
    jacobian = np.stack(np.gradient(deformation(points).double().numpy(), 4.0, axis=(0, 1, 2)), -1)
    determinant = np.linalg.det(jacobian)
    assert determinant.min() > 0.05
    assert determinant.std() > 0.05  # and they do something


def test_the_flow_along_a_linear_velocity_field_is_the_exponential():
    points = lattice_points((15, 15, 15), (4.0,) * 3, (-28.0,) * 3, CPU)
    displacement = integrate(-0.3 * points.permute(3, 0, 1, 2), (-28.0,) * 3)
    expected = (np.exp(-0.3) - 1) * points.permute(3, 0, 1, 2)
    torch.testing.assert_close(displacement, expected, rtol=5e-3, atol=1e-4)


def test_smooth_noise_has_unit_variance_and_the_asked_smoothness():
    field = smooth_noise(rng(), 4, (48, 96, 96), (2.0, 1.0, 1.0), 4.0, CPU).numpy()
    assert field.mean() == pytest.approx(0, abs=0.1)
    assert field.var() == pytest.approx(1, abs=0.15)  # linear interpolation takes some
    assert stats.kurtosis(field.ravel()) == pytest.approx(0, abs=0.25)
    for axis, step in ((1, 2.0), (2, 1.0)):
        shift = round(4.0 / step)
        ahead = np.take(field, range(shift, field.shape[axis]), axis)
        behind = np.take(field, range(field.shape[axis] - shift), axis)
        assert np.corrcoef(ahead.ravel(), behind.ravel())[0, 1] == pytest.approx(np.exp(-1 / 4), abs=0.05)


def test_blur_agrees_with_scipy():
    volume = rng().random((2, 5, 20, 17), dtype=np.float32)
    ours = gaussian_blur(torch.from_numpy(volume), (0.0, 1.5, 0.8)).numpy()
    for one, other in zip(ours, volume, strict=True):
        theirs = ndimage.gaussian_filter(other, (0, 1.5, 0.8), mode="constant", radius=(0, 5, 3))
        np.testing.assert_allclose(one, theirs, atol=1e-6)


def test_sampling_agrees_with_scipy():
    volume = rng().random((1, 6, 7, 8), dtype=np.float32)
    origin, spacing = np.array([-3.0, 2.0, 0.5]), np.array([2.0, 1.0, 1.5])
    index = rng(1).uniform(0, [5, 6, 7], (2, 3, 4, 3))
    points = torch.from_numpy((origin + spacing * index).astype(np.float32))
    ours = sample_at(torch.from_numpy(volume), origin.tolist(), spacing.tolist(), points)[0].numpy()
    np.testing.assert_allclose(ours, ndimage.map_coordinates(volume[0], index.T.swapaxes(1, 3), order=1), atol=1e-5)


def test_label_maps_are_turned_upright():
    upright = toy_map()
    turned = np.ascontiguousarray(upright.labels.transpose(1, 0, 2)[::-1])  # axes point back, right, up
    affine = np.array([[0, 4.0, 0, 0], [-4.0, 0, 0, 0], [0, 0, 4.0, 0], [0, 0, 0, 1]])
    one, other = (label_maps([m]).templates[0] for m in (upright, LabelMap("turned", turned, affine)))
    assert torch.equal(one.fractions, other.fractions)
    assert one.spacing == other.spacing
    torch.testing.assert_close(one.swelling_at, other.swelling_at)


def test_label_maps_come_from_a_folder_and_mix_with_others(tmp_path, toy):
    import nibabel

    source = toy_map()
    for name in ("a.nii.gz", "b.nii"):
        nibabel.save(nibabel.Nifti1Image(source.labels, source.affine), tmp_path / name)
    read = label_maps(tmp_path)
    assert len(read.templates) == 2
    assert torch.equal(read.templates[0].fractions, toy.templates[0].fractions)
    assert toy.mixed_with(read).weights == (1.0, 0.5, 0.5)


def test_label_maps_give_every_structure_its_tissue(toy):
    template = toy.templates[0]
    source = toy_map().labels.transpose(2, 1, 0)
    shares = template.fractions.float().div(255).sum((1, 2, 3)).tolist()
    assert shares[0] >= np.isin(source, (8, 13)).sum()  # gaps were filled
    assert shares[1:] == [(source == label).sum() for label in (2, 10, 1, 14)]
    assert sorted(round(x) for x in template.swelling_at[:, 2].tolist()) == [-14, 14]


def boned():
    """A body of bone alone."""
    return label_maps([toy_map()], {1: Region("skull", "bone", "bone")}, variation=BODY_VARIATION)


def test_every_structure_of_a_label_map_can_be_one_of_its_own():
    single = label_maps([toy_map()], STRUCTURE_SCHEME)
    assert single.labels == {region.structure: value for value, region in STRUCTURE_SCHEME.items()}
    assert {region.tissue for region in single.regions} == {region.tissue for region in TISSUES}
    scan = next(BRAIN.cases("pd-3T", "test", anatomy=single, slices=4))
    present = set(np.unique(toy_map().labels).tolist())
    assert set(np.unique(scan.reference).tolist()) - {13} == present - {13}  # the fluid around may be stripped


def test_people_are_the_same_whether_structures_or_tissues_are_labelled(toy):
    """But for the folds, which random fields shape by tissue."""
    single = label_maps([toy_map()], STRUCTURE_SCHEME)
    tissue = {value: LABELS[region.structure] for value, region in TISSUE_SCHEME.items()} | {0: 0}
    one, other = (next(BRAIN.cases("pd-3T", "test", anatomy=a, slices=4)).reference for a in (toy, single))
    assert (np.vectorize(tissue.get)(other) == one).mean() > 0.98


def test_label_maps_without_fluid_need_none():
    solid = {value: region for value, region in TISSUE_SCHEME.items() if region.tissue != "CSF"}
    anatomy = label_maps([toy_map()], solid)
    assert [region.name for region in anatomy.regions] == ["cortex", "deep grey", "white", "brain stem"]
    fractions = anatomy.subject(rng(), FieldOfView(slices=2)).fractions
    assert torch.isfinite(fractions).all()
    assert fractions.sum() > 1000


def test_a_body_is_not_stripped_and_its_surroundings_are_air():
    anatomy = boned()
    subject = anatomy.subject(rng(), FieldOfView(slices=2, in_plane=2.0))
    assert subject.around == ""
    assert anatomy.labels == {"bone": 1}
    total = subject.fractions.sum(0)
    assert (subject.labels(anatomy.labels) == (total > 0.5)).all()


def test_the_atlas_knows_the_deep_structures_and_survives_export(tmp_path):
    atlas = icbm152(4)
    places = {  # MNI mm (x, y, z)
        "deep grey": [(12, -18, 8), (-26, 4, 2), (12, 14, 6)],
        "brain stem": [(0, -28, -32)],
        "white": [(26, -20, 32), (0, 24, 8)],
        "cortex": [(38, 4, 0)],
    }
    for tissue, points in places.items():
        at = torch.tensor([[[p[::-1] for p in points]]]).float() - torch.tensor(_CENTRE)
        shares = atlas.templates[0].at(at)[:, 0, 0]
        number = [region.name for region in TISSUES].index(tissue)
        assert (shares.argmax(0) == number).all(), (tissue, shares)
    export_atlas(tmp_path / "atlas.npz", resolution=4)
    loaded = Atlas.load(tmp_path / "atlas.npz")
    one, other = (next(BRAIN.cases("pd-3T", "test", anatomy=a, slices=2)) for a in (atlas, loaded))
    np.testing.assert_array_equal(one.image, other.image)
    np.testing.assert_array_equal(one.reference, other.reference)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_device_sees_the_same_subject(toy, case, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    there = next(BRAIN.cases(BRAIN.source, "test", anatomy=toy, slices=4, device=device))
    assert (there.reference == case.reference).mean() > 0.999
    assert np.abs(there.image - case.image).mean() < 0.5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda toy: BRAIN.cases("mars", "test", anatomy=toy), "Unknown centre 'mars'.*source-3T-mprage"),
        (lambda toy: BRAIN.cases("ir-3T", "train", anatomy=toy), "Unknown split 'train'.*test"),
        (lambda toy: next(BRAIN.cases("ir-3T", "test", anatomy=boned())), "tissue 'bone' is not in the values"),
        (lambda toy: label_maps([toy_map()], {77: TISSUES[3]}), r"toy must hold labels of the scheme \(77\)"),
        (lambda toy: label_maps([]), "at least one template"),
        (lambda toy: label_maps("/nowhere"), "must be a folder with NIfTI label maps"),
        (lambda toy: Atlas.load("/nowhere.npz"), "is not there"),
        (lambda toy: toy.save("atlas.zip"), "ending in .npz"),
        (lambda toy: toy.mixed_with(dataclasses.replace(toy, regions=TISSUES[::-1])), "when their regions agree"),
        (lambda toy: FieldOfView(slices=0), "at least 1 slice"),
    ],
)
def test_bad_input_is_told_in_a_sentence(toy, make, says):
    with pytest.raises(InputError, match=says):
        make(toy)


def test_a_file_of_something_else_is_no_anatomy(tmp_path):
    np.savez(tmp_path / "other.npz", record=np.array("{}"), image=np.zeros(3))
    with pytest.raises(InputError, match="other.npz holds no anatomy"):
        Atlas.load(tmp_path / "other.npz")
