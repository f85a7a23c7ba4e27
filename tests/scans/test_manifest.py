"""The manifest of a folder: one layout, one writer, and refusals of what another program wrote."""

import json
import math

import pytest

from scantune.errors import InputError
from scantune.scans.manifest import MANIFEST, MANIFEST_FORMAT, output_name, read_manifest, write_manifest


def test_a_manifest_is_read_as_it_was_written_with_the_format_first_and_the_scans_last(tmp_path):
    write_manifest(tmp_path, {"scans": {"a": {"status": "done"}}, "method": "foe-cnn", "decision": "adapted"})
    manifest = read_manifest(tmp_path)
    assert list(manifest) == ["format", "method", "decision", "scans"]
    assert manifest["format"] == MANIFEST_FORMAT
    assert manifest["scans"] == {"a": {"status": "done"}}
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    write_manifest(tmp_path, {"energy": math.nan, "more": [math.inf, (1, {2: -math.inf})], "name": "é"})
    text = (tmp_path / MANIFEST).read_text(encoding="utf-8")
    assert json.loads(text) == {"format": 1, "energy": None, "more": [None, [1, {"2": None}]], "name": "é"}
    assert "é" in text
    assert text.endswith("}\n")


def test_a_folder_without_a_manifest_has_no_scans(tmp_path):
    assert read_manifest(tmp_path) == {"format": MANIFEST_FORMAT, "scans": {}}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "scans": []}', '{"format": 1, "scans": {"a": 1}}'])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(InputError, match="must be a manifest that scantune wrote"):
        read_manifest(tmp_path)


def test_a_manifest_of_another_format_is_refused(tmp_path):
    (tmp_path / MANIFEST).write_text('{"format": 2, "scans": {}}')
    with pytest.raises(InputError, match="has format 2"):
        read_manifest(tmp_path)


def test_outputs_are_named_after_the_scan():
    assert output_name("sub-01_T1w", "segmentation") == "sub-01_T1w_seg.nii.gz"
