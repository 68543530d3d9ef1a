"""Steps of A-GEM against a plain re-computation, and what it must bear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from scale_cl.errors import ConfigError
from scale_cl.learners import Agem, AgemConfig
from scale_cl.learners.agem import projected
from scale_cl.streams import InputSpec
from tests.learners.plain import IMAGE, with_heads
from tests.learners.replay_reference import Part, PlainReplay, SideBySide


class PlainAgem(PlainReplay):
    """One replay batch; when the gradients disagree, the component along the replay's is taken away."""

    projections = 0

    def step(self, batch: Part) -> None:
        for _ in range(self.config.updates):
            g = self.gradient(self.ce(batch))
            replayed = self.replayed()
            if replayed is not None:
                ref = self.gradient(self.ce(replayed))
                product = sum(float((g[name] * ref[name]).sum()) for name in g)
                if product < 0:
                    self.projections += 1
                    length = sum(float(r.square().sum()) for r in ref.values())
                    g = {name: g[name] - product / length * ref[name] for name in g}
            self.descend(g, self.config.lr)
            self.moved()


def make(spec: InputSpec) -> Agem:
    return Agem(spec, AgemConfig(memory=5))


def run(spec: InputSpec, **values: Any) -> None:
    both = SideBySide(Agem(spec, AgemConfig(**{"memory": 5, "replay": 7, **values})), PlainAgem)
    both.some_tasks(spec)
    assert isinstance(both.plain, PlainAgem)
    assert both.plain.projections > 0, "the gradients never disagreed"


@with_heads(
    [{}, {"updates": 1, "weight_average": 0.8}, {"memory_policy": "reservoir"}],
    ids=["defaults", "average", "reservoir"],
)
def test_mlp_steps_are_those_of_the_plain_computation(spec: InputSpec, values: dict[str, Any]) -> None:
    run(spec, lr=0.1, **values)


def test_resnet_steps_are_those_of_the_plain_computation() -> None:
    run(IMAGE, lr=0.05, updates=2, weight_average=0.8)


vectors = st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=4, max_size=4)


@given(vectors, vectors)
@example([1.0, 0.0, 0.0, 0.0], [-1e-200, 0.0, 0.0, 0.0])
def test_what_is_left_never_points_against_the_reference(g: list[float], reference: list[float]) -> None:
    one, other = torch.tensor(g, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    result = projected(one, other)
    assert bool(result.isfinite().all())
    assert float((result * other).sum()) >= -1e-9 * (1 + float(one.norm() * other.norm()))
    if float((one * other).sum()) >= 0:
        assert torch.equal(result, one)


@pytest.mark.parametrize("values", [{"lr": 0.0}, {"updates": 0}, {"replay": 0}, {"memory": 0}])
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        AgemConfig(**values)
