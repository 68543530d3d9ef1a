"""The report as one self-contained HTML page: styles, script and figures are inline, and all text is escaped.

The figures are SVG laid out here and drawn by `templates/figures.svg.j2`: values on hover, series highlighted from the
legend, colours that follow the light or dark scheme. matplotlib's figures (`plots`) have none of that.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import scale_cl
from scale_cl.errors import printable
from scale_cl.reports.charts import Chart, Heatmap, Series, cell_text, charts, heatmaps, log_ticks
from scale_cl.reports.collection import Gap, Run
from scale_cl.reports.sections import ResultRow, Section, device, is_alone
from scale_cl.reports.table import Table

WIDTH, HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 42
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4")
_UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Provenance:
    """The files, commands, versions and devices behind the numbers of one row."""

    anchor: str
    title: str
    facts: tuple[tuple[str, str], ...]
    seeds: tuple[tuple[str, ...], ...]  # seed, ACC, FM, LA, BWT, seconds of training, seconds of testing
    config: str


def provenance(section: Section, row: ResultRow) -> Provenance:
    """The provenance of a row."""
    facts: list[tuple[str, str]] = []
    for run in row.sources:
        facts += _facts(run)
    config = json.dumps(row.seeds[0].config, indent=2, ensure_ascii=False)
    seeds = tuple(
        (
            str(seed.seed),
            *("–" if v is None else f"{v:.4f}" for v in (seed.acc, seed.fm, seed.la, seed.bwt)),
            f"{seed.seconds_train:.1f}",
            f"{seed.seconds_eval:.1f}",
        )
        for seed in row.seeds
    )
    return Provenance(row.anchor, f"{row.label} on {section.title}", tuple(facts), seeds, config)


def _facts(run: Run) -> list[tuple[str, str]]:
    made = run.result.environment
    versions = [f"{name} {made[name]}" for name in ("scale_cl", "python", "torch", "numpy") if made.get(name)]
    revision = str(made.get("git_revision") or _UNKNOWN)
    if made.get("git_changed"):
        revision += ", with uncommitted changes"
    where = device(run) + (f" ({made['device']})" if made.get("device") else "")
    if made.get("threads"):
        where += f", threads: {made['threads']}"
    facts = [
        ("File", run.name),
        ("Seeds", ", ".join(str(seed.seed) for seed in run.result.seeds)),
        ("Command", str(made.get("command") or _UNKNOWN)),
        ("Versions", ", ".join(versions) or _UNKNOWN),
        ("Revision", revision),
        ("Device", where),
        ("Platform", str(made.get("platform") or _UNKNOWN)),
        ("Whole run", f"{run.result.seconds_wall:.1f} s"),
        ("Beside it", "nothing: its times count" if is_alone(run) else "perhaps other runs"),
    ]
    return [(name, printable(value)) for name, value in facts]


def report_html(
    title: str,
    overview: Table | None,
    parts: list[tuple[Section, list[Table]]],
    sources: list[Provenance],
    gaps: list[Gap],
) -> str:
    """The content of `report.html`."""
    environment = Environment(
        loader=PackageLoader("scale_cl.reports"),
        autoescape=True,  # names in result files are untrusted text
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
    """A template file of this package, verbatim."""
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0]


@dataclass(frozen=True)
class Tick:
    """A position on an axis and its label."""

    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point: position, error bar of one deviation, and hover text."""

    x: float
    y: float
    bar: tuple[float, float] | None
    hover: str


@dataclass(frozen=True)
class Stroke:
    """The geometry of a series."""

    series: Series
    dash: str
    line: str  # path data; empty for single points
    band: str  # path data; empty without deviations
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Drawing:
    """The geometry of a chart."""

    chart: Chart
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    strokes: tuple[Stroke, ...]
    boundaries: tuple[float, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True)
class Square:
    """A cell of a heat map; `strength` is its position on the colour scale, 0 to 1."""

    x: float
    y: float
    strength: float
    text: str
    hover: str


@dataclass(frozen=True)
class Squares:
    """The geometry of a heat map."""

    heatmap: Heatmap
    size: float
    cell: float
    left: float
    squares: tuple[Square, ...]
    ticks: tuple[Tick, ...]


def draw(chart: Chart) -> Drawing:
    """Lay out a chart."""
    left, right, top, bottom = _LEFT, WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM
    x_low, x_high = _x_range(chart)
    ys = [p.y + sign * (p.deviation or 0.0) for s in chart.series for p in s.points for sign in (-1, 1)]
    y_values = ticks(min(ys), max(ys))
    room = 0.04 * (max(ys) - min(ys)) or 1.0
    y_low, y_high = min(ys) - room, max(ys) + room
    across = math.log10 if chart.log_x else float

    def x_at(x: float) -> float:
        return left + (across(x) - across(x_low)) / (across(x_high) - across(x_low)) * (right - left)

    def y_at(y: float) -> float:
        return bottom - (y - y_low) / (y_high - y_low) * (bottom - top)

    if chart.x_ticks:
        x_ticks = [Tick(x_at(x), text) for x, text in chart.x_ticks]
    else:
        places = log_ticks(x_low, x_high) if chart.log_x else ticks(x_low, x_high)
        x_ticks = [Tick(x_at(x), f"{x:g}") for x in places if x_low <= x <= x_high]
    return Drawing(
        chart,
        *(left, right, top, bottom),
        x_ticks=tuple(x_ticks),
        y_ticks=tuple(Tick(y_at(y), f"{y:g}") for y in y_values if y_low <= y <= y_high),
        strokes=tuple(_stroke(chart, series, x_at, y_at, (left, right)) for series in chart.series),
        boundaries=tuple(map(x_at, chart.boundaries)),
    )


def draw_heatmap(heatmap: Heatmap) -> Squares:
    """Lay out a heat map."""
    count = len(heatmap.tasks)
    left, size = 24.0, 260.0
    cell = (size - left) / count
    spread = (heatmap.high - heatmap.low) or 1.0
    squares = [
        Square(
            x=left + task * cell,
            y=after * cell,
            strength=(value - heatmap.low) / spread,
            text=f"{value:.0f}" if count <= 10 else "",
            hover=cell_text(heatmap, after, task),
        )
        for after, row in enumerate(heatmap.values)
        for task, value in enumerate(row)
        if value is not None
    ]
    every = 1 if count <= 10 else math.ceil(count / 10)
    marks = tuple(Tick((task + 0.5) * cell, str(task + 1)) for task in range(0, count, every))
    return Squares(heatmap, size, cell, left, tuple(squares), marks)


def ticks(low: float, high: float) -> list[float]:
    """About six round values that span `low` to `high`."""
    if high - low < 1e-9:
        low, high = low - 1.0, high + 1.0
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(at * step, 10) for at in range(first, last + 1)]


def _x_range(chart: Chart) -> tuple[float, float]:
    xs = [x for x, _ in chart.x_ticks] + [p.x for s in chart.series if not s.level for p in s.points]
    low, high = min(xs), max(xs)
    if chart.log_x:
        return low / 1.25, high * 1.25
    margin = (high - low) * 0.06 if chart.kind == "points" else (high - low) * 0.02
    return (low - margin, high + margin) if high > low else (low - 0.5, high + 0.5)


def _stroke(
    chart: Chart,
    series: Series,
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
    ends: tuple[float, float],
) -> Stroke:
    dash = DASHES[(series.dash + series.level) % len(DASHES)]
    if series.level:
        point = series.points[0]
        y = y_at(point.y)
        mark = Mark(ends[1] - 4, y, None, point.hover)
        return Stroke(series, dash, f"M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}", "", (mark,))
    places = [(x_at(p.x), y_at(p.y)) for p in series.points]
    lines = chart.kind != "points"
    bars = [None if p.deviation is None else (y_at(p.y - p.deviation), y_at(p.y + p.deviation)) for p in series.points]
    edges = [(x, *bar) for (x, _), bar in zip(places, bars, strict=True) if bar is not None]
    band = [(x, high) for x, _, high in edges] + [(x, low) for x, low, _ in reversed(edges)]
    return Stroke(
        series,
        dash=dash,
        line=_path(places) if lines and len(places) > 1 else "",
        band=_path(band) + "Z" if lines and len(edges) > 1 else "",
        marks=tuple(
            Mark(x, y, bar if not lines else None, point.hover)
            for (x, y), bar, point in zip(places, bars, series.points, strict=True)
        ),
    )


def _path(places: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
