"""The guard against divergence: a step that leaves anything that is not a finite number behind has no effect.

It keeps what was learned in one flat copy, the last that was finite all over. If what a step leaves is not, or a loss
term is not, the tensors are set back: by the host where looking costs nothing (`HostGuard`, the
CPU's), else on the device and without asking the host (`DeviceGuard`). The first such step is remembered with its terms
until the host looks, which it then does now and then without stopping the device.
"""

from __future__ import annotations

import math
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
    """Watches some tensors; `settle` ends a step, and `found` tells the host of a bad one."""

    def __init__(self, device: torch.device, mode: OnDivergence) -> None:
        """`mode` says whether steps after a bad one still count."""
        self._device, self._mode = device, mode
        self._live: list[Tensor] = []  # what is watched, flat
        self._good = torch.empty(0, device=device)  # their last copy that was finite
        self._now = torch.empty(0, device=device)  # a copy of this moment
        self._offset = 0
        self.watching = False

    def begin(self, steps: int) -> None:
        """Count steps from here on; what was learned so far is good."""
        self._offset = steps
        self.rearm()
        self.watching = False

    def drop(self) -> None:
        """The tensors have moved: `watch` is to be called again before the next step."""
        self.watching = False

    @torch.no_grad()
    def watch(self, tensors: Sequence[Tensor]) -> None:
        """Look after these tensors, finite now; each must be dense in memory, as parameters are."""
        before = [(t.data_ptr(), len(t)) for t in self._live]
        watched = [t for t in tensors if t.is_floating_point() and _whole(t)]
        self._live = [t.detach().as_strided((t.numel(),), (1,)) for t in watched]
        if [(t.data_ptr(), len(t)) for t in self._live] != before:
            self._good = torch.cat(self._live) if self._live else self._good
        if self._live:
            torch.cat(self._live, out=self._good)  # in place: recorded steps refer to it
        if len(self._now) != len(self._good) or self._now.dtype != self._good.dtype:
            self._now = torch.empty_like(self._good)
        self.watching = True

    def settle(self, stats: dict[str, Tensor]) -> None:
        """Let the step stand, or undo it."""
        raise NotImplementedError

    def found(self, steps: int, *, wait: bool = False) -> Finding | None:
        """What the host knows after `steps` steps; with `wait`, all there is to know."""
        raise NotImplementedError

    def rearm(self) -> None:
        """Be ready for another finding."""
        raise NotImplementedError

    def skipped(self, steps: int) -> int:
        """How many of the steps had no effect; waits for the device."""
        raise NotImplementedError

    def _set_back(self) -> None:
        torch._foreach_copy_(self._live, list(self._good.split([len(t) for t in self._live])))


class HostGuard(Guard):
    """For a device whose values the host can read without waiting: it looks at every step."""

    def __init__(self, device: torch.device, mode: OnDivergence) -> None:
        """As `Guard`."""
        super().__init__(device, mode)
        self._applied = 0  # steps that had an effect
        self._found: Finding | None = None  # the first bad step since the last `rearm`

    def begin(self, steps: int) -> None:
        """As `Guard`."""
        self._applied = 0
        super().begin(steps)

    @torch.no_grad()
    def settle(self, stats: dict[str, Tensor]) -> None:
        """Let the step stand, or undo it."""
        if not self._live:
            self._applied += 1
            return
        losses = [t.item() for t in _terms(stats).values()]
        torch.cat(self._live, out=self._now)
        fine = math.isfinite(self._now.sum().item() + sum(losses))
        if not fine and self._found is None:
            self._found = _finding(self._offset + self._applied, tuple(_terms(stats)), losses)
        if fine and (self._mode == "skip" or self._found is None):
            self._applied += 1
            self._good, self._now = self._now, self._good
        else:
            self._set_back()

    def found(self, steps: int, *, wait: bool = False) -> Finding | None:
        """All there is to know."""
        return self._found

    def rearm(self) -> None:
        """Be ready for another finding."""
        self._found = None

    def skipped(self, steps: int) -> int:
        """How many of the steps had no effect."""
        return steps - self._offset - self._applied


class DeviceGuard(Guard):
    """For a device that must not wait for the host: `settle` is device work only, and may be recorded in a graph."""

    def __init__(self, device: torch.device, mode: OnDivergence) -> None:
        """As `Guard`."""
        super().__init__(device, mode)
        self._fine = torch.ones((), dtype=torch.bool, device=device)  # no bad step since the last `rearm`
        self._applied = torch.zeros((), device=device)  # steps that had an effect
        self._record = torch.zeros(_SLOTS, device=device)  # of the last step, or of the first bad one
        self._zero = torch.zeros((), device=device)
        self._names: list[tuple[str, ...]] = []  # loss terms that came together; a record has their number
        self._numbers: dict[tuple[str, ...], Tensor] = {}
        self._message: Tensor | None = None  # on its way to the host: fine, and the record
        self._sent: torch.cuda.Event | None = None

    def begin(self, steps: int) -> None:
        """As `Guard`."""
        self._applied.zero_()
        super().begin(steps)

    @torch.no_grad()
    def settle(self, stats: dict[str, Tensor]) -> None:
        """Let the step stand, or undo it: device work only."""
        if not self._live:
            self._applied += 1
            return
        with torch.autocast(self._device.type, enabled=False):
            torch.cat(self._live, out=self._now)
            row = self._row(stats)
            fine = (row * 0).sum() == 0  # 0 * inf and 0 * nan are nan
            torch.where(self._fine, row, self._record, out=self._record)
            effective = fine if self._mode == "skip" else fine & self._fine
            self._fine &= fine
            self._applied += effective
            torch.where(effective, self._now, self._good, out=self._good)
            self._set_back()

    def _row(self, stats: dict[str, Tensor]) -> Tensor:
        """[_SLOTS]: which terms, how many steps before, the terms, and a sum that is finite if all was learned well."""
        terms = _terms(stats)
        names = tuple(terms)[: _SLOTS - 3]
        if names not in self._numbers:
            self._numbers[names] = torch.full((), float(len(self._names)), device=self._device)
            self._names.append(names)
        losses = [terms[name].float() for name in names]
        values = [self._numbers[names], self._applied, *losses, self._now.sum().float()]
        return torch.stack(values + [self._zero] * (_SLOTS - len(values)))

    def found(self, steps: int, *, wait: bool = False) -> Finding | None:
        """What the host knows after `steps` steps; with `wait`, all there is to know."""
        if wait:
            return None if bool(self._fine) else self._read(self._record.cpu())
        if steps % POLL:
            return None
        finding = None
        if self._message is not None:
            if self._sent is not None:
                self._sent.synchronize()  # of 25 steps ago: the device has as much work before it all the while
            finding = None if self._message[0] else self._read(self._message[1:])
        self._send()
        return finding

    def rearm(self) -> None:
        """Be ready for another finding."""
        self._fine.fill_(True)
        self._sent = self._message = None

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

    def _read(self, record: Tensor) -> Finding:
        number, before, *values = record.tolist()
        names = self._names[int(number)]
        return _finding(self._offset + int(before), names, values[: len(names)])


def _terms(stats: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in stats.items() if t.dim() == 0 and t.is_floating_point()}


def _finding(before: int, names: Sequence[str], values: Sequence[float]) -> Finding:
    """The step after `before` others: its first loss term that is not finite, or else its gradient."""
    bad = (name for name, value in zip(names, values, strict=True) if not math.isfinite(value))
    return Finding(before + 1, next(bad, "gradient"))


def _whole(t: Tensor) -> bool:
    """Whether a tensor's values lie side by side; not so in a backbone of someone's own, it is not watched."""
    return t.numel() > 0 and bool(torch.ops.aten.is_non_overlapping_and_dense(t))
