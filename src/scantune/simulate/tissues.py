"""Proton density and relaxation times of the tissues in the simulated cohorts, at 1.5 T and 3 T.

Literature values differ between studies (at 3 T, T1 of white matter is reported from about 0.7 to 1.7 s), so each entry
is one published choice, not the truth. Whatever no study is named for is **assumed**: plausible, from
clinical images or neighbouring tissues. Proton densities are relative to water; but for brain (0.70 and 0.82, as is
customary for white and grey matter) they are assumed. So is T2* outside the brain unless a study is named, as
it depends on shim and voxel size anyway.

Sources, named in the table by first author and year:

- Cervical cord, T1 and T2 at 3 T: S. A. Smith et al., Magn. Reson. Med. 60 (2008) 213-219.
- Brain, T1 at 1.5 T: W. D. Rooney et al., Magn. Reson. Med. 57 (2007) 308-318.
- Brain, T1 and T2 at 3 T: J. P. Wansapura et al., J. Magn. Reson. Imaging 9 (1999) 531-538.
- Brain, T2* at both: A. M. Peters et al., Magn. Reson. Imaging 25 (2007) 748-753.
- Excised tissue and blood, T1 and T2 at both: G. J. Stanisz et al., Magn. Reson. Med. 54 (2005) 507-512.
- Blood, T1 at 3 T: H. Lu et al., Magn. Reson. Med. 52 (2004) 679-682.
- Knee (muscle, fat, marrow fat), T1 and T2 at both: G. E. Gold et al., AJR 183 (2004) 343-351.
- Abdomen and pelvis, T1 and T2 at both: C. M. J. de Bazelaire et al., Radiology 230 (2004) 652-659.
- Prostate zones, T2: C. J. Simpkin et al., Br. J. Radiol. 86 (2013) 20120469.
- Myocardium, T1 and T2 at 3 T: F. von Knobelsdorff-Brenkenhoff et al., J. Cardiovasc. Magn. Reson. 15 (2013) 53.
- Myocardium, T1 and T2 at 1.5 T: M. Granitz et al., Wien. Klin. Wochenschr. 131 (2019), issue 7-8.
- Myocardium, T2* at 3 T: C. Roy et al., J. Cardiovasc. Magn. Reson. 19 (2017) 72.
- Lung, T2* at both: J. Yu et al., Magn. Reson. Med. 66 (2011) 248-254.
- Cortical bone, T1 and T2* at 1.5 T: I. L. H. Reichert et al., Magn. Reson. Imaging 23 (2005) 611-618.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scantune.errors import InputError


@dataclass(frozen=True)
class Relaxation:
    """Relaxation times at one field strength, in ms."""

    t1: float
    t2: float
    t2_star: float


@dataclass(frozen=True)
class Tissue:
    """What a scanner's signal depends on."""

    density: float
    """Proton density relative to water; 0 gives no signal."""
    at: Mapping[float, Relaxation]
    """Relaxation times by field strength in tesla."""

    def relaxation(self, field: float) -> Relaxation:
        """Return the relaxation times at a field strength in tesla.

        Raises:
            InputError: They are not known at this field strength.
        """
        if field not in self.at:
            known = " or ".join(f"{strength:g}" for strength in sorted(self.at))
            raise InputError(
                f"The field strength must be {known} T, where relaxation times are known, but is {field} T. "
                f"Choose {known}."
            )
        return self.at[field]


def _tissue(density: float, at_1_5: tuple[float, float, float], at_3: tuple[float, float, float]) -> Tissue:
    """Create a row of the table: proton density, then (T1, T2, T2*) in ms at 1.5 T and at 3 T."""
    return Tissue(density, {1.5: Relaxation(*at_1_5), 3.0: Relaxation(*at_3)})


_NOTHING = (1.0, 1.0, 1.0)  # never seen, as the density is 0

TISSUES: dict[str, Tissue] = {
    # Assumed: T1 within the 4 to 4.5 s that are reported at either field, where clinical FLAIR protocols null it; T2
    # within the 1 to 2.5 s that are reported.
    "CSF": _tissue(1.00, (4400, 2000, 500), (4400, 2000, 300)),
    # Assumed: CSF around the cord moves with every heartbeat, so that unsaturated fluid enters the slice between two
    # pulses. A shorter T1 stands for it, without which fluid would be no brighter than cord in fast gradient echo.
    "spinal CSF": _tissue(1.00, (2200, 2000, 300), (2200, 2000, 200)),
    # T1 Rooney 2007 and Wansapura 1999, T2 Wansapura 1999 at both fields (Stanisz 2005 finds nearly the same T2
    # at both), T2* Peters 2007.
    "cortex": _tissue(0.82, (1188, 110, 84), (1331, 110, 66)),
    "white": _tissue(0.70, (656, 80, 66), (832, 80, 53)),
    # T2* Peters 2007 (between caudate nucleus and putamen). Assumed: the rest, between white matter and cortex.
    "deep grey": _tissue(0.78, (950, 87, 57), (1130, 84, 36)),
    # Assumed: white matter with some grey.
    "brain stem": _tissue(0.73, (740, 82, 62), (910, 81, 49)),
    # Assumed: white matter hyperintensity, with more and freer water than its surroundings.
    "lesion": _tissue(0.85, (1100, 150, 110), (1300, 145, 90)),
    # 3 T: T1 (its gradient echo and inversion recovery averaged) and T2 Smith 2008. Assumed: T1 at 1.5 T, lower by the
    # ratio for whole cord in Stanisz 2005 (745 to 993); and densities and T2*, which give the modest contrast of
    # T2*-weighted cord images.
    "cord grey": _tissue(0.80, (740, 78, 52), (984, 76, 42)),
    "cord white": _tissue(0.70, (645, 75, 50), (857, 73, 40)),
    # The same with T2* further apart. Assumed: grey matter is 11 to 15 % brighter than white in three real scans, where
    # the values above leave 2 to 11 %. These leave about 20 %; of two small networks, the one that learned from them
    # segmented the three scans better than the one that learned from 15 %.
    "cord grey 2": _tissue(0.80, (740, 78, 60), (984, 76, 52)),
    "cord white 2": _tissue(0.70, (645, 75, 50), (857, 73, 38)),
    # Gold 2004. This T2 is an effective one, right for trains of refocusing pulses, which undo J-coupling: single
    # echoes give 58 to 68 ms (de Bazelaire 2004), but fat is bright in turbo spin echo and balanced SSFP.
    "fat": _tissue(0.90, (288, 165, 45), (371, 133, 30)),
    # T1 and T2 Gold 2004.
    "muscle": _tissue(0.80, (1130, 35.3, 28), (1420, 31.7, 24)),
    # T1 and T2* at 1.5 T within the ranges of Reichert 2005 (140-260 and 0.42-0.50 ms).
    "bone": _tissue(0.20, (200, 0.6, 0.45), (230, 0.5, 0.40)),
    # T1 the mean, T2 the geometric mean of red (L4 vertebra, de Bazelaire 2004) and yellow marrow (Gold 2004); T2*
    # short, as trabeculae disturb the field.
    "marrow": _tissue(0.75, (418, 90, 12), (476, 81, 8)),
    # Assumed: between a hydrated nucleus and its ring.
    "disc": _tissue(0.80, (1050, 90, 50), (1250, 80, 40)),
    # T1 Stanisz 2005 and Lu 2004, T2 Stanisz 2005; arterial, at rest. Inflow is not modelled.
    "blood": _tissue(0.87, (1441, 290, 150), (1664, 275, 80)),
    # 1.5 T Granitz 2019; 3 T von Knobelsdorff 2013 (mid-ventricular), T2* Roy 2017.
    "myocardium": _tissue(0.80, (996, 55.8, 36), (1159, 45.1, 24)),
    # T2* Yu 2011. Assumed: the rest.
    "lung": _tissue(0.15, (1200, 40, 2.1), (1350, 35, 0.74)),
    "air": _tissue(0.0, _NOTHING, _NOTHING),
    # T1 of whole prostate, de Bazelaire 2004. T2 of the peripheral zone after Simpkin 2013 (149 ms) at 1.5 T, assumed a
    # little lower at 3 T. T2 of the transition zone is assumed: between Simpkin 2013 (125 ms) and whole prostate in de
    # Bazelaire 2004 (88 and 74 ms).
    "peripheral zone": _tissue(0.90, (1317, 149, 90), (1597, 140, 70)),
    "transition zone": _tissue(0.85, (1317, 105, 70), (1597, 95, 55)),
    # Assumed: nearly water.
    "urine": _tissue(1.00, (3200, 1200, 300), (3500, 1000, 200)),
    # Assumed: smooth muscle and mucosa.
    "rectal wall": _tissue(0.80, (1000, 62, 35), (1250, 58, 25)),
    # Assumed: T2* short from gas.
    "stool": _tissue(0.60, (700, 55, 10), (800, 50, 6)),
    "balloon": _tissue(0.0, _NOTHING, _NOTHING),
    # T1 and T2 de Bazelaire 2004.
    "liver": _tissue(0.80, (586, 46, 28), (809, 34, 19)),
    # Assumed.
    "skin": _tissue(0.70, (900, 32, 18), (1000, 28, 12)),
    # T1 of blood. Assumed: T2 so short that nothing is left at the echo times of spin echo, which stands for blood
    # that left the slice between two pulses.
    "vessel": _tissue(0.87, (1441, 8, 6), (1664, 8, 5)),
    # Assumed: collagen, T2 of a few ms.
    "ligament": _tissue(0.50, (600, 5, 2.5), (700, 4, 2)),
}
