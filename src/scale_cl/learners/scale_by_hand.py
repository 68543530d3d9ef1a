"""SCALE's step on a CPU with the MLP and one head, its gradients written out: the same equations as in `scale.py`.

Every tensor of a step is computed once, without autograd, in the order of algorithm 1. `scale.py` is the definition and
serves everything else; the tests hold both to one independent re-computation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from scale_cl.losses import cross_entropies, logit_distance_and_gradient
from scale_cl.nets import Discriminator, ParameterGenerator
from scale_cl.nets.mlp_by_hand import MlpByHand, Pass, descend_linear, through_relu

if TYPE_CHECKING:
    from scale_cl.learners.base import StepStats
    from scale_cl.learners.scale import Drawn, Scale


@dataclass
class _Films:
    """P's outputs, at each of S sites a scale and a shift of unit length: a row for each task, or for each sample."""

    task: Tensor | None  # [rows] of which task a row is, where it is a sample's; None: all tasks in order
    embedded: Tensor  # [rows, ...] their embeddings
    units: Tensor  # [rows, S, 2, width]
    norms: Tensor  # [rows, S, 2, 1] lengths before the division

    def of(self, task: Tensor) -> Tensor:
        """[m, S, 2, width] for samples of these tasks [m]."""
        return self.units if self.task is not None else self.units.index_select(0, task)


@dataclass
class _Guess:
    """A forward of the discriminator, and its error: softmax minus the labels, the gradient of each cross-entropy."""

    inputs: Tensor  # [m, width]
    hidden: Tensor
    logits: Tensor  # [m, outputs]
    each: Tensor  # [m] cross-entropies
    error: Tensor  # [m, outputs]


def applies(learner: Scale) -> bool:
    """Whether the step of this file is the learner's."""
    c, net = learner.config, learner.net
    return (
        learner.is_cpu
        and learner.compute.precision != "bf16"
        and MlpByHand.applies(net)
        and (c.generator and c.adversary and not c.second_order)
        and (c.film, c.discriminator_on, c.discriminator_steps) == ("branches", "common", 1)
        and c.adversarial != "fake"
        and c.clip == 0
    )


class ScaleByHand:
    """Algorithm 1 for one batch; parameters are those of the learner, moved in place."""

    def __init__(self, learner: Scale) -> None:
        """For a learner to which this `applies`."""
        self._learner, self.config = learner, learner.config
        self._generator = cast(ParameterGenerator, learner.net.generator)
        self._weights: dict[tuple[int, int], Tensor] = {}
        self.look_up()

    def look_up(self) -> None:
        """Find the parameters anew: tensors have moved, or a task has come."""
        net, d = self._learner.net, cast(Discriminator, self._learner.discriminator)
        self._base = MlpByHand(net)
        (self._embedding,) = _detached(self._generator.embedding.data[: self._generator.embedding.count])
        layers = cast("Iterable[nn.Linear]", self._generator.layers)
        self._film_layers = [_detached(layer.weight, layer.bias) for layer in layers]
        outputs = d.weight.data[: d.outputs], d.bias.data[: d.outputs]
        self._d = _detached(d.hidden.weight, d.hidden.bias, *outputs)

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor) -> StepStats:
        """One step on a raw batch."""
        c, stats = self.config, cast("StepStats", {})
        drawn = iter(self._learner.drawn(x, y, c.outer_steps * (c.inner_steps + 1)))
        for left in reversed(range(c.outer_steps)):
            films = self._films() if self._fewer_tasks_than_samples(len(y)) else None  # the same until the outer step
            for _ in range(c.inner_steps):
                self._inner_step(next(drawn), films, stats)
            val = next(drawn)
            guess = self._outer_step(val, films, stats, noise=left == 0)
        self._discriminator_step(val, guess, stats)
        return stats

    # ---- inner and outer step ----------------------------------------------------------------------------------------

    def _inner_step(self, train: Drawn, films: _Films | None, stats: StepStats) -> None:
        """Equation 5: theta and phi descend the loss; D and varphi are held fixed."""
        films = films or self._films(train.samples.task)
        passed = self._base.forward(train.samples.x, films.of(train.samples.task))
        guess = self._guessed(passed.common, train.samples.task + 1)
        at_logits, at_guess = self._loss(train, passed, guess, stats, "")
        at_common = self._through_discriminator(guess, at_guess)
        self._base.descend(passed, self.config.inner_lr, at_logits, at_common)
        self._learner._update_average()

    def _outer_step(self, val: Drawn, films: _Films | None, stats: StepStats, *, noise: bool) -> _Guess:
        """Equation 6, first order: varphi descends the loss at the base parameters just updated.

        Returns D's forward over the features and as much `noise`: with it, it serves the discriminator's step too.
        """
        samples = val.samples
        films = films or self._films(samples.task)
        passed = self._base.forward(samples.x, films.of(samples.task))
        m, seen, label = len(samples.y), passed.common, samples.task + 1
        if noise:
            drawn = torch.randn(seen.shape, generator=self._learner._rng, dtype=seen.dtype)
            seen, label = torch.cat([seen, drawn]), torch.cat([label, torch.zeros_like(label)])
        guess = self._guessed(seen, label)
        real = _Guess(*(t[:m] for t in (seen, guess.hidden, guess.logits, guess.each, guess.error)))
        at_logits, at_guess = self._loss(val, passed, real, stats, "outer_")
        at_common = self._through_discriminator(real, at_guess)
        self._descend_generator(films, samples.task, self._base.film_gradients(passed, at_logits, at_common))
        return guess

    def _loss(self, drawn: Drawn, passed: Pass, guess: _Guess, stats: StepStats, prefix: str) -> tuple[Tensor, Tensor]:
        """Equation 3, L_CE + L_DER++ + L_adv: its gradients at the logits and at the discriminator's outputs."""
        c, samples, o = self.config, drawn.samples, passed.logits
        weights = self._ce_weights(samples.n, len(samples.y))
        each, at_logits = cross_entropies(o, samples.y)
        stats[prefix + "ce"], stats[prefix + "replay"], loss = (weights @ each).unbind()
        at_logits.mul_(weights[2].unsqueeze(1))
        if drawn.h is not None:
            replayed = o[samples.n :]
            distance, gradient = logit_distance_and_gradient(replayed, drawn.h, drawn.exists)  # ||o - h|| of L_DER++
            stats[prefix + "distance"] = distance
            loss.add_(distance, alpha=c.lambda1)
            at_logits[samples.n :].add_(gradient, alpha=c.lambda1)
        entropy = guess.each.mean()
        stats[prefix + "adversarial"] = entropy
        adversarial = -c.lambda3 if c.adversarial == "minus" else c.lambda3  # eq. 7, the trunk's side
        stats[prefix + "loss"] = loss.add_(entropy, alpha=adversarial)
        return at_logits, guess.error * (adversarial / len(samples.y))

    def _ce_weights(self, n: int, m: int) -> Tensor:
        """[3, m] of the samples' cross-entropies: in L_CE, in lambda2's part of L_DER++, and in both together."""
        if (n, m) not in self._weights:
            both = self._learner.ce_weights(n, m)
            self._weights[n, m] = torch.cat([both, both.sum(0, keepdim=True)])
        return self._weights[n, m]

    # ---- the parameter generator -------------------------------------------------------------------------------------

    def _fewer_tasks_than_samples(self, n: int) -> bool:
        return len(self._embedding) <= n + self._learner._replay_size()

    def _films(self, task: Tensor | None = None) -> _Films:
        """Equations 1 and 2: what P makes of the embedding of each task, or of the tasks [m] of some samples."""
        embedded = self._embedding if task is None else self._embedding.index_select(0, task)
        made = [torch.addmm(bias, embedded, weight.t()) for weight, bias in self._film_layers]
        raw = torch.cat(made, 1).unflatten(1, (len(made), 2, -1))
        norms = torch.linalg.vector_norm(raw, dim=3, keepdim=True)
        return _Films(task, embedded, raw / norms, norms)

    def _descend_generator(self, films: _Films, task: Tensor, at_films: Tensor) -> None:
        """From gradients at each sample's scales and shifts to the generator's parameters, and a step along them."""
        if films.task is None:
            at_films = torch.zeros_like(films.units).index_add_(0, task, at_films)
        along = (films.units * at_films).sum(3, keepdim=True)
        at_raw = at_films.addcmul_(films.units, along, value=-1).div_(films.norms).flatten(1)  # of v / |v|
        rate, at_embedded = self.config.outer_lr, torch.zeros_like(films.embedded)
        for (weight, bias), at_made in zip(self._film_layers, at_raw.chunk(len(self._film_layers), 1), strict=True):
            at_embedded.addmm_(at_made, weight)
            descend_linear(weight, bias, films.embedded, at_made, rate)
        if films.task is None:
            self._embedding.sub_(at_embedded, alpha=rate)
        else:
            self._embedding.index_add_(0, task, at_embedded, alpha=-rate)

    # ---- the adversarial game ----------------------------------------------------------------------------------------

    def _guessed(self, seen: Tensor, label: Tensor) -> _Guess:
        """D's forward, over the outputs that exist."""
        weight, bias, out_weight, out_bias = self._d
        hidden = torch.addmm(bias, seen, weight.t()).relu_()
        logits = torch.addmm(out_bias, hidden, out_weight.t())
        return _Guess(seen, hidden, logits, *cross_entropies(logits, label))

    def _through_discriminator(self, guess: _Guess, at_guess: Tensor) -> Tensor:
        """The gradient at D's inputs."""
        return through_relu(at_guess @ self._d[2], guess.hidden) @ self._d[0]

    def _discriminator_step(self, val: Drawn, guess: _Guess, stats: StepStats) -> None:
        """Equation 8: D descends L_adv over features and noise (label 0), plus DER++ on the replayed features."""
        c, samples = self.config, val.samples
        m = len(samples.y)
        weights = self._learner.discriminator_weights(samples.n, m)
        loss = weights @ guess.each
        at_guess = guess.error * weights.unsqueeze(1)
        if samples.rows is not None:
            d, exists = self._learner.memory.logits["task"].get(samples.rows, guess.logits.shape[1])
            distance, gradient = logit_distance_and_gradient(guess.logits[samples.n : m], d, exists)
            loss.add_(distance, alpha=c.lambda1)
            at_guess[samples.n : m].add_(gradient, alpha=c.lambda1)
        weight, bias, out_weight, out_bias = self._d
        at_hidden = through_relu(at_guess @ out_weight, guess.hidden)
        descend_linear(weight, bias, guess.inputs, at_hidden, c.adversarial_lr)
        descend_linear(out_weight, out_bias, guess.hidden, at_guess, c.adversarial_lr)
        stats["discriminator"] = loss


def _detached(*parameters: Tensor) -> tuple[Tensor, ...]:
    return tuple(p.detach() for p in parameters)
