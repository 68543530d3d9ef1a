"""Learn to Grow: for each layer, a search decides whether a new task reuses, adapts or replaces what earlier ones have.

Li, Zhou, Wu, Socher and Xiong, "Learn to Grow: A Continual Structure Learning Framework for Overcoming Catastrophic
Forgetting", 2019. SCALE's paper says of it: "The concept of neural architecture search (NAS) is proposed in [it] to
select the best action when observing new tasks". A layer of a new task is one of these: a new copy; an earlier task's
copy as it is (reuse); or that copy with a small layer in parallel that is learnt (adapt). First all choices are
computed and mixed by softmax(alpha); weights and alpha are trained in turns. Then the choice with the largest alpha
stays. Copies that other tasks use never move, nor do their batch-norm statistics: nothing is forgotten, unless a task
comes back.

A layer is a linear layer of an MLP, the first convolution or a block of a ResNet, with the batch norms inside; another
backbone is one layer. What adapts is a 1 x 1 convolution, for a linear layer a bottleneck of `adapter` units.

Adapted to one pass: the first `search_steps` batches of a task are the search, with weights and alpha trained on
batches in turns, so that alpha sees samples that the weights have not; the authors search for many epochs and then
train the chosen network anew. What the chosen layers learnt in the search stays. At most `candidates` earlier copies of
a layer are offered, the latest. With `epochs` and more search steps it is nearer to the authors' form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, TaskModules, TaskShape
from scale_cl.learners.independent import ColumnConfig, ColumnLearner, ColumnNet
from scale_cl.learners.layer_copies import Layers, run_layer
from scale_cl.learners.learner import StepSize, Traits
from scale_cl.losses import cross_entropy
from scale_cl.nets import Inputs, Outputs
from scale_cl.nets.model import Wrt
from scale_cl.settings import setting

NEW = 0  # number of the choice; then come the offered copies as they are, then these with an adapter
UNDECIDED = -1


@dataclass(frozen=True)
class LearnToGrowConfig(ColumnConfig):
    """Settings of Learn to Grow."""

    search_steps: int = setting(75, "batches of a task in which all choices are mixed, before one is taken", low=1)
    alpha_lr: float = setting(1.0, "learning rate of alpha, by which choices are mixed", above=0)
    size_penalty: float = setting(0.01, "weight of the share of new parameters that alpha leads to", low=0)
    candidates: int = setting(3, "most earlier copies of a layer that a task may reuse or adapt, the latest", low=1)
    adapter: int = setting(16, "units of the bottleneck that adapts a linear layer", low=1)
    epochs: int = setting(1, "passes over a task's data; the authors make many, an online learner one", low=1)


class Path(nn.Module):
    """The layers of one task: while it searches, new ones and adapters for all that is offered, then what it chose."""

    offered: Tensor
    choice: Tensor
    sized_by_state = True

    def __init__(self, layers: Layers, offered: list[list[int]]) -> None:
        """`offered` are the tasks whose copies of each layer may be used, or none: then all is new."""
        super().__init__()
        self.layers = layers
        most = max(map(len, offered), default=0)
        owners = torch.tensor([own + [UNDECIDED] * (most - len(own)) for own in offered], dtype=torch.int64)
        self.register_buffer("offered", owners.view(layers.count, most))  # [layers, most] UNDECIDED: none
        self.register_buffer("choice", torch.full((layers.count,), UNDECIDED if most else NEW))
        self._take(offered, [UNDECIDED if most else NEW] * layers.count)

    def _take(self, offered: list[list[int]], choice: list[int]) -> None:
        """Make the layers that these offers and choices need."""
        self.owners, self.chosen = offered, choice
        self.new = nn.ModuleList(self.layers.new())
        made = (self.layers.adapters(i, len(own)) for i, own in enumerate(offered))
        self.adapters = nn.ModuleList(nn.ModuleList(own) for own in made)
        sizes = (1 + len(own) + len(self.adapters_of(i)) for i, own in enumerate(offered))
        self.alpha = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in sizes)
        for i, number in enumerate(choice):
            if number != UNDECIDED:
                self._drop(i, number)

    def choose(self, numbers: list[int]) -> None:
        """Keep what these choices need, and drop the rest."""
        self.choice.copy_(torch.tensor(numbers))
        self.chosen = numbers
        for i, number in enumerate(numbers):
            self._drop(i, number)

    def _drop(self, layer: int, number: int) -> None:
        """Keep what one choice needs of a layer."""
        kept = number - 1 - len(self.owners[layer])  # number of the adapter
        if number != NEW:
            self.new[layer] = nn.Identity()
        own = self.adapters_of(layer)
        self.adapters[layer] = nn.ModuleList([own[kept]] if kept >= 0 else [])
        self.alpha[layer] = nn.Parameter(self.alpha[layer].detach().new_zeros(0))

    def adapters_of(self, layer: int) -> list[nn.Module]:
        """Of every copy that is offered; after the choice, the one that was chosen, if any."""
        own = self.adapters[layer]
        assert isinstance(own, nn.ModuleList)
        return list(own)

    @property
    def is_open(self) -> bool:
        """Whether the search is not over."""
        return UNDECIDED in self.chosen

    def owner(self, layer: int) -> int | None:
        """The task whose copy of a layer was chosen; None for a new one."""
        number = self.chosen[layer]
        own = self.owners[layer]
        return None if number in (NEW, UNDECIDED) else own[(number - 1) % len(own)]

    def best(self) -> list[int]:
        """The choice with the largest alpha, per layer; the first of equals."""
        return [int(alpha.argmax()) for alpha in self.alpha]

    def new_share(self) -> Tensor:
        """The share of the parameters of new layers that alpha leads to, in [0, 1]."""
        sizes = [sum(p.numel() for p in layer.parameters()) for layer in self.new]
        total = max(sum(sizes), 1)
        shares = [alpha.softmax(0)[NEW] * size / total for alpha, size in zip(self.alpha, sizes, strict=True)]
        return torch.stack(shares).sum()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_others: Any) -> None:
        """Take over any offers and choices: make the layers that they need, which are then loaded."""
        device, dtype = self.choice.device, self.alpha[0].dtype
        own = int(prefix.rstrip(".").rpartition(".")[2])  # number of the task
        if not bool((state_dict[f"{prefix}offered"] < own).all()):
            raise ValueError(f"task {own} uses layers of a later task")
        self.choice.copy_(state_dict[f"{prefix}choice"])
        self.offered = state_dict[f"{prefix}offered"].to(device, copy=True)
        owners = [[k for k in own if k != UNDECIDED] for own in self.offered.tolist()]
        self._take(owners, self.choice.tolist())
        self.to(device, dtype)


class PathNet(ColumnNet):
    """The paths of all tasks, of which each may use layers of others."""

    several_tasks = False

    def __init__(self, inputs: Inputs, layers: Layers, paths: TaskModules, number: Callable[[], int]) -> None:
        """`number` is asked for the task of a forward."""
        like = layers.like
        super().__init__(inputs, like.feature_width, paths, xavier=like.xavier, laterals=True, number=number)
        self.layers = layers

    def path(self, task: int) -> Path:
        """The path of a task."""
        found = self.columns[task]
        assert isinstance(found, Path)
        return found

    def is_read(self, number: int) -> bool:
        """Never as a whole: `is_shared` says it of each layer."""
        return False

    def is_shared(self, task: int, layer: int) -> bool:
        """Whether another task uses this task's copy of a layer."""
        return any(self.path(k).owner(layer) == task for k in range(len(self.columns)) if k != task)

    def forward(self, x: Tensor, task: Tensor, *, parts: tuple[int, ...] = (), wrt: Wrt = "all") -> Outputs:
        """Features and logits by the path of the samples' task."""
        number = self.number() if self.training or task.device.type != "cpu" else int(task[0])
        features = self.features(number, x, parts)
        return Outputs(features, features, self.heads(features, task))

    def features(self, task: int, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """[B, width] by the path of a task; only its own layers are in training mode, if any."""
        h = x
        for layer in range(self.layers.count):
            h = self._layer(task, layer, self.layers.before(layer, h), parts)
        return self.layers.features(h)

    def _layer(self, task: int, layer: int, x: Tensor, parts: tuple[int, ...]) -> Tensor:
        path = self.path(task)
        number, owners = path.chosen[layer], path.owners[layer]
        new, adapters = path.new[layer], path.adapters_of(layer)
        if number == NEW:
            return run_layer(new, x, parts, training=self.training and not self.is_shared(task, layer))
        if number != UNDECIDED:
            kept = self._copy(owners[(number - 1) % len(owners)], layer, x, parts)
            return kept + adapters[0](x) if adapters else kept
        reused = [self._copy(owner, layer, x, parts) for owner in owners]
        adapted = [kept + adapter(x) for kept, adapter in zip(reused, adapters, strict=False)]
        choices = [run_layer(new, x, parts, training=self.training), *reused, *adapted]
        shares = path.alpha[layer].softmax(0).unbind()
        return torch.stack([share * out for share, out in zip(shares, choices, strict=True)]).sum(0)

    def _copy(self, owner: int, layer: int, x: Tensor, parts: tuple[int, ...]) -> Tensor:
        return run_layer(self.path(owner).new[layer], x, parts, training=False)

    def base_parameters(self) -> dict[str, Tensor]:
        """Heads and the open task's own layers; alpha is trained apart, and what other tasks use not at all."""
        named = super().base_parameters()
        shared = tuple(
            f"columns.{k}.new.{layer}."
            for k in range(len(self.columns))
            for layer in range(self.layers.count)
            if self.is_shared(k, layer)
        )
        return {n: p for n, p in named.items() if ".alpha." not in n and not (shared and n.startswith(shared))}

    def for_task(self, task: int) -> nn.Module:
        """The network of one task alone: the layers that it chose, or all choices while it searches."""
        return _OneTask(self, task)


class _OneTask(nn.Module):
    """Prepared inputs to the logits of one task."""

    def __init__(self, net: PathNet, task: int) -> None:
        super().__init__()
        path = net.path(task)
        self.layers, self.search = net.layers, (net, task) if path.is_open else None
        owners = [path.owner(layer) for layer in range(net.layers.count)]
        copies = [net.path(task if own is None else own).new[layer] for layer, own in enumerate(owners)]
        self.copies, self.adapters = nn.ModuleList(copies), path.adapters
        if path.is_open:
            self.columns = net.columns
        self.head = net.heads.alone(task)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """[B, width] that the head reads."""
        if self.search is not None:
            net, task = self.search
            return net.features(task, x)
        h = x
        for i, (layer, adapters) in enumerate(zip(self.copies, self.adapters, strict=True)):
            below = self.layers.before(i, h)
            h = run_layer(layer, below, (), training=False)
            assert isinstance(adapters, nn.ModuleList)
            for adapter in adapters:  # one or none
                h = h + adapter(below)
        return self.layers.features(h)


class LearnToGrow(ColumnLearner):
    """CE(batch) by layers that are new, reused or adapted, as a search of the task's first batches decides."""

    config_class = LearnToGrowConfig
    config: LearnToGrowConfig
    traits = Traits(task_specific_parameters=True, history_in_training=True, history_in_testing=True)
    after = "pnn"

    def build(self, engine: Engine) -> None:
        """Declare a path per task, the network of paths and heads, and alpha."""
        # functions and not methods, as copies of a network copy a method with all that it belongs to
        self.layers = Layers(lambda: self.trunk(), lambda: engine.weights_rng, self.config.adapter, engine.backbone)
        self.columns = engine.task_modules("paths", self.new_path, most=self.config.max_tasks)
        self.paths = PathNet(engine.inputs(), self.layers, self.columns, self.number)
        self.network = engine.network(self.paths)
        self.alpha = engine.weights(self.open_alpha)

    def new_path(self, shape: TaskShape) -> Path:
        """The path of a new task: the latest copies of each layer are offered."""
        earlier = [self.paths.path(k) for k in range(shape.task)]
        for path in earlier:
            if path.is_open:  # only where paths are counted and not learnt: the most that there can be
                path.choose([NEW] * self.layers.count)
        offered = [
            [k for k, path in enumerate(earlier) if path.chosen[layer] == NEW][-self.config.candidates :]
            for layer in range(self.layers.count)
        ]
        return Path(self.layers, offered)

    def open_alpha(self) -> Mapping[str, Tensor]:
        """Alpha of the path that is searching, if one is."""
        paths = (self.paths.path(k) for k in range(len(self.columns)))
        return {f"alpha.{i}": p for path in paths if path.is_open for i, p in enumerate(path.alpha)}

    def open_path(self) -> Path:
        """The path of the open task."""
        return self.paths.path(self.engine.open_task)

    def update(self, batch: Batch) -> None:
        """Steps on the weights or, with every second batch while it searches, on alpha."""
        c = self.config
        searching = self.engine.host.ask(lambda: self.open_path().is_open)
        of_alpha = searching and self.engine.host.ask(lambda: self.engine.task_steps % 2 == 1)
        for _ in range(c.updates):
            samples = self.engine.samples(batch)
            loss = cross_entropy(self.network(samples).logits, samples.y)
            if of_alpha:
                self.alpha.descend(loss + c.size_penalty * self.open_path().new_share(), c.alpha_lr)
            else:
                self.network.base.descend(loss, c.lr)
            self.log(loss=loss)

    def pauses(self, step: int) -> bool:
        """After the search."""
        return step >= self.config.search_steps and self.open_path().is_open

    def pause(self, step: int) -> None:
        """Take the choice with the largest alpha per layer."""
        self.open_path().choose(self.open_path().best())

    def task_ended(self, task: int) -> None:
        """A task shorter than the search ends it."""
        if self.open_path().is_open:
            self.open_path().choose(self.open_path().best())

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch through all choices; a gradient."""
        return StepSize(batch * (1 + 2 * min(config.candidates, max(tasks - 1, 0))), copies=2)
