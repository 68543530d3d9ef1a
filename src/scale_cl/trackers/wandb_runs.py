"""Weights & Biases: one run, and one more per seed if there are several, all in one group.

By default project, entity and mode are `WANDB_PROJECT`, `WANDB_ENTITY` and `WANDB_MODE` (online, offline, disabled).
Its files are in `DIR/wandb`, or in `WANDB_DIR`.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scale_cl.errors import TrackerError
from scale_cl.trackers.backend import About, Axis, Ending

_AXES: dict[Axis, str] = {"step": "step", "task": "tasks_learned"}
_CURVES: dict[Axis, tuple[str, ...]] = {"step": ("loss", "anytime", "prequential"), "task": ("accuracy", "so_far")}


class WandB:
    """Runs of one project."""

    name = "wandb"

    def __init__(self, project: str | None = None) -> None:
        self._project = project
        self._about = About(Path(), "")
        self._id = ""
        self._whole: Any = None
        self._runs: dict[int, Any] = {}

    def start(self, about: About, before: Mapping[str, Any] | None) -> str:
        """Create the run of all seeds, or continue the earlier one."""
        before = before or {}
        self._about = about
        self._id = str(before.get("id") or secrets.token_hex(4))
        self._project = self._project or before.get("project") or os.environ.get("WANDB_PROJECT") or "scale-cl"
        several = len(about.seeds) > 1
        try:
            about.directory.mkdir(parents=True, exist_ok=True)
            self._whole = self._new_run(self._id, about.title, about.config, "summary" if several else None, several)
        except Exception as error:  # of many kinds: no account, no network
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise TrackerError(f"tracking with wandb cannot start: {reason}") from None
        if self._whole.settings.mode in ("offline", "dryrun"):
            return f"{self._whole.settings.sync_dir}, offline: `wandb sync` sends it"
        return str(self._whole.url or self._whole.settings.sync_dir)

    def open(self, seeds: Sequence[int]) -> None:
        """Create a run per seed, unless there is only one."""
        for seed in seeds:
            if seed not in self._runs and len(seeds) == 1:
                self._runs[seed] = self._whole
            elif seed not in self._runs:
                config = {**self._about.config, "run": {**self._about.config.get("run", {}), "seed": seed}}
                name, own = f"{self._about.title}, seed {seed}", f"{self._id}-{seed}"
                self._runs[seed] = self._new_run(own, name, config, "seed", True)

    def memory(self) -> dict[str, Any]:
        """The ID from which the IDs of all runs are made."""
        return {"id": self._id, "project": self._project}

    def restored(self, seed: int, steps: int) -> None:
        """Nothing: points of repeated steps are there twice."""

    def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
        """Points of curves."""
        self._runs[seed].log({_AXES[axis]: at, **values})

    def picture(self, seed: int | None, png: bytes, at: int) -> None:
        """The matrix, as media."""
        import wandb
        from PIL import Image

        self._run(seed).log({_AXES["task"]: at, "matrix": wandb.Image(Image.open(io.BytesIO(png)))})

    def result(self, seed: int | None, measures: Mapping[str, float]) -> None:
        """Into the run's summary."""
        self._run(seed).summary.update(dict(measures))

    def document(self, content: Mapping[str, Any]) -> None:
        """The matrices and the names of the tasks, into the summary of the run of all seeds."""
        self._whole.summary.update({f"result/{key}": content[key] for key in ("seeds", "tasks", "matrix")})

    def flush(self) -> None:
        """Nothing: W&B sends by itself."""

    def end(self, how: Ending) -> None:
        """Close the runs."""
        for run in {id(run): run for run in (*self._runs.values(), self._whole)}.values():
            run.finish(exit_code=0 if how == "finished" else 1)

    def drop(self) -> None:
        """Nothing: W&B closes by itself when the process ends."""

    def _run(self, seed: int | None) -> Any:
        return self._whole if seed is None else self._runs[seed]

    def _new_run(self, own: str, name: str, config: Mapping[str, Any], kind: str | None, grouped: bool) -> Any:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or None  # W&B itself reads it only once per process
        place = os.environ.get("WANDB_DIR") or str(self._about.directory.absolute())
        run = wandb.init(
            project=self._project,
            id=own,
            name=name,
            dir=place,
            mode=mode,
            group=self._about.title if grouped and not os.environ.get("WANDB_RUN_GROUP") else None,
            job_type=kind,
            config={**config, "environment": dict(self._about.environment)},
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        for axis, groups in _CURVES.items():
            for group in groups:
                run.define_metric(f"{group}/*", step_metric=_AXES[axis])
        return run
