"""The engine of a Ray cluster: every run is a Ray task that takes a share of some node.

All nodes must see the same --out and the same data directory under the same paths and have the same version of this
package. A run counts as done when its whole result is in its folder, whatever Ray reports. A run whose worker or node
dies starts again, a few times; one that fails by its own error does not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scale_cl import __version__, errors
from scale_cl.errors import ConfigError
from scale_cl.experiments.engine import Listener, Outcome
from scale_cl.experiments.local import clear, reason_of
from scale_cl.experiments.planning import PlannedRun
from scale_cl.experiments.ray_cluster import Cluster, Share, imported_ray
from scale_cl.experiments.run_worker import Pace, as_message, carry_out_together, is_done

RETRIES = 3
GPU_SHARE = 1.0  # per run: processes that share a GPU take turns
_POLL = 1.0  # seconds between checks of the runs
_STORAGE_PATIENCE = 60.0  # seconds until a file written by another node must be visible here
_NO_NODE_PATIENCE = 120.0  # seconds without a node that is large enough
_LOCK_PATIENCE = 60.0  # seconds that a folder may stay locked by a dying worker, perhaps on a lost node


@dataclass(frozen=True)
class _Attempt:
    """One attempt at a run."""

    run: PlannedRun
    share: Share
    number: int = 1
    began: float = 0.0  # start of the first attempt

    @property
    def name(self) -> str:
        return f"{self.run.folder} {self.number}"

    def begun(self, share: Share) -> _Attempt:
        return replace(self, began=self.began or time.monotonic(), share=share)


class RayEngine:
    """Executes runs on the nodes of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        root: Path | None = None,
        threads: int = 1,
        gpu_share: float = 0.0,
        retries: int = RETRIES,
    ) -> None:
        """`root` is the data directory, on every node; `gpu_share` is the fraction of a GPU per run, 0 for the CPU."""
        self._cluster, self._root, self._retries = cluster, root, retries
        self._share = Share(threads, gpu_share)
        self._storage_patience = _STORAGE_PATIENCE

    def slots(self) -> int:
        """How many runs the cluster has room for; ConfigError if it has no room for one."""
        self._cluster.start()
        nodes = self._cluster.nodes()
        room = sum(self._share.times_in(node) for node in nodes)
        if room == 0:
            largest = max(nodes, key=lambda node: (node.gpus, node.cpus), default="there is none")
            raise ConfigError(f"no node of the Ray cluster has {self._share} for a run; the largest: {largest}")
        return room

    def groups(self, runs: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
        """Each run is a group of its own."""
        return [[run] for run in runs]

    def execute(self, runs: Sequence[PlannedRun], *, slots: int, listener: Listener) -> None:
        """Execute all runs; however this function ends, it ends every run that has started."""
        self.slots()
        ray = imported_ray()
        board = new_board(ray)
        waiting = deque(_Attempt(run, self._share) for run in runs)
        busy: dict[Any, _Attempt] = {}
        room = _NodeWatch(self._cluster)
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
        """The share of a run; one that must run alone takes all CPUs of the largest node and a whole GPU."""
        if not run.alone:
            return self._share
        large_enough = [node for node in self._cluster.nodes() if self._share.times_in(node)]
        cpus = max((node.cpus for node in large_enough), default=self._share.cpus)
        return Share(cpus, 1.0 if self._share.gpus else 0.0)

    def _submit(self, ray: Any, attempt: _Attempt, board: Any) -> Any:
        environment = {name: str(self._share.cpus) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if self._root is None and os.environ.get("SCALE_CL_DATA"):  # nodes have their own environment
            environment["SCALE_CL_DATA"] = str(Path(os.environ["SCALE_CL_DATA"]).absolute())
        task = ray.remote(
            num_cpus=attempt.share.cpus,
            num_gpus=attempt.share.gpus,
            max_retries=0,  # retries are counted and reported here
            max_calls=1 if attempt.share.gpus else 0,  # GPU memory is freed with the process
            runtime_env={"env_vars": environment},
        )(work)
        message = as_message(attempt.run, self._root) | {"version": __version__}
        return task.options(name=attempt.run.title).remote(message, board, attempt.name)

    def _ended(self, ray: Any, task: Any, attempt: _Attempt, listener: Listener) -> _Attempt | None:
        """Report how an attempt ended; return the next attempt if there is one."""
        try:
            answer: dict[str, Any] = ray.get(task)
        except Exception as error:
            reason = errors.one_line(getattr(error, "cause", None) or error)  # Ray's own errors are pages long
            if is_done(attempt.run):  # it died after its work was done
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
        """Whether the result is visible here; shared storage may take a while."""
        deadline = time.monotonic() + self._storage_patience
        while not is_done(run):
            if time.monotonic() > deadline:
                self._storage_patience = 0.0  # do not wait for other runs
                return False
            time.sleep(0.2)
        return True


class _NodeWatch:
    """Watches whether a node is left for the runs that wait for one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._seen = cluster, time.monotonic()

    def lost(self, wanted: Sequence[Share]) -> bool:
        """Whether no node has been large enough for any of these shares for a long time."""
        nodes = self._cluster.nodes()
        if any(share.times_in(node) for share in wanted for node in nodes):
            self._seen = time.monotonic()
        return time.monotonic() - self._seen > _NO_NODE_PATIENCE


def _pass_on(ray: Any, board: Any, busy: dict[Any, _Attempt], listener: Listener) -> None:
    with contextlib.suppress(ray.exceptions.RayError):  # a board that is restarting has no news
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
    """Whether the worker or its node died; an error raised by the task, or a refusal of Ray, is not a death."""
    kinds = ray.exceptions
    own = (kinds.RayTaskError, kinds.TaskCancelledError, kinds.RuntimeEnvSetupError, kinds.TaskUnschedulableError)
    return isinstance(error, kinds.RayError) and not isinstance(error, own)


def work(message: dict[str, Any], board: Any, attempt: str) -> dict[str, Any]:
    """On a node: execute the run of a message; return the node and the error, if any."""
    answer = {"node": socket.gethostname(), "error": None}
    if message["version"] != __version__:
        there, here = message["version"], __version__
        return answer | {"error": f"{answer['node']} has scale-cl {here}, but {there} asked: install the same on all"}

    def tell(fraction: float) -> None:
        with contextlib.suppress(Exception):  # a lost board must not stop the run
            board.tell.remote(attempt, fraction)

    failure: Exception | None
    try:
        (failure,) = carry_out_together([message], Pace(tell), patience=_LOCK_PATIENCE)
    except Exception as error:
        traceback.print_exc()  # to Ray's log of this worker
        failure = error
    clear()
    return answer if failure is None else answer | {"error": reason_of(failure)}


def new_board(ray: Any) -> Any:
    """An actor that holds the progress of all attempts; it takes no CPU and stays on the driver's node."""

    class Board:  # local, so that Ray sends the class itself and its process need not import this package
        def __init__(self) -> None:
            self.fractions: dict[str, float] = {}

        def tell(self, attempt: str, fraction: float) -> None:
            self.fractions[attempt] = fraction

        def read(self) -> dict[str, float]:
            return self.fractions

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(Board).remote()
