"""The centres of the simulated cohorts: fixed before any network was trained on them.

A later change is logged here with its reason, and never made to please a method.

Log: none changed so far. Before the protocols were fixed, a pixel classifier (no network) was scored on a few subjects
of each centre to see that the shifts are real; no protocol was changed after its scores were seen. The source's
contrast is the usual look of T1-weighted scans and close to that of the real OASIS scans, which were looked at for
realism.

Signals are relative to the brightest tissue. But for the source's, they are rounded from the ideal signal
equations with T1 = 656 / 1188 / 4000 ms at 1.5 T (white matter, cortex, CSF; after W. D. Rooney et al., Magn.
Reson. Med. 57 (2007) 308-318) and 832 / 1331 / 4000 ms at 3 T (after J. P. Wansapura et al., J. Magn. Reson.
Imaging 9 (1999) 531-538), T2 = 80 / 110 / 1500 ms, and proton densities 0.70 / 0.82 / 1.00. Deep grey matter is
put between white matter and cortex, brain stem near white matter. Equations per sequence belong to the full
simulator.
"""

from __future__ import annotations

from scantune.simulate.acquisition import Protocol

BRAIN: tuple[Protocol, ...] = (
    # The source: a standard T1w MPRAGE. Its long readout shifts the contrast of an ideal inversion recovery;
    # the numbers are the usual look of such scans: cortex at 0.6 of white matter, CSF dark.
    Protocol(
        "source-3T-mprage",
        {"CSF": 0.18, "cortex": 0.60, "deep grey": 0.74, "white": 1.00, "brain stem": 0.95},
        snr=45.0,
    ),
    # Spoiled gradient echo, TR 24 ms, flip angle 25 degrees: flatter T1 contrast. The mild shift.
    Protocol(
        "spgr-1.5T",
        {"CSF": 0.30, "cortex": 0.74, "deep grey": 0.81, "white": 1.00, "brain stem": 0.97},
        bias=0.10,
        snr=25.0,
        in_plane=0.9375,
        resolution=1.4,
        thickness=2.0,
        scale=420.0,
    ),
    # Spin echo, TR 1200 ms, TE 12 ms, between T1 and proton density weighting: grey close to white matter.
    Protocol(
        "spinecho-1.5T",
        {"CSF": 0.51, "cortex": 0.92, "deep grey": 0.94, "white": 1.00, "brain stem": 0.99},
        bias=0.03,
        snr=50.0,
        thickness=3.0,
        scale=210.0,
    ),
    # Inversion recovery, TR 2000 ms, TI 750 ms, magnitude image: cortex almost nulled and close to CSF, whose
    # magnetisation is still inverted.
    Protocol(
        "ir-3T",
        {"CSF": 0.26, "cortex": 0.36, "deep grey": 0.54, "white": 1.00, "brain stem": 0.93},
        bias=0.06,
        snr=45.0,
        thickness=2.0,
        scale=1800.0,
    ),
    # Proton density weighted spin echo, TR 2500 ms, TE 20 ms; cortex brighter than white matter. The hard one
    Protocol(
        "pd-3T",
        {"CSF": 0.79, "cortex": 1.00, "deep grey": 0.96, "white": 0.90, "brain stem": 0.91},
        bias=0.02,
        snr=90.0,
        thickness=3.0,
        scale=650.0,
    ),
    # The source's contrast through a surface coil at the back of the head: bright behind, dark in front.
    Protocol(
        "surface-coil-3T",
        {"CSF": 0.18, "cortex": 0.60, "deep grey": 0.74, "white": 1.00, "brain stem": 0.95},
        bias=0.12,
        surface_coil=0.7,
        snr=30.0,
        scale=1400.0,
    ),
    # A fast clinical spoiled gradient echo (TR 30 ms, 25 degrees): thick slices, broad point spread function,
    # noise, and a compressing intensity curve.
    Protocol(
        "lowres-1.5T",
        {"CSF": 0.32, "cortex": 0.75, "deep grey": 0.82, "white": 1.00, "brain stem": 0.97},
        bias=0.10,
        snr=18.0,
        in_plane=1.25,
        resolution=2.2,
        thickness=5.0,
        gamma=0.8,
        scale=255.0,
    ),
)
