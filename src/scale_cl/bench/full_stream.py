"""Part `streams`: seconds and peak memory of a learner on a whole stream, evaluation included."""

from __future__ import annotations

import time
from typing import Any

from scale_cl.bench.bench_data import Material
from scale_cl.bench.conditions import Conditions
from scale_cl.training import train


def stream_times(
    material: Material, learners: list[str], how: Conditions, *, tasks: int | None
) -> list[dict[str, Any]]:
    """A row for each learner: wall seconds of the run, from a new learner to the last evaluation."""
    clock = how.clock
    stream = material.stream(tasks=tasks).to(clock.device)
    rows = []
    for name in learners:
        clock.forget_peak()
        clock.wait()
        began = time.perf_counter()
        learner = how.learner(name, stream)
        result = train(learner, stream, batch_size=how.batch_size)
        clock.wait()
        rows.append(
            {
                "stream": stream.name,
                "data": material.data,
                "learner": name,
                "tasks": len(stream),
                "steps": learner.steps,
                "seconds": time.perf_counter() - began,
                "seconds_train": result.seconds_train,
                "seconds_eval": result.seconds_eval,
                "peak_bytes": clock.peak_bytes(),
            }
        )
    return rows
