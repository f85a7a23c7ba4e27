"""Odd and hostile files and file names: each is adapted to or refused in a sentence, and no page is harmed."""

import gzip
import html.parser
import re
import struct
from pathlib import Path
from urllib.parse import unquote

import nibabel
import numpy as np
import pytest
from fuzz.model import toy

from scantune.cli.main import main
from scantune.scans.manifest import read_manifest

OFFSETS = {"dim": 40, "datatype": 70, "pixdim": 76, "vox_offset": 108, "codes": 252, "sform": 280}
OBLIQUE = np.array([[0.8, -0.6, 0, 5], [0.6, 0.8, 0, 7], [0, 0, 3, 9], [0, 0, 0, 1.0]])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "toy.safetensors"
    toy().save(path)
    return path


def picture(shape=(12, 10, 2)):
    image = np.random.default_rng(0).random(shape).astype(np.float32)
    image[3:7, 3:6] += 2
    return image


def nifti(image=None, affine=None, kind=nibabel.Nifti1Image):
    voxels = picture() if image is None else image
    return kind(voxels, np.diag([1.0, 1, 3, 1]) if affine is None else affine).to_bytes()


def patched(**fields):
    """Return a file with other bytes in fields of its header."""
    data = bytearray(nifti())
    for name, new in fields.items():
        data[OFFSETS[name] : OFFSETS[name] + len(new)] = new
    return bytes(data)


def placed(affine):
    """Return a file with a given sform, which may be no map at all."""
    rows = np.asarray(affine, "<f4")[:3].tobytes()
    return patched(codes=struct.pack("<2h", 0, 1), sform=rows)


def oriented(axes):
    image = nibabel.Nifti1Image(picture(), np.diag([1.0, 1, 3, 1]))
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(axes)
    )
    return image.as_reoriented(turn).to_bytes()


def with_extension(size):
    image = nibabel.Nifti1Image(picture(), np.eye(4))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"x" * size))
    return image.to_bytes()


def contradictory():
    image = nibabel.Nifti1Image(picture(), np.diag([1.0, 1, 3, 1]))
    image.header.set_sform(OBLIQUE, 1)
    image.header.set_qform(np.diag([1.0, 1, 3, 1]), 1)
    image.header["vox_offset"] = 352
    return image.header.binaryblock + bytes(4) + picture().tobytes("F")


def big_endian():
    header = nibabel.Nifti1Header(endianness=">")
    header.set_data_shape((12, 10, 2))
    header.set_data_dtype(">f4")
    header.set_sform(np.diag([1.0, 1, 3, 1]), 1)
    header["vox_offset"] = 352
    return header.binaryblock + bytes(4) + picture().astype(">f4").tobytes("F")


def with_voxels(value, count, shape=(12, 10, 2)):
    image = picture(shape)
    image.flat[:count] = value
    return nifti(image)


RGB = np.zeros((12, 10, 2), [("R", "u1"), ("G", "u1"), ("B", "u1")])
WHOLE = nifti()

READ = {
    "int64.nii": nifti((100 * picture()).astype(np.int64), kind=lambda *a: nibabel.Nifti1Image(*a, dtype=np.int64)),
    "float64.nii": nifti(picture().astype(np.float64)),
    "big-endian.nii": big_endian(),
    "version-2.nii": nifti(kind=nibabel.Nifti2Image),
    "trailing.nii": WHOLE + b"more" * 100,
    "extension.nii.gz": gzip.compress(with_extension(8 * 2**20), 1),
    "pir.nii": oriented("PIR"),
    "sal.nii": oriented("SAL"),
    "asr.nii": oriented("ASR"),
    "oblique.nii": nifti(affine=OBLIQUE),
    "one-slice.nii": nifti(picture((12, 10, 1))),
    "axes-of-one.nii": nifti(picture((12, 10, 2, 1, 1))),
    "one-nan.nii": with_voxels(np.nan, 1, (20, 20, 4)),
    "no-forms.nii": patched(codes=struct.pack("<2h", 0, 0)),
    "two-forms.nii": contradictory(),
    "tiny-voxels.nii": nifti(affine=np.diag([1e-4, 1e-4, 1e-4, 1.0])),
}
"""Files that are read."""

REFUSED = {
    "huge.nii": (patched(dim=struct.pack("<4h", 3, 32767, 32767, 32767)), "at most 1073741824 voxels"),
    "bomb.nii.gz": (gzip.compress(patched(dim=struct.pack("<4h", 3, 32767, 32767, 9999))), "at most 1073741824 voxels"),
    "cut-header.nii": (WHOLE[:100], "cannot be read as an image"),
    "cut.nii": (WHOLE[: len(WHOLE) // 2], "cannot be read as an image"),
    "cut.nii.gz": (gzip.compress(WHOLE)[:-200], "cannot be read as an image"),
    "garbage.nii.gz": (gzip.compress(bytes(range(256)) * 20), "cannot be read as an image"),
    "4d.nii": (nifti(picture((6, 5, 4, 3))), "one 3D volume"),
    "5d.nii": (nifti(picture((6, 5, 4, 3, 2))), "one 3D volume"),
    "rgb.nii": (nifti(RGB), "one real number per voxel"),
    "complex.nii": (nifti(picture().astype(np.complex64)), "one real number per voxel"),
    "nan.nii": (with_voxels(np.nan, 240), "finite numbers"),
    "inf.nii": (with_voxels(np.inf, 20), "finite numbers"),
    "zero-affine.nii": (placed(np.zeros((4, 4))), "can be inverted"),
    "nan-affine.nii": (placed(np.full((4, 4), np.nan)), "can be inverted"),
    "far.nii": (placed([[1, 0, 0, 1e9], [0, 1, 0, 0], [0, 0, 1, 0]]), r"within 1e\+06 mm"),
    "text.nii": (b"hello " * 200, "cannot be read as an image"),
    "picture.nii": (b"\x89PNG\r\n\x1a\n" + bytes(400), "cannot be read as an image"),
    "lone.hdr": (WHOLE[:348], "cannot be read as an image"),
    "constant.nii": (nifti(np.ones((12, 10, 2), np.float32)), "every voxel is 1"),
    "empty.nii": (b"", "cannot be read as an image"),
    "no-voxels.nii": (patched(dim=struct.pack("<4h", 3, 12, 0, 2)), "is empty"),
    "negative.nii": (patched(dim=struct.pack("<4h", 3, 12, -10, 2)), "cannot be read as an image"),
    "type.nii": (patched(datatype=struct.pack("<h", 999)), "cannot be read as an image"),
    "beyond.nii": (patched(vox_offset=struct.pack("<f", 1e6)), "cannot be read as an image"),
    "stub.nii.gz": (gzip.compress(WHOLE)[:12], "cannot be read as an image"),
}
"""Files that are refused, with words of the sentence."""


def test_of_odd_nifti_files_those_that_can_be_are_adapted_to_and_the_others_refused_in_a_sentence(
    model, tmp_path, capsys
):
    assert len(READ) + len(REFUSED) == 41
    scans = tmp_path / "scans"
    scans.mkdir()
    for name, data in {**READ, **{name: data for name, (data, _) in REFUSED.items()}}.items():
        (scans / name).write_bytes(data)
    # A name without its ending is that of two files: they get the names of their files.
    out = tmp_path / "out"
    words = ["--model", str(model), "--out", str(out), "--method", "source", "--no-page", "--quiet"]
    assert main(["adapt", *map(str, sorted(scans.iterdir())), *words]) == 3
    capsys.readouterr()
    entries = {entry["input"]: entry for entry in read_manifest(out)["scans"].values()}
    assert {name for name, entry in entries.items() if entry["status"] == "done"} == set(READ)
    for name, (_, told) in REFUSED.items():
        reason = entries[name]["reason"]
        assert "traceback" not in entries[name], name
        assert re.search(told, reason), (name, reason)
        assert "\n" not in reason and len(reason) < 500
    for name in ("no-forms.nii", "two-forms.nii", "tiny-voxels.nii"):
        assert entries[name]["warnings"], name
    assert "NaN" in entries["one-nan.nii"]["remarks"][0]


NAMES = (
    *(
        "<img src=x onerror=alert(1)>",
        "<script>alert(1)<",
        '"onload="alert(1)',
        "'quoted'",
        "&lt;b&gt;",
        "a\nb",
        "tab\tx",
    ),
    *(
        "\x1b[31mred",
        "-v",
        "--help",
        "\u202egnp",
        "a#b",
        "a?b=c",
        "100%25",
        "$(touch x)",
        "`id`",
        "[bold]x",
        "back\\nslash",
    ),
)
"""Names of scans as an attacker would choose them."""


class Handlers(html.parser.HTMLParser):
    """Collects the elements of a page that could run something, and its links."""

    def __init__(self, text):
        super().__init__()
        self.active, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.active += [name for name, _ in attrs if name.startswith("on")]
        self.active += [tag] if tag in ("script", "iframe", "object", "embed") else []
        self.links += [value for name, value in attrs if tag == "a" and name == "href"]


def test_hostile_names_reach_pages_and_screen_as_text_alone(model, tmp_path, capsys):
    assert len(NAMES) == 18
    scans, out = tmp_path / "scans", tmp_path / "out"
    scans.mkdir()
    for name in (*NAMES, "plain"):
        (scans / f"{name}.nii").write_bytes(WHOLE)
    assert main(["adapt", str(scans), "--model", str(model), "--out", str(out), "--method", "source"]) == 0
    told = capsys.readouterr()
    assert "\x1b[31m" not in told.out + told.err
    assert set(read_manifest(out)["scans"]) == {*NAMES, "plain"}
    plain = Handlers((out / "plain_page.html").read_text("utf-8")).active
    for name in NAMES:
        assert Handlers((out / f"{name}_page.html").read_text("utf-8")).active == plain, name
    index = Handlers((out / "index.html").read_text("utf-8"))
    assert index.active == ["script"]
    assert {unquote(link) for link in index.links} == {f"{name}_page.html" for name in (*NAMES, "plain")}
    assert not [path for path in (Path("x"), out / "x", scans / "x") if path.exists()]
