"""What every learner may have beside its own losses: a weight average, CPR's entropy, consistency with the average.

The settings are those of `LearnerConfig`, so that a comparison can give them to all learners alike. A method does not
know of them: the average follows every move of the base weights, and the terms are added to every loss whose gradient
trunk and heads follow.

CPR: Cha et al., "CPR: Classifier-Projection Regularization for Continual Learning", 2021. SCALE's paper says of it:
"the projection concept is put forward to induce wide local optimum regions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from scale_cl.engine.network import Network
from scale_cl.engine.replay import Samples
from scale_cl.engine.settings import LearnerConfig
from scale_cl.engine.weights import AheadWeights, WeightState
from scale_cl.losses import entropy, squared_distance
from scale_cl.nets import Outputs

_SLOWEST = 10  # moves after which the decay of an average that warms up is about a half


class Extras:
    """The extras of one learner, as its settings say."""

    def __init__(
        self,
        config: LearnerConfig,
        network: Network,
        *,
        average: Callable[[], WeightState | None],
        moves: Tensor | None,
        log: Callable[[Mapping[str, Tensor]], None],
    ) -> None:
        """Attach them to a network.

        Args:
            config: the learner's settings.
            network: whose base weights have the extras.
            average: the weight average, as soon as there is one.
            moves: counts the moves of the base weights, if the decay of the average warms up.
            log: reports loss terms.
        """
        self._config, self._network, self._average, self._moves, self._log = config, network, average, moves, log
        self._seen: list[tuple[Samples, Outputs]] = []  # forwards since the last gradient
        if config.weight_average > 0:
            network.base.moved = self.follow
        if config.entropy > 0 or config.consistency > 0:
            network.trained_on, network.base.extra = self._note, self.with_terms

    @torch.no_grad()
    def follow(self, base: Sequence[Tensor]) -> None:
        """After every move of the base weights: the average follows, at first faster if its decay warms up."""
        average = self._average()
        if average is None:
            return
        share = 1 - self._config.weight_average
        if self._moves is None:
            torch._foreach_lerp_(average.tensors, list(base), share)
            return
        now = ((_SLOWEST - 1) / (self._moves + _SLOWEST)).clamp(min=share)
        self._moves += 1
        way = torch._foreach_sub(list(base), average.tensors)
        torch._foreach_mul_(way, now)
        torch._foreach_add_(average.tensors, way)

    def end_step(self) -> None:
        """Forget forwards of the step whose loss trunk and heads did not descend."""
        self._seen.clear()

    def with_terms(self, loss: Tensor) -> Tensor:
        """`loss` with the terms of the forwards that it was computed from."""
        c, seen = self._config, [(samples, out) for samples, out in self._seen if out.logits.requires_grad]
        self._seen.clear()
        if not seen:
            return loss
        if c.entropy > 0:  # CPR
            total = torch.stack([entropy(out.logits) for _, out in seen]).sum()
            self._log({"entropy": total})
            loss = loss - c.entropy * total
        if c.consistency > 0:
            total = torch.stack([squared_distance(out.logits, self._averaged(samples)) for samples, out in seen]).sum()
            self._log({"consistency": total})
            loss = loss + c.consistency * total
        return loss

    @torch.no_grad()
    def _averaged(self, samples: Samples) -> Tensor:
        """The logits of samples by the average of the weights."""
        average = self._average()
        assert average is not None
        return self._network(samples, AheadWeights(self._network.base, average.named), keep_statistics=True).logits

    def _note(self, samples: Samples, out: Outputs) -> None:
        self._seen.append((samples, out))
