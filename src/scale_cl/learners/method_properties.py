"""The property table of the supplement: the learners' own declarations, and parameters counted on real instances."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from torch import nn

from scale_cl.learners import registry
from scale_cl.learners.learner import Learner, Traits
from scale_cl.nets import GrowingParameter
from scale_cl.streams import InputSpec, TaskInfo

EXAMPLES = {  # the inputs of a stream and the classes of each of its tasks
    "pmnist": (InputSpec((1, 28, 28), 255.0, "domain"), 10),
    "scifar100": (InputSpec((3, 32, 32), 255.0, "task"), 5),
}

PAPER = {  # table 1 of the supplement; it does not have the others
    "gem": Traits(episodic_memory=True, history_in_training=True),
    "mer": Traits(episodic_memory=True, history_in_training=True),
    "mir": Traits(episodic_memory=True),
    "er": Traits(episodic_memory=True, history_in_training=True),
    "ctn": Traits(episodic_memory=True, task_specific_parameters=True, history_in_training=True),
    "scale": Traits(episodic_memory=True, task_specific_parameters=True, history_in_training=True),
}

REASONS = {  # why a learner's declaration is not the paper's
    ("gem", "history_in_training"): "gradients on earlier tasks are computed anew in every step, none is kept",
    ("mer", "history_in_training"): "the parameters from before a batch are kept no longer than the batch",
    ("er", "history_in_training"): "nothing but samples is kept",
}
ONE_HEAD = "one head for all tasks and no task-specific parameters: nothing depends on the task"


@dataclass(frozen=True)
class Row:
    """One learner on one kind of stream."""

    learner: str
    traits: Traits
    differs: dict[str, str]  # columns in which the paper says otherwise, and why
    parameters: int  # in use after the first task began, of all networks, those that predict and those that only train
    growth: int  # more with each further task; at most, if that is found out while the task is learnt


def rows(spec: InputSpec, classes: int, names: Iterable[str] | None = None) -> list[Row]:
    """The table for inputs as `spec` says and tasks of so many classes; all learners of the catalog, or `names`."""
    return [_row(name, spec, classes) for name in (registry.names() if names is None else names)]


def parameters_in_use(learner: Learner) -> int:
    """Numbers that are trained, in all networks of a learner; rows that are only allocated ahead do not count."""
    return sum(_in_use(module) for network in learner.engine.owned.modules() for module in network.modules())


def parameter_growth(learner: Learner, classes: int) -> tuple[int, int]:
    """Parameters of a new learner in its first task, and how many more with each further task of so many classes."""
    counts = []
    for task in ("first", "second", "third"):
        learner.begin_task(TaskInfo(task, classes))
        counts.append(parameters_in_use(learner))
    return counts[0], max(counts[1] - counts[0], counts[2] - counts[1])  # units that the second did not use are gone


def _in_use(module: nn.Module) -> int:
    if isinstance(module, GrowingParameter):
        return module.count * math.prod(module.data.shape[1:])
    return sum(p.numel() for p in module.parameters(recurse=False))


def _row(name: str, spec: InputSpec, classes: int) -> Row:
    learner = registry.make(name, spec)
    traits = type(learner).traits
    differs = {}
    if name in PAPER:
        said, ours = asdict(PAPER[name]), asdict(traits)
        differs = {column: REASONS[name, column] for column in said if said[column] != ours[column]}
    if spec.scenario == "domain" and not traits.task_specific_parameters:
        traits = replace(traits, task_at_inference=False)
        if name in PAPER:
            differs["task_at_inference"] = ONE_HEAD
    return Row(name, traits, differs, *parameter_growth(learner, classes))
