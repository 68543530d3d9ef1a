"""Rows of stored samples: preallocated tensors with one row per sample, and the logits kept with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.cuda_graphs import HostLog
from scale_cl.memory.ragged_rows import Journal, RaggedRows, enlarged, taken


@dataclass(frozen=True)
class Batch:
    """What arrived: raw samples, their labels and tasks."""

    x: Tensor  # [n, *shape] uint8 or float32, as it came
    y: Tensor  # [n] int64, within the head of each sample's task
    task: Tensor  # [n] int64

    def __len__(self) -> int:
        return self.y.shape[0]  # `len` of a tensor takes three times as long

    def __getitem__(self, which: slice | Tensor) -> Batch:
        """Some of the samples: a slice, or those with these numbers."""
        if isinstance(which, slice):
            return Batch(self.x[which], self.y[which], self.task[which])
        return Batch(taken(self.x, which), taken(self.y, which), taken(self.task, which))


class StoredRows:
    """Samples with their labels, tasks and perhaps logits; a row's place says nothing about its task."""

    def __init__(
        self,
        rows: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        device: torch.device,
        logits: Sequence[str],
        host: HostLog | None,
        gaps: bool,
        balance: bool,
    ) -> None:
        """Allocate `rows` rows, all free.

        Args:
            rows: how many.
            shape: of a sample.
            dtype: of a sample.
            device: of all tensors.
            logits: kinds of logits that may be kept with samples.
            host: where decisions of the host are noted.
            gaps: whether samples without logits are drawn from the start, as in a memory that all tasks share.
            balance: whether rows have counts of their classes, for the policy `balanced`.
        """
        self.device, self.host = device, HostLog() if host is None else host
        self.journal = Journal()  # of the step under way
        self.x = torch.zeros((rows, *shape), dtype=dtype, device=device)
        self.y = torch.zeros(rows, dtype=torch.int64, device=device)
        self.task = torch.zeros(rows, dtype=torch.int64, device=device)
        self.stored = torch.zeros(rows, dtype=torch.bool, device=device)  # a row that is not stored is free
        self.replayable = torch.zeros(rows, dtype=torch.bool, device=device)
        self.rank = torch.zeros(rows, dtype=torch.int64, device=device)  # by herding, within a sample's class
        # for the policy `balanced`, of a sample's class: samples that left, samples stored, whether it is full
        self.balance = torch.zeros((rows if balance else 0, 3), dtype=torch.int64, device=device)
        self.row = torch.arange(rows, device=device)  # row numbers
        self.columns = ("x", "y", "task", "stored", "replayable", "rank", *(("balance",) if balance else ()))
        self.logits = {kind: RaggedRows(rows, device, self.host, gaps=gaps, journal=self.journal) for kind in logits}

    def rows_of(self, task: int) -> Tensor:
        """The rows that hold a sample of a task (waits for the device)."""
        return (self.stored & (self.task == task)).nonzero().flatten()

    def put(self, rows: Tensor, batch: Batch, chosen: Tensor | None, logits: Tensor | None) -> None:
        """Store samples, only those that are `chosen` if there is a choice, without the logits that were there."""
        for column, values in ((self.x, batch.x), (self.y, batch.y), (self.task, batch.task)):
            self.journal.set_rows(column, rows, values, chosen)
        self.journal.set_rows(self.stored, rows, torch.ones_like(rows, dtype=torch.bool), chosen)
        for kind, kept in self.logits.items():
            if logits is None or kind != "class":
                self.journal.set_rows(kept.width, rows, torch.zeros_like(rows), chosen)
        if logits is not None:
            self.logits["class"].overwrite(rows, logits, chosen)

    def free(self, rows: Tensor) -> None:
        """Free these rows; their logits go with them."""
        self.stored[rows] = self.replayable[rows] = False
        for kept in self.logits.values():
            kept.width[rows] = 0

    def stored_logits(self, rows: Tensor, columns: int, kind: str = "class") -> tuple[Tensor, Tensor | None]:
        """Logits stored with `rows`, [..., columns], and which of them exist, [..., columns] (None: all)."""
        return self.logits[kind].get(rows, columns)

    def keep_logits(self, kind: str, rows: Tensor, values: Tensor) -> None:
        """Keep logits or other values of that kind, [n, width], with `rows`, in place of those that they had."""
        self.logits[kind].put(rows, values)

    def grow(self, rows: int) -> None:
        """Double until there are at least `rows` rows."""
        size = max(len(self.y), 1)
        while size < rows:
            size *= 2
        for name in self.columns:
            setattr(self, name, enlarged(getattr(self, name), size))
        for kept in self.logits.values():
            kept.grow(size)
        self.row = torch.arange(size, device=self.device)

    def tensors(self) -> list[Tensor]:
        """All tensors that a step reads or writes: while none of them moves, a recorded step stays valid."""
        own = [self.row, *(getattr(self, name) for name in self.columns)]
        return own + [t for kept in self.logits.values() for t in (kept.flat, kept.start, kept.width)]

    def saved_rows(self, rows: int) -> dict[str, Tensor]:
        """The first `rows` rows, as tensors by name."""
        state = {name: getattr(self, name)[:rows].clone() for name in self.columns}
        for name, kept in self.logits.items():
            state[f"{name}.flat"] = kept.flat[: kept.used].clone()
            state[f"{name}.start"], state[f"{name}.width"] = kept.start[:rows].clone(), kept.width[:rows].clone()
        return state

    def take_rows(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `saved_rows` returned, in place where it fits."""
        rows = len(state["y"])
        if rows > len(self.y):
            self.grow(rows)
        for name in self.columns:
            mine = getattr(self, name)
            mine.zero_()
            mine[:rows] = state[name].to(self.device)
        for name, kept in self.logits.items():
            kept.take(*(state[f"{name}.{part}"] for part in ("flat", "start", "width")))


def saved_kinds(state: Mapping[str, Tensor]) -> list[str]:
    """Kinds of logits that the saved rows of a memory have."""
    return [name.removesuffix(".flat") for name in state if name.endswith(".flat")]
