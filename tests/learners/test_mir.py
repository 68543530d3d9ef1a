"""Steps of MIR against a plain re-computation, and what it must bear."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.learners import Er, ErConfig, Mir, MirConfig, Samples
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import IMAGE, SPLIT, mean_ce, with_heads
from tests.learners.replay_reference import Part, PlainReplay, SideBySide
from tests.learners.tiny import batch, teach


class PlainMir(PlainReplay):
    """Candidates are scored before and after a virtual step; the highest scores are replayed with the batch."""

    def step(self, batch: Part) -> None:
        for _ in range(self.config.updates):
            gradient = self.gradient(self.ce(batch))
            candidates = self.replayed(self.config.candidates)
            if candidates is not None:
                before = self._each_ce(candidates)
                base = dict(self.net.base)
                self.descend(gradient, self.config.lr)  # virtually
                after = self._each_ce(candidates)
                self.net.base = base
                scores = [b - a for a, b in zip(before, after, strict=True)]
                ranked = sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)
                chosen = self.part([candidates.samples[i] for i in ranked[: self.config.replay]])
                more = self.gradient(self.ce(chosen))
                gradient = {name: g + more[name] for name, g in gradient.items()}
            self.descend(gradient, self.config.lr)
            self.moved()

    def _each_ce(self, part: Part) -> list[float]:
        """Of each sample, in training mode; the running statistics are put back."""
        running = dict(self.net.resnet.running)
        logits = self.net.logits(part.x, part.tasks)
        self.net.resnet.running = running
        return [float(mean_ce([o], [y]).detach()) for o, y in zip(logits, part.y, strict=True)]


def make(spec: InputSpec) -> Mir:
    return Mir(spec, MirConfig(memory=5))


@with_heads(
    [{}, {"replay": 4}, {"updates": 1, "weight_average": 0.8}, {"candidates": 2}, {"memory_policy": "reservoir"}],
    ids=["as the paper", "parts of equal size", "average", "fewer candidates than replays", "reservoir"],
)
def test_mlp_steps_are_those_of_the_plain_computation(spec: InputSpec, values: dict[str, Any]) -> None:
    config = MirConfig(**{"memory": 5, "replay": 3, "candidates": 7, "lr": 0.1, **values})
    SideBySide(Mir(spec, config), PlainMir).some_tasks(spec)


def test_resnet_steps_are_those_of_the_plain_computation() -> None:
    config = MirConfig(memory=5, replay=3, candidates=6, lr=0.05, updates=2, weight_average=0.8)
    SideBySide(Mir(IMAGE, config), PlainMir).some_tasks(IMAGE)


def test_the_defaults_are_the_papers() -> None:
    c = MirConfig()
    assert (c.lr, c.replay, c.candidates, c.updates, c.memory, c.memory_policy) == (0.03, 10, 50, 3, 50, "ring")


def test_with_as_many_candidates_as_replays_it_is_er() -> None:
    er = teach(Er(SPLIT, ErConfig(replay=6), seed=2), n=5)
    mir = teach(Mir(SPLIT, MirConfig(replay=6, candidates=6), seed=2), n=5)
    for name, p in er.net.base_parameters().items():
        torch.testing.assert_close(mir.net.base_parameters()[name], p, rtol=1e-4, atol=1e-6)


def test_one_forward_for_batch_and_replay_differs_only_in_batch_statistics() -> None:
    for spec, same in ((SPLIT, True), (IMAGE, False)):
        both = (MirConfig(memory=5, replay=3, candidates=6, updates=2, forward=f) for f in ("separate", "joint"))
        one, other = (teach(Mir(spec, config, seed=2), n=5).network.base.tensors for config in both)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True)) == same


def test_what_suffers_most_is_replayed() -> None:
    learner = Mir(SPLIT, MirConfig(replay=1, candidates=8, updates=1, lr=1.0))
    teach(learner, tasks=1, n=8)
    learner.begin_task(TaskInfo("next", 3))
    rows = torch.arange(8)
    kept = learner.memory
    stored = kept.samples(rows)
    torch.testing.assert_close(stored.x, kept.x[rows] / 255)
    base = learner.network.base.tensors
    gradient = [torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) for p in base]

    def losses() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            learner.net(stored.x, stored.task).logits, stored.y, reduction="none"
        ).detach()

    chosen = learner.most_interfered(stored, gradient)
    before = losses()
    with torch.no_grad():
        for p, g in zip(base, gradient, strict=True):
            p -= g
    assert chosen.tolist() == [int((losses() - before).argmax())]


def test_scoring_leaves_the_running_statistics_alone() -> None:
    learner = make(IMAGE)
    teach(learner, tasks=1)
    learner.begin_task(TaskInfo("next", 3))
    before = {name: b.clone() for name, b in learner.net.named_buffers()}
    x, y = batch(IMAGE, 3)
    gradient = [torch.zeros_like(p) for p in learner.network.base.tensors]
    learner.most_interfered(Samples(x / 255, y, torch.zeros_like(y), (3,)), gradient)
    assert all(torch.equal(b, before[name]) for name, b in learner.net.named_buffers())


@pytest.mark.parametrize("values", [{"lr": 0.0}, {"updates": 0}, {"replay": 0}, {"candidates": 0}])
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        MirConfig(**values)
