"""What DEN and BOCL share: an MLP whose layers gain and lose units, of which each task uses some.

A new task is given spare units in every layer, which nobody uses yet. The method puts some of them to use while the
task is open; when it ends, the others are dropped. So the most that a task can add is known beforehand. Units that came
after a task are not used by it, and every task has a head of its own on every stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.engine import Engine, LearnerConfig
from scale_cl.errors import ConfigError
from scale_cl.learners.learner import Learner, StepSize, Traits, mlp_to_grow
from scale_cl.nets import MLP, Backbone, ContinualNet, Heads, Inputs, Outputs
from scale_cl.nets.growing_parameter import linear_rows
from scale_cl.nets.model import Wrt
from scale_cl.settings import setting


@dataclass(frozen=True)
class GrowingConfig(LearnerConfig):
    """Settings of learners whose layers gain units."""

    backbone: str = setting("mlp", "network: mlp (two hidden layers of 256) or mlp-128-128 (other widths)")
    lr: float = setting(0.03, "learning rate", above=0)
    max_tasks: int = setting(100, "most tasks; another one is refused, as the network grows with each", low=1)

    def __post_init__(self) -> None:
        """Check that nothing averages units that are dropped with others."""
        super().__post_init__()
        if self.weight_average > 0:
            raise ConfigError("learner.weight_average must be 0 for a network whose units come and go")


class GrowingTrunk(Backbone):
    """Linear layers with ReLU, whose units may be more or fewer from task to task."""

    spare: Tensor
    sized_by_state = True
    film_widths = ()
    xavier = True
    detach_norms = True
    embedding_width = 1

    def __init__(self, mlp: MLP) -> None:
        """Begin with the weights of `mlp`; no task yet."""
        super().__init__()
        layers = [layer for layer in mlp.layers if isinstance(layer, nn.Linear)]
        self.weights = nn.ParameterList(layer.weight for layer in layers)
        self.biases = nn.ParameterList(layer.bias for layer in layers)
        for i, layer in enumerate(layers):
            self.register_buffer(f"running_uses_{i}", torch.zeros(0, len(layer.weight)))  # [tasks, units] 0 or 1
            self.register_buffer(f"running_trained_{i}", torch.ones(len(layer.weight)))  # [units] 0 or 1
        self.register_buffer("spare", torch.zeros((), dtype=torch.int64))
        self.spare_units = 0  # at the end of each layer, which came with the open task

    @property
    def feature_width(self) -> int:  # type: ignore[override]
        """Units of the last layer."""
        return len(self.biases[-1])

    @property
    def tasks(self) -> int:
        """How many tasks have units."""
        return len(self.uses(0))

    def uses(self, layer: int) -> Tensor:
        """[tasks, units]: 1 where a task uses a unit of a layer, else 0."""
        return self.get_buffer(f"running_uses_{layer}")

    def trained(self, layer: int) -> Tensor:
        """[units]: 1 for the units of a layer that are being trained, else 0."""
        return self.get_buffer(f"running_trained_{layer}")

    def features(self, x: Tensor, task: Tensor) -> Tensor:
        """[B, units of the last layer] of samples of these tasks [B]."""
        h = x.flatten(1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.relu(F.linear(h, weight, bias)) * F.embedding(task, self.uses(i))
        return h

    @torch.no_grad()
    def add_task(self, spare: int, *, generator: torch.Generator) -> None:
        """One more task, which uses all units that there are; and spare ones in every layer.

        A spare unit has random weights from all units below. Units that were there do not read it yet.
        """
        before = self.weights[0].shape[1]
        for i, (weight, bias) in enumerate(zip(list(self.weights), list(self.biases), strict=True)):
            rows, columns = weight.shape[0], weight.shape[1]
            larger = F.pad(weight, (0, before - columns, 0, spare))
            if spare:
                drawn, _ = linear_rows((rows + spare,), before, xavier=True, generator=generator)
                larger[rows:] = drawn[:spare].to(larger)
            self.weights[i] = nn.Parameter(larger)
            self.biases[i] = nn.Parameter(F.pad(bias, (0, spare)))
            uses = F.pad(self.uses(i), (0, spare, 0, 1))
            uses[-1, :rows] = 1
            setattr(self, f"running_uses_{i}", uses)
            setattr(self, f"running_trained_{i}", F.pad(self.trained(i), (0, spare)))
            before = rows + spare
        self._set_spare(spare)

    @torch.no_grad()
    def keep(self, masks: Sequence[Tensor]) -> None:
        """Drop the units whose mask [units] bool is false; what is left are no spare ones."""
        below: Tensor | None = None
        for i, mask in enumerate(masks):
            rows = mask.nonzero().flatten()
            weight = self.weights[i][rows]
            self.weights[i] = nn.Parameter(weight if below is None else weight[:, below])
            self.biases[i] = nn.Parameter(self.biases[i][rows])
            setattr(self, f"running_uses_{i}", self.uses(i)[:, rows])
            setattr(self, f"running_trained_{i}", self.trained(i)[rows])
            below = rows
        self._set_spare(0)

    def is_spare(self, layer: int) -> Tensor:
        """[units] bool: the units that came with the open task."""
        units = len(self.biases[layer])
        return torch.arange(units, device=self.biases[layer].device) >= units - self.spare_units

    def _set_spare(self, units: int) -> None:
        self.spare_units = units
        self.spare.fill_(units)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_others: Any) -> None:
        """Take over any number of tasks and units."""
        self._check_sizes({name.removeprefix(prefix): t.shape for name, t in state_dict.items()})
        for name, own in list(self.named_buffers()):
            setattr(self, name, state_dict[prefix + name].to(own.device, own.dtype, copy=True))
        self.spare_units = int(self.spare)
        for kind in ("weights", "biases"):
            own = getattr(self, kind)
            for i, p in enumerate(list(own)):
                own[i] = nn.Parameter(p.detach().new_empty(state_dict[f"{prefix}{kind}.{i}"].shape))

    def _check_sizes(self, sizes: dict[str, torch.Size]) -> None:
        """ValueError unless tensors of these sizes fit together."""
        tasks, below = sizes["running_uses_0"][0], self.weights[0].shape[1]
        for i in range(len(self.biases)):
            units = sizes[f"biases.{i}"][0]
            wanted = ((units, below), (tasks, units), (units,))
            names = (f"weights.{i}", f"running_uses_{i}", f"running_trained_{i}")
            if tuple(tuple(sizes[name]) for name in names) != wanted:
                raise ValueError(f"layer {i} has {units} units, but {', '.join(names)} are not of that size")
            below = units


class GrowingHeads(Heads):
    """Heads per task on features whose width changes."""

    sized_by_state = True

    def __init__(self, width: int) -> None:
        """No head yet."""
        super().__init__(width, shared=False, xavier=True)

    @torch.no_grad()
    def widen(self, width: int) -> None:
        """Features of more units; heads that there are do not read the new ones."""
        if width > self.width:
            self.weight.reshape(1, (self.weight.data.shape[1], width))
            self.width = width

    @torch.no_grad()
    def keep(self, mask: Tensor) -> None:
        """Features of only those units whose mask [units] bool is true."""
        self.weight.data = nn.Parameter(self.weight.data[:, :, mask.nonzero().flatten()])
        self.width = self.weight.data.shape[2]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_others: Any) -> None:
        """Take over features of any width."""
        self.width = state_dict[f"{prefix}weight.data"].shape[2]
        count, (capacity, classes, _) = self.weight.count, self.weight.data.shape
        self.weight.data = nn.Parameter(self.weight.data.detach().new_zeros(capacity, classes, self.width))
        self.weight.count = count


class GrowingNet(ContinualNet):
    """A trunk whose layers gain units, and a head per task."""

    backbone: GrowingTrunk
    heads: GrowingHeads
    laterals = True  # a task's units read those of earlier tasks

    def __init__(self, inputs: Inputs, mlp: MLP, spare: int, most_tasks: int) -> None:
        """Each task but the first begins with so many spare units in every layer; there are at most so many tasks."""
        super().__init__(inputs, GrowingTrunk(mlp), GrowingHeads(mlp.feature_width), None)
        self.spare, self.most_tasks = spare, most_tasks

    def forward(self, x: Tensor, task: Tensor, *, parts: tuple[int, ...] = (), wrt: Wrt = "all") -> Outputs:
        """Features and logits by the units that the samples' tasks use."""
        features = self.backbone.features(x, task)
        return Outputs(features, features, self.heads(features, task))

    def ensure_task(self, task: int, classes: int, *, generator: torch.Generator) -> None:
        """Make sure that task number `task` has units and a head."""
        while self.backbone.tasks <= task:
            self.backbone.add_task(self.spare if self.backbone.tasks else 0, generator=generator)
        self.heads.widen(self.backbone.feature_width)
        self.heads.ensure(task, classes, generator=generator)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """As usual, if the heads have the width of the features."""
        width = state_dict[f"{prefix}heads.weight.data"].shape[2]
        if width != len(state_dict[f"{prefix}backbone.biases.{len(self.backbone.biases) - 1}"]):
            raise ValueError(f"heads read {width} units, which is not the size of the last layer")
        super()._load_from_state_dict(state_dict, prefix, *others)

    def drop_spare(self, task: int) -> None:
        """Drop the spare units that task number `task` does not use."""
        trunk = self.backbone
        masks = [~trunk.is_spare(i) | (trunk.uses(i)[task] > 0) for i in range(len(trunk.biases))]
        trunk.keep(masks)
        self.heads.keep(masks[-1])

    def for_task(self, task: int) -> nn.Module:
        """The network of one task alone: the units that it uses, and its head."""
        return _OneTask(self, task)


class _OneTask(nn.Module):
    """Prepared inputs to the logits of one task."""

    def __init__(self, net: GrowingNet, task: int) -> None:
        super().__init__()
        trunk, layers, below = net.backbone, [], torch.arange(net.backbone.weights[0].shape[1])
        for i, (weight, bias) in enumerate(zip(trunk.weights, trunk.biases, strict=True)):
            rows = trunk.uses(i)[task].nonzero().flatten()
            layers.append(_linear(weight[rows][:, below.to(rows.device)], bias[rows]))
            below = rows
        self.layers, head = nn.ModuleList(layers), net.heads.alone(task)
        self.head = _linear(head.weight[:, below], head.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for layer in self.layers:
            h = torch.relu(layer(h))
        logits: Tensor = self.head(h)
        return logits


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
    return layer


class GrowingLearner(Learner):
    """A learner whose layers gain units; a task's head reads the units that the task uses."""

    config_class = GrowingConfig
    needs_boundaries = True
    config: Any
    traits = Traits(task_specific_parameters=True, history_in_training=True, history_in_testing=True)
    after = "pnn"

    def build(self, engine: Engine) -> None:
        """Declare the network."""
        module = GrowingNet(engine.inputs(), mlp_to_grow(self), self.spare_units(), self.config.max_tasks)
        self.network = engine.network(module)
        self.trunk = module.backbone

    def spare_units(self) -> int:
        """How many units per layer a task may add."""
        raise NotImplementedError

    def row(self, layer: int) -> Tensor:
        """[units]: the units of a layer that the open task uses; to be changed in place, between steps."""
        return self.trunk.uses(layer)[self.engine.open_task]

    def drop_spare(self) -> None:
        """Drop the spare units that the open task does not use."""
        net = self.net
        assert isinstance(net, GrowingNet)
        net.drop_spare(self.engine.open_task)

    @property
    def is_new(self) -> bool:
        """Whether the open task came with spare units, which are still there."""
        return self.trunk.spare_units > 0

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch; a gradient and its masks."""
        return StepSize(batch, copies=4)
