"""Figures: what is drawn, where, in which colours."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from scantune import AdaptableNetwork, Case, FieldOfExperts, Model, adapt
from scantune.adaptation.figure import case_figure, pixel_aspect, plot_trace
from scantune.adaptation.guard.base import Decision
from scantune.backends.slices import Preprocessing
from scantune.errors import InputError
from scantune.plots.colours import ERROR_COLOUR, STRUCTURE_COLOURS, structure_colours
from scantune.plots.files import save_figure

LABELS = {"background": 0, "disc": 1, "ring": 2}
SHAPE = {"classes": 3, "channels": 1, "dimensions": 2, "width": 2}


def scan(reference=True, affine=None):
    """Noise around a bright box, in three slices; the second has the largest reference."""
    rng = np.random.default_rng(1)
    image = rng.random((24, 32, 3)).astype(np.float32)
    image[8:16, 6:20] += 2.0
    truth = np.zeros(image.shape, np.uint8)
    truth[9:13, 8:18, 0] = 1
    truth[8:16, 6:20, 1] = 1
    truth[10:12, 9:13, 1] = 2
    truth[8:14, 6:18, 2] = 1
    return Case("toy", image, np.eye(4) if affine is None else affine, truth if reference else None)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = AdaptableNetwork.default(**SHAPE).eval()
    volumes = [torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    prior = FieldOfExperts.fit(network, volumes)
    return Model(network, LABELS, Preprocessing(size=(40, 32)), {"kind": "unet", **SHAPE}, prior=prior)


@pytest.fixture(scope="module")
def result(model):
    return adapt(model, scan(), steps=3, guard=False, device="cpu")


@pytest.fixture(scope="module")
def figure(result):
    return case_figure(result, title="A toy", captions={"After": "Dice 0.5"}, floor=0.01)


def panel(figure, name):
    return next(axes for axes in figure.axes if axes.get_title() == name)


def layer(figure, name):
    """The colours `(height, width, 4)` that lie over a panel's image."""
    return np.asarray(panel(figure, name).images[-1].get_array())


def lines(axes):
    return {line.get_label(): line for line in axes.lines}


def test_a_scan_with_a_reference_has_four_pictures_two_of_errors_and_the_trace(figure):
    assert [axes.get_title() for axes in figure.axes] == [
        *("Image", "Reference", "Before", "After", "Wrong before", "Wrong after", "Adaptation, step by step")
    ]
    assert figure.get_suptitle() == "A toy"
    assert panel(figure, "After").get_xlabel() == "Dice 0.5"
    assert panel(figure, "Before").get_xlabel() == ""


def test_a_scan_without_a_reference_shows_what_was_changed(model):
    result = adapt(model, scan(reference=False), steps=1, guard=False, device="cpu")
    figure = case_figure(result, title="")
    assert [axes.get_title() for axes in figure.axes] == [
        *("Image", "Before", "After", "Changed", "Adaptation, step by step")
    ]
    assert [text.get_text() for text in figure.legends[0].texts] == ["disc", "ring", "changed"]


def test_labels_are_drawn_in_their_colours_and_named_in_the_legend(figure):
    drawn = layer(figure, "Reference")
    disc, ring = (np.all(drawn == to_rgba(colour), axis=-1) for colour in STRUCTURE_COLOURS[:2])
    assert (int(disc.sum()), int(ring.sum())) == (8 * 14 - 2 * 4, 2 * 4)  # those of the second slice
    assert np.all(drawn[~disc & ~ring] == 0)
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.texts] == ["disc", "ring", "wrong"]
    assert [patch.get_facecolor() for patch in legend.get_patches()] == [
        *map(to_rgba, [*STRUCTURE_COLOURS[:2], ERROR_COLOUR])
    ]


def test_errors_are_where_segmentation_and_reference_differ(figure):
    for name in ("Before", "After"):
        wrong = np.all(layer(figure, f"Wrong {name.lower()}") == to_rgba(ERROR_COLOUR), axis=-1)
        np.testing.assert_array_equal(wrong, np.any(layer(figure, name) != layer(figure, "Reference"), axis=-1))


def test_the_slice_lies_as_radiologists_look_at_it(figure):
    drawn = layer(figure, "Reference")
    rows, columns = np.nonzero(drawn[..., 3])
    ring = np.argwhere(np.all(drawn == to_rgba(STRUCTURE_COLOURS[1]), axis=-1))
    # The array runs to the right and to anterior, so the picture is upside down and mirrored: the ring, at the
    # low end of both axes within the disc, lies low and to the right.
    assert ring[:, 0].mean() > rows.mean()
    assert ring[:, 1].mean() > columns.mean()
    assert [text.get_text() for text in panel(figure, "Image").texts] == ["R", "L"]


@pytest.mark.parametrize(
    ("plane", "letters"), [("axial", ["R", "L"]), ("coronal", ["R", "L"]), ("sagittal", ["A", "P"])]
)
def test_the_sides_are_told_in_every_plane_and_axis_order(model, plane, letters):
    turned = np.array([[0.0, -1, 0, 0], [0, 0, 2, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    other = dataclasses.replace(model, backend=Preprocessing(plane=plane, size=(32, 32)))
    result = adapt(other, scan(affine=turned), method="source", device="cpu")
    assert [text.get_text() for text in case_figure(result, title="").axes[0].texts] == letters


def test_pixels_keep_their_physical_shape(model):
    affine = np.diag([1.5, 1.0, 4.0, 1.0])
    own = dataclasses.replace(model, backend=Preprocessing(plane="coronal", size=(32, 32)))
    assert pixel_aspect(adapt(own, scan(affine=affine), method="source", device="cpu")) == pytest.approx(4 / 1.5)
    even = dataclasses.replace(model, backend=Preprocessing(size=(32, 32), spacing=1.0))
    result = adapt(even, scan(affine=affine), method="source", device="cpu")
    assert pixel_aspect(result) == pytest.approx(1.0)
    assert case_figure(result, title="").axes[0].get_aspect() == pytest.approx(1.0)


def test_the_trace_is_that_of_the_result(figure, result):
    drawn = lines(figure.axes[-1])
    for name, key in (("objective", "objective"), ("energy", "cnn")):
        np.testing.assert_array_equal(drawn[name].get_xdata(), [0, 1, 2, 3])
        np.testing.assert_array_equal(drawn[name].get_ydata(), [row[key] for row in result.trace])
    best = result.facts["best_step"]
    assert drawn["chosen step"].get_xydata().tolist() == [[best, result.trace[best]["cnn"]]]
    floor = drawn["least possible energy"]
    assert set(floor.get_ydata()) == {0.01}
    assert floor.get_linestyle() == "--"
    assert figure.axes[-1].get_yscale() == "log"


def test_an_objective_below_zero_gets_an_even_axis(result):
    below = dataclasses.replace(result, trace=[{"step": 0, "objective": -1.0}], facts={"best_step": None})
    axes = Figure().add_subplot()
    plot_trace(axes, below, floor=0.01)
    assert axes.get_yscale() == "linear"
    assert list(lines(axes)) == ["objective"]


def test_a_scan_that_was_not_adapted_to_says_so(model):
    result = adapt(model, scan(), method="source", device="cpu")
    axes = case_figure(result, title="").axes[-1]
    assert not axes.lines
    assert axes.texts[0].get_text() == "not adapted"


def test_a_step_that_was_rolled_back_is_not_called_chosen(result):
    back = dataclasses.replace(result, decision=Decision("unsolved", "so."))
    axes = Figure().add_subplot()
    plot_trace(axes, back)
    assert list(lines(axes)) == ["objective", "energy"]


def test_a_tensor_cannot_be_drawn(model):
    result = adapt(model.network, torch.rand(1, 1, 32, 32), method="source", device="cpu")
    with pytest.raises(InputError, match="from a file or a case"):
        case_figure(result, title="")


def test_colours_go_by_the_labels_order_and_start_again_when_used_up():
    names = {f"s{value}": value for value in range(9, -1, -1)}
    colours = structure_colours(names)
    assert list(colours) == [f"s{value}" for value in range(1, 10)]
    assert [colours[f"s{value}"] for value in range(1, 8)] == list(STRUCTURE_COLOURS)
    assert colours["s8"] == STRUCTURE_COLOURS[0]


def test_structures_differ_in_lightness_too():
    def lightness(colour):
        return math.sqrt(np.dot([0.299, 0.587, 0.114], np.square(to_rgba(colour)[:3])))

    ordered = sorted(map(lightness, STRUCTURE_COLOURS[:3]))
    assert min(np.diff(ordered)) > 0.1


def test_figures_are_written_whole_and_without_a_window(figure, tmp_path):
    save_figure(figure, tmp_path / "new" / "toy.png")
    assert (tmp_path / "new" / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["toy.png"]
    assert figure.canvas.manager is None
    with pytest.raises(InputError, match="cannot be written"):
        save_figure(figure, tmp_path / "new" / "toy.png" / "below.png")
