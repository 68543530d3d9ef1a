"""What a step overwrites in a memory, noted so that a step that diverged or broke off can be taken back.

Noting costs a copy of the few rows that are written, where a copy of the whole memory would cost every step. Outside of
a step nothing is noted.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
