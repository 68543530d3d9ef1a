"""How many steps of a training had no effect, as they diverged: said at its end, where such steps are skipped.

The learners count on their device; they are asked before the first step and after the last test only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from scale_cl.training.learner_run import LearnerRun

_log = logging.getLogger(__name__)


class SkippedSteps:
    """The skipped steps of some lanes, from now on."""

    def __init__(self, lanes: Sequence[LearnerRun]) -> None:
        """Lanes that end at the first such step are left out."""
        skipping = [lane for lane in lanes if lane.learner.compute.on_divergence == "skip"]
        self._from = [(lane, lane.learner.steps, _count(lane)) for lane in skipping]

    def warn(self) -> None:
        """A line for each seed that skipped any."""
        for lane, steps, count in self._from:
            skipped = _count(lane) - count
            if skipped:
                text = line(skipped, lane.learner.steps - steps, since=steps)
                _log.warning("scale-cl: warning: seed %d: %s", lane.stream.seed, text)


def line(skipped: int, steps: int, *, since: int = 0) -> str:
    """So many of these steps had no effect; those up to step `since` are not among them."""
    part = f"{steps} steps" + (f" since step {since}" if since else "")
    were = "was" if skipped == 1 else "were"
    text = f"{skipped} of {part} {were} skipped, because a loss or gradient was not finite"
    return f"{text}; the model is likely useless: lower the rate" if 2 * skipped > steps else text


def _count(lane: LearnerRun) -> int:
    with lane.on_device():
        return lane.learner.skipped_steps
