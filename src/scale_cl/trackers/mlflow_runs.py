"""MLflow: one run, with a child run per seed if there are several; uses its client and no global state.

By default the server is `MLFLOW_TRACKING_URI` and the experiment `MLFLOW_EXPERIMENT_NAME`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scale_cl.errors import TrackerError
from scale_cl.trackers.backend import About, Axis, Ending, flat, without_passwords

_MOST = 500  # metrics in one request; the server takes 1000
_MOST_PARAMETERS = 100
_ANSWERS_WITHIN = 10.0  # seconds within which a server that is up answers
_STATUS: dict[Ending, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow:
    """Runs of one experiment."""

    name = "mlflow"

    def __init__(self, address: str | None = None, experiment: str | None = None) -> None:
        self._address, self._experiment_name = address, experiment
        self._client: Any = None
        self._about = About(Path(), "")
        self._experiment = self._whole = ""
        self._runs: dict[int, str] = {}
        self._held: dict[str, list[Any]] = {}  # metrics to be sent, by run

    def start(self, about: About, before: Mapping[str, Any] | None) -> str:
        """Connect to the server and create the run, or continue the earlier one."""
        from mlflow import MlflowClient, get_tracking_uri

        before = before or {}
        self._about = about
        address = _absolute(self._address or before.get("address") or get_tracking_uri())
        self._address = address
        try:
            _must_answer(address)
            self._client = MlflowClient(tracking_uri=address)
            if "run" in before:
                self._experiment, self._whole = str(before["experiment"]), str(before["run"])
                self._runs = {int(seed): str(run) for seed, run in before["seeds"].items()}
                for run in {self._whole, *self._runs.values()}:
                    self._client.update_run(run, status="RUNNING")
            else:
                name = self._experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "scale-cl"
                found = self._client.get_experiment_by_name(name)
                self._experiment = str(found.experiment_id if found else self._client.create_experiment(name))
                self._whole = self._new_run(about.title, {})
                for name, content in (("config", about.config), ("environment", about.environment)):
                    self._file(self._whole, f"{name}.json", json.dumps(content, indent=2).encode())
        except Exception as error:  # of many kinds: network, server, database
            reason = " ".join(str(error).split()) or type(error).__name__
            said = without_passwords(f"tracking with mlflow at {address} cannot start: {reason}")
            raise TrackerError(said[:500]) from None
        shown = without_passwords(address)
        if shown.startswith("http"):
            return f"{shown.rstrip('/')}/#/experiments/{self._experiment}/runs/{self._whole}"
        return f"{shown}, run {self._whole}"

    def open(self, seeds: Sequence[int]) -> None:
        """Create a child run per seed, unless there is only one."""
        for seed in seeds:
            if seed not in self._runs and len(seeds) == 1:
                self._runs[seed] = self._whole
            elif seed not in self._runs:
                tags = {"mlflow.parentRunId": self._whole, "scale_cl.seed": str(seed)}
                self._runs[seed] = self._new_run(f"{self._about.title}, seed {seed}", tags)

    def memory(self) -> dict[str, Any]:
        """The address, unless it contains a password, and the runs."""
        address = self._address if self._address == without_passwords(self._address or "") else None
        runs = {str(seed): run for seed, run in self._runs.items()}
        return {"address": address, "experiment": self._experiment, "run": self._whole, "seeds": runs}

    def restored(self, seed: int, steps: int) -> None:
        """Nothing: MLflow deletes no points, so repeated ones are there twice."""

    def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
        """Buffer points of curves; many are sent at once."""
        self._hold(self._runs[seed], at, values)

    def picture(self, seed: int | None, png: bytes, at: int) -> None:
        """The artifact `matrix.png`, replacing the one before."""
        self._file(self._run(seed), "matrix.png", png)

    def result(self, seed: int | None, measures: Mapping[str, float]) -> None:
        """Metrics with a single point."""
        self._hold(self._run(seed), 0, measures)

    def document(self, content: Mapping[str, Any]) -> None:
        """The artifact `result.json`."""
        self._file(self._whole, "result.json", json.dumps(content, indent=2).encode())

    def flush(self) -> None:
        """Send the buffered points."""
        for run, metrics in self._held.items():
            while metrics:
                self._client.log_batch(run, metrics=metrics[:_MOST])
                del metrics[:_MOST]

    def end(self, how: Ending) -> None:
        """Close the runs."""
        self.flush()
        for run in {self._whole, *self._runs.values()}:
            self._client.set_terminated(run, status=_STATUS[how])

    def drop(self) -> None:
        """Drop the buffered points."""
        self._held.clear()

    def _run(self, seed: int | None) -> str:
        return self._whole if seed is None else self._runs[seed]

    def _hold(self, run: str, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now, held = int(time.time() * 1000), self._held.setdefault(run, [])
        held += [Metric(name, value, now, step) for name, value in values.items()]
        if len(held) >= _MOST:
            self.flush()

    def _new_run(self, name: str, tags: Mapping[str, str]) -> str:
        from mlflow.entities import Param

        keys = {"mlflow.source.name": "command", "mlflow.source.git.commit": "git_revision"}
        found = {tag: self._about.environment.get(key) for tag, key in keys.items()}
        known = {tag: str(value) for tag, value in found.items() if value}
        run = str(self._client.create_run(self._experiment, run_name=name, tags={**known, **tags}).info.run_id)
        settings = dict(flat(self._about.config))
        if "scale_cl.seed" in tags:
            settings["run.seed"] = tags["scale_cl.seed"]
        parameters = [Param(key, str(value)[:500]) for key, value in settings.items()]
        for at in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(run, params=parameters[at : at + _MOST_PARAMETERS])
        return run

    def _file(self, run: str, name: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            self._client.log_artifact(run, str(path))


def _must_answer(address: str) -> None:
    """Check quickly whether a server answers at all, because the client would retry for minutes."""
    if not address.startswith(("http://", "https://")):
        return
    parts = urllib.parse.urlsplit(without_passwords(address))
    bare = parts._replace(path=parts.path.rstrip("/") + "/health", query="")
    try:
        with urllib.request.urlopen(bare.geturl(), timeout=_ANSWERS_WITHIN):
            pass
    except urllib.error.HTTPError:
        pass
    except OSError as error:
        raise ConnectionError(f"no server answers there ({getattr(error, 'reason', error)})") from None


def _absolute(address: str) -> str:
    """Make the path of a database file absolute, so that it is found after a change of directory."""
    path = address.removeprefix("sqlite:///")
    return address if path == address or path.startswith("/") else f"sqlite:///{Path(path).absolute()}"
