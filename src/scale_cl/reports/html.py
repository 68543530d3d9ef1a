"""The report as one HTML page that needs nothing else: styles, script and figures are inside, all text is escaped."""

from __future__ import annotations

import base64
import hashlib

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import scale_cl
from scale_cl.reports.charts import charts, heatmaps
from scale_cl.reports.collection import Gap
from scale_cl.reports.drawing import draw, draw_heatmap
from scale_cl.reports.sections import Section
from scale_cl.reports.sources import Source
from scale_cl.reports.table import Table


def report_html(
    title: str,
    overview: Table | None,
    parts: list[tuple[Section, list[Table]]],
    sources: list[Source],
    gaps: list[Gap],
) -> str:
    """The whole of `report.html`."""
    environment = Environment(
        loader=PackageLoader("scale_cl.reports"),
        autoescape=True,  # everything: a name in a result file is anybody's text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _own(environment, "report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        title=title,
        version=scale_cl.__version__,
        style=Markup(_own(environment, "report.css")),
        script=Markup(script),
        script_digest=digest,
        overview=overview,
        gaps=gaps,
        sources=sources,
        seeds=sum(len(row.seeds) for section, _ in parts for row in section.rows),
        runs=sum(len(row.runs) for section, _ in parts for row in section.rows),
        parts=[
            {
                "section": section,
                "tables": tables,
                "drawings": [draw(chart) for chart in charts(section)],
                "heatmaps": [draw_heatmap(one) for one in heatmaps(section)],
            }
            for section, tables in parts
        ],
    )


def _own(environment: Environment, name: str) -> str:
    """A file of this package, as it is."""
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0]
