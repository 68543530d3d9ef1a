"""Writing a report: `report.html`, `tables.md`, `tables.tex` and `figures/`, each file whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scale_cl import files
from scale_cl.errors import OutputInUseError
from scale_cl.reports import latex, markdown, plots
from scale_cl.reports.charts import charts, heatmaps
from scale_cl.reports.collection import Collection, Gap
from scale_cl.reports.html import report_html
from scale_cl.reports.naming import distinct
from scale_cl.reports.sections import Section, sections
from scale_cl.reports.sources import source
from scale_cl.reports.tables import overview_table, tables

FIGURES = "figures"
_MADE_HERE = ".made-by-scale-cl"  # names of our figures, so that a later report removes those it has no data for


@dataclass(frozen=True)
class Written:
    """What a report consists of, and what it could not show."""

    page: Path
    files: tuple[Path, ...]
    gaps: tuple[Gap, ...]


def write_report(collection: Collection, out: Path) -> Written:
    """Write the report of a collection to a directory, over an earlier one if there is one."""
    parts = sections(collection)
    gaps = [*collection.gaps, *(gap for section in parts for gap in section.gaps)]
    tabled = [(section, tables(section)) for section in parts]
    sources = [source(section, row) for section in parts for row in section.rows]
    overview = overview_table(parts)
    texts = {
        "tables.md": markdown.tables_md(collection.title, overview, tabled, sources, gaps),
        "tables.tex": latex.tables_tex(overview, tabled),
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


def figures(parts: list[Section]) -> dict[str, bytes]:
    """Every figure in every format, by file name."""
    made: list[tuple[str, dict[str, bytes]]] = []
    for section in parts:
        made += [(f"{section.key}-{chart.key}", plots.plot(chart)) for chart in charts(section)]
        made += [(f"{section.key}-{one.key}", plots.plot_heatmap(one)) for one in heatmaps(section)]
    names = distinct(name for name, _ in made)
    return {
        f"{name}.{kind}": data for name, (_, saved) in zip(names, made, strict=True) for kind, data in saved.items()
    }


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
