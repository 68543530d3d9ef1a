"""A few learners that stand for all: together they own every kind of thing that a learner can own.

Essential properties are tested for every learner. Where a test is about the code around a learner, a representative of
each kind is enough. They are found by what learners declare, so a new learner joins them only if it brings a new kind.
"""

from __future__ import annotations

from functools import cache

from scale_cl.learners import Learner, registry
from scale_cl.nets import ContinualNet
from tests.learners.tiny import SPLIT


@cache
def representatives() -> tuple[str, ...]:
    """Names of learners, in the registry's order: each owns something that none before it does."""
    chosen, met = [], set[str]()
    for name in registry.names():
        kinds = kinds_of(registry.make(name, SPLIT))
        if not kinds <= met:
            chosen.append(name)
            met |= kinds
    return tuple(chosen)


def kinds_of(learner: Learner) -> set[str]:
    """What a learner owns, in words: memories, logits, a generator, parts, state of the weights' shapes and so on."""
    owned = learner.engine.owned
    declared = ("memories", "parts", "task_modules", "states", "teachers", "tensors")
    kinds = {kind for kind in declared if getattr(owned, kind)}
    kinds |= {type(part).__name__ for part in owned.parts.values()}
    kinds |= {"logits" for memory in owned.memories.values() if memory.logits}
    kinds |= {"several memories"} if len(owned.memories) > 1 else set()
    kinds |= {"generator"} if learner.net.generator is not None else set()
    kinds |= {"a network of its own"} if type(learner.net) is not ContinualNet else set()
    kinds |= {"scores of its own"} if type(learner).scores is not Learner.scores else set()
    kinds.add(f"order {learner.order}")
    if kinds & {*declared} == {"memories"} and "logits" not in kinds:
        kinds.add("nothing but memories")
    return kinds
