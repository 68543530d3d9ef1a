"""The picture of SCALE's parts: what feeds what, and which loss trains which."""

from __future__ import annotations

import io

_BLUE, _ORANGE, _GREEN, _PINK, _GREY = "#0072B2", "#D55E00", "#007355", "#A8437E", "#555555"


def scheme() -> bytes:
    """As SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "scale-cl"}
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=(7.4, 4.4))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, 100)
        axes.set_ylim(4, 62)
        axes.axis("off")

        def box(x: float, y: float, text: str, colour: str, width: float = 17, height: float = 8.5) -> None:
            from matplotlib.patches import FancyBboxPatch

            shape = FancyBboxPatch(
                (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.3", fc="white", ec=colour, lw=1.6
            )
            axes.add_patch(shape)
            axes.text(x, y, text, ha="center", va="center", color="black", linespacing=1.35)

        def arrow(start: tuple[float, float], end: tuple[float, float], colour: str = _GREY, style: str = "-") -> None:
            axes.annotate(
                "", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.3, "ls": style}
            )

        def note(x: float, y: float, text: str, colour: str = "black", align: str = "center") -> None:
            axes.text(x, y, text, ha=align, va="center", color=colour, fontsize=8, linespacing=1.4)

        box(10, 47, "batch\nof task k", _GREY)
        box(10, 27, "memory\n50 per task", _GREY)
        box(33, 38, "trunk g", _BLUE)
        box(60, 38, "FiLM", _ORANGE, width=12)
        box(88, 38, "head\nof the task", _BLUE)
        box(60, 55, "parameter generator P\nan embedding per task", _ORANGE, width=28)
        box(46.5, 16, "discriminator D\nwhich task?", _PINK, width=20)
        arrow((19.3, 45.5), (23.8, 41))
        arrow((19.3, 29), (23.8, 35))
        arrow((42.2, 38), (53.2, 38))
        arrow((66.8, 38), (78.8, 38))
        arrow((60, 50.2), (60, 43.2), _ORANGE)
        arrow((46.5, 38), (46.5, 21.2), _PINK)
        note(23.6, 46.5, "new")
        note(25.4, 29, "replayed")
        note(47.5, 41.6, "common\nfeatures")
        note(72.6, 41.6, "features of\nthe task")
        note(62, 29.4, "the inner step trains g and the heads,", align="left")
        note(62, 26.2, "the outer step P, both by the loss", align="left")
        note(62, 20.8, "cross-entropy on the batch", _GREEN, "left")
        note(62, 17.6, "+ λ1 · distance to stored logits", _GREEN, "left")
        note(62, 14.4, "+ λ2 · cross-entropy on replay", _GREEN, "left")
        note(62, 11.2, "− λ3 · cross-entropy of D: fool it", _PINK, "left")
        note(46.5, 8.2, "trained last,\non features and noise", _PINK)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()
