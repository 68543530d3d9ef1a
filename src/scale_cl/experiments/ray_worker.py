"""What happens on a node of a Ray cluster: one run is carried out, and a board is told how far it is."""

from __future__ import annotations

import contextlib
import socket
import traceback
from typing import Any

from scale_cl import __version__
from scale_cl.experiments.worker import clear, one_line

_LOCKED = 60.0  # seconds that the folder may stay locked by a worker that is on its way out, perhaps on a lost node


def work(message: dict[str, Any], board: Any, attempt: str) -> dict[str, Any]:
    """Do the run of a message; says on which node, and with which error if there was one."""
    answer = {"node": socket.gethostname(), "error": None}
    if message["version"] != __version__:
        there, here = message["version"], __version__
        return answer | {"error": f"{answer['node']} has scale-cl {here}, but {there} asked: install the same on all"}
    from scale_cl.experiments.run_worker import Pace, carry_out

    def tell(fraction: float) -> None:
        with contextlib.suppress(Exception):  # a board that is gone is no reason to stop
            board.tell.remote(attempt, fraction)

    try:
        carry_out(message, Pace(tell), patience=_LOCKED)
    except Exception as failure:
        traceback.print_exc()  # into Ray's log of this worker
        answer |= {"error": one_line(failure)}
    clear()
    return answer


def new_board(ray: Any) -> Any:
    """An actor that takes no CPU and holds how far attempts are; it stays on the node of the driver."""

    class Board:  # made in here, so that it is sent whole and its process need not import this package
        def __init__(self) -> None:
            self.fractions: dict[str, float] = {}

        def tell(self, attempt: str, fraction: float) -> None:
            self.fractions[attempt] = fraction

        def read(self) -> dict[str, float]:
            return self.fractions

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(Board).remote()
