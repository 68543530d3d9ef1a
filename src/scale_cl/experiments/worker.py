"""A process of the local engine: takes runs from its standard input, one JSON line each, and answers in lines as well.

It lives no longer than its parent: when the input ends, it ends, with everything that it started.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

from scale_cl.errors import ScaleClError


def main() -> None:
    """Do one run after another until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, messages), daemon=True).start()
    setup = messages.get()
    pin(setup["cores"])
    while True:
        _answer(answers, messages.get())


def pin(cores: Sequence[int]) -> None:
    """Keep to these cores, where the system knows how."""
    if cores and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def one_line(error: BaseException) -> str:
    """What went wrong, in a line; an error that is not ours is named with its class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ScaleClError) else f"{type(error).__name__}: {text}"


def _listen(lines: TextIO, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in lines:
        messages.put(json.loads(line))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    """Do a run; after an error that is not ours the process may be broken (a GPU's state is) and is to be replaced."""
    from scale_cl.experiments.run_worker import Pace, carry_out

    def tell(fraction: float) -> None:
        print(json.dumps({"fraction": fraction}), file=answers, flush=True)

    answer: dict[str, Any] = {"error": None, "broken": False}
    try:
        carry_out(message, Pace(tell))
    except Exception as failure:
        answer = {"error": one_line(failure), "broken": not isinstance(failure, ScaleClError)}
        traceback.print_exc()
    clear()
    print(json.dumps(answer), file=answers, flush=True)


def clear() -> None:
    """Give back what the run held: other runs share the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
