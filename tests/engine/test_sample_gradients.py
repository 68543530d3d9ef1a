"""Gradients per sample are those of each sample alone, and leave the network as it was."""

from __future__ import annotations

import pytest
import torch

from scale_cl.learners import Er, ErConfig
from scale_cl.losses import cross_entropy
from scale_cl.streams import InputSpec
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, teach


@pytest.mark.parametrize("spec", [DOMAIN, SPLIT, COLOUR], ids=["one head", "a head per task", "resnet"])
def test_each_is_the_gradient_of_its_sample_alone_in_evaluation_mode(spec: InputSpec) -> None:
    learner = Er(spec, ErConfig(memory=4))
    teach(learner, tasks=2)
    network, before = learner.network, learner.state_dict()["tensors"]
    samples = learner.memory.samples(torch.cat([learner.memory.rows_of(task) for task in range(2)]))
    assert not samples.replayed, "no batch comes before them"
    together = network.sample_gradients(samples, cross_entropy)
    learner.net.eval()
    for i in range(len(samples)):
        one = samples[i : i + 1]
        alone = network.base.gradient(cross_entropy(learner.net(one.x, one.task).logits, one.y))
        for g, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(g[i], expected, rtol=1e-3, atol=1e-5)
    learner.net.train()
    after = learner.state_dict()["tensors"]
    assert all(torch.equal(after[name], value) for name, value in before.items() if name != "rng")
