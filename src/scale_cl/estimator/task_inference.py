"""Which task does a sample belong to? The model's own evidence, for when nobody says.

A learner with a memory compares the sample with those it keeps of each task, as inputs and by the features that the
task's head sees; the nearest wins. One without goes by the confidence of each head. How often either is right, and what
else was tried, stands in docs/decisions/estimator.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scale_cl.learners import Learner, ReplayLearner

_SAME = 1e-6  # distances below are none


def task_evidence(learner: Learner, x: Tensor) -> Tensor:
    """How well raw samples fit each task, [n, tasks]; more is better, and only the order means anything."""
    x = x.to(learner.device)
    by = _nearness if isinstance(learner, ReplayLearner) else _confidence
    return torch.stack([by(learner, x, task) for task in learner.tasks], 1)


def _nearness(learner: Learner, x: Tensor, task: str) -> Tensor:
    """Minus the logarithms of the distances, of inputs and of features, to the nearest sample kept of a task."""
    assert isinstance(learner, ReplayLearner)
    kept = learner.memory.x[learner.memory.rows_of(learner.tasks.index(task))]
    if len(kept) == 0:
        return x.new_full((len(x),), -torch.inf, dtype=torch.float32)
    inputs = [learner.net.inputs(samples).flatten(1) for samples in (x, kept)]
    features = [learner.features(samples, task) for samples in (x, kept)]
    near, alike = (torch.cdist(*pair).amin(1).clamp(min=_SAME).log() for pair in (inputs, features))
    return -(near + alike)


def _confidence(learner: Learner, x: Tensor, task: str) -> Tensor:
    """Minus the entropy of a task's head, as a share of what it can be."""
    log_p = learner.predict(x, task).log_softmax(1)
    return (log_p.exp() * log_p).sum(1) / math.log(max(2, log_p.shape[1]))
