"""What every learner of the catalog keeps to: tasks, batches, predictions, errors, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from scale_cl.errors import InputError, ScaleClError, UnknownTaskError
from scale_cl.learners import Learner, registry
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, VECTORS, batch, is_mlp, new, teach

every_learner = pytest.mark.parametrize("name", registry.names())


def make(name: str, spec: InputSpec = SPLIT, seed: int = 0) -> Learner:
    return new(name, spec, seed=seed)


@pytest.fixture(autouse=True)
def global_random_state_is_left_alone() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before), "a learner draws from generators of its own"


@every_learner
@pytest.mark.parametrize("spec", [DOMAIN, SPLIT, VECTORS], ids=["domain", "split", "vectors"])
def test_a_step_reports_its_losses_as_finite_tensors(name: str, spec: InputSpec) -> None:
    learner = make(name, spec)
    for task in ("a", "b"):
        learner.begin_task(TaskInfo(task, 3))
        stats = learner.observe(*batch(spec, 4))
        assert stats
        assert all(value.shape == () and bool(value.isfinite()) and not value.requires_grad for value in stats.values())
    assert learner.steps == 2


@every_learner
def test_predictions_have_the_columns_of_the_tasks_head(name: str) -> None:
    learner = make(name)
    for task, classes in (("two", 2), ("four", 4), ("three", 3)):
        learner.begin_task(TaskInfo(task, classes))
        learner.observe(*batch(SPLIT, 5, classes))
    x, _ = batch(SPLIT, 7)
    for task, classes in (("two", 2), ("four", 4), ("three", 3)):
        logits = learner.predict(x, task)
        assert logits.shape == (7, classes)
        assert logits.dtype == torch.float32
        assert bool(logits.isfinite().all())
        assert not logits.requires_grad


@every_learner
def test_images_of_three_channels_are_learned_by_the_resnet_and_predicted_each_by_itself(name: str) -> None:
    learner = teach(make(name, COLOUR), tasks=2, steps=1)
    assert any("conv" in key for key in learner.state_dict()["tensors"]) != is_mlp(name)
    x, _ = batch(COLOUR, 3)
    logits = learner.predict(x, "task 1")
    assert logits.shape == (3, 3)
    alone = torch.cat([learner.predict(one[None], "task 1") for one in x])
    torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)


@every_learner
def test_prediction_leaves_no_trace(name: str) -> None:
    learner, other = (teach(make(name), tasks=2, steps=1) for _ in range(2))
    x, _ = batch(SPLIT, 5)
    for task in ("open", "task 1"):  # after a task has ended, and while one is open
        first = learner.predict(x, "task 0").clone()
        assert torch.equal(learner.predict(x, "task 0"), first)
        assert differences(learner, other) == []
        assert learner.net.training
        for one in (learner, other):
            one.begin_task(TaskInfo(task, 3))
            one.observe(*batch(SPLIT, 4, seed=9))
    assert differences(learner, other) == []


@every_learner
def test_the_same_seed_gives_the_same_bits_another_others_and_ending_a_task_twice_is_ending_it_once(name: str) -> None:
    one, same, other = (teach(make(name, seed=seed)) for seed in (5, 5, 6))
    assert differences(one, same) == []
    same.end_task()
    same.end_task()
    assert differences(one, same) == []
    x, _ = batch(SPLIT, 5)
    for task in ("task 0", "task 1", "task 2"):
        assert not torch.equal(one.predict(x, task), other.predict(x, task))


@every_learner
def test_a_task_never_seen_cannot_be_predicted(name: str) -> None:
    learner = teach(make(name), tasks=2)
    with pytest.raises(UnknownTaskError, match=r"'horses' was never seen; tasks seen: 'task 0', 'task 1'$"):
        learner.predict(batch(SPLIT, 1)[0], "horses")
    with pytest.raises(UnknownTaskError, match="nothing was learnt yet"):
        make(name).predict(batch(SPLIT, 1)[0], "horses")


@every_learner
def test_beginning_a_task_ends_the_one_before(name: str) -> None:
    ended, not_ended = make(name), make(name)
    for task in ("a", "b"):
        for learner in (ended, not_ended):
            learner.begin_task(TaskInfo(task, 3))
            learner.observe(*batch(SPLIT, 4))
        ended.end_task()
    not_ended.end_task()
    assert differences(ended, not_ended) == []


@every_learner
def test_a_known_name_goes_on_with_its_task(name: str) -> None:
    learner = teach(make(name), tasks=3)
    x, _ = batch(SPLIT, 5)
    before = learner.predict(x, "task 0")
    parameters = sum(t.numel() for n, t in learner.state_dict()["tensors"].items() if n.startswith("net."))
    learner.begin_task(TaskInfo("task 0", 3))
    assert torch.equal(learner.predict(x, "task 0"), before), "its head stays"
    learner.observe(*batch(SPLIT, 5, seed=1))
    learner.end_task()
    tensors = learner.state_dict()["tensors"]
    assert sum(t.numel() for n, t in tensors.items() if n.startswith("net.")) == parameters
    assert not torch.equal(learner.predict(x, "task 0"), before)
    assert [task for task, _ in learner.state_dict()["meta"]["tasks"]] == ["task 0", "task 1", "task 2"]


@every_learner
def test_a_known_task_may_come_back_with_more_classes(name: str) -> None:
    learner = teach(make(name), tasks=2)
    learner.begin_task(TaskInfo("task 0", 5))
    x, _ = batch(SPLIT, 6)
    learner.observe(x, torch.tensor([0, 1, 2, 3, 4, 4]))
    learner.end_task()
    assert learner.predict(x, "task 0").shape == (6, 5)
    learner.begin_task(TaskInfo("task 0", 2))
    assert learner.predict(x, "task 0").shape == (6, 5), "a head does not shrink"
    assert learner.predict(x, "task 1").shape == (6, 3)
    teach(learner, tasks=1, first=7)


def test_learners_with_a_memory_draw_by_their_seed() -> None:
    one, other = teach(make("scale", seed=1)), teach(make("scale", seed=1))
    other.engine.rng.manual_seed(2)
    for learner in (one, other):
        learner.begin_task(TaskInfo("next", 3))
        learner.observe(*batch(SPLIT, 4))
    assert differences(one, other) != []


@every_learner
def test_something_is_learned(name: str) -> None:
    learner = registry.make(name, VECTORS)
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 6, generator=generator)
    learner.begin_task(TaskInfo("clouds", 3))
    for _ in range(40):
        y = torch.randint(0, 3, (10,), generator=generator)
        learner.observe(centres[y] + 0.3 * torch.randn(10, 6, generator=generator), y)
    learner.end_task()
    y = torch.randint(0, 3, (200,), generator=generator)
    x = centres[y] + 0.3 * torch.randn(200, 6, generator=generator)
    assert float((learner.predict(x, "clouds").argmax(1) == y).float().mean()) > 0.9


# ---- bad input -------------------------------------------------------------------------------------------------------

X, Y = batch(SPLIT, 4)


BAD: list[tuple[Any, Any, str]] = [
    (X.flatten(1), Y, r"shape \[4, 25\]; this learner takes \[n, 1, 5, 5\] with n >= 1"),
    (X[0], Y[:1], r"shape \[1, 5, 5\]; this learner takes \[n, 1, 5, 5\]"),
    (X[:0], Y[:0], r"shape \[0, 1, 5, 5\]; this learner takes \[n, 1, 5, 5\] with n >= 1"),
    (X.numpy(), Y, "a batch must be a torch.Tensor, not ndarray; torch.as_tensor makes one"),
    (X, Y.tolist(), "labels must be a torch.Tensor, not list"),
    (X.float(), Y, "torch.float32; this learner takes torch.uint8"),
    (X, Y[:3], r"labels have shape \[3\] and torch.int64; expected \[4\] and torch.int64"),
    (X, Y[:, None], r"labels have shape \[4, 1\]"),
    (X, Y.int(), "torch.int32; expected"),
    (X, Y.float(), "torch.float32; expected"),
    (X, torch.tensor([0, 1, 2, 3]), "label 3 is outside the task's head; labels are 0 to 2"),
    (X, torch.tensor([0, -1, 2, 1]), "label -1 is outside the task's head; labels are 0 to 2"),
]


@every_learner
def test_a_bad_batch_is_refused_in_one_line_and_changes_nothing(name: str) -> None:
    learner, other = teach(make(name), tasks=1, steps=1), teach(make(name), tasks=1, steps=1)
    for one in (learner, other):
        one.begin_task(TaskInfo("open", 3))
    for x, y, message in BAD:
        with pytest.raises(InputError, match=message) as caught:
            learner.observe(x, y)
        assert "\n" not in str(caught.value)
        assert differences(learner, other) == [], message


@pytest.mark.parametrize("name", [n for n in registry.names() if registry.entry(n).kind.traits.history_in_testing])
def test_samples_of_another_task_are_refused_where_finished_tasks_do_not_move(name: str) -> None:
    learner, other = teach(make(name), tasks=2, steps=1), teach(make(name), tasks=2, steps=1)
    for one in (learner, other):
        one.begin_task(TaskInfo("task 1", 3))
    with pytest.raises(InputError, match=f"^{name} trains parameters of the open task only; give it no samples of"):
        learner.observe(X, Y, torch.tensor([0, 1, 1, 1]))
    assert differences(learner, other) == []
    learner.observe(X, Y, torch.ones_like(Y))


@every_learner
def test_bad_samples_cannot_be_predicted(name: str) -> None:
    learner = teach(make(name), tasks=1, steps=1)
    for x in (X.flatten(1), X.float(), X[:0]):
        with pytest.raises(InputError, match="this learner takes"):
            learner.predict(x, "task 0")


@every_learner
def test_a_batch_without_a_task_is_refused(name: str) -> None:
    for spec in (SPLIT, replace(SPLIT, scenario="class")):
        learner, other = make(name, spec), make(name, spec)
        with pytest.raises(ScaleClError, match=r"no task is open: call begin_task.* \(boundaries=False in InputSpec\)"):
            learner.observe(X, Y)
        teach(learner, tasks=1)
        teach(other, tasks=1)
        with pytest.raises(ScaleClError, match="no task is open"):
            learner.observe(X, Y)
        assert differences(learner, other) == []


@every_learner
def test_a_task_without_classes_is_refused_and_the_open_one_goes_on(name: str) -> None:
    learner = make(name)
    learner.begin_task(TaskInfo("a", 3))
    with pytest.raises(InputError, match="task 'b' has 0 classes"):
        learner.begin_task(TaskInfo("b", 0))
    learner.observe(X, Y)
    with pytest.raises(UnknownTaskError):
        learner.predict(X, "b")


def test_the_resnet_is_refused_for_what_is_no_image() -> None:
    config = registry.config_class("scale")(backbone="resnet18")
    with pytest.raises(InputError, match=r"resnet18 needs images \[C, H, W\]; inputs have shape \[6\]: use mlp"):
        registry.make("scale", VECTORS, config)
