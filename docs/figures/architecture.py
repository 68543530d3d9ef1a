"""Pictures made of boxes: the packages in layers, the way of one batch, and the three scenarios."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

_BLUE, _ORANGE, _GREEN, _PINK, _GREY = "#0072B2", "#D55E00", "#007355", "#A8437E", "#555555"
_LAYERS = (  # colour, row of packages; the top row may import all others
    (_GREY, (("cli", "commands"), ("bench", "benchmarks"), ("reports", "tables, figures"))),
    (_GREY, (("experiments", "the paper's tables"), ("integrations", "Avalanche"))),
    (_GREY, (("estimator", "scikit-learn"), ("export", "ONNX"), ("trackers", "MLflow, ..."))),
    (_PINK, (("training", "loop, events, run directory, checkpoints"),)),
    (_ORANGE, (("learners", "methods: settings, losses, step; presets; registry"),)),
    (_ORANGE, (("engine", "tasks, replay, recorded step, guard, weight average, state"),)),
    (_BLUE, (("streams", "tasks from data"), ("nets", "trunk, heads, FiLM"), ("results", "result files"))),
    (_BLUE, (("memory", "budget, policy"), ("losses, metrics", "pure functions"), ("cuda_graphs", "recording"))),
    (_GREEN, (("settings", ""), ("files, json_format", ""), ("plugins", ""), ("errors", ""))),
)


def house() -> bytes:
    """The packages, each above those that it may import."""

    def draw(axes: Any) -> None:
        axes.set_xlim(0, 100)
        axes.set_ylim(-1, 10 * len(_LAYERS) + 13)
        top = 10 * len(_LAYERS)
        axes.fill([3, 50, 97], [top + 1, top + 12, top + 1], fc="white", ec=_GREY, lw=1.6)
        axes.text(50, top + 4.6, "scale_cl: Scale, train, run, resolve, ContinualClassifier", ha="center", va="center")
        for number, (colour, packages) in enumerate(_LAYERS):
            bottom, width = top - 10 * (number + 1) + 1, 94 / len(packages)
            for at, (name, holds) in enumerate(packages):
                _box(axes, 3 + width * at, bottom, width - (0 if at == len(packages) - 1 else 1.2), 8, colour)
                middle = 3 + width * (at + 0.5) - 0.6 * (at < len(packages) - 1)
                axes.text(middle, bottom + (5.2 if holds else 4), name, ha="center", va="center", fontweight="bold")
                axes.text(middle, bottom + 2.2, holds, ha="center", va="center", fontsize=8)

    return _drawn((7.0, 6.2), draw)


def batch() -> bytes:
    """What happens to one batch, from the data to the result."""

    def draw(axes: Any) -> None:
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)

        def step(x: float, y: float, width: float, name: str, does: str, colour: str, height: float = 9) -> None:
            _box(axes, x, y, width, height, colour)
            axes.text(x + width / 2, y + height * 0.66, name, ha="center", va="center", fontweight="bold")
            axes.text(x + width / 2, y + height * 0.28, does, ha="center", va="center", fontsize=8)

        def arrow(start: tuple[float, float], end: tuple[float, float], label: str = "", dx: float = 1.5) -> None:
            axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": _GREY, "lw": 1.3})
            x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
            axes.text(x + dx, y, label, fontsize=8, va="center", ha="left" if dx > 0 else "right", color=_GREY)

        step(2, 88, 27, "source", "a data set on disk", _BLUE)
        step(36, 88, 27, "Stream", "tasks; data on the device", _BLUE)
        step(70, 88, 28, "LearnerRun.step", "a batch is an index", _PINK)
        arrow((29, 92.5), (36, 92.5))
        arrow((63, 92.5), (70, 92.5))
        step(70, 71, 28, "Learner.observe", "x, y and perhaps a task", _ORANGE)
        arrow((84, 88), (84, 80), "x uint8 or float32", dx=-1.5)

        axes.fill([2, 98, 98, 2], [25, 25, 66, 66], fc="#fbf3ee", ec=_ORANGE, lw=1.6)
        axes.text(4, 63, "Engine.observe", va="center", fontweight="bold")
        arrow((84, 71), (84, 61.5))
        step(70, 52.5, 26, "checks", "shape, type, labels", _ORANGE)
        axes.fill(
            [4, 66, 66, 97, 97, 66, 66, 4],
            [60, 60, 50, 50, 38.8, 38.8, 27, 27],
            fc="white",
            ec=_ORANGE,
            lw=1.2,
            ls="--",
        )
        axes.text(6, 58, "the recorded step: on a GPU a graph, replayed", va="center", fontsize=8, color=_ORANGE)
        arrow((70, 57), (66, 57))
        step(6, 48, 58, "method.update", "the method's losses, in the order of its paper", _ORANGE, 7.5)
        step(6, 38, 27, "memory.replay_with", "the batch and fresh draws", _BLUE, 7.5)
        step(37, 38, 27, "network(samples)", "common, features, logits", _BLUE, 7.5)
        step(37, 28.5, 27, "weights.descend", "SGD; the average follows", _BLUE, 7.5)
        step(6, 28.5, 27, "memory.write", "the policy's slots", _BLUE, 7.5)
        arrow((19.5, 48), (19.5, 45.5))
        arrow((33, 41.7), (37, 41.7))
        arrow((50.5, 38), (50.5, 36))
        arrow((37, 32.2), (33, 32.2))
        step(70, 40, 26, "guard", "finite, or set back", _ORANGE)
        arrow((66, 44.5), (70, 44.5))
        arrow((83, 40), (83, 37.5))
        step(70, 28.5, 26, "StepStats", "loss terms by name", _ORANGE)

        step(70, 11, 28, "events", "Stepped, Losses, Evaluated", _PINK)
        step(36, 11, 27, "matrix", "after each task: predict", _PINK)
        step(2, 11, 27, "result.json", "schema 2", _GREEN)
        arrow((84, 28.5), (84, 20))
        axes.text(82.5, 22.6, "back in the loop", fontsize=8, va="center", ha="right", color=_GREY)
        arrow((70, 15.5), (63, 15.5))
        arrow((36, 15.5), (29, 15.5))
        axes.text(15.5, 6.5, "tables, figures, report", ha="center", va="center", fontsize=8, color=_GREY)
        axes.text(84, 6.5, "progress, trackers, your callable", ha="center", va="center", fontsize=8, color=_GREY)

    return _drawn((7.4, 7.0), draw)


_SCENARIOS: tuple[tuple[str, str, tuple[tuple[str, str], ...], tuple[str, ...], str], ...] = (
    # scenario, what changes; per task its inputs and classes; the heads' outputs; what is asked at prediction
    (
        "task",
        "other classes, the task is told",
        (("", "cat  dog"), ("", "car  bus"), ("", "oak  fir")),
        ("cat  dog", "car  bus", "oak  fir"),
        "“of task 2: car or bus?”",
    ),
    (
        "domain",
        "other inputs, the same classes",
        (("day", "cat  dog"), ("night", "cat  dog"), ("snow", "cat  dog")),
        ("cat  dog",),
        "“cat or dog?”",
    ),
    (
        "class",
        "other classes, the task is not told",
        (("", "cat  dog"), ("", "car  bus"), ("", "oak  fir")),
        ("cat  dog  car  bus  oak  fir",),
        "“which of the six?”",
    ),
)


def scenarios() -> bytes:
    """What arrives, the heads, and what is asked at prediction, in each of the three scenarios."""

    def draw(axes: Any) -> None:
        axes.set_xlim(0, 100)
        axes.set_ylim(5, 68)
        for y, text in ((49, "tasks, one after another"), (23, "heads"), (8, "prediction")):
            axes.text(1, y, text, va="center", fontsize=8, color=_GREY, rotation=90, ha="center")
        for number, (name, changes, tasks, heads, asked) in enumerate(_SCENARIOS):
            left, colour = 4 + 32.5 * number, (_BLUE, _GREEN, _ORANGE)[number]
            axes.text(left + 15, 65, name, ha="center", va="center", fontweight="bold", fontsize=11, color=colour)
            axes.text(left + 15, 61.3, changes, ha="center", va="center", fontsize=8)
            for k, (inputs, classes) in enumerate(tasks):
                bottom = 51.5 - 8.5 * k
                _box(axes, left, bottom, 30, 7, colour)
                axes.text(left + 1.5, bottom + 3.5, f"task {k + 1}", va="center", fontsize=8, color=_GREY)
                label = f"{inputs}:  {classes}" if inputs else classes
                axes.text(left + 29, bottom + 3.5, label, ha="right", va="center")
            width = 30 / len(heads)
            for k, outputs in enumerate(heads):
                _box(axes, left + width * k, 19, width - 0.6 * (k < len(heads) - 1), 8, colour)
                size = 7 if len(heads) > 1 else 9
                axes.text(left + width * (k + 0.5), 23, outputs, ha="center", va="center", fontsize=size)
            for start, end in ((34, 27.5), (18.5, 12)):
                style = {"arrowstyle": "-|>", "color": _GREY, "lw": 1.3}
                axes.annotate("", xy=(left + 15, end), xytext=(left + 15, start), arrowprops=style)
            axes.text(left + 15, 8, asked, ha="center", va="center")

    return _drawn((7.4, 4.2), draw)


def _box(axes: Any, x: float, y: float, width: float, height: float, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    pad = 0.3
    style = f"round,pad={pad},rounding_size=0.8"
    corner, size = (x + pad, y + pad), (width - 2 * pad, height - 2 * pad)
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, fc="white", ec=colour, lw=1.6))


def _drawn(size: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    style = {"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "scale-cl"}
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=size)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        draw(axes)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()
