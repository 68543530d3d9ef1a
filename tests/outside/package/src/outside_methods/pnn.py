"""Progressive networks: a new column per task, which reads the earlier ones; they are never trained again.

Rusu et al., 2016. Columns are multi-layer perceptrons of two hidden layers; lateral connections enter the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, LearnerConfig, TaskModules, TaskShape
from scale_cl.learners import Learner
from scale_cl.learners.learner import Traits
from scale_cl.losses import cross_entropy
from scale_cl.nets import Backbone, ContinualNet, Heads, Inputs, Outputs
from scale_cl.settings import setting


@dataclass(frozen=True)
class PnnConfig(LearnerConfig):
    """Settings of progressive networks."""

    lr: float = setting(0.1, "learning rate", above=0)
    units: int = setting(64, "width of both hidden layers of a column", low=1)


class Column(nn.Module):
    """The layers of one task."""

    def __init__(self, inputs: int, units: int, earlier: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, units), nn.Linear(units, units)
        self.lateral = nn.Linear(units * earlier, units, bias=False) if earlier else None
        for p in self.parameters():
            bound = p.shape[-1] ** -0.5
            with torch.no_grad():
                p.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor, earlier: list[Tensor]) -> tuple[Tensor, Tensor]:
        """First hidden layer and features, given the first hidden layers of the earlier columns."""
        hidden = torch.relu(self.first(x))
        features = self.second(hidden)
        if self.lateral is not None:
            features = features + self.lateral(torch.cat(earlier, 1))
        return hidden, torch.relu(features)


class Progressive(ContinualNet):
    """Columns in place of a backbone."""

    def __init__(self, inputs: Inputs, backbone: Backbone, heads: Heads, columns: TaskModules) -> None:
        super().__init__(inputs, backbone, heads, None)
        self.columns = (columns,)  # a tuple, because the engine owns and saves them

    def of_task(self, x: Tensor, number: int) -> Outputs:
        """Outputs of prepared samples that all belong to task `number`."""
        earlier: list[Tensor] = []
        for k in range(number + 1):
            hidden, features = self.columns[0][k](x.flatten(1), earlier)
            earlier.append(hidden)
        task = torch.full((len(x),), number, device=x.device)
        return Outputs(features, features, self.heads(features, task))

    def for_task(self, task: int) -> nn.Module:
        """The network of one task alone."""
        return OneTask(self, task)


class OneTask(nn.Module):
    """Prepared inputs to the logits of one task."""

    def __init__(self, net: Progressive, task: int) -> None:
        super().__init__()
        self.columns = nn.ModuleList(net.columns[0][k] for k in range(task + 1))
        self.head = nn.Linear(net.heads.width, net.heads.classes[task])
        with torch.no_grad():
            self.head.weight.copy_(net.heads.weight.data[task, : self.head.out_features])
            self.head.bias.copy_(net.heads.bias.data[task, : self.head.out_features])

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes]."""
        earlier: list[Tensor] = []
        features = x
        for column in self.columns:
            hidden, features = column(x.flatten(1), earlier)
            earlier.append(hidden)
        logits: Tensor = self.head(features)
        return logits


class Width(Backbone):
    """No layers of its own: columns make the features."""

    film_widths = ()
    xavier = False
    detach_norms = True
    embedding_width = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.feature_width = width


class Pnn(Learner):
    """Progressive networks: a column per task, reading the earlier ones, which stay as they are."""

    config_class = PnnConfig
    needs_boundaries = True
    config: PnnConfig
    traits = Traits(task_specific_parameters=True, history_in_testing=True)

    def build(self, engine: Engine) -> None:
        """The network, a column per task, and the weights that are trained."""
        self.columns = engine.task_modules("columns", self.new_column)
        heads = Heads(self.config.units, shared=False, xavier=False)
        self.progressive = Progressive(engine.inputs(), Width(self.config.units), heads, self.columns)
        self.network = engine.network(self.progressive)
        self.trained = engine.weights(self.open_parameters)

    def new_column(self, shape: TaskShape) -> nn.Module:
        """The column of a task."""
        inputs = int(torch.Size(self.engine.spec.shape).numel())
        return Column(inputs, self.config.units, shape.task, self.engine.weights_rng)

    def open_parameters(self) -> Mapping[str, Tensor]:
        """The open task's column, and the heads, of which only its own has a gradient."""
        named: dict[str, Any] = dict(self.columns.named_parameters())
        trained = {name: p for name, p in named.items() if p.requires_grad}
        return trained | dict(self.progressive.heads.named_parameters())

    def update(self, batch: Batch) -> None:
        """Descend CE(batch)."""
        number = self.engine.host.ask(lambda: self.engine.open_task)
        loss = cross_entropy(self.progressive.of_task(self.engine.prepared(batch.x), number).logits, batch.y)
        self.trained.descend(loss, self.config.lr)
        self.log(loss=loss)

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        """Logits by the task's own column."""
        number = self.engine.host.ask(lambda: self.engine.predicted_task)
        return self.progressive.of_task(self.progressive.inputs(x), number).logits
