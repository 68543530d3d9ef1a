"""What the plain re-computations of learners share: exact-size networks in float64, rings as lists, recorded draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.learners import Ctn, Learner, ReplayLearner
from scale_cl.streams import InputSpec
from tests.learners.reference_networks import Parameters, ResNet, mlp

VECTOR = InputSpec((1, 5, 5), 255.0, "domain")  # for the MLP, one head
SPLIT = InputSpec((1, 5, 5), 255.0, "task")  # for the MLP, a head a task
IMAGE = InputSpec((3, 16, 16), 255.0, "task")  # for the ResNet; its last stage is one pixel

Item = TypeVar("Item")
L = TypeVar("L", bound=Learner)
Remembering = ReplayLearner | Ctn


def with_heads(values: Sequence[dict[str, Any]], *, ids: Sequence[str]) -> pytest.MarkDecorator:
    """Tests of settings: the first with one head and with a head per task, the others with one or the other in turn."""
    heads = [("one head", VECTOR), ("a head a task", SPLIT)]
    cases = [
        (ids[0], values[0], *heads[1]),
        *((*case, *heads[k % 2]) for k, case in enumerate(zip(ids, values, strict=True))),
    ]
    return pytest.mark.parametrize(
        ("values", "spec"), [pytest.param(own, spec, id=f"{name}, {words}") for name, own, words, spec in cases]
    )


class PlainNet:
    """Trunk, heads and perhaps FiLM, one sample at a time where samples differ; copies of a learner's parameters."""

    def __init__(self, learner: Learner) -> None:
        self.one_head = learner.net.heads.shared
        self.is_resnet = learner.spec is IMAGE
        self.resnet = ResNet()
        self.resnet.running = {n: b.clone() for n, b in learner.net.backbone.named_buffers() if "running" in n}
        self.base: Parameters = {}
        self.controller: Parameters = {}

    def meet(self, learner: Learner) -> None:
        """Take over parameters that this has not: their initial values cannot be computed."""
        for mine, theirs in ((self.base, base_of(learner)), (self.controller, controller_of(learner))):
            mine |= {name: p.clone().requires_grad_() for name, p in theirs.items() if name not in mine}

    def features(self, x: Tensor, tasks: Sequence[int], *, training: bool = True) -> tuple[Tensor, Tensor]:
        """Common features and those for the head, of raw pixels."""

        def film(site: int, h: Tensor) -> Tensor:
            if not self.controller:
                return torch.relu(h)
            return torch.stack([self._film(site, task, one) for task, one in zip(tasks, h, strict=True)])

        trunk = {n.removeprefix("trunk."): p for n, p in self.base.items() if n.startswith("trunk.")}
        return (self.resnet if self.is_resnet else mlp)(trunk, x.double() / 255, film, training)

    def logits(self, x: Tensor, tasks: Sequence[int], *, training: bool = True) -> list[Tensor]:
        """Of each sample, by its own head."""
        heads = [0 if self.one_head else task for task in tasks]
        _, features = self.features(x, tasks, training=training)
        pairs = zip(heads, features, strict=True)
        return [self.base[f"head.{k}.weight"] @ f + self.base[f"head.{k}.bias"] for k, f in pairs]

    def loss(self, x: Tensor, y: Sequence[int], tasks: Sequence[int]) -> Tensor:
        """Mean cross-entropy of a forward of its own."""
        return mean_ce(self.logits(x, tasks), y)

    def _film(self, site: int, task: int, h: Tensor) -> Tensor:
        made = self.controller[f"film.{site}.weight"] @ self.controller[f"embedding.{task}"]
        gamma, beta = (made + self.controller[f"film.{site}.bias"]).chunk(2)
        wide = (-1, 1, 1) if h.dim() == 3 else (-1,)
        lengths = gamma.norm(), beta.norm()
        if self.is_resnet:
            lengths = lengths[0].detach(), lengths[1].detach()
        return torch.relu((gamma / lengths[0]).view(wide) * h + (beta / lengths[1]).view(wide)) + torch.relu(h)

    def compare(self, learner: Learner) -> None:
        """Whether the learner's parameters and running statistics are these."""
        assert_same(base_of(learner), self.base)
        assert_same(controller_of(learner), self.controller)
        buffers = dict(learner.net.backbone.named_buffers())
        assert_same({n: buffers[n] for n in self.resnet.running}, self.resnet.running)


def in_double(learner: L) -> L:
    """The same learner in float64, before its first task."""
    for module in learner.engine.owned.modules():
        module.double()
    for state in learner.engine.owned.states.values():
        state.reset()
    for memory in learner.engine.owned.memories.values():
        for kept in memory.logits.values():
            kept.flat = kept.flat.double()
    return learner


def base_of(learner: Learner) -> Parameters:
    """Trunk and heads, in exact size."""
    heads = learner.net.heads
    named: Parameters = {f"trunk.{name}": p for name, p in learner.net.backbone.named_parameters()}
    for k, classes in enumerate(heads.classes):
        named |= {f"head.{k}.weight": heads.weight.data[k, :classes], f"head.{k}.bias": heads.bias.data[k, :classes]}
    return {name: p.detach() for name, p in named.items()}


def controller_of(learner: Learner) -> Parameters:
    """Embedding rows and FiLM layers, in exact size."""
    generator = learner.net.generator
    if generator is None:
        return {}
    named: Parameters = {f"embedding.{k}": generator.embedding.data[k] for k in range(generator.embedding.count)}
    for i, layer in enumerate(generator.layers):
        named |= {f"film.{i}.{name}": p for name, p in layer.named_parameters()}
    return {name: p.detach() for name, p in named.items()}


def mean_ce(logits: Sequence[Tensor], y: Sequence[int]) -> Tensor:
    """Each softmax over the sample's own outputs."""
    return torch.stack([-F.log_softmax(o, 0)[label] for o, label in zip(logits, y, strict=True)]).mean()


def gradients(loss: Tensor, parameters: Parameters) -> Parameters:
    """Zero where the loss does not depend on a parameter."""
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters.items(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def put(ring: list[Item], place: int, item: Item) -> None:
    """Write into a ring that grows up to its size."""
    if place == len(ring):
        ring.append(item)
    else:
        ring[place] = item


@contextmanager
def recorded(learner: Remembering) -> Iterator[list[list[tuple[int, int]]]]:
    """(task, slot) of every sample of every draw that the learner makes inside."""
    places: list[list[tuple[int, int]]] = []
    drawn, slots = learner.memory.draws, learner.memory.slots

    def recording(times: int, n: int, *, current: bool = False) -> Tensor:
        rows = drawn(times, n, current=current)
        places.extend([divmod(row, slots) for row in draw] for draw in rows.tolist())
        return rows

    learner.memory.draws = recording  # type: ignore[method-assign]
    try:
        yield places
    finally:
        learner.memory.draws = drawn  # type: ignore[method-assign]


def pixels(spec: InputSpec, n: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random batch."""
    x = torch.randint(0, 256, (n, *spec.shape), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, classes, (n,), generator=generator)


def assert_same(actual: Parameters, expected: Parameters) -> None:
    """Equal names and nearly equal float64 values."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        label = f"{name} of {tuple(value.shape)}: largest difference "
        label += f"{float((actual[name] - value).detach().abs().max()):.3g}"
        torch.testing.assert_close(actual[name].detach(), value.detach(), rtol=1e-6, atol=1e-8, msg=label)
