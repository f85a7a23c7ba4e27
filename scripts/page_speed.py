"""How long a case page takes to open without a GPU, and how large it is.

    python scripts/page_speed.py [--times 5]

A made-up brain of 4 million voxels, as large as pages get, and one of 8 slices as the demo's. Each is opened several
times in a headless Chromium with software WebGL2. Prints a Markdown table of medians: the page's size, seconds until
there is something to read and until the viewer has drawn, and the processor seconds this took, which other programs
change less.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from scantune.pages import CaseView, write_case

ARGUMENTS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
TICKS = os.sysconf("SC_CLK_TCK")


def ball(shape: tuple[int, int, int]) -> CaseView:
    """Three shells with noise, as large as a stripped brain."""
    places = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    distance = np.sqrt(sum(place**2 for place in places))
    labels = np.digitize(-distance, [-0.9, -0.6, -0.3]).astype(np.uint8)
    noise = np.random.default_rng(0).normal(0, 10, shape)
    image = np.where(labels > 0, np.array([0, 60, 120, 200])[labels] + noise, 0).astype(np.float32)
    after = np.roll(labels, 1, axis=0)
    trace = [{"step": n, "objective": 0.2 / (n + 1), "cnn": 0.2 / (n + 1)} for n in range(12)]
    entry = {"decision": "kept", "reason": "the objective fell.", "method": "foe-cnn-pca", "seconds": 1.0}
    structures = {"outer": 1, "middle": 2, "core": 3}
    return CaseView("ball", image, np.eye(4), np.roll(labels, 2, axis=0), after, structures, entry, trace, labels)


def processor_seconds(process: int) -> float:
    """Of a process and all that it has started."""
    total, those = 0.0, family(process)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) in those:
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def family(process: int) -> set[int]:
    """A process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"


def opened(page: Path, program: str) -> tuple[float, float, float]:
    """Seconds until the first words and until the viewer has drawn, and those of the processor."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        tab = browser.new_page()
        before, started = processor_seconds(os.getpid()), time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-viewer=ready]", state="attached", timeout=120_000)
        passed = time.perf_counter() - started
        used = processor_seconds(os.getpid()) - before
        painted = float(tab.evaluate(PAINTED))
        browser.close()
    return painted, passed, used


def main(times: int) -> None:
    """Open pages of two sizes, and print the table."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("No Chromium or Chrome is installed.")
    print(f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors.\n")
    print("| voxels | page in MB | seconds to read | seconds to see | processor seconds |\n|---|---|---|---|---|")
    for shape in ((176, 208, 8), (160, 192, 130)):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            write_case(page, ball(shape))
            opens = [opened(page, program) for _ in range(times)]
            painted, passed, used = (statistics.median(part) for part in zip(*opens, strict=True))
            size = page.stat().st_size / 1e6
        print(f"| {' x '.join(map(str, shape))} | {size:.1f} | {painted:.1f} | {passed:.1f} | {used:.1f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="how often each page is opened")
    main(parser.parse_args().times)
