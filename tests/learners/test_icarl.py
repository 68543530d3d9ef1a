"""iCaRL against a plain re-computation: its steps, and prediction by the nearest mean of exemplars."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Icarl, IcarlConfig, ReplayLearner
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners import hardships
from tests.learners.plain import SPLIT, VECTOR
from tests.learners.replay_reference import Part, PlainReplay, SideBySide
from tests.learners.tiny import batch, teach


class PlainIcarl(PlainReplay):
    """Outputs of all exemplars are stored anew when a task ends."""

    def begin_task(self, learner: ReplayLearner, task: int, classes: int) -> None:
        for block in self.memory.values():
            for sample in block.values():
                (logits,) = self.net.logits(sample.x[None], [sample.task], training=False)
                sample.logits = logits.detach()
        super().begin_task(learner, task, classes)

    def step(self, batch: Part) -> None:
        t = self.config.temperature
        for _ in range(self.config.updates):
            replayed = self.replayed()
            loss = self.ce(batch)
            if replayed is not None:
                loss = loss + self.ce(replayed)
                for sample, o in zip(replayed.samples, self.net.logits(replayed.x, replayed.tasks), strict=True):
                    assert sample.logits is not None
                    p, q = (sample.logits / t).softmax(0), (o[: len(sample.logits)] / t).softmax(0)
                    each = (p * (p / q).log()).sum() / len(replayed.y)
                    loss = loss + self.config.distillation * t * t * each
            self.descend(self.gradient(loss), self.config.lr)
            self.moved()


@pytest.mark.parametrize("spec", [VECTOR, SPLIT], ids=["one head", "a head per task"])
def test_steps_are_those_of_the_plain_computation(spec: InputSpec) -> None:
    config = IcarlConfig(memory=5, replay=7, lr=0.1, updates=2, distillation=0.6)
    SideBySide(Icarl(spec, config), PlainIcarl).some_tasks(spec)


@pytest.mark.parametrize("spec", [VECTOR, SPLIT], ids=["one head", "a head per task"])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("on_host", [True, False])
def test_the_class_of_the_nearest_mean_is_predicted(spec: InputSpec, is_open: bool, on_host: bool) -> None:
    learner = Icarl(spec, IcarlConfig(memory=6, lr=0.1))
    if not on_host:
        hardships.as_on_a_gpu(learner)
    teach(learner, tasks=2, n=6)
    if is_open:
        learner.begin_task(TaskInfo("task 2", 3))
        learner.observe(*batch(spec, 6, seed=7))
    x, memory = batch(spec, 20, seed=99)[0], learner.memory
    for number, name in enumerate(learner.tasks):
        means = {}
        for label in range(3):
            rows = memory.stored & (memory.y == label)
            if spec.scenario == "task":
                rows = rows & (memory.task == number)
            if bool(rows.any()):
                phi = learner.features(memory.x[rows], name)
                mean = (phi / phi.norm(dim=1, keepdim=True)).mean(0)
                means[label] = mean / mean.norm()
        phi = learner.features(x, name)
        phi = phi / phi.norm(dim=1, keepdim=True)
        for one, scores in zip(phi, learner.predict(x, name), strict=True):
            distances = {label: float((one - mean).square().sum()) for label, mean in means.items()}
            for label in range(3):
                wanted = -distances[label] if label in distances else -5.0
                assert abs(float(scores[label]) - wanted) < 1e-4
            assert int(scores.argmax()) in means


def test_in_a_total_budget_the_exemplars_that_leave_are_the_last_by_herding() -> None:
    learner = Icarl(SPLIT, IcarlConfig(memory=12, memory_budget="total"))
    teach(learner, tasks=1, n=6)
    memory, rank = learner.memory, learner.memory.rank.clone()
    held = memory.stored.clone()
    learner.begin_task(TaskInfo("next", 3))
    left = held & ~memory.stored
    assert bool(left.any())
    assert int(rank[left].min()) > int(rank[memory.stored].max())


def test_outputs_are_stored_anew_for_all_tasks_when_one_ends() -> None:
    learner = teach(Icarl(SPLIT, IcarlConfig(memory=6)), tasks=3, n=4)
    for task in range(3):
        rows = learner.memory.rows_of(task)
        stored, exists = learner.memory.stored_logits(rows, 3)
        assert exists is None or bool(exists.all())
        wanted = learner.engine.evaluated(learner.memory.x[rows], learner.memory.task[rows]).logits
        torch.testing.assert_close(stored, wanted)


def test_class_means_are_computed_once_for_the_present_weights_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = teach(Icarl(SPLIT, IcarlConfig(memory=6)), tasks=2)
    x, y = batch(SPLIT, 4)
    calls: list[str] = []
    derived = Icarl.derived

    def counted(self: Icarl) -> dict[str, Tensor]:
        calls.append("")
        return derived(self)

    monkeypatch.setattr(Icarl, "derived", counted)
    first = learner.predict(x, "task 0")
    learner.predict(x, "task 1")
    assert torch.equal(learner.predict(x, "task 0"), first)
    assert len(calls) == 1
    state = learner.state_dict()
    learner.begin_task(TaskInfo("task 2", 3))
    learner.observe(x, y)
    learner.predict(x, "task 2")
    assert len(calls) == 2
    learner.load_state_dict(state)
    assert torch.equal(learner.predict(x, "task 0"), first)
    assert len(calls) == 3
