"""The property table: declarations against what learners really keep, and parameters counted by hand."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from scale_cl.learners import registry
from scale_cl.learners.method_properties import EXAMPLES, PAPER, REASONS, parameters_in_use, rows
from scale_cl.nets import GrowingParameter
from scale_cl.streams import TaskInfo
from tests.learners.tiny import SPLIT, new, teach

every_learner = pytest.mark.parametrize("name", registry.names())


@every_learner
def test_a_learner_keeps_samples_if_it_says_so(name: str) -> None:
    learner = teach(new(name))
    stored = [
        t for n, t in learner.state_dict()["tensors"].items() if n.startswith("memory.") and n.endswith(".stored")
    ]
    assert any(bool(t.any()) for t in stored) == type(learner).traits.episodic_memory


@every_learner
def test_a_learner_keeps_logits_if_it_says_that_it_has_a_history_to_train_with(name: str) -> None:
    learner = teach(new(name))
    owned = learner.engine.owned
    kept = [rows.used > 0 for memory in owned.memories.values() for rows in memory.logits.values()]
    kept += [bool(teacher) for teacher in owned.teachers.values()]
    kept += [state.changes == "task" for state in owned.states.values()]  # importances; momentum changes in every step
    kept += [bool(owned.tensors), getattr(learner.net, "laterals", False)]  # of neurons; frozen columns that are read
    assert any(kept) == type(learner).traits.history_in_training


@every_learner
def test_a_learner_grows_by_more_than_a_head_if_it_has_task_specific_parameters(name: str) -> None:
    learner = teach(new(name), tasks=2)
    before = parameters_in_use(learner)
    learner.begin_task(TaskInfo("third", 3))
    head = 3 * (learner.net.heads.width + 1)
    assert (parameters_in_use(learner) - before > head) == type(learner).traits.task_specific_parameters


def test_differences_from_the_papers_table_are_those_that_have_a_reason() -> None:
    spec, classes = EXAMPLES["scifar100"]
    differ = set()
    for row in rows(spec, classes):
        if row.learner in PAPER:
            paper, ours = asdict(PAPER[row.learner]), asdict(row.traits)
            differ |= {(row.learner, column) for column in paper if paper[column] != ours[column]}
            assert set(row.differs) == {column for learner, column in differ if learner == row.learner}
    assert differ == set(REASONS)


def test_on_a_stream_with_one_head_only_task_specific_parameters_need_the_task() -> None:
    spec, classes = EXAMPLES["pmnist"]
    for row in rows(spec, classes):
        assert row.traits.task_at_inference == row.traits.task_specific_parameters
        assert ("task_at_inference" in row.differs) == (row.learner in PAPER and not row.traits.task_at_inference)


def test_parameters_on_pmnist_are_those_counted_by_hand() -> None:
    found = {row.learner: (row.parameters, row.growth) for row in rows(*EXAMPLES["pmnist"])}
    base = 785 * 256 + 257 * 256 + 257 * 10
    controller = 2 * (17 * 512)
    assert found["finetune"] == found["gem"] == found["er"] == (base, 0)
    assert found["ctn"] == (base + controller + 16, 16)
    assert found["scale"] == (base + controller + 16 + 257 * 256 + 2 * 257, 16 + 257)
    shared, private = 785 * 256 + 257 * 256, 785 * 256
    discriminator = 257 * 175 + 176 * 175 + 2 * 176
    assert found["acl"] == (shared + private + 513 * 10 + discriminator, private + 513 * 10 + 176)


def test_growth_on_split_images_is_a_head_and_what_a_method_adds() -> None:
    found = {row.learner: row.growth for row in rows(*EXAMPLES["scifar100"], names=["er", "ctn", "scale"])}
    head = 5 * 161
    assert found == {"er": head, "ctn": head + 64, "scale": head + 64 + 161}


def test_rows_allocated_ahead_are_not_counted() -> None:
    learner = teach(registry.make("scale", SPLIT), tasks=1)
    before = parameters_in_use(learner)
    generator = learner.net.generator
    assert generator is not None
    assert isinstance(generator.embedding, GrowingParameter)
    generator.embedding.reshape(4096, generator.embedding.data.shape[1:])
    assert parameters_in_use(learner) == before


def test_the_growth_of_networks_that_grow_as_needed_is_the_most_that_a_task_may_add() -> None:
    spec, classes = EXAMPLES["pmnist"]
    den, bocl, reused = rows(spec, classes, ["den", "bocl", "learn-to-grow"])
    for row, units in ((den, 20), (bocl, 128)):
        layers = units * 785 + units * (256 + units + 1) + 256 * units
        heads = classes * (256 + units + 1) + classes * units
        assert row.growth == layers + heads
    adapters = 16 * (784 + 256) + 16 * (256 + 256)
    alpha, head = 2 * 3, classes * 257
    assert reused.growth == 785 * 256 + 257 * 256 + adapters + alpha + head
