"""Memories filled with samples that know their own number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from scale_cl.memory import Batch, Budget, EpisodicMemory, PolicyName, ragged_rows

CPU = torch.device("cpu")
POLICIES: tuple[PolicyName, ...] = ("ring", "class-ring", "reservoir", "balanced", "herding")


@pytest.fixture(autouse=True, scope="module")
def little_room() -> Iterator[None]:
    """Where this is imported, stored logits outgrow their room within a few tasks, as elsewhere within hundreds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged_rows, "FIRST_ROOM", 128)
        yield


def memory(
    slots: int,
    *,
    policy: PolicyName = "ring",
    budget: Budget = "task",
    seed: int = 0,
    tasks: int | None = None,
    shared_labels: bool = False,
) -> EpisodicMemory:
    generator, kind = torch.Generator().manual_seed(seed), torch.float32
    keywords = {"policy": policy, "budget": budget, "tasks": tasks, "shared_labels": shared_labels}
    return EpisodicMemory(slots, (1,), kind, device=CPU, generator=generator, **keywords)  # type: ignore[arg-type]


def numbered(start: int, n: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Samples that know their number; their labels go round."""
    x = torch.arange(start, start + n, dtype=torch.float32).view(-1, 1)
    return x, torch.arange(start, start + n) % classes


def write(kept: EpisodicMemory, x: Tensor, y: Tensor, logits: Tensor | None = None) -> None:
    """Write samples of the open task."""
    assert kept._open is not None
    kept.write(Batch(x, y, torch.full_like(y, kept._open)), logits)


def filled(kept: EpisodicMemory, counts: list[int], classes: int = 3) -> EpisodicMemory:
    for task, n in enumerate(counts):
        kept.open(task, classes)
        if n:
            write(kept, *numbered(1000 * task, n, classes))
        kept.close()
    return kept


def held(kept: EpisodicMemory, task: int) -> list[int]:
    return [int(value) for value in kept.x[kept.rows_of(task)].flatten()]
