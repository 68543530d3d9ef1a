"""Legends of figures for papers: every word whole, as few rows as the width allows, and inside the picture."""

from __future__ import annotations

import matplotlib
import pytest
from matplotlib.figure import Figure

from scale_cl.reports import plots
from scale_cl.reports.charts import Chart, Point, Series

NAMES = ["finetune", "gem", "mer", "mir", "er", "der", "derpp", "scale", "scale-ema", "joint"]
LONG = "ctn stored_in_training=true reuse_batch=true"
WIDE = [f"{name} memory={size}" for name in ("mer", "mir", "ctn", "scale") for size in (100, 150, 200)]
VERY_LONG = "own-method a_setting_with_a_very_long_name_indeed=0.000125 and_another_one=true"


def chart(labels: list[str]) -> Chart:
    points = (Point(1.0, 50.0, None, ""), Point(2.0, 60.0, None, ""))
    return Chart("k", "t", "tasks learnt", "accuracy", tuple(Series(x, points, i % 8) for i, x in enumerate(labels)))


@pytest.mark.parametrize(
    ("labels", "columns", "rows"),
    [(NAMES[:1], 1, 1), (NAMES[:8], 4, 2), ([*NAMES, LONG], 2, 6), ([LONG], 1, 1), ([*NAMES[:2], VERY_LONG], 1, 5)],
    ids=["one", "short ones", "a long one among many", "a long one alone", "one with a word too long for columns"],
)
def test_a_legend_has_few_rows_and_whole_words(labels: list[str], columns: int, rows: int) -> None:
    wrapped, beside, high = plots._legend(chart(labels))
    assert (beside, high) == (columns, rows)
    assert [text.split() for text in wrapped] == [text.split() for text in labels]


@pytest.mark.parametrize("labels", [NAMES[:8], [*NAMES, LONG], [*NAMES[:2], VERY_LONG], WIDE])
def test_it_lies_inside_the_picture(labels: list[str]) -> None:
    shown = chart(labels)
    wrapped, columns, rows = plots._legend(shown)
    with matplotlib.rc_context(plots._STYLE):
        figure = Figure((3.4, 2.4 + 0.13 * max(0, rows - 2)), layout="constrained")
        plots._draw(shown, figure, wrapped, columns)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert box.y1 <= figure.bbox.height
