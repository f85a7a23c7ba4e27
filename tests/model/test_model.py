import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import scantune
from scantune import AdaptableNetwork, FieldOfExperts, InputError, Model
from scantune.backends.slices import Preprocessing
from scantune.model.describe import describe_model
from scantune.prior.calibration import Calibration, EnergyLevels
from scantune.scans.case import Case
from tests.conftest import toy_scan


@pytest.fixture
def model(toy):
    return Model(
        network=toy.network,
        labels={"rim": 1, "core": 2},
        backend=Preprocessing(size=(48, 48), spacing=1.5),
        architecture={"kind": "unet", "classes": 3, "width": 8},
        prior=toy.prior,
        provenance={"seed": 0},
    )


def test_a_model_survives_its_file(model, tmp_path):
    model.save(tmp_path / "toy.safetensors")
    again = scantune.load(tmp_path / "toy.safetensors")
    scan = toy_scan(1)[0]
    assert torch.equal(again.network(scan), model.network(scan))
    assert again.prior.energy(again.network, scan) == model.prior.energy(model.network, scan)
    assert again.record == model.record
    assert again.fingerprint == model.fingerprint
    assert again.name == "toy"


def test_half_precision_halves_the_file_and_the_prior_fits_the_rounded_weights(model, toy, tmp_path):
    rounded = model.rounded(torch.float16)
    rounded = replace(rounded, prior=FieldOfExperts.fit(rounded.network, toy.volumes))
    rounded.save(tmp_path / "half.safetensors", torch.float16)
    model.save(tmp_path / "full.safetensors")
    again = scantune.load(tmp_path / "half.safetensors")
    scan = toy_scan(2)[0]
    assert torch.equal(again.network(scan), rounded.network(scan))
    assert again.prior.energy(again.network, scan) == rounded.prior.energy(rounded.network, scan)
    stored = load_file(tmp_path / "half.safetensors")
    assert stored["network.task.classify.weight"].dtype == torch.float16


def test_a_network_of_the_users_own_needs_an_instance_to_load_into(tmp_path):
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    model = Model(network, {"thing": 1}, Preprocessing(size=(16, 16)), {"kind": "custom"})
    model.save(tmp_path / "mine.safetensors")
    with pytest.raises(InputError, match="give network="):
        scantune.load(tmp_path / "mine.safetensors")
    fresh = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    again = scantune.load(tmp_path / "mine.safetensors", network=fresh)
    x = torch.rand(1, 1, 8, 8)
    assert torch.equal(again.network(x), network(x))


PROVENANCE = {
    "command": "scantune train brain --out brain.safetensors --label-maps FOLDER --precision float16 --seed 12345",
    "recipe": "",
    "train": {
        "iterations": 30_000,
        "learning_rate": 1e-3,
        "augment": "strong",
        "validate_every": 1000,
        "seed": 20_240_101,
        "device": "auto",
        "compile": True,
    },
    "data": {"images": "*.nii", "structures": {"GM": 2, "WM": 3}, "atlas": "", "centre": None},
    "validation_dice": 0.9312,
    "fit data": {},
}
DESCRIBED = """\
model            toy ({fingerprint})
task             segmentation: rim = 1, core = 2
network          kind unet, classes 3, width 8, weights {weights:,}
input            plane axial, size [48, 48], spacing 1.5,
                 percentiles [1.0, 99.0], content all, n4 no
prior            none (foe methods need one: scantune fit)
command          scantune train brain --out brain.safetensors --label-maps FOLDER --precision float16 --seed 12345
train            iterations 30,000, learning rate 0.001, augment strong,
                 validate every 1,000, seed 20240101, device auto, compile yes
data             images *.nii, structures (GM 2, WM 3)
validation dice  0.9312
fit data         nothing"""


def test_describe_reads_well(model):
    bare = replace(model, provenance=PROVENANCE, name="toy", prior=None)
    weights = sum(parameter.numel() for parameter in bare.network.parameters())
    assert describe_model(bare) == DESCRIBED.format(fingerprint=bare.fingerprint, weights=weights)


def test_describe_tells_what_is_in_the_prior_and_what_the_fit_left_out(model):
    note = "Layer down.0.first.conv: experts 1, 2, 3, 4, 5, 6, 7 hardly vary in training and are dropped."
    text = describe_model(replace(model, prior=replace(model.prior, notes=(note,))))
    words = " ".join(text.split())
    floor = f"{model.prior.floor():.4g}"
    told = f"prior 6 subjects, 352 CNN experts, 32 PCA experts, floor {floor} nats, not calibrated {note}"
    assert told in words
    assert max(map(len, text.splitlines())) <= 80


def test_describe_tells_up_to_which_energy_a_scan_is_typical(model):
    known = Calibration(EnergyLevels(0.01, 0.022149, 0.3), torch.tensor([0.7, 0.3]), torch.tensor([0.1, 0.1]))
    text = describe_model(replace(model, prior=replace(model.prior, calibration=known)))
    assert f"floor {model.prior.floor():.4g} nats, typical up to 0.02215 nats, far out beyond 0.3" in " ".join(
        text.split()
    )
    assert max(map(len, text.splitlines())) <= 80


def test_loading_leaves_the_callers_random_numbers_alone(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    torch.rand(3)
    before = torch.get_rng_state()
    scantune.load(tmp_path / "m.safetensors").rounded(torch.float16)
    assert torch.equal(torch.get_rng_state(), before)


def write(path, record, tensors=None):
    save_file(tensors or {"a": torch.zeros(1)}, path, {"scantune": json.dumps(record)} if record else None)


def test_a_missing_file_lists_the_bundled_models(tmp_path):
    with pytest.raises(InputError, match=r"no model .*nowhere.*brain"):
        scantune.load(tmp_path / "nowhere")


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"not a tensor file at all")
    with pytest.raises(InputError, match="not a whole .safetensors file"):
        scantune.load(tmp_path / "x.safetensors")


def test_a_pickle_is_never_opened(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "x.pt")
    with pytest.raises(InputError, match="not a whole .safetensors file"):
        scantune.load(tmp_path / "x.pt")


def test_a_truncated_file_is_refused(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    whole = (tmp_path / "m.safetensors").read_bytes()
    for share in (0.001, 0.5, 0.99):
        (tmp_path / "cut.safetensors").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match="not a whole .safetensors file"):
            scantune.load(tmp_path / "cut.safetensors")


def test_a_newer_format_asks_for_a_newer_scantune(tmp_path):
    write(tmp_path / "m.safetensors", {"format": 99})
    with pytest.raises(InputError, match="format 99, this scantune reads up to 1; install a newer"):
        scantune.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("record", [None, {"no": "format"}, ["list"]])
def test_tensors_without_a_record_are_refused(record, tmp_path):
    write(tmp_path / "m.safetensors", record)
    with pytest.raises(InputError, match="no scantune record"):
        scantune.load(tmp_path / "m.safetensors")


def test_missing_weights_are_named(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    tensors = load_file(tmp_path / "m.safetensors")
    del tensors["network.task.classify.weight"]
    write(tmp_path / "m.safetensors", model.record, tensors)
    with pytest.raises(InputError, match="classify.weight"):
        scantune.load(tmp_path / "m.safetensors")


def test_a_prior_that_does_not_match_the_network_is_refused(model, tmp_path):
    other = replace(
        model,
        network=AdaptableNetwork.default(classes=3, width=4),
        architecture={"kind": "unet", "classes": 3, "width": 4},
    )
    other.save(tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="does not match the network"):
        scantune.load(tmp_path / "m.safetensors")


def test_nothing_half_written_is_left(model, tmp_path):
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(InputError, match="cannot be written"):
        model.save(tmp_path / "taken" / "m.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def saved(model, tmp_path, **changes):
    """A file without a checksum, as older versions wrote it, whose tensors or record differ."""
    model.save(tmp_path / "m.safetensors")
    tensors = load_file(tmp_path / "m.safetensors")
    record = json.loads(json.dumps(model.record))
    for name, change in changes.get("tensors", {}).items():
        tensors[name] = change(tensors[name])
    for path, value in changes.get("record", {}).items():
        *outer, last = path.split("/")
        place = record
        for key in outer:
            place = place[key]
        place[last] = value
    write(tmp_path / "m.safetensors", record, tensors)
    return tmp_path / "m.safetensors"


def test_a_file_of_an_older_version_without_a_checksum_is_loaded(model, tmp_path):
    assert scantune.load(saved(model, tmp_path)).fingerprint == model.fingerprint


@pytest.mark.parametrize("share", [0.3, 0.6, 0.999])
def test_a_flipped_bit_is_noticed(model, tmp_path, share):
    model.save(tmp_path / "m.safetensors")
    data = bytearray((tmp_path / "m.safetensors").read_bytes())
    data[int(share * len(data))] ^= 1
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="damaged: its contents do not match the checksum"):
        scantune.load(tmp_path / "m.safetensors")


WEIGHT, MEAN = "network.task.classify.weight", "prior.cnn/down.0.first.conv/density.mean"
SCALE, COMPONENTS = "prior.cnn/down.0.first.conv/scale", "prior.pca/experts/components"


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        (WEIGHT, lambda t: t * float("nan"), "finite numbers, but network.task.classify.weight"),
        (MEAN, lambda t: t + float("inf"), "finite numbers"),
        (WEIGHT, lambda t: t[:1], "classify.weight has shape"),
        (MEAN, lambda t: t[:, :2], "prior is damaged|not a whole"),
        (MEAN, lambda t: t[0], "prior is damaged"),
        (MEAN, lambda t: t[:1], "prior is damaged"),
        (MEAN, lambda t: t[None], "prior is damaged"),
        (SCALE, lambda t: 0 * t, "prior is damaged"),
        (SCALE, lambda t: t.to(torch.int64), "prior is damaged"),
        (COMPONENTS, lambda t: t[:, :1], "prior is damaged"),
    ],
)
def test_tensors_that_cannot_be_are_told(model, tmp_path, name, change, told):
    with pytest.raises(InputError, match=told):
        scantune.load(saved(model, tmp_path, tensors={name: lambda t: change(t).contiguous()}))


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("architecture", [], "architecture in the record"),
        ("architecture/width", 10**4, "do not fit the recorded architecture"),
        ("architecture/width", "wide", "could not be built from the arguments"),
        ("labels", {"rim": "one"}, "labels in the record"),
        ("labels", {"rim": 1, "core": 1}, "value of its own"),
        ("helpers", "none", "helpers in the record"),
        ("preprocessing/percentiles", [1], "percentiles"),
        ("preprocessing/size", [10**9, 10**9], "size"),
        ("preprocessing/size", [2.5, 2], "size"),
        ("prior/subjects", "many", "subjects"),
        ("prior/notes", [1], "notes"),
        ("prior/families/pca/experts/patches/stride", 0, "stride"),
        ("format", float("inf"), "no scantune record"),
        ("task/exclusive", 10**20, "exclusive"),
        ("task/structures", ["core"], "structures"),
        ("prior/families/cnn/experts/layers", ["down.0.first.conv"], "no experts there"),
    ],
)
def test_records_that_cannot_be_are_told(model, tmp_path, path, value, told):
    with pytest.raises(InputError, match=told):
        scantune.load(saved(model, tmp_path, record={path: value}))


def test_weights_that_blow_up_are_told_before_the_adaptation(model, tmp_path):
    loaded = scantune.load(saved(model, tmp_path, tensors={WEIGHT: lambda t: t * 0 + 3e38}))
    with pytest.raises(InputError, match="not finite before any adaptation"):
        scantune.adapt(loaded, toy_scan(1)[0], method="source")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("preprocessing/size", [48, 4], "at least 8 pixels"),
        ("prior/families/pca/experts/task/structures", [7], "the network has 3"),
    ],
)
def test_records_that_do_not_fit_the_network_are_told_when_it_is_used(model, tmp_path, path, value, told):
    loaded = scantune.load(saved(model, tmp_path, record={path: value}))
    scan = Case("a", np.random.default_rng(0).random((48, 48, 2), dtype=np.float32), np.diag([1.5, 1.5, 3, 1]))
    with pytest.raises(InputError, match=told):
        scantune.adapt(loaded, scan, steps=1)
