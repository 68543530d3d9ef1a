"""What every learner must bear: tiny tasks, tiny batches, one class, being saved, being recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scale_cl.engine.divergence import DeviceGuard
from scale_cl.learners import Learner
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import IMAGE
from tests.learners.sameness import differences
from tests.learners.tiny import DOMAIN, SPLIT, batch, teach

Maker = Callable[[InputSpec], Learner]


def bears_odd_tasks(make: Maker) -> None:
    """One batch, one sample, a last batch of one sample, a single class; also with images that shrink to one pixel."""
    for spec in (DOMAIN, SPLIT, IMAGE):
        learner = make(spec)
        tasks: list[tuple[list[int], int]] = [([1], 1 if spec is SPLIT else 3), ([4], 3), ([4, 1], 1)]
        if spec is not IMAGE:  # where a step takes its time
            tasks += [([1, 1, 3], 2), ([4, 4, 1], 3), ([4], 3)]
        for number, (sizes, classes) in enumerate(tasks):
            learner.begin_task(TaskInfo(str(number), 3 if spec is DOMAIN else classes))
            for n in sizes:
                stats = learner.observe(*batch(spec, n, classes, seed=10 * number + n))
                assert all(bool(value.isfinite()) for value in stats.values())
        learner.end_task()
        for number in range(len(tasks)):
            assert bool(learner.predict(batch(spec, 2)[0], str(number)).isfinite().all())
        assert all(bool(p.isfinite().all()) for p in learner.net.parameters())
        assert all(bool(b.isfinite().all()) for n, b in learner.net.named_buffers() if "running" in n)


def goes_on_after_loading(make: Maker, spec: InputSpec) -> None:
    """Saved inside a task and loaded into a new learner, it goes on bit for bit as the one that was not."""
    steps = 1 if spec is IMAGE else 2
    straight = teach(make(spec), tasks=2, steps=steps, n=5)
    straight.begin_task(TaskInfo("open", 3))
    straight.observe(*batch(spec, 5, seed=1))
    loaded = teach(make(spec), tasks=1, steps=1)  # has been used before
    loaded.load_state_dict(straight.state_dict())
    assert differences(straight, loaded) == []
    for learner in (straight, loaded):
        learner.observe(*batch(spec, 5, seed=2))
        teach(learner, tasks=2, steps=steps, first=1, n=5)
    assert differences(straight, loaded) == []
    assert torch.equal(straight.predict(batch(spec, 3)[0], "open"), loaded.predict(batch(spec, 3)[0], "open"))


class _NoHostWork(TorchDispatchMode):
    """Refuses operations whose result the host must wait for, and tensors made of host data."""

    waiting = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "is_nonzero", "equal", "lift_fresh")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.waiting, f"a step calls {name}"
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a step indexes by a mask"
        return func(*args, **(kwargs or {}))


def leaves_the_host_alone(make: Maker, spec: InputSpec) -> None:
    """A step, as it would be recorded, never looks at a value on the device."""
    learner = teach(as_on_a_gpu(make(spec)), tasks=2, steps=1 if spec is IMAGE else 2, n=5)
    learner.begin_task(TaskInfo("open", 3))
    x, y = batch(spec, 5)
    for _ in range(2):  # then the slots are full, and draws keep their size
        learner.observe(x, y)
    with _NoHostWork():  # type: ignore[no-untyped-call]
        learner.engine.step((5, True), x, y)


def keeps_what_recorded_steps_write_to(make: Maker, spec: InputSpec) -> None:
    """While no tensor of the learner moves, from task to task, nor do the guard's copies: else steps are dropped."""
    learner = as_on_a_gpu(make(spec))
    dropped, count, before, drop = 0, 0, None, learner.engine.step.drop

    def counted() -> None:
        nonlocal dropped
        dropped += 1
        drop()

    learner.engine.step.drop = counted  # type: ignore[method-assign]
    for task in range(4):
        learner.begin_task(TaskInfo(str(task), 3))
        learner.observe(*batch(spec, 4, seed=task))
        now = learner.engine.owned.places()
        if now == before:
            assert dropped == count, "recorded steps were dropped although nothing has moved"
        else:
            assert dropped > count, "recorded steps stayed although something has moved"
        before, count = now, dropped
        learner.end_task()


def as_on_a_gpu(learner: Learner) -> Learner:
    """The same learner, before its first task, with no short way that only the host has."""
    engine = learner.engine
    engine.is_cpu = False
    engine.guard = DeviceGuard(learner.device, learner.compute.on_divergence)
    for memory in engine.owned.memories.values():
        memory.on_host = False
    return learner
