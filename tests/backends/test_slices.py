"""From a scan's own grid to the network's slices and back, against nibabel, numpy, scipy and plain loops."""

import itertools
import json
import re

import nibabel
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage

from scantune.backends import slices as preprocess
from scantune.backends.slices import Preprocessing
from scantune.errors import InputError, ScanError
from scantune.scans.bias_field import remove_bias
from scantune.scans.case import Case
from scantune.scans.grid import PLANES, Orientation, SliceGrid

ORIENTATIONS = [
    (axes, signs) for axes in itertools.permutations(range(3)) for signs in itertools.product((1, -1), repeat=3)
]


def rotation(rng, degrees):
    axis = rng.normal(size=3)
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.deg2rad(degrees)
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def affine_of(axes=(0, 1, 2), signs=(1, 1, 1), spacing=(1.0, 1.0, 1.0), turn=None):
    """Voxel axis `i` runs along world axis `axes[i]`, with a sign, turned a little."""
    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[:, axes] * signs * spacing
    if turn is not None:
        affine[:3, :3] = turn @ affine[:3, :3]
    affine[:3, 3] = 5.0, -17.0, 40.0
    return affine


def blobs(shape, rng, structures=3):
    """A label map of smooth blobs: the background and the largest of some smoothed noises."""
    fields = [
        ndimage.gaussian_filter(rng.normal(size=shape), [max(n / 9, 0.5) for n in shape]) for _ in range(structures)
    ]
    fields = [field / field.std() for field in fields]
    return np.argmax([np.full(shape, 0.4), *fields], axis=0).astype(np.uint8)


def made_up(affine, shape=(20, 18, 7), seed=0, **fields):
    rng = np.random.default_rng(seed)
    reference = blobs(shape, rng)
    image = (100 * reference + rng.normal(300, 20, shape)).astype(np.float32)
    return Case("made-up", image, affine, reference=reference, **fields)


def one_hot(labels, classes=4):
    """Labels (slices, height, width) as certain probabilities (slices, classes, height, width)."""
    return F.one_hot(labels, classes).permute(0, 3, 1, 2).float()


def dice(one, other):
    return 2 * np.count_nonzero(one & other) / (np.count_nonzero(one) + np.count_nonzero(other))


def worst_dice(found, reference):
    sizes = {label: np.count_nonzero(reference == label) for label in np.unique(reference)}
    large = [label for label, size in sizes.items() if label and size > 100]
    assert large
    return min(dice(found == label, reference == label) for label in large)


# Axes


def in_display_order(canonical, plane):
    """The table of `scantune.grids`, written out for an array (right, anterior, superior)."""
    if plane == "axial":
        return canonical.transpose(2, 1, 0)[:, ::-1, ::-1]
    if plane == "coronal":
        return canonical.transpose(1, 2, 0)[:, ::-1, ::-1]
    return canonical.transpose(0, 2, 1)[:, ::-1, ::-1]


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("degrees", [0, 25])
def test_every_orientation_is_laid_out_as_nibabel_has_it(plane, degrees):
    rng = np.random.default_rng(1)
    array = rng.normal(size=(5, 4, 3)).astype(np.float32)
    for axes, signs in ORIENTATIONS:
        turn = rotation(rng, degrees)
        affine = affine_of(axes, signs, (0.3, 1.0, 5.0), turn)
        canonical = nibabel.as_closest_canonical(nibabel.Nifti1Image(array, affine)).get_fdata(dtype=np.float32)
        orientation = Orientation.closest(affine, plane)
        slices = orientation.to_slices(array)
        np.testing.assert_array_equal(slices, in_display_order(canonical, plane))
        np.testing.assert_array_equal(orientation.to_native(slices), array)


@pytest.mark.parametrize(
    ("plane", "first_slice", "first_row", "first_column"),
    [("axial", "I", "A", "R"), ("coronal", "P", "S", "R"), ("sagittal", "L", "S", "A")],
)
def test_pictures_begin_at_the_end_of_the_body_that_the_table_says(plane, first_slice, first_row, first_column):
    ends = {"R": (0, -1), "L": (0, 0), "A": (1, -1), "P": (1, 0), "S": (2, -1), "I": (2, 0)}
    for picture_axis, letter in enumerate((first_slice, first_row, first_column)):
        axis, end = ends[letter]
        array = np.zeros((4, 4, 4))
        np.moveaxis(array, axis, 0)[end] = 1
        slices = Orientation.closest(np.eye(4), plane).to_slices(array)
        assert np.moveaxis(slices, picture_axis, 0)[0].all()


def test_the_volume_is_the_reoriented_scan_when_nothing_else_is_asked():
    case = made_up(affine_of((2, 0, 1), (-1, 1, -1), (0.9, 0.9, 3.0)))
    canonical = nibabel.as_closest_canonical(nibabel.Nifti1Image(case.image, case.affine)).get_fdata()
    expected = in_display_order(canonical, "axial")
    prepared = Preprocessing(size=expected.shape[1:], percentiles=(0, 100)).prepare(case)
    scaled = (expected - expected.min()) / (expected.max() - expected.min())
    np.testing.assert_allclose(prepared.volume[:, 0].numpy(), scaled, atol=1e-6)
    assert prepared.padding is None
    assert prepared.volume.dtype == torch.float32


# Intensities


def test_percentiles_are_scaled_as_numpy_has_them_and_clipped():
    case = made_up(np.eye(4))
    prepared = Preprocessing(size=(18, 20), percentiles=(5, 90)).prepare(case)
    low, high = np.percentile(case.image.astype(np.float64), [5, 90])
    np.testing.assert_allclose(prepared.limits, (low, high), rtol=1e-6)
    expected = np.clip((case.image - low) / (high - low), 0, 1)
    np.testing.assert_allclose(prepared.volume[:, 0], in_display_order(expected, "axial"), atol=1e-5)
    assert (prepared.volume.min(), prepared.volume.max()) == (0, 1)


def test_percentiles_of_a_skull_stripped_scan_leave_its_zeros_out():
    case = made_up(np.eye(4))
    case.image[:8] = 0
    prepared = Preprocessing(content="nonzero").prepare(case)
    np.testing.assert_allclose(prepared.limits, np.percentile(case.image[case.image != 0], [1, 99]), rtol=1e-6)
    assert prepared.limits[0] > Preprocessing().prepare(case).limits[0]


@pytest.mark.parametrize("content", ["all", "nonzero"])
def test_a_scan_without_contrast_between_its_percentiles_is_refused(content):
    image = np.zeros((20, 20, 3), np.float32)
    image[0, 0, 0] = 5 if content == "all" else 0
    with pytest.raises(ScanError, match=r"a-scan must have .*percentiles 1 and 99 are both 0"):
        Preprocessing(content=content).prepare(Case("a-scan", image, np.eye(4)))


def biased_case(shape):
    """Two tissues under a bias that grows by a third from one side to the other."""
    rng = np.random.default_rng(3)
    tissue = np.where(ndimage.gaussian_filter(rng.normal(size=shape), 1.5) > 0, 200.0, 100.0) + rng.normal(0, 2, shape)
    bias = np.linspace(1, 4 / 3, shape[0])[:, None, None]
    image = (tissue * bias).astype(np.float32)
    image[:, :2] = 0
    return Case("biased", image, affine_of(spacing=(1, 1, 3))), tissue


@pytest.mark.parametrize("shape", [(40, 36, 12), (40, 36, 1)])
def test_n4_takes_most_of_a_smooth_bias_away(shape):
    case, tissue = biased_case(shape)

    def spread(image):
        ratio = np.log(image[:, 2:] / tissue[:, 2:])
        return ratio.std()

    corrected = remove_bias(case, case.image != 0)
    assert corrected.shape == shape
    assert spread(corrected) < 0.5 * spread(case.image)
    assert not corrected[:, :2].any()
    prepared = Preprocessing(n4=True, content="nonzero", size=(36, 40), percentiles=(0, 100)).prepare(case)
    assert prepared.limits[1] == pytest.approx(corrected.max(), rel=0.05)


def test_n4_finds_its_own_foreground_when_none_is_given():
    case, _ = biased_case((40, 36, 12))
    assert np.isfinite(remove_bias(case)).all()
    assert not np.allclose(remove_bias(case), case.image)


def test_n4_on_a_line_is_one_sentence():
    case = Case("line", np.arange(1, 9, dtype=np.float32).reshape(8, 1, 1), np.eye(4))
    with pytest.raises(ScanError, match="line must be a picture"):
        Preprocessing(n4=True).prepare(case)


# Resampling, crop and padding


def hat_resampled(values, length):
    """A plain loop over pixel centres with a hat as wide as the coarser of the two grids."""
    step = len(values) / length
    width = max(step, 1.0)
    result = []
    for index in range(length):
        centre = (index + 0.5) * step - 0.5
        weights = [max(0.0, 1 - abs(pixel - centre) / width) for pixel in range(len(values))]
        result.append(np.dot(weights, values) / np.sum(weights))
    return np.array(result)


@pytest.mark.parametrize("length", [3, 5, 8, 13, 16, 29, 40])
def test_resampling_is_a_hat_filter_between_pixel_centres(length):
    values = np.random.default_rng(0).random(13)
    grid = SliceGrid((13, 1), (length, 1), (0, 0), (length, 1))
    found = grid.place(torch.from_numpy(values)[None, :, None])[0, :, 0]
    np.testing.assert_allclose(found, hat_resampled(values, length), atol=1e-12)


def test_refining_agrees_with_scipy_between_and_at_the_borders():
    picture = np.random.default_rng(0).random((10, 12))
    grid = SliceGrid((10, 12), (25, 18), (0, 0), (25, 18))
    positions = np.meshgrid((np.arange(25) + 0.5) * 10 / 25 - 0.5, (np.arange(18) + 0.5) * 12 / 18 - 0.5, indexing="ij")
    expected = ndimage.map_coordinates(picture, positions, order=1, mode="nearest")
    np.testing.assert_allclose(grid.place(torch.from_numpy(picture)[None])[0], expected, atol=1e-12)


def test_going_back_is_linear_at_the_native_centres_when_coarser_too():
    picture = np.random.default_rng(0).random((25, 18))
    grid = SliceGrid((10, 12), (25, 18), (0, 0), (25, 18))
    positions = np.meshgrid((np.arange(10) + 0.5) * 25 / 10 - 0.5, (np.arange(12) + 0.5) * 18 / 12 - 0.5, indexing="ij")
    expected = ndimage.map_coordinates(picture, positions, order=1, mode="nearest")
    np.testing.assert_allclose(grid.restore(torch.from_numpy(picture)[None], 0.0)[0], expected, atol=1e-12)


def test_a_straight_ramp_survives_the_way_there_and_back():
    ramp = torch.arange(12.0).repeat(10, 1)[None]
    grid = SliceGrid((10, 12), (30, 31), (-4, -3), (40, 40))
    back = grid.restore(grid.place(ramp), 0.0)
    np.testing.assert_allclose(back[0, :, 1:-1], ramp[0, :, 1:-1], atol=1e-5)


def test_shrinking_noise_averages_it():
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 120, 120)))
    shrunk = SliceGrid((120, 120), (20, 20), (0, 0), (20, 20)).place(noise)
    assert shrunk.std() < 0.25
    assert abs(shrunk.mean() - noise.mean()) < 0.02


@pytest.mark.parametrize(("native", "resampled"), [(7, 7), (7, 10), (7, 21), (10, 7), (1, 4), (5, 1)])
def test_labels_take_the_pixel_under_their_centre(native, resampled):
    labels = torch.arange(native)
    grid = SliceGrid((native, 1), (resampled, 1), (0, 0), (resampled, 1))
    expected = [min(int((index + 0.5) * native / resampled), native - 1) for index in range(resampled)]
    assert grid.place_labels(labels[None, :, None])[0, :, 0].tolist() == expected


def test_the_field_of_view_is_kept_and_through_plane_spacing_untouched():
    case = made_up(affine_of(spacing=(0.8, 1.2, 4.0)), shape=(40, 30, 5))
    prepared = Preprocessing(spacing=1.0, size=(64, 64)).prepare(case)
    assert prepared.grid.native == (30, 40)
    assert prepared.grid.resampled == (36, 32)
    assert prepared.volume.shape == (5, 1, 64, 64)


@pytest.mark.parametrize("size", [(18, 20), (30, 30), (9, 30), (31, 11), (5, 4)])
def test_crop_and_padding_are_centred_and_marked(size):
    case = made_up(np.eye(4))
    prepared = Preprocessing(size=size, percentiles=(0, 100)).prepare(case)
    whole = Preprocessing(size=(18, 20), percentiles=(0, 100)).prepare(case).volume[:, 0].numpy()
    picture, marked = np.zeros((7, *size)), np.ones((7, *size), bool)
    for row, column in itertools.product(range(size[0]), range(size[1])):
        inner_row, inner_column = row + (18 - size[0]) // 2, column + (20 - size[1]) // 2
        if 0 <= inner_row < 18 and 0 <= inner_column < 20:
            picture[:, row, column] = whole[:, inner_row, inner_column]
            marked[:, row, column] = False
    np.testing.assert_array_equal(prepared.volume[:, 0], picture)
    if marked.any():
        np.testing.assert_array_equal(prepared.padding[:, 0], marked)
        assert prepared.padding.shape == prepared.volume.shape
    else:
        assert prepared.padding is None


def test_a_skull_stripped_scan_is_centred_on_its_bounding_box():
    image = np.zeros((40, 40, 4), np.float32)
    image[30:36, 2:10, 1] = np.random.default_rng(0).random((6, 8)) + 1
    image[20, 5, 3] = 1
    case = Case("head", image, np.eye(4))
    prepared = Preprocessing(content="nonzero", size=(8, 16), percentiles=(0, 100)).prepare(case)
    rows, columns = np.nonzero(in_display_order(image, "axial").any(0))
    assert (rows.min(), columns.min()) == prepared.grid.offset
    assert (rows.max() - rows.min() + 1, columns.max() - columns.min() + 1) == (8, 16)
    finer = Preprocessing(content="nonzero", size=(16, 32), spacing=0.5).prepare(case)
    assert finer.grid.offset == (2 * rows.min(), 2 * columns.min())


def test_zeros_of_the_scan_are_no_padding():
    case = made_up(np.eye(4))
    case.image[:5] = 0
    padding = Preprocessing(content="nonzero", size=(30, 30)).prepare(case).padding
    assert torch.count_nonzero(~padding[0, 0]) == 18 * 20


# Back on the scan's own grid


@pytest.mark.parametrize("refine", [None, 1.0, 1.5, 2.0], ids=lambda factor: f"refine={factor}")
def test_labels_come_back_for_every_orientation_straight_and_oblique(refine):
    """On the scan's own grid, and refined by 1.5 or more; the weaker factors have their own test below."""
    rng = np.random.default_rng(5)
    for index, (axes, signs) in enumerate(ORIENTATIONS):
        spacing = [(1.0, 1.0, 1.0), (0.3, 0.3, 2.0), (5.0, 1.4, 1.4), (0.9, 3.0, 0.9)][index % 4]
        turn = rotation(rng, 25) if index % 2 else None
        case = made_up(affine_of(axes, signs, spacing, turn), (16, 14, 12), seed=index)
        plane = PLANES[index % 3]
        in_plane = [case.spacing[axis] for axis in Orientation.closest(case.affine, plane).axes[1:]]
        working = None if refine is None else min(in_plane) / refine
        prepared = Preprocessing(plane=plane, size=(168, 168), spacing=working).prepare(case)
        found = prepared.to_native(one_hot(prepared.reference))
        assert found.dtype == np.uint8
        assert found.shape == case.shape
        assert worst_dice(found, case.reference) > 0.99, (axes, signs, spacing)
        if refine is None:
            np.testing.assert_array_equal(found, case.reference)


@pytest.mark.parametrize("slices", [1, 2, 17, 60])
@pytest.mark.parametrize("spacing", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("refine", [None, 1.4, 3.0])
def test_labels_come_back_from_one_slice_to_sixty_and_from_thin_to_thick(slices, spacing, refine):
    case = made_up(affine_of(spacing=(spacing, spacing, 3.0)), (40, 36, slices), seed=slices)
    prepared = Preprocessing(size=(128, 128), spacing=refine and spacing / refine).prepare(case)
    assert len(prepared.volume) == slices
    found = prepared.to_native(one_hot(prepared.reference))
    assert worst_dice(found, case.reference) > 0.99


@pytest.mark.parametrize("refine", [1.02, 1.05, 1.1, 1.2])
@pytest.mark.parametrize(("shape", "least"), [((40, 36, 12), 0.98), ((160, 144, 4), 0.99)], ids=["small", "large"])
def test_refining_by_a_little_rounds_corners_so_small_structures_may_fall_below_99(refine, shape, least):
    """Native centres then lie between working pixels, and linear weights outvote single corner pixels."""
    for seed in range(3):
        case = made_up(affine_of(spacing=(1, 1, 3)), shape, seed=seed)
        prepared = Preprocessing(size=(200, 200), spacing=1 / refine).prepare(case)
        assert worst_dice(prepared.to_native(one_hot(prepared.reference)), case.reference) > least


def test_a_coarser_working_grid_returns_the_labels_it_can_hold():
    """At 1.5 times the pixel size small corners go, large structures stay where they were."""
    case = made_up(affine_of(spacing=(1, 1, 3)), (60, 54, 8))
    prepared = Preprocessing(size=(64, 64), spacing=1.5).prepare(case)
    found = prepared.to_native(one_hot(prepared.reference))
    assert 0.9 < worst_dice(found, case.reference) < 1
    for label in (1, 2, 3):
        there, back = (np.mean(np.nonzero(labels == label), axis=1) for labels in (case.reference, found))
        np.testing.assert_allclose(back, there, atol=0.3)


def test_beyond_the_crop_there_is_background():
    case = made_up(np.eye(4))
    prepared = Preprocessing(size=(6, 8)).prepare(case)
    certain = torch.zeros(7, 4, 6, 8)
    certain[:, 2] = 1
    found = prepared.to_native(certain)
    expected = np.zeros((7, 18, 20))
    expected[:, 6:12, 6:14] = 2
    np.testing.assert_array_equal(in_display_order(found, "axial"), expected)


def test_labels_are_the_arg_max_of_all_resampled_probabilities():
    case = made_up(np.eye(4), (20, 18, 35))
    prepared = Preprocessing(size=(24, 25), spacing=0.7).prepare(case)
    probabilities = torch.softmax(torch.randn(35, 5, 24, 25, generator=torch.Generator().manual_seed(0)), 1)
    found = in_display_order(prepared.to_native(probabilities), "axial")
    (top, left), (rows, columns) = prepared.grid.offset, prepared.grid.resampled
    whole = torch.zeros(35, 5, rows, columns)
    whole[:, 0] = 1
    whole[:, :, top : top + 24, left : left + 25] = probabilities
    all_at_once = F.interpolate(whole, (18, 20), mode="bilinear", align_corners=False).argmax(1)
    np.testing.assert_array_equal(found, all_at_once)


def test_one_class_alone_is_compared_to_a_half():
    case = made_up(np.eye(4))
    prepared = Preprocessing(size=(24, 16)).prepare(case)
    foreground = torch.rand(7, 1, 24, 16, generator=torch.Generator().manual_seed(0))
    found = in_display_order(prepared.to_native(foreground), "axial")
    expected = np.zeros((7, 18, 20))
    expected[:, :, 2:18] = foreground[:, 0, 3:21] > 0.5
    np.testing.assert_array_equal(found, expected)


def test_never_more_than_one_class_of_a_few_slices_is_resampled_at_once(monkeypatch):
    seen = []
    restore = SliceGrid.restore

    def spy(self, pictures, outside):
        seen.append(tuple(pictures.shape))
        return restore(self, pictures, outside)

    monkeypatch.setattr(SliceGrid, "restore", spy)
    case = made_up(np.eye(4), (20, 18, 35))
    prepared = Preprocessing(size=(24, 24)).prepare(case)
    prepared.to_native(one_hot(prepared.reference))
    chunks = [preprocess._CHUNK, preprocess._CHUNK, 35 - 2 * preprocess._CHUNK]
    assert seen == [(slices, 24, 24) for slices in chunks for _ in range(4)]


def test_half_precision_and_gradients_do_not_disturb():
    case = made_up(np.eye(4))
    prepared = Preprocessing(size=(18, 20)).prepare(case)
    probabilities = one_hot(prepared.reference).to(torch.bfloat16).requires_grad_()
    np.testing.assert_array_equal(prepared.to_native(probabilities), case.reference)


def test_probabilities_of_another_size_are_refused():
    prepared = Preprocessing(size=(24, 24)).prepare(made_up(np.eye(4)))
    with pytest.raises(ValueError, match=re.escape("(7, 'classes', 24, 24), not (7, 4, 24, 25)")):
        prepared.to_native(torch.zeros(7, 4, 24, 25))


def test_a_case_without_reference_has_none():
    case = Case("a", np.random.default_rng(0).random((5, 6, 3), np.float32), np.eye(4))
    assert Preprocessing(size=(8, 8)).prepare(case).reference is None


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int16, np.int64])
def test_references_of_any_integer_type_are_taken(dtype):
    case = made_up(np.eye(4))
    other = Case("a", case.image, case.affine, reference=case.reference.astype(dtype))
    prepared = Preprocessing(size=(18, 20)).prepare(other)
    assert prepared.reference.dtype == torch.int64
    np.testing.assert_array_equal(prepared.reference, in_display_order(case.reference, "axial"))


def test_the_scan_itself_is_left_alone():
    case = made_up(affine_of(signs=(-1, 1, -1)))
    before = case.image.copy(), case.reference.copy()
    Preprocessing(size=(24, 24), spacing=0.5).prepare(case)
    np.testing.assert_array_equal(case.image, before[0])
    np.testing.assert_array_equal(case.reference, before[1])


# Records


def test_the_record_of_a_preprocessing_survives_json():
    preprocessing = Preprocessing("coronal", (200, 180), 0.75, (0.5, 99.5), "nonzero", True)
    again = Preprocessing.from_record(json.loads(json.dumps(preprocessing.record())))
    assert again == preprocessing
    assert Preprocessing.from_record({}) == Preprocessing()


def test_the_record_of_a_prepared_scan_tells_where_its_pictures_lie():
    prepared = Preprocessing(size=(24, 10)).prepare(made_up(affine_of(signs=(-1, 1, 1))))
    record = json.loads(json.dumps(prepared.record()))
    assert record["axes"] == [2, 1, 0]
    assert record["flips"] == [False, True, False]
    assert record["native"] == record["resampled"] == [18, 20]
    assert record["offset"] == [-3, 5]
    assert record["size"] == [24, 10]
    assert record["limits"] == list(prepared.limits)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("plane", "oblique"),
        ("size", (0, 10)),
        ("size", (10, 10, 10)),
        ("size", 10),
        ("spacing", -1.0),
        ("spacing", float("nan")),
        ("percentiles", (99.0, 1.0)),
        ("percentiles", (-1.0, 101.0)),
        ("content", "some"),
        ("windows", 3),
    ],
)
def test_a_wrong_record_is_one_sentence(entry, value):
    with pytest.raises(InputError, match=entry):
        Preprocessing.from_record({entry: value})
