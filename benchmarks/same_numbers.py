"""Do two checkouts compute the same numbers? Every learner is run with both on the CPU and compared bit for bit.

    python benchmarks/same_numbers.py OLD NEW [--data DIR] [--learners er derpp] [--streams digits:4] [--jobs 2]

OLD and NEW are directories that hold `src/scale_cl`. Only their command lines are used, so their modules may differ:
`scale-cl run --stream S --tasks N --learner L`, in a process with one thread, for each learner that OLD lists. The
streams are four tasks of `digits` and, when `--data` says where MNIST is, three of `pmnist`.

Two things are compared. The **matrix**: every accuracy of the result. The **state**: every tensor of the final
checkpoint, by name: networks, memory, random generators (`all`). If the names differ, the tensors that OLD calls
`net.*` must occur in NEW under any name, with equal shape and content (`net`). The last columns are the largest
differences, of accuracy in points and of weights. The exit status is 1 if anything differs or a run fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

Array = npt.NDArray[np.generic]
State = dict[str, Array]
Matrix = list[list[float | None]]
LINE = "{:<12} {:<12} {:<8} {:<8} {:>12} {:>12}  {}"


class RunFailed(Exception):
    """A run that did not end well; the text is the last line that it printed."""


@dataclass(frozen=True)
class Outcome:
    """What is compared of one run."""

    matrix: Matrix
    state: State


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    learner: str
    stream: str
    matrix: str = "-"
    state: str = "-"
    points: float = 0.0
    weights: float = 0.0
    note: str = ""

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return self.matrix == "same" and self.state in ("all", "net", "none")


def scale_cl(tree: Path, directory: Path, *arguments: str) -> str:
    """Run the command line of a checkout; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "scale_cl", *arguments]
    ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise RunFailed((ended.stderr or ended.stdout or "no output").strip().splitlines()[-1])
    return ended.stdout


def learners_of(tree: Path) -> list[str]:
    """Names of the learners: the first words of the first paragraph of `scale-cl list learners`."""
    listed = scale_cl(tree, tree, "list", "learners").lstrip("\n")
    return [line.split()[0] for line in listed.partition("\n\n")[0].splitlines()]


def outcome(tree: Path, learner: str, stream: str, tasks: str, asked: argparse.Namespace) -> Outcome:
    """Run a learner in a directory of its own and read what it left."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = ["--stream", stream, "--tasks", tasks, "--learner", learner, "--seed", str(asked.seed)]
        options += ["--device", "cpu", "--threads", "1", "--set", "run.keep_state=true", "--out", "run", "-q"]
        for setting in asked.set:
            options += ["--set", setting]
        if asked.data is not None:
            options += ["--data", str(asked.data.resolve())]
        scale_cl(tree, directory, "run", *options)
        (seed,) = (directory / "run" / "seeds").glob("*.json")
        states = sorted((directory / "run" / "checkpoints").rglob("*.safetensors"))
        return Outcome(json.loads(seed.read_text())["matrix"], load_file(states[-1]) if states else {})


def fingerprint(tensor: Array) -> str:
    """Type, shape (without dimensions of one) and content."""
    shape = tuple(n for n in tensor.shape if n > 1)
    return f"{tensor.dtype} {shape} {hashlib.sha256(tensor.tobytes()).hexdigest()}"


def distance(a: Array, b: Array) -> float:
    """The largest difference of two tensors; infinite if their sizes differ."""
    if a.size != b.size:
        return float("inf")
    if a.size == 0 or not np.issubdtype(a.dtype, np.floating):
        return 0.0
    return float(np.max(np.abs(a.astype(np.float64).ravel() - b.astype(np.float64).ravel())))


def compared_states(old: State, new: State) -> tuple[str, float]:
    """`all`, `net`, `differs` or `none` (no checkpoint in either), and the largest difference of weights."""
    if not old and not new:
        return "none", 0.0
    if old.keys() == new.keys():
        same = all(fingerprint(a) == fingerprint(new[name]) for name, a in old.items())
        return "all" if same else "differs", max(distance(a, new[name]) for name, a in old.items())
    weights = [a for name, a in old.items() if name.startswith("net.")]
    if weights and Counter(map(fingerprint, weights)) <= Counter(map(fingerprint, new.values())):
        return "net", 0.0
    nearest = [min((distance(a, b) for b in new.values()), default=float("inf")) for a in weights]
    return "differs", max(nearest, default=float("inf"))


def compared_matrices(old: Matrix, new: Matrix) -> tuple[str, float]:
    """`same` or `differs`, and the largest difference in points."""
    if old == new:
        return "same", 0.0
    a, b = (np.array([[np.nan if v is None else v for v in row] for row in matrix]) for matrix in (old, new))
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return "differs", float("inf")
    return "differs", float(np.nanmax(np.abs(a - b)))


def compared(asked: argparse.Namespace, stream: str, learner: str) -> Row:
    """Run a learner with both checkouts."""
    name, _, tasks = stream.partition(":")
    outcomes: list[Outcome] = []
    for which, tree in (("OLD", asked.old), ("NEW", asked.new)):
        try:
            outcomes.append(outcome(tree, learner, name, tasks or "3", asked))
        except RunFailed as error:
            return Row(learner, stream, note=f"{which}: {error}")
    old, new = outcomes
    (matrix, points), (state, weights) = (
        compared_matrices(old.matrix, new.matrix),
        compared_states(old.state, new.state),
    )
    return Row(learner, stream, matrix, state, points, weights)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--learners", nargs="+", help="names; all that OLD has, if not given")
    parser.add_argument("--streams", nargs="+", metavar="NAME:TASKS", help="digits:4, and pmnist:3 if there is --data")
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting for both; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    asked = parser.parse_args()
    asked.old, asked.new = asked.old.resolve(), asked.new.resolve()
    for tree in (asked.old, asked.new):
        if not (tree / "src" / "scale_cl").is_dir():
            parser.error(f"{tree} holds no src/scale_cl")
    streams = asked.streams or ["digits:4", *(["pmnist:3"] if asked.data else [])]
    learners = asked.learners or learners_of(asked.old)
    print(LINE.format("learner", "stream", "matrix", "state", "points", "weights", ""), flush=True)
    rows = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for row in pool.map(partial(compared, asked), *zip(*product(streams, learners), strict=True)):
            points, weights = (f"{value:.3g}" if value else "0" for value in (row.points, row.weights))
            print(LINE.format(row.learner, row.stream, row.matrix, row.state, points, weights, row.note), flush=True)
            rows.append(row)
    differ = [row for row in rows if not row.same]
    print(f"{len(rows) - len(differ)} of {len(rows)} the same, bit for bit")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
