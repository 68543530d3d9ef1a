"""Runs the learner and its plain re-computation over the same batches and compares all that they hold.

The re-computation is told what cannot be computed: the initial values of new parts, and the learner's random draws,
which are recorded while it takes its step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from scale_cl.engine import ReplayMemory
from scale_cl.learners import Scale, ScaleConfig
from scale_cl.nets import Discriminator
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.reference_networks import Parameters, ResNet, mlp
from tests.learners.scale_reference import Choices, Draws, PlainScale, Sample

PIXELS = InputSpec((1, 5, 5), 255.0, "domain")  # for the MLP, one head
IMAGES = InputSpec((3, 17, 17), 255.0, "task")  # for the ResNet; its last stage is 2 x 2


def in_double(learner: Scale) -> Scale:
    """The same learner in float64, before its first task."""
    learner.net.double()
    if learner.discriminator.module is not None:
        learner.discriminator.module.double()
    for memory in learner.engine.owned.memories.values():
        for kept in memory.logits.values():
            kept.flat = kept.flat.double()
    return learner


def batch_of(spec: InputSpec, n: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random pixels and labels."""
    x = torch.randint(0, 256, (n, *spec.shape), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, classes, (n,), generator=generator)


@dataclass
class Parts:
    """The parameters of the four parts, in the names and exact sizes of the re-computation."""

    base: Parameters
    generator: Parameters
    discriminator: Parameters


def parts_of(learner: Scale) -> Parts:
    """What exists in a learner; capacity allocated ahead is left out."""
    net = learner.net
    base: Parameters = {f"trunk.{name}": p for name, p in net.backbone.named_parameters()}
    for k, classes in enumerate(net.heads.classes):
        base[f"head.{k}.weight"] = net.heads.weight.data[k, :classes]
        base[f"head.{k}.bias"] = net.heads.bias.data[k, :classes]
    generator: Parameters = {}
    if net.generator is not None:
        for k in range(net.generator.embedding.count):
            generator[f"embedding.{k}"] = net.generator.embedding.data[k]
        for i, layer in enumerate(net.generator.layers):
            generator |= {f"film.{i}.{name}": p for name, p in layer.named_parameters()}
    discriminator: Parameters = {}
    adversary = learner.discriminator.module
    if isinstance(adversary, Discriminator):
        discriminator = {f"hidden.{name}": p for name, p in adversary.hidden.named_parameters()}
        for k in range(adversary.outputs):
            discriminator[f"output.{k}.weight"] = adversary.weight.data[k]
            discriminator[f"output.{k}.bias"] = adversary.bias.data[k]
    return Parts(*({n: p.detach().clone() for n, p in part.items()} for part in (base, generator, discriminator)))


class _Noise(TorchFunctionMode):
    """Notes every normal draw that is made while it is in force, and every uniform one."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []
        self.chances: list[float] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.randn, torch.randn_like, torch.normal, Tensor.normal_):
            self.drawn.append(out.detach().clone())
        elif func is torch.rand:
            self.chances += out.tolist()
        return out


@contextmanager
def recorded(learner: Scale) -> Iterator[Draws]:
    """The draws that `learner` makes inside, complete at the end."""
    draws, noise = Draws(), _Noise()
    with ExitStack() as recordings, noise:
        for memory in learner.engine.owned.memories.values():
            into = draws.replay if memory is learner.memory else draws.semantic
            recordings.enter_context(_recording(memory, into))
        yield draws
    draws.noise, draws.chances = noise.drawn, noise.chances


@contextmanager
def _recording(memory: ReplayMemory, into: list[list[tuple[int, int]]]) -> Iterator[None]:
    """Notes (task, slot) of every sample of every draw from a memory."""
    drawn = memory.draws

    def recording(times: int, n: int, *, current: bool = False) -> Tensor:
        rows = drawn(times, n, current=current)
        into.extend([divmod(row, memory.slots) for row in draw] for draw in rows.tolist())
        return rows

    memory.draws = recording  # type: ignore[method-assign]
    try:
        yield
    finally:
        memory.draws = drawn  # type: ignore[method-assign]


def choices_of(learner: Scale) -> Choices:
    """The learner's settings in the notation of the method."""
    c: ScaleConfig = learner.config
    return Choices(
        alpha=c.inner_lr,
        beta=c.outer_lr,
        mu=c.adversarial_lr,
        lambda1=c.lambda1,
        lambda2=c.lambda2,
        lambda3=c.lambda3,
        slots=learner.memory.slots,
        reservoir=c.memory_policy == "reservoir",
        n_in=c.inner_steps,
        n_out=c.outer_steps,
        n_ad=c.discriminator_steps,
        adversary=c.adversary,
        derpp=c.derpp,
        generator=c.generator,
        ce=c.ce,
        adversarial=c.adversarial,
        noise=c.noise,
        film=c.film,
        separate=c.forward == "separate",
        discriminator_on=c.discriminator_on,
        refresh_logits=c.refresh_logits,
        second_order=c.second_order,
        norm_on_memory=c.norm_on_memory,
        decay=c.weight_average,
        detach_norms=learner.spec is IMAGES,
    )


class SideBySide:
    """A learner in float64 and its plain re-computation."""

    def __init__(
        self,
        spec: InputSpec,
        config: ScaleConfig,
        *,
        seed: int = 0,
        kind: type[Scale] = Scale,
        plain: type[PlainScale] = PlainScale,
    ) -> None:
        self.learner = in_double(kind(spec, config, seed=seed))
        self.resnet = ResNet()
        trunk = self.resnet if spec is IMAGES else mlp
        self.plain = plain(choices_of(self.learner), trunk, one_head=spec.scenario == "domain")
        self.resnet.running = {n: b.clone() for n, b in self.learner.net.backbone.named_buffers() if "running" in n}
        self.data = torch.Generator().manual_seed(1000 + seed)
        self.sizes: list[int] = []  # of every replay draw

    def task(self, name: str, classes: int, *, steps: int, batch: int) -> None:
        """A whole task, compared after every step and after its end."""
        self.learner.begin_task(TaskInfo(name, classes))
        now, mine = parts_of(self.learner), self.plain
        pairs = ((now.base, mine.base), (now.generator, mine.generator), (now.discriminator, mine.discriminator))
        mine.begin_task(*({n: p for n, p in theirs.items() if n not in own} for theirs, own in pairs))
        for _ in range(steps):
            x, y = batch_of(self.learner.spec, batch, classes, self.data)
            with recorded(self.learner) as draws:
                self.learner.observe(x, y)
            self.sizes += [len(places) for places in draws.replay]
            mine.observe(x.double() / 255, y.tolist(), x, draws)
            self.compare()
        self.learner.end_task()
        mine.end_task()
        self.compare()
        compare_stored(self.learner.memory, mine.memory)

    def compare(self) -> None:
        """Parameters of all parts, running statistics and the weight average."""
        now = parts_of(self.learner)
        _assert_same("base", now.base, self.plain.base)
        _assert_same("generator", now.generator, self.plain.generator)
        _assert_same("discriminator", now.discriminator, self.plain.discriminator)
        buffers = dict(self.learner.net.backbone.named_buffers())
        _assert_same("running", {n: buffers[n] for n in self.resnet.running}, self.resnet.running)
        if self.plain.choices.decay > 0:
            _assert_same("average", self._average(), self.plain.average)

    def _average(self) -> Parameters:
        average = self.learner.engine.average
        named = {f"trunk.{n.removeprefix('backbone.')}": t for n, t in average.items() if n.startswith("backbone.")}
        for k, classes in enumerate(self.learner.net.heads.classes):
            named[f"head.{k}.weight"] = average["heads.weight.data"][k, :classes]
            named[f"head.{k}.bias"] = average["heads.bias.data"][k, :classes]
        return named


def compare_stored(memory: ReplayMemory, blocks: list[list[Sample]]) -> None:
    """Samples, labels, h and d of every slot of every finished task."""
    for task, block in enumerate(blocks):
        rows = memory.rows_of(task)
        assert rows.tolist() == [task * memory.slots + place for place in range(len(block))]
        for row, sample in zip(rows, block, strict=True):
            assert torch.equal(memory.x[row], sample.x)
            assert int(memory.y[row]) == sample.y
            for kind, own in (("class", sample.h), ("task", sample.d)):
                kept = memory.logits[kind]
                stored = kept.flat[int(kept.start[row]) :][: int(kept.width[row])]
                if own is None:
                    assert len(stored) == 0
                else:
                    torch.testing.assert_close(stored, own, rtol=1e-7, atol=1e-9, msg=f"{kind} logits of {row}")


def _assert_same(part: str, actual: Parameters, expected: Parameters) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        named = f"{part} {name}: {{}}".format
        torch.testing.assert_close(actual[name].detach(), value, rtol=1e-7, atol=1e-9, msg=named)
