"""Measure the architecture of the package: folders, layers, the path of one scan, names and docstrings.

    python scripts/architecture.py [--source src] [--out measures.json]

Prints a table. `--source` names the folder that holds the package, so that another checkout can be measured too.
The path of a scan is profiled: one `scantune adapt` of two steps on a simulated scan where the bundled model fails.
The calls from `adapt` to the network are the functions of the package that lie between `adapt` and the first forward
pass of an objective.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROFILE = """
import inspect, sys, threading
from pathlib import Path
import nibabel, numpy, torch
import scantune
source, out = Path(sys.argv[1]).resolve() / "scantune", Path(sys.argv[2])
cohort = scantune.simulate.COHORTS["contrasts"]
case = next(cohort.cases("pd-3T", "test", count=1, slices=4))
nibabel.save(nibabel.Nifti1Image(case.image, case.affine), out / "scan.nii.gz")
called, depth, chain = set(), [], []

def profile(frame, event, _):
    if event != "call":
        return
    name, file = frame.f_code.co_name, frame.f_code.co_filename
    ours = file.startswith(str(source)) and file.endswith(".py")  # not the compiled templates of pages
    if ours and name != "<module>" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        called.add(file)
    if name == "forward" and not depth and torch.is_grad_enabled() and file.startswith(str(source)):
        names, above = [], frame.f_back
        while above is not None and above.f_code.co_name != "adapt":
            if above.f_code.co_filename.startswith(str(source)):
                names.append(above.f_code.co_name)
            above = above.f_back
        if above is not None and "measure" in names:
            depth.append(len(names) + 1)
            chain.extend(reversed(names))

try:
    from scantune.cli.main import main
except ImportError:
    from scantune.cli import main
threading.setprofile(profile)
sys.setprofile(profile)
main(["adapt", str(out / "scan.nii.gz"), "--model", "brain", "--out", str(out / "out"), "--steps", "2"])
sys.setprofile(None)
print("MEASURED", len(called), depth[0] if depth else -1)
if len(sys.argv) > 3:
    print(" > ".join(chain))
    print("\\n".join(sorted(called)))
"""


def modules(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules of a package with their syntax trees."""
    for path in sorted(package.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def root_measures(package: Path) -> dict[str, int]:
    """Count modules and folders at the package root."""
    folders = [path for path in package.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    return {"modules at the root": len(list(package.glob("*.py"))), "folders at the root": len(folders)}


def layer_measures(project: Path) -> dict[str, int]:
    """Count the layers of the import contract."""
    settings = tomllib.loads(project.read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return {"layers of the import contract": max(len(contract.get("layers", ())) for contract in contracts)}


def size_measures(package: Path) -> dict[str, float]:
    """Count files and lines, and the functions and modules that are long."""
    lines, long_functions, functions = [], 0, 0
    for path, tree in modules(package):
        lines.append(len(path.read_text(encoding="utf-8").splitlines()))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                long_functions += (node.end_lineno or 0) - node.lineno + 1 > 40
    return {
        "modules": len(lines),
        "lines": sum(lines),
        "longest module": max(lines),
        "functions": functions,
        "functions of more than 40 lines": long_functions,
    }


def repeated_classes(package: Path) -> dict[str, list[str]]:
    """Return public class names that are defined more than once, with where."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules(package):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(package).as_posix())
    return {name: found for name, found in homes.items() if len(found) > 1}


def first_words(package: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the first word of each function's docstring, with its place; properties are left out."""
    for path, tree in modules(package):
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            text = ast.get_docstring(node)
            if text and not any("property" in mark or mark.endswith("setter") for mark in marks):
                yield text.split()[0].strip(".,:;`"), path.relative_to(package).as_posix(), node.lineno


def docstring_measures(package: Path, verbs: frozenset[str]) -> dict[str, str]:
    """Return the share of function docstrings that start with an imperative verb."""
    words = [word for word, _, _ in first_words(package)]
    share = sum(word in verbs for word in words) / max(len(words), 1)
    return {"docstrings that start with a verb": f"{share:.1%} of {len(words)}"}


def path_measures(source: Path, listed: bool = False) -> dict[str, int]:
    """Profile one `scantune adapt`: modules with a called function, and calls from `adapt` to the network."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", PROFILE, str(source), folder, *(["list"] if listed else [])]
        environment = {"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, capture_output=True, encoding="utf-8", env=environment)
    lines = done.stdout.splitlines()
    marks = [number for number, line in enumerate(lines) if line.startswith("MEASURED")]
    if not marks:
        sys.exit(f"The path of a scan could not be profiled:\n{done.stdout}{done.stderr}")
    if listed:
        print("\n".join(lines[marks[0] + 1 :]))
    _, called, depth = lines[marks[0]].split()
    return {"modules entered by one adapt": int(called), "calls from adapt to the network": int(depth)}


VERBS = frozenset(
    """
    Accept Accumulate Act Adapt Add Adjust Advance Aggregate Align Allocate Allow Answer Append Apply Approximate
    Arrange Ask Assemble Assert Assess Assign Attach Augment Average Backpropagate Balance Begin Bin Blend Blur
    Bound Bring Build Cache Calculate Calibrate Call Carry Center Centre Change Check Choose Clamp Classify Clean
    Clear Clip Close Collect Combine Compare Compile Compose Compute Concatenate Condense Configure Connect
    Construct Contract Convert Convolve Copy Correct Correlate Corrupt Count Cover Create Crop Cut Decide Declare
    Decode Decorate Define Deform Delete Deliver Denoise Derive Describe Detach Detect Determine Differentiate
    Discard Display Distribute Divide Do Double Download Draw Drop Encode End Enlarge Enter Enumerate Erase Escape
    Estimate Evaluate Exchange Exclude Execute Exit Expand Explain Export Express Extend Extract Factor Fetch Fill
    Filter Find Finish Fit Flag Flatten Flip Fold Forget Format Forward Free Fuse Gather Generate Get Give Group
    Grow Guess Halve Handle Hash Have Hide Hold Identify Ignore Import Include Increase Infer Inform Initialise
    Initialize Insert Inspect Install Integrate Interpolate Interrupt Intersect Invert Iterate Join Keep Label Launch
    Lay Learn Leave Let Limit Link List Listen Load Locate Lock Log Look Lower Make Map Mark Mask Match Measure Merge
    Mirror Mix Move Multiply Name Negate Normalise Normalize Note Notify Number Observe Offer Omit Open Optimise
    Optimize Order Organise Outline Overlay Override Pack Pad Paint Pair Parse Pass Paste Pause Perform Permute
    Perturb Pick Place Plot Point Pool Postpone Predict Prepare Preserve Preview Print Process Produce Project
    Propose Protect Prove Provide Prune Publish Pull Push Put Quantise Query Quit Quote Raise Randomise Rank Rate
    Re-create Reach Read Rebuild Receive Recompute Record Recover Reduce Refine Refit Refresh Refuse Register Reject
    Release Relabel Remember Remove Rename Render Renew Reorder Repair Repeat Replace Replay Report Represent
    Require Resample Reserve Reset Reshape Resize Resolve Restore Restrict Resume Retrieve Return Reuse Rise Reverse
    Rewrite Rotate Round Run Sample Save Say Scale Scan Score Search See Select Send Separate Serialise Serve Set
    Settle Shade Shape Share Shift Shorten Show Shrink Shuffle Shut Sign Simulate Skip Slice Smooth Solve Sort Split
    Spread Stack Standardise Start State Stop Store Stream Stretch Strip Style Submit Subtract Suggest Sum Summarise
    Summarize Support Suppress Swap Switch Synchronise Take Tell Terminate Test Thin Threshold Throw Tile Time Total
    Trace Track Train Transform Translate Transpose Treat Trim Truncate Try Turn Type Undo Unfold Unite Unpack
    Unroll Update Upsample Use Validate Verify View Visit Wait Walk Warm Warn Warp Watch Weigh Weight Widen Withdraw
    Work Wrap Write Yield Zero Zip
    """.split()  # noqa: SIM905
)
"""Imperative verbs that docstrings may start with."""


def main() -> None:
    """Print the measures of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--out", type=Path, help="write the measures as JSON")
    parser.add_argument("--list", action="store_true", help="list the modules that one adapt enters")
    parser.add_argument("--words", action="store_true", help="list docstrings that do not start with a verb, and stop")
    arguments = parser.parse_args()
    package = arguments.source / "scantune"
    if arguments.words:
        for word, path, line in first_words(package):
            if word not in VERBS:
                print(f"{path}:{line}: {word}")
        return
    repeated = repeated_classes(package)
    measures: dict[str, object] = {
        **root_measures(package),
        **layer_measures(arguments.source.parent / "pyproject.toml"),
        **path_measures(arguments.source, arguments.list),
        "public class names used twice": len(repeated),
        **size_measures(package),
        **docstring_measures(package, VERBS),
    }
    for name, value in measures.items():
        print(f"{name:34} {value}")
    for name, found in repeated.items():
        print(f"  {name}: {', '.join(found)}")
    if arguments.out:
        arguments.out.write_text(json.dumps(measures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
