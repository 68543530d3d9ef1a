"""Hyper-parameter search: the grid from the command line, and the best point as a config for `run`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scale_cl import files
from scale_cl.errors import ConfigError
from scale_cl.experiments.definitions import EXPERIMENTS, Case, grid
from scale_cl.experiments.planning import ExperimentCell, common, file_of_search
from scale_cl.experiments.result_index import Finished
from scale_cl.learners import registry as learners
from scale_cl.settings import parse_assignment, parse_text


@dataclass(frozen=True)
class Winner:
    """The best point of a grid for one learner on one stream."""

    stream: str
    learner: str
    case: Case  # with the settings that all points have
    accuracy: float
    finished: int
    points: int
    config: Path  # a file for `run --config`


def read_grid(texts: Iterable[str], learner: str) -> tuple[Case, ...]:
    """`["inner_lr=0.01,0.1", "lambda1+lambda2=1,3"]` as cases; ConfigError for an unknown field or a wrong value."""
    learners.OUTSIDE.give(learner)
    kind = learners.config_class(learner)
    axes: dict[str, list[object]] = {}
    for text in texts:
        names, values = parse_assignment(text)
        fields = names.split("+")
        given = [value.strip() for value in values.split(",") if value.strip()]
        if not given:
            raise ConfigError(f"--grid {text!r}: expected values, such as --grid inner_lr=0.01,0.1")
        if any(name in axis.split("+") for name in fields for axis in axes) or len(set(fields)) < len(fields):
            raise ConfigError(f"--grid {text!r}: a field is given twice; give each once")
        read = [[parse_text(kind, name, value, section="learner") for value in given] for name in fields]
        axes[names] = list(dict.fromkeys(read[0]))
    return grid(axes)


def winners(cells: Iterable[ExperimentCell], done: Finished, out: Path) -> list[Winner]:
    """Rank the points of every grid; write `OUT/EXPERIMENT/STREAM-LEARNER.yaml` (the best), `.json` (all points)."""
    groups: dict[tuple[str, str], list[ExperimentCell]] = {}
    for cell in cells:
        groups.setdefault((cell.config.stream.name, cell.config.learner_name), []).append(cell)
    found = [_winner(stream, learner, group, done, out) for (stream, learner), group in groups.items()]
    return [winner for winner in found if winner is not None]


def _winner(stream: str, learner: str, cells: list[ExperimentCell], done: Finished, out: Path) -> Winner | None:
    points = [(cell, _accuracy(cell, done)) for cell in cells]
    finished = [(cell, accuracy) for cell, accuracy in points if accuracy is not None]
    if not finished:
        return None
    best, accuracy = max(finished, key=lambda point: point[1])  # the first of equal ones
    config = file_of_search(out / best.experiment, stream, learner)
    case = common(EXPERIMENTS[best.experiment], stream, learner) | best.case
    winner = Winner(stream, learner, case, accuracy, len(finished), len(points), config)
    files.write_json(config.with_suffix(".json"), _ranking(winner, points))
    files.write_text(winner.config, _config_text(winner))
    return winner


def _accuracy(cell: ExperimentCell, done: Finished) -> float | None:
    """Mean over all seeds; None unless all have finished."""
    found = done.of(cell.key)
    values = [found[seed].seed.acc for seed in cell.seeds if seed in found]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(cell.seeds) else None


def _ranking(winner: Winner, points: list[tuple[ExperimentCell, float | None]]) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "search",
        "stream": winner.stream,
        "learner": winner.learner,
        "best": winner.case,
        "acc": winner.accuracy,
        "points": [{"settings": cell.case, "seeds": list(cell.seeds), "acc": value} for cell, value in points],
    }


def _config_text(winner: Winner) -> str:
    head = f"# Best of a search: ACC {winner.accuracy:.2f} on the search tasks of {winner.stream}; "
    head += f"{winner.finished} of {winner.points} points of the grid finished.\n"
    content = {"stream": {"name": winner.stream}, "learner": {"name": winner.learner, **winner.case}}
    return head + yaml.safe_dump(content, sort_keys=False)
