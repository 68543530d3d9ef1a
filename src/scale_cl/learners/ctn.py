"""CTN: Contextual Transformation Networks. A controller makes FiLM of a task's embedding and has a memory to itself.

The base network is trained on the batch and on the episodic memory (inner step), the controller on the semantic memory
(outer step), whose samples the base network has not seen yet: the first sample of a batch goes there, and the one that
went there before joins the batch in its place.

Departures from the authors' code with a setting for its way: there the second inner step takes the batch's gradient
through the forward of the first one, made with parameters that have changed since (`reuse_batch`; here it is computed
afresh), outputs are stored with the statistics of the batch that they are computed in (`stored_in_training`), and from
the second task on the open task is replayed too, without a divergence, as nothing is stored of it
(`replay_current`). Without one: there a batch enters the memory before its step, not after it, and with more than 75
episodic slots of larger images the outer step takes 64 semantic samples, not all.

The outer step runs over all semantic samples at once, so its size grows with each task. It could be padded to some
capacity but for the batch statistics, in which padding would take part: so the step is recorded anew in every task.
Inside a task its size is constant: the open task's slots that are still empty stand for its first one, as in the
authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.learners.base import State, StepStats
from scale_cl.learners.replay import ReplayConfig, ReplayLearner, Samples
from scale_cl.learners.traits import Traits
from scale_cl.losses import cross_entropy, cross_entropy_of_parts, softened_divergence
from scale_cl.nets import Backbone, ParameterGenerator
from scale_cl.settings import setting


@dataclass(frozen=True)
class CtnConfig(ReplayConfig):
    """Settings of CTN; the defaults are the paper's for the image streams."""

    memory: int = setting(50, "memory slots a task, episodic and semantic together", low=2)
    semantic: float = setting(0.2, "share of the slots that is semantic memory", above=0, below=1)
    replay: int = setting(64, "samples replayed in an inner step, at most as many as a task has episodic slots", low=1)
    inner_lr: float = setting(0.01, "learning rate of the base network", above=0)
    outer_lr: float = setting(0.05, "learning rate of the controller", above=0)
    inner_steps: int = setting(2, "inner steps in each outer step", low=1)
    outer_steps: int = setting(2, "outer steps a batch", low=1)
    distillation: float = setting(100.0, "weight of the divergence from the stored outputs", low=0)
    temperature: float = setting(5.0, "at which outputs are softened for that divergence", above=0)
    clip: float = setting(1.0, "largest absolute value of an element of the controller's gradient", above=0)
    stored_in_training: bool = setting(
        False, "as a task ends, store outputs by the statistics of the batch that they are computed in"
    )
    reuse_batch: bool = setting(False, "take the batch's gradient once for all inner steps of an outer step")
    replay_current: bool = setting(False, "once a task is finished, replay samples of the current one too")
    task_embedding: int = setting(0, "width of the task embedding; 0: 16 with the mlp, 64 with the resnet18", low=0)


class Ctn(ReplayLearner):
    """Pham, Liu, Sahoo and Hoi (2021); the parameter generator of SCALE is its controller."""

    config_class = CtnConfig
    traits = Traits(episodic_memory=True, task_specific_parameters=True, history_in_training=True)
    config: CtnConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Learner`."""
        super().__init__(*args, **kwargs)
        self.semantic = self._make_memory(self.config.memory - self._slots(), "ring")
        self._outer_params: list[Tensor] = []
        self._finished = torch.empty(0, dtype=torch.int64, device=self.device)  # semantic rows of the finished tasks

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        c, stats = self.config, StepStats()
        x, y = self._held_out(x, y)
        rounds = iter(self._replay_batches(x, y, c.outer_steps * c.inner_steps))
        for _ in range(c.outer_steps):
            known = self._batch_gradient(x, y, stats) if c.reuse_batch else None
            for _ in range(c.inner_steps):
                if known is None:
                    self._inner_step(next(rounds), stats)
                else:
                    self._inner_step_from(known, next(rounds), stats)
            self._outer_step(stats)
        self.memory.write(x, y)
        return stats

    def _held_out(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The first sample goes to the semantic memory; the batch has the one before it instead."""
        first = x[:1], y[:1]
        if not self._first_batch():
            previous = self.semantic.latest()
            x, y = torch.cat([x[1:], self.semantic.x[previous]]), torch.cat([y[1:], self.semantic.y[previous]])
        elif len(y) > 1:  # a single sample is all that there is to train on
            x, y = x[1:], y[1:]
        self.semantic.write(*first)
        return x, y

    def _inner_step(self, samples: Samples, stats: StepStats) -> None:
        """The base network descends CE(batch) + CE(replay) + KL(stored outputs || outputs)."""
        o = self.net(samples.x, samples.task, parts=samples.parts)[2]
        loss = cross_entropy_of_parts(o, samples.y, samples.parts)
        stats["ce"] = loss.detach()
        if samples.rows is not None:
            loss = loss + self._distance(o[samples.n :], samples.rows, stats)
        stats["loss"] = loss.detach()
        self._descend(loss, self._base, self.config.inner_lr)
        self._update_average()

    def _inner_step_from(self, known: list[Tensor], samples: Samples, stats: StepStats) -> None:
        """The same with the gradient of CE(batch) that is `known`: only the replay has a forward."""
        gradients, stats["loss"] = known, stats["ce"]
        if samples.rows is not None:
            o = self.net(samples.x[samples.n :], samples.task[samples.n :])[2]
            loss = cross_entropy(o, samples.y[samples.n :])
            stats["replay"] = loss.detach()
            loss = loss + self._distance(o, samples.rows, stats)
            stats["loss"] = loss.detach()
            gradients = list(torch._foreach_add(torch.autograd.grad(loss, self._base), known))
        with torch.no_grad():
            torch._foreach_add_(self._base, gradients, alpha=-self.config.inner_lr)
        self._update_average()

    def _distance(self, o: Tensor, rows: Tensor, stats: StepStats) -> Tensor:
        """KL(stored outputs || outputs `o`) of replayed samples, by its weight."""
        stored, exists = self.memory.logits["class"].get(rows, o.shape[1])
        if self.config.replay_current:
            finished = (self.memory.task[rows] != self._task)[:, None].expand_as(stored)
            exists = finished if exists is None else exists & finished
        divergence = softened_divergence(o, stored, exists, self.config.temperature)
        stats["divergence"] = divergence.detach()
        return self.config.distillation * divergence

    def _batch_gradient(self, x: Tensor, y: Tensor, stats: StepStats) -> list[Tensor]:
        """That of CE(batch) alone, at the parameters of this moment."""
        loss = cross_entropy(self.net(self._prepared(x), self._task.expand(len(y)))[2], y)
        stats["ce"] = loss.detach()
        return list(torch.autograd.grad(loss, self._base))

    def _outer_step(self, stats: StepStats) -> None:
        """The controller descends the cross-entropy on all semantic samples."""
        c, memory = self.config, self.semantic
        slot = torch.arange(memory.slots, device=self.device)
        base = self._task * memory.slots
        own = base + torch.where(memory.stored[base + slot], slot, 0)
        rows = torch.cat([self._finished, own])
        o = self.net(self._prepared(memory.x[rows]), memory.task[rows], frozen_stem=True)[2]
        loss = cross_entropy(o, memory.y[rows])
        gradients = torch.autograd.grad(loss, self._outer_params)
        with torch.no_grad():
            clipped = [(g / c.outer_steps).clamp_(-c.clip, c.clip) for g in gradients]
            torch._foreach_add_(self._outer_params, clipped, alpha=-c.outer_lr)
        stats["outer_loss"] = loss.detach()

    def _slots(self) -> int:
        c = self.config
        return c.memory - min(max(1, round(c.memory * c.semantic)), c.memory - 1)

    def _replay_size(self) -> int:
        return min(super()._replay_size(), self.memory.slots)

    def _replays_current(self) -> bool:
        return self.config.replay_current and self.memory.available() > 0

    # ---- tasks and state ---------------------------------------------------------------------------------------------

    def _first_batch(self) -> bool:
        """Whether the open task has no semantic sample yet."""
        return self.semantic.seen[self._open_task()] == 0

    def _phase(self) -> object:
        return super()._phase(), len(self._finished), self._first_batch()

    def _observed(self, n: int) -> None:
        self.memory.wrote(n - 1 if self._first_batch() and n > 1 else n)
        self.semantic.wrote(1)

    def _wrap_up(self, x: Tensor, y: Tensor) -> None:
        """Nothing: `_update` has written what it trained on."""

    def _task_began(self, task: int) -> None:
        self.semantic.open(task, self._classes[task])
        super()._task_began(task)
        self._lay_out(task)

    def _lay_out(self, task: int) -> None:
        """Look up what the finished tasks have in the semantic memory."""
        finished = [self.semantic.rows_of(number) for number in range(len(self._classes)) if number != task]
        self._finished = torch.cat([self._finished[:0], *finished])
        self._step.drop()  # recordings of the last task are of no more use

    def _task_ended(self, task: int) -> None:
        """Keep the outputs of the task's episodic samples, by the model of this moment."""
        super()._task_ended(task)
        self.semantic.close()
        rows = self.memory.rows_of(task)
        if len(rows):
            logits = self._stored_outputs(self.memory.x[rows], self.memory.task[rows])
            self.memory.keep_logits("class", rows, logits[:, : self._classes[task]])

    @torch.no_grad()
    def _stored_outputs(self, x: Tensor, task: Tensor) -> Tensor:
        if not self.config.stored_in_training:
            return self._evaluated(x, task)[2]
        logits: Tensor = self.net(self.net.inputs(x), task)[2]
        return logits

    def _make_generator(self, backbone: Backbone) -> ParameterGenerator:
        return self._film_generator(backbone, "branches", self.config.task_embedding)

    def _refresh(self, *, force: bool = False) -> None:
        super()._refresh(force=force)
        self._outer_params = list(self.net.generator_parameters().values())

    def _version(self) -> object:
        return super()._version(), self.semantic.version

    def state_dict(self) -> State:
        """Everything, both memories included."""
        state = super().state_dict()
        state["tensors"] |= {f"semantic.{name}": t for name, t in self.semantic.state_dict().items()}
        return state

    def _take_state(self, state: State) -> None:
        """As `Learner`, with both memories."""
        prefix = "semantic."
        own = {n.removeprefix(prefix): t for n, t in state["tensors"].items() if n.startswith(prefix)}
        self.semantic.load_state_dict(own)
        super()._take_state(state)
        if self._current is not None:
            self._lay_out(self._tasks[self._current])
