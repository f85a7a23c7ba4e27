"""Commands and Python lines of guides that need little more than one scan; test_docs.py parses the others."""

import re
import shlex
from pathlib import Path

import nibabel
import numpy as np

from scantune.cli.main import main
from tests.docs.test_readme import desk, write_scan  # noqa: F401

ROOT = Path(__file__).parents[2]


def blocks_of(page, language):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def command_of(page, start):
    """The words of the only printed command that starts like this."""
    lines = [line for block in blocks_of(page, "console") for line in block.splitlines() if line.startswith(start)]
    (line,) = lines
    return shlex.split(line, comments=True)[1:]


def test_a_registration_and_its_deformation_in_simpleitk(desk):  # noqa: F811
    assert main([*command_of("registration", "scantune adapt"), "--steps", "1", "--device", "cpu", "--no-page"]) == 0
    rng = np.random.default_rng(0)
    atlas = rng.integers(0, 3, (40, 48, 40)).astype(np.uint8)
    affine = np.diag([5.0, 5.0, 5.0, 1.0])
    affine[:3, 3] = (-100, -130, -80)
    nibabel.save(nibabel.Nifti1Image(atlas, affine), "any_map_in_MNI_space.nii.gz")
    (block,) = blocks_of("registration", "python")
    exec(compile(block, "registration.md", "exec"), names := {})
    assert names["on_scan"].GetSize() == names["scan"].GetSize()


def test_scan_after_scan_of_one_site(desk):  # noqa: F811
    for number in (1, 2):
        write_scan(Path(f"monday/{number}_T1"), number).unlink()
    words = command_of("guard", "scantune adapt monday")
    files = [str(path) for path in sorted(Path("monday").glob("*.nii.gz"))]
    words = [word for part in words for word in (files if "*" in part else [part])]
    words[words.index("my_model.safetensors")] = "brain"
    assert main([*words, "--steps", "1", "--device", "cpu", "--no-page"]) == 0
    assert len(list(Path("out").glob("*_source_seg.nii.gz"))) == 2


def test_the_description_of_the_bundled_model(capsys):
    assert main(command_of("brain", "scantune info")) == 0
    assert "CSF" in capsys.readouterr().out
