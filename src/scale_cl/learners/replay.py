"""What the learners with an episodic memory share: its settings, replay, and logits kept when a task ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from scale_cl.learners.base import Learner, LearnerConfig, State
from scale_cl.learners.traits import Traits
from scale_cl.memory import EpisodicMemory, Policy
from scale_cl.ragged_rows import taken
from scale_cl.settings import setting

NORM_ON_MEMORY = "when a task ends, measure batch norm's running statistics anew: on the memory, by the weights of then"
MEMORY_POLICY = (
    "which samples a task's slots keep: ring (the last), class-ring (the last of each class), reservoir (uniform)"
)
_MEASURED, _AT_ONCE = 1024, 64  # samples that statistics of batch norm are measured on: in all, and in one forward


@dataclass(frozen=True)
class MemoryConfig(LearnerConfig):
    """Settings of every learner with a memory."""

    memory: int = setting(50, "memory slots a task", low=1)
    memory_policy: Policy = setting("ring", MEMORY_POLICY)
    norm_on_memory: bool = setting(False, NORM_ON_MEMORY)


@dataclass(frozen=True)
class ReplayConfig(MemoryConfig):
    """Settings of every learner that replays draws from its memory."""

    replay: int = setting(10, "samples replayed with a batch, at most as many as are stored", low=1)


@dataclass
class Samples:
    """A batch of the open task, followed by replayed samples of others."""

    x: Tensor  # [n + r, ...] prepared
    y: Tensor  # [n + r]
    task: Tensor  # [n + r]
    rows: Tensor | None  # [r] where in the memory the replayed ones lie
    n: int  # size of the batch
    parts: tuple[int, ...] = ()  # sizes of the batch and of each draw


class ReplayLearner(Learner):
    """A learner with one episodic memory, written after the step."""

    config_class: ClassVar[type[LearnerConfig]] = ReplayConfig
    traits = Traits(episodic_memory=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Learner`."""
        super().__init__(*args, **kwargs)
        self.memory = self._make_memory(self._slots(), self.config.memory_policy)
        self._measurement = self._as_graph(self._measured)

    def _slots(self) -> int:
        """Slots a task of the memory that is replayed from."""
        return int(self.config.memory)

    def _make_memory(self, slots: int, policy: Policy) -> EpisodicMemory:
        dtype = torch.float32 if self.spec.pixel_max is None else torch.uint8
        memory = EpisodicMemory(slots, self.spec.shape, dtype, device=self.device, generator=self._rng, policy=policy)
        memory.on_host = self.is_cpu
        return memory

    def _replay_size(self) -> int:
        """How many samples a draw has: a number of the host's, constant while a task lasts."""
        return min(int(self.config.replay), self.memory.available(current=self._replays_current()))

    def _replays_current(self) -> bool:
        """Whether the open task's own samples are replayed too, not those of finished tasks only."""
        return False

    def _joined(self, x: Tensor, y: Tensor, replay: int) -> Samples:
        """The batch and `replay` fresh draws of the finished tasks, prepared together."""
        task = self._task.expand(len(y))
        if replay == 0:
            return Samples(self._prepared(x), y, task, None, len(y))
        memory = self.memory
        rows = memory.draw(replay)
        x, y = torch.cat([x, memory.x[rows]]), torch.cat([y, memory.y[rows]])
        return Samples(self._prepared(x), y, torch.cat([task, memory.task[rows]]), rows, len(task))

    def _replay_batches(self, x: Tensor, y: Tensor, updates: int, *, draws: int = 1) -> list[Samples]:
        """For each of several updates: the batch, followed by so many fresh draws."""
        n, size, task = len(y), self._replay_size(), self._task.expand(len(y))
        if size == 0:
            return [Samples(self._prepared(x), y, task, None, n, (n,)) for _ in range(updates)]
        memory = self.memory
        rows = memory.draws(updates * draws, size, current=self._replays_current()).view(updates, -1)
        pairs = (x, memory.x), (y, memory.y), (task, memory.task)
        x_all, y_all, task_all = (
            torch.cat([own.expand(updates, *own.shape), taken(kept, rows)], 1) for own, kept in pairs
        )
        prepared = self._prepared(x_all.flatten(0, 1)).unflatten(0, y_all.shape)
        return [Samples(*parts, n, (n, *[size] * draws)) for parts in zip(prepared, y_all, task_all, rows, strict=True)]

    def _task_began(self, task: int) -> None:
        self.memory.open(task, self._classes[task])
        self._refresh()

    def _task_ended(self, task: int) -> None:
        self.memory.close()
        if self.config.norm_on_memory:
            self._measure_norms()

    def _measure_norms(self) -> None:
        """Set the running statistics to those of the weights that predict, over stored samples of all tasks.

        They are means over forwards of one size, so that one recording serves all tasks; what is stored is spread
        evenly over these, some samples twice where they do not come out even, and all tasks are in each.
        """
        rows = self.memory.candidates
        if not self._live_norms() or len(rows) < 2:
            return
        size = min(_AT_ONCE, len(rows))
        pieces = -(-min(_MEASURED, len(rows)) // size)
        spread = torch.arange(pieces * size, device=self.device) * len(rows) // (pieces * size)
        for piece in range(pieces):
            share = torch.full((), 1 / (piece + 1), device=self.device, dtype=self._base[0].dtype)
            with self._autocast():
                self._measurement((size, self._known_version), rows[spread[piece::pieces]], share)

    @torch.no_grad()
    def _measured(self, rows: Tensor, share: Tensor) -> dict[str, Tensor]:
        """Let the statistics of one forward have that share of the running ones."""
        norms = self._live_norms()
        running = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
        before, usual = [t.clone() for t in running], [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        try:
            functional_call(self.net, self._average, (self.net.inputs(self.memory.x[rows]), self.memory.task[rows]))
        finally:
            for norm, momentum in zip(norms, usual, strict=True):
                norm.momentum = momentum
        torch._foreach_mul_(running, share)
        torch._foreach_mul_(before, 1 - share)
        torch._foreach_add_(running, before)
        return {}

    def _live_norms(self) -> list[_BatchNorm]:
        """The batch norms that keep running statistics."""
        norms = [module for module in self.net.modules() if isinstance(module, _BatchNorm)]
        return [norm for norm in norms if norm.training and norm.running_mean is not None]

    def _phase(self) -> object:
        return self._replay_size()

    def _wrap_up(self, x: Tensor, y: Tensor) -> None:
        self.memory.write(x, y)

    def _observed(self, n: int) -> None:
        self.memory.wrote(n)

    def _version(self) -> object:
        return super()._version(), self.memory.version

    def state_dict(self) -> State:
        """Everything, the memory's samples included."""
        state = super().state_dict()
        state["tensors"] |= {f"memory.{name}": t for name, t in self.memory.state_dict().items()}
        return state

    def _take_state(self, state: State) -> None:
        """As `Learner`, with the memory."""
        prefix = "memory."
        own = {n.removeprefix(prefix): t for n, t in state["tensors"].items() if n.startswith(prefix)}
        self.memory.load_state_dict(own)
        super()._take_state(state)
