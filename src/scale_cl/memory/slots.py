"""Which rows the tasks fill: the budget, the slots of the open task, what is counted of them, and the state.

The budget says how many rows there are: `slots` per task, per class or in total. The slots being filled are a list of
row numbers (`open_rows`), in one group or in one per class. A policy places samples in a group by counting, so its free
slots must come next. They do as a task fills its slots; where rows became free in between, `open_rows` is put in order
when the host changes something: when a task opens, when rows are forgotten and when a state is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from scale_cl.cuda_graphs import HostLog
from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.memory.policies import POLICIES, Balanced, PolicyName
from scale_cl.memory.stored_rows import StoredRows

Budget = Literal["task", "class", "total"]
BUDGETS: tuple[str, ...] = get_args(Budget)
_FIRST_BYTES = 256 * 2**20  # what the samples of the tasks foreseen at the start may take
_FIRST_TASKS = 32


class TaskSlots(StoredRows):
    """Rows of which each task, each class or all tasks together have `slots`."""

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
        shared_labels: bool = False,
        tasks: int | None = None,
        logits: Sequence[str] = ("class", "task"),
        host: HostLog | None = None,
    ) -> None:
        """Allocate for the `tasks` foreseen (by default what 256 MiB hold, at most 32); it grows by doubling.

        With `shared_labels`, a label means the same class in all tasks; otherwise each task has classes of its own.
        """
        if slots < 1:
            raise ConfigError(f"memory slots: {slots} is out of range, it must be at least 1")
        for what, given, known in (("policy", policy, tuple(POLICIES)), ("budget", budget, BUDGETS)):
            if given not in known:
                raise ConfigError(f"memory_{what} is {given!r}; it must be one of {', '.join(known)}")
        if budget == "total" and policy == "class-ring":
            raise ConfigError("memory_policy class-ring needs memory_budget task or class; with total take balanced")
        sample_bytes = max(1, math.prod(shape) * dtype.itemsize)
        rows = slots if budget == "total" else slots * (tasks or first_tasks(slots, sample_bytes))
        self.policy = POLICIES[policy]()
        self.by_class = self.policy.by_class or budget == "class"  # each class has a group of slots
        self.shared = budget == "total" or (budget == "class" and shared_labels)  # all tasks fill the same slots
        self.balanced = self.policy if isinstance(self.policy, Balanced) and not self.by_class else None
        gaps, balance = self.shared, self.balanced is not None
        super().__init__(rows, shape, dtype, device=device, logits=logits, host=host, gaps=gaps, balance=balance)
        self.slots, self.budget, self.shared_labels, self.generator = slots, budget, shared_labels, generator
        self.on_host = device.type == "cpu"  # the host reads tensors without waiting: there are shorter ways
        self.open_rows = torch.zeros(0, dtype=torch.int64, device=device)  # the slots being filled
        self.room = slots  # of one group among them
        self.is_plain_ring = False  # whether they are one ring, in the order of the rows
        self.held = 0  # how many of them are surely in use
        self.seen: list[int] = []  # samples that ever came for the slots of each task
        self.seen_here = torch.zeros((), dtype=torch.int64, device=device)  # for the slots being filled
        self.seen_of_class = torch.zeros(1, dtype=torch.int64, device=device)  # by group
        self._elsewhere = 0  # samples stored in other slots
        self._class_counts: dict[int, Tensor] = {}  # of the closed tasks
        self._blocks: dict[int, list[int]] = {}  # budget per class: which block of rows each class of a task has
        self._candidates = torch.zeros(0, dtype=torch.int64, device=device)  # the rows that are replayable
        self._by_task: list[Tensor] | None = None  # the same, apart for each task, once somebody asks
        self._open: int | None = None

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def open(self, task: int, classes: int) -> None:
        """Fill the slots of `task` (its number) from now on; unless all tasks share them, they are not replayed.

        An open task may be opened again, with more classes: all that is stored and counted stays.
        """
        if self._open not in (None, task):
            self.close()
        self.agree()
        self._keep_class_counts()
        self.seen += [0] * (task + 1 - len(self.seen))
        if self.budget == "class" and self.shared:
            classes = max(classes, len(self._blocks.get(0, ())))
        rows = self._rows_for(task, classes)
        if int(rows.max()) >= len(self.y):
            self.grow(int(rows.max()) + 1)
        self._open = task
        self._set_open_rows(rows)
        if not self.shared:
            self.replayable[rows] = False
        if self.by_class:
            counts = torch.zeros(classes, dtype=torch.int64, device=self.device)
            known = self._class_counts.get(self._owner)
            if known is not None:
                counts[: len(known)] = known
            if len(counts) != len(self.seen_of_class):
                self.seen_of_class = counts
            self.seen_of_class.copy_(counts)
        self.room = self._room_of_group(classes)
        self._count()
        self._find_gaps()

    def close(self) -> None:
        """End the open task: what its slots hold may be replayed from now on."""
        if self._open is None:
            return
        self.agree()
        self.replayable[self.open_rows] = self.stored[self.open_rows]
        self._keep_class_counts()
        self._open = None
        self._count()

    def forget(self, rows: Tensor) -> None:
        """Free these rows, between steps (waits for the device); their slots are the first to be filled again.

        The samples count as if they had not come. A ring takes them for its newest.
        """
        self.agree()
        rows = rows[self.stored[rows]].unique()
        self._keep_class_counts()
        for row in rows.tolist():
            task, group = self._place_of(row)
            self.seen[task] = max(0, self.seen[task] - 1)
            if self.by_class:
                self._class_counts[0 if self.shared else task][group].sub_(1).clamp_(min=0)
        self.free(rows)
        if self.by_class and self._open is not None:
            self.seen_of_class.copy_(self._class_counts[self._owner])
        self._count()

    def clear(self) -> None:
        """Keep no sample any more: for a method whose samples do not outlive their task. No task may be open."""
        self.free(self.stored.nonzero().flatten())
        self.x.zero_()
        self.seen, self._class_counts = [0] * len(self.seen), {}
        self._count()

    def _place_of(self, row: int) -> tuple[int, int]:
        """The task for whose slots a stored sample came, and the group in them."""
        task, label, block = int(self.task[row]), int(self.y[row]), row // self.slots
        if self.budget == "task":
            return block, label % len(self._class_counts[block]) if self.by_class else 0
        if self.budget == "class":
            owner, group = next((owner, own.index(block)) for owner, own in self._blocks.items() if block in own)
            return min(task, len(self.seen) - 1) if self.shared else owner, group
        return min(task, len(self.seen) - 1), 0

    @property
    def _owner(self) -> int:
        """By which number the slots being filled are known: that of the open task, or 0 where all tasks share them."""
        assert self._open is not None, "no task is open"
        return 0 if self.shared else self._open

    def _keep_class_counts(self) -> None:
        if self.by_class and self._open is not None:
            self._class_counts[self._owner] = self.seen_of_class.clone()

    def _rows_for(self, task: int, classes: int) -> Tensor:
        """The rows that a task may fill."""
        if self.budget == "task":
            return torch.arange(task * self.slots, (task + 1) * self.slots, device=self.device)
        if self.budget == "class":
            own = self._blocks.setdefault(0 if self.shared else task, [])
            first = sum(len(blocks) for blocks in self._blocks.values())
            own += range(first, first + classes - len(own))
            starts = torch.tensor(own, device=self.device) * self.slots
            return (starts.unsqueeze(1) + torch.arange(self.slots, device=self.device)).flatten()
        if not self.policy.ranked:
            return torch.arange(self.slots, device=self.device)
        self._make_room(task, classes)
        return (~self.stored | (self.task == task)).nonzero().flatten()

    def _set_open_rows(self, rows: Tensor) -> None:
        """In place where it fits: recorded steps refer to it."""
        if len(rows) == len(self.open_rows):
            self.open_rows.copy_(rows)
        else:
            self.open_rows = rows

    def _room_of_group(self, classes: int) -> int:
        if self.budget == "class":
            return self.slots
        return max(1, self.slots // max(1, classes)) if self.policy.by_class else len(self.open_rows)

    def came(self) -> int:
        """Samples that came for the slots being filled."""
        if self.shared and not self.policy.ranked:
            return sum(self.seen)
        assert self._open is not None, "no task is open"
        return self.seen[self._open]

    def class_key(self, y: Tensor, task: Tensor) -> Tensor:
        """One number per class."""
        return y if self.shared_labels else y + (task << 32)

    def _count(self) -> None:
        """After a change by the host: count what is stored, and put the slots being filled in order."""
        self._candidates = self.replayable.nonzero().flatten()
        self._by_task = None
        if self._open is not None:
            self.seen_here.fill_(self.came())
            if self.room > 1:
                self._put_free_slots_next(self.seen_of_class if self.by_class else self.seen_here.view(1))
        rows = self.open_rows[self.stored[self.open_rows]]
        self.held = len(rows)
        self._elsewhere = int(self.stored.sum()) - self.held
        if self.balanced:
            key = self.class_key(self.y[rows], self.task[rows])
            _, of_class, stored = key.unique(return_inverse=True, return_counts=True)
            self.balance[rows, 1] = stored[of_class]
        ring = self.budget == "task" and not self.by_class and not self.policy.random
        self.is_plain_ring = ring and bool((self.open_rows.diff() == 1).all())

    def _put_free_slots_next(self, came: Tensor) -> None:
        """Order each group's slots: those in use and then the free ones, so that the next sample's slot is free.

        A ring's next slot is `came` % room, by group; other policies' is the number of slots in use.
        """
        groups, room = len(came), self.room
        slots = self.open_rows[: groups * room].view(groups, room)
        stored, number = self.stored[slots], torch.arange(room, device=self.device)
        held = stored.sum(1, keepdim=True)
        following = held if self.policy.random else came.unsqueeze(1)
        around = (following + number) % room  # from the oldest on, in a ring that is full
        around = around.gather(1, (~stored).gather(1, around).long().argsort(stable=True))
        slots.copy_(torch.empty_like(slots).scatter(1, (following - held + number) % room, slots.gather(1, around)))

    def _find_gaps(self) -> None:
        """Note kinds of logits that some replayable samples lack, as samples of other tasks may."""
        for kept in self.logits.values():
            if kept.widths and bool((kept.width[self._candidates] == 0).any()):
                kept.widths.add(0)

    # ---- what is stored ----------------------------------------------------------------------------------------------

    @property
    def candidates(self) -> Tensor:
        """The rows that may be replayed: what closed tasks have stored; where all tasks share slots, all that is."""
        return self.stored.nonzero().flatten() if self.shared else self._candidates

    def finished(self) -> Tensor:
        """The rows that closed tasks have stored."""
        rows = self._candidates
        self.host.ask(lambda: (self._candidates.data_ptr(), len(self._candidates)))  # a recorded step refers to it
        return rows

    def finished_tasks(self) -> list[Tensor]:
        """The rows that closed tasks have stored, apart for the task of each sample."""
        self.host.ask(lambda: tuple((rows.data_ptr(), len(rows)) for rows in self._rows_by_task()))
        return self._rows_by_task()

    def _rows_by_task(self) -> list[Tensor]:
        if self._by_task is None:
            task = self.task[self._candidates]
            self._by_task = [self._candidates[task == number] for number in task.unique()]
        return self._by_task

    def available(self, *, current: bool = False) -> int:
        """How many samples a draw can surely have; with `current`, those in the open task's slots too."""
        if self.shared:
            return self._elsewhere + self.held
        own = min(self.held, self.room) if current and self._open is not None else 0
        return len(self._candidates) + own

    def wrote(self, n: int) -> None:
        """Count `n` samples that came for the open task's slots."""
        assert self._open is not None, "write needs an open task"
        self.seen[self._open] += n
        self.held = max(self.held, min(self.held + n, self.room))  # if all were of one group

    def agree(self, *, if_filling: bool = False) -> None:
        """Let the host's counts follow those of the device, which a step without effect leaves as they were.

        It waits for the device; `if_filling`, only while the host needs to know how many slots are in use.
        """
        if self._open is None or (if_filling and self.held >= self.room):
            return
        too_many = self.came() - int(self.seen_here)
        if too_many:
            self.seen[self._open] -= too_many
            self.held = min(self.held, int(self.stored[self.open_rows].sum()))

    def _make_room(self, task: int, classes: int) -> None:
        """Total budget with herding: each class of the other tasks keeps its share, the first in rank."""
        others = (self.stored & (self.task != task)).nonzero().flatten()
        key = self.class_key(self.y[others], self.task[others])
        known = key.unique()
        new = max(1, classes - int((known < classes).sum())) if self.shared_labels else classes
        quota = self.slots // (len(known) + new)
        if quota == 0:
            raise ConfigError(f"memory {self.slots} in total is less than one slot per class; take a larger memory")
        for of_class in known:
            own = others[key == of_class]
            self.free(own[self.rank[own].argsort(stable=True)[quota:]])

    # ---- state -------------------------------------------------------------------------------------------------------

    def tensors(self) -> list[Tensor]:
        """All tensors that a step reads or writes: while none of them moves, a recorded step stays valid."""
        return [*super().tensors(), self.seen_here, self.seen_of_class, self.open_rows]

    @property
    def _rows_in_use(self) -> int:
        blocks = len(self.seen) if self.budget == "task" else sum(len(own) for own in self._blocks.values())
        return self.slots if self.budget == "total" else blocks * self.slots

    def state_dict(self) -> dict[str, Tensor]:
        """All that is stored, trimmed to the rows in use."""
        self.agree()
        state = self.saved_rows(self._rows_in_use)
        state["seen"] = torch.tensor(self.seen, dtype=torch.int64)
        state["open"] = torch.tensor(-1 if self._open is None else self._open)
        state["scope"] = self.open_rows.clone()
        state["seen_of_class"] = self.seen_of_class.clone()
        state |= {f"class_counts.{task}": counts.clone() for task, counts in self._class_counts.items()}
        state |= {f"class_blocks.{task}": torch.tensor(own) for task, own in self._blocks.items()}
        return state

    def check_rows(self, state: Mapping[str, Tensor]) -> None:
        """Raise CheckpointError unless a state has as many rows, of such samples, as this memory would have."""
        rows, blocks = len(state["y"]), _numbered(state, "class_blocks.")
        counted = {"task": len(state["seen"]), "class": sum(map(len, blocks.values())), "total": 1}[self.budget]
        if state["x"].shape[1:] != self.x.shape[1:] or rows != counted * self.slots:
            raise CheckpointError(
                f"memory state holds samples of shape {tuple(state['x'].shape[1:])} in {rows} rows: "
                f"this learner keeps {self.slots} per {self.budget} of shape {tuple(self.x.shape[1:])}"
            )

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` returned, in place where it fits."""
        per_task = tuple(f"class_{what}.{task}" for task in range(len(self.seen)) for what in ("counts", "blocks"))
        if missing := self.state_dict().keys() - state.keys() - set(per_task):
            raise CheckpointError(f"state of a memory has no {min(missing)}; it was saved by a learner of another kind")
        self.check_rows(state)
        blocks = _numbered(state, "class_blocks.")
        self.take_rows(state)
        self.seen = [int(n) for n in state["seen"]]
        self._open = None if int(state["open"]) < 0 else int(state["open"])
        self._set_open_rows(state["scope"].to(self.device, copy=True))
        self.seen_of_class = state["seen_of_class"].clone().to(self.device)
        self.room = self._room_of_group(len(self.seen_of_class))
        self._class_counts = {task: t.clone().to(self.device) for task, t in _numbered(state, "class_counts.").items()}
        self._blocks = {task: [int(block) for block in own] for task, own in blocks.items()}
        self._count()
        self._find_gaps()


def first_tasks(slots: int, sample_bytes: int) -> int:
    """For how many tasks a memory has room before it grows the first time."""
    return max(1, min(_FIRST_TASKS, _FIRST_BYTES // max(1, slots * sample_bytes)))


def _numbered(state: Mapping[str, Tensor], prefix: str) -> dict[int, Tensor]:
    return {int(name.removeprefix(prefix)): t for name, t in state.items() if name.startswith(prefix)}
