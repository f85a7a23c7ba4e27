"""The diagrams of the documentation: the method, the path of a scan, and the policy of the guard.

python scripts/diagrams.py     writes docs/figures/diagram-*.svg

Each follows the reader's choice of light or dark, and stands on a panel of its own, so that it can be read on any page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "figures"

STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-size: 14px; }
.panel { fill: #ffffff; stroke: #d8dee4; } text { fill: #1f2328; } .small { font-size: 12px; fill: #59636e; }
.plain { fill: #f6f8fa; stroke: #afb8c1; } .moves { fill: #ddf4ff; stroke: #0969da; } .frozen { fill: #eff1f3; stroke: #818b98; }
.good { fill: #dafbe1; stroke: #1a7f37; } .bad { fill: #ffebe9; stroke: #cf222e; } .ask { fill: #fff8c5; stroke: #9a6700; }
.group { fill: none; stroke: #afb8c1; stroke-dasharray: 5 4; } .line { fill: none; stroke: #59636e; stroke-width: 1.5; }
.back { fill: none; stroke: #0969da; stroke-width: 1.5; stroke-dasharray: 6 4; } .head { fill: #59636e; } .backhead { fill: #0969da; }
@media (prefers-color-scheme: dark) {
.panel { fill: #0d1117; stroke: #3d444d; } text { fill: #f0f6fc; } .small { fill: #9198a1; }
.plain { fill: #151b23; stroke: #656c76; } .moves { fill: #12263f; stroke: #4493f8; } .frozen { fill: #212830; stroke: #818b98; }
.good { fill: #12261e; stroke: #3fb950; } .bad { fill: #2d1619; stroke: #f85149; } .ask { fill: #272115; stroke: #d29922; }
.group { stroke: #656c76; } .line { stroke: #9198a1; } .back { stroke: #4493f8; } .head { fill: #9198a1; } .backhead { fill: #4493f8; }
}
"""  # noqa: E501

OUTPUTS = ("segmentations, manifest, tables, page", "NAME_seg.nii.gz, manifest.json, NAME_page.html")

LINE = 18
"""Pixels between two lines of text."""


@dataclass(frozen=True)
class Box:
    """A box with text, whose first line is in the middle.

    Args:
        x: Left edge.
        y: Upper edge.
        width: Width.
        height: Height.
        text: A line of text, and smaller ones below it.
        kind: What it stands for, a class of the style.
        round: Radius of its corners.
    """

    x: int
    y: int
    width: int
    height: int
    text: tuple[str, ...]
    kind: str = "plain"
    round: int = 8

    def svg(self) -> str:
        """The box as SVG."""
        shape = (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" '
            f'rx="{self.round}"/>'
        )
        middle = self.y + self.height / 2 - (len(self.text) - 1) * LINE / 2 + 5
        lines = [
            words(self.x + self.width / 2, middle + LINE * number, line, "middle", small=number > 0)
            for number, line in enumerate(self.text)
        ]
        return "\n".join([shape, *lines])


def words(x: float, y: float, text: str, anchor: str = "start", small: bool = True) -> str:
    """A line of text as SVG."""
    size = ' class="small"' if small else ""
    return f'<text{size} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def arrow(*points: tuple[int, int], kind: str = "line") -> str:
    """A line through points, with a head at its end."""
    path = "M" + " L".join(f"{x} {y}" for x, y in points)
    return f'<path class="{kind}" d="{path}" marker-end="url(#{"backhead" if kind == "back" else "head"})"/>'


def drawing(width: int, height: int, title: str, description: str, parts: Sequence[str | Box]) -> str:
    """A whole SVG file."""
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path class="{name}" d="M0 0 L10 5 L0 10 z"/></marker>'
        for name in ("head", "backhead")
    )
    body = "\n".join(part.svg() if isinstance(part, Box) else part for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title description">\n<title id="title">{escape(title)}</title>\n'
        f'<desc id="description">{escape(description)}</desc>\n<style>{STYLE}</style>\n<defs>{heads}</defs>\n'
        f'<rect class="panel" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="12"/>\n{body}\n</svg>\n'
    )


def method() -> str:
    """From the training site to the adaptation of a scan."""
    return drawing(
        860,
        400,
        "The method",
        "At the training site, the features of the training scans become a prior. At the new site, the features of one "
        "scan are compared with the prior, and the normaliser is tuned until they match.",
        [
            '<rect class="group" x="20" y="44" width="820" height="126" rx="12"/>',
            words(32, 34, "At the training site, once"),
            Box(44, 76, 130, 62, ("training scans", "labelled")),
            arrow((174, 107), (216, 107)),
            Box(218, 76, 130, 62, ("normaliser", "trained"), "frozen"),
            arrow((348, 107), (380, 107)),
            Box(382, 76, 130, 62, ("task network", "trained"), "frozen"),
            arrow((512, 107), (596, 107)),
            words(554, 96, "features", "middle"),
            Box(598, 66, 220, 82, ("prior", "one density for each expert", "and training subject; no images"), "good"),
            '<rect class="group" x="20" y="212" width="820" height="168" rx="12"/>',
            words(32, 202, "At the new site, for every scan, without labels"),
            Box(44, 240, 130, 62, ("a new scan", "other scanner")),
            arrow((174, 271), (216, 271)),
            Box(218, 240, 130, 62, ("normaliser", "is tuned"), "moves"),
            arrow((348, 271), (380, 271)),
            Box(382, 240, 130, 62, ("task network", "frozen"), "frozen"),
            arrow((512, 271), (596, 271)),
            words(554, 260, "features", "middle"),
            Box(598, 230, 220, 82, ("energy", "divergence of the scan's densities", "from those of the prior"), "ask"),
            arrow((708, 148), (708, 228)),
            arrow((708, 312), (708, 352), (283, 352), (283, 304), kind="back"),
            words(495, 345, "steps that lower the energy", "middle"),
            arrow((447, 302), (447, 324), (400, 324)),
            words(396, 328, "segmentation", "end"),
        ],
    )


def path_of_a_scan() -> str:
    """From a file to the files of its result, with the folders of the code."""
    steps = [
        (("file", "NIfTI, DICOM, ..."), "plain", "scans/"),
        (("Case", "voxels, own grid"), "plain", "scans/"),
        (("Prepared", "as trained"), "plain", "backends/"),
        (("Volume", "on a device"), "plain", "scans/"),
    ]
    parts: list[str | Box] = []
    for number, (text, kind, folder) in enumerate(steps):
        x = 30 + 205 * number
        parts.append(Box(x, 40, 160, 62, text, kind))
        parts.append(words(x + 80, 120, folder, "middle"))
        if number:
            parts.append(arrow((x - 45, 71), (x - 2, 71)))
    lower = [
        (("predict", "source network"), "plain", "adaptation/prediction.py"),
        (("assess", "fine, doubtful, failed"), "ask", "prior/assessment.py"),
        (("adapt", "the one loop"), "moves", "adaptation/loop.py"),
        (("decide", "keep or not"), "ask", "adaptation/guard/"),
    ]
    for number, (text, kind, folder) in enumerate(lower):
        x = 645 - 205 * number
        parts.append(Box(x, 178, 160, 62, text, kind))
        parts.append(words(x + 80, 258, folder, "middle"))
        if number:
            parts.append(arrow((x + 205, 209), (x + 162, 209)))
    parts += [
        arrow((725, 126), (725, 176)),
        arrow((520, 178), (520, 154), (110, 154), (110, 176)),
        words(315, 148, "fine: nothing to adapt", "middle"),
        arrow((110, 264), (110, 306)),
        Box(30, 308, 160, 62, ("Result", "labels, network, trace")),
        words(110, 388, "adaptation/result.py", "middle"),
        arrow((190, 339), (233, 339)),
        Box(235, 308, 160, 62, ("own grid", "the way back")),
        words(315, 388, "backends/", "middle"),
        arrow((395, 339), (438, 339)),
        Box(
            440,
            308,
            365,
            62,
            ("segmentations, manifest, tables, page", "NAME_seg.nii.gz, manifest.json, NAME_page.html"),
            "good",
        ),
        words(622, 388, "scans/, adaptation/output_folder.py, pages/", "middle"),
    ]
    return drawing(
        860,
        408,
        "The path of a scan",
        "A file becomes a Case, a Prepared and a Volume. The source network predicts, the prediction is assessed, the "
        "network is adapted unless the prediction is fine, the guard decides, and the result is written on the scan's "
        "own grid.",
        parts,
    )


def policy() -> str:
    """What the guard asks, and the three decisions."""
    return drawing(
        860,
        438,
        "The policy of the guard",
        "A fine prediction is left alone. Any other scan is adapted. If no stage is expected to be better by enough, "
        "or if a scan had failed and is still not fine, it is unsolved. Otherwise it is adapted.",
        [
            Box(30, 30, 200, 62, ("source prediction", "by the trained network")),
            arrow((230, 61), (298, 61)),
            Box(300, 30, 250, 62, ("Is it fine?", "sizes, steadiness, contacts"), "ask"),
            arrow((550, 61), (598, 61)),
            words(574, 54, "yes", "middle"),
            Box(600, 30, 230, 62, ("left alone", "the source prediction"), "good"),
            arrow((425, 92), (425, 130)),
            words(436, 116, "no: doubtful or failed"),
            Box(300, 132, 250, 62, ("adapt", "from the scan as it is, or inverted"), "moves"),
            arrow((425, 194), (425, 232)),
            Box(300, 234, 250, 62, ("Is a stage on the way better?", "by enough than the source prediction"), "ask"),
            arrow((550, 265), (598, 265)),
            words(574, 258, "no", "middle"),
            Box(600, 234, 230, 62, ("unsolved", "the source prediction"), "bad"),
            arrow((425, 296), (425, 334)),
            words(436, 320, "yes"),
            Box(300, 336, 250, 62, ("Failed, and still not fine?", "before, and after adapting"), "ask"),
            arrow((550, 367), (598, 367)),
            words(574, 360, "yes", "middle"),
            Box(600, 336, 230, 72, ("unsolved", "the adapted prediction,", "with no expected Dice"), "bad"),
            arrow((300, 367), (232, 367)),
            words(266, 360, "no", "middle"),
            Box(30, 336, 200, 62, ("adapted", "the adapted prediction"), "good"),
        ],
    )


DIAGRAMS = {"method": method, "path": path_of_a_scan, "policy": policy}
"""The diagrams by name."""

if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"diagram-{name}.svg").write_text(draw(), encoding="utf-8")
