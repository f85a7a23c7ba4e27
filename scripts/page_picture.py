"""A picture of a page, for the documentation.

scantune demo --model spine --centres gamma-0 --out demo
python scripts/page_picture.py demo/spine-gamma-0_page.html docs/figures/page.png
"""

import shutil
import sys
from pathlib import Path

from few_colours import reduce_colours

ARGUMENTS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def main(page: str, picture: str) -> None:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("No Chromium or Chrome is installed.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        tab = browser.new_page(viewport={"width": 1240, "height": 900})
        tab.goto(Path(page).resolve().as_uri())
        tab.wait_for_selector("html[data-viewer=ready]", state="attached", timeout=120_000)
        tab.wait_for_timeout(500)
        tab.screenshot(path=picture, full_page=True)
        browser.close()
    reduce_colours(Path(picture))


if __name__ == "__main__":
    main(*sys.argv[1:])
