"""What a learner's state is made of, in bytes, and by how much a task may make it grow."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from scale_cl.learners import Learner
from scale_cl.learners.replay import ReplayLearner
from scale_cl.learners.scale import Scale

_FLOAT, _INT = 4, 8


@dataclass(frozen=True)
class StateBytes:
    """Bytes by kind; only `rest` (networks that all tasks share, generators) must not grow."""

    samples: int = 0  # pixels, labels, task numbers and flags of the memory's slots
    logits: int = 0  # stored class and task logits, each at its own width, and where they lie
    heads: int = 0
    embedding: int = 0
    discriminator: int = 0  # its output layer
    rest: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(asdict(self).values())

    def __sub__(self, other: StateBytes) -> StateBytes:
        mine, theirs = asdict(self), asdict(other)
        return StateBytes(**{kind: mine[kind] - theirs[kind] for kind in mine})

    def __add__(self, other: StateBytes) -> StateBytes:
        mine, theirs = asdict(self), asdict(other)
        return StateBytes(**{kind: mine[kind] + theirs[kind] for kind in mine})


_KINDS = {  # longest prefix first
    "memory.class.": "logits",
    "memory.task.": "logits",
    "memory.": "samples",
    "net.heads.": "heads",
    "average.heads.": "heads",
    "net.generator.embedding.": "embedding",
    "discriminator.weight.": "discriminator",
    "discriminator.bias.": "discriminator",
}


def state_bytes(learner: Learner) -> StateBytes:
    """The state as it would be saved."""
    found = asdict(StateBytes())
    for name, tensor in learner.state_dict()["tensors"].items():
        kind = next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), "rest")
        found[kind] += tensor.numel() * tensor.element_size()
    return StateBytes(**found)


def expected_growth(learner: Learner, task: int, classes: int) -> StateBytes:
    """By how much task number `task` may enlarge the state by the time it is over.

    A full block of stored samples, their logits over the task's classes and over the tasks that exist by then, a head,
    an embedding row and a discriminator row. For SCALE, and for learners with a memory and heads only.
    """
    width = learner.net.backbone.feature_width
    head = 0 if learner.net.heads.shared and task > 0 else classes * (width + 1) * _FLOAT
    heads = head * (2 if learner.config.weight_average > 0 else 1)
    samples = logits = embedding = output = 0
    if isinstance(learner, ReplayLearner):
        memory = learner.memory
        sample = memory.x[0].numel() * memory.x.element_size() + 2 * _INT + 2  # label, task; two flags
        samples = memory.slots * sample + _INT  # how many came
        logits = memory.slots * 4 * _INT  # start and width, of both kinds
    if isinstance(learner, Scale):
        outputs = 0 if learner.discriminator is None else task + 2  # the fake task, those before, and this one
        logits += learner.memory.slots * (classes + outputs) * _FLOAT
        embedding = 0 if learner.net.generator is None else learner.net.generator.embedding_width * _FLOAT
        output = 0 if learner.discriminator is None else (width + 1) * _FLOAT
    return StateBytes(samples, logits, heads, embedding, output)
