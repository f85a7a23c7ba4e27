"""Odd DICOM series and multi-frame files, up to the segmentation in DICOM that answers them."""

import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.toy_dicom import lps, write_multiframe, write_series

from fuzz.base import ACCEPTED, REFUSED, Kind, chance, refused, require
from fuzz.mutations import TEXTS, damaged
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.scans.dicom.segmentation import Segment, write_dicom_segmentation
from scantune.scans.io import read_scan

SHAPE = (8, 6, 3)
SEGMENTS = (Segment("GM", 1, (213, 94, 0)), Segment("odd, x", 4, (86, 180, 233)))
WORDS = ("1", "2", "T1*", "*", "", "[", "T1 MPRAGE", "\x00", "9" * 400, "../x", "1.2.826.0.1.3680043.8.498.1.2")
PLACE_TOLERANCE = 0.2
"""Voxels by which slices may lie off the even grid that scans have. `scans.dicom` takes up to a tenth of a step."""

Files = dict[str, bytes]


class DicomSegmentation(Kind):
    """A folder with DICOM files, and the segmentation of the scan in it."""

    name = "dicom-seg"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.volume = np.random.default_rng(0).integers(0, 1000, SHAPE).astype(np.uint16)
        tilted = np.array([[0.5, 0, 0, 3], [0, 0.6, -1.8, 2], [0, 0.45, 2.4, 7], [0, 0, 0, 1.0]])
        self.seeds = [
            self._bytes(write_series(folder / "straight", self.volume)),
            self._bytes(write_series(folder / "tilted", self.volume, tilted)),
            *(
                self._bytes(write_multiframe(folder / name / "IM", self.volume, affine, order).parent)
                for name, affine, order in (("up", tilted, (0, 1, 2)), ("mixed", tilted, (1, 0, 2)))
            ),
        ]
        other = write_series(folder / "other", self.volume[..., :2], series="2", number=2, description="T2")
        self.other = self._bytes(other)
        case = read_scan(folder / "straight")
        write_dicom_segmentation(folder / "a.dcm", np.zeros(SHAPE, np.uint8), case, SEGMENTS)  # imports highdicom

    def _bytes(self, place: Path) -> Files:
        return {path.name: path.read_bytes() for path in sorted(place.iterdir())}

    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Damages elements or bytes of some files, adds others, and answers the scan."""
        place = folder / "series"
        place.mkdir()
        files = self._damaged(rng, dict(rng.choice(self.seeds)))
        if chance(rng, 0.15):
            files |= self.other
        for name, data in files.items():
            (place / name).write_bytes(data)
        word = rng.choice(WORDS) if chance(rng, 0.2) else None
        one = next(iter(files), None)
        path = place / one if one is not None and len(files) == 1 and chance(rng, 0.5) else place
        try:
            case = read_scan(path, series=word)
        except InputError as error:
            require("Secret" not in str(error), f"a person is named: {error}")
            return refused(error)
        return self._answered(rng, case, folder / "out")

    def _damaged(self, rng: random.Random, files: Files) -> Files:
        """The same accidents in all files, or in one; or a file is lost."""
        names = sorted(files)
        if chance(rng, 0.1) and len(files) > 1:
            del files[names.pop(rng.randrange(len(names)))]
        if chance(rng, 0.15):
            return files
        affected = names if chance(rng, 0.5) else [rng.choice(names)]
        accident = rng.getrandbits(32)
        other = files[rng.choice(names)]
        by_elements = chance(rng, 0.7)
        for name in affected:
            own = random.Random(accident)
            files[name] = odd_elements(own, files[name]) if by_elements else damaged(own, files[name], other, 900)
        return files

    def _answered(self, rng: random.Random, case: Case, out: Path) -> str:
        """The scan has a segmentation with its voxels at its places, or a sentence says why not."""
        require(np.isfinite(case.image).all() and np.isfinite(np.linalg.inv(case.affine)).all(), "an unsound scan")
        labels = np.random.default_rng(rng.getrandbits(32)).choice([0, 1, 4], case.shape).astype(np.uint8)
        path = out / "answer_seg.dcm"
        try:
            write_dicom_segmentation(path, labels, case, SEGMENTS)
        except InputError as error:
            require(not out.exists() or not list(out.iterdir()), "a part of the file is left")
            require("Secret" not in str(error), f"a person is named: {error}")
            refused(error)
            return REFUSED
        require([file.name for file in out.iterdir()] == [path.name], "something is left beside the file")
        require(len(case.dicom) in (1, case.shape[2]), f"{len(case.dicom)} files for {case.shape[2]} slices")
        np.testing.assert_array_equal(placed(path, case), labels)
        return ACCEPTED


def odd_elements(rng: random.Random, data: bytes) -> bytes:
    """A file with odd values of one to three elements, which may lie deep in sequences."""
    import io

    import pydicom

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = pydicom.dcmread(io.BytesIO(data))
        stream = io.BytesIO()
        try:
            for _ in range(rng.choice((1, 1, 2, 3))):
                _spoil(rng, file)
            file.save_as(stream, enforce_file_format=False)
        except Exception:  # pydicom cannot read a value again, or write it: nothing is damaged
            return data
    return stream.getvalue()


def _spoil(rng: random.Random, file: Any) -> None:
    """Remove an element of a data set, or one below it, or give it an odd value."""
    import pydicom

    element = file[rng.choice(list(file.keys()))]
    if element.VR == "SQ" and len(element.value) and chance(rng, 0.8):
        _spoil(rng, rng.choice(list(element.value)))
        return
    if element.VR in ("SQ", "OW", "OB") or chance(rng, 0.3):
        del file[element.tag]
        return
    if element.VR in ("US", "UL", "SS"):
        value: Any = rng.choice((0, 1, 2, 3, 7, 8, 12, 15, 16, 17, 255, 65535))
    else:
        old = element.value if isinstance(element.value, Sequence) and not isinstance(element.value, str) else ()
        words = [str(word) for word in old] or [str(element.value)]
        words[rng.randrange(len(words))] = rng.choice((*TEXTS, "19700230", "2020-01-02", "a\\b", "1.2..3", "x" * 80))
        value = "\\".join(words).encode("utf-8", "surrogateescape")
        value += b" " * (len(value) % 2)
    if isinstance(value, bytes):
        odd: Any = pydicom.dataelem.RawDataElement(element.tag, element.VR, len(value), value, 0, False, True)
    else:
        odd = pydicom.DataElement(element.tag, element.VR, value)
    file[element.tag] = odd


def placed(path: Path, case: Case) -> NDArray[np.uint8]:
    """Labels of a segmentation on a scan's grid, by the places that its frames give."""
    import pydicom

    file = pydicom.dcmread(path)
    shared = file.SharedFunctionalGroupsSequence[0]
    direction = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float)
    down, along = (float(value) for value in shared.PixelMeasuresSequence[0].PixelSpacing)
    found = np.zeros(case.shape, np.uint8)
    to_voxel = np.linalg.inv(lps(case.affine))
    frames = file.pixel_array.reshape(-1, file.Rows, file.Columns)
    for frame, groups in zip(frames, file.PerFrameFunctionalGroupsSequence, strict=True):
        origin = np.array(groups.PlanePositionSequence[0].ImagePositionPatient, float)
        number = groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        rows, columns = np.nonzero(frame)
        places = origin[:, None] + columns * along * direction[:3, None] + rows * down * direction[3:, None]
        voxels = (to_voxel @ np.vstack([places, np.ones(len(rows))]))[:3]
        whole = voxels.round().astype(int)
        require(np.abs(voxels - whole).max(initial=0) < PLACE_TOLERANCE, "a frame that lies between voxels")
        found[tuple(whole)] = SEGMENTS[number - 1].value
    return found
