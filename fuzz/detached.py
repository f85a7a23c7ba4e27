"""Headers that name a file with their voxels: beside them, elsewhere, a pipe, a list, or nothing at all."""

import os
import random
from pathlib import Path

import numpy as np

from fuzz.base import ACCEPTED, Kind, chance, require
from fuzz.images import Expected, judge
from fuzz.itk import META, META_FIELDS, NRRD, NRRD_FIELDS, SHAPE
from fuzz.mutations import TEXTS, damaged, odd_lines
from scantune.scans.data_files import content_hash
from scantune.scans.io import read_scan

SECRET = np.arange(20000, 20000 + int(np.prod(SHAPE)), dtype="<i2")
"""Voxels of a file outside the folder, which must never be read."""

LEAK = 6
"""Voxels with values of the secret that are no chance."""

HERE, SPLIT = "voxels.raw", "part0.raw\npart1.raw"
NAMES = (
    *(HERE, HERE, HERE, "sub/voxels.raw", "./voxels.raw", "sub/../voxels.raw", "../secret.raw", "sub/../../secret.raw"),
    *("..\\secret.raw", "C:\\secret.raw", "//host/secret.raw", "file:///etc/hostname", "/dev/stdin", "/dev/zero"),
    *("pipe", "folder", "scan.mhd", "scan.nhdr", "link", "dangling", "nowhere.raw", "voxels.raw.gz", "voxels.raw "),
    *("part%d.raw 0 1 1", "part%d.raw 0 1 1 2", "part%d.raw 0 999999999 1", "part%d.raw 1 0 -1", "%s%n 0 1 1"),
    *("LIST\n" + SPLIT, "LIST 2\n" + SPLIT, "LIST\n../secret.raw", "LIST\n" + "part0.raw\n" * 50, "LIST", "list\npipe"),
)


class Detached(Kind):
    """One `.mhd` or `.nhdr` file whose voxels are elsewhere."""

    name = "detached"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.voxels = np.random.default_rng(0).integers(1, 100, SHAPE).astype("<i2")

    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Names a data file, damages the header, and looks for the secret in what is read."""
        place = folder / "scans"
        self._files(place)
        secret = folder / "secret.raw"
        SECRET.tofile(secret)
        linked = chance(rng, 0.1)
        (place / "link").symlink_to(secret if linked else place / HERE)
        nrrd = chance(rng, 0.5)
        path = place / ("scan.nhdr" if nrrd else "scan.mhd")
        name = rng.choice((*NAMES, str(secret), str(place / HERE), rng.choice(TEXTS)))
        header, assign = (NRRD, ": ") if nrrd else (META, " = ")
        header = header.format(type="short" if nrrd else "MET_SHORT", endian="little", encoding="raw", big=0, packed=0)
        header += f"{'data file' if nrrd else 'ElementDataFile'}{assign}{name}\n"
        expected: Expected = self.voxels.astype(np.float32) if name == HERE else None
        if chance(rng, 0.4):
            header, expected = odd_lines(rng, header, NRRD_FIELDS if nrrd else META_FIELDS, assign), None
        data = header.encode("utf-8", "surrogateescape")
        if chance(rng, 0.25):
            data, expected = damaged(rng, data, str(secret).encode(), len(data)), None
        path.write_bytes(data)
        out = folder / "out"
        out.mkdir()
        outcome = judge(rng, path, expected, out)
        if not linked:
            self._stays_inside(path, secret, outcome)
        return outcome

    def _files(self, place: Path) -> None:
        """Make the files that headers may name."""
        (place / "sub").mkdir(parents=True)
        (place / "folder").mkdir()
        for name in (HERE, f"sub/{HERE}"):
            (place / name).write_bytes(self.voxels.tobytes(order="F"))
        for number in range(2):
            (place / f"part{number}.raw").write_bytes(self.voxels[:, :, number].tobytes(order="F"))
        os.mkfifo(place / "pipe")
        (place / "dangling").symlink_to(place / "gone")

    def _stays_inside(self, path: Path, secret: Path, outcome: str) -> None:
        """Neither the voxels nor the hash depend on a file outside the folder."""
        before = content_hash(path)
        if outcome == ACCEPTED:
            leaked = int(np.isin(read_scan(path).image, SECRET).sum())
            require(leaked < LEAK, f"{leaked} voxels are those of a file outside the folder")
        secret.write_bytes(b"another secret")
        require(content_hash(path) == before, "the hash follows a file outside the folder")
