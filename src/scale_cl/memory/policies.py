"""Which samples stay in the slots: one class per policy, each a rule for the place of an arriving sample.

A policy sees one group of slots, numbered from 0: those of the open task, of one class, or of the whole memory. It says
in which slot the sample goes that arrives after `came` others of its group, or that it is not kept (`room`). It does so
twice, as tensor operations of a fixed shape, which a CUDA graph can record, and as plain Python, which is quicker where
the host can read every tensor; the tests hold both to the same slots.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

PolicyName = Literal["ring", "class-ring", "reservoir", "herding"]


class Policy:
    """The rule by which a group of slots is filled."""

    by_class: ClassVar[bool] = False  # each class has a group of its own
    random: ClassVar[bool] = False  # a sample's place depends on chance
    ranked: ClassVar[bool] = False  # samples are ranked when a task ends, and leave in that order

    def places(self, came: Tensor, room: Tensor | int, chance: Tensor | None) -> Tensor:
        """Slot of each sample [n], or `room` if it is not kept; `came` and `chance` are [n]."""
        raise NotImplementedError

    def place(self, came: int, room: int, chance: float) -> int:
        """The same for one sample, on the host."""
        raise NotImplementedError


class Ring(Policy):
    """The last samples."""

    def places(self, came: Tensor, room: Tensor | int, chance: Tensor | None) -> Tensor:
        """Around the ring."""
        return came % room

    def place(self, came: int, room: int, chance: float) -> int:
        """Around the ring."""
        return came % room


class ClassRing(Ring):
    """The last samples of each class."""

    by_class = True


class Reservoir(Policy):
    """A uniform sample of all that came (Vitter's algorithm R)."""

    random = True

    def places(self, came: Tensor, room: Tensor | int, chance: Tensor | None) -> Tensor:
        """A free slot while there is one; then slot floor(chance * (came + 1)), which may lie outside."""
        assert chance is not None
        drawn = (chance * (came + 1)).long()
        return torch.where(came < room, came, drawn).clamp(max=room)

    def place(self, came: int, room: int, chance: float) -> int:
        """A free slot while there is one; then slot floor(chance * (came + 1)), which may lie outside."""
        return came if came < room else min(int(chance * (came + 1)), room)


class Herding(Reservoir):
    """A uniform sample while a task lasts, ranked by herding when it ends (`EpisodicMemory.herd`).

    The rank of a sample says in which order samples of its class bring the mean of the chosen features closest to the
    mean of all (iCaRL, algorithm 4). With a total budget, the last in rank leave when a task with new classes begins.
    """

    ranked = True


POLICIES: dict[str, type[Policy]] = {
    "ring": Ring,
    "class-ring": ClassRing,
    "reservoir": Reservoir,
    "herding": Herding,
}


def herding_order(features: Tensor) -> Tensor:
    """Rows of `features` [n, width] by herding: each brings the mean of those so far closest to the mean of all."""
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    mean, total = unit.mean(0), unit.new_zeros(unit.shape[1])
    left = torch.ones(len(unit), dtype=torch.bool, device=unit.device)
    order = []
    for k in range(1, len(unit) + 1):
        distance = (mean - (total + unit) / k).square().sum(1)
        chosen = distance.masked_fill(~left, torch.inf).argmin()
        left[chosen] = False
        total = total + unit[chosen]
        order.append(chosen)
    return torch.stack(order) if order else torch.empty(0, dtype=torch.int64, device=features.device)
