"""Accuracy and cost of all methods of a stream, on equal terms and with extras, drawn: results/methods-STREAM.svg.

`python -m docs.making.results_tables` writes them, for every stream that has results/matched/STREAM.json. Each picture
ends with the checksum of what it was drawn from.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scale_cl.reports.plots import COLOURS
from scale_cl.reports.seed_statistics import Summary, summarise

ROOT = Path(__file__).parents[2]
KINDS = {"matched": (COLOURS[0], "o", "no extras (B)"), "beyond": (COLOURS[1], "s", "with extras (C)")}
SAME_EXTRAS = ", with the same extras"
Method = tuple[str, str, Summary, float]  # kind, name, accuracy, cost


def drawn() -> Iterator[tuple[Path, bytes]]:
    """Every picture: its file and content."""
    for file in sorted((ROOT / "results/matched").glob("*.json")):
        methods = sorted(_methods(file.stem), key=lambda method: method[2].mean)
        checksum = hashlib.sha256(json.dumps([(*m[:2], m[2].values, m[3]) for m in methods]).encode()).hexdigest()
        content = _picture(methods).rstrip() + f"\n<!-- methods {checksum} -->\n".encode()
        yield ROOT / f"docs/figures/results/methods-{file.stem}.svg", content


def _methods(stream: str) -> Iterator[Method]:
    for kind in KINDS:
        file = ROOT / f"results/{kind}/{stream}.json"
        rows: list[dict[str, Any]] = json.loads(file.read_bytes())["rows"] if file.is_file() else []
        for row in rows:
            acc = summarise([lane["acc"] for lane in row["lanes"]])
            if acc is not None:
                yield kind, named(kind, row).removesuffix(SAME_EXTRAS), acc, row["cost"]["images"]


def named(kind: str, row: dict[str, Any]) -> str:
    """A row of results/KIND/STREAM.json as a page calls it."""
    learner: str = row["settings"]["name"]
    if kind != "beyond" or row["learner"] == "scale-plus":
        return learner
    return f"{learner}, without adversary and generator" if learner == "scale-plus" else f"{learner}{SAME_EXTRAS}"


def _picture(methods: list[Method]) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    content = io.BytesIO()
    with matplotlib.rc_context({"font.size": 8, "svg.hashsalt": "scale-cl", "svg.fonttype": "path"}):
        figure = Figure(figsize=(6.0, 0.5 + 0.17 * len(methods)), layout="constrained")
        axes = figure.subplots()
        for kind, (colour, marker, label) in KINDS.items():
            own = [(acc.mean, at, acc.deviation or 0.0) for at, (of, _, acc, _) in enumerate(methods) if of == kind]
            if own:
                x, y, error = (list(column) for column in zip(*own, strict=True))
                axes.errorbar(
                    x, y, xerr=error, color=colour, marker=marker, markersize=4, linestyle="none", label=label
                )
        axes.set_yticks(range(len(methods)), [name for _, name, _, _ in methods])
        axes.set_xlabel("ACC, %")
        axes.grid(linewidth=0.3)
        axes.legend(loc="upper left")
        costs = axes.twinx()
        costs.set_ylim(axes.get_ylim())
        costs.set_yticks(range(len(methods)), [f"{cost:,.0f}" for *_, cost in methods])
        costs.tick_params(length=0)
        costs.set_ylabel("cost: images per batch, forward + 2 x backward")
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
