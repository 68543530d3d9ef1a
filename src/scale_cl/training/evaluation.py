"""Accuracy of a learner on the test part of a task: every sample is scored, and nothing waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from scale_cl.learners import Learner
from scale_cl.streams import Stream

CHUNK = 2000  # samples a forward: large enough for a GPU, small enough for its caches and for a laptop


def hits(learner: Learner, stream: Stream, task: int) -> Tensor:
    """Number of test samples of `task` that the learner gets right, as a device tensor."""
    x, y = stream.test_data(task)
    name = stream.tasks[task].name
    right = [
        (learner.predict(part, name).argmax(1) == label.to(learner.device)).sum()
        for part, label in zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    ]
    return torch.stack(right).sum()


def accuracies(learner: Learner, stream: Stream, tasks: int) -> list[float]:
    """Accuracy in percent on each of the first `tasks` tasks; waits for the device once."""
    return percentages(torch.stack([hits(learner, stream, task) for task in range(tasks)]), stream)


def percentages(right: Tensor, stream: Stream) -> list[float]:
    """Counts of the first tasks to percent."""
    sizes = [len(task.test) for task in stream.tasks]
    return [100 * int(n) / size for n, size in zip(right.tolist(), sizes, strict=False)]
