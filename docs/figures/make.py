"""The pictures of the manual: runs on digits, kept in data.json, and drawn by the package's own plots.

    python docs/figures/make.py          # draw all pictures from data.json
    python docs/figures/make.py --run    # make the runs anew first: some minutes

Every run in data.json has the command that repeats it; every picture ends with the checksum of what it was drawn from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import runpy
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE / "data.json"
SEEDS = 3
SIZES = (5, 10, 25, 50, 100)

Matrix = list[list[float]]
Data = dict[str, dict[str, Any]]

RUNS: dict[str, tuple[str, list[str]]] = {  # name: learner, settings
    "finetune": ("finetune", []),
    "scale": ("scale", []),
    "without the adversary": ("scale", ["adversary=false"]),
    "without DER++": ("scale", ["derpp=false"]),
    "without the generator": ("scale", ["generator=false"]),
    **{f"scale, {n} slots": ("scale", [f"memory={n}"]) for n in SIZES if n != 50},
    **{f"er, {n} slots": ("er", [f"memory={n}"]) for n in SIZES},
    **{
        f"{learner}, at any time": (learner, ["stream.tasks=5", "run.evaluate_every=5", "run.evaluate_samples=500"])
        for learner in ("finetune", "er", "scale")
    },
}


def command(name: str) -> str:
    """What repeats a run."""
    learner, settings = RUNS[name]
    return " ".join([f"scale-cl run --learner {learner} --seeds {SEEDS}", *(f"--set {text}" for text in settings)])


def matrices(name: str) -> list[Matrix]:
    """The accuracies of a run made now, two decimals, a matrix per seed."""
    return figures_of(name)["matrices"]  # type: ignore[no-any-return]


def figures_of(name: str) -> dict[str, Any]:
    """Matrices of a run made now and, if it has any, its evaluations within tasks: steps and mean over tasks begun."""
    from scale_cl import resolve, run

    learner, settings = RUNS[name]
    config = resolve(
        stream="digits", learner=learner, options={"run.seeds": SEEDS, "run.processes": 1}, assignments=settings
    )
    seeds = run(config).seeds
    found: dict[str, Any] = {
        "matrices": [[[round(a, 2) if a is not None else None for a in row] for row in r.matrix] for r in seeds]
    }
    if seeds[0].evaluations:
        found["steps"] = [step for step, _ in seeds[0].evaluations]
        found["anytime"] = [[round(statistics.fmean(row), 2) for _, row in r.evaluations] for r in seeds]
    return found


def made() -> Data:
    """All runs, each as its command and its figures."""
    data: Data = {}
    for name in RUNS:
        data[name] = {"command": command(name), **figures_of(name)}
        print(data[name]["command"], file=sys.stderr, flush=True)
    return data


# ---- the pictures ----------------------------------------------------------------------------------------------------


def drawn(data: Data) -> Iterator[tuple[str, bytes]]:
    """Every picture: file name and content."""
    for name, draw in PICTURES.items():
        checksum = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        yield f"{name}.svg", draw(data).rstrip() + f"\n<!-- data.json {checksum} -->\n".encode()


def forgetting(data: Data) -> bytes:
    """Accuracy on the first task, as further ones are learnt."""
    return _lines(
        data,
        {"fine-tuning": "finetune", "SCALE": "scale"},
        lambda matrix: [row[0] for row in matrix],
        x_label="tasks learnt",
        y_label="accuracy on the first task, %",
    )


def parts(data: Data) -> bytes:
    """Accuracy over the tasks so far, of SCALE whole and without each of its parts."""
    names = ("scale", "without the adversary", "without DER++", "without the generator")
    return _lines(
        data,
        {"whole" if name == "scale" else name: name for name in names},
        lambda matrix: [statistics.fmean(row[: at + 1]) for at, row in enumerate(matrix)],
        x_label="tasks learnt",
        y_label="accuracy on them, %",
    )


def memory(data: Data) -> bytes:
    """ACC over the number of slots per task."""
    from scale_cl.reports.charts import Chart, Point, Series
    from scale_cl.reports.plots import plot

    series = []
    for colour, learner in enumerate(("scale", "er")):
        points = []
        for size in SIZES:
            run = data["scale" if (learner, size) == ("scale", 50) else f"{learner}, {size} slots"]
            values = [statistics.fmean(matrix[-1]) for matrix in run["matrices"]]
            points.append(Point(size, statistics.fmean(values), statistics.stdev(values), ""))
        series.append(Series({"scale": "SCALE", "er": "ER"}[learner], tuple(points), colour, dash=colour))
    ticks = tuple((float(size), str(size)) for size in SIZES)
    return plot(Chart("memory", "", "memory slots per task", "ACC, %", tuple(series), log_x=True, x_ticks=ticks))["svg"]


def anytime(data: Data) -> bytes:
    """Mean accuracy over the tasks begun, over steps."""
    from scale_cl.reports.charts import Chart, Point, Series
    from scale_cl.reports.plots import plot

    series = []
    for colour, (learner, label) in enumerate((("scale", "SCALE"), ("er", "ER"), ("finetune", "fine-tuning"))):
        run = data[f"{learner}, at any time"]
        columns = zip(run["steps"], *run["anytime"], strict=True)
        points = [Point(step, statistics.fmean(means), statistics.stdev(means), "") for step, *means in columns]
        series.append(Series(label, tuple(points), colour, dash=(0, 1, 3)[colour]))
    ends = tuple(100.0 * task for task in range(1, 5))
    label = "accuracy on tasks begun, %"
    return plot(Chart("anytime", "", "steps", label, tuple(series), "curves", boundaries=ends))["svg"]


def matrix_of(name: str) -> Callable[[Data], bytes]:
    """The picture of a run's matrix, the mean over its seeds."""

    def draw(data: Data) -> bytes:
        from scale_cl.reports.charts import Heatmap
        from scale_cl.reports.plots import plot_heatmap

        seeds = data[name]["matrices"]
        size = len(seeds[0])
        values = tuple(
            tuple(_mean([m[i][j] for m in seeds]) if j <= i else None for j in range(size)) for i in range(size)
        )
        label = {"finetune": "fine-tuning", "scale": "SCALE"}[name]
        return plot_heatmap(Heatmap(name, label, tuple(map(str, range(size))), values, 0.0, 100.0))["svg"]

    return draw


def _lines(
    data: Data, runs: dict[str, str], curve: Callable[[Matrix], list[float]], *, x_label: str, y_label: str
) -> bytes:
    from scale_cl.reports.charts import Chart, Point, Series
    from scale_cl.reports.plots import plot

    series = []
    for colour, (label, name) in enumerate(runs.items()):
        columns = zip(*(curve(matrix) for matrix in data[name]["matrices"]), strict=True)
        points = [
            Point(at, statistics.fmean(values), statistics.stdev(values), "") for at, values in enumerate(columns, 1)
        ]
        series.append(Series(label, tuple(points), colour, dash=colour))
    ticks = tuple((float(at), str(at)) for at in range(1, len(series[0].points) + 1))
    return plot(Chart("lines", "", x_label, y_label, tuple(series), x_ticks=ticks))["svg"]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _scheme(name: str, file: str) -> Callable[[Data], bytes]:
    """A picture that needs no data: the function `name` of a file beside this one."""

    def draw(data: Data) -> bytes:
        picture: bytes = runpy.run_path(str(HERE / file))[name]()
        return picture

    return draw


PICTURES: dict[str, Callable[[Data], bytes]] = {
    "anytime": anytime,
    "batch": _scheme("batch", "architecture.py"),
    "forgetting": forgetting,
    "house": _scheme("house", "architecture.py"),
    "matrix-finetune": matrix_of("finetune"),
    "matrix-scale": matrix_of("scale"),
    "memory": memory,
    "parts": parts,
    "scenarios": _scheme("scenarios", "architecture.py"),
    "scheme": _scheme("scheme", "scheme.py"),
}


def main() -> None:
    """Draw, after making the runs if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", action="store_true", help="make the runs anew")
    if parser.parse_args().run:
        DATA.write_text(
            json.dumps(made(), indent=1).replace("\n     ", " ").replace("\n    ]", "]") + "\n", encoding="utf-8"
        )
    for name, content in drawn(json.loads(DATA.read_text(encoding="utf-8"))):
        (HERE / name).write_bytes(content)


if __name__ == "__main__":
    main()
