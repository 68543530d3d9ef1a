"""The second-order outer gradient against central differences, in float64 on the MLP."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.learners import Scale, ScaleConfig
from scale_cl.streams import TaskInfo
from tests.learners.side_by_side import batch_of, in_double, parts_of
from tests.learners.tiny import DOMAIN, teach

STEP = 1e-6  # small, because the inner gradient jumps where a relu switches


class Probe:
    """A learner before its next step, which it can take again and again from another parameter generator."""

    def __init__(self, **values: Any) -> None:
        config = ScaleConfig(memory=5, replay=8, inner_lr=0.1, outer_lr=0.1, lambda3=0.3, **values)
        self.learner = in_double(Scale(DOMAIN, config, seed=3))
        teach(self.learner, tasks=2)
        self.learner.begin_task(TaskInfo("third", 3))
        self.state = self.learner.state_dict()
        self.batch = batch_of(DOMAIN, 4, 3, torch.Generator().manual_seed(8))

    def loss_along(self, direction: list[torch.Tensor], distance: float) -> float:
        """The validation loss of the step that starts from a generator moved along `direction`."""
        self.learner.load_state_dict(self.state)
        with torch.no_grad():
            for p, d in zip(self.learner.net.generator_parameters().values(), direction, strict=True):
                p += distance * d
        return float(self.learner.observe(*self.batch)["outer_loss"])

    def gradient(self) -> list[torch.Tensor]:
        """What the outer step descends, read off the step itself."""
        self.learner.load_state_dict(self.state)
        before = [p.detach().clone() for p in self.learner.net.generator_parameters().values()]
        self.learner.observe(*self.batch)
        after = [p.detach() for p in self.learner.net.generator_parameters().values()]
        return [(b - a) / self.learner.config.outer_lr for b, a in zip(before, after, strict=True)]

    def directions(self, count: int) -> list[list[torch.Tensor]]:
        """Random unit directions over all parameters that exist, and one in each parameter alone."""
        generator = torch.Generator().manual_seed(1)
        parameters = self.learner.net.generator_parameters()
        found = []
        for chosen in [None] * count + list(parameters):
            direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters.values()]
            for name, d in zip(parameters, direction, strict=True):
                d[3 if "embedding" in name else len(d) :] = 0
                d *= chosen in (None, name)
            length = sum(float(d.square().sum()) for d in direction) ** 0.5
            found.append([d / length for d in direction])
        return found


SETTINGS: dict[str, dict[str, Any]] = {
    "as the paper": {},
    "two inner steps": {"inner_steps": 2},
    "CE added, discriminator on the FiLM-ed features": {"ce": "added", "discriminator_on": "film"},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_the_outer_gradient_is_the_derivative_of_the_validation_loss(case: str) -> None:
    probe = Probe(second_order=True, **SETTINGS[case])
    gradient = probe.gradient()
    for direction in probe.directions(4):
        slope = sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True))
        measured = (probe.loss_along(direction, STEP) - probe.loss_along(direction, -STEP)) / (2 * STEP)
        assert slope == pytest.approx(measured, rel=1e-4, abs=1e-9)


def test_the_first_order_gradient_is_another_one_and_the_other_steps_are_the_same() -> None:
    exact, first = Probe(second_order=True), Probe(second_order=False)
    first.state = exact.state
    exact_gradient, first_gradient = exact.gradient(), first.gradient()
    size = sum(float(g.square().sum()) for g in exact_gradient) ** 0.5
    pairs = zip(exact_gradient, first_gradient, strict=True)
    assert sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5 > 0.01 * size
    one, other = parts_of(exact.learner), parts_of(first.learner)
    for a, b in ((one.base, other.base), (one.discriminator, other.discriminator)):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-12)
