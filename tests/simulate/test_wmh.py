"""The head with white matter hyperintensities: what is around the brain, and where lesions lie."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import ndimage

from scantune.errors import InputError
from scantune.simulate.anatomies import wmh
from scantune.simulate.anatomies.head import HEAD, SHELL, head_atlas
from scantune.simulate.anatomies.icbm152 import icbm152
from scantune.simulate.anatomies.lesions import Load
from scantune.simulate.anatomies.places import distance_to
from scantune.simulate.anatomies.wmh import WhiteMatterLesions
from scantune.simulate.atlas import Atlas
from scantune.simulate.subject import FieldOfView

VIEW = FieldOfView(slices=10, height=216, width=184, in_plane=2.0, thickness=3.0)
AT = {region.name: place for place, region in enumerate(WhiteMatterLesions.regions)}
SOLID = [AT[name] for name in ("cortex", "deep grey", "white", "brain stem", "lesion")]


@pytest.fixture(scope="module")
def atlas():
    return head_atlas(resolution=2)


@pytest.fixture(scope="module")
def people(atlas):
    return WhiteMatterLesions(atlas)


@pytest.fixture(scope="module")
def subjects(people):
    return [people.subject(rng(seed), VIEW) for seed in range(15)]


def rng(seed=0):
    return np.random.default_rng(seed)


def millilitres(subject):
    return float(subject.fractions[AT["lesion"]].sum()) * np.prod(subject.spacing) / 1000


def test_the_same_random_numbers_give_the_same_person_and_others_another(people, subjects):
    assert torch.equal(people.subject(rng(3), VIEW).fractions, subjects[3].fractions)
    assert not torch.equal(subjects[3].fractions, subjects[4].fractions)


def test_lesions_take_the_place_of_white_matter_and_of_nothing_else(people, subjects, monkeypatch):
    monkeypatch.setattr(wmh, "lesions", lambda _rng, _load, white, *_rest: torch.zeros_like(white))
    healthy = people.subject(rng(3), VIEW).fractions
    ill = subjects[3].fractions
    white, lesion = AT["white"], AT["lesion"]
    assert float(healthy[lesion].max()) == 0 < float(ill[lesion].max())
    torch.testing.assert_close(ill[white] + ill[lesion], healthy[white])
    others = [place for place in range(len(HEAD)) if place != white]
    assert torch.equal(ill[others], healthy[others])


def test_volumes_are_spread_over_the_range_of_small_vessel_disease(subjects):
    volumes = sorted(map(millilitres, subjects))
    assert 0.8 < volumes[0] < 4
    assert 4 < volumes[7] < 16
    assert 15 < volumes[-1] < 61


def test_the_volume_is_the_one_that_was_drawn(subjects):
    drawn = [Load.draw(rng(seed)).volume for seed in range(15)]
    np.testing.assert_allclose(list(map(millilitres, subjects)), drawn, rtol=0.05)


def test_drawn_loads_have_the_stated_median_and_number_of_deep_lesions():
    loads = [Load.draw(rng(seed)) for seed in range(2000)]
    assert np.median([load.volume for load in loads]) == pytest.approx(8, rel=0.1)
    assert all(1 <= load.volume <= 60 and 5 <= len(load.radii) <= 60 for load in loads)
    assert all(min(load.radii) > 0 and max(load.radii) <= 5 for load in loads)
    severe = [load.swelling for load in loads if load.volume > 20]
    mild = [load.swelling for load in loads if load.volume < 4]
    assert np.mean(severe) > np.mean(mild) + 0.05


def test_most_of_the_lesions_lie_near_the_ventricles_of_the_person(subjects):
    near = []
    for subject in subjects:
        head = (subject.fractions.sum(0) > 0.5).numpy()
        deep = ndimage.distance_transform_edt(head, (1e3, *subject.spacing[1:])) > 45
        fluid = (subject.fractions[AT["CSF"]] > 0.5).numpy() & deep
        distance = ndimage.distance_transform_edt(~fluid, subject.spacing)
        lesion = subject.fractions[AT["lesion"]].numpy()
        near.append(lesion[distance < 15].sum() / lesion.sum())
    assert min(near) > 0.6
    assert np.mean(near) > 0.85


def test_lesions_spare_cerebellum_and_everything_outside_the_brain(subjects):
    for subject in subjects:
        lesion = subject.fractions[AT["lesion"]].numpy()
        shell = subject.fractions[len(HEAD) - len(SHELL) : len(HEAD)].sum(0).numpy()
        assert lesion[shell > 0.5].max() == 0
        z = subject.origin[0] + subject.spacing[0] * np.arange(VIEW.slices)
        assert lesion[z < -38].sum() <= 0.02 * lesion.sum()


def test_no_brain_is_in_the_skull_or_the_scalp(subjects):
    bony = [AT[name] for name in ("bone", "marrow", "fat", "muscle", "skin")]
    for subject in subjects:
        outside = subject.fractions[bony].sum(0) > 0.99
        assert float(subject.fractions[SOLID][:, outside].max()) < 0.011


def test_fractions_never_exceed_a_voxel(subjects):
    for subject in subjects:
        assert float(subject.fractions.min()) >= 0
        assert float(subject.fractions.sum(0).max()) <= 1 + 1e-5


def test_going_outwards_there_is_bone_before_fat_and_skin_and_then_air(atlas):
    template = atlas.templates[0]
    names = np.array([*(region.name for region in HEAD), "air"])
    rest = 255 - template.fractions.int().sum(0, keepdim=True)
    kinds = torch.cat([template.fractions.int(), rest]).argmax(0)
    for z in (0.0, 20.0, 40.0):
        for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False):
            steps = np.arange(0, 130, 0.5)
            at = np.stack([np.full_like(steps, z), steps * np.cos(angle), steps * np.sin(angle)], 1)
            index = np.round((at - template.origin) / template.spacing).astype(int)
            index = index[((index >= 0) & (index < kinds.shape)).all(1)]
            way = names[kinds.numpy()[tuple(index.T)]]
            brain = np.nonzero(np.isin(way, [region.name for region in HEAD[: -len(SHELL)]]))[0][-1]
            skull, soft = (
                np.nonzero(np.isin(way, kind))[0] for kind in (["bone", "marrow"], ["fat", "muscle", "skin"])
            )
            assert way[brain + 1] in {"fluid around the brain", "bone"}
            assert brain < skull[0] <= skull[-1] < soft[0]
            assert soft[-1] - skull[-1] >= 4  # at least 2 mm
            assert way[-1] == "air"


def test_the_brain_of_the_head_is_the_atlas_own(atlas):
    brain, head = icbm152(resolution=2).templates[0], atlas.templates[0]
    start = [round((b - h) / s) for b, h, s in zip(brain.origin, head.origin, head.spacing, strict=True)]
    window = tuple(slice(at, at + size) for at, size in zip(start, brain.fractions.shape[1:], strict=True))
    count = len(brain.fractions)
    assert torch.equal(head.fractions[(slice(count), *window)], brain.fractions)
    assert int(head.fractions[:count].long().sum()) == int(brain.fractions.long().sum())
    both = (head.fractions[:count].amax(0) > 0) & (head.fractions[count:].amax(0) > 0)
    assert not both.any()


def test_a_saved_and_loaded_atlas_gives_the_same_person(atlas, subjects, tmp_path):
    atlas.save(tmp_path / "head.npz")
    people = WhiteMatterLesions(Atlas.load(tmp_path / "head.npz"))
    assert torch.equal(people.subject(rng(3), VIEW).fractions, subjects[3].fractions)
    assert people.fingerprint() == WhiteMatterLesions(atlas).fingerprint()


def test_slices_of_the_challenge_cover_the_lesions(people):
    view = FieldOfView(slices=48, height=230, width=230, in_plane=2.3, thickness=3, spacing=3, edges=0.2)
    subject = people.to("cpu").subject(rng(3), view)
    assert subject.fractions.shape == (len(HEAD) + 1, 48, 100, 100)
    labels = subject.labels(people.labels)
    assert set(labels.unique().tolist()) == {0, 1}
    volume = float(labels.sum()) * np.prod(subject.spacing) / 1000
    assert volume == pytest.approx(Load.draw(rng(3)).volume, rel=0.35)
    assert ndimage.label(labels.numpy())[1] > 3


def test_a_view_above_the_head_is_empty(people):
    template = people.atlas.templates[0]
    raised = dataclasses.replace(template, coverage=(150.0, 170.0))
    above = WhiteMatterLesions(dataclasses.replace(people.atlas, templates=(raised,)))
    assert float(above.subject(rng(), dataclasses.replace(VIEW, slices=2)).fractions.abs().max()) == 0


def test_distances_agree_with_scipy():
    mask = torch.from_numpy(rng().random((7, 9, 8)) > 0.97)
    expected = ndimage.distance_transform_edt(~mask.numpy(), (3.0, 1.0, 2.0))
    np.testing.assert_allclose(distance_to(mask, (3.0, 1.0, 2.0)).numpy(), expected, rtol=1e-5)


def test_an_atlas_without_a_head_is_refused():
    with pytest.raises(InputError, match="whole head"):
        WhiteMatterLesions(icbm152(resolution=2))
