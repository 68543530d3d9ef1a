"""The one episodic memory: a fixed number of slots a task in preallocated tensors, drawn from without host work.

A task's samples lie in a block of rows of its own. While a task trains, its block fills (`write`); when it ends, the
block becomes a candidate for replay (`close`). Every draw and every write is made of device operations of a fixed
shape, so a step that contains them can be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import CheckpointError
from scale_cl.ragged_rows import RaggedRows, enlarged, set_rows, taken

Policy = Literal["ring", "class-ring", "reservoir"]
_FIRST_BYTES = 256 * 2**20  # what the samples of the tasks foreseen at the start may take
_FIRST_TASKS = 32


class EpisodicMemory:
    """Samples of earlier tasks: `slots` a task, kept by ring, by ring per class or by reservoir."""

    def __init__(
        self,
        slots: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        device: torch.device,
        generator: torch.Generator,
        policy: Policy = "ring",
        tasks: int | None = None,
    ) -> None:
        """Allocate for the `tasks` foreseen (by default what 256 MiB hold, at most 32); more are made as they come."""
        sample_bytes = max(1, math.prod(shape) * dtype.itemsize)
        if tasks is None:
            tasks = first_tasks(slots, sample_bytes)
        rows = tasks * slots
        self.slots, self.policy, self.device, self._generator = slots, policy, device, generator
        self.on_host = device.type == "cpu"  # the host reads tensors without waiting: there are shorter ways
        self.x = torch.zeros((rows, *shape), dtype=dtype, device=device)
        self.y = torch.zeros(rows, dtype=torch.int64, device=device)
        self.task = torch.zeros(rows, dtype=torch.int64, device=device)
        self.stored = torch.zeros(rows, dtype=torch.bool, device=device)
        self.replayable = torch.zeros(rows, dtype=torch.bool, device=device)
        self.logits = {"class": RaggedRows(rows, device), "task": RaggedRows(rows, device)}
        self.seen: list[int] = []  # samples that ever came, a task
        self._seen = torch.zeros((), dtype=torch.int64, device=device)  # of the open task
        self._seen_of_class = torch.zeros(1, dtype=torch.int64, device=device)
        self._base = torch.zeros((), dtype=torch.int64, device=device)  # first row of the open task
        self._per_class = slots
        self._candidates = torch.zeros(0, dtype=torch.int64, device=device)  # the rows that are replayable
        self._open: int | None = None
        self._class_counts: dict[int, Tensor] = {}
        self._row = torch.arange(rows, device=device)
        self.version = 0  # changes whenever a tensor moves: graphs recorded before are void

    def open(self, task: int, classes: int) -> None:
        """Let `task` (its number) write from now on; its own rows are no candidates for replay meanwhile."""
        while task >= len(self.seen):
            self.seen.append(0)
        if (task + 1) * self.slots > len(self.y):
            self._grow((task + 1) * self.slots)
        self._open = task
        self.task[self.block(task)] = task
        self.replayable[self.block(task)] = False
        self._count()
        self._base.fill_(task * self.slots)
        self._seen.fill_(self.seen[task])
        if self.policy == "class-ring":
            counts = torch.zeros(classes, dtype=torch.int64, device=self.device)
            known = self._class_counts.get(task)
            if known is not None:
                counts[: len(known)] = known
            if len(counts) != len(self._seen_of_class):
                self._seen_of_class, self.version = counts, self.version + 1
            self._seen_of_class.copy_(counts)
            self._per_class = max(1, self.slots // classes)

    def close(self) -> None:
        """End the open task: what it stored may be replayed from now on."""
        if self._open is None:
            return
        block = self.block(self._open)
        self.replayable[block] = self.stored[block]
        if self.policy == "class-ring":
            self._class_counts[self._open] = self._seen_of_class.clone()
        self._open = None
        self._count()

    def block(self, task: int) -> slice:
        """The rows of a task."""
        return slice(task * self.slots, (task + 1) * self.slots)

    def rows_of(self, task: int) -> Tensor:
        """The rows of a task that hold a sample (waits for the device)."""
        return self._row[self.block(task)][self.stored[self.block(task)]]

    @property
    def candidates(self) -> Tensor:
        """The rows that may be replayed: what the finished tasks have stored."""
        return self._candidates

    def available(self, *, current: bool = False) -> int:
        """How many samples a draw can surely have; with `current`, the open task's own count too."""
        if not current or self._open is None:
            return len(self._candidates)
        room = self._per_class if self.policy == "class-ring" else self.slots
        return len(self._candidates) + min(self.seen[self._open], room)

    def draw(self, n: int, *, current: bool = False) -> Tensor:
        """Rows of `n` samples, uniform and without replacement; `n` must not exceed `available`.

        A row's key is a hash of its number and of two random numbers, so the draw does not depend on how many rows are
        allocated. The hash is a bijection of 32 bits: no two rows share a key.
        """
        return self.draws(1, n, current=current)[0]

    def draws(self, times: int, n: int, *, current: bool = False) -> Tensor:
        """[times, n] rows: what `draw` gives when it is called so many times."""
        shape = times, 2, 1
        drawn = torch.randint(0, 2**31, shape, generator=self._generator, device=self.device)
        if self.on_host and not current:  # no shape to keep: only the candidates are hashed
            return taken(self._candidates, _first_by_hash(self._candidates.numpy(), drawn.numpy(), n))
        a, b = drawn.unbind(1)
        candidates = self.replayable
        if current:
            candidates = candidates | (self.stored & (self.task * self.slots == self._base))
        keys = _mix32_((self._row * (2 * a + 1)).add_(b))
        return keys.masked_fill_(~candidates, -1).topk(n).indices

    def latest(self) -> Tensor:
        """Row [1] of the sample that a ring wrote last in the open task; it must have written one."""
        return (self._base + (self._seen - 1) % self.slots).view(1)

    def write(self, x: Tensor, y: Tensor, logits: Tensor | None = None) -> None:
        """Put a batch of the open task into its block, as the policy says; device work only (see `wrote`).

        `logits` [n, classes] are kept with the samples, in the room that `reserve_logits` made as the task was opened.
        """
        if self.on_host and self.policy != "class-ring" and logits is None:
            (self._write_ring if self.policy == "ring" else self._write_reservoir)(x, y)
            self._seen += len(y)
            return
        rows, source, hit = self._places(y)
        set_rows(self.x, rows, x[source], hit)
        set_rows(self.y, rows, y[source], hit)
        set_rows(self.stored, rows, torch.ones_like(rows, dtype=torch.bool), hit)
        if logits is not None:
            self.logits["class"].overwrite(rows, logits[source], hit)
        self._seen += len(y)

    def _write_ring(self, x: Tensor, y: Tensor) -> None:
        """What `write` does to a ring, where the host's own count says where it stands: slices, up to its end."""
        assert self._open is not None, "write needs an open task"
        first, begin = max(0, len(y) - self.slots), self._open * self.slots
        while first < len(y):
            place = (self.seen[self._open] + first) % self.slots
            n = min(len(y) - first, self.slots - place)
            own, batch = slice(begin + place, begin + place + n), slice(first, first + n)
            self.x[own], self.y[own], self.stored[own] = x[batch], y[batch], True
            first += n

    def _write_reservoir(self, x: Tensor, y: Tensor) -> None:
        """What `write` does to a reservoir, where the host can see how few samples of a batch are kept."""
        assert self._open is not None, "write needs an open task"
        kept: dict[int, int] = {}  # slot: which sample of the batch, the last one that falls on it
        for i, chance in enumerate(self._chances(len(y)).tolist()):
            came = self.seen[self._open] + i
            place = came if came < self.slots else int(chance * (came + 1))
            if place < self.slots:
                kept[place] = i
        if kept:
            rows, batch = self._open * self.slots + torch.tensor(list(kept)), torch.tensor(list(kept.values()))
            self.x[rows], self.y[rows], self.stored[rows] = x[batch], y[batch], True

    def _places(self, y: Tensor) -> tuple[Tensor, slice | Tensor, Tensor | None]:
        """Rows, which sample of the batch goes into each, and which of the rows get one (None: all)."""
        n = len(y)
        order = torch.arange(n, device=self.device)
        if self.policy == "ring":
            kept = slice(n - min(n, self.slots), n)
            return self._base + (self._seen + order[kept]) % self.slots, kept, None
        place = self._reservoir_places(n) if self.policy == "reservoir" else self._class_places(y)
        # several of a batch may fall on one slot: the last one stays
        last = torch.full((self.slots + 1,), -1, device=self.device)
        last = last.scatter_reduce_(0, place, order, "amax")[: self.slots]
        return self._base + torch.arange(self.slots, device=self.device), last.clamp(min=0), last >= 0

    def wrote(self, n: int) -> None:
        """Note on the host that a batch of `n` was written: the part of `write` that a replayed graph does not do."""
        assert self._open is not None, "write needs an open task"
        self.seen[self._open] += n

    def keep_logits(self, kind: str, rows: Tensor, values: Tensor) -> None:
        """Store the logits [n, width] of `rows`: of their classes or of their tasks, by the model of this moment."""
        self.version += self.logits[kind].put(rows, values)

    def reserve_logits(self, classes: int) -> None:
        """Make room for logits of so many classes in the open task's block, for `write` to fill."""
        assert self._open is not None, "reserve_logits needs an open task"
        self.version += self.logits["class"].reserve(self._row[self.block(self._open)], classes)

    def forget(self, rows: Tensor) -> None:
        """Delete the samples of `rows`, their labels and their logits."""
        self.x[rows], self.y[rows], self.stored[rows], self.replayable[rows] = 0, 0, False, False
        for kept in self.logits.values():
            kept.width[rows] = 0
        self._count()

    def _reservoir_places(self, n: int) -> Tensor:
        """Vitter's algorithm R over the open task's samples; `slots` stands for not kept."""
        came = self._seen + torch.arange(n, device=self.device)
        place = torch.where(came < self.slots, came, (self._chances(n) * (came + 1)).long())
        return place.clamp(max=self.slots)

    def _chances(self, n: int) -> Tensor:
        return torch.rand(n, generator=self._generator, device=self.device, dtype=torch.float64)

    def _class_places(self, y: Tensor) -> Tensor:
        """A ring per class inside the task's block; more classes than slots share them."""
        of_class = y.unsqueeze(1) == torch.arange(len(self._seen_of_class), device=self.device)
        rank = (of_class.cumsum(0) * of_class).sum(1) - 1
        place = y * self._per_class + (self._seen_of_class[y] + rank) % self._per_class
        self._seen_of_class += of_class.sum(0)
        return place % self.slots

    def _count(self) -> None:
        self._candidates = self.replayable.nonzero().flatten()

    def _grow(self, rows: int) -> None:
        size = max(len(self.y), self.slots)
        while size < rows:
            size *= 2
        for name in ("x", "y", "task", "stored", "replayable"):
            setattr(self, name, enlarged(getattr(self, name), size))
        for kept in self.logits.values():
            kept.grow(size)
        self._row = torch.arange(size, device=self.device)
        self.version += 1

    def state_dict(self) -> dict[str, Tensor]:
        """All that is stored, trimmed to the rows in use."""
        rows = len(self.seen) * self.slots
        state = {name: getattr(self, name)[:rows].clone() for name in ("x", "y", "task", "stored", "replayable")}
        state["seen"] = torch.tensor(self.seen, dtype=torch.int64)
        state["open"] = torch.tensor(-1 if self._open is None else self._open)
        state["seen_of_class"] = self._seen_of_class.clone()
        for task, counts in self._class_counts.items():
            state[f"class_counts.{task}"] = counts.clone()
        for name, kept in self.logits.items():
            state[f"{name}.flat"] = kept.flat[: kept.used].clone()
            state[f"{name}.start"], state[f"{name}.width"] = kept.start[:rows].clone(), kept.width[:rows].clone()
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave, in place where it fits."""
        if missing := self.state_dict().keys() - state.keys() - {f"class_counts.{task}" for task in self._class_counts}:
            raise CheckpointError(f"state of a memory has no {min(missing)}; it was saved by a learner of another kind")
        rows = len(state["y"])
        if state["x"].shape[1:] != self.x.shape[1:] or rows != len(state["seen"]) * self.slots:
            raise CheckpointError(
                f"memory state holds samples of shape {tuple(state['x'].shape[1:])} in blocks that do not match: "
                f"this learner keeps {self.slots} a task of shape {tuple(self.x.shape[1:])}"
            )
        if rows > len(self.y):
            self._grow(rows)
        for name in ("x", "y", "task", "stored", "replayable"):
            mine = getattr(self, name)
            mine.zero_()
            mine[:rows] = state[name].to(self.device)
        self.seen = [int(n) for n in state["seen"]]
        opened = int(state["open"])
        self._open = None if opened < 0 else opened
        if self._open is not None:
            self._base.fill_(self._open * self.slots)
            self._seen.fill_(self.seen[self._open])
        self._seen_of_class = state["seen_of_class"].clone().to(self.device)
        self._per_class = max(1, self.slots // max(1, len(self._seen_of_class)))
        prefix = "class_counts."
        self._class_counts = {
            int(name.removeprefix(prefix)): counts.clone().to(self.device)
            for name, counts in state.items()
            if name.startswith(prefix)
        }
        for name, kept in self.logits.items():
            kept.width.zero_()
            kept.start[:rows], kept.width[:rows] = (
                state[f"{name}.{part}"].to(self.device) for part in ("start", "width")
            )
            flat = state[f"{name}.flat"].to(self.device)
            kept.used = len(flat)
            kept.widths = {int(width) for width in kept.width.unique() if width > 0}
            if len(flat) > len(kept.flat):
                kept.flat = enlarged(kept.flat, 2 ** math.ceil(math.log2(len(flat))))
            kept.flat[: len(flat)] = flat
        self._count()
        self.version += 1


def first_tasks(slots: int, sample_bytes: int) -> int:
    """For how many tasks a memory has room before it grows the first time."""
    return max(1, min(_FIRST_TASKS, _FIRST_BYTES // max(1, slots * sample_bytes)))


def _first_by_hash(rows: NDArray[np.int64], drawn: NDArray[np.int64], n: int) -> Tensor:
    """Which of the `rows` the hash of `draws` puts first, [times, n]: the same keys, by numpy's cheaper calls."""
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
