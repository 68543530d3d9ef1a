"""`for_task`: the network of one task gives the logits of the whole network for that task."""

from __future__ import annotations

import pytest
import torch

from scale_cl.learners import registry
from scale_cl.streams import InputSpec
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, VECTORS, batch, teach


@pytest.mark.parametrize("spec", [VECTORS, SPLIT, DOMAIN, COLOUR], ids=["vectors", "split", "domain", "colour"])
@pytest.mark.parametrize("name", ["er", "scale", "acl"])
def test_it_gives_the_logits_of_its_task(name: str, spec: InputSpec) -> None:
    learner = teach(registry.make(name, spec), tasks=2)
    x, _ = batch(spec, 5)
    for number, task in enumerate(learner.tasks):
        net = learner.predicting_net()
        with torch.no_grad():
            logits = net.for_task(number)(net.inputs(x))
        torch.testing.assert_close(logits, learner.predict(x, task), rtol=0, atol=1e-5)


def test_it_holds_copies_of_the_head_and_the_film_parameters() -> None:
    learner = teach(registry.make("scale", VECTORS), tasks=2)
    net = learner.predicting_net()
    alone = net.for_task(1)
    assert dict(alone.named_parameters())["head.weight"].shape == (3, net.heads.width)
    assert not [name for name, _ in alone.named_parameters() if name.startswith("generator")]
    x = net.inputs(batch(VECTORS, 5)[0])
    with torch.no_grad():
        before = alone(x)
        net.heads.weight.data.zero_()
        torch.testing.assert_close(alone(x), before, rtol=0, atol=0)
