"""What HAL and ISYANA keep of each class: tables by task and class, which grow with the tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ClassTables(nn.Module):
    """Buffers whose first dimensions are tasks, classes or both; what is there stays when they grow."""

    def __init__(self) -> None:
        """No table yet."""
        super().__init__()
        self._by: dict[str, str] = {}

    def table(self, name: str, by: str, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        """Add one of zeros; `by` is "tc" for [tasks, classes, *shape], "t" for [tasks, *shape], "c" for classes."""
        self._by[name] = by
        self.register_buffer(name, torch.zeros(*[0] * len(by), *shape, dtype=dtype))

    def ensure_task(self, task: int, classes: int, *, generator: torch.Generator) -> None:
        """Make room for task number `task`."""
        tasks, most = self._size(dict(self.named_buffers()))
        for name, shape in self._shapes(max(task + 1, tasks), max(classes, most)).items():
            own = self.get_buffer(name)
            if own.shape != shape:
                larger = own.new_zeros(shape)
                larger[tuple(slice(n) for n in own.shape)] = own
                setattr(self, name, larger)

    def _size(self, tables: dict[str, Tensor]) -> tuple[int, int]:
        """Tasks and classes, by the last table that has both."""
        tasks, classes = tables[[name for name, by in self._by.items() if by == "tc"][-1]].shape[:2]
        return tasks, classes

    def _shapes(self, tasks: int, classes: int) -> dict[str, tuple[int, ...]]:
        """Of all tables with so many tasks and classes."""
        sizes, own = {"t": tasks, "c": classes}, self.get_buffer
        return {name: (*(sizes[one] for one in by), *own(name).shape[len(by) :]) for name, by in self._by.items()}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_others: Any) -> None:
        """Take over tables of any number of tasks and classes, if it is the same in all."""
        saved = {name: state_dict[prefix + name] for name in self._by}
        tasks, classes = self._size(saved)
        for name, shape in self._shapes(tasks, classes).items():
            own, found = self.get_buffer(name), saved[name]
            if found.shape != shape:
                raise ValueError(f"{name} of {list(found.shape)} is not of {tasks} tasks and {classes} classes")
            setattr(self, name, found.to(own.device, own.dtype, copy=True))
