"""The engine of a Ray cluster: every run is a task that takes a share of some node.

All nodes must see the same --out, where results go, and the same data root, under the same paths, and must have the
same version of this package. What Ray says about a run is not believed: it is done when its whole result lies in its
folder. A run whose worker or node dies begins again, a few times; one that fails by its own error does not.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scale_cl import __version__
from scale_cl.errors import ConfigError
from scale_cl.experiments import ray_worker
from scale_cl.experiments.engine import Listener, Outcome
from scale_cl.experiments.planning import PlannedRun
from scale_cl.experiments.ray_cluster import Cluster, Share, imported_ray
from scale_cl.experiments.run_worker import as_message, is_done

RETRIES = 3
GPU_SHARE = 0.5  # of a run: while the host of one evaluates, another keeps the device busy
_POLL = 1.0  # seconds from one look at the runs to the next
_STORAGE_PATIENCE = 60.0  # seconds that a file written by another node may take to be seen here
_NO_NODE_PATIENCE = 120.0  # seconds without any node that is large enough


@dataclass(frozen=True)
class _Attempt:
    run: PlannedRun
    share: Share
    number: int = 1
    began: float = 0.0  # the first of them

    @property
    def name(self) -> str:
        return f"{self.run.folder} {self.number}"

    def begun(self, share: Share) -> _Attempt:
        return replace(self, began=self.began or time.monotonic(), share=share)


class RayEngine:
    """Runs on the nodes of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        root: Path | None = None,
        threads: int = 1,
        gpu_share: float = 0.0,
        retries: int = RETRIES,
    ) -> None:
        """`root` is where the data lies, on every node; `gpu_share` of a GPU is given to a run, 0 for the CPU."""
        self._cluster, self._root, self._retries = cluster, root, retries
        self._share = Share(threads, gpu_share)
        self._storage_patience = _STORAGE_PATIENCE

    def slots(self) -> int:
        """How many runs the cluster has room for; ConfigError if not for one."""
        self._cluster.start()
        nodes = self._cluster.nodes()
        room = sum(self._share.times_in(node) for node in nodes)
        if room == 0:
            largest = max(nodes, key=lambda node: (node.gpus, node.cpus), default="there is none")
            raise ConfigError(f"no node of the Ray cluster has {self._share} for a run; the largest: {largest}")
        return room

    def execute(self, runs: Sequence[PlannedRun], *, slots: int, listener: Listener) -> None:
        """Do all runs; whatever ends this function ends every run that has begun."""
        self.slots()
        ray = imported_ray()
        board = ray_worker.new_board(ray)
        waiting = deque(_Attempt(run, self._share) for run in runs)
        busy: dict[Any, _Attempt] = {}
        room = _Room(self._cluster)
        try:
            while waiting or busy:
                while waiting and len(busy) < slots:
                    attempt = waiting.popleft()
                    attempt = attempt.begun(self._share_of(attempt.run))
                    busy[self._submit(ray, attempt, board)] = attempt
                ended, _ = ray.wait(list(busy), num_returns=1, timeout=_POLL)
                _pass_on(ray, board, busy, listener)
                for task in ended:
                    again = self._ended(ray, task, busy.pop(task), listener)
                    if again is not None:
                        waiting.appendleft(again)
                if not ended and room.lost([attempt.share for attempt in busy.values()]):
                    for task, attempt in list(busy.items()):
                        _stop(ray, task)
                        del busy[task]
                        _tell_end(attempt, f"no node of the Ray cluster is left that has {attempt.share}", listener)
        finally:
            for task in busy:
                _stop(ray, task)
            with contextlib.suppress(Exception):
                ray.kill(board)

    def _share_of(self, run: PlannedRun) -> Share:
        """A run whose time counts takes all CPUs of the largest node, and a whole GPU: nothing goes beside it."""
        if not run.alone:
            return self._share
        large_enough = [node for node in self._cluster.nodes() if self._share.times_in(node)]
        cpus = max((node.cpus for node in large_enough), default=self._share.cpus)
        return Share(cpus, 1.0 if self._share.gpus else 0.0)

    def _submit(self, ray: Any, attempt: _Attempt, board: Any) -> Any:
        environment = {name: str(self._share.cpus) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if self._root is None and os.environ.get("SCALE_CL_DATA"):  # a node has an environment of its own
            environment["SCALE_CL_DATA"] = str(Path(os.environ["SCALE_CL_DATA"]).absolute())
        work = ray.remote(
            num_cpus=attempt.share.cpus,
            num_gpus=attempt.share.gpus,
            max_retries=0,  # retries are counted and told here
            max_calls=1 if attempt.share.gpus else 0,  # what a run leaves on a GPU goes with its process
            runtime_env={"env_vars": environment},
        )(ray_worker.work)
        message = as_message(attempt.run, self._root) | {"version": __version__}
        return work.options(name=attempt.run.title).remote(message, board, attempt.name)

    def _ended(self, ray: Any, task: Any, attempt: _Attempt, listener: Listener) -> _Attempt | None:
        """Tell how an attempt ended; returns the next one if there is to be one."""
        try:
            answer: dict[str, Any] = ray.get(task)
        except Exception as error:
            reason = _one_line(error)
            if is_done(attempt.run):  # it died with its work done
                _tell_end(attempt, None, listener)
            elif not _is_death(ray, error):
                _tell_end(attempt, reason, listener)
            elif attempt.number > self._retries:
                times = f"{attempt.number} time{'' if attempt.number == 1 else 's'}"
                _tell_end(attempt, f"the worker of this run died {times}; the last time: {reason}", listener)
            else:
                listener.retried(attempt.run, f"attempt {attempt.number} of {self._retries + 1}: {reason}")
                return replace(attempt, number=attempt.number + 1)
            return None
        problem = answer["error"]
        if problem is None and not self._seen(attempt.run):
            problem = (
                f"the worker on {answer['node']} has done it, but {attempt.run.folder} holds no result here; "
                "--out must be on storage that all nodes see"
            )
        _tell_end(attempt, problem, listener)
        return None

    def _seen(self, run: PlannedRun) -> bool:
        """Whether the result is there; shared storage may take a while to show what another node wrote."""
        deadline = time.monotonic() + self._storage_patience
        while not is_done(run):
            if time.monotonic() > deadline:
                self._storage_patience = 0.0  # nobody else is waited for
                return False
            time.sleep(0.2)
        return True


class _Room:
    """Looks now and then whether there still is a node for what waits for one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._seen = cluster, time.monotonic()

    def lost(self, wanted: Sequence[Share]) -> bool:
        """Whether no node has been large enough for any of these for a long time."""
        nodes = self._cluster.nodes()
        if any(share.times_in(node) for share in wanted for node in nodes):
            self._seen = time.monotonic()
        return time.monotonic() - self._seen > _NO_NODE_PATIENCE


def _pass_on(ray: Any, board: Any, busy: dict[Any, _Attempt], listener: Listener) -> None:
    with contextlib.suppress(ray.exceptions.RayError):  # a board that is being restarted has nothing to say
        news: dict[str, float] = ray.get(board.read.remote(), timeout=_POLL)
        for attempt in busy.values():
            if attempt.name in news:
                listener.progressed(attempt.run, news[attempt.name])


def _tell_end(attempt: _Attempt, error: str | None, listener: Listener) -> None:
    listener.ended(Outcome(attempt.run, time.monotonic() - attempt.began, error))


def _stop(ray: Any, task: Any) -> None:
    with contextlib.suppress(Exception):
        ray.cancel(task, force=True)


def _is_death(ray: Any, error: Exception) -> bool:
    """Whether the worker, or its node, is to blame; what the task raised, or Ray refused to start, is not."""
    kinds = ray.exceptions
    own = (kinds.RayTaskError, kinds.TaskCancelledError, kinds.RuntimeEnvSetupError, kinds.TaskUnschedulableError)
    return isinstance(error, kinds.RayError) and not isinstance(error, own)


def _one_line(error: Exception) -> str:
    """Ray's errors are pages long; the first sentence says what happened."""
    cause = getattr(error, "cause", None) or error
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text}"[:300]
