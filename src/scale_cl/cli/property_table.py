"""The property table of `scale-cl list learners`, as lines of text."""

from __future__ import annotations

from dataclasses import asdict

from scale_cl.learners import method_properties

_TITLES = {
    "episodic_memory": "memory",
    "task_specific_parameters": "task-specific",
    "task_at_inference": "task id",
    "history_in_training": "history",
    "history_in_testing": "at test",
}
_MEANING = (
    "memory: keeps samples; task-specific: has parameters of one task only, besides its head;",
    "task id: must be told the task to predict; history: keeps earlier parameters, gradients or logits to train with;",
    "at test: keeps earlier parameters to predict with; parameters: of all networks, those that only train included.",
)


def property_lines() -> list[str]:
    """The table of the supplement, a line a learner, and below it where it is not the paper's."""
    streams = list(method_properties.EXAMPLES)
    tables = [method_properties.rows(*method_properties.EXAMPLES[stream]) for stream in streams]
    ticks = tables[streams.index("scifar100")]
    cells = [["learner", *_TITLES.values()]]
    cells += [[row.learner, *_ticks(row)] for row in ticks]
    for stream, table in zip(streams, tables, strict=True):
        cells[0] += [f"{stream}: parameters", "a task"]
        for line, row in zip(cells[1:], table, strict=True):
            line += [f"{row.parameters:,}", f"+{row.growth:,}"]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(_padded(line, widths)).rstrip() for line in cells]
    notes = [
        f"* {row.learner}, {_TITLES[c]}: {why}; the paper says otherwise"
        for row in ticks
        for c, why in row.differs.items()
    ]
    one_head = (
        "On a stream with one head for all tasks, a task id matters only to learners with task-specific parameters."
    )
    return [*lines, "", *_MEANING, one_head, *notes]


def _ticks(row: method_properties.Row) -> list[str]:
    return [("yes" if said else "-") + "*" * (column in row.differs) for column, said in asdict(row.traits).items()]


def _padded(line: list[str], widths: list[int]) -> list[str]:
    """Words to the left, numbers to the right."""
    words = 1 + len(_TITLES)
    return [
        f"{text:{'<' if at < words else '>'}{width}}" for at, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
