"""Tables as text: Markdown to read, LaTeX for a paper."""

import re
from collections.abc import Iterable, Sequence

from scantune.tables.base import Cell, Mark, Section, Table

TRIANGLES: dict[Mark, str] = {"better": "△", "surely better": "▲", "worse": "▽", "surely worse": "▼"}
LATEX_TRIANGLES: dict[Mark, str] = {
    "better": r"\triangle",
    "surely better": r"\blacktriangle",
    "worse": r"\triangledown",
    "surely worse": r"\blacktriangledown",
}

_MARKDOWN = re.compile(r"([\\|*<>`\[\]])")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "–": "--",  # noqa: RUF001
    "△": r"$\triangle$", "▲": r"$\blacktriangle$", "▽": r"$\triangledown$", "▼": r"$\blacktriangledown$",
}  # fmt: skip

DOCUMENT = r"""\documentclass[a4paper,landscape]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=1.5cm]{geometry}
\usepackage{amssymb}
\usepackage{graphicx}
\begin{document}
%s
\end{document}
"""
"""A document around tables; they need amssymb (the triangles) and graphicx (to fit the page)."""


def markdown(table: Table) -> str:
    """A table as GitHub and MkDocs show it, its caption below."""
    width = len(table.head)
    lines = [_line(_plain(name) for name in table.head), _line(["---"] * width)]
    if table.groups:
        lines.append(_line(["", *(_spread(table.groups))]))
    for section in table.sections:
        if section.title:
            lines.append(_line([f"*{_plain(section.title)}*", *[""] * (width - 1)]))
        lines += [_line([_plain(label), *map(_markdown_cell, cells)]) for label, cells in section.rows]
    caption = " ".join(_plain(sentence) for sentence in table.caption)
    return "\n".join([*lines, "", caption, ""] if caption else [*lines, ""])


def latex(name: str, table: Table) -> str:
    """A table as a `table` environment, labelled `tab:NAME`, as wide as the page at most."""
    width = len(table.head)
    body = [_row([_escaped(title) for title in table.head]), r"\hline"]
    if table.groups:
        spans = [rf"\multicolumn{{{count}}}{{c}}{{{_escaped(title)}}}" for title, count in table.groups]
        body += [_row(["", *spans]), r"\hline"]
    for section in table.sections:
        body += _latex_section(section, width)
    caption = " ".join(_escaped(sentence) for sentence in (f"{table.title}.", *table.caption))
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{l{_alignment(table)}}}",
            r"\hline",
            *body,
            r"\end{tabular}}",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{name}}}",
            r"\end{table}",
            "",
        ]
    )


def _latex_section(section: Section, width: int) -> list[str]:
    title = [rf"\multicolumn{{{width}}}{{c}}{{\textit{{{_escaped(section.title)}}}}} \\"] if section.title else []
    rows = [_row([_escaped(label), *map(_latex_cell, cells)]) for label, cells in section.rows]
    return [*title, *rows, r"\hline"]


def _alignment(table: Table) -> str:
    if not table.groups:
        return "r" * (len(table.head) - 1)
    return "".join("|" + "c" * count for _, count in table.groups)


def _markdown_cell(cell: Cell) -> str:
    number = f"**{_plain(cell.text)}**" if cell.bold else _plain(cell.text)
    note = f" ({_plain(cell.note)})" if cell.note else ""
    return f"{number}{TRIANGLES.get(cell.mark, '')}{note}"


def _latex_cell(cell: Cell) -> str:
    number = rf"\textbf{{{_escaped(cell.text)}}}" if cell.bold else _escaped(cell.text)
    triangle = f"$^{LATEX_TRIANGLES[cell.mark]}$" if cell.mark else ""
    note = f" ({_escaped(cell.note)})" if cell.note else ""
    return f"{number}{triangle}{note}"


def _spread(groups: Sequence[tuple[str, int]]) -> list[str]:
    """Titles of groups in the first of their columns."""
    return [text for title, count in groups for text in (f"**{_plain(title)}**", *[""] * (count - 1))]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _plain(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
