"""The one episodic memory: samples in preallocated tensors, written and drawn without host work.

A row holds a sample, its label, its task and perhaps its logits. The budget says how many rows there are: `slots` per
task, per class or in total; the policy says which samples stay (see `policies`). While a task is open its samples are
written (`write`); when it ends they become candidates for replay (`close`). Every draw and every write is made of
device operations of a fixed shape, so a step that contains them can be recorded as a CUDA graph. What the host decides
and counts meanwhile goes through a `HostLog`, so that a replayed step decides and counts the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.cuda_graphs import HostLog
from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.memory.policies import POLICIES, PolicyName, herding_order
from scale_cl.memory.ragged_rows import RaggedRows, enlarged, set_rows, taken

Budget = Literal["task", "class", "total"]
BUDGETS: tuple[str, ...] = get_args(Budget)
_FIRST_BYTES = 256 * 2**20  # what the samples of the tasks foreseen at the start may take
_FIRST_TASKS = 32
_COLUMNS = ("x", "y", "task", "stored", "replayable", "rank")  # one row each per sample


class EpisodicMemory:
    """Samples of earlier tasks: `slots` per task, per class or in total, kept by a policy."""

    def __init__(
        self,
        slots: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        device: torch.device,
        generator: torch.Generator,
        policy: PolicyName = "ring",
        budget: Budget = "task",
        tasks: int | None = None,
        logits: Sequence[str] = ("class", "task"),
        host: HostLog | None = None,
    ) -> None:
        """Allocate for the `tasks` foreseen (by default what 256 MiB hold, at most 32); it grows by doubling."""
        if budget == "total" and policy == "class-ring":
            raise ConfigError("memory_policy class-ring needs memory_budget task or class; with total take reservoir")
        sample_bytes = max(1, math.prod(shape) * dtype.itemsize)
        rows = slots if budget == "total" else slots * (tasks or first_tasks(slots, sample_bytes))
        self.slots, self.budget, self.device, self._generator = slots, budget, device, generator
        self.policy = POLICIES[policy]()
        self.by_class = self.policy.by_class or budget == "class"
        self.on_host = device.type == "cpu"  # the host reads tensors without waiting: there are shorter ways
        self.host = HostLog() if host is None else host
        self.x = torch.zeros((rows, *shape), dtype=dtype, device=device)
        self.y = torch.zeros(rows, dtype=torch.int64, device=device)
        self.task = torch.zeros(rows, dtype=torch.int64, device=device)
        self.stored = torch.zeros(rows, dtype=torch.bool, device=device)
        self.replayable = torch.zeros(rows, dtype=torch.bool, device=device)
        self.rank = torch.zeros(rows, dtype=torch.int64, device=device)  # by herding, within a sample's class
        self.logits = {kind: RaggedRows(rows, device, self.host, gaps=budget == "total") for kind in logits}
        self.seen: list[int] = []  # samples that ever came, per task
        self._seen = torch.zeros((), dtype=torch.int64, device=device)  # of the slots being filled
        self._seen_of_class = torch.zeros(1, dtype=torch.int64, device=device)
        self._class_counts: dict[int, Tensor] = {}  # of the closed tasks
        self._blocks: dict[int, list[int]] = {}  # budget per class: which block of rows each class of a task has
        self._scope = torch.zeros(0, dtype=torch.int64, device=device)  # the rows that the open task may fill
        self._room = slots  # of one group among them
        self._others = 0  # total budget with herding: samples of tasks other than the open one
        self._candidates = torch.zeros(0, dtype=torch.int64, device=device)  # the rows that are replayable
        self._by_task: list[Tensor] | None = None  # the same, apart for each task, once somebody asks
        self._open: int | None = None
        self._open_number = torch.zeros((), dtype=torch.int64, device=device)
        self._row = torch.arange(rows, device=device)

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def open(self, task: int, classes: int) -> None:
        """Let `task` (its number) write from now on; its own rows are no candidates for replay meanwhile."""
        self.seen += [0] * (task + 1 - len(self.seen))
        scope = self._scope_of(task, classes)
        if int(scope.max()) >= len(self.y):
            self._grow(int(scope.max()) + 1)
        self._open = task
        self._open_number.fill_(task)
        self._set_scope(scope)
        if self.budget != "total":
            self.task[scope] = task
            self.replayable[scope] = False
        self._count()
        self._seen.fill_(self._came())
        if self.by_class:
            counts = torch.zeros(classes, dtype=torch.int64, device=self.device)
            known = self._class_counts.get(task)
            if known is not None:
                counts[: len(known)] = known
            if len(counts) != len(self._seen_of_class):
                self._seen_of_class = counts
            self._seen_of_class.copy_(counts)
        self._room = self._room_of_group(classes)

    def close(self) -> None:
        """End the open task: what it stored may be replayed from now on."""
        if self._open is None:
            return
        own = self.rows_of(self._open)
        self.replayable[own] = True
        self._others += len(own) if self.budget == "total" else 0
        if self.by_class:
            self._class_counts[self._open] = self._seen_of_class.clone()
        self._open = None
        self._count()

    def clear(self) -> None:
        """Keep no sample any more: for a method whose samples do not outlive their task. No task may be open."""
        for name in _COLUMNS:
            getattr(self, name).zero_()
        for kept in self.logits.values():
            kept.width.zero_()
        self.seen, self._others = [0] * len(self.seen), 0
        self._class_counts = {}
        self._count()

    def rows_of(self, task: int) -> Tensor:
        """The rows that hold a sample of a task (waits for the device)."""
        return (self.stored & (self.task == task)).nonzero().flatten()

    def _scope_of(self, task: int, classes: int) -> Tensor:
        """The rows that a task may fill."""
        if self.budget == "task":
            return torch.arange(task * self.slots, (task + 1) * self.slots, device=self.device)
        if self.budget == "class":
            own = self._blocks.setdefault(task, [])
            first = sum(len(blocks) for blocks in self._blocks.values())
            own += range(first, first + classes - len(own))
            starts = torch.tensor(own, device=self.device) * self.slots
            return (starts.unsqueeze(1) + torch.arange(self.slots, device=self.device)).flatten()
        if not self.policy.ranked:
            return torch.arange(self.slots, device=self.device)
        self._make_room(task, classes)
        return (~self.stored | (self.task == task)).nonzero().flatten()

    def _set_scope(self, scope: Tensor) -> None:
        """In place where it fits: recorded steps refer to it."""
        if len(scope) == len(self._scope):
            self._scope.copy_(scope)
        else:
            self._scope = scope

    def _room_of_group(self, classes: int) -> int:
        if self.budget == "class":
            return self.slots
        return max(1, self.slots // max(1, classes)) if self.policy.by_class else len(self._scope)

    def _came(self) -> int:
        """Samples that came for the slots being filled."""
        if self.budget == "total" and not self.policy.ranked:
            return sum(self.seen)
        assert self._open is not None, "no task is open"
        return self.seen[self._open]

    # ---- draws -------------------------------------------------------------------------------------------------------

    @property
    def candidates(self) -> Tensor:
        """The rows that may be replayed: what finished tasks have stored; with a total budget, all that is."""
        return self._candidates if self.budget != "total" else self.stored.nonzero().flatten()

    def finished(self) -> Tensor:
        """The rows that finished tasks have stored."""
        rows = self._candidates
        self.host.ask(lambda: (self._candidates.data_ptr(), len(self._candidates)))  # a recorded step refers to it
        return rows

    def finished_tasks(self) -> list[Tensor]:
        """The rows of each finished task that has stored any."""
        self.host.ask(lambda: tuple((rows.data_ptr(), len(rows)) for rows in self._rows_by_task()))
        return self._rows_by_task()

    def _rows_by_task(self) -> list[Tensor]:
        if self._by_task is None:
            task = self.task[self._candidates]
            self._by_task = [self._candidates[task == number] for number in task.unique()]
        return self._by_task

    @property
    def open_rows(self) -> Tensor:
        """The rows that the open task may fill."""
        return self._scope

    def available(self, *, current: bool = False) -> int:
        """How many samples a draw can surely have; with `current`, the open task's own count too."""
        if self.budget == "total" and not self.policy.ranked:
            return min(sum(self.seen), self.slots)
        if self.budget == "total":
            return self._others + (0 if self._open is None else min(self.seen[self._open], self._room))
        if not current or self._open is None:
            return len(self._candidates)
        return len(self._candidates) + min(self.seen[self._open], self._room)

    def draw_size(self, n: int, *, current: bool = False) -> int:
        """The size of a draw of at most `n` samples now."""
        return self.host.ask(lambda: min(n, self.available(current=current)))

    def draws(self, times: int, n: int, *, current: bool = False) -> Tensor:
        """[times, n] rows: draws that are uniform and without replacement each; `n` must not exceed `available`.

        A row's key is a hash of its number and of two random numbers, so a draw does not depend on how many rows are
        allocated. The hash is a bijection of 32 bits: no two rows share a key.
        """
        drawn = torch.randint(0, 2**31, (times, 2, 1), generator=self._generator, device=self.device)
        if self.on_host:  # no shape to keep: only the candidates are hashed
            rows = self._drawable().nonzero().flatten() if current else self.candidates
            return taken(rows, _first_by_hash(rows.numpy(), drawn.numpy(), n))
        a, b = drawn.unbind(1)
        keys = _mix32_((self._row * (2 * a + 1)).add_(b))
        drawable = self._drawable() if current or self.budget == "total" else self.replayable
        return keys.masked_fill_(~drawable, -1).topk(n).indices

    def _drawable(self) -> Tensor:
        """Which rows hold a sample of a finished task or of the open one; with a total budget, any sample."""
        if self.budget == "total":
            return self.stored
        return self.replayable | (self.stored & (self.task == self._open_number))

    def latest(self) -> Tensor:
        """Row [1] of the sample that a ring wrote last in the open task; it must have written one."""
        return taken(self._scope, ((self._seen - 1) % len(self._scope)).view(1))

    # ---- writes ------------------------------------------------------------------------------------------------------

    def write(self, x: Tensor, y: Tensor, logits: Tensor | None = None) -> None:
        """Put a batch of the open task into its slots, as the policy says: the last line of algorithm 1.

        `logits` [n, classes] are kept with the samples, in the room that `reserve_logits` made as the task was opened.
        """
        if self.on_host and not self.by_class:
            self._write_on_host(x, y, logits)
        else:
            rows, source, hit = self._places(y)
            set_rows(self.x, rows, x[source], hit)
            set_rows(self.y, rows, y[source], hit)
            set_rows(self.stored, rows, torch.ones_like(rows, dtype=torch.bool), hit)
            if self.budget == "total":
                set_rows(self.task, rows, self._open_number.expand(len(rows)), hit)
                set_rows(self.replayable, rows, torch.zeros_like(rows, dtype=torch.bool), hit)
                for kept in self.logits.values():  # those of the sample that was there
                    set_rows(kept.width, rows, torch.zeros_like(rows), hit)
            if logits is not None:
                self.logits["class"].overwrite(rows, logits[source], hit)
        self._seen += len(y)
        n = len(y)
        self.host.do(lambda: self._wrote(n))

    def _wrote(self, n: int) -> None:
        assert self._open is not None, "write needs an open task"
        self.seen[self._open] += n

    def _write_on_host(self, x: Tensor, y: Tensor, logits: Tensor | None) -> None:
        """`write` where the host can see how few samples of a batch are kept."""
        if not self.policy.random and self.budget == "task" and logits is None:
            self._write_ring(x, y)
            return
        chances = self._chances(len(y)).tolist() if self.policy.random else [0.0] * len(y)
        first, room = self._came(), self._room
        kept = {self.policy.place(first + i, room, chance): i for i, chance in enumerate(chances)}  # the last one stays
        kept.pop(room, None)
        if kept:
            places, batch = torch.tensor([[*kept], [*kept.values()]])
            rows = self._scope[places]
            self.x[rows], self.y[rows], self.stored[rows] = x[batch], y[batch], True
            if self.budget == "total":
                self.task[rows], self.replayable[rows] = self._open_number, False
                for replaced in self.logits.values():  # those of the sample that was there
                    replaced.width[rows] = 0
            if logits is not None:
                self.logits["class"].overwrite(rows, logits[batch], None)

    def _write_ring(self, x: Tensor, y: Tensor) -> None:
        """`write` of a ring whose rows lie side by side: slices, up to its end."""
        first, begin = max(0, len(y) - self._room), int(self._scope[0])
        while first < len(y):
            place = (self._came() + first) % self._room
            n = min(len(y) - first, self._room - place)
            rows, batch = slice(begin + place, begin + place + n), slice(first, first + n)
            self.x[rows], self.y[rows], self.stored[rows] = x[batch], y[batch], True
            first += n

    def _places(self, y: Tensor) -> tuple[Tensor, slice | Tensor, Tensor | None]:
        """Rows, which sample of the batch goes into each, and which of the rows get one (None: all)."""
        n, size = len(y), len(self._scope)
        order = torch.arange(n, device=self.device)
        chance = self._chances(n) if self.policy.random else None
        if not self.by_class and not self.policy.random:  # a ring: no two of its last samples share a slot
            kept = slice(n - min(n, size), n)
            return taken(self._scope, self.policy.places(self._seen + order[kept], size, None)), kept, None
        if self.by_class:
            of_class = y.unsqueeze(1) == torch.arange(len(self._seen_of_class), device=self.device)
            came = self._seen_of_class[y] + (of_class.cumsum(0) * of_class).sum(1) - 1
            inside = self.policy.places(came, self._room, chance)
            place = torch.where(inside < self._room, (y * self._room + inside) % size, size)
            self._seen_of_class += of_class.sum(0)
        else:
            place = self.policy.places(self._seen + order, size, chance)
        # several of a batch may fall on one slot: the last one stays
        last = torch.full((size + 1,), -1, device=self.device)
        last = last.scatter_reduce_(0, place, order, "amax")[:size]
        return self._scope, last.clamp(min=0), last >= 0

    def _chances(self, n: int) -> Tensor:
        return torch.rand(n, generator=self._generator, device=self.device, dtype=torch.float64)

    # ---- logits and herding ------------------------------------------------------------------------------------------

    def stored_logits(self, rows: Tensor, columns: int, kind: str = "class") -> tuple[Tensor, Tensor | None]:
        """Logits stored with `rows`, [..., columns], and which of them exist (None: all)."""
        return self.logits[kind].get(rows, columns)

    def keep_logits(self, kind: str, rows: Tensor, values: Tensor) -> None:
        """Store the logits [n, width] of `rows`: of their classes or of their tasks, by the current model."""
        self.logits[kind].put(rows, values)

    def reserve_logits(self, classes: int) -> None:
        """Make room for logits of so many classes in the rows of the open task, for `write` to fill."""
        self.logits["class"].reserve(self._scope, classes)

    def herd(self, task: int, features: Tensor) -> None:
        """Rank the stored samples of a task by herding; `features` [n, width] are those of `rows_of(task)`."""
        rows = self.rows_of(task)
        for label in self.y[rows].unique():
            own = (self.y[rows] == label).nonzero().flatten()
            order = herding_order(features[own])
            self.rank[rows[own[order]]] = torch.arange(len(own), device=self.device)

    def _make_room(self, task: int, classes: int) -> None:
        """Total budget with herding: each class of the other tasks keeps its share, the first in rank."""
        others = self.stored & (self.task != task)
        pairs = torch.stack([self.task, self.y])[:, others].unique(dim=1)
        quota = self.slots // (pairs.shape[1] + classes)
        if quota == 0:
            raise ConfigError(f"memory {self.slots} in total is less than one slot per class; take a larger memory")
        leaving = (others & (self.rank >= quota)).nonzero().flatten()
        self.stored[leaving] = self.replayable[leaving] = False
        for kept in self.logits.values():
            kept.width[leaving] = 0
        self._others = int((self.stored & (self.task != task)).sum())

    # ---- growth and state --------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self._candidates = self.replayable.nonzero().flatten()
        self._by_task = None

    def _grow(self, rows: int) -> None:
        size = max(len(self.y), self.slots)
        while size < rows:
            size *= 2
        for name in _COLUMNS:
            setattr(self, name, enlarged(getattr(self, name), size))
        for kept in self.logits.values():
            kept.grow(size)
        self._row = torch.arange(size, device=self.device)

    def tensors(self) -> list[Tensor]:
        """All tensors that a step reads or writes: while none of them moves, a recorded step stays valid."""
        own = [getattr(self, name) for name in _COLUMNS]
        own += [self._seen, self._seen_of_class, self._scope, self._open_number, self._row]
        return own + [t for kept in self.logits.values() for t in (kept.flat, kept.start, kept.width)]

    @property
    def _rows_in_use(self) -> int:
        blocks = len(self.seen) if self.budget == "task" else sum(len(own) for own in self._blocks.values())
        return self.slots if self.budget == "total" else blocks * self.slots

    def state_dict(self) -> dict[str, Tensor]:
        """All that is stored, trimmed to the rows in use."""
        rows = self._rows_in_use
        state = {name: getattr(self, name)[:rows].clone() for name in _COLUMNS}
        state["seen"] = torch.tensor(self.seen, dtype=torch.int64)
        state["open"] = torch.tensor(-1 if self._open is None else self._open)
        state["scope"] = self._scope.clone()
        state["seen_of_class"] = self._seen_of_class.clone()
        state |= {f"class_counts.{task}": counts.clone() for task, counts in self._class_counts.items()}
        state |= {f"class_blocks.{task}": torch.tensor(own) for task, own in self._blocks.items()}
        for name, kept in self.logits.items():
            state[f"{name}.flat"] = kept.flat[: kept.used].clone()
            state[f"{name}.start"], state[f"{name}.width"] = kept.start[:rows].clone(), kept.width[:rows].clone()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` returned, in place where it fits."""
        per_task = tuple(f"class_{what}.{task}" for task in range(len(self.seen)) for what in ("counts", "blocks"))
        if missing := self.state_dict().keys() - state.keys() - set(per_task):
            raise CheckpointError(f"state of a memory has no {min(missing)}; it was saved by a learner of another kind")
        rows, blocks = len(state["y"]), _numbered(state, "class_blocks.")
        counted = {"task": len(state["seen"]), "class": sum(map(len, blocks.values())), "total": 1}[self.budget]
        if state["x"].shape[1:] != self.x.shape[1:] or rows != counted * self.slots:
            raise CheckpointError(
                f"memory state holds samples of shape {tuple(state['x'].shape[1:])} in {rows} rows: "
                f"this learner keeps {self.slots} per {self.budget} of shape {tuple(self.x.shape[1:])}"
            )
        if rows > len(self.y):
            self._grow(rows)
        for name in _COLUMNS:
            mine = getattr(self, name)
            mine.zero_()
            mine[:rows] = state[name].to(self.device)
        self.seen = [int(n) for n in state["seen"]]
        opened = int(state["open"])
        self._open = None if opened < 0 else opened
        self._open_number.fill_(max(0, opened))
        self._set_scope(state["scope"].to(self.device, copy=True))
        self._others = int((self.stored & (self.task != opened)).sum())
        self._seen.fill_(0 if self._open is None else self._came())
        self._seen_of_class = state["seen_of_class"].clone().to(self.device)
        self._room = self._room_of_group(len(self._seen_of_class))
        self._class_counts = {task: t.clone().to(self.device) for task, t in _numbered(state, "class_counts.").items()}
        self._blocks = {task: [int(block) for block in own] for task, own in blocks.items()}
        for name, kept in self.logits.items():
            kept.take(*(state[f"{name}.{part}"] for part in ("flat", "start", "width")))
        self._count()


def first_tasks(slots: int, sample_bytes: int) -> int:
    """For how many tasks a memory has room before it grows the first time."""
    return max(1, min(_FIRST_TASKS, _FIRST_BYTES // max(1, slots * sample_bytes)))


def _numbered(state: Mapping[str, Tensor], prefix: str) -> dict[int, Tensor]:
    return {int(name.removeprefix(prefix)): t for name, t in state.items() if name.startswith(prefix)}


def _first_by_hash(rows: NDArray[np.int64], drawn: NDArray[np.int64], n: int) -> Tensor:
    """Which of the `rows` come first by the hash, [times, n]: the keys of `_mix32_`, by numpy's cheaper calls."""
    a, b = drawn.astype(np.uint32).swapaxes(0, 1)
    key = rows.astype(np.uint32) * (2 * a + 1) + b  # uint32 keeps the low 32 bits
    key ^= key >> 16
    key *= np.uint32(0x85EBCA6B)
    key ^= key >> 13
    key *= np.uint32(0xC2B2AE35)
    key ^= (key >> 16) ^ np.uint32(0x80000000)  # the last bit makes the order of int32 that of uint32
    return torch.from_numpy(key.view(np.int32)).topk(n).indices


def _mix32_(value: Tensor) -> Tensor:
    """Murmur's finaliser on the low 32 bits, in place: a bijection whose output bits all depend on all input bits."""
    low = 0xFFFFFFFF
    value.bitwise_and_(low)
    value.bitwise_xor_(value >> 16).mul_(0x85EBCA6B).bitwise_and_(low)
    value.bitwise_xor_(value >> 13).mul_(0xC2B2AE35).bitwise_and_(low)
    return value.bitwise_xor_(value >> 16)
