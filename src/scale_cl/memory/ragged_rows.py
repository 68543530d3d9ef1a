"""Rows of different widths in one flat tensor, so that what is kept of early tasks does not widen as tasks arrive.

What a step overwrites, here or in other tensors of a memory, is noted in a `Journal`, so that a step that diverged or
broke off can be taken back. Noting costs a copy of the few rows that are written, where a copy of the whole memory
would cost every step. Outside of a step nothing is noted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scale_cl.cuda_graphs import HostLog

FIRST_ROOM = 2**15  # values: what some 30 tasks of 50 samples take, so that graphs recorded early stay good


class Journal:
    """Values as they were before the step, latest last."""

    def __init__(self) -> None:
        """No step has begun."""
        self.is_open = False
        self._noted: list[tuple[Tensor, Tensor | None, Tensor]] = []  # tensor, rows (None: all), their values before

    def begin(self) -> None:
        """A step begins: note what is overwritten from now on."""
        self._noted.clear()
        self.is_open = True

    def end(self) -> None:
        """The step stands, or was taken back."""
        self.is_open = False
        self._noted.clear()

    def note(self, *tensors: Tensor) -> None:
        """These tensors, which may be views of larger ones, are about to be overwritten."""
        if self.is_open:
            for t in tensors:
                self._noted.append((t, None, t.clone()))

    def set_rows(self, target: Tensor, rows: Tensor, values: Tensor, chosen: Tensor | None = None) -> None:
        """Set `rows` of `target` to `values`, only those that are `chosen` if there is a choice."""
        if self.is_open or chosen is not None:
            before = target.index_select(0, rows)
            if self.is_open:
                self._noted.append((target, rows, before))
            if chosen is not None:
                values = torch.where(chosen.view(-1, *[1] * (values.dim() - 1)), values, before)
        target.index_copy_(0, rows, values)

    def put_back(self, unless: Tensor | None = None) -> None:
        """Undo all that was noted, the latest first; device work only. `unless` [] is true, if there is one."""
        for target, rows, before in reversed(self._noted):
            if unless is not None:
                now = target if rows is None else target.index_select(0, rows)
                before = torch.where(unless, now, before)
            if rows is None:
                target.copy_(before)
            else:
                target.index_copy_(0, rows, before)


class RaggedRows:
    """Rows of floats, each kept at its own width, in one flat tensor: logits of tasks that had fewer columns then."""

    def __init__(
        self,
        rows: int,
        device: torch.device,
        host: HostLog | None = None,
        *,
        gaps: bool = False,
        journal: Journal | None = None,
    ) -> None:
        """Start with room for `rows` rows, none of them set; with `gaps`, rows may be read that were never put."""
        self.host = HostLog() if host is None else host
        self.journal = Journal() if journal is None else journal
        self.flat = torch.zeros(FIRST_ROOM, device=device)
        self.start = torch.zeros(rows, dtype=torch.int64, device=device)
        self.width = torch.zeros(rows, dtype=torch.int64, device=device)
        self.used = 0
        self._gaps = {0} if gaps else set()
        self.widths: set[int] = set(self._gaps)  # all that were ever put

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        self.start, self.width = enlarged(self.start, rows), enlarged(self.width, rows)

    def put(self, rows: Tensor, values: Tensor) -> None:
        """Set `rows` to `values` [n, width]."""
        if not self.journal.is_open:  # else what they hold may be wanted again
            self.width[rows] = 0
        if self.used + values.numel() > len(self.flat):
            self._compact(values.numel())
        self.journal.note(self.start, self.width)
        width = values.shape[1]
        self.widths.add(width)
        self.start[rows] = self.used + width * torch.arange(len(rows), device=rows.device)
        self.width[rows] = width
        self.flat[self.used : self.used + values.numel()] = values.flatten().to(self.flat.dtype)
        self.used += values.numel()

    def reserve(self, rows: Tensor, width: int) -> None:
        """Give `rows` room for at least `width` values each and leave what they hold."""
        held, exists = self._padded(rows, max([width, *self.width[rows].tolist()]))
        self.put(rows, held)
        self.width[rows] = exists.sum(1)

    def overwrite(self, rows: Tensor, values: Tensor, chosen: Tensor | None) -> None:
        """Set those `rows` that are `chosen` [n] to `values` [n, width], in the room they have; device work only."""
        width = values.shape[1]
        at = (self.start[rows].unsqueeze(1) + torch.arange(width, device=rows.device)).flatten()
        every = None if chosen is None else chosen.repeat_interleave(width, output_size=len(at))
        self.journal.set_rows(self.flat, at, values.flatten().to(self.flat.dtype), every)
        self.journal.set_rows(self.width, rows, torch.full_like(rows, width), chosen)

    def get(self, rows: Tensor, columns: int) -> tuple[Tensor, Tensor | None]:
        """The stored values of `rows`, [..., columns] with zeros beyond a row's width, and which exist (None: all).

        `rows` must have been put; which widths ever were is the host's knowledge (`widths`).
        """
        if self.host.ask(lambda: self.widths == {columns}):
            return taken(self.flat.unfold(0, columns, 1), taken(self.start, rows)), None  # from each place on
        return self._padded(rows, columns)

    def take(self, flat: Tensor, start: Tensor, width: Tensor) -> None:
        """Take over saved values and where each row has its own."""
        rows = len(width)
        self.width.zero_()
        self.start[:rows], self.width[:rows] = start.to(self.flat.device), width.to(self.flat.device)
        self.used = len(flat)
        self.widths = {int(width) for width in self.width.unique() if width > 0} | self._gaps
        if len(flat) > len(self.flat):
            self.flat = enlarged(self.flat, 2 ** math.ceil(math.log2(len(flat))))
        self.flat[: len(flat)] = flat.to(self.flat)

    def _padded(self, rows: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        column = torch.arange(columns, device=rows.device)
        exists = column < taken(self.width, rows).unsqueeze(-1)
        at = (taken(self.start, rows).unsqueeze(-1) + column).clamp_(max=len(self.flat) - 1)
        return taken(self.flat, at).masked_fill_(~exists, 0), exists

    def _compact(self, extra: int) -> None:
        """Drop what no row points to any more and double the room until `extra` values more fit."""
        rows = self.width.nonzero().flatten()
        width = self.width[rows]
        inside = torch.repeat_interleave(self.start[rows] - (width.cumsum(0) - width), width)
        kept = self.flat[inside + torch.arange(len(inside), device=inside.device)]
        size = len(self.flat)
        while size < len(kept) + extra:
            size *= 2
        self.flat = torch.zeros(size, dtype=self.flat.dtype, device=self.flat.device)
        self.flat[: len(kept)] = kept
        self.start[rows] = width.cumsum(0) - width
        self.used = len(kept)


def taken(source: Tensor, rows: Tensor) -> Tensor:
    """`source[rows]` for rows of any shape, by the cheaper kernel."""
    if rows.dim() == 1:
        return source.index_select(0, rows)
    return source.index_select(0, rows.flatten()).view(*rows.shape, *source.shape[1:])


def enlarged(tensor: Tensor, rows: int) -> Tensor:
    """A copy with room for `rows` rows; the new ones are zero."""
    larger = torch.zeros((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    larger[: len(tensor)] = tensor
    return larger
