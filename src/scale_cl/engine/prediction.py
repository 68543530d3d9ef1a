"""Prediction: with the task told, or over all that was learnt.

Without a task, every task's scores are computed (the part of the network before the first FiLM site once) and made
comparable: a log-linear model gives each pair of task and class a score, from the logit, the evidence and confidence of
the task's head and, with an episodic memory, how near a sample is to the task's stored samples, as input and in the
features that the head sees. Its few weights are fitted to the stored samples, each compared with the others only. A
probability of the task, or of a class that several tasks share, is a sum over pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.engine.calling import Caller
from scale_cl.engine.network import Network
from scale_cl.engine.replay import ReplayMemory
from scale_cl.engine.settings import Setup
from scale_cl.engine.turns import Turns, in_turn
from scale_cl.engine.validation import check_inputs
from scale_cl.errors import UnknownTaskError
from scale_cl.nets import ContinualNet

_MOST = 1024  # stored samples that the calibration looks at
_SAME = 1e-6  # smaller distances count as zero
_FAR = 1e4  # stands for infinity where an infinite number would make others NaN
_CONFIDENCE = 10.0  # without a memory: weight of the head's confidence in the score of its task
_PENALTY = 1e-3  # on the squared weights of the calibration, so that they stay finite


class Scores(NamedTuple):
    """Raw samples as each task sees them, or as one does, without [T]."""

    logits: Tensor  # [T, B, classes of the widest head]; -inf where a head has no such class
    features: Tensor  # [T, B, width]


class Calibration(NamedTuple):
    """What makes the scores of different tasks comparable."""

    weights: Tensor  # [kinds of evidence]
    bias: Tensor  # [T]
    kept: Tensor | None = None  # [N, ...] the stored samples that it compares with
    task: Tensor | None = None  # [N] their tasks
    features: Tensor | None = None  # [T, N, width]


class Predictor(Caller):
    """Predicts with what a method has learnt; nothing here changes the state."""

    def __init__(self, method: Any, setup: Setup) -> None:
        """`method` offers `scores` and `derived`."""
        super().__init__(method, setup)
        self.turns = Turns()  # of the threads that train and predict
        self.steps = 0
        self.task_steps = 0  # since the open task began, or began again
        self._task_specific, self._own_scores, self._derives = setup.task_specific, setup.own_scores, setup.derives
        self._calibrated: tuple[object, Calibration] | None = None
        self.derived: dict[str, Tensor] = {}  # what the method's `scores` reads besides weights, such as class means
        self._derived_at: object = None  # for which weights and memory
        self._flips = self.config.average_flips and len(self.spec.shape) == 3
        self._prediction = self.record(lambda x, task: {"scores": self._scores_of(x, task.expand(len(x)))})
        self._all_tasks = self.record(lambda x, tasks: self._seen(x, tasks.unsqueeze(1).expand(-1, len(x)))._asdict())
        self._one_task = self.record(lambda x, task: self._seen(x, task.expand(len(x)))._asdict())
        self._measurement = self.record(self._measure_apart)
        self._measured = -1  # after how many steps batch-norm statistics were measured for predictions within a task

    @property
    def task_matters(self) -> bool:
        """Whether a prediction depends on the task: heads or other parameters belong to single tasks."""
        return not self.net.heads.shared or self._task_specific

    @in_turn
    def predict(self, x: Tensor, task: str | None = None) -> Tensor:
        """Scores [B, classes], in evaluation mode; the state stays as it is. Any thread may ask while another trains.

        With a task: of the task's classes. Without: of all classes learnt, in order of arrival; in the scenario `task`,
        where each task has classes of its own, those of the first task come first. A class that several tasks have, as
        in the scenario `domain`, has one score, whether or not each task has a head of its own.
        """
        if task is None and self.task_matters and len(self.numbers) > 1:
            joint = self.joint_scores(x)  # [B, T, C]
            if self.spec.scenario != "task" and not self.translates:
                return joint.logsumexp(1)
            owners = self.labels.owners or [k for k, n in enumerate(self.classes) for _ in range(n)]
            places = [owners[:label].count(owner) for label, owner in enumerate(owners)]
            return joint[:, owners, places]
        number = self._number_of(task)
        self.predicted_task = number
        t = torch.full((), number, dtype=torch.int64, device=self.device)
        return self._kept(self._scores(x, t)[:, : self.classes[number]])

    @in_turn
    def predict_mixed(self, x: Tensor, task: Tensor) -> Tensor:
        """Scores [B, classes of the widest head] of samples of several tasks, whose numbers [B] are given.

        Without `predicted_task`, so only for methods whose `scores` does not ask for it. -inf where a task has fewer
        classes. On a GPU, the next call may overwrite them.
        """
        return self._scores(x, task.to(self.device, non_blocking=True)).float()

    def _kept(self, outputs: Tensor) -> Tensor:
        """Recorded outputs as float32 that the next prediction, perhaps of another thread, does not overwrite."""
        return outputs.float() if self.is_cpu else outputs.float().clone()

    def _scores(self, x: Tensor, task: Tensor) -> Tensor:
        """Scores of samples of one task, [], or of a task each, [B]."""
        check_inputs(x, self.spec)
        x = x.to(self.device, non_blocking=True)
        with self.modes_kept(), torch.no_grad(), self.autocast(), self.statistics_in_use():
            return self._prediction((len(x), task.dim()), x, task)["scores"]

    def _scores_of(self, x: Tensor, task: Tensor) -> Tensor:
        """The method's scores; with `average_flips`, their mean over images and mirror images."""
        with self.calling("scores"):
            scores: Tensor = self.method.scores(x, task)
            if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(x):
                found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise TypeError(f"it returns {found}; it must return scores [{len(x)}, classes]")
            return (scores + self.method.scores(x.flip(-1), task)) / 2 if self._flips else scores

    @in_turn
    def features(self, x: Tensor, task: str | None = None) -> Tensor:
        """Features [B, width] that the task's head sees, in evaluation mode."""
        number = self._number_of(task)
        check_inputs(x, self.spec)
        x = x.to(self.device)
        self.predicted_task = number
        with self.modes_kept(), self.statistics_in_use():
            return self.evaluated(x, torch.full((len(x),), number, device=self.device)).features.float()

    @in_turn
    def predicting_net(self) -> ContinualNet:
        """A copy of the network that predicts, with the weight average if there is one, in evaluation mode."""
        assert self.owned.network is not None
        with self.modes_kept(), self.statistics_in_use():
            return self.owned.network.predicting({**self.average, **self.statistics})

    def _number_of(self, task: str | None) -> int:
        self._require_learnt()
        seen = ", ".join(map(repr, self.numbers))
        if task is None and (len(self.numbers) == 1 or not self.task_matters):
            return max(range(len(self.classes)), key=self.classes.__getitem__)
        if task is None:
            raise UnknownTaskError(f"this needs the name of a task; tasks seen: {seen}")
        if task not in self.numbers:
            raise UnknownTaskError(f"task {task!r} was never seen; tasks seen: {seen}")
        return self.numbers[task]

    def _require_learnt(self) -> None:
        self.refuse_if_broken()
        if not self.numbers:
            raise UnknownTaskError("nothing was learnt yet: observe at least one batch before a prediction")

    # ---- batch-norm statistics within a task -------------------------------------------------------------------------

    @contextmanager
    def statistics_in_use(self) -> Iterator[None]:
        """Within the context, `evaluated` uses the batch-norm statistics of predictions.

        While a task is open, the running statistics follow single batches. A method that measures them on its memory
        when a task ends has them measured for a prediction too, once per step, into tensors of their own. What it
        derives by names `net.NAME` replaces tensors of the network likewise.
        """
        self.refuse_if_broken()
        network = self.owned.network
        assert network is not None
        try:
            self._measure_within(network)
            if self._derives and self._derived_at != self._now:
                self._derive()
            own = {name.removeprefix("net."): t for name, t in self.derived.items() if name.startswith("net.")}
            self.statistics = {**self.statistics, **own}
            yield
        finally:
            self.statistics = {}

    def _measure_within(self, network: Network) -> None:
        count = network.measurable(self.measurements[-1][0]) if self.measurements and self.current is not None else 0
        if count and self._measured != self.steps:
            with self.autocast():
                self._measurement((count,), torch.arange(count, device=self.device))
            self._measured = self.steps
        self.statistics = network.statistics_apart if count else {}

    @property
    def _now(self) -> tuple[int, str | None, tuple[int, ...]]:
        """Changes when weights or memory do."""
        return self.steps, self.current, tuple(self.classes)

    @torch.no_grad()
    def _derive(self) -> None:
        """Have the method compute what its `scores` reads, into the same tensors, which recorded predictions read."""
        with self.calling("derived"):
            new = self.method.derived()
            shapes = {name: value.shape for name, value in new.items()}
        if shapes == {name: value.shape for name, value in self.derived.items()}:
            for name, value in new.items():
                self.derived[name].copy_(value)
        else:
            self.derived = new
            self._prediction.drop()
            self._all_tasks.drop()
            self._one_task.drop()
        self._derived_at = self._now

    def _measure_apart(self, order: Tensor) -> dict[str, Tensor]:
        assert self.owned.network is not None
        self.owned.network.measure_apart(self.measurements[-1][0], self.average, order)
        return {}

    # ---- without a task ----------------------------------------------------------------------------------------------

    @in_turn
    def joint_scores(self, x: Tensor) -> Tensor:
        """Scores [B, T, C] of each pair of task and class, comparable by a softmax over all pairs."""
        check_inputs(x, self.spec)
        self._require_learnt()
        with self.modes_kept(), torch.no_grad():
            known = self._calibration()
            x = x.to(self.device)
            return _joint(self._evidence(x, self._by_task(x), known, apart=False), known)

    def _by_task(self, x: Tensor) -> Scores:
        """Logits and features of samples for each task."""
        assert self.owned.network is not None
        tasks = torch.arange(len(self.classes), device=self.device)
        with self.autocast(), self.statistics_in_use():
            if self.owned.network.shares_features and not self._own_scores:
                found = self._all_tasks((len(x), len(tasks)), x, tasks)
                return Scores(self._kept(found["logits"]), self._kept(found["features"]))
            each = []
            for number, task in enumerate(tasks):
                self.predicted_task = number
                found = self._one_task((len(x), number), x, task)
                each.append(Scores(self._kept(found["logits"]), self._kept(found["features"])))
        widest = max(one.logits.shape[1] for one in each)
        padded = [F.pad(one.logits, (0, widest - one.logits.shape[1]), value=-torch.inf) for one in each]
        return Scores(torch.stack(padded), torch.stack([one.features for one in each]))

    def _seen(self, x: Tensor, task: Tensor) -> Scores:
        """Logits and features of samples for one task, [B], or for several at once, [T, B]."""
        out = self.evaluated(x, task)
        if self._own_scores:
            return Scores(self._scores_of(x, task), out.features)
        logits = (out.logits + self.evaluated(x.flip(-1), task).logits) / 2 if self._flips else out.logits
        return Scores(logits, out.features)

    def _evidence(self, x: Tensor, scores: Scores, known: Calibration, *, apart: bool) -> Tensor:
        """[B, T, C, kinds]: the logit, the head's evidence and confidence and, with a memory, nearness to the task.

        With `apart`, `x` are the stored samples themselves, and none is compared with itself.
        """
        logits = scores.logits.clamp(min=-_FAR).transpose(0, 1)  # [B, T, C]
        log_p, size = logits.log_softmax(2), (scores.logits > -torch.inf).sum(2).transpose(0, 1).clamp(min=2)
        entropy = -(log_p.exp() * log_p).sum(2) / size.log()  # [B, T], relative to its maximum
        kinds = [logits, -logits.logsumexp(2, keepdim=True).expand_as(logits), -entropy.unsqueeze(2).expand_as(logits)]
        if known.kept is not None and known.features is not None and known.task is not None:
            nearest = _nearest(known.task, len(self.classes), apart=apart)
            inputs = [self.net.inputs(samples).flatten(1) for samples in (x, known.kept)]
            near = nearest(*inputs)  # [B, T]
            pairs = zip(scores.features, known.features, strict=True)
            alike = torch.stack([nearest(*pair)[:, t] for t, pair in enumerate(pairs)], 1)
            kinds += [-d.unsqueeze(2).expand_as(logits) for d in (near, alike)]
        return torch.stack(kinds, 3)

    def _calibration(self) -> Calibration:
        """The calibration for the present weights and memory, computed once for them."""
        if self._calibrated is None or self._calibrated[0] != self._now:
            self._calibrated = self._now, self._calibrate()
        return self._calibrated[1]

    def _calibrate(self) -> Calibration:
        tasks = len(self.classes)
        bias = torch.zeros(tasks, device=self.device)
        memory: ReplayMemory | None = next(iter(self.owned.memories.values()), None)
        rows = torch.zeros(0) if memory is None else memory.stored.nonzero().flatten()
        if memory is None or len(rows) < 2:
            return Calibration(torch.tensor([1.0, 1.0, _CONFIDENCE], device=self.device), bias)
        rows = rows[torch.arange(min(_MOST, len(rows)), device=rows.device) * len(rows) // min(_MOST, len(rows))]
        x, task, y = memory.x[rows], memory.task[rows], memory.y[rows]
        scores = self._by_task(x)
        first = Calibration(torch.zeros(5, device=self.device), bias, x, task, scores.features)
        evidence = self._evidence(x, scores, first, apart=True)
        weights, bias = _fitted(evidence, task, y)
        return first._replace(weights=weights, bias=bias)


def _joint(evidence: Tensor, known: Calibration) -> Tensor:
    """Scores [B, T, C] of pairs of task and class."""
    return evidence @ known.weights + known.bias.unsqueeze(1)


@torch.enable_grad()
def _fitted(evidence: Tensor, task: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases with the least cross-entropy of the right pair: a convex problem of a few numbers."""
    _, tasks, classes, kinds = evidence.shape
    weights = torch.zeros(kinds, device=evidence.device, requires_grad=True)
    bias = torch.zeros(tasks, device=evidence.device, requires_grad=True)
    target = task * classes + y
    solver = torch.optim.LBFGS([weights, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        scores = (evidence @ weights + bias.unsqueeze(1)).flatten(1)
        loss = F.cross_entropy(scores, target) + _PENALTY * (weights.square().mean() + bias.square().mean())
        loss.backward()
        return loss

    solver.step(closure)
    return weights.detach(), bias.detach()


def _nearest(task: Tensor, tasks: int, *, apart: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of samples [B, width] and stored samples [N, width]: log distances to the nearest of each task."""
    of_task = task == torch.arange(tasks, device=task.device).unsqueeze(1)  # [T, N]

    def distances(samples: Tensor, kept: Tensor) -> Tensor:
        found = torch.cdist(samples.float(), kept.float()).clamp(min=_SAME).log()
        if apart:
            found.fill_diagonal_(_FAR)
        return torch.stack([found.masked_fill(~own, _FAR).amin(1) for own in of_task], 1).clamp(max=_FAR)

    return distances
