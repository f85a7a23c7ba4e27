"""The kinds of input, by name."""

from importlib import import_module

from fuzz.base import Kind

KINDS = {
    "nifti": "fuzz.nifti:Nifti",
    "nrrd-mhd": "fuzz.itk:Itk",
    "detached": "fuzz.detached:Detached",
    "dicom": "fuzz.dicom:Dicom",
    "dicom-seg": "fuzz.dicom_seg:DicomSegmentation",
    "model": "fuzz.model:ModelFile",
    "cli": "fuzz.commandline:CommandLine",
}
"""Imported where they are used: the process that only waits needs none of them."""


def find_kind(name: str) -> type[Kind]:
    """The class of a kind."""
    module, _, member = KINDS[name].partition(":")
    kind: type[Kind] = getattr(import_module(module), member)
    return kind
