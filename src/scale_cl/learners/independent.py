"""Independent: a network per task, nothing shared; the bound of structure-based methods.

There is no forgetting and no transfer: each task is learned as if it were the only one.
"""

from __future__ import annotations

from dataclasses import dataclass

from scale_cl.engine import TaskShape
from scale_cl.learners.columns import Column, ColumnConfig, ColumnLearner


@dataclass(frozen=True)
class IndependentConfig(ColumnConfig):
    """Settings of a network per task."""


class Independent(ColumnLearner):
    """Plain SGD on the batch by a network of the task's own."""

    config_class = IndependentConfig
    config: IndependentConfig

    def new_column(self, shape: TaskShape) -> Column:
        """A new trunk."""
        return Column(self.trunk())
