"""Steps of ACL against a plain re-computation with torch's own optimizer, and what a finished task keeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl import streams
from scale_cl.errors import ConfigError
from scale_cl.learners import Acl, AclConfig, StepStats
from scale_cl.learners.method_properties import parameters_in_use
from scale_cl.streams import InputSpec, TaskInfo
from scale_cl.training import train, train_many
from tests.learners.plain import IMAGE, SPLIT, VECTOR, PlainNet, assert_same, in_double, pixels
from tests.learners.scale_reference import Parameters
from tests.learners.tiny import batch, teach


class PlainAcl:
    """ACL as its description has it: a module and a head of its own for each task, `torch.optim.SGD`."""

    def __init__(self, learner: Acl) -> None:
        self.config, self.net = learner.config, PlainNet(learner)
        self.private: dict[int, Parameters] = {}
        self.discriminator = nn.Sequential()

    def begin_task(self, learner: Acl, task: int) -> None:
        c, self.task = self.config, task
        self.net.meet(learner)
        self.private.setdefault(task, {n: p.clone().requires_grad_() for n, p in private_of(learner, task).items()})
        head = 0 if self.net.one_head else task
        trunk = [p for n, p in self.net.base.items() if n.startswith("trunk.")]
        self.head = self.net.base[f"head.{head}.weight"], self.net.base[f"head.{head}.bias"]
        trained = [*trunk, *self.head, *self.private[task].values()]
        self.descent = torch.optim.SGD(trained, lr=c.lr, momentum=c.momentum, weight_decay=c.weight_decay)
        outputs, width, units = len(learner.tasks) + 1, self.head[0].shape[1] // 2, c.discriminator_units
        layers = nn.Linear(width, units), nn.LeakyReLU(0.01), nn.Linear(units, units), nn.Linear(units, outputs)
        self.discriminator = nn.Sequential(*layers).double()
        assert learner.discriminator.module is not None
        self.discriminator.load_state_dict(
            learner.discriminator.module.state_dict()
        )  # its initial values are the learner's
        parameters = self.discriminator.parameters()
        self.opposition = torch.optim.SGD(parameters, lr=c.discriminator_lr, weight_decay=c.weight_decay)

    def observe(self, x: Tensor, y: Tensor, noise: list[Tensor]) -> None:
        c = self.config
        label = torch.full_like(y, self.task + 1)
        for _ in range(c.shared_steps):
            shared, private = self._shared(x), self._private(x)
            weight, bias = self.head
            loss = F.cross_entropy(torch.cat([private, shared], 1) @ weight.T + bias, y)
            reversed_ = 2 * shared.detach() - shared  # as it is, with its gradient reversed
            loss = loss + c.adversarial * F.cross_entropy(self.discriminator(reversed_), label)
            s, p = (f / (f.norm(dim=1, keepdim=True).detach() + 1e-6) for f in (shared, private))
            loss = loss + c.orthogonal * torch.stack([(one @ two) ** 2 for one in s for two in p]).mean()
            self.descent.zero_grad()
            loss.backward()
            self.descent.step()
        with torch.no_grad():
            shared = self._shared(x)
        for _ in range(c.discriminator_steps):
            told, none = self.discriminator(shared), self.discriminator(noise.pop(0))
            loss = F.cross_entropy(told, label) + F.cross_entropy(none, torch.zeros_like(label))
            self.opposition.zero_grad()
            loss.backward()
            self.opposition.step()
        assert not noise

    def _shared(self, x: Tensor) -> Tensor:
        return self.net.features(x, [self.task] * len(x))[0]

    def _private(self, x: Tensor) -> Tensor:
        p, h = self.private[self.task], x.double() / 255
        for layer in [name for name in ("conv1", "conv2") if f"{name}.weight" in p]:
            kernel = p[f"{layer}.weight"].view(-1, h.shape[1], 3, 3)
            h = torch.relu(F.conv2d(h, kernel, p[f"{layer}.bias"], stride=2, padding=1))
        return torch.relu(h.flatten(1) @ p["linear.weight"].T + p["linear.bias"])

    def compare(self, learner: Acl) -> None:
        self.net.compare(learner)
        for task, private in self.private.items():
            assert_same(private_of(learner, task), private)
        assert learner.discriminator.module is not None
        assert_same(dict(learner.discriminator.module.named_parameters()), dict(self.discriminator.named_parameters()))


def private_of(learner: Acl, task: int) -> Parameters:
    """The weights of a task's private module, by the names of its layers."""
    modules = learner.module.private
    layers = ["conv1", "conv2", "linear"][-len(modules.weights) :]
    names = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    return {name: p.detach() for name, p in zip(names, modules.own(task), strict=True)}


@contextmanager
def recorded_noise() -> Iterator[list[Tensor]]:
    """Every normal draw that is made inside."""
    noise: list[Tensor] = []
    draw = torch.randn

    def recording(*arguments: Any, **keywords: Any) -> Tensor:
        noise.append(draw(*arguments, **keywords))
        return noise[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", recording)
        yield noise


class SideBySide:
    """A learner in float64 and its re-computation, compared after every step."""

    def __init__(self, spec: InputSpec, **values: Any) -> None:
        self.learner = in_double(Acl(spec, AclConfig(**values)))
        self.plain = PlainAcl(self.learner)
        self.data = torch.Generator().manual_seed(1)

    def task(self, name: str, classes: int, *sizes: int) -> None:
        """A task of batches of these sizes."""
        self.learner.begin_task(TaskInfo(name, classes))
        self.plain.begin_task(self.learner, self.learner.tasks.index(name))
        for n in sizes:
            x, y = pixels(self.learner.spec, n, classes, self.data)
            with recorded_noise() as noise:
                self.learner.observe(x, y)
            self.plain.observe(x, y, noise)
            self.plain.compare(self.learner)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"task_heads": False},
        {"shared_steps": 1, "discriminator_steps": 3},
        {"adversarial": 0.5, "orthogonal": 2.0, "momentum": 0.5, "weight_decay": 0.0, "discriminator_units": 7},
    ],
    ids=["as its authors", "one head", "other numbers of steps", "other weights"],
)
def test_mlp_steps_are_those_of_the_plain_computation(values: dict[str, Any]) -> None:
    both = SideBySide(VECTOR, discriminator_lr=0.1, **values)
    for task in "abc":
        both.task(task, 3, 4, 4, 4)
    both.task("b", 3, 4)  # comes back, to a discriminator of all tasks


def test_resnet_steps_are_those_of_the_plain_computation() -> None:
    both = SideBySide(IMAGE, lr=0.001, discriminator_lr=0.1, private_channels=4)
    for task, classes in (("a", 2), ("b", 3), ("c", 2)):  # heads of different widths
        both.task(task, classes, 6, 6)


def test_tasks_of_unequal_batches_give_the_same_steps() -> None:
    both = SideBySide(SPLIT, discriminator_lr=0.1)
    both.task("one sample", 3, 1)
    both.task("one batch", 3, 4)
    both.task("last batch of one", 3, 3, 1)
    both.task("single class", 1, 2, 2)


def test_private_modules_and_heads_of_finished_tasks_stay_as_they_are() -> None:
    learner = Acl(VECTOR)
    teach(learner, tasks=2)
    before = [private_of(learner, 0), {"head": learner.net.heads.weight.data[0].detach()}]
    before = [{n: p.clone() for n, p in part.items()} for part in before]
    trunk = [p.clone() for p in learner.net.backbone.parameters()]
    teach(learner, tasks=2, first=2)
    after = [private_of(learner, 0), {"head": learner.net.heads.weight.data[0].detach()}]
    assert all(torch.equal(one[n], two[n]) for one, two in zip(before, after, strict=True) for n in one)
    moved = zip(trunk, learner.net.backbone.parameters(), strict=True)
    assert not any(torch.equal(one, two) for one, two in moved)


def test_a_task_that_goes_on_at_once_keeps_its_discriminator_and_momentum() -> None:
    straight, paused = Acl(VECTOR, seed=1), Acl(VECTOR, seed=1)
    batches = [batch(VECTOR, 4, seed=seed) for seed in range(3)]
    for learner in (straight, paused):
        learner.begin_task(TaskInfo("a", 3))
        for x, y in batches:
            learner.observe(x, y)
            if learner is paused:
                learner.end_task()
                learner.begin_task(TaskInfo("a", 3))
    x, _ = batches[0]
    assert torch.equal(straight.predict(x, "a"), paused.predict(x, "a"))


@pytest.mark.parametrize(
    ("shape", "width", "expected"),
    [
        ((3, 32, 32), 160, 32 * (27 + 1) + 32 * (32 * 9 + 1) + 160 * (32 * 16 + 1)),
        ((3, 84, 84), 160, 32 * (27 + 1) + 32 * (32 * 9 + 1) + 160 * (32 * 16 + 1)),
        ((3, 8, 8), 160, 32 * (27 + 1) + 32 * (32 * 9 + 1) + 160 * (32 * 4 + 1)),
    ],
)
def test_a_private_module_beside_a_resnet_is_two_convolutions_and_a_linear_layer(
    shape: tuple[int, ...], width: int, expected: int
) -> None:
    learner = Acl(InputSpec(shape, 255.0, "task"))
    learner.begin_task(TaskInfo("a", 2))
    module = learner.module.private
    own = module.own(0)
    assert sum(p.numel() for p in own) == expected
    x = torch.rand(2, *shape)
    assert module.features(x, own).shape == (2, width)
    assert torch.equal(module.features(x, own), module(x, torch.tensor([0])))


def test_a_private_module_beside_an_mlp_is_one_linear_layer() -> None:
    learner = Acl(InputSpec((1, 28, 28), 255.0, "domain"))
    learner.begin_task(TaskInfo("a", 10))
    assert [tuple(p.shape) for p in learner.module.private.own(0)] == [(256, 784), (256,)]


def test_a_hundred_tasks_of_one_small_batch_each() -> None:
    learner = Acl(InputSpec((6,), None, "task"), AclConfig(shared_steps=1))
    counts = []
    for task in range(100):
        teach(learner, tasks=1, steps=1, n=2, first=task)
        counts.append(parameters_in_use(learner))
    assert learner.module.private.count == 100
    grown = {after - before for before, after in itertools.pairwise(counts)}
    assert grown == {256 * 7 + 3 * 513 + 176}, "a private module, a head and an output of the discriminator a task"
    assert bool(learner.predict(batch(learner.spec, 3)[0], "task 0").isfinite().all())


def test_several_epochs_show_a_task_so_often_and_then_never_again() -> None:
    x, y = torch.randint(0, 256, (2, 6, 1, 5, 5), dtype=torch.uint8), torch.arange(12).view(2, 6) % 2
    stream = streams.from_arrays([(x[k], y[k], x[k], y[k]) for k in range(2)], scenario="task", shuffle=False)
    learner = Acl(stream.spec, AclConfig(epochs=3))
    seen: list[Tensor] = []
    observe = learner.observe

    def watched(x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        seen.append(x)
        return observe(x, y, task)

    learner.observe = watched  # type: ignore[method-assign]
    result = train(learner, stream, batch_size=4)
    assert torch.equal(torch.cat(seen), torch.cat([*[x[0]] * 3, *[x[1]] * 3]))
    assert len(result.matrix) == 2
    assert learner.steps == 12


def test_learners_side_by_side_make_the_same_number_of_passes() -> None:
    x, y = torch.randint(0, 256, (4, 1, 5, 5), dtype=torch.uint8), torch.arange(4) % 2
    stream = streams.from_arrays([(x, y, x, y)], scenario="task")
    learners = [Acl(stream.spec, AclConfig(epochs=epochs)) for epochs in (1, 2)]
    with pytest.raises(ConfigError, match="same number of epochs"):
        train_many(learners, [stream, stream])
