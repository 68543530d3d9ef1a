"""A network per task: each is what fine-tuning makes of its task alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from scale_cl import train
from scale_cl.learners import Finetune, FinetuneConfig, Independent, IndependentConfig, registry
from scale_cl.learners.independent import Column, ColumnLearner
from scale_cl.learners.learn_to_grow import Path
from scale_cl.nets import ReducedResNet18
from scale_cl.streams import TaskInfo
from tests.learners.tiny import COLOUR, batch, teach
from tests.training.small_streams import few_digits


def test_each_network_is_a_fine_tuned_one_that_saw_its_task_only() -> None:
    learner = teach(Independent(COLOUR, IndependentConfig(lr=0.05)), tasks=1)
    learner.begin_task(TaskInfo("second", 3))
    alone = Finetune(COLOUR, FinetuneConfig(lr=0.05))
    alone.begin_task(TaskInfo("second", 3))
    column = learner.columns[1]
    assert isinstance(column, Column)
    alone.net.backbone.load_state_dict(column.backbone.state_dict())
    with torch.no_grad():
        for mine, theirs in (
            (alone.net.heads.weight, learner.net.heads.weight),
            (alone.net.heads.bias, learner.net.heads.bias),
        ):
            mine.data[0] = theirs.data[1]
    for seed in range(2):
        x, y = batch(COLOUR, 5, seed=seed)
        learner.observe(x, y)
        alone.observe(x, y)
    x, _ = batch(COLOUR, 4, seed=9)
    torch.testing.assert_close(learner.predict(x, "second"), alone.predict(x, "second"), rtol=1e-4, atol=1e-5)


def test_on_digits_nothing_is_forgotten_and_the_matrix_says_so_to_the_bit() -> None:
    stream = few_digits(tasks=3, train=100)
    result = train(Independent(stream.spec, IndependentConfig(lr=0.1)), stream)
    assert result.fm == 0.0
    assert all(row[j] == result.matrix[j][j] for i, row in enumerate(result.matrix) for j in range(i))


@pytest.mark.parametrize("name", ["independent", "pnn", "learn-to-grow"])
@pytest.mark.parametrize("backbone", ["resnet18-relu", "resnet18-relu-nopool"])
def test_columns_are_the_backbone_that_was_asked_for(name: str, backbone: str) -> None:
    learner = registry.make(name, COLOUR, registry.config_class(name)(backbone=backbone))
    alone = Finetune(COLOUR, FinetuneConfig(backbone=backbone))
    for one in (learner, alone):
        one.begin_task(TaskInfo("first", 3))
    assert isinstance(learner, ColumnLearner)
    column = learner.columns[0]
    if isinstance(column, Column):
        trunk: nn.Module = column.backbone
    else:  # layers of a path
        trunk = copy.deepcopy(alone.net.backbone)
        assert isinstance(column, Path)
        assert isinstance(trunk, ReducedResNet18)
        trunk.conv.load_state_dict(column.new[0].get_submodule("conv").state_dict())
        trunk.norm.load_state_dict(column.new[0].get_submodule("norm").state_dict())
        trunk.blocks.load_state_dict(nn.ModuleList(list(column.new)[1:]).state_dict())
    alone.net.backbone.load_state_dict(trunk.state_dict())
    alone.net.heads.load_state_dict(learner.net.heads.state_dict())
    x, y = batch(COLOUR, 5)
    torch.testing.assert_close(learner.predict(x, "first"), alone.predict(x, "first"), rtol=1e-4, atol=1e-5)
    learner.observe(x, y)
    learner.begin_task(TaskInfo("second", 3))
    learner.observe(x, y)  # reads what the first task has
