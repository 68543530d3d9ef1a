"""The guard against divergence: a step that leaves anything that is not a finite number behind has no effect.

After each step it takes what was learned in one flat copy, and keeps the last one that was finite all over. If the new
one is not, or a loss term is not, the tensors are set back, on the device and without asking the host. The first such
step is remembered with its terms until the host looks, which it does now and then without stopping the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

OnDivergence = Literal["stop", "skip"]
POLL = 25  # steps between looks: a look sees what was so one look before, so 50 steps pass at most
_SLOTS = 20  # loss terms that are told apart, and three more values


@dataclass(frozen=True)
class Finding:
    """The first step whose effect was not finite."""

    step: int
    term: str  # name of the loss term, or "gradient"


class Guard:
    """Watches some tensors; `settle` is the device's part of a step, `found` the host's."""

    def __init__(self, device: torch.device, mode: OnDivergence, *, on_host: bool | None = None) -> None:
        """`mode` says whether steps after a bad one still count; the CPU's host need not wait to look (`on_host`)."""
        self._device, self._mode = device, mode
        self._on_host = device.type == "cpu" if on_host is None else on_host
        self._fine = torch.ones((), dtype=torch.bool, device=device)  # no bad step since the last `rearm`
        self._applied = torch.zeros((), device=device)  # steps that had an effect
        self._record = torch.zeros(_SLOTS, device=device)  # of the last step, or of the first bad one
        self._zero = torch.zeros((), device=device)
        self._names: list[tuple[str, ...]] = []  # loss terms that came together; a record has their number
        self._numbers: dict[tuple[str, ...], Tensor] = {}
        self._live: list[Tensor] = []
        self._now = self._good = torch.empty(0, device=device)
        self._good_parts: list[Tensor] = []
        self._effective: Tensor | None = None  # whether the step that the host is to settle had an effect
        self._offset = 0
        self._message: Tensor | None = None  # on its way to the host: fine, and the record
        self._sent: torch.cuda.Event | None = None
        self.watching = False

    def begin(self, steps: int) -> None:
        """Count steps from here on; what was learned so far is good."""
        self._offset = steps
        self._applied.zero_()
        self.rearm()
        self.watching = False

    def rearm(self) -> None:
        """Be ready for another finding."""
        self._fine.fill_(True)
        self._sent = self._message = None

    def drop(self) -> None:
        """The tensors have moved: `watch` is to be called again before the next step."""
        self.watching = False

    @torch.no_grad()
    def watch(self, tensors: Sequence[Tensor]) -> None:
        """Look after these tensors, finite now; each must be dense in memory, as parameters are."""
        before = [(t.data_ptr(), len(t)) for t in self._live]
        kind = next((t.dtype for t in tensors if t.is_floating_point()), None)
        self._live = [t.detach().as_strided((t.numel(),), (1,)) for t in tensors if t.dtype == kind and _whole(t)]
        if [(t.data_ptr(), len(t)) for t in self._live] != before:
            self._now, self._good = (torch.cat(self._live) if self._live else self._now for _ in range(2))
            self._good_parts = list(self._good.split([len(t) for t in self._live]))
        if self._live:
            torch.cat(self._live, out=self._good)  # in place: recorded steps refer to it
        self.watching = True

    @torch.no_grad()
    def settle(self, stats: dict[str, Tensor]) -> None:
        """Let the step stand, or undo it: device work only."""
        if not self._live:
            return
        with torch.autocast(self._device.type, enabled=False):
            torch.cat(self._live, out=self._now)
            row = self._row(stats)
            fine = (row * 0).sum() == 0  # 0 * inf and 0 * nan are nan
            torch.where(self._fine, row, self._record, out=self._record)
            effective = fine if self._mode == "skip" else fine & self._fine
            self._fine &= fine
            self._applied += effective
            if self._on_host:
                self._effective = effective
            else:
                torch.where(effective, self._now, self._good, out=self._good)
                torch._foreach_copy_(self._live, self._good_parts)

    @torch.no_grad()
    def settled(self) -> None:
        """The end of `settle` where the host need not wait to look: half the copying."""
        if self._effective is None:
            return
        if self._effective:
            self._now, self._good = self._good, self._now
        else:
            torch._foreach_copy_(self._live, list(self._good.split([len(t) for t in self._live])))
        self._effective = None

    def _row(self, stats: dict[str, Tensor]) -> Tensor:
        """[_SLOTS]: which terms, how many steps before, the terms, and a sum that is finite if all was learned well."""
        terms = {name: t for name, t in stats.items() if t.dim() == 0 and t.is_floating_point()}
        names = tuple(terms)[: _SLOTS - 3]
        if names not in self._numbers:
            self._numbers[names] = torch.full((), float(len(self._names)), device=self._device)
            self._names.append(names)
        losses = [terms[name].float() for name in names]
        values = [self._numbers[names], self._applied, *losses, self._now.sum().float()]
        return torch.stack(values + [self._zero] * (_SLOTS - len(values)))

    def found(self, steps: int, *, wait: bool = False) -> Finding | None:
        """What the host knows after `steps` steps; with `wait`, all there is to know."""
        if self._on_host:
            return None if bool(self._fine) else self._finding(self._record)
        if wait:
            return None if bool(self._fine) else self._finding(self._record.cpu())
        if steps % POLL:
            return None
        finding = None
        if self._message is not None:
            if self._sent is not None:
                self._sent.synchronize()  # of 25 steps ago: the device has as much work before it all the while
            finding = None if self._message[0] else self._finding(self._message[1:])
        self._send()
        return finding

    def skipped(self, steps: int) -> int:
        """How many of the steps had no effect; waits for the device."""
        return steps - self._offset - int(self._applied)

    def _send(self) -> None:
        on_gpu = self._device.type == "cuda"
        if self._message is None:
            self._message = torch.ones(1 + _SLOTS, pin_memory=on_gpu)
        self._message[:1].copy_(self._fine.view(1), non_blocking=True)
        self._message[1:].copy_(self._record, non_blocking=True)
        if on_gpu:
            self._sent = torch.cuda.Event()
            self._sent.record()

    def _finding(self, record: Tensor) -> Finding:
        values = record.tolist()
        names = self._names[int(values[0])]
        finite = torch.isfinite(record[2 : 2 + len(names)]).tolist()
        term = next((name for name, good in zip(names, finite, strict=True) if not good), "gradient")
        return Finding(self._offset + int(values[1]) + 1, term)


def _whole(t: Tensor) -> bool:
    """Whether a tensor's values lie side by side; not so in a backbone of someone's own, it is not watched."""
    return t.numel() > 0 and bool(torch.ops.aten.is_non_overlapping_and_dense(t))
