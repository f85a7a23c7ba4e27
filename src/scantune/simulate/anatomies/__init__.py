"""The anatomies of the cohorts, each a random generator of people.

| anatomy                        | in            | its parts                                                          |
|--------------------------------|---------------|--------------------------------------------------------------------|
| the prostate in its pelvis     | `prostate.py` | `gland.py` (and the rectum), `pelvis.py`                           |
| the heart in its chest         | `heart.py`    | `ventricles.py`, `thorax.py`                                       |
| the spinal cord in its neck    | `spine.py`    | `cord.py`, `vertebrae.py`, `neck.py`                               |
| the brain alone                | `icbm152.py`, | `brain.py` (regions and structures that all brains share);         |
|                                | `labelmaps.py`| from an atlas, and from label maps that users give                 |
| white matter hyperintensities  | `wmh.py`      | `head.py` (skull, scalp and face), `places.py`, `lesions.py`       |

The first three are drawn from shapes (`simulate/shaped.py`, `simulate/solids.py`), the others made from templates
(`simulate/atlas.py`, `simulate/template.py`). A new one is a subclass of
`Shaped`, or a function that returns an `Atlas`.
"""
