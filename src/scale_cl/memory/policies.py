"""Which samples stay in the slots: one class per policy, each a rule for the place of an arriving sample.

A policy sees one group of slots, numbered from 0: those of the open task, of one class, or of the whole memory. It says
in which slot an arriving sample goes, or that it is not kept (`room`). It does so twice: as tensor operations of a
fixed shape, which a CUDA graph can record, and as plain Python or NumPy, which is quicker where the host can read every
tensor. The tests hold both to the same slots.

The memory orders a group's slots so that free ones come next (see `EpisodicMemory`): after the slots in use, or, for a
ring, from the place of the next sample on.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PolicyName = Literal["ring", "class-ring", "reservoir", "balanced", "herding"]


class Policy:
    """The rule by which a group of slots is filled."""

    by_class: ClassVar[bool] = False  # each class has a group of its own
    random: ClassVar[bool] = False  # a sample's place depends on chance
    ranked: ClassVar[bool] = False  # samples are ranked when a task ends, and leave in that order

    def places(self, came: Tensor, held: Tensor, room: int, chance: Tensor | None) -> Tensor:
        """Slot of each sample [n], or `room` if it is not kept.

        Args:
            came: [n] samples of the group that came before it.
            held: [n] slots in use if all before it took a free one; at least `room` means that none is free.
            room: slots of the group.
            chance: [n] uniform in [0, 1), for policies that are random.
        """
        raise NotImplementedError

    def place(self, came: int, held: int, room: int, chance: float) -> int:
        """The same for one sample, on the host."""
        raise NotImplementedError


class Ring(Policy):
    """The last samples."""

    def places(self, came: Tensor, held: Tensor, room: int, chance: Tensor | None) -> Tensor:
        """Around the ring."""
        return came % room

    def place(self, came: int, held: int, room: int, chance: float) -> int:
        """Around the ring."""
        return came % room


class ClassRing(Ring):
    """The last samples of each class."""

    by_class = True


class Reservoir(Policy):
    """A uniform sample of all that came (Vitter's algorithm R)."""

    random = True

    def places(self, came: Tensor, held: Tensor, room: int, chance: Tensor | None) -> Tensor:
        """A free slot while there is one; then slot floor(chance * (came + 1)), which may lie outside."""
        assert chance is not None
        drawn = (chance * (came + 1)).long()
        return torch.where(held < room, held, drawn).clamp(max=room)

    def place(self, came: int, held: int, room: int, chance: float) -> int:
        """A free slot while there is one; then slot floor(chance * (came + 1)), which may lie outside."""
        return held if held < room else min(int(chance * (came + 1)), room)


class Balanced(Reservoir):
    """As many samples of each class as possible, a uniform sample within each.

    Class-balanced reservoir sampling (Chrysakis and Moens, 2020). When no slot is free, a class that is or ever was
    among the largest is full: its samples replace one of their own with probability stored / came. A sample of any
    other class replaces a random one of a largest class. A class of which nothing is stored counts as new. Where each
    class has slots of its own, this is a reservoir.

    Both forms change what they are given:
        key: [room] the class of the sample in each slot; -1 - slot if it is free.
        counts: [3, room] of that class: samples that came, samples stored, whether it is full; zero in free slots.
    """

    def choose(self, key: Tensor, counts: Tensor, arriving: Tensor, chance: Tensor) -> Tensor:
        """Slots of the samples of classes `arriving` [n], or `room` where one is not kept."""
        room, places = len(key), []
        slots = torch.arange(room, device=key.device)
        held = (key >= 0).sum() + torch.arange(len(arriving), device=key.device)  # before each, if all took a free one
        is_free, is_last = held < room, held + 1 >= room
        largest = counts[1] == counts[1].amax()
        for i, of_class in enumerate(arriving):
            own = key == of_class
            came, _, full = (counts * own).amax(1)
            came, is_full = came + 1, full.bool()
            among = torch.where(is_full, own, largest)
            drawn = (chance[i] * torch.where(is_full, came, among.sum())).long()
            place = torch.where(is_free[i], held[i], (among.cumsum(0) <= drawn).sum())  # number `drawn` among them
            here = slots == place
            left = key == torch.where(here, key, -room - 1).amax()  # the class of the sample that leaves
            key.copy_(torch.where(here, of_class, key))
            own = key == of_class
            counts[1].add_(left, alpha=-1)
            counts.copy_(torch.where(own, torch.stack([came, own.sum(), full]).unsqueeze(1), counts))
            largest = counts[1] == counts[1].amax()
            counts[2].bitwise_or_(largest & is_last[i])
            places.append(place)
        return torch.stack(places)

    def choose_on_host(
        self, key: NDArray[np.int64], counts: NDArray[np.int64], arriving: list[int], chances: list[float]
    ) -> list[int]:
        """The same slots, on the host."""
        room, places, held = len(key), [], int((key >= 0).sum())
        for of_class, chance in zip(arriving, chances, strict=True):
            own = np.flatnonzero(key == of_class)
            came, stored, full = counts[:, own[0]].tolist() if len(own) else (0, 0, 0)
            if full and held == room:
                drawn = int(chance * (came + 1))
                places.append(int(own[drawn]) if drawn < stored else room)
                counts[0, own] += 1
                continue
            if held < room:
                place, held = held, held + 1
            else:
                largest = np.flatnonzero(counts[1] == counts[1].max())
                place = int(largest[int(chance * len(largest))])
                counts[1, key == key[place]] -= 1
            key[place] = of_class
            counts[:, key == of_class] = [[came + 1], [stored + 1], [full]]
            if held == room:
                counts[2, counts[1] == counts[1].max()] = 1
            places.append(place)
        return places


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
    "balanced": Balanced,
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
