"""Fine-tuning is plain SGD on the batch."""

from __future__ import annotations

import torch

from scale_cl.learners import Finetune, FinetuneConfig
from scale_cl.streams import TaskInfo
from tests.learners.tiny import COLOUR, DOMAIN, batch


def test_a_step_is_the_gradient_of_the_mean_cross_entropy() -> None:
    learner = Finetune(DOMAIN, FinetuneConfig(lr=0.1, updates=2))
    learner.net.double()
    learner.begin_task(TaskInfo("a", 3))
    names = ("backbone.layers.0.weight", "backbone.layers.0.bias", "backbone.layers.1.weight", "backbone.layers.1.bias")
    own = [learner.net.base_parameters()[n].detach().clone() for n in names]
    own += [learner.net.heads.weight.data[0].detach().clone(), learner.net.heads.bias.data[0].detach().clone()]
    for seed in range(3):
        x, y = batch(DOMAIN, 5, seed=seed)
        learner.observe(x, y)
        for _ in range(2):
            own = [p.requires_grad_() for p in own]
            h = (x.double().flatten(1) / 255 @ own[0].T + own[1]).clamp(min=0)
            h = (h @ own[2].T + own[3]).clamp(min=0)
            log_p = (h @ own[4].T + own[5]).log_softmax(1)
            gradients = torch.autograd.grad(-log_p[range(5), y].mean(), own)
            own = [(p - 0.1 * g).detach() for p, g in zip(own, gradients, strict=True)]
        for n, p in zip(names, own, strict=False):
            torch.testing.assert_close(learner.net.base_parameters()[n].detach(), p, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(learner.net.heads.weight.data[0].detach(), own[4], rtol=1e-9, atol=1e-12)


def test_norm_momentum_is_the_share_of_a_batch_in_the_running_statistics_and_no_more() -> None:
    slow, fast = (Finetune(COLOUR, FinetuneConfig(norm_momentum=share), seed=3) for share in (0.1, 0.4))
    for learner in (slow, fast):
        learner.begin_task(TaskInfo("first", 3))
        learner.observe(*batch(COLOUR, 5))
    states = [learner.net.state_dict() for learner in (slow, fast)]
    means = [name for name in states[0] if name.endswith("running_mean")]
    assert means
    for name, value in states[0].items():
        if "running" not in name:
            torch.testing.assert_close(states[1][name], value, rtol=0, atol=0)
    for name in means:  # they start at zero
        torch.testing.assert_close(states[1][name], 4 * states[0][name])
