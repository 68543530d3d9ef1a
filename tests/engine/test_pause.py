"""Between two steps of a task a method may look at values and grow; steps of a task are counted and saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine
from scale_cl.errors import CheckpointError, DivergenceError
from scale_cl.learners import Compute, Learner, registry
from scale_cl.losses import cross_entropy
from scale_cl.streams import TaskInfo
from tests.learners.hardships import as_on_a_gpu, leaves_the_host_alone
from tests.learners.tiny import SPLIT, batch, new, teach


class Shifts(nn.Module):
    """Numbers that become more."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.ones(1))

    def forward(self) -> Tensor:
        return self.values.sum()


class Growing(Learner):
    """Adds a parameter before every second step."""

    def build(self, engine: Engine) -> None:
        self.network = engine.network()
        self.shifts = engine.part("shifts", Shifts)
        self.paused: list[int] = []

    def update(self, batch: Batch) -> None:
        samples = self.engine.samples(batch)
        loss = cross_entropy(self.network(samples).logits * self.shifts(), samples.y)
        self.shifts.descend(loss, 0.1)
        self.log(loss=loss)

    def pauses(self, step: int) -> bool:
        return step > 0 and step % 2 == 0

    def pause(self, step: int) -> None:
        self.paused.append(step)
        module = self.shifts.module
        assert isinstance(module, Shifts)
        module.values = nn.Parameter(torch.cat([module.values.detach(), torch.ones(1)]))


def test_parameters_that_came_in_a_pause_are_trained_and_guarded() -> None:
    learner = Growing(SPLIT, compute=Compute(on_divergence="skip"))
    learner.begin_task(TaskInfo("a", 3))
    for step in range(5):
        learner.observe(*batch(SPLIT, 4, seed=step))
    assert learner.paused == [2, 4]
    (values,) = learner.shifts.weights.tensors
    assert values.shape == (3,)
    assert bool((values != 1).all()), "the last one too"
    assert any(t is values for t in learner.engine.learned())
    learner.begin_task(TaskInfo("b", 3))
    assert learner.engine.task_steps == 0
    learner.observe(*batch(SPLIT, 4))
    assert learner.paused == [2, 4], "counted per task"


def test_a_bad_step_after_a_pause_is_set_back_to_what_the_pause_left() -> None:
    learner = Growing(SPLIT, compute=Compute(on_divergence="skip"))
    learner.begin_task(TaskInfo("a", 3))
    for step in range(2):
        learner.observe(*batch(SPLIT, 4, seed=step))
    kept = learner.shifts.weights.tensors[0].detach().clone()
    learner.log = lambda **terms: learner.engine.log({"loss": torch.tensor(torch.nan)})  # type: ignore[method-assign]
    learner.observe(*batch(SPLIT, 4))
    assert torch.equal(learner.shifts.weights.tensors[0], torch.cat([kept, torch.ones(1)]))


def test_no_pause_is_made_on_a_step_that_diverged() -> None:
    learner = Growing(SPLIT)
    as_on_a_gpu(learner)  # where the host hears of it later
    learner.begin_task(TaskInfo("a", 3))
    learner.observe(*batch(SPLIT, 4))
    learner.log = lambda **terms: learner.engine.log({"loss": torch.tensor(torch.nan)})  # type: ignore[method-assign]
    learner.observe(*batch(SPLIT, 4))
    with pytest.raises(DivergenceError, match="step 2: loss is not a finite number"):
        learner.observe(*batch(SPLIT, 4))
    assert learner.paused == []


def test_a_state_without_steps_of_the_task_is_read_and_a_wrong_number_refused() -> None:
    learner = teach(new("finetune"), tasks=1)
    state = learner.state_dict()
    assert state["meta"]["task_steps"] == 2
    del state["meta"]["task_steps"]
    learner.load_state_dict(state)
    assert learner.engine.task_steps == 0
    state["meta"]["task_steps"] = -1
    with pytest.raises(CheckpointError, match="-1' is not a number of steps"):
        learner.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("den", {"head_steps": 1, "retrain_steps": 9}),
        ("den", {"head_steps": 1, "retrain_steps": 1, "expand_steps": 9, "threshold": 0.0}),
        ("den", {"head_steps": 1, "retrain_steps": 1, "expand_steps": 1, "threshold": 0.0}),
        ("learn-to-grow", {"search_steps": 3}),
        ("learn-to-grow", {"search_steps": 2}),
        ("bocl", {"search_steps": 2, "trials": 2}),
    ],
)
def test_steps_of_every_phase_leave_the_host_alone(name: str, values: dict[str, Any]) -> None:
    config = registry.config_class(name)(backbone="mlp-6-6", **values)
    leaves_the_host_alone(lambda spec: registry.make(name, spec, config), SPLIT)


def test_a_pause_that_leaves_what_is_not_finite_is_an_error_that_says_where() -> None:
    class Careless(Growing):
        def pause(self, step: int) -> None:
            super().pause(step)
            with torch.no_grad():
                self.net.heads.weight.data.fill_(torch.nan)

    learner = Careless(SPLIT)
    learner.begin_task(TaskInfo("a", 3))
    for step in range(2):
        learner.observe(*batch(SPLIT, 4, seed=step))
    said = "seed 0: careless diverged between steps 2 and 3: what it learned is not finite; lower the rate"
    with pytest.raises(DivergenceError, match=f"^{said}$"):
        learner.observe(*batch(SPLIT, 4))
