"""Write a report: `report.html`, `tables.md`, `tables.tex` and `figures/`; each file is written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scale_cl import files
from scale_cl.errors import OutputInUseError
from scale_cl.reports import plots
from scale_cl.reports.charts import charts, heatmaps
from scale_cl.reports.collection import Collection, Gap, distinct
from scale_cl.reports.html import Provenance, provenance, report_html
from scale_cl.reports.sections import Section, sections
from scale_cl.reports.table import Table, latex_table, markdown_escape, markdown_lines
from scale_cl.reports.tables import overview_table, tables

FIGURES = "figures"
_MADE_HERE = ".made-by-scale-cl"  # lists our figures, so that a later report removes those it has no data for
_LATEX_HEAD = r"""% Made by scale-cl report. In the preamble: \usepackage{booktabs,graphicx}
"""


@dataclass(frozen=True)
class Written:
    """The files of a report, and the gaps in it."""

    page: Path
    files: tuple[Path, ...]
    gaps: tuple[Gap, ...]


def write_report(collection: Collection, out: Path) -> Written:
    """Write the report of a collection into the directory `out`; an earlier report there is replaced."""
    parts = sections(collection)
    gaps = [*collection.gaps, *(gap for section in parts for gap in section.gaps)]
    tabled = [(section, tables(section)) for section in parts]
    sources = [provenance(section, row) for section in parts for row in section.rows]
    overview = overview_table(parts)
    texts = {
        "tables.md": tables_md(collection.title, overview, tabled, sources, gaps),
        "tables.tex": tables_tex(overview, tabled),
        "report.html": report_html(collection.title, overview, tabled, sources, gaps),
    }
    pictures = figures(parts)
    try:
        written = _write_figures(out / FIGURES, pictures)
        for name, text in texts.items():
            files.write_text(out / name, text)
            written.append(out / name)
    except OSError as error:
        raise OutputInUseError(f"{out} cannot be written to: {error.strerror}; choose another --out") from None
    return Written(out / "report.html", tuple(written), tuple(gaps))


def tables_md(
    title: str,
    overview: Table | None,
    parts: list[tuple[Section, list[Table]]],
    sources: list[Provenance],
    gaps: list[Gap],
) -> str:
    """The content of `tables.md`."""
    lines = [f"# Results: {markdown_escape(title)}", ""]
    if gaps:
        lines += ["## Gaps", "", *(f"- {markdown_escape(gap.name)}: {markdown_escape(gap.reason)}" for gap in gaps), ""]
    if overview is not None:
        title, note = markdown_escape(overview.title), markdown_escape(overview.note)
        lines += [f"## {title}", "", *markdown_lines(overview), "", note, ""]
    for section, made in parts:
        lines += [f"## {markdown_escape(section.title)}", ""]
        for table in made:
            lines += [f"### {markdown_escape(table.title)}", "", *markdown_lines(table), ""]
            if table.note:
                lines += [markdown_escape(table.note), ""]
    lines += ["## Provenance", ""]
    for source in sources:
        lines.append(f"- {markdown_escape(source.title)}")
        lines += [f"  - {markdown_escape(name)}: {markdown_escape(value)}" for name, value in source.facts]
    return "\n".join(lines).rstrip() + "\n"


def tables_tex(overview: Table | None, parts: list[tuple[Section, list[Table]]]) -> str:
    """The content of `tables.tex`."""
    made = [latex_table(table, f": {section.title}", section.key) for section, tables in parts for table in tables]
    if overview is not None:
        made.insert(0, latex_table(overview, "", "all"))
    return _LATEX_HEAD + "\n".join(made)


def figures(parts: list[Section]) -> dict[str, bytes]:
    """All figures in all formats, by file name."""
    made: list[tuple[str, dict[str, bytes]]] = []
    for section in parts:
        made += [(f"{section.key}-{chart.key}", plots.plot(chart)) for chart in charts(section)]
        made += [(f"{section.key}-{one.key}", plots.plot_heatmap(one)) for one in heatmaps(section)]
    named = zip(distinct(name for name, _ in made), made, strict=True)
    return {f"{name}.{kind}": data for name, (_, saved) in named for kind, data in saved.items()}


def _write_figures(folder: Path, pictures: dict[str, bytes]) -> list[Path]:
    listing = folder / _MADE_HERE
    earlier = listing.read_text("utf-8", "replace").splitlines() if listing.is_file() else []
    if pictures or earlier:
        files.write_text(listing, "".join(f"{name}\n" for name in sorted({*pictures, *earlier})))
    for name, data in pictures.items():
        files.write_bytes(folder / name, data)
    for name in earlier:
        if name not in pictures and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    if pictures or earlier:
        files.write_text(listing, "".join(f"{name}\n" for name in pictures))
    return [folder / name for name in pictures]
