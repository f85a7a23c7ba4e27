"""The folder of a simulated cohort: its manifest, and the settings that it refuses."""

import dataclasses
import json

import nibabel
import numpy as np
import pytest

from scantune.cohorts.folder import centre_record
from scantune.cohorts.write import write_cohort
from scantune.config.toml import toml_text
from scantune.errors import InputError
from scantune.simulate.protocols import bundled_centres, centres_from_toml
from tests.toy_cohort import SCANNERS, manifest, toy_map, toy_settings


def test_the_manifest_says_how_the_scans_were_made(simulated, cohort_inputs):
    record = manifest(simulated[0].folder)
    assert (record["cohort"], record["seed"], record["labels"]) == ("contrasts", 0, {"WM": 1, "GM": 2, "ventricles": 8})
    assert "Simulated" in record["note"]
    home = record["centres"]["home"]
    assert (home["vendor"], home["source"], home["assumed"]) == ("Acme", "made up", ["snr"])
    assert str(cohort_inputs) not in json.dumps(record)


@pytest.mark.parametrize("cohort", ["contrasts", "registration", "brain", "prostate"])
def test_a_protocol_can_be_made_again_from_the_manifest(cohort):
    for name, centre in bundled_centres(cohort).items():
        table = centre_record(centre)["protocol"]
        known = {key: value for key, value in table.items() if key != "name" and value is not None}
        assert centres_from_toml(toml_text({name: known}), "manifest")[name].protocol == centre.protocol


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, r"holds scans of another seed \(0; expected 3\). Choose another output folder"),
        ({"slices": 1}, r"another number of slices \(the protocols' own; expected 1\)"),
        ({"cohort": "brain"}, r"another cohort \(contrasts; expected"),
        ({"scheme": None}, r"another set of structures \(WM = 1, GM = 2, ventricles = 8; expected cerebral WM"),
    ],
)
def test_other_settings_are_refused_in_the_same_folder(simulated, cohort_inputs, changes, message):
    with pytest.raises(InputError, match=message):
        write_cohort(dataclasses.replace(toy_settings(cohort_inputs), **changes), simulated[0].folder, device="cpu")
    assert manifest(simulated[0].folder)["seed"] == 0


def test_another_anatomy_or_protocol_is_refused_in_the_same_folder(simulated, cohort_inputs, tmp_path):
    nibabel.save(nibabel.Nifti1Image(toy_map().labels[::-1], np.diag([4.0, 4, 5, 1])), tmp_path / "other.nii")
    with pytest.raises(InputError, match="made holds scans of another anatomy. Choose"):
        write_cohort(toy_settings(cohort_inputs, label_maps=tmp_path), simulated[0].folder, device="cpu")
    (tmp_path / "new.toml").write_text(SCANNERS.replace("te = 12", "te = 13"))
    with pytest.raises(InputError, match="a centre away with another protocol"):
        write_cohort(toy_settings(cohort_inputs, protocols=tmp_path / "new.toml"), simulated[0].folder, device="cpu")


def test_what_scantune_did_not_simulate_is_left_alone(cohort_inputs, tmp_path):
    (tmp_path / "home").mkdir()
    with pytest.raises(InputError, match="home exists already, but no manifest says"):
        write_cohort(toy_settings(cohort_inputs), tmp_path, device="cpu")
    (tmp_path / "manifest.json").write_text('{"format": 1, "scans": {}, "model": {}}')
    with pytest.raises(InputError, match="holds results of another command"):
        write_cohort(toy_settings(cohort_inputs), tmp_path, device="cpu")
    assert [path.name for path in tmp_path.rglob("*.nii.gz")] == []


def test_a_folder_of_version_0_1_with_the_same_simulator_goes_on(cohort_inputs, tmp_path):
    settings = toy_settings(cohort_inputs, centres=["home"], splits=["test"])
    write_cohort(settings, tmp_path, device="cpu")
    record = manifest(tmp_path)
    known = "9db06d88e0c43114b3be563f8ed734aa434d4ce884eb7e4d9a678241fbed9987"
    for simulator, is_known in ((known, True), ("0" * 64, False)):
        (tmp_path / "manifest.json").write_text(json.dumps(record | {"simulator": simulator}))
        if is_known:
            assert write_cohort(settings, tmp_path, device="cpu").kept == 1
            assert manifest(tmp_path)["simulator"] == 1
        else:
            with pytest.raises(InputError, match="another version of the simulator. Choose another output folder"):
                write_cohort(settings, tmp_path, device="cpu")
