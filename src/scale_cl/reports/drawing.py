"""From a chart's data to the geometry of an inline SVG: scales, ticks, lines, bands, marks; the template draws it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scale_cl.reports.charts import Chart, Heatmap, Series, cell_text

WIDTH, HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 42
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4")


@dataclass(frozen=True)
class Tick:
    """A place on an axis and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point: place, bar of one deviation, and what to say about it."""

    x: float
    y: float
    bar: tuple[float, float] | None
    hover: str


@dataclass(frozen=True)
class Stroke:
    """A series ready to draw."""

    label: str
    colour: int
    dash: str
    line: str  # path data; empty for single points
    band: str  # path data; empty without deviations
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Drawing:
    """A chart ready to draw."""

    chart: Chart
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    strokes: tuple[Stroke, ...]


@dataclass(frozen=True)
class Square:
    """A cell of a heat map; `strength` from 0 to 1 is its place on the scale."""

    x: float
    y: float
    strength: float
    text: str
    hover: str


@dataclass(frozen=True)
class Squares:
    """A heat map ready to draw."""

    heatmap: Heatmap
    size: float
    cell: float
    left: float
    squares: tuple[Square, ...]
    ticks: tuple[Tick, ...]


def draw(chart: Chart) -> Drawing:
    """Lay a chart out."""
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
        chart=chart,
        width=WIDTH,
        height=HEIGHT,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        x_ticks=tuple(x_ticks),
        y_ticks=tuple(Tick(y_at(y), f"{y:g}") for y in y_values if y_low <= y <= y_high),
        strokes=tuple(_stroke(chart, series, x_at, y_at, (left, right)) for series in chart.series),
    )


def draw_heatmap(heatmap: Heatmap) -> Squares:
    """Lay a heat map out."""
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


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round values that span `low` to `high`, about as many as wanted."""
    if high - low < 1e-9:
        low, high = low - 1.0, high + 1.0
    rough = (high - low) / (wanted - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(at * step, 10) for at in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 and their powers of ten between `low` and `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**power for power in powers for m in (1, 2, 5) if low <= m * 10.0**power <= high]


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
        return Stroke(series.label, series.colour, dash, f"M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}", "", (mark,))
    places = [(x_at(p.x), y_at(p.y)) for p in series.points]
    lines = chart.kind == "lines"
    bars = [None if p.deviation is None else (y_at(p.y - p.deviation), y_at(p.y + p.deviation)) for p in series.points]
    edges = [(x, *bar) for (x, _), bar in zip(places, bars, strict=True) if bar is not None]
    band = [(x, high) for x, _, high in edges] + [(x, low) for x, low, _ in reversed(edges)]
    return Stroke(
        label=series.label,
        colour=series.colour,
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
