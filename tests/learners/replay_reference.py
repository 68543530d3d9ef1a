"""Methods with a memory, recomputed plainly: python lists of samples, one forward for each part, float64.

Written from the methods' descriptions, not from the learners. Only what is random comes from outside: initial values,
the samples of each draw, and the numbers by which a reservoir decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from scale_cl.learners import ReplayLearner
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import PlainNet, assert_same, base_of, gradients, in_double, pixels, recorded
from tests.learners.reference_networks import Parameters

Place = tuple[int, int]  # task and slot


@dataclass
class Sample:
    """One slot of the memory."""

    x: Tensor
    y: int
    task: int
    logits: Tensor | None = None


@dataclass
class Part:
    """Samples that have a forward of their own."""

    x: Tensor
    y: list[int]
    tasks: list[int]
    samples: list[Sample]


class PlainReplay:
    """Memory, draws and plain SGD; a method adds its step."""

    def __init__(self, learner: ReplayLearner) -> None:
        self.config: Any = learner.config
        self.net = PlainNet(learner)
        self.memory: dict[int, dict[int, Sample]] = {}
        self.seen: dict[int, int] = {}
        self.seen_of_class: dict[Place, int] = {}
        self.classes: dict[int, int] = {}
        self.average: Parameters = {}
        self.task = -1
        self._draws: list[list[Place]] = []
        self._chances: list[float] = []

    def begin_task(self, learner: ReplayLearner, task: int, classes: int) -> None:
        self.net.meet(learner)
        new = {name: p.detach().clone() for name, p in self.net.base.items() if name not in self.average}
        self.average |= new if self.config.weight_average > 0 else {}
        self.task = task
        self.classes[task] = classes
        self.memory.setdefault(task, {})
        self.seen.setdefault(task, 0)

    def observe(self, x: Tensor, y: list[int], draws: list[list[Place]], chances: list[float]) -> None:
        self._draws, self._chances = list(draws), list(chances)
        self.step(Part(x, y, [self.task] * len(y), []))
        assert self._draws == [], "the learner drew more than the method does"
        for sample in self.stored(x, y):
            self._write(sample)

    def step(self, batch: Part) -> None:
        raise NotImplementedError

    def stored(self, x: Tensor, y: list[int]) -> list[Sample]:
        return [Sample(one, label, self.task) for one, label in zip(x, y, strict=True)]

    # ---- what methods are made of ------------------------------------------------------------------------------------

    def replayed(self, size: int | None = None) -> Part | None:
        """The next draw: `size` different samples of the finished tasks, or all if there are fewer."""
        current = getattr(self.config, "replay_current", False)
        candidates = {
            (task, slot) for task, block in self.memory.items() for slot in block if task != self.task or current
        }
        if not candidates:
            return None
        places = self._draws.pop(0)
        available = len(candidates)
        if current and self.config.memory_policy == "class-ring":  # at least so many, whatever classes came
            own = min(self.seen[self.task], self.config.memory // self.classes[self.task])
            available += own - len(self.memory[self.task])
        assert len(set(places)) == len(places) == min(size or self.config.replay, available)
        assert set(places) <= candidates
        samples = [self.memory[task][slot] for task, slot in places]
        return self.part(samples)

    def part(self, samples: Sequence[Sample]) -> Part:
        x = torch.stack([s.x for s in samples])
        return Part(x, [s.y for s in samples], [s.task for s in samples], list(samples))

    def ce(self, part: Part) -> Tensor:
        return self.net.loss(part.x, part.y, part.tasks)

    def descend(self, gradient: Parameters, rate: float) -> None:
        for name, p in self.net.base.items():
            self.net.base[name] = (p - rate * gradient[name]).detach().requires_grad_()

    def gradient(self, loss: Tensor) -> Parameters:
        return gradients(loss, self.net.base)

    def moved(self) -> None:
        decay = self.config.weight_average
        for name, average in self.average.items():
            self.average[name] = decay * average + (1 - decay) * self.net.base[name].detach()

    def averaged_logits(self, x: Tensor) -> list[Tensor]:
        """In evaluation mode, by the averaged parameters."""
        raw, self.net.base = self.net.base, self.average
        logits = self.net.logits(x, [self.task] * len(x), training=False)
        self.net.base = raw
        return [o.detach() for o in logits]

    # ---- the memory --------------------------------------------------------------------------------------------------

    def _write(self, sample: Sample) -> None:
        place, slots = self.seen[self.task], self.config.memory
        self.seen[self.task] += 1
        if self.config.memory_policy == "ring":
            place %= slots
        elif self.config.memory_policy == "class-ring":
            each = slots // self.classes[self.task]
            count = self.seen_of_class.get((self.task, sample.y), 0)
            self.seen_of_class[self.task, sample.y] = count + 1
            place = sample.y * each + count % each
        else:
            chance = self._chances.pop(0)
            if place >= slots:
                place = int(chance * (place + 1))
        if place < slots:
            self.memory[self.task][place] = sample

    def compare(self, learner: ReplayLearner) -> None:
        """Whether the learner holds the same parameters, average and memory."""
        self.net.compare(learner)
        if self.average:
            assert_same(
                {n: learner.engine.average[_own_name(n)][_rows(n, p)] for n, p in self.average.items()}, self.average
            )
        kept, slots = learner.memory, learner.memory.slots
        found = {divmod(row, slots) for row in kept.stored.nonzero().flatten().tolist()}
        assert found == {(task, slot) for task, block in self.memory.items() for slot in block}
        for task, block in self.memory.items():
            for slot, sample in block.items():
                row = task * slots + slot
                assert torch.equal(kept.x[row], sample.x)
                assert (int(kept.y[row]), int(kept.task[row])) == (sample.y, sample.task)
                if sample.logits is not None:
                    start, width = int(kept.logits["class"].start[row]), int(kept.logits["class"].width[row])
                    torch.testing.assert_close(kept.logits["class"].flat[start : start + width], sample.logits)

    def adopt(self, learner: ReplayLearner) -> None:
        """Start the next step where the learner does: a ResNet on a few samples makes rounding a hundredfold a step."""
        self.net.base = {name: p.clone().requires_grad_() for name, p in base_of(learner).items()}
        buffers = dict(learner.net.backbone.named_buffers())
        self.net.resnet.running = {name: buffers[name].clone() for name in self.net.resnet.running}
        self.average = {n: learner.engine.average[_own_name(n)][_rows(n, p)].clone() for n, p in self.average.items()}


def _own_name(name: str) -> str:
    if name.startswith("trunk."):
        return "backbone." + name.removeprefix("trunk.")
    return f"heads.{name.rpartition('.')[2]}.data"


def _rows(name: str, p: Tensor) -> Any:
    return ... if name.startswith("trunk.") else (int(name.split(".")[1]), slice(p.shape[0]))


class SideBySide:
    """A learner in float64 and its re-computation, compared after every step."""

    def __init__(self, learner: ReplayLearner, plain: Callable[[Any], PlainReplay], *, seed: int = 1) -> None:
        self.learner = in_double(learner)
        self.plain = plain(learner)
        self.data = torch.Generator().manual_seed(seed)

    def task(self, name: str, classes: int, *, steps: int, n: int) -> None:
        self.learner.begin_task(TaskInfo(name, classes))
        self.plain.begin_task(self.learner, self.learner.tasks.index(name), classes)
        for _ in range(steps):
            x, y = pixels(self.learner.spec, n, classes, self.data)
            with recorded(self.learner) as draws, chances_of(self.learner) as chances:
                self.learner.observe(x, y)
            self.plain.observe(x, y.tolist(), draws, chances)
            self.plain.compare(self.learner)
            if self.plain.net.is_resnet:
                self.plain.adopt(self.learner)

    def some_tasks(self, spec: InputSpec) -> None:
        """Several tasks, heads of different widths, a batch of another size, a task that comes back."""
        if self.plain.net.is_resnet:  # whose steps take their time
            self.task("a", 2, steps=2, n=4)
            self.task("b", 3, steps=2, n=4)
            self.task("a", 2, steps=1, n=3)
            return
        widths = (3, 3, 3) if spec.scenario == "domain" else (2, 4, 3)
        for name, classes in zip("abc", widths, strict=True):
            self.task(name, classes, steps=2, n=4)
        self.task("c", widths[2], steps=1, n=3)
        self.task("b", widths[1], steps=2, n=4)
        self.task("d", widths[0], steps=1, n=4)


class _Chances(TorchFunctionMode):
    """Notes the uniform float64 numbers that are drawn while it is in force."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.rand and out.dtype == torch.float64:
            self.drawn += out.tolist()
        return out


@contextmanager
def chances_of(learner: ReplayLearner) -> Iterator[list[float]]:
    """The numbers by which a reservoir decides inside, complete at the end."""
    with _Chances() as mode:
        yield mode.drawn
