"""Tables as LaTeX with booktabs: best in bold, deviations behind ±; each fits into a document by itself."""

from __future__ import annotations

import re

from scale_cl.reports.sections import Section
from scale_cl.reports.table import Cell, Table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "λ": r"$\lambda$",
    "–": "--",
}
_HEAD = r"""% Made by scale-cl report. In the preamble: \usepackage{booktabs,graphicx}
"""


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; characters that a plain LaTeX may lack become a question mark."""
    plain = "".join(_SPECIAL.get(c, c if c.isascii() and c.isprintable() else "?") for c in " ".join(text.split()))
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", plain)


def tables_tex(overview: Table | None, parts: list[tuple[Section, list[Table]]]) -> str:
    """The whole of `tables.tex`."""
    made = [_table(table, f": {section.title}", section.key) for section, tables in parts for table in tables]
    if overview is not None:
        made.insert(0, _table(overview, "", "all"))
    return _HEAD + "\n".join(made)


def _table(table: Table, of: str, key: str) -> str:
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    body = [
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{escape(table.title + of)}. {escape(table.note)}}}".replace(". }", ".}"),
        rf"  \label{{tab:{key}-{table.key}}}",
        r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {_line([escape(column.title) for column in table.columns])}",
        r"    \midrule",
        *(f"    {_line([_cell(cell) for cell in row])}" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(body)


def _cell(cell: Cell) -> str:
    mean, plus_minus, deviation = cell.text.partition(" ± ")
    shown = rf"\textbf{{{escape(mean)}}}" if cell.best else escape(mean)
    return rf"{shown} {{\scriptsize $\pm$ {escape(deviation)}}}" if plus_minus else shown


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
