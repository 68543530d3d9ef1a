"""Boundaries found: tasks opened and recalled for a learner whose stream does not say where they begin.

`BoundaryFinder` stands between the batches and a learner. Before a batch is learnt, it measures how well the batch fits
the open task: by the loss of the learner's prediction, or by the distance of its features from those of recent batches.
A drift detector of `river` watches this signal. When it rises, the data has changed: the finder begins a new task, or
an earlier one that fits the batch, and moves the samples that came since the change to that task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.engine import Batch, State, StepStats, Turns, in_turn
from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.learners.learner import Learner
from scale_cl.results import FoundBoundary
from scale_cl.settings import Settings, setting
from scale_cl.streams import TaskInfo

_MOVED = 10  # batches, at most, that are moved to the new task
_KEPT = 2 * _MOVED  # recent batches that are kept: to be moved, and to take the places of those in the memory
_SIGNALS = 60  # when a detector has seen so many, it starts again with the last half: what was long ago is not usual
_LARGEST = 5.0  # most that one sample adds to the loss, in nats; a label that the task does not have counts as much
_WRONG = _LARGEST / 2  # loss of a wrong prediction where a method has scores of its own in place of logits
_SAMPLES = 10  # a batch of fewer samples moves the signal less
_NOISE = 0.1  # share of their mean variance by which the variances of features are raised: recent samples are few
_EVEN = 1e-12  # keeps divisions and logarithms finite


@dataclass(frozen=True)
class Detection(Settings):
    """How boundaries are found."""

    detector: Literal["page-hinkley", "adwin", "kswin"] = setting(
        "page-hinkley", "boundaries found: the drift detector of river (extra `drift`)"
    )
    sensitivity: float = setting(
        1.0, "boundaries found: how easily a rise counts as a boundary; more finds more, true and false", above=0
    )
    signal: Literal["loss", "features"] = setting(
        "loss",
        "boundaries found: what is watched, the loss of each batch before it is learnt, or how far its features are "
        "from those of recent batches",
    )
    spacing: int = setting(10, "boundaries found: fewest batches from one boundary to the next", low=1)


class BoundaryFinder:
    """Shows batches to a learner and begins tasks on it where the data changes.

    Labels count the classes of all tasks in order of arrival.
    """

    def __init__(self, learner: Learner, detection: Detection | None = None, *, classes: int = 1) -> None:
        """Watch over a learner that was made for a stream with boundaries; `classes` are known beforehand."""
        self.learner, self.detection, self._classes = learner, detection or Detection(), classes
        if learner.learns_at_end and self.detection.signal == "loss" and learner.spec.scenario == "domain":
            raise ConfigError(
                f"{learner.name} learns a task when it ends, so its loss shows no change of the inputs; take signal "
                "features (--set stream.signal=features, in Python detection={'signal': 'features'})"
            )
        self.found: list[FoundBoundary] = []
        self.step = 0  # batches that came
        self.repeated = 0  # batches that were learnt a second time, in the task that they were moved to
        self._signals: list[float] = []  # what the detector has seen, since the last boundary at most
        self._recent: list[tuple[Tensor, Tensor]] = []  # the last batches that the open task has learnt
        self._detector = _detector(self.detection)

    @property
    def turns(self) -> Turns:
        """Those of the learner: a batch and the boundary that it reveals are one turn."""
        return self.learner.engine.turns

    @in_turn
    def observe(self, x: Tensor, y: Tensor) -> StepStats:
        """Learn from one batch, in the task that it seems to belong to."""
        if self.learner.current_task is None:
            self.open(self._next_name(), y)
        elif not self.learner.net.inputs.refuses(x) and self._changed(self._signal(x, y)):
            self._begin_fitting(x, y)
        self.step += 1
        return self._learn(x, y)

    def _learn(self, x: Tensor, y: Tensor) -> StepStats:
        task = self.learner.current_task
        assert task is not None
        self.open(task, y)
        if not self.learner.net.inputs.refuses(x):  # else the step has no effect, and tells of no boundary
            self._recent = [*self._recent[1 - _KEPT :], (x, y)]
        return self.learner.observe(x, self.targets(task, y))

    # ---- tasks and labels: an estimator, which has names for labels, does this in its own way ------------------------

    def open(self, task: str, y: Tensor) -> None:
        """Begin a task, unless it is open and has room for these labels."""
        engine, last = self.learner.engine, int(y.max())
        known = len(engine.labels.owners) if engine.translates else max(engine.classes, default=0)
        begun = self.learner.current_task == task
        if not begun or last >= (known if engine.translates else engine.classes[engine.open_task]):
            self.learner.begin_task(TaskInfo(task, max(known, last + 1, self._classes)))

    def outputs(self, task: str) -> list[int]:
        """The labels of the outputs of a task's head."""
        engine, number = self.learner.engine, self.learner.engine.numbers[task]
        if engine.translates:
            return engine.labels.of(number)
        return list(range(engine.classes[number]))

    def targets(self, task: str, y: Tensor) -> Tensor:
        """Labels as the learner takes them."""
        return y

    def _next_name(self) -> str:
        return f"found-{len(self.learner.tasks) + 1}"

    # ---- the signal --------------------------------------------------------------------------------------------------

    def _signal(self, x: Tensor, y: Tensor) -> float:
        """How badly a batch fits the open task, before it is learnt."""
        task = self.learner.current_task
        assert task is not None
        value = self._loss(task, x, y) if self.detection.signal == "loss" else self._distance(task, x)
        if len(x) < _SAMPLES and self._signals:
            usual = math.fsum(self._signals) / len(self._signals)
            value = usual + (value - usual) * len(x) / _SAMPLES
        return value

    def _loss(self, task: str, x: Tensor, y: Tensor) -> float:
        """Cross-entropy of the learner's prediction with a task."""
        scores = self.learner.predict(x, task).double()
        outputs = torch.tensor(self.outputs(task), device=scores.device)
        place = y.to(scores.device).unsqueeze(1) == outputs  # [B, classes]
        wanted = place.int().argmax(1)
        if type(self.learner).scores is Learner.scores:
            loss = F.cross_entropy(scores, wanted, reduction="none").nan_to_num(nan=_LARGEST)
        else:  # such as distances, whose softmax is no probability
            loss = _WRONG * (scores.argmax(1) != wanted)
        return float(torch.where(place.any(1), loss, _LARGEST).clamp(max=_LARGEST).mean())

    def _distance(self, task: str, x: Tensor) -> float:
        """Log of the median squared Mahalanobis distance of a batch's features from those of recent batches.

        It is doubled, so that a change moves it about as much as the loss.
        """
        recent = torch.cat([batch for batch, _ in self._recent[-_MOVED:]])
        new, old = (self.learner.features(samples, task).double() for samples in (x, recent))
        centre, noise = old.mean(0), _NOISE * old.var(0, correction=0).mean() + _EVEN
        new, old = new - centre, (old - centre) / math.sqrt(len(old))
        inner = torch.linalg.solve(old @ old.T + noise * torch.eye(len(old)).to(old), old @ new.T)  # [recent, B]
        squares = (new.square().sum(1) - ((new @ old.T) * inner.T).sum(1)) / noise
        return 2 * float(squares.median().clamp(min=_EVEN).log().nan_to_num(nan=_LARGEST))

    def _changed(self, signal: float) -> bool:
        """Whether the detector finds with this signal that the data has changed, and the signal has risen."""
        self._signals.append(signal)
        self._detector.update(signal)
        drifted = bool(self._detector.drift_detected)
        begun = self.found[-1].step if self.found else 1
        if drifted and self.step + 1 - begun >= self.detection.spacing and self._since() > 0:
            return True
        if len(self._signals) == _SIGNALS:
            self._restart(self._signals[-_SIGNALS // 2 :])
        return False

    def _restart(self, signals: Sequence[float]) -> None:
        """A new detector that has seen these signals."""
        self._signals, self._detector = list(signals), _detector(self.detection)
        for signal in signals:
            self._detector.update(signal)

    def _since(self) -> int:
        """How many of the last signals come after the change: the split that explains them best; 0 if they fell."""
        last = self._signals[-(_KEPT + _MOVED) :]
        best, gain = 0, 0.0
        for n in range(1, min(_MOVED, len(last) - 1) + 1):
            old, new = last[:-n], last[-n:]
            rise = math.fsum(new) / n - math.fsum(old) / len(old)
            if rise > 0 and rise * rise * n * len(old) > gain:
                best, gain = n, rise * rise * n * len(old)
        return best

    # ---- a boundary --------------------------------------------------------------------------------------------------

    def _begin_fitting(self, x: Tensor, y: Tensor) -> None:
        """The data has changed: begin the task that it fits, and let it learn what came since the change."""
        since = self._since()
        before = self._recent[: len(self._recent) - (since - 1)]
        moved = self._recent[len(before) :]
        labels = torch.cat([y, *(own for _, own in moved)])
        earlier, last = self._signals[-since - _MOVED : -since], self._signals[-1]
        usual = math.fsum(earlier) / len(earlier)
        name = self._fitting(x, y, usual, labels) if last > usual else None
        self._restart([])
        if name is None:  # a passing rise, or nothing fits better
            return
        self._take_back(moved, before)
        boundary = FoundBoundary(self.step + 1, name, name not in self.learner.tasks)
        self.open(name, labels)  # a learner may refuse one more task
        self.found.append(boundary)
        self._recent = []
        for batch in moved:
            self._learn(*batch)
        self.repeated += len(moved)

    def _fitting(self, x: Tensor, y: Tensor, usual: float, labels: Tensor) -> str | None:
        """The task that a batch fits: an earlier one or a new one; None: still the open one.

        An earlier one fits if its loss is nearer to the usual loss than to that of the open task.
        """
        current = self.learner.current_task
        assert current is not None
        losses = {task: self._loss(task, x, y) for task in self.learner.tasks if task != current}
        usual = usual if self.detection.signal == "loss" else 0.0
        best = min(losses, key=losses.__getitem__, default=None)
        if best is not None and losses[best] < (usual + self._loss(current, x, y)) / 2:
            return best
        engine = self.learner.engine  # where heads belong to tasks, a task of scenario `class` must bring a class
        return self._next_name() if not engine.translates or int(labels.max()) >= len(engine.labels.owners) else None

    def _take_back(self, moved: Sequence[tuple[Tensor, Tensor]], before: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Free the memory of the open task from moved samples; earlier ones take their places."""
        if not moved:
            return
        engine = self.learner.engine
        for memory in engine.owned.memories.values():
            rows = memory.rows_of(engine.open_task)
            gone = _same(memory.x[rows], torch.cat([x for x, _ in moved]).to(engine.device)).any(1)
            memory.forget(rows[gone])
            if not before or not gone.any():
                continue
            x, y = (torch.cat(parts).to(engine.device) for parts in zip(*before, strict=True))
            missing = (~_same(x, memory.x[rows[~gone]]).any(1)).nonzero().flatten()[-int(gone.sum()) :]
            task = torch.full_like(y, engine.open_task)
            assert self.learner.current_task is not None
            y = self.targets(self.learner.current_task, y)
            if engine.translates:
                task, y = engine.labels.translated(y)
            memory.write(Batch(x, y, task)[missing])

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Everything that decides what the finder does from here on, without the learner."""
        meta = {
            "step": self.step,
            "repeated": self.repeated,
            "found": [list(boundary) for boundary in self.found],
            "signals": list(self._signals),
            "sizes": [len(x) for x, _ in self._recent],
        }
        if not self._recent:
            return {"tensors": {}, "meta": meta}
        x, y = (torch.cat(parts) for parts in zip(*self._recent, strict=True))
        return {"tensors": {"x": x, "y": y}, "meta": meta}

    def load_state_dict(self, state: State) -> None:
        """Become the finder that `state_dict` was taken of, made with the same settings."""
        meta, tensors = state["meta"], state["tensors"]
        try:
            sizes, recent = [int(n) for n in meta["sizes"]], []
            if sizes:
                x, y = tensors["x"].to(self.learner.device), tensors["y"].to(self.learner.device)
                recent = list(zip(x.split(sizes), y.split(sizes), strict=True))
            found = [FoundBoundary(int(step), str(task), bool(new)) for step, task, new in meta["found"]]
            signals = [float(signal) for signal in meta["signals"]]
            self.step, self.repeated = int(meta["step"]), int(meta["repeated"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"the state of the boundaries found is damaged: {reason}") from None
        self.found, self._recent = found, recent
        self._restart(signals)


def _same(some: Tensor, others: Tensor) -> Tensor:
    """[n, m]: which samples are equal to which."""
    flat = others.flatten(1)
    rows = [(flat == one).all(1) for one in some.flatten(1)]
    return torch.stack(rows) if rows else torch.zeros(0, len(others), dtype=torch.bool, device=some.device)


def _detector(detection: Detection) -> Any:
    """A detector of river. The constants suit signals of tasks that last some hundred batches or more."""
    try:
        from river import drift
    except ImportError:
        raise ConfigError("finding task boundaries needs the extra: pip install 'scale-cl[drift]'") from None
    sensitivity, name = detection.sensitivity, detection.detector
    if name == "adwin":
        return drift.ADWIN(delta=min(0.1 * sensitivity, 0.99), clock=1, min_window_length=2, grace_period=10)
    if name == "kswin":
        return drift.KSWIN(alpha=min(0.001 * sensitivity, 0.99), window_size=24, stat_size=8, seed=0)
    return drift.PageHinkley(min_instances=10, delta=0.3, threshold=2.5 / sensitivity, alpha=1.0, mode="up")
