"""The matrix of accuracies as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

_NUMBERED = 12  # tasks up to which every square has its number


def matrix_png(matrix: Sequence[Sequence[float | None]], title: str) -> bytes:
    """PNG of a matrix [T][T] in percent: row = after learning that task, column = tested task; None stays empty."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(matrix)
    values = [[math.nan if v is None else v for v in row] for row in matrix]
    figure = Figure(figsize=(6.4, 5.2), dpi=100, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=100)
    figure.colorbar(image, ax=axes, label="accuracy, %")
    places = range(0, count, 1 if count <= 20 else -(-count // 20))
    axes.set_xticks(places, [str(at + 1) for at in places])
    axes.set_yticks(places, [str(at + 1) for at in places])
    axes.set_xlabel("tested on task")
    axes.set_ylabel("after learning task")
    axes.set_title(title.encode("ascii", "replace").decode(), parse_math=False)  # the font may have no other letters
    if count <= _NUMBERED:
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                if value is not None:
                    colour = "black" if value > 55 else "white"  # the upper end of the colours is light
                    axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=9)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(buffer, format="png")
    return buffer.getvalue()
