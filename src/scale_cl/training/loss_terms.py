"""Loss terms of one lane, summed up on its device; the host reads the sums now and then and never waits for them.

A reading is sent on its way and looked at once it has arrived, so that the device has work before it all the while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.learners import StepStats

Report = Callable[[int, dict[str, float]], None]


@dataclass
class _Sum:
    """Terms that came together, over some steps."""

    total: Tensor  # [terms] float64, where the learner is
    steps: int


@dataclass
class _Reading:
    """Sums on their way to the host."""

    step: int
    sums: dict[tuple[str, ...], _Sum]
    sent: torch.cuda.Event | None  # None: they are there

    @property
    def arrived(self) -> bool:
        return self.sent is None or self.sent.query()

    def means(self) -> dict[str, float]:
        """The mean of each term over the steps that had it."""
        if self.sent is not None:
            self.sent.synchronize()
        totals: dict[str, float] = {}
        steps: dict[str, int] = {}
        for names, part in self.sums.items():
            for name, value in zip(names, part.total.tolist(), strict=True):
                totals[name] = totals.get(name, 0.0) + value
                steps[name] = steps.get(name, 0) + part.steps
        return {name: total / steps[name] for name, total in totals.items()}


class LossTerms:
    """Takes the terms of every step and reports their means every so many steps."""

    def __init__(self, every: int, *, done: int, report: Report) -> None:
        """Report at every multiple of `every`; `done` steps were made before."""
        self._every, self._step, self._report = every, done, report
        self._sums: dict[tuple[str, ...], _Sum] = {}
        self._readings: deque[_Reading] = deque()

    @torch.no_grad()
    def take(self, stats: StepStats) -> None:
        """The terms of the next step, which the step after it may overwrite: device work only."""
        self._step += 1
        terms = {name: t for name, t in stats.items() if t.dim() == 0}
        if terms:
            row = _row(list(terms.values()))
            known = self._sums.get(tuple(terms))
            if known is None:
                self._sums[tuple(terms)] = _Sum(row, 1)
            else:
                known.total += row
                known.steps += 1
        if self._step % self._every == 0:
            self._send()
        while self._readings and self._readings[0].arrived:
            self._pass_on()

    def flush(self) -> None:
        """Report all that there is, and wait for it."""
        self._send()
        while self._readings:
            self._pass_on()

    def _send(self) -> None:
        sums, self._sums = self._sums, {}
        if not sums:
            return
        sent = None
        if any(part.total.is_cuda for part in sums.values()):
            for part in sums.values():
                on_host = torch.empty(part.total.shape, dtype=part.total.dtype, pin_memory=True)
                part.total = on_host.copy_(part.total, non_blocking=True)
            sent = torch.cuda.Event()
            sent.record()
        self._readings.append(_Reading(self._step, sums, sent))

    def _pass_on(self) -> None:
        reading = self._readings.popleft()
        self._report(reading.step, reading.means())


def _row(terms: list[Tensor]) -> Tensor:
    """[terms] float64; terms of one kind, as losses are, take two launches."""
    alike = len({t.dtype for t in terms}) == 1
    return torch.stack(terms if alike else [t.double() for t in terms]).double()
