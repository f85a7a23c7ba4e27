"""Pages in a real browser, without a GPU: they open without errors or requests, and do what their controls say."""

import io
import shutil

import numpy as np
import pytest

from scantune.pages import IndexRow, write_case, write_index
from tests.page_cases import case_view, entry

ARGUMENTS = (
    *("--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    *("--disable-background-networking", "--disable-component-update", "--no-first-run"),
)
SLOW = 60_000  # milliseconds; other programs may have the processor


@pytest.fixture(scope="module")
def browser():
    """One for all tests of this file."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium or Chrome is installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a file; at the end, nothing must have been complained about or asked for besides that file."""
    pages, troubles = [], []

    def open_file(path, without="", **context):
        page = browser.new_page(**context)
        pages.append(page)
        page.add_init_script(without)
        page.set_default_timeout(SLOW)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        own = {path.as_uri(), *(each.as_uri() for each in path.parent.glob("*.html"))}
        page.on("request", lambda request: request.url.split("#")[0] not in own and troubles.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_file
    for page in pages:
        page.close()
    assert troubles == []


def seen(page):
    """The viewer's picture `(height, width, 3)`, 0 to 1."""
    from matplotlib.image import imread

    page.wait_for_timeout(100)  # for the next frame
    return imread(io.BytesIO(page.locator("#canvas").screenshot()))[..., :3]


def coloured(picture):
    """How many pixels are not grey."""
    return int((np.ptp(picture, axis=2) > 0.1).sum())


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "sub 1 & more#2.html"
    write_case(path, case_view("sub 1 & more#2"))
    return path


def test_a_scan_is_shown_and_its_controls_work(visit, scan):
    page = visit(scan, viewport={"width": 480, "height": 700})
    page.wait_for_selector("html[data-viewer=ready]", state="attached")
    assert page.inner_text("h1") == "sub 1 & more#2"
    assert not page.is_visible(".stills")
    after = seen(page)
    assert coloured(after) > 1000
    shown = {}
    for name in ("Scan", "Before", "Reference", "Differences"):
        page.check(f"input[value={name}]", force=True)
        shown[name] = seen(page)
    assert coloured(shown["Scan"]) == 0
    assert np.abs(shown["Before"] - after).max() > 0.2
    assert np.abs(shown["Reference"] - shown["Before"]).max() > 0.2
    assert 0 < coloured(shown["Differences"]) < coloured(shown["Before"])
    page.locator("#canvas").focus()
    page.keyboard.press("2")  # After
    assert np.array_equal(seen(page), after)
    page.click("text=rim")
    assert 0 < coloured(seen(page)) < coloured(after)
    page.click("text=rim")
    page.fill("#opacity", "100")
    assert np.ptp(seen(page), axis=2).mean() > np.ptp(after, axis=2).mean()


def test_slices_are_scrolled_by_slider_keys_and_wheel(visit, scan):
    page = visit(scan, viewport={"width": 480, "height": 700})
    page.wait_for_selector("html[data-viewer=ready]", state="attached")
    start = seen(page)
    at = int(page.input_value("#slice"))
    page.locator("#canvas").focus()
    page.keyboard.press("ArrowUp")
    assert page.input_value("#slice") == str(at + 1)
    assert not np.array_equal(seen(page), start)
    page.fill("#slice", "1")
    assert page.inner_text("#place") == "2 of 6"
    page.locator("#canvas").hover()
    page.mouse.wheel(0, 100)
    page.wait_for_timeout(100)
    assert page.input_value("#slice") != "1"
    assert page.inner_text("#pointed").startswith("At the crosshair: before ")
    page.select_option("#plane", "coronal")
    assert page.inner_text("#place").endswith("of 40")  # x and y changed places


def test_keys_work_at_once_and_switch_outlines_and_crosshair(visit, scan):
    page = visit(scan, viewport={"width": 480, "height": 1400})
    page.wait_for_selector("html[data-viewer=ready]", state="attached")
    start, at = seen(page), int(page.input_value("#slice"))
    page.keyboard.press("ArrowRight")
    assert page.input_value("#slice") == str(at + 1)
    page.keyboard.press("ArrowLeft")
    assert np.array_equal(seen(page), start)
    page.click("h1")  # away from the picture
    page.keyboard.press("ArrowUp")
    assert page.input_value("#slice") == str(at + 1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("0")
    assert coloured(seen(page)) == 0
    page.keyboard.press("2")
    page.keyboard.press("o")
    assert page.is_checked("#outlines")
    page.fill("#opacity", "100")
    assert 0 < coloured(seen(page)) < coloured(start)
    page.keyboard.press("O")
    page.fill("#opacity", "50")
    assert np.array_equal(seen(page), start)
    page.keyboard.press("x")
    assert not np.array_equal(seen(page), start)


def test_a_page_leads_to_its_neighbours_in_the_order_of_the_list(visit, tmp_path):
    names = ["a b", "c#1", "d"]
    for name in names:
        write_case(tmp_path / f"{name}.html", case_view(name))
    write_index(tmp_path / "all scans.html", [IndexRow(f"{name}.html", name) for name in names], "Scans")
    page = visit(tmp_path / "all scans.html")
    page.click("button:has-text('Scan')")
    page.click("button:has-text('Scan')")  # the last one first
    links = lambda: [link.inner_text() for link in page.locator("#neighbours a").all() if link.is_visible()]  # noqa: E731
    for way, name, around in (
        ("d", "d", ["All scans", "Next"]),
        ("Next", "c#1", ["All scans", "Previous", "Next"]),
        ("Next", "a b", ["All scans", "Previous"]),
        ("Previous", "c#1", ["All scans", "Previous", "Next"]),
    ):
        page.click(f"a:text-is('{way}')")
        page.wait_for_selector(f"h1:text-is('{name}')")
        assert links() == around
    page.click("text=All scans")
    page.wait_for_selector(".cases")


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)//.html", "https://x.test/a.html", "/etc/a.html", "//x.test/a.html", "a.txt", 3]
)
def test_a_link_that_leads_elsewhere_is_not_shown(target, visit, scan):
    page = visit(scan, NO_WEBGL)
    page.evaluate(
        "list => { location.hash = encodeURIComponent(JSON.stringify(list)) }",
        {"index": target, "pages": [target, target], "at": 0},
    )
    page.wait_for_timeout(100)
    assert not page.is_visible("#neighbours")


NO_WEBGL = "HTMLCanvasElement.prototype.getContext = () => null"


def test_without_webgl2_a_sentence_says_so_and_pictures_stay(visit, scan):
    page = visit(scan, NO_WEBGL)
    page.wait_for_selector("html[data-viewer=none]", state="attached")
    assert page.inner_text("#why").startswith("This browser has no WebGL2")
    assert page.is_visible(".stills img")
    assert not page.is_visible("#canvas")
    assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 10)")


def test_without_scripts_a_sentence_says_so_and_pictures_stay(visit, scan):
    page = visit(scan, java_script_enabled=False)
    assert page.inner_text("#why").startswith("Scripts are switched off")
    assert page.is_visible(".stills img")
    assert not page.is_visible("#canvas")


def test_in_print_pictures_stand_for_the_viewer(visit, scan):
    page = visit(scan)
    page.wait_for_selector("html[data-viewer=ready]", state="attached")
    page.emulate_media(media="print")
    assert page.is_visible(".stills img")
    assert not page.is_visible("#canvas")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_light_and_in_the_dark(visit, tmp_path, scheme):
    """Contrast of 4.5 at least, as WCAG 2 AA asks of text."""
    write_case(tmp_path / "a.html", case_view(entry=entry(decision="unsolved", reason="it strayed.")))
    page = visit(tmp_path / "a.html", NO_WEBGL, color_scheme=scheme)
    for place in (".decision", ".note", "footer p", "h1", ".figures dt", ".numbers td"):
        assert page.evaluate(CONTRAST, place) >= 4.5, place


CONTRAST = """(place) => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let element = document.querySelector(place);
  const ink = luminance(getComputedStyle(element).color);
  while (/rgba\\(.*, 0\\)/.test(getComputedStyle(element).backgroundColor)) element = element.parentElement;
  const ground = luminance(getComputedStyle(element).backgroundColor);
  return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
}"""


def test_the_index_is_sorted_and_filtered_and_leads_to_pages(visit, scan):
    values = {"a": 0.5, "b": 0.25, "c": None, "d": 10.0}
    rows = [IndexRow(scan.name, name, site=f"site {name}", energy_after=value) for name, value in values.items()]
    index = scan.with_name("index.html")
    write_index(index, rows, "Scans")
    page = visit(index, viewport={"width": 360, "height": 640})
    names = lambda: [cell.inner_text() for cell in page.locator("tbody td:first-child").all() if cell.is_visible()]  # noqa: E731
    assert names() == ["a", "b", "c", "d"]
    page.click("text=Energy after")
    assert names() == ["b", "a", "d", "c"]
    page.click("text=Energy after")
    assert names() == ["d", "a", "b", "c"]
    assert page.get_attribute("th[aria-sort]", "aria-sort") == "descending"
    page.locator("button:has-text('Scan')").focus()
    page.keyboard.press("Enter")
    assert names() == ["a", "b", "c", "d"]
    page.fill("#filter", "SITE b")
    assert names() == ["b"]
    assert page.inner_text("#count") == "1 of 4 shown"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("new URL(document.querySelector('a').href).pathname") == scan.as_uri().removeprefix("file://")


def test_a_narrow_window_needs_no_scrolling_sideways(visit, scan):
    page = visit(scan, NO_WEBGL, viewport={"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
