"""SCALE: Scalable Adversarial Online Continual Learning, step by step as algorithm 1 of the paper.

Four parts: the trunk g (theta) and the heads f (phi) are the base learner, trained in the inner step; the parameter
generator P (varphi) turns common features into task-specific ones and is trained in the outer step; one discriminator D
(xi) tells tasks apart, and the trunk is trained to fool it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from scale_cl.learners.base import State, StepStats, plain_copy
from scale_cl.learners.replay import MEMORY_POLICY, NORM_ON_MEMORY, ReplayConfig, ReplayLearner, Samples
from scale_cl.learners.traits import Traits
from scale_cl.losses import cross_entropy, logit_distance, weighted_cross_entropy
from scale_cl.memory import Policy
from scale_cl.nets import Backbone, Discriminator, ParameterGenerator
from scale_cl.nets.film import FilmForm, Films
from scale_cl.settings import setting


@dataclass(frozen=True)
class ScaleConfig(ReplayConfig):
    """Settings of SCALE; the defaults are the paper's for the image streams."""

    replay: int = setting(64, "samples replayed with a batch, at most as many as are stored", low=1)
    inner_lr: float = setting(0.01, "alpha, learning rate of the trunk and the heads (equation 5)", above=0)
    outer_lr: float = setting(0.1, "beta, learning rate of the parameter generator (equation 6)", above=0)
    adversarial_lr: float = setting(0.001, "mu, learning rate of the discriminator", above=0)
    lambda1: float = setting(1.0, "weight of the distance to stored logits (equation 3)", low=0)
    lambda2: float = setting(1.0, "weight of the cross-entropy on replayed samples (equation 3)", low=0)
    lambda3: float = setting(0.03, "weight of the adversarial loss (equation 3)", low=0)
    inner_steps: int = setting(1, "n_in, inner steps in each outer step", low=1)
    outer_steps: int = setting(1, "n_out, outer steps a batch", low=1)
    discriminator_steps: int = setting(1, "n_ad, discriminator steps a batch", low=1)
    adversary: bool = setting(True, "train against the discriminator; off: ablation A")
    derpp: bool = setting(True, "the DER++ loss, and with it replay; off: ablation B")
    generator: bool = setting(True, "FiLM by the parameter generator; off: ablation C")
    ce: Literal["batch", "added", "together"] = setting(
        "batch",
        "L_CE of eq. 3: over the batch; batch and replay, two means added; or together, one mean (as printed)",
    )
    adversarial: Literal["minus", "plus", "fake"] = setting(
        "minus", "L_adv: minus the cross-entropy (equation 7), plus (equation 3 as printed), or towards the fake task"
    )
    film: FilmForm = setting(
        "branches", "FiLM: relu of each branch before their sum, or of the sum (equations 1 and 2 as printed)"
    )
    forward: Literal["joint", "separate"] = setting(
        "joint", "batch and replay in one forward (one set of batch statistics) or in two"
    )
    discriminator_on: Literal["common", "film"] = setting(
        "common", "features the discriminator sees: the common ones, or those after FiLM"
    )
    refresh_logits: bool = setting(
        False, "store the logits of the whole memory anew when a task ends, not only its own"
    )
    second_order: bool = setting(False, "outer gradient through the inner step, exactly; off: first order")
    clip: float = setting(
        0.0,
        "largest norm of the inner and of the outer gradient; longer ones are shortened; 0: off, the paper",
        low=0,
    )
    memory_policy: Policy = setting("reservoir", MEMORY_POLICY)
    norm_on_memory: bool = setting(True, NORM_ON_MEMORY)
    task_embedding: int = setting(0, "width of the task embedding; 0: 16 with the mlp, 64 with the resnet18", low=0)


@dataclass
class Drawn:
    """T_train or T_val with what the memory kept of its replayed samples."""

    samples: Samples
    h: Tensor | None = None  # [r, C] stored class logits
    exists: Tensor | None = None  # [r, C] which of them exist; None: all


@dataclass
class _Seen:
    """The features of T_val that the discriminator sees, and its guess where the outer step has computed it already."""

    features: Tensor  # [m, width]
    guess: Tensor | None = None  # [m, outputs] raw logits, a function of D's present parameters

    def again(self) -> _Seen:
        """The features alone, for when the guess is out of date."""
        return _Seen(self.features.detach())


class Scale(ReplayLearner):
    """The learner of the paper; see `ScaleConfig` for every choice it leaves open."""

    config_class = ScaleConfig
    traits = Traits(episodic_memory=True, task_specific_parameters=True, history_in_training=True)
    config: ScaleConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Learner`."""
        super().__init__(*args, **kwargs)
        self.discriminator: Discriminator | None = None
        if self.config.adversary:
            width = self.net.backbone.feature_width
            ahead = {"capacity": 16} if self.is_cpu else {}  # no graphs to keep there: less to compute
            self.discriminator = Discriminator(width, generator=self._weights_rng, **ahead).to(self.device)
        self._constants: dict[tuple[str, int, int], Tensor] = {}
        self._logits = self._as_graph(self._stored_logits)
        if self.config.second_order:
            self._use_twice_differentiable_kernels()
        self._outer_params: list[Tensor] = []
        self._discriminator_params: list[Tensor] = []

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        """Algorithm 1 for one batch (the memory is written after it)."""
        c, stats = self.config, StepStats()
        validates = c.generator or c.adversary
        drawn = iter(self.drawn(x, y, c.outer_steps * (c.inner_steps + validates)))
        seen = val = None
        for _ in range(c.outer_steps):
            if c.second_order and c.generator:
                val, seen = self._second_order_steps(drawn, stats)
                continue
            films = self._films(len(x))  # P's outputs stay the same until the outer step: made once
            for _ in range(c.inner_steps):
                self._inner_step(next(drawn), films, stats)
            if validates:
                val = next(drawn)
                seen = self._outer_step(val, films, stats)
        if self.discriminator is not None:
            assert val is not None
            assert seen is not None
            for step in range(c.discriminator_steps):
                self._discriminator_step(seen if step == 0 else seen.again(), val, stats)
        return stats

    def drawn(self, x: Tensor, y: Tensor, sets: int) -> list[Drawn]:
        """All T_train and T_val of a step: the batch, each time with a fresh replay draw and its stored logits."""
        rounds = self._replay_batches(x, y, sets)
        if rounds[0].rows is None:
            return [Drawn(r) for r in rounds]
        rows = torch.stack([r.rows for r in rounds if r.rows is not None])
        h, exists = self.memory.logits["class"].get(rows, self.net.heads.bias.data.shape[1])
        return [Drawn(r, h[i], None if exists is None else exists[i]) for i, r in enumerate(rounds)]

    def _films(self, n: int) -> Films | None:
        """P's outputs for all tasks, if these are fewer than samples in a forward (and no graph needs fixed shapes)."""
        generator = self.net.generator
        if generator is None or not self.is_cpu or generator.embedding.count > n + self._replay_size():
            return None
        return generator.films()

    def _replay_size(self) -> int:
        return super()._replay_size() if self.config.derpp else 0

    # ---- inner and outer step ----------------------------------------------------------------------------------------

    def _inner_step(self, train: Drawn, films: Films | None, stats: StepStats) -> None:
        """Equation 5: theta and phi descend the loss; D and varphi are held fixed."""
        fixed = None if films is None else [(scale.detach(), shift.detach()) for scale, shift in films]
        loss, _ = self._loss(train, stats, films=fixed)
        self._descend(loss, self._base, self.config.inner_lr, clip=self.config.clip)
        self._update_average()

    def _outer_step(self, val: Drawn, films: Films | None, stats: StepStats) -> _Seen:
        """Equation 6, first order: varphi descends the loss at the base parameters just updated.

        Returns what the discriminator learns from: one forward serves both.
        """
        if not self.config.generator:
            with torch.no_grad():
                return _Seen(self._forward(val.samples)[0])
        loss, seen = self._loss(val, stats, films=films, frozen_stem=True, prefix="outer_")
        shared = seen.guess is not None
        self._descend(loss, self._outer_params, self.config.outer_lr, keep_graph=shared, clip=self.config.clip)
        return seen

    def _second_order_steps(self, drawn: Iterator[Drawn], stats: StepStats) -> tuple[Drawn, _Seen]:
        """Inner steps kept in the graph, so that the outer gradient runs through them."""
        c = self.config
        base = self.net.base_parameters()
        for _ in range(c.inner_steps):
            loss, _ = self._loss(next(drawn), stats, base=base)
            gradients = torch.autograd.grad(loss, list(base.values()), create_graph=True)
            if c.clip > 0:
                norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))
                gradients = tuple(g * (c.clip / norm.clamp(min=c.clip)) for g in gradients)
            base = {name: p - c.inner_lr * g for (name, p), g in zip(base.items(), gradients, strict=True)}
            self._update_average(list(base.values()))
        val = next(drawn)
        loss, seen = self._loss(val, stats, base=base, prefix="outer_")
        self._descend(loss, self._outer_params, c.outer_lr, clip=c.clip)
        with torch.no_grad():
            torch._foreach_copy_(self._base, list(base.values()))
        return val, seen.again()

    def _forward(
        self,
        samples: Samples,
        *,
        base: dict[str, Tensor] | None = None,
        films: Films | None = None,
        frozen_stem: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """What the discriminator sees, and the logits."""
        parts = samples.parts if self.config.forward == "separate" else ()
        inputs, keywords = (samples.x, samples.task), {"frozen_stem": frozen_stem, "parts": parts, "films": films}
        common, film, logits = (
            functional_call(self.net, base, inputs, keywords) if base else self.net(*inputs, **keywords)
        )
        return common if self.config.discriminator_on == "common" else film, logits

    def _loss(
        self,
        drawn: Drawn,
        stats: StepStats,
        *,
        base: dict[str, Tensor] | None = None,
        films: Films | None = None,
        frozen_stem: bool = False,
        prefix: str = "",
    ) -> tuple[Tensor, _Seen]:
        """Equation 3: L_CE + L_DER++ + L_adv; with it what the discriminator sees."""
        c, samples = self.config, drawn.samples
        features, o = self._forward(samples, base=base, films=films, frozen_stem=frozen_stem)
        seen = _Seen(features)
        weights = self.ce_weights(samples.n, len(samples.y))
        terms = weighted_cross_entropy(o, samples.y, weights)  # L_CE, and lambda2's part of L_DER++
        loss = terms.sum()
        stats[prefix + "ce"], stats[prefix + "replay"] = terms.detach().unbind()
        if drawn.h is not None:
            distance = logit_distance(o[samples.n :], drawn.h, drawn.exists)  # ||o - h|| of L_DER++
            stats[prefix + "distance"] = distance.detach()
            loss = torch.add(loss, distance, alpha=c.lambda1)
        if self.discriminator is not None and features.requires_grad:
            seen.guess = self.discriminator(features)
            label = torch.zeros_like(samples.task) if c.adversarial == "fake" else samples.task + 1
            entropy = cross_entropy(seen.guess + self.discriminator.missing, label)
            stats[prefix + "adversarial"] = entropy.detach()
            sign = -1 if c.adversarial == "minus" else 1  # eq. 7, the trunk's side
            loss = torch.add(loss, entropy, alpha=sign * c.lambda3)
        stats[prefix + "loss"] = loss.detach()
        return loss, seen

    def ce_weights(self, n: int, m: int) -> Tensor:
        """Weights [2, m] that make L_CE and the cross-entropy of L_DER++ of the samples' own: means, not sums."""
        key = ("ce", n, m)
        if key not in self._constants:
            batch, replayed = torch.zeros(2, m, dtype=torch.float64)
            batch[:n] = 1 / n
            if m > n:
                replayed[n:] = 1 / (m - n)
            l_ce = {"batch": batch, "added": batch + replayed, "together": torch.full_like(batch, 1 / m)}[
                self.config.ce
            ]
            self._constants[key] = torch.stack([l_ce, self.config.lambda2 * replayed]).to(self._base[0])
        return self._constants[key]

    # ---- the adversarial game ----------------------------------------------------------------------------------------

    def _discriminator_step(self, seen: _Seen, val: Drawn, stats: StepStats) -> None:
        """Equation 8: D descends L_adv over features and noise (label 0), plus DER++ on the replayed features."""
        assert self.discriminator is not None
        c, samples, features = self.config, val.samples, seen.features.detach()
        m = len(features)
        noise = torch.randn(features.shape, generator=self._rng, device=self.device, dtype=features.dtype)
        if seen.guess is None:
            raw = self.discriminator(torch.cat([features, noise]))
        else:
            raw = torch.cat([seen.guess, self.discriminator(noise)])
        label = torch.cat([samples.task + 1, torch.zeros_like(samples.task)])
        weights = self.discriminator_weights(samples.n, m)
        loss = weighted_cross_entropy(raw + self.discriminator.missing, label, weights)
        if samples.rows is not None:
            d, exists = self.memory.logits["task"].get(samples.rows, raw.shape[1])
            loss = torch.add(loss, logit_distance(raw[samples.n : m], d, exists), alpha=c.lambda1)
        self._descend(loss, self._discriminator_params, c.adversarial_lr)
        stats["discriminator"] = loss.detach()

    def discriminator_weights(self, n: int, m: int) -> Tensor:
        """Weights [2m] of the mean over features and noise, plus lambda2 times the mean over the replayed features."""
        key = ("discriminator", n, m)
        if key not in self._constants:
            weights = torch.full((2 * m,), 1 / (2 * m), dtype=torch.float64)
            if m > n:
                weights[n:m] += self.config.lambda2 / (m - n)
            self._constants[key] = weights.to(self._base[0])
        return self._constants[key]

    # ---- tasks and state ---------------------------------------------------------------------------------------------

    def _task_ended(self, task: int) -> None:
        """Keep h and d of the task's samples: the logits of the model of this moment."""
        super()._task_ended(task)
        for number in range(len(self._classes)) if self.config.refresh_logits else (task,):
            rows = self.memory.rows_of(number)
            if len(rows) == 0:
                continue
            logits = self._logits((len(rows), self._known_version), rows)
            self.memory.keep_logits("class", rows, logits["class"][:, : self._classes[number]])
            if self.discriminator is not None:
                self.memory.keep_logits("task", rows, logits["task"][:, : self.discriminator.outputs])

    @torch.no_grad()
    def _stored_logits(self, rows: Tensor) -> dict[str, Tensor]:
        """Logits of stored samples by the model that predicts, and the discriminator's."""
        common, film, h = self._evaluated(self.memory.x[rows], self.memory.task[rows])
        if self.discriminator is None:
            return {"class": h}
        return {"class": h, "task": self.discriminator(common if self.config.discriminator_on == "common" else film)}

    def _make_generator(self, backbone: Backbone) -> ParameterGenerator | None:
        c = self.config
        return self._film_generator(backbone, c.film, c.task_embedding) if c.generator else None

    def _ensure_task(self, task: int, classes: int, *, new: bool) -> None:
        super()._ensure_task(task, classes, new=new)
        if self.discriminator is not None:
            while self.discriminator.outputs < task + 2:
                self.discriminator.add_task(generator=self._weights_rng)

    def _refresh(self, *, force: bool = False) -> None:
        super()._refresh(force=force)
        self._outer_params = list(self.net.generator_parameters().values())
        self._discriminator_params = [] if self.discriminator is None else list(self.discriminator.parameters())

    def _phase(self) -> object:
        return super()._phase(), frozenset(self.memory.logits["class"].widths)

    def _version(self) -> object:
        return super()._version(), None if self.discriminator is None else self.discriminator.version

    def _learned(self) -> list[Tensor]:
        return [*super()._learned(), *self._discriminator_params]

    def state_dict(self) -> State:
        """Everything, the discriminator included."""
        state = super().state_dict()
        if self.discriminator is not None:
            state["tensors"] |= {
                f"discriminator.{n}": plain_copy(t) for n, t in self.discriminator.state_dict().items()
            }
        return state

    def _take_state(self, state: State) -> None:
        """As `Learner`, with the discriminator."""
        super()._take_state(state)
        if self.discriminator is not None:
            self._load_module(self.discriminator, "discriminator.", state["tensors"])
            self.discriminator.refresh()
            self._refresh(force=True)
