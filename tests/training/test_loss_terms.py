"""Loss terms on their way from the device: means over intervals, exactly those that the learner returned."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Gem, Scale, ScaleConfig, StepStats
from scale_cl.streams import Stream
from scale_cl.training import Event, train, train_many
from scale_cl.training.events import Losses, Restored, Stepped, to_all
from scale_cl.training.monitoring import LossTerms
from tests.training.small_streams import few_digits
from tests.training.test_checkpointing import Crash


class Noting(Scale):
    """Notes what `observe` returns."""

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        stats = super().observe(x, y, task)
        returned.setdefault(self.seed, []).append({name: float(t) for name, t in stats.items()})
        return stats


returned: dict[int, list[dict[str, float]]] = {}


class Kept:
    """Keeps the losses it is told."""

    def __init__(self, crash: int = 0) -> None:
        self._crash = crash
        self.points: dict[int, dict[int, dict[str, float]]] = {}

    def __call__(self, event: Event) -> None:
        assert not isinstance(event, Restored)
        if isinstance(event, Losses):
            assert event.step not in self.points.setdefault(event.seed, {})
            self.points[event.seed][event.step] = dict(event.terms)
        if event == Stepped(self._crash):
            raise Crash


def noting(stream: Stream, device: str = "cpu") -> Noting:
    returned[stream.seed] = []
    config = ScaleConfig(inner_lr=0.1, outer_lr=0.01, memory=20)
    return Noting(stream.spec, config, seed=stream.seed, device=device)


def test_with_an_interval_of_one_every_step_has_the_terms_that_observe_returned() -> None:
    stream, kept = few_digits(tasks=2), Kept()
    train(noting(stream), stream, on_event=kept, loss_every=1)
    assert kept.points[0] == dict(enumerate(returned[0], start=1))
    assert len(kept.points[0]) == 12
    assert len({frozenset(terms) for terms in returned[0]}) > 1, "some terms are of later tasks only"


def test_a_longer_interval_gives_means_and_none_spans_two_tasks() -> None:
    tracks, kept = [few_digits(seed, tasks=2) for seed in (3, 8)], Kept()
    train_many([noting(track) for track in tracks], tracks, on_event=kept, loss_every=4)
    for seed in (3, 8):
        assert list(kept.points[seed]) == [4, 6, 8, 12]
        for step, first in ((4, 0), (6, 4), (8, 6), (12, 8)):
            window = returned[seed][first:step]
            names = {name for terms in window for name in terms}
            means = {n: statistics.fmean(terms[n] for terms in window if n in terms) for n in names}
            assert kept.points[seed][step] == pytest.approx(means, rel=1e-12)


def test_what_was_gathered_is_reported_when_training_breaks_off() -> None:
    stream, kept = few_digits(tasks=2), Kept(crash=9)
    with pytest.raises(Crash):
        train(noting(stream), stream, on_event=kept, loss_every=100)
    assert list(kept.points[0]) == [6, 9]


def test_terms_that_are_counts_and_terms_that_come_and_go_have_means_of_their_own() -> None:
    told: list[tuple[int, dict[str, float]]] = []
    terms = LossTerms(3, done=1, report=lambda step, means: told.append((step, means)))
    terms.take({"loss": torch.tensor(1.5), "violations": torch.tensor(3), "many": torch.ones(4)})
    terms.take({"loss": torch.tensor(2.5)})
    assert told == [(3, {"loss": 2.0, "violations": 3.0})]
    terms.take({})
    terms.flush()
    assert len(told) == 1, "nothing came, nothing is told"


def test_methods_that_count_are_recorded_too() -> None:
    stream, kept = few_digits(tasks=2), Kept()
    train(Gem(stream.spec), stream, on_event=kept, loss_every=1)
    assert "violations" in kept.points[0][12]


def test_several_listeners_are_told_in_their_order() -> None:
    told: list[tuple[str, Event]] = []
    both = to_all(lambda event: told.append(("one", event)), lambda event: told.append(("other", event)))
    both(Losses(0, 4, {"loss": 1.0}))
    assert told == [(who, Losses(0, 4, {"loss": 1.0})) for who in ("one", "other")]


def test_nothing_is_gathered_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("gathered")

    monkeypatch.setattr(LossTerms, "take", fail)
    stream = few_digits(tasks=1)
    kept = Kept()
    for listener in (None, kept):
        train(noting(stream), stream, on_event=listener)
    assert kept.points == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_terms_are_those_of_the_same_steps() -> None:
    tracks, kept = [few_digits(seed, tasks=2) for seed in (3, 8)], Kept()
    train_many([noting(track, "cuda") for track in tracks], tracks, on_event=kept, loss_every=1)
    for seed in (3, 8):
        assert kept.points[seed] == dict(enumerate(returned[seed], start=1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_no_step_waits_for_the_device() -> None:
    told: list[tuple[int, dict[str, float]]] = []
    terms = LossTerms(2, done=0, report=lambda step, means: told.append((step, means)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(6):
            terms.take({"loss": torch.full((), float(step), device="cuda")})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    terms.flush()
    assert told == [(2, {"loss": 0.5}), (4, {"loss": 2.5}), (6, {"loss": 4.5})]
