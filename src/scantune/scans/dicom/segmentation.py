"""Segmentations in DICOM (DICOM-SEG): a segment for each structure, on the slices that the scan was read from.

The standard demands that a segmentation names the patient and the study of its source. It is the only output that does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.scans.dicom.codes import Code, structure_codes
from scantune.scans.dicom.multiframe import read_frame_grid
from scantune.scans.files import write_whole

_NEEDED = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID", "FrameOfReferenceUID")
_MAY_BE_EMPTY = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyID", "StudyDate", "StudyTime"),
    *("AccessionNumber", "ReferringPhysicianName"),
)
"""Elements that the standard wants in every file, if only empty."""


@dataclass(frozen=True)
class Segment:
    """Structure of a segmentation.

    Attributes:
        name: Its name in the model.
        value: Its label.
        colour: Red, green and blue from 0 to 255.
    """

    name: str
    value: int
    colour: tuple[int, int, int]


def require_highdicom() -> None:
    """Check that the package is there that writes segmentations.

    Raises:
        InputError: It is not.
    """
    if find_spec("highdicom") is None:
        raise InputError("DICOM segmentations need the package highdicom: pip install 'scantune[dicom]'.")


def write_dicom_segmentation(path: Path, labels: NDArray[Any], like: Case, segments: Sequence[Segment]) -> None:
    """Write a label map `(x, y, z)` as a DICOM segmentation of the series that a scan was read from.

    Args:
        path: The file.
        labels: Labels on the scan's grid.
        like: The scan.
        segments: Structures, which become segments 1, 2, ... in this order.

    Raises:
        InputError: The scan is not from DICOM files, or these lack what the standard demands, or the file cannot be
            written.
    """
    if not like.dicom:
        raise InputError(
            f"{like.name} was not read from DICOM files, which a DICOM segmentation belongs to. Give the DICOM folder."
        )
    require_highdicom()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd values in the source, with their texts
        sources = [_source(file) for file in like.dicom]
        frames = _numbered(labels, segments)[_frame_order(like)]
        try:
            content = _segmentation(sources, frames, segments)
        except Exception as error:  # highdicom and pydicom raise whatever they meet in odd headers
            raise InputError(
                f"No DICOM segmentation of {like.name} can be written: the headers of its DICOM files must be those of "
                f"one series on one grid, with valid numbers, dates and names ({type(error).__name__}). Use the NIfTI "
                "file, or export the series again."
            ) from None
        write_whole(path, lambda temporary: content.save_as(temporary))


def _source(file: Path) -> Any:
    """Return the header of a source file, with every element that a segmentation takes from it.

    Raises:
        InputError: It is damaged, or lacks what the standard demands.
    """
    import pydicom

    try:
        header = pydicom.dcmread(file, stop_before_pixels=True)
        missing = [name for name in _NEEDED if not header.get(name)]
    except Exception as error:  # pydicom raises whatever it meets in damaged files
        raise InputError(f"The header of {file} is damaged. Export the series again.") from error
    if missing:
        raise InputError(
            f"{file} must have {' and '.join(missing)} for a DICOM segmentation, but does not. Use the NIfTI file, or "
            "export the series again."
        )
    for name in _MAY_BE_EMPTY:
        if name not in header:
            setattr(header, name, "")
    return header


def _numbered(labels: NDArray[Any], segments: Sequence[Segment]) -> NDArray[np.uint8]:
    """Return the numbers of segments, slice by slice, `(slices, rows, columns)`."""
    numbers = np.zeros(labels.T.shape, np.uint8)
    for number, segment in enumerate(segments, 1):
        numbers[segment.value == labels.T] = number
    return numbers


def _frame_order(like: Case) -> NDArray[np.intp]:
    """Return the slice of each frame of the source."""
    slices = like.shape[2]
    if len(like.dicom) == slices:
        return np.arange(slices)
    return np.argsort(read_frame_grid(like.dicom[0]).order)


def _segmentation(sources: list[Any], frames: NDArray[np.uint8], segments: Sequence[Segment]) -> Any:
    """Return the data set of a segmentation."""
    import highdicom

    content = highdicom.seg.Segmentation(
        source_images=sources,
        pixel_array=frames,
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=[_description(number, segment) for number, segment in enumerate(segments, 1)],
        series_instance_uid=highdicom.UID(),
        series_number=_series_number(sources[0]),
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="scantune",
        manufacturer_model_name="scantune",
        software_versions=version("scantune"),
        device_serial_number="1",
        omit_empty_frames=bool(frames.any()),
        content_label="SCANTUNE",
        content_description="Automatic segmentation, for research only",
    )
    content.SeriesDescription = "Segmentation by scantune"
    return content


def _description(number: int, segment: Segment) -> Any:
    import highdicom
    from pydicom.sr.codedict import codes

    found = structure_codes(segment.name, segment.value)
    return highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=segment.name[:64],
        segmented_property_category=_concept(found.category),
        segmented_property_type=_concept(found.type),
        algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name="scantune",
            version=version("scantune"),
            family=codes.cid7162.ArtificialIntelligence,
        ),
        display_color=highdicom.color.CIELabColor.from_rgb(*segment.colour),
    )


def _concept(code: Code) -> Any:
    import highdicom

    return highdicom.sr.CodedConcept(code.value, code.scheme, code.meaning)


def _series_number(source: Any) -> int:
    """Return a number that stands behind those of the scanner's series."""
    try:
        return 1000 + int(source.SeriesNumber)
    except (AttributeError, TypeError, ValueError):
        return 1000
