"""Whether an exported model answers as the learner does: on samples of the memory, or on random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.errors import ExportError
from scale_cl.export.export_task import Subject
from scale_cl.learners import ReplayLearner

SAMPLES = 64
TOLERANCE = 1e-4  # of a logit's difference, as a share of the largest logit where that is above 1
Answer = Callable[[Tensor], Tensor]
"""Logits [B, classes] of raw samples by the exported model, loaded again."""


@dataclass(frozen=True)
class Checked:
    """How well an exported model agreed."""

    samples: int
    difference: float  # largest, of any logit


def check(subject: Subject, answer: Answer) -> Checked:
    """Compare logits and classes, in one batch, in several and one by one; ExportError if they do not agree."""
    raw = subject.raw(samples_for(subject))
    own = own_logits(subject, subject.taken(raw))
    tolerance = TOLERANCE * max(1.0, float(own.abs().max()))
    worst = 0.0
    for size in (SAMPLES, SAMPLES // 3, 1):
        few = slice(0, 4 if size == 1 else None)
        given = torch.cat([answer(part) for part in raw[few].split(size)])
        wanted = own[few]
        if given.shape != wanted.shape:
            raise ExportError(f"the exported model gives logits {list(given.shape)}, expected {list(wanted.shape)}")
        difference = float((given - wanted).abs().max())
        if not difference <= tolerance:  # a NaN is no agreement
            raise ExportError(
                f"the exported model does not agree with the learner on task {subject.task!r}: logits differ by "
                f"{difference:.2g}, at most {tolerance:.2g} is allowed; nothing is left of it"
            )
        if changed := _changed(given, wanted, tolerance):
            raise ExportError(
                f"the exported model does not agree with the learner on task {subject.task!r}: it gives {changed} of "
                f"{len(wanted)} samples another class; nothing is left of it"
            )
        worst = max(worst, difference)
    return Checked(len(raw), worst)


def samples_for(subject: Subject) -> Tensor:
    """Samples as the learner takes them: those that its memory keeps of the task, and random ones to make up."""
    learner = subject.learner
    kept = []
    if isinstance(learner, ReplayLearner):
        rows = learner.memory.rows_of(learner.tasks.index(subject.task))
        kept = [learner.memory.x[rows[:SAMPLES]].cpu()]
    missing = SAMPLES - sum(len(x) for x in kept)
    return torch.cat([*kept, _random(subject, missing)])


def own_logits(subject: Subject, x: Tensor) -> Tensor:
    """What the learner itself answers, in 32 bits on the CPU."""
    learner = subject.learner
    if learner.device.type == "cpu":
        return learner.predict(x, subject.task)
    net = learner.predicting_net().cpu()  # on a GPU prediction rounds to fewer digits
    number = torch.full((len(x),), learner.tasks.index(subject.task))
    with torch.no_grad():
        logits: Tensor = net(net.inputs(x), number)[2]
    return logits[:, : len(subject.classes)]


def _random(subject: Subject, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    spec, inputs = subject.learner.spec, subject.learner.net.inputs
    if spec.pixel_max is not None:
        return torch.randint(0, int(min(spec.pixel_max, 255)) + 1, (n, *spec.shape), generator=generator).to(
            torch.uint8
        )
    x = torch.randn(n, *spec.shape, generator=generator)
    if inputs.standardise:
        mean, deviation = (t.cpu().float() for t in inputs.statistics())
        x = mean + x * torch.where(torch.isfinite(deviation), deviation, 0.0)
    return x


def _changed(given: Tensor, wanted: Tensor, tolerance: float) -> int:
    """Samples that get another class, unless the learner itself holds the two for equal."""
    ours, theirs = wanted.argmax(1), given.argmax(1)
    margin = wanted.gather(1, ours[:, None]) - wanted.gather(1, theirs[:, None])
    return int((margin.squeeze(1) > tolerance).sum())
