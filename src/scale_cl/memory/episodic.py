"""The one episodic memory: slots that a policy fills, and draws from what they hold, without host work.

While a task is open, what arrives is written to its slots (`write`), whatever task each sample is of; when the task
ends it may be replayed. Every draw and every write is made of device operations of a fixed shape, so a step that
contains them can be recorded as a CUDA graph. What the host decides and counts meanwhile goes through a `HostLog`, so
that a replayed step decides and counts the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scale_cl.memory.policies import herding_order
from scale_cl.memory.ragged_rows import taken
from scale_cl.memory.slots import TaskSlots
from scale_cl.memory.stored_rows import Batch


class EpisodicMemory(TaskSlots):
    """Samples of earlier tasks: `slots` per task, per class or in total, kept by a policy."""

    # ---- draws -------------------------------------------------------------------------------------------------------

    def draw_size(self, n: int, *, current: bool = False) -> int:
        """The size of a draw of at most `n` samples now."""
        return self.host.ask(lambda: min(n, self.available(current=current)))

    def draws(self, times: int, n: int, *, current: bool = False) -> Tensor:
        """[times, n] rows: draws that are uniform and without replacement each; `n` must not exceed `available`.

        A row's key is a hash of its number and of two random numbers, and a draw takes the rows with the highest keys:
        it does not depend on how many rows are allocated. The hash is a bijection of 32 bits, so no two keys are equal.
        """
        a, b = torch.randint(0, 2**31, (times, 2, 1), generator=self.generator, device=self.device).unbind(1)
        if self.on_host:  # no shape to keep: only the candidates are hashed
            rows = self.stored.nonzero().flatten() if current else self.candidates
            return taken(rows, _mix32_(torch.addcmul(b, rows, 2 * a + 1)).topk(n).indices)
        drawable = self.stored if current or self.shared else self.replayable
        return _mix32_(torch.addcmul(b, self.row, 2 * a + 1)).masked_fill_(~drawable, -1).topk(n).indices

    def latest(self) -> Tensor:
        """Row [1] of the sample that a ring wrote last in the open task; it must hold one."""
        return taken(self.open_rows, ((self.seen_here - 1) % len(self.open_rows)).view(1))

    # ---- writes ------------------------------------------------------------------------------------------------------

    def write(self, batch: Batch, logits: Tensor | None = None) -> None:
        """Put a batch into the slots of the open task, as the policy says: the last line of algorithm 1.

        `logits` [n, classes] are kept with the samples, in the room that `reserve_logits` made as the task was opened.
        """
        n = len(batch)
        if self.on_host and self.is_plain_ring and logits is None:
            self._write_ring(batch)
        else:
            short = self.on_host and not self.by_class
            rows, source, hit = self._places_on_host(batch) if short else self._places(batch)
            if len(rows):
                self.put(rows, batch[source], hit, None if logits is None else logits[source])
                if self.shared:
                    self.journal.set_rows(self.replayable, rows, torch.zeros_like(rows, dtype=torch.bool), hit)
        self.journal.note(self.seen_here)
        self.seen_here += n
        self.host.do(lambda: self.wrote(n))

    def _write_ring(self, batch: Batch) -> None:
        """`write` of a ring whose rows lie side by side: slices, up to its end."""
        arrived, begin = len(batch), int(self.open_rows[0])
        first = max(0, arrived - self.room)
        while first < arrived:
            place = (self.came() + first) % self.room
            n = min(arrived - first, self.room - place)
            rows, some = slice(begin + place, begin + place + n), batch[first : first + n]
            x, y, task, stored = self.x[rows], self.y[rows], self.task[rows], self.stored[rows]
            widths = [kept.width[rows] for kept in self.logits.values()]
            self.journal.note(x, y, task, stored, *widths)
            x.copy_(some.x)
            y.copy_(some.y)
            task.copy_(some.task)
            stored.fill_(True)
            for width in widths:
                width.zero_()
            first += n

    def _places_on_host(self, batch: Batch) -> tuple[Tensor, Tensor, None]:
        """`_places` where the host can see how few samples of a batch are kept: only their rows."""
        n, came, room = len(batch), self.came(), self.room
        chances = self._chances(n).tolist() if self.policy.random else [0.0] * n
        if self.balanced:
            key, counts = self._classes_of_slots()
            arriving = self.class_key(batch.y, batch.task).tolist()
            places = self.balanced.choose_on_host(key.numpy(), counts.numpy(), arriving, chances)
            self._keep_counts(counts)
        else:
            places = [self.policy.place(came + i, self.held + i, room, chance) for i, chance in enumerate(chances)]
        kept = {place: i for i, place in enumerate(places)}  # the last one stays
        kept.pop(room, None)
        if not kept:
            return self.open_rows[:0], self.open_rows[:0], None
        place, source = torch.tensor([[*kept], [*kept.values()]])
        return taken(self.open_rows, place), source, None

    def _places(self, batch: Batch) -> tuple[Tensor, slice | Tensor, Tensor | None]:
        """Rows, which sample of the batch goes into each, and which of the rows get one (None: all)."""
        n, size = len(batch), len(self.open_rows)
        order = torch.arange(n, device=self.device)
        chance = self._chances(n) if self.policy.random else None
        if not self.by_class and not self.policy.random:  # a ring: no two of its last samples share a slot
            kept = slice(n - min(n, size), n)
            came = self.seen_here + order[kept]
            return taken(self.open_rows, self.policy.places(came, came, size, None)), kept, None
        if self.balanced:
            assert chance is not None
            key, counts = self._classes_of_slots()
            place = self.balanced.choose(key, counts, self.class_key(batch.y, batch.task), chance)
            self._keep_counts(counts)
        elif self.by_class:
            place = self._places_by_class(batch.y, chance)
        else:
            held = taken(self.stored, self.open_rows).sum() + order
            place = self.policy.places(self.seen_here + order, held, size, chance)
        # several of a batch may fall on one slot: the last one stays
        last = torch.full((size + 1,), -1, device=self.device)
        last = last.scatter_reduce_(0, place, order, "amax")[:size]
        return self.open_rows, last.clamp(min=0), last >= 0

    def _places_by_class(self, y: Tensor, chance: Tensor | None) -> Tensor:
        """Slots of samples [n] where each class has a group; a label that the open task lacks shares another's."""
        groups, size = len(self.seen_of_class), len(self.open_rows)
        group = y % groups
        of_group = group.unsqueeze(1) == torch.arange(groups, device=self.device)
        before = (of_group.cumsum(0) * of_group).sum(1) - 1  # samples of its group in this batch
        came = self.seen_of_class[group] + before
        held = came
        if self.policy.random:
            held = taken(self.stored, self.open_rows).view(groups, self.room).sum(1)[group] + before
        inside = self.policy.places(came, held, self.room, chance)
        self.journal.note(self.seen_of_class)
        self.seen_of_class += of_group.sum(0)
        return torch.where(inside < self.room, (group * self.room + inside) % size, size)

    def _chances(self, n: int) -> Tensor:
        return torch.rand(n, generator=self.generator, device=self.device, dtype=torch.float64)

    def _classes_of_slots(self) -> tuple[Tensor, Tensor]:
        """What `Balanced` works on: the class in each slot, and the counts of that class."""
        stored, y, task, counts = (taken(t, self.open_rows) for t in (self.stored, self.y, self.task, self.balance))
        key = torch.where(stored, self.class_key(y, task), -1 - torch.arange(len(y), device=self.device))
        counts = (counts * stored.unsqueeze(1)).T.contiguous()
        counts[0] += counts[1]
        return key, counts

    def _keep_counts(self, counts: Tensor) -> None:
        """Keep what `Balanced` counted; of the samples that came, those that are not stored, which `forget` leaves."""
        counts[0] -= counts[1]
        self.journal.set_rows(self.balance, self.open_rows, counts.T)

    # ---- logits and herding ------------------------------------------------------------------------------------------

    def reserve_logits(self, classes: int) -> None:
        """Make room for logits of so many classes in the slots of the open task, for `write` to fill."""
        self.logits["class"].reserve(self.open_rows, classes)

    def herd(self, task: int, features: Tensor) -> None:
        """Rank the stored samples of a task by herding; `features` [n, width] are those of `rows_of(task)`."""
        rows = self.rows_of(task)
        for label in self.y[rows].unique():
            own = (self.y[rows] == label).nonzero().flatten()
            order = herding_order(features[own])
            self.rank[rows[own[order]]] = torch.arange(len(own), device=self.device)


def _mix32_(value: Tensor) -> Tensor:
    """Murmur's finaliser on the low 32 bits, in place: every output bit depends on every input bit."""
    low = 0xFFFFFFFF
    value.bitwise_and_(low)
    value.bitwise_xor_(value >> 16).mul_(0x85EBCA6B).bitwise_and_(low)
    value.bitwise_xor_(value >> 13).mul_(0xC2B2AE35).bitwise_and_(low)
    return value.bitwise_xor_(value >> 16)
