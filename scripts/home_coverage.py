"""Note in a model file what its source scans show, and whether they are stripped; all else in it stays as it is.

`scantune fit` notes this by itself. This script is for files of older versions whose prior should not be fitted again:
the bundled models got it so, from the scans that their recipes name.

    python scripts/home_coverage.py src/scantune/model/bundled/brain.safetensors --data brain --label-maps FOLDER
    python scripts/home_coverage.py src/scantune/model/bundled/brain-register.safetensors --data register
"""

import argparse
from dataclasses import replace
from pathlib import Path

from scantune.model.describe import describe_model
from scantune.model.model import load
from scantune.prior.coverage import Shown
from scantune.training.plan import PRECISIONS, TrainingPlan


def main() -> None:
    """Read the scans, and write the model file again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True, metavar="RECIPE")
    parser.add_argument("--label-maps", metavar="FOLDER")
    asked = parser.parse_args()

    model = load(asked.model)
    if model.prior is None:
        parser.error(f"{asked.model} has no prior to note it in")
    given = {} if asked.label_maps is None else {"label_maps": asked.label_maps}
    plan = TrainingPlan.of_data(asked.data, model.labels, given)
    shown = [
        Shown.of(case.volume, case.padding, model.backend.voxel_ml(case))
        for cases in plan.cases(model.backend, "cpu")
        for case in cases
    ]
    stripped = {"stripped": True} if plan.source.stripped() else {}
    noted = replace(model, prior=model.prior.with_shown(shown), provenance=model.provenance | stripped)
    noted.save(asked.model, PRECISIONS[model.provenance.get("precision", "float32")])
    print(describe_model(noted))


if __name__ == "__main__":
    main()
