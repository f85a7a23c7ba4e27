"""Codes of structures for DICOM: those of SNOMED CT for common ones, and codes of our own for others."""

from __future__ import annotations

import re
from dataclasses import dataclass

SNOMED, OWN = "SCT", "99SCANTUNE"
"""Designators of coding schemes. Those that are not registered begin with 99."""


@dataclass(frozen=True)
class Code:
    """Code of a concept.

    Attributes:
        value: The code, at most 16 letters.
        meaning: The concept in words, at most 64 letters.
        scheme: Who assigned the code.
    """

    value: str
    meaning: str
    scheme: str = SNOMED


@dataclass(frozen=True)
class StructureCodes:
    """Codes of a structure: what kind of thing it is, and what it is."""

    category: Code
    type: Code


_ANATOMY = Code("91723000", "Anatomical Structure")
_TISSUE = Code("85756007", "Tissue")
_SUBSTANCE = Code("91720002", "Body Substance")
_ABNORMAL = Code("49755003", "Morphologically Abnormal Structure")

_LESION = StructureCodes(_ABNORMAL, Code("52988006", "Lesion"))
_TUMOR = StructureCodes(_ABNORMAL, Code("108369006", "Neoplasm"))

STRUCTURE_CODES = {
    "csf": StructureCodes(_SUBSTANCE, Code("65216001", "Cerebrospinal Fluid")),
    "gm": StructureCodes(_TISSUE, Code("389081007", "Gray Matter")),
    "wm": StructureCodes(_TISSUE, Code("389080008", "White Matter")),
    "brain": StructureCodes(_ANATOMY, Code("12738006", "Brain")),
    "cerebral gm": StructureCodes(_TISSUE, Code("40146001", "Cerebral cortex")),
    "cerebral wm": StructureCodes(_TISSUE, Code("68523003", "Cerebral White Matter")),
    "cerebellar gm": StructureCodes(_TISSUE, Code("25991003", "Cerebellar Cortex")),
    "cerebellar wm": StructureCodes(_TISSUE, Code("33060004", "Cerebellar White Matter")),
    "thalamus": StructureCodes(_ANATOMY, Code("42695009", "Thalamus")),
    "hippocampus": StructureCodes(_ANATOMY, Code("5366008", "Hippocampus")),
    "amygdala": StructureCodes(_ANATOMY, Code("4958002", "Amygdala")),
    "caudate": StructureCodes(_ANATOMY, Code("11000004", "Caudate Nucleus")),
    "putamen": StructureCodes(_ANATOMY, Code("89278009", "Putamen")),
    "pallidum": StructureCodes(_ANATOMY, Code("14738005", "Globus Pallidus")),
    "brain stem": StructureCodes(_ANATOMY, Code("119238007", "Brain Stem")),
    "cord": StructureCodes(_ANATOMY, Code("2748008", "Spinal cord")),
    "lv": StructureCodes(_ANATOMY, Code("87878005", "Left ventricle")),
    "rv": StructureCodes(_ANATOMY, Code("53085002", "Right ventricle")),
    "myo": StructureCodes(_TISSUE, Code("49848007", "Left Ventricle Myocardium")),
    "prostate": StructureCodes(_ANATOMY, Code("41216001", "Prostate")),
    "gland": StructureCodes(_ANATOMY, Code("41216001", "Prostate")),
    "pz": StructureCodes(_ANATOMY, Code("279706003", "Peripheral zone of the prostate")),
    "tz": StructureCodes(_ANATOMY, Code("399384005", "Transition zone of the prostate")),
    "wmh": _LESION,
    "lesion": _LESION,
    "tumor": _TUMOR,
    "tumour": _TUMOR,
}
"""Codes of common structures by their names in small letters."""


def structure_codes(name: str, value: int) -> StructureCodes:
    """Return the codes of a structure; one of our own, with its name as the meaning, if it is not among the common.

    Args:
        name: Its name in the model.
        value: Its label, for names without a letter that a code may have.
    """
    known = STRUCTURE_CODES.get(name.lower().replace("_", " "))
    if known is not None:
        return known
    short = re.sub(r"[^A-Z0-9]+", "-", name.upper()).strip("-")[:16].strip("-") or f"LABEL-{value}"
    return StructureCodes(_ANATOMY, Code(short, name[:64].strip() or short, OWN))
