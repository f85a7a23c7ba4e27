"""NIfTI files: versions 1 and 2, both byte orders, packed and plain, of several types."""

import gzip
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np

from fuzz.base import Kind, chance
from fuzz.images import Expected, decoded, judge
from fuzz.mutations import FLOATS, INTEGERS, damaged

FIELDS = (
    *("dim", "datatype", "bitpix", "pixdim", "vox_offset", "scl_slope", "scl_inter", "qform_code", "sform_code"),
    *("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "srow_x", "srow_y", "srow_z", "xyzt_units", "magic"),
    *("sizeof_hdr", "intent_code", "cal_max", "toffset"),
)


@dataclass(frozen=True)
class Seed:
    """A valid file, and how its voxels are found."""

    data: bytes
    header: int
    dtype: str
    shape: tuple[int, ...]

    def holds(self, data: bytes) -> Expected:
        """The voxels of a damaged file; None where its header is damaged."""
        return (
            decoded(data, self.header, self.dtype, self.shape)
            if data[: self.header] == self.data[: self.header]
            else None
        )


class Nifti(Kind):
    """One `.nii` or `.nii.gz` file."""

    name = "nifti"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        dtypes = ("u1", "i1", "<i2", ">i2", "<u2", "<i4", "<f4", ">f4", "<f8", "<i8", "<c8")
        self.seeds = [seed(n, dtype) for n, dtype in enumerate(dtypes)]
        self.known = self.seeds[:-1]  # complex numbers are refused

    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Damages a header's fields, or its bytes, or those of the packed file."""
        chosen = rng.choice(self.seeds)
        data, expected = chosen.data, None
        if chance(rng, 0.4):
            data = odd_fields(rng, chosen)
        if chance(rng, 0.7):
            data = damaged(rng, data, rng.choice(self.seeds).data, chosen.header)
        if chosen in self.known:
            expected = chosen.holds(data)
        packed = chance(rng, 0.4)
        path = folder / rng.choice(("scan", "a scan", "scän", "scan.v2")).__add__(".nii.gz" if packed else ".nii")
        if packed:
            data = gzip.compress(data, 1, mtime=0)
            if chance(rng, 0.3):
                data = damaged(rng, data, data, len(data))
                expected = self._unpacked(chosen, data)
        path.write_bytes(data)
        out = folder / "out"
        out.mkdir()
        return judge(rng, path, expected, out)

    def _unpacked(self, chosen: Seed, data: bytes) -> Expected:
        try:
            return chosen.holds(gzip.decompress(data)) if chosen in self.known else None
        except (EOFError, OSError, zlib.error):
            return None


def seed(number: int, dtype: str) -> Seed:
    """A valid file of a few voxels."""
    shape = ((4, 3, 2), (5, 4), (3, 3, 3, 1), (1, 1, 6), (1, 6, 1))[number % 5]
    voxels = np.random.default_rng(number).integers(1, 100, shape).astype(np.dtype(dtype))
    kind = nibabel.Nifti2Image if number % 3 == 2 else nibabel.Nifti1Image
    header = kind.header_class(endianness=">" if dtype.startswith(">") else "<")
    header.set_data_dtype(np.dtype(dtype))
    turn = np.array([[0.9, -0.1, 0.2, -3.0], [0.1, 1.1, 0.0, 4.5], [-0.2, 0.1, 2.0, 1.0], [0, 0, 0, 1]])
    image = kind(voxels, np.diag([1.5, 1.5, 3.0, 1]) if number % 2 else turn, header)
    image.header.set_slope_inter(1, 0)
    image.header.set_xyzt_units(("mm", "micron", "meter", "unknown")[number % 4])
    data = image.to_bytes()
    full = (*shape, 1, 1)[:3]
    return Seed(data, len(data) - voxels.nbytes, dtype, full)


def odd_fields(rng: random.Random, chosen: Seed) -> bytes:
    """A file some of whose header fields have extreme values."""
    version = (
        nibabel.Nifti2Header if chosen.data[:4] in (b"\x1c\x02\x00\x00", b"\x00\x00\x02\x1c") else nibabel.Nifti1Header
    )
    dtype = version.template_dtype.newbyteorder(">" if chosen.data[0] == 0 else "<")
    fields = np.frombuffer(chosen.data, dtype, 1).copy()
    for name in rng.sample(FIELDS, rng.choice((1, 1, 2, 3))):
        cell = fields[name][0]
        kind = cell.dtype
        if kind.kind == "S":
            fields[name] = rng.choice((b"", b"n+1", b"ni1", b"n+2", b"xxxx"))
            continue
        with np.errstate(all="ignore"):
            values = np.array(rng.choice(FLOATS) if kind.kind == "f" else _whole(rng, kind), kind)
        if cell.ndim:
            fields[name][0][rng.randrange(cell.size)] = values
        else:
            fields[name] = values
    return fields.tobytes() + chosen.data[dtype.itemsize :]


def _whole(rng: random.Random, kind: np.dtype) -> int:
    value = rng.choice((*INTEGERS, *range(-3, 20))) * rng.choice((1, 1, -1))
    limits = np.iinfo(kind)
    return min(max(value, limits.min), limits.max)
