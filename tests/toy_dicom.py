"""Tiny DICOM files for tests: series of slices, and files with a whole volume."""

import warnings

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

PATIENT = "Secret^Name"
MR, ENHANCED_MR, REPORT = "1.2.840.10008.5.1.4.1.1.4", "1.2.840.10008.5.1.4.1.1.4.1", "1.2.840.10008.5.1.4.1.1.88.11"
STUDY = "1.2.826.0.1.3680043.8.498.1"
STRAIGHT = np.diag([0.5, 0.75, 3.0, 1.0])
STRAIGHT[:3, 3] = -3.5, 2, 7


def lps(affine):
    """An affine (RAS+) in the world of DICOM."""
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def header(sop_class, number, description, series="1", instance=1):
    """What every file of a series says of patient, study and series."""
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID = sop_class
    file.SOPInstanceUID = file.file_meta.MediaStorageSOPInstanceUID = f"{STUDY}.{series}.{instance}"
    file.StudyInstanceUID, file.SeriesInstanceUID, file.FrameOfReferenceUID = STUDY, f"{STUDY}.{series}", f"{STUDY}.99"
    file.PatientName, file.PatientID, file.PatientBirthDate, file.PatientSex = PATIENT, "4711", "19700101", "O"
    file.StudyDate, file.StudyTime, file.StudyID, file.AccessionNumber = "20200102", "101112", "12", "34"
    file.ReferringPhysicianName, file.Manufacturer, file.Modality = "", "Toy", "MR"
    file.SeriesNumber, file.SeriesDescription, file.InstanceNumber = number, description, instance
    file.PositionReferenceIndicator = ""
    return file


def pixels(file, stored):
    """Add stored values `(rows, columns)` or `(frames, rows, columns)`."""
    file.Rows, file.Columns = stored.shape[-2:]
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 16, 15, 0
    file.PixelData = np.ascontiguousarray(stored, "<u2").tobytes()


def save(file, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.save_as(path, enforce_file_format=True)
    return path


def numbers(values):
    return [float(f"{value:.8g}") for value in values]


def write_series(folder, volume, affine=STRAIGHT, number=1, description="T1 MPRAGE", series="1"):
    """Write a volume `(x, y, z)` as a series of slices, whose file names are in another order."""
    world = lps(affine)
    edges = np.linalg.norm(world[:3, :3], axis=0)
    for index in range(volume.shape[2]):
        file = header(MR, number, description, series, index + 1)
        file.ImageOrientationPatient = numbers((world[:3, :2] / edges[:2]).T.ravel())
        file.ImagePositionPatient = numbers((world @ [0, 0, index, 1])[:3])
        file.PixelSpacing, file.SliceThickness = numbers((edges[1], edges[0])), float(edges[2])
        pixels(file, volume[:, :, index].T)
        save(file, folder / f"{series}-{index * 3 % (volume.shape[2] + 1):03d}.dcm")
    return folder


def write_multiframe(path, volume, affine=STRAIGHT, order=None, slopes=(1.0,), change=lambda file: None):
    """Write a volume `(x, y, z)` as one file of enhanced MR, with frames in an order of slices."""
    world = lps(affine)
    edges = np.linalg.norm(world[:3, :3], axis=0)
    order = range(volume.shape[2]) if order is None else order
    file = header(ENHANCED_MR, 3, "T1 enhanced", "3")
    file.NumberOfFrames = len(order)
    shared, measures, orientation = Dataset(), Dataset(), Dataset()
    measures.PixelSpacing, measures.SliceThickness = numbers((edges[1], edges[0])), float(edges[2])
    orientation.ImageOrientationPatient = numbers((world[:3, :2] / edges[:2]).T.ravel())
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = [measures], [orientation]
    file.SharedFunctionalGroupsSequence = [shared]
    frames = []
    for place, index in enumerate(order):
        frame, position, scale = Dataset(), Dataset(), Dataset()
        position.ImagePositionPatient = numbers((world @ [0, 0, index, 1])[:3])
        scale.RescaleSlope, scale.RescaleIntercept, scale.RescaleType = slopes[place % len(slopes)], 0.0, "US"
        frame.PlanePositionSequence, frame.PixelValueTransformationSequence = [position], [scale]
        frames.append(frame)
    file.PerFrameFunctionalGroupsSequence = frames
    pixels(file, np.stack([volume[:, :, index].T for index in order]))
    change(file)
    return save(file, path)


def write_report(path):
    """Write a text report, a DICOM file without a picture."""
    file = header(REPORT, 9, "Report", "9")
    file.Modality = "SR"
    return save(file, path)


def read(path):
    return pydicom.dcmread(path)
