"""Figures for a paper, by matplotlib: one column wide, fonts embedded, readable in black and white."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scale_cl.reports.charts import Chart, Heatmap, log_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg")
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#555555", "#8C564B", "#7B61C9", "#00868B"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "X", "<", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (9, 3)))
_STYLE: dict[Any, Any] = {
    "font.family": "serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.3,
    "grid.alpha": 0.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "lines.markersize": 3,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "scale-cl",  # equal figures give equal files
    "axes.unicode_minus": True,
}
_LINE = 72  # characters in a row of the legend at most, including room for its lines
_LONGEST = 56  # characters in one label
_WIDTH = 3.4  # inches of a chart
_LEGEND = 72 * _WIDTH - 6  # points that a legend may take
_HANDLE, _PAD, _SPACING, _BORDER = 2.2, 0.8, 1.0, 0.4  # of a legend: its lines and the space around, in font sizes
_NO_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}


def plot(chart: Chart) -> dict[str, bytes]:
    """The chart in all formats; a legend of many rows makes it taller."""
    with _style():
        labels, columns, rows = _legend(chart)
        return _saved(lambda figure: _draw(chart, figure, labels, columns), (_WIDTH, 2.4 + 0.13 * max(0, rows - 2)))


def _legend(chart: Chart) -> tuple[list[str], int, int]:
    """Wrapped labels, columns and rows of the legend: the layout with the fewest rows that fits."""
    labels = [literal(series.label) for series in chart.series]
    forms = []
    for columns in range(1, min(4, len(labels)) + 1):
        width = min(_LINE // columns - 7, _LONGEST)
        lines = [textwrap.wrap(x, width, subsequent_indent="  ", break_on_hyphens=False) for x in labels]
        if columns > 1 and any(len(word) + 2 > width for x in labels for word in x.split()):
            break  # a word would be split
        high = -(-len(labels) // columns)
        stacks = [lines[at : at + high] for at in range(0, len(labels), high)]  # columns are filled one after another
        if columns > 1 and _points_wide(stacks) > _LEGEND:
            continue
        rows = max(sum(map(len, stack)) for stack in stacks)
        forms.append((rows, columns, ["\n".join(x) for x in lines]))
    rows, columns, wrapped = min(forms)
    return wrapped, columns, rows


def _points_wide(stacks: list[list[list[str]]]) -> float:
    """The width of a legend with these columns of wrapped labels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=_STYLE["font.family"], size=_STYLE["legend.fontsize"])

    def wide(text: str) -> float:
        return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])

    texts = sum(max(wide(line) for lines in stack for line in lines) for stack in stacks)
    between = len(stacks) * (_HANDLE + _PAD) + (len(stacks) - 1) * _SPACING + 2 * _BORDER
    return texts + between * float(_STYLE["legend.fontsize"])


def plot_heatmap(heatmap: Heatmap) -> dict[str, bytes]:
    """The heat map in all formats."""
    with _style():
        return _saved(lambda figure: _draw_heatmap(heatmap, figure), (3.2, 2.7))


def _draw(chart: Chart, figure: Figure, labels: list[str], columns: int) -> None:
    axes = figure.subplots()
    for at in chart.boundaries:
        axes.axvline(at, color="0.6", linewidth=0.5, zorder=0)
    for series, label in zip(chart.series, labels, strict=True):
        colour, dash = COLOURS[series.colour], DASHES[(series.dash + series.level) % len(DASHES)]
        if series.level:
            axes.axhline(series.points[0].y, color=colour, linestyle=dash, label=label)
            continue
        xs, ys = [p.x for p in series.points], [p.y for p in series.points]
        if chart.kind != "points":
            marker = MARKERS[series.marker] if chart.kind == "lines" else ""
            axes.plot(xs, ys, color=colour, linestyle=dash, marker=marker, label=label)
            spread = [(p.x, p.y - p.deviation, p.y + p.deviation) for p in series.points if p.deviation is not None]
            if len(spread) > 1:
                places, lower, upper = (list(column) for column in zip(*spread, strict=True))
                axes.fill_between(places, lower, upper, color=colour, alpha=0.15, linewidth=0)
        else:
            point = series.points[0]
            axes.errorbar(
                xs,
                ys,
                yerr=point.deviation,
                xerr=point.error_x if not chart.log_x else None,
                color=colour,
                marker=MARKERS[series.marker],
                markersize=4,
                linestyle="none",
                elinewidth=0.7,
                label=label,
            )
    if chart.log_x:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xticks(log_ticks(low, high), [f"{x:g}" for x in log_ticks(low, high)])
        axes.minorticks_off()
    if chart.x_ticks:
        axes.set_xticks([x for x, _ in chart.x_ticks], [text for _, text in chart.x_ticks])
    axes.set_xlabel(literal(chart.x_label))
    axes.set_ylabel(literal(chart.y_label))
    spaces = {"handlelength": _HANDLE, "handletextpad": _PAD, "columnspacing": _SPACING, "borderpad": _BORDER}
    figure.legend(loc="outside upper center", ncols=columns, **spaces)


def _draw_heatmap(heatmap: Heatmap, figure: Figure) -> None:
    axes = figure.subplots()
    values = [[float("nan") if v is None else v for v in row] for row in heatmap.values]
    image = axes.imshow(values, cmap="viridis", vmin=heatmap.low, vmax=heatmap.high)
    count = len(heatmap.tasks)
    places = range(0, count, 1 if count <= 10 else -(-count // 10))
    axes.set_xticks(places, [str(at + 1) for at in places])
    axes.set_yticks(places, [str(at + 1) for at in places])
    axes.grid(False)
    axes.set_xlabel("tested on task")
    axes.set_ylabel("after learning task")
    axes.set_title(literal(heatmap.label))
    figure.colorbar(image, ax=axes, label="accuracy, %")


def literal(text: str) -> str:
    """Escape text that matplotlib would typeset as mathematics or hide from a legend."""
    escaped = text.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


@contextmanager
def _style() -> Iterator[None]:
    """The style of all figures."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # names in other scripts become boxes
        yield


def _saved(fill: Callable[[Figure], None], inches: tuple[float, float]) -> dict[str, bytes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    fill(figure)
    saved = {}
    for name in FORMATS:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=name, metadata=_NO_DATE[name])
        saved[name] = buffer.getvalue()
    return saved
