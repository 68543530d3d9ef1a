"""A step that diverges, or whose batch holds a value that no input can have, has no effect but on the random draws."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.errors import DivergenceError
from scale_cl.learners import Batch, Compute, Learner, registry
from scale_cl.memory import POLICIES
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.hardships import as_on_a_gpu
from tests.learners.tiny import COLOUR, VECTORS, batch, quick, teach

BAD = (torch.nan, -3e38)
GUARDS = pytest.mark.parametrize("on_host", [True, False], ids=["by the host", "on the device"])
KEPT: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in registry.names()]
KEPT += [("er", {"memory_policy": policy, "memory": 6}) for policy in POLICIES if policy != "ring"]
KEPT += [
    ("er", {"memory_policy": policy, "memory_budget": "total", "memory": 12})
    for policy in ("balanced", "herding", "reservoir")
]
KEPT += [("derpp", {"memory_policy": "class-ring", "memory_budget": "class", "memory": 2, "replay_current": True})]
KEPT += [("scale", {"weight_average": 0.9}), ("ctn", {"replay_current": True})]


def make(name: str, on_host: bool, spec: InputSpec = VECTORS, *, mode: Any = "skip", **values: Any) -> Learner:
    kind = registry.config_class(name)
    known = {"memory": 5, "replay": 4, "passes": 1, "standardise": True} | quick(name) | values
    config = kind(**{key: value for key, value in known.items() if key in kind.__dataclass_fields__})
    learner = registry.make(name, spec, config, compute=Compute("fp32", capture=False, on_divergence=mode))
    return learner if on_host else as_on_a_gpu(learner)


def open_task(learner: Learner) -> Learner:
    """One task behind it, a second one begun."""
    teach(learner, tasks=1, steps=3)
    learner.begin_task(TaskInfo("open", 3))
    learner.observe(*batch(learner.spec, 4, seed=50))
    return learner


def all_but_draws(learner: Learner) -> dict[str, Any]:
    """Everything that decides what a learner does from here on, without the generator and the counts of steps."""
    state = learner.state_dict()
    known: dict[str, Any] = {name: t for name, t in state["tensors"].items() if name != "rng"}
    known |= {name: value for name, value in state["meta"].items() if name not in ("steps", "task_steps")}
    for name, memory in learner.engine.owned.memories.items():
        known[f"{name}, as the host counts"] = memory.available(), memory.available(current=True), list(memory.seen)
        known |= {f"{name} column {n}": t.clone() for n, t in enumerate(memory.tensors())}
    return known


def changed(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    names = sorted(a.keys() | b.keys())
    return [name for name in names if name not in a or name not in b or not _same(a[name], b[name])]


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def bad_batch(learner: Learner, value: float, seed: int = 51) -> tuple[Tensor, Tensor]:
    x, y = batch(learner.spec, 4, seed=seed)
    x.view(4, -1)[2, 1] = value
    return x, y


@GUARDS
@pytest.mark.parametrize(
    ("name", "values"), KEPT, ids=[" ".join(map(str, (name, *values.values()))) for name, values in KEPT]
)
def test_a_bad_batch_leaves_everything_as_it_was_and_training_goes_on(
    name: str, values: dict[str, Any], on_host: bool
) -> None:
    learner, twin = (open_task(make(name, on_host, **values)) for _ in range(2))
    good = all_but_draws(learner)
    for value in BAD:
        learner.observe(*bad_batch(learner, value))
        assert changed(good, all_but_draws(learner)) == []
    learner.check_finite()
    assert learner.skipped_steps == 2
    learner.engine.rng.set_state(twin.engine.rng.get_state())
    learner.engine.steps -= 2
    learner.engine.task_steps -= 2
    for other in (learner, twin):
        for seed in (60, 61):
            other.observe(*batch(VECTORS, 4, seed=seed))
        other.end_task()
        other.begin_task(TaskInfo("another", 3))
        other.observe(*batch(VECTORS, 4, seed=62))
    assert changed(all_but_draws(twin), all_but_draws(learner)) == []
    assert changed(good, all_but_draws(learner)) != []


@GUARDS
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later"])
def test_the_first_batch_of_a_memory_that_is_replayed_at_once_may_be_bad(on_host: bool, first: bool) -> None:
    learner = make("er", on_host, memory=8, memory_budget="total", memory_policy="reservoir")
    learner.begin_task(TaskInfo("open", 3))
    if not first:
        learner.observe(*batch(VECTORS, 3, seed=9))
    before = learner.memory.available()  # type: ignore[attr-defined]
    learner.observe(*bad_batch(learner, torch.nan))
    x, y = batch(VECTORS, 2)
    learner.observe(x, y)
    memory = learner.engine.owned.memories["memory"]
    assert memory.available() == int(memory.stored.sum()) == before + 2
    assert memory.seen == [before + 2]
    assert bool(torch.isfinite(memory.x).all())


@GUARDS
@pytest.mark.parametrize("name", ["scale", "hal"])
def test_a_diverged_step_on_good_samples_leaves_memory_and_counts_too(name: str, on_host: bool) -> None:
    learner = open_task(make(name, on_host, COLOUR, mode="stop", standardise=True))
    real, good = learner.update, all_but_draws(learner)

    def update(batch: Batch) -> None:
        real(batch)
        learner.log(loss=torch.tensor(torch.nan))

    learner.update = update  # type: ignore[method-assign]
    with contextlib.suppress(DivergenceError):  # on the device it comes later
        learner.observe(*batch(COLOUR, 4, seed=51))
    with pytest.raises(DivergenceError, match="step 5: loss is not a finite number"):
        learner.check_finite()
    assert changed(good, all_but_draws(learner)) == []


@pytest.mark.parametrize(
    ("value", "values", "said"),
    [
        (torch.nan, {}, "sample 2 of the batch holds NaN; mend the data, or let such"),
        (-torch.inf, {}, "sample 2 of the batch holds infinity; mend the data, or let such"),
        (2e6, {}, r"holds a value of size 2e\+06; the largest allowed is 1e\+06; mend the data, or"),
        (2e9, {"standardise": True}, r"holds a value of size 2e\+09; the largest allowed is \d\.\d+e\+06; mend"),
    ],
)
@GUARDS
def test_what_is_wrong_with_a_batch_is_said(value: float, values: dict[str, Any], said: str, on_host: bool) -> None:
    learner = open_task(make("finetune", on_host, mode="stop", **{"standardise": False} | values))
    with contextlib.suppress(DivergenceError):  # on the device it comes later
        learner.observe(*bad_batch(learner, value))
    with pytest.raises(DivergenceError, match=f"^seed 0, step 5: .*{said}"):
        learner.check_finite()


def test_large_numbers_that_are_ordinary_are_learnt() -> None:
    """Timestamps in nanoseconds, which standardisation makes ordinary; without it, they would be refused."""
    learner = make("er", True, mode="stop", standardise=True)
    learner.begin_task(TaskInfo("open", 3))
    for seed in range(3):
        x, y = batch(VECTORS, 4, seed=seed)
        learner.observe(x * 1e17 + 1.7e18, y)
    assert learner.skipped_steps == 0


class Counting(registry.entry("er").kind):  # type: ignore[misc]
    """A method from outside with a counter of its own, which keeps the logits of what it stores in its step."""

    def build(self, engine: Any) -> None:
        super().build(engine)
        self.calls = engine.tensor("calls", torch.zeros((), dtype=torch.int64), changes="step")

    def update(self, batch: Batch) -> None:
        super().update(batch)
        self.calls += 1


@GUARDS
def test_a_method_from_outside_gets_it_for_free(on_host: bool) -> None:
    compute = Compute("fp32", capture=False, on_divergence="skip")
    learner = Counting(VECTORS, Counting.config_class(memory=5), compute=compute)
    open_task(learner if on_host else as_on_a_gpu(learner))
    good = all_but_draws(learner)
    learner.observe(*bad_batch(learner, torch.nan))
    assert changed(good, all_but_draws(learner)) == []
    learner.observe(*batch(VECTORS, 4))
    assert int(learner.calls) == 5
