"""SCALE's step, recomputed plainly: lists of exact size, python lists as memory, one `autograd.grad` for each part.

It is written from the method's description, not from the learner, and shares no code with the package. Nothing here is
allocated ahead: there are as many heads, embedding vectors and discriminator outputs as tasks have come. Only what is
random comes from outside: the initial values of new parts, the rows of each replay draw, the noise and the chances by
which a reservoir keeps what comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.learners.reference_networks import Parameters, ResNet, Trunk, mlp

__all__ = ["Choices", "Draws", "Parameters", "PlainScale", "ResNet", "Sample", "Trunk", "mlp"]


@dataclass(frozen=True)
class Choices:
    """The settings, in the notation of the description."""

    alpha: float = 0.01
    beta: float = 0.1
    mu: float = 0.001
    lambda1: float = 1.0
    lambda2: float = 1.0
    lambda3: float = 0.03
    slots: int = 50
    reservoir: bool = True  # otherwise the last samples stay
    n_in: int = 1
    n_out: int = 1
    n_ad: int = 1
    adversary: bool = True
    derpp: bool = True
    generator: bool = True
    ce: str = "batch"
    adversarial: str = "minus"
    noise: bool = True
    film: str = "branches"
    separate: bool = False
    discriminator_on: str = "common"
    refresh_logits: bool = False
    second_order: bool = False
    norm_on_memory: bool = True
    decay: float = 0.0  # of the weight average; 0: none
    detach_norms: bool = False


@dataclass
class Sample:
    """One slot of the memory."""

    x: Tensor
    y: int
    h: Tensor | None = None  # class logits, as many as its head had
    d: Tensor | None = None  # task logits, as many as there were


@dataclass
class Draws:
    """What the learner drew in one step, in order."""

    replay: list[list[tuple[int, int]]] = field(default_factory=list)  # (task, slot) of every replayed sample
    noise: list[Tensor] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)  # one for every sample that came
    semantic: list[list[tuple[int, int]]] = field(default_factory=list)  # as replay, from a second memory


class PlainScale:
    """Base learner (trunk, heads), parameter generator (embedding, FiLM layers), discriminator, memory."""

    def __init__(self, choices: Choices, trunk: Trunk, *, one_head: bool) -> None:
        self.choices, self.trunk, self.one_head = choices, trunk, one_head
        self.base: Parameters = {}  # "trunk...", "head.K.weight", "head.K.bias"
        self.generator: Parameters = {}  # "embedding.K", "film.I.weight", "film.I.bias"
        self.discriminator: Parameters = {}  # "hidden.weight", "hidden.bias", "output.K.weight", "output.K.bias"
        self.average: Parameters = {}
        self.memory: list[list[Sample]] = []
        self.finished: list[int] = []
        self.task = -1
        self.written: list[int] = []
        self.both = torch.empty(0), torch.empty(0)  # common features and those for the head, of the last forward

    # ---- parts arrive ------------------------------------------------------------------------------------------------

    def begin_task(self, base: Parameters, generator: Parameters, discriminator: Parameters) -> None:
        """A new task, with the parts that are new with it (all of them, with the first)."""
        self.task += 1
        self.memory.append([])
        self.written.append(0)
        for mine, new in ((self.base, base), (self.generator, generator), (self.discriminator, discriminator)):
            assert not mine.keys() & new.keys()
            mine.update({name: p.detach().clone() for name, p in new.items()})
        if self.choices.decay > 0:
            self.average.update({name: p.detach().clone() for name, p in base.items()})

    # ---- the networks ------------------------------------------------------------------------------------------------

    def _forward(
        self, base: Parameters, generator: Parameters, x: Tensor, tasks: Sequence[int], *, training: bool = True
    ) -> tuple[Tensor, list[Tensor]]:
        """Features for the discriminator, and each sample's logits of its own head."""

        def film(site: int, h: Tensor) -> Tensor:
            if not self.choices.generator:
                return torch.relu(h)
            modulated = [self._film(generator, site, task, one) for task, one in zip(tasks, h, strict=True)]
            return torch.stack(modulated)

        common, features = self.trunk({k[6:]: p for k, p in base.items() if k.startswith("trunk.")}, x, film, training)
        self.both = common, features
        logits = []
        for task, one in zip(tasks, features, strict=True):
            head = 0 if self.one_head else task
            logits.append(base[f"head.{head}.weight"] @ one + base[f"head.{head}.bias"])
        return (common if self.choices.discriminator_on == "common" else features), logits

    def _film(self, generator: Parameters, site: int, task: int, h: Tensor) -> Tensor:
        """relu(gamma/|gamma| * h + beta/|beta|) + relu(h), for one sample [C] or [C, H, W]."""
        made = generator[f"film.{site}.weight"] @ generator[f"embedding.{task}"] + generator[f"film.{site}.bias"]
        half = len(made) // 2
        gamma, beta = made[:half], made[half:]
        gamma_norm, beta_norm = gamma.square().sum().sqrt(), beta.square().sum().sqrt()
        if self.choices.detach_norms:
            gamma_norm, beta_norm = gamma_norm.detach(), beta_norm.detach()
        wide = (half, 1, 1) if h.dim() == 3 else (half,)
        private = (gamma / gamma_norm).view(wide) * h + (beta / beta_norm).view(wide)
        return torch.relu(private) + torch.relu(h) if self.choices.film == "branches" else torch.relu(private + h)

    def _tell_tasks(self, discriminator: Parameters, features: Tensor) -> Tensor:
        """D: one output for the fake task and one for each task that has come."""
        hidden = torch.relu(features @ discriminator["hidden.weight"].T + discriminator["hidden.bias"])
        outputs = range(self.task + 2)
        weight = torch.stack([discriminator[f"output.{k}.weight"] for k in outputs])
        bias = torch.stack([discriminator[f"output.{k}.bias"] for k in outputs])
        return hidden @ weight.T + bias

    # ---- the losses --------------------------------------------------------------------------------------------------

    def _loss(
        self, features: Tensor, logits: list[Tensor], y: list[int], tasks: list[int], replay: list[Sample]
    ) -> Tensor:
        """Equation 3 on a batch followed by replayed samples."""
        c = self.choices
        n = len(y) - len(replay)
        loss = mean_ce(logits, y) if c.ce == "together" else mean_ce(logits[:n], y[:n])
        if replay:
            if c.ce == "added":
                loss = loss + mean_ce(logits[n:], y[n:])
            loss = loss + c.lambda1 * mean_distance(logits[n:], [sample.h for sample in replay])
            loss = loss + c.lambda2 * mean_ce(logits[n:], y[n:])
        if c.adversary:
            told = self._tell_tasks(self.discriminator, features)
            if c.adversarial == "fake":
                loss = loss + c.lambda3 * F.cross_entropy(told, torch.zeros(len(y), dtype=torch.int64))
            else:
                sign = -1 if c.adversarial == "minus" else 1
                loss = loss + sign * c.lambda3 * F.cross_entropy(told, torch.tensor(tasks) + 1)
        return loss

    def _discriminator_loss(
        self, discriminator: Parameters, features: Tensor, tasks: list[int], replay: list[Sample], noise: Tensor
    ) -> Tensor:
        c = self.choices
        told = self._tell_tasks(discriminator, torch.cat([features, noise]))
        labels = torch.tensor([task + 1 for task in tasks] + [0] * len(noise))
        loss = F.cross_entropy(told, labels)
        if replay:
            n = len(tasks) - len(replay)
            replayed = self._tell_tasks(discriminator, features[n:])
            loss = loss + c.lambda1 * mean_distance(list(replayed), [sample.d for sample in replay])
            loss = loss + c.lambda2 * F.cross_entropy(replayed, torch.tensor(tasks[n:]) + 1)
        return loss

    # ---- the step ----------------------------------------------------------------------------------------------------

    def observe(self, x: Tensor, y: list[int], stored: Tensor, draws: Draws) -> None:
        """One batch: `x` in the units the trunk sees; `stored` is the same as the memory keeps it."""
        c = self.choices
        queue = Draws(list(draws.replay), list(draws.noise), list(draws.chances))
        features, tasks, replay = torch.empty(0), [self.task], [Sample(torch.empty(0), 0)]
        for _ in range(c.n_out):
            start = self.base
            phi = {name: p.clone().requires_grad_() for name, p in self.generator.items()}
            moving = start
            for _ in range(c.n_in):
                moving = self._inner_step(moving, phi, x, y, queue)
                for name, average in self.average.items():
                    self.average[name] = c.decay * average + (1 - c.decay) * moving[name].detach()
            self.base = {name: p.detach() for name, p in moving.items()}
            if not (c.generator or c.adversary):
                continue  # nothing is left that looks at a validation set
            joined, labels, tasks, replay = self._join_validation(x, y, queue)
            features, logits = self._in_training(moving, phi, joined, tasks, len(labels) - len(replay))
            if c.generator:
                self._outer_step(phi, self._loss(features, logits, labels, tasks, replay))
        if c.adversary:
            for _ in range(c.n_ad):
                xi = {name: p.clone().requires_grad_() for name, p in self.discriminator.items()}
                noise = queue.noise.pop(0) if c.noise else features[:0].detach()
                loss = self._discriminator_loss(xi, features.detach(), tasks, replay, noise)
                gradients = gradients_of(loss, xi)
                self.discriminator = {name: xi[name].detach() - c.mu * g for name, g in gradients.items()}
        assert not queue.replay, "the learner drew more replay than the method has"
        assert not queue.noise, "the learner drew more noise than the method has"
        for sample, label in zip(stored, y, strict=True):
            self._write(Sample(sample.clone(), label), queue)
        assert not queue.chances, "the learner drew more chances than samples came"

    def _inner_step(self, base: Parameters, phi: Parameters, x: Tensor, y: list[int], queue: Draws) -> Parameters:
        """Theta and the heads after one step of SGD on batch and replay."""
        joined, labels, tasks, replay = self._join(x, y, queue)
        exact = self.choices.second_order
        theta = base if exact and any(p.requires_grad for p in base.values()) else leaves(base)
        features, logits = self._in_training(theta, phi, joined, tasks, len(y))
        loss = self._loss(features, logits, labels, tasks, replay)
        gradients = gradients_of(loss, theta, create_graph=exact)
        return {name: theta[name] - self.choices.alpha * g for name, g in gradients.items()}

    def _outer_step(self, phi: Parameters, loss: Tensor) -> None:
        """Varphi after one step of SGD on the validation set."""
        gradients = gradients_of(loss, phi)
        self.generator = {name: self.generator[name] - self.choices.beta * g for name, g in gradients.items()}

    def _in_training(
        self, base: Parameters, phi: Parameters, x: Tensor, tasks: list[int], n: int
    ) -> tuple[Tensor, list[Tensor]]:
        if not self.choices.separate or n == len(x):
            return self._forward(base, phi, x, tasks)
        first, first_logits = self._forward(base, phi, x[:n], tasks[:n])
        second, second_logits = self._forward(base, phi, x[n:], tasks[n:])
        return torch.cat([first, second]), first_logits + second_logits

    def _join(self, x: Tensor, y: list[int], queue: Draws) -> tuple[Tensor, list[int], list[int], list[Sample]]:
        """The batch, followed by the learner's next draw from the finished tasks."""
        tasks = [self.task] * len(y)
        if not self.finished or not self.choices.derpp:
            return x, y, tasks, []
        places = queue.replay.pop(0)
        assert len(set(places)) == len(places), "replay is drawn without replacement"
        assert all(task in self.finished for task, _ in places), "replay comes from finished tasks"
        replay = [self.memory[task][slot] for task, slot in places]
        inputs = torch.cat([x, self._prepared(torch.stack([sample.x for sample in replay]), like=x)])
        return inputs, y + [sample.y for sample in replay], tasks + [task for task, _ in places], replay

    def _join_validation(
        self, x: Tensor, y: list[int], queue: Draws
    ) -> tuple[Tensor, list[int], list[int], list[Sample]]:
        """The validation set: the same batch with another draw."""
        return self._join(x, y, queue)

    # ---- the memory --------------------------------------------------------------------------------------------------

    pixel_max = 255.0

    def _prepared(self, stored: Tensor, like: Tensor) -> Tensor:
        return stored.to(like.dtype) / self.pixel_max

    def _write(self, sample: Sample, queue: Draws) -> None:
        kept, came, slots = self.memory[self.task], self.written[self.task], self.choices.slots
        chance = queue.chances.pop(0) if self.choices.reservoir else 0.0
        self.written[self.task] += 1
        if len(kept) < slots:
            kept.append(sample)
        elif not self.choices.reservoir:
            kept[came % slots] = sample
        elif chance < slots / (came + 1):  # and then each of the slots alike
            kept[int(chance * (came + 1))] = sample

    def end_task(self) -> None:
        """Keep the logits of this moment, in evaluation mode."""
        self.finished.append(self.task)
        some = next(iter(self.base.values()))
        if self.choices.norm_on_memory and isinstance(self.trunk, ResNet):
            self._measure(self.trunk, like=some)
        for task in self.finished if self.choices.refresh_logits else [self.task]:
            self._keep_logits(self.memory[task], task)

    def _keep_logits(self, kept: list[Sample], task: int) -> None:
        """H and d of stored samples of a task."""
        x = self._prepared(torch.stack([sample.x for sample in kept]), like=next(iter(self.base.values())))
        predicting = {**self.base, **self.average}
        features, logits = self._forward(predicting, self.generator, x, [task] * len(kept), training=False)
        for sample, h in zip(kept, logits, strict=True):
            sample.h = h.detach()
        if self.choices.adversary:
            for sample, d in zip(kept, self._tell_tasks(self.discriminator, features), strict=True):
                sample.d = d.detach()

    def _measure(self, trunk: ResNet, *, like: Tensor) -> None:
        """Means of the statistics of pieces of all that is stored, each with samples from all over it."""
        stored = [(task, sample.x) for task, kept in enumerate(self.memory) for sample in kept]
        size = min(64, len(stored))
        pieces = math.ceil(len(stored) / size)  # a test stores less than is measured at most
        usual = trunk.share
        for piece in range(pieces):
            some = [stored[number * len(stored) // (size * pieces)] for number in range(piece, size * pieces, pieces)]
            x = self._prepared(torch.stack([pixels for _, pixels in some]), like=like)
            trunk.share = 1 / (piece + 1)
            self._forward({**self.base, **self.average}, self.generator, x, [task for task, _ in some])
        trunk.share = usual


def mean_ce(logits: list[Tensor], y: list[int]) -> Tensor:
    """Each sample's softmax runs over the outputs of its own head."""
    return torch.stack([-F.log_softmax(o, 0)[label] for o, label in zip(logits, y, strict=True)]).mean()


def mean_distance(logits: list[Tensor], stored: Sequence[Tensor | None]) -> Tensor:
    """Mean over samples of the mean over the columns that were stored."""
    distances = []
    for o, h in zip(logits, stored, strict=True):
        assert h is not None, "a replayed sample has stored logits"
        distances.append((o[: len(h)] - h).square().mean())
    return torch.stack(distances).mean()


def leaves(parameters: Parameters) -> Parameters:
    return {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}


def gradients_of(loss: Tensor, parameters: Parameters, *, create_graph: bool = False) -> Parameters:
    """Gradient of each, zero where the loss does not depend on it (another task's head)."""
    found = torch.autograd.grad(
        loss, list(parameters.values()), create_graph=create_graph, retain_graph=True, allow_unused=True
    )
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }
