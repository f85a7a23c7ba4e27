"""Tables as text: Markdown to read, LaTeX for a paper."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from scantune.report.tables.base import Cell, Mark, ReportTable, Section

LINES_PER_PAGE = 34
"""The most lines of one LaTeX table, so that it fits on a page with its caption; a longer one is continued."""

TRIANGLES: dict[Mark, str] = {"better": "△", "surely better": "▲", "worse": "▽", "surely worse": "▼"}
LATEX_TRIANGLES: dict[Mark, str] = {
    "better": r"\triangle",
    "surely better": r"\blacktriangle",
    "worse": r"\triangledown",
    "surely worse": r"\blacktriangledown",
}

_MARKDOWN = re.compile(r"([\\|*<>`\[\]])")
# Brackets and stars would be taken for the argument of the line break before them.
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"\textbar{}",
    "–": r"\textendash{}", "[": "{[}", "*": "{*}",  # noqa: RUF001
    "△": r"$\triangle$", "▲": r"$\blacktriangle$", "▽": r"$\triangledown$", "▼": r"$\blacktriangledown$",
}  # fmt: skip
_LIGATURES = re.compile(r"(?<=([-,'`?!]))(?=\1)")
_STRUT = r"\rule{0pt}{2.6ex}"  # air below a rule

LATEX_DOCUMENT = r"""\documentclass[a4paper,landscape]{article}
\usepackage{iftex}
\ifPDFTeX
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\fi
\usepackage[margin=1.5cm]{geometry}
\usepackage{amssymb}
\usepackage{graphicx}
\begin{document}
%s
\end{document}
"""
"""A document around tables; they need amssymb (the triangles) and graphicx (to fit the page)."""


def markdown(table: ReportTable) -> str:
    """Return a table in Markdown for GitHub and MkDocs, with its caption below."""
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


def latex(name: str, table: ReportTable) -> str:
    """Return a table as a `table` environment labelled `tab:NAME`, at most as wide as the page.

    One that is longer than a page becomes several environments under one number.
    """
    first, *others = _parts(table)
    caption = " ".join(map(_sentence, (f"{table.title}.", *table.caption)))
    floats = [_float(first, [rf"\caption{{{caption}}}", rf"\label{{tab:{name}}}"])]
    again = [r"\addtocounter{table}{-1}", rf"\caption{{{_escaped(table.title)} (continued).}}"]
    return "\n".join([*floats, *(_float(part, again) for part in others)])


def _parts(table: ReportTable) -> Iterator[ReportTable]:
    """Yield the table, or parts that fit on a page each. A section that fits on a page is not split."""
    part: list[Section] = []
    left = LINES_PER_PAGE
    for section in (short for whole in table.sections for short in _short(whole)):
        lines = len(section.rows) + bool(section.title)
        if part and lines > left:
            yield replace(table, sections=tuple(part))
            part, left = [], LINES_PER_PAGE
        part.append(section)
        left -= lines
    yield replace(table, sections=tuple(part))


def _short(section: Section) -> Iterator[Section]:
    most = LINES_PER_PAGE - 1
    for first in range(0, len(section.rows), most):
        yield replace(section, rows=section.rows[first : first + most])


def _float(table: ReportTable, below: Sequence[str]) -> str:
    body = [*_latex_head(table), r"\hline"]
    for section in table.sections:
        body += [*_latex_section(section, len(table.head)), r"\hline"]
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{l{_alignment(table)}}}",
            r"\hline",
            *body,
            r"\end{tabular}}",
            *below,
            r"\end{table}",
            "",
        ]
    )


def _latex_head(table: ReportTable) -> list[str]:
    """Return the names of the columns under the titles of their groups."""
    names = [_escaped(name) for name in table.head]
    if not table.groups:
        return [_row([_STRUT + names[0], *names[1:]])]
    titles, rules, first = [], [], 2
    for title, count in table.groups:
        # Lines of their own, so that a long title over a single column does not make it wide.
        lines = re.split(r"\n|(?<=,) | (?=\()", title.replace(", ", "\n", 1))
        stack = r"\\".join(map(_escaped, lines))
        titles.append(rf"\multicolumn{{{count}}}{{c}}{{\shortstack{{{_STRUT}{stack}}}}}")
        rules.append(rf"\cline{{{first}-{first + count - 1}}}")
        first += count
    return [_row(["", *titles]), "".join(rules), _row([_STRUT + names[0], *names[1:]])]


def _latex_section(section: Section, width: int) -> list[str]:
    title = [rf"\multicolumn{{{width}}}{{l}}{{{_STRUT}\textit{{{_escaped(section.title)}}}}} \\"]
    rows = [[_escaped(label), *map(_latex_cell, cells)] for label, cells in section.rows]
    if not section.title:
        title, rows[0][0] = [], _STRUT + rows[0][0]
    return [*title, *map(_row, rows)]


def _alignment(table: ReportTable) -> str:
    if not table.groups:
        return "r" * (len(table.head) - 1)
    return "".join(r"@{\hspace{1.5em}}" + "c" * count for _, count in table.groups)


def _markdown_cell(cell: Cell) -> str:
    number = f"**{_plain(cell.text)}**" if cell.bold else _plain(cell.text)
    note = f" ({_plain(cell.note)})" if cell.note else ""
    return f"{number}{TRIANGLES.get(cell.mark, '')}{note}"


def _latex_cell(cell: Cell) -> str:
    number = rf"\textbf{{{_escaped(cell.text)}}}" if cell.bold else _sentence(cell.text)
    if not cell.mark:
        return f"{number} ({_escaped(cell.note)})" if cell.note else number
    triangle = f"$^{LATEX_TRIANGLES[cell.mark]}$"
    # Without a width of their own, triangles do not push the numbers of a column out of line.
    return f"{number}{triangle} ({_escaped(cell.note)})" if cell.note else rf"{number}\rlap{{{triangle}}}"


def _spread(groups: Sequence[tuple[str, int]]) -> list[str]:
    """Return the titles of groups in the first of their columns."""
    return [text for title, count in groups for text in (f"**{_plain(title)}**", *[""] * (count - 1))]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _plain(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _escaped(text: str) -> str:
    """Return a name with special characters escaped."""
    apart = _LIGATURES.sub("\0", " ".join(text.split()))
    return "".join(_LATEX.get(character, character) for character in apart).replace("\0", "{}")


def _sentence(text: str) -> str:
    """Return escaped text with minus signs and powers of ten as mathematics."""
    signed = re.sub(r"(?<![\w.-])([+-])(?=\d)", r"$\1$", _escaped(text))
    return re.sub(r"(?<![\w.])(\d+)e-(\d+)(?!\w)", r"$\1\\cdot10^{-\2}$", signed)
