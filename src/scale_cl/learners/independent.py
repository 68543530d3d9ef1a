"""Independent: a network per task, nothing shared; the bound of structure-based methods, and what they build on.

There is no forgetting and no transfer: each task is learned as if it were the only one. A column is a trunk that one
task trains. `ColumnNet` predicts a task by its own column and head, which no other task trains, nor do the column's
batch-norm statistics move: nothing is forgotten, to the bit. A task that comes back goes on with its column, unless
other columns read it. Every task has a head of its own on every stream, so the task must be known at inference.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, LearnerConfig, TaskModules, TaskShape
from scale_cl.errors import ConfigError
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.losses import cross_entropy
from scale_cl.nets import MLP, Backbone, ContinualNet, Heads, Inputs, Outputs, ReducedResNet18
from scale_cl.nets.backbones import unmodulated
from scale_cl.nets.model import Wrt
from scale_cl.settings import setting


@dataclass(frozen=True)
class ColumnConfig(LearnerConfig):
    """Settings of learners with a network per task."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps per batch", low=1)
    max_tasks: int = setting(100, "most tasks; another one is refused, as the network grows with each", low=1)

    def __post_init__(self) -> None:
        """Check that nothing averages finished columns with others."""
        super().__post_init__()
        if self.weight_average > 0:
            raise ConfigError("learner.weight_average must be 0 for a network per task: finished ones never move")


class Column(nn.Module):
    """The trunk of one task."""

    def __init__(self, backbone: Backbone) -> None:
        """Take over `backbone`; what is frozen in it stays frozen."""
        super().__init__()
        self.backbone = backbone
        self.fixed = {f"backbone.{name}" for name, p in backbone.named_parameters() if not p.requires_grad}

    def forward(self, x: Tensor, parts: tuple[int, ...], earlier: list[list[Tensor]]) -> tuple[list[Tensor], Tensor]:
        """What later columns read, and features [B, width]; `earlier` is what there is to read of earlier columns."""
        return [], self.backbone.top(self.backbone.stem(x, parts), unmodulated)[0]


class NoTrunk(Backbone):
    """Stands for a backbone where columns make the features."""

    film_widths = ()
    detach_norms = True
    embedding_width = 1

    def __init__(self, width: int, *, xavier: bool) -> None:
        """Features of so many units."""
        super().__init__()
        self.feature_width, self.xavier = width, xavier


class ColumnNet(ContinualNet):
    """Columns in place of a backbone, of which a task uses its own and perhaps earlier ones."""

    several_tasks = True

    def __init__(
        self,
        inputs: Inputs,
        width: int,
        columns: TaskModules,
        *,
        xavier: bool,
        laterals: bool,
        number: Callable[[], int],
    ) -> None:
        """`number` is asked for the task of a forward that may be recorded, whose samples are all of one task."""
        super().__init__(inputs, NoTrunk(width, xavier=xavier), Heads(width, shared=False, xavier=xavier), None)
        self._columns = (columns,)  # in a tuple, because the engine owns and saves them
        self.laterals, self.number = laterals, number

    @property
    def columns(self) -> TaskModules:
        """The columns in order."""
        return self._columns[0]

    def forward(self, x: Tensor, task: Tensor, *, parts: tuple[int, ...] = (), wrt: Wrt = "all") -> Outputs:
        """Features and logits by the column of the samples' task; tasks [T, B] are the first T, in order."""
        if task.dim() == 2:
            each = features_of([self.columns[k] for k in range(len(task))], x, parts, training=False)
            logits = [self.heads(features, own) for features, own in zip(each, task, strict=True)]
            return Outputs(torch.stack(each), torch.stack(each), torch.stack(logits))
        number = self.number() if self.training or task.device.type != "cpu" else int(task[0])
        columns = [self.columns[k] for k in (range(number + 1) if self.laterals else (number,))]
        features = features_of(columns, x, parts, training=self.training and not self.is_read(number))[-1]
        return Outputs(features, features, self.heads(features, task))

    def is_read(self, number: int) -> bool:
        """Whether later columns read a column: it stays as it is then, also when its task comes back."""
        return self.laterals and number + 1 < len(self.columns)

    def base_parameters(self) -> dict[str, Tensor]:
        """The open task's column unless it is read, and the heads, of which only its own has a gradient."""
        own = super().base_parameters()
        for k, column in enumerate(self.columns.columns):
            if self.is_read(k):
                continue
            named = ((name, p) for name, p in column.named_parameters() if p.requires_grad)
            own |= {f"columns.{k}.{name}": p for name, p in named if name not in fixed_in(column)}
        return own

    def for_task(self, task: int) -> nn.Module:
        """The network of one task alone: its column, those that it reads, and its head."""
        columns = [self.columns[k] for k in (range(task + 1) if self.laterals else (task,))]
        return _OneTask(columns, self.heads, task)

    def own_columns(self) -> ColumnNet:
        """For a copy that no engine owns: the columns become a part of it and move with it."""
        self.add_module("own", self.columns)
        return self


class ColumnLearner(Learner):
    """Plain SGD on the batch, on a column and a head of the task's own."""

    config_class = ColumnConfig
    needs_boundaries = True
    config: Any
    traits = Traits(task_specific_parameters=True, history_in_testing=True)
    laterals = False  # whether columns read earlier ones

    def build(self, engine: Engine) -> None:
        """Declare a column per task, and the network of columns and heads."""
        self.columns = engine.task_modules("columns", self.new_column, most=self.config.max_tasks)
        net = ColumnNet(
            engine.inputs(),
            self.trunk().feature_width,
            self.columns,
            xavier=engine.backbone.xavier,
            laterals=self.laterals,
            number=self.number,
        )
        self.network = engine.network(net)

    def trunk(self) -> Backbone:
        """A new trunk like the engine's, of the width that the settings say."""
        backbone, width, rng = self.engine.backbone, int(getattr(self.config, "width", 0)), self.engine.weights_rng
        if isinstance(backbone, MLP):
            hidden = (width,) * len(backbone.layers) if width else backbone.film_widths
            return MLP(math.prod(self.spec.shape), hidden, generator=rng)
        if isinstance(backbone, ReducedResNet18):
            return ReducedResNet18(
                self.spec.shape[0],
                width or backbone.conv.out_channels,
                momentum=self.config.norm_momentum,
                relu_sums=backbone.relu_sums,
                pool=backbone.pool,
                generator=rng,
            )
        if width:
            raise ConfigError("learner.width is for the backbones mlp and resnet18; leave it 0 for another")
        return copy.deepcopy(backbone)  # with the weights that it came with

    def new_column(self, shape: TaskShape) -> Column:
        """The column of a task."""
        raise NotImplementedError

    def number(self) -> int:
        """The task of a forward: the open one in training, else the one that is predicted."""
        engine, training = self.engine, self.net.training
        return engine.host.ask(lambda: engine.open_task if training else engine.predicted_task)

    def predicting_net(self) -> ContinualNet:
        """A copy of the network with all its columns, in evaluation mode."""
        net = super().predicting_net()
        assert isinstance(net, ColumnNet)
        return net.own_columns()

    def update(self, batch: Batch) -> None:
        """Descend CE(batch)."""
        for _ in range(self.config.updates):
            samples = self.engine.samples(batch)
            loss = cross_entropy(self.network(samples).logits, samples.y)
            self.network.base.descend(loss, self.config.lr)
            self.log(loss=loss)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch through all columns that are read; one gradient."""
        return StepSize(batch * (2 if cls.laterals else 1), copies=1)


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


class _OneTask(nn.Module):
    """Prepared inputs to the logits of one task."""

    def __init__(self, columns: list[nn.Module], heads: Heads, task: int) -> None:
        super().__init__()
        self.columns, self.head = nn.ModuleList(columns), heads.alone(task)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(features_of(list(self.columns), x, (), training=False)[-1])
        return logits


def fixed_in(column: nn.Module) -> set[str]:
    """Names of parameters that are not trained."""
    return column.fixed if isinstance(column, Column) else set()


def features_of(columns: list[nn.Module], x: Tensor, parts: tuple[int, ...], *, training: bool) -> list[Tensor]:
    """Features [B, width] by each column, which may read those before; only the last is in training mode, if any."""
    earlier: list[list[Tensor]] = []
    each: list[Tensor] = []
    for column in columns:
        own = column is columns[-1]
        if column.training != (training and own):
            column.train(training and own)
        with torch.enable_grad() if own and torch.is_grad_enabled() else torch.no_grad():
            read, features = column(x, parts, earlier)
        earlier.append(read)
        each.append(features)
    return each
