"""The guard against divergence: a step that leaves anything that is not a finite number behind has no effect.

It keeps what was learned in flat copies, the last that were finite all over. If what a step leaves is not, a loss term
is not, or the batch holds a value that no input can have, all that the step changed is set back, rows of memories
included: by the host where looking costs nothing (`HostGuard`, the CPU's), else on the device and without asking the
host (`DeviceGuard`). The first such step is remembered with its terms until the host looks, which it then does now and
then without stopping the device. Random numbers that the step has drawn stay drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scale_cl.memory import Journal

OnDivergence = Literal["stop", "skip"]
POLL = 25  # steps between looks: a look sees what was so one look before, so 50 steps pass at most
_EXTENT = 3  # values that describe the largest input of a batch (`Inputs.extent`): its size, the limit, its sample
_SLOTS = 17 + 3 + _EXTENT  # loss terms that are told apart, and other values


@dataclass(frozen=True)
class Finding:
    """The first step that had no effect."""

    step: int
    term: str  # name of the loss term that is not finite, "gradient" or "input"
    extent: tuple[float, float, int] = (0.0, 0.0, 0)  # of an input: its size, the largest allowed, which sample


class _Copies:
    """Tensors of one type and two flat copies, which take turns: of their last good values and of this moment."""

    def __init__(self, like: Tensor, *, must_be_finite: bool) -> None:
        self.must_be_finite = must_be_finite
        self.live: list[Tensor] = []
        self.flat = [torch.empty(0, device=like.device, dtype=like.dtype)] * 2

    def watch(self, tensors: Sequence[Tensor], good: int) -> bool:
        """These tensors, good now; returns whether the copies had to move, to which recorded steps refer."""
        before = [(t.data_ptr(), len(t)) for t in self.live]
        live = [t.detach().as_strided((t.numel(),), (1,)) for t in tensors]
        moved = [(t.data_ptr(), len(t)) for t in live] != before
        if moved:
            self.live, self.flat = [], [live[0].new_empty(0)] * 2  # the old copies go before there are new ones
            self.flat[good] = torch.cat(live)
            self.flat[1 - good] = torch.empty_like(self.flat[good])
        self.live = live
        self.take(good)
        return moved

    def take(self, which: int) -> Tensor:
        """Copy the values of this moment."""
        return torch.cat(self.live, out=self.flat[which])

    def set_back(self, good: int) -> None:
        """Give the tensors their last good values."""
        torch._foreach_copy_(self.live, list(self.flat[good].split([len(t) for t in self.live])))


class Guard:
    """Watches some tensors; `settle` ends a step, and `found` tells the host of a bad one."""

    def __init__(self, device: torch.device, mode: OnDivergence) -> None:
        """`mode` says whether steps after a bad one still count."""
        self._device, self._mode = device, mode
        self._copies: dict[tuple[torch.dtype, bool], _Copies] = {}
        self._good = 0  # which of the copies are good
        self._offset = 0
        self.watching = False
        self.settled = False  # whether the step under way has come to its end; the caller sets it to false before

    def begin(self, steps: int) -> None:
        """Count steps from here on; what was learned so far is good."""
        self._offset = steps
        self.rearm()
        self.watching = False

    def drop(self) -> None:
        """The tensors have moved: `watch` is to be called again before the next step."""
        self.watching = False

    @torch.no_grad()
    def watch(self, learned: Sequence[Tensor], others: Sequence[Tensor] = ()) -> bool:
        """Look after these tensors; each must be dense in memory, as parameters are.

        Args:
            learned: what must stay finite, and is now; whole numbers among them are only set back.
            others: what a bad step must not change, whatever it holds.

        Returns:
            Whether steps recorded before must be dropped, because the copies that they write to are gone.
        """
        groups: dict[tuple[torch.dtype, bool], list[Tensor]] = {}
        for tensors, finite in ((learned, True), (others, False)):
            for t in filter(_whole, tensors):
                groups.setdefault((t.dtype, finite and t.is_floating_point()), []).append(t)
        known = self._copies
        self._copies = {key: known.get(key) or _Copies(own[0], must_be_finite=key[1]) for key, own in groups.items()}
        moved = [self._copies[key].watch(own, self._good) for key, own in groups.items()]
        self.watching = True
        return any(moved) or len(self._copies) < len(known)

    def settle(self, stats: dict[str, Tensor], extent: Tensor | None = None, journals: Sequence[Journal] = ()) -> None:
        """Let the step stand, or undo it.

        Args:
            stats: its loss terms.
            extent: [3] of the largest input: its size, the limit and the number of its sample; None: it needs no look.
            journals: what it overwrote in memories.
        """
        raise NotImplementedError

    @torch.no_grad()
    def take_back(self, journals: Sequence[Journal]) -> None:
        """Undo a step that broke off."""
        for copies in self._copies.values():
            copies.set_back(self._good)
        for journal in journals:
            journal.put_back()

    def found(self, steps: int, *, wait: bool = False) -> Finding | None:
        """What the host knows after `steps` steps; with `wait`, all there is to know."""
        raise NotImplementedError

    def rearm(self) -> None:
        """Be ready for another finding."""
        raise NotImplementedError

    def skipped(self, steps: int) -> int:
        """How many of the steps had no effect; waits for the device."""
        raise NotImplementedError


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

    def settle(self, stats: dict[str, Tensor], extent: Tensor | None = None, journals: Sequence[Journal] = ()) -> None:
        """Let the step stand, or undo it."""
        terms = _terms(stats)
        losses = [t.item() for t in terms.values()]
        total = sum(losses)
        now = 1 - self._good
        for copies in self._copies.values():
            flat = copies.take(now)
            if copies.must_be_finite:
                total += flat.sum().item()
        size, limit, sample = (0.0, 0.0, 0.0) if extent is None else extent.tolist()
        fine = math.isfinite(total) and size <= limit  # not so if the size is NaN
        if not fine and self._found is None:
            self._found = _finding(self._offset + self._applied, (size, limit, int(sample)), tuple(terms), losses)
        if fine and (self._mode == "skip" or self._found is None):
            # at once: Ctrl-C comes between calls
            self._good, self._applied, self.settled = now, self._applied + 1, True
        else:
            self.take_back(journals)
            self.settled = True

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
    def settle(self, stats: dict[str, Tensor], extent: Tensor | None = None, journals: Sequence[Journal] = ()) -> None:
        """Let the step stand, or undo it: device work only."""
        with torch.autocast(self._device.type, enabled=False):
            every, now = self._copies.values(), 1 - self._good
            learned = [copies.take(now).sum().float() for copies in every if copies.must_be_finite]
            for copies in every:
                if not copies.must_be_finite:
                    copies.take(now)
            row = self._row(stats, extent, learned)
            fine = (row * 0).sum() == 0  # 0 * inf and 0 * nan are nan
            if extent is not None:
                fine &= extent[0] <= extent[1]
            torch.where(self._fine, row, self._record, out=self._record)
            effective = fine if self._mode == "skip" else fine & self._fine
            self._fine &= fine
            self._applied += effective
            for copies in every:
                good = copies.flat[self._good]
                torch.where(effective, copies.flat[now], good, out=good)  # in place: recorded steps refer to it
                copies.set_back(self._good)
            for journal in journals:
                journal.put_back(unless=effective)
        self.settled = True

    def _row(self, stats: dict[str, Tensor], extent: Tensor | None, learned: list[Tensor]) -> Tensor:
        """[_SLOTS]: which terms, how many steps before, the input, a sum that is finite if all is well, the terms."""
        terms = _terms(stats)
        names = tuple(terms)[: _SLOTS - 3 - _EXTENT]
        if names not in self._numbers:
            self._numbers[names] = torch.full((), float(len(self._names)), device=self._device)
            self._names.append(names)
        losses = [terms[name].float() for name in names]
        total = torch.stack(learned).sum() if len(learned) > 1 else (learned or [self._zero])[0]
        largest = [self._zero] * _EXTENT if extent is None else list(extent.unbind())
        values = [self._numbers[names], self._applied, *largest, total, *losses]
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
        number, before, size, limit, sample, _, *values = record.tolist()
        names = self._names[int(number)]
        extent = size, limit, 0 if math.isnan(sample) else int(sample)
        return _finding(self._offset + int(before), extent, names, values[: len(names)])


def _terms(stats: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in stats.items() if t.dim() == 0 and t.is_floating_point()}


def _finding(before: int, extent: tuple[float, float, int], names: Sequence[str], values: Sequence[float]) -> Finding:
    """The step after `before` others: its input, its first loss term that is not finite, or else its gradient."""
    if not extent[0] <= extent[1]:
        return Finding(before + 1, "input", extent)
    bad = (name for name, value in zip(names, values, strict=True) if not math.isfinite(value))
    return Finding(before + 1, next(bad, "gradient"))


def _whole(t: Tensor) -> bool:
    """Whether a tensor's values lie side by side; not so in a backbone of someone's own, it is not watched."""
    return t.numel() > 0 and bool(torch.ops.aten.is_non_overlapping_and_dense(t))
