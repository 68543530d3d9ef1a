"""The samples that a checkpoint's memory holds: what they are, and a checkpoint without some of them.

Stored samples may be people's data. They are deleted from the file, with their labels and stored logits, and training
goes on without them: a finished task has fewer samples to replay; in the task that was being learned, whose slots are
counted, a deleted sample gives its slot to a copy of one that stays, and if none stays the memory begins it anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scale_cl.engine.settings import tensors_of
from scale_cl.engine.validation import check_memories, check_plain_values
from scale_cl.errors import CheckpointError
from scale_cl.learners import State
from scale_cl.memory.stored_rows import saved_kinds
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class StoredSample:
    """One sample in a memory."""

    id: str  # memory:17, of one checkpoint; it changes as training goes on
    task: str
    label: int


def newest(folder: Path) -> Checkpoint:
    """The newest good checkpoint in `folder`: the one that a resumed run would go on from."""
    return checkpoint.newest_good(folder, _checked)


def _checked(path: Path, saved: Checkpoint) -> Checkpoint:
    try:
        check_plain_values(saved.state["meta"])
        check_memories(saved.state["tensors"], saved.state["meta"])
    except (KeyError, IndexError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    return saved


def listed(saved: Checkpoint) -> list[StoredSample]:
    """All samples, in the order in which they lie."""
    names = [str(name) for name, _ in saved.state["meta"]["tasks"]]
    tensors = saved.state["tensors"]
    found = []
    for memory in saved.state["meta"]["memories"]:
        task, y = tensors[f"{memory}.task"], tensors[f"{memory}.y"]
        for row in tensors[f"{memory}.stored"].nonzero().flatten().tolist():
            found.append(StoredSample(f"{memory}:{row}", names[int(task[row])], int(y[row])))
    return found


def stored_samples(state: State) -> int:
    """How many samples the memories of a learner's state hold."""
    memories = state["meta"].get("memories", [])
    try:
        return sum(int(state["tensors"][f"{memory}.stored"].sum()) for memory in memories)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the state of a learner is damaged: it has no {error}") from None


def inputs(saved: Checkpoint, samples: Iterable[StoredSample]) -> Tensor:
    """The inputs [n, ...] of these samples, as they came."""
    places = [s.id.partition(":") for s in samples]
    rows = [saved.state["tensors"][f"{memory}.x"][int(row)] for memory, _, row in places]
    return torch.stack(rows) if rows else torch.empty(0)


def chosen(saved: Checkpoint, *, ids: Iterable[str] = (), tasks: Iterable[str] = ()) -> list[StoredSample]:
    """Those with one of the ids or of one of the tasks; all if neither is given."""
    ids, tasks, there = set(ids), set(tasks), listed(saved)
    known = {str(name) for name, _ in saved.state["meta"]["tasks"]}
    for what, unknown in (("sample", ids - {s.id for s in there}), ("task", tasks - known)):
        if unknown:
            raise CheckpointError(f"the memory holds no {what} {min(unknown)!r}; see `scale-cl memory list`")
    return [s for s in there if s.id in ids or s.task in tasks] if ids or tasks else there


def without(saved: Checkpoint, samples: Iterable[StoredSample]) -> Checkpoint:
    """The checkpoint with these samples deleted."""
    gone: dict[str, list[int]] = {}
    for sample in samples:
        memory, _, row = sample.id.partition(":")
        gone.setdefault(memory, []).append(int(row))
    tensors = {name: t.clone() for name, t in saved.state["tensors"].items()}
    for memory, rows in gone.items():
        _delete(tensors_of(memory, tensors), torch.tensor(rows))
    return saved.with_state({"tensors": tensors, "meta": saved.state["meta"]})


def delete(folder: Path, *, ids: Iterable[str] = (), tasks: Iterable[str] = ()) -> int:
    """Delete samples from the newest good checkpoint in `folder` and remove all others; how many they were."""
    saved = newest(folder)
    samples = chosen(saved, ids=ids, tasks=tasks)
    try:
        path = checkpoint.write(folder, without(saved, samples))
        checkpoint.keep_only(folder, [path])  # the others, damaged ones too, hold the samples as well
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to: {error.strerror or error}; try again") from error
    return len(samples)


def _delete(own: dict[str, Tensor], rows: Tensor) -> None:
    """Remove rows of one memory's tensors, in place."""
    opened = int(own["open"])
    in_open = rows[own["task"][rows] == opened]
    stays = own["stored"].clone()
    stays[rows] = False
    _blank(own, rows)
    if opened < 0 or len(in_open) == 0:
        return
    left = (stays & (own["task"] == opened)).nonzero().flatten()
    if len(left) == 0:
        own["seen"][opened] = 0
        own["seen_of_class"].zero_()
        return
    for number, row in enumerate(in_open.tolist()):
        _copy(own, int(left[number % len(left)]), row)


def _blank(own: dict[str, Tensor], rows: Tensor) -> None:
    for name in ("x", "y", "rank"):
        own[name][rows] = 0
    own["stored"][rows] = own["replayable"][rows] = False
    for kind in saved_kinds(own):
        for row in rows.tolist():
            start, width = int(own[f"{kind}.start"][row]), int(own[f"{kind}.width"][row])
            own[f"{kind}.flat"][start : start + width] = 0
        own[f"{kind}.width"][rows] = 0


def _copy(own: dict[str, Tensor], source: int, target: int) -> None:
    for name in {"x", "y", "stored", "replayable", "rank", "balance"} & own.keys():
        own[name][target] = own[name][source]
    for kind in saved_kinds(own):
        width = int(own[f"{kind}.width"][source])
        start, to = int(own[f"{kind}.start"][source]), int(own[f"{kind}.start"][target])
        own[f"{kind}.flat"][to : to + width] = own[f"{kind}.flat"][start : start + width].clone()
        own[f"{kind}.width"][target] = width
