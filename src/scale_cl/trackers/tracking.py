"""Tracking a training run: an observer that fills one or several trackers while it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scale_cl.errors import ConfigError, Interrupted
from scale_cl.trackers import note
from scale_cl.trackers.backend import About, Backend, Ending
from scale_cl.trackers.background import Background
from scale_cl.trackers.catalog import make, parse
from scale_cl.training.observer import Several

EVERY = 50  # steps from one point of the loss curves to the next


class Tracking(Several):
    """Hands everything on to the trackers."""

    def __init__(self, backgrounds: Sequence[Background], places: dict[str, str]) -> None:
        """`places` says for each tracker where to look."""
        super().__init__(backgrounds)
        self.places = places


@contextmanager
def tracking(
    trackers: str | Sequence[str | Backend],
    directory: str | Path,
    *,
    every: int = EVERY,
    project: str | None = None,
    address: str | None = None,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    resume: bool = False,
) -> Iterator[Tracking]:
    """An observer for `train`, `train_many` or `run`, as long as the context lasts.

        with tracking("tensorboard", "runs/mine") as observer:
            result = train(learner, stream, observer=observer)

    A tracker that cannot start raises a TrackerError here; one that fails later is left behind with a warning. Seeds
    that are trained side by side are told apart by their numbers.

    Args:
        trackers: tensorboard, mlflow, wandb, several with commas or in a list; or a `Backend` of your own.
        directory: of the run; TensorBoard's logs and W&B's files come into it. Its name is the run's title.
        every: steps from one point of the loss curves to the next; a point is the mean over them. 0: no such curves.
        project: name of MLflow's experiment and W&B's project; else what their environment variables say, or scale-cl.
        address: of MLflow's server; else what MLFLOW_TRACKING_URI says.
        config: what is recorded as the settings of the run.
        environment: what is recorded of the machine and the versions.
        seeds: those that will be trained, if they are known already.
        resume: go on in the places that the directory remembers.
    """
    directory = Path(directory)
    if every < 0:
        raise ConfigError(f"the interval of loss curves is {every}; it must be at least 0")
    before = note.read(directory) if resume else None
    backends = _made(trackers, project, address)
    about = About(directory, directory.absolute().name, _plain(config), _plain(environment), list(seeds))
    kept = note.Note(directory, every, None if before is None else before.trackers)
    how: Ending = "failed"

    def close(background: Background) -> None:
        background.close(how)

    with ExitStack() as stack:
        places, backgrounds = {}, []
        for backend in backends:
            places[backend.name] = backend.start(about, None if before is None else before.trackers.get(backend.name))
            background = Background(backend, every, kept.put)
            stack.callback(close, background)
            backgrounds.append(background)
        if not resume:
            note.forget(directory)
        try:
            yield Tracking(backgrounds, places)
            how = "finished"
        except (Interrupted, KeyboardInterrupt):
            how = "stopped"
            raise


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """As JSON has it: a version that is a kind of string becomes a string."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values or {}), default=str))
    return plain


def _made(trackers: str | Sequence[str | Backend], project: str | None, address: str | None) -> list[Backend]:
    given = [trackers] if isinstance(trackers, str) else list(trackers)
    backends: list[Backend] = []
    for one in given:
        if isinstance(one, str):
            backends += [make(name, project=project, address=address) for name in parse([one])]
        else:
            backends.append(one)
    names = [backend.name for backend in backends]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"trackers are {', '.join(names) or 'none'}; give at least one, and each once")
    return backends
