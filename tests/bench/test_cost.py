"""The cost of a batch as it is counted, against closed forms; and the bytes that methods keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scale_cl.bench.cost import Cost, ImageCount, bytes_kept, cost_of
from scale_cl.learners import registry as learners
from scale_cl.learners.method_properties import parameters_in_use
from scale_cl.settings import build
from scale_cl.streams import InputSpec, TaskInfo

STEPS, BEFORE = 100, 5  # of a task of digits, and the tasks before the middle of its ten


def cost(name: str, stream: str = "digits", tasks: int | None = None, **settings: Any) -> Cost:
    return cost_of(name, build(learners.config_class(name), settings), stream, tasks=tasks)


CASES: dict[str, tuple[str, dict[str, Any], float, float]] = {
    "er": ("er", {}, 3 * (10 + 10), 3 * (10 + 10)),
    "er, at a rate that diverges": ("er", {"lr": 1e30}, 3 * (10 + 10), 3 * (10 + 10)),
    "er, one update of 32": ("er", {"updates": 1, "replay": 32}, 42, 42),
    "derpp": ("derpp", {}, 3 * (10 + 2 * 10), 3 * (10 + 2 * 10)),
    "derpp, logits of task end": ("derpp", {"logits_from": "task-end"}, 90 + 50 / STEPS, 90),
    "mir": ("mir", {"updates": 1}, 10 + 2 * 50 + 10, 20),
    "mir, one forward": ("mir", {"updates": 1, "forward": "joint"}, 10 + 2 * 50 + 20, 10 + 20),
    "agem": ("agem", {}, 3 * (10 + 64), 3 * (10 + 64)),
    "gem": ("gem", {}, 10 + BEFORE * 50, 10 + BEFORE * 50),
    # an inner step, an outer step in which only the generator is trained, and logits at the end of a task
    "scale": ("scale", {}, 2 * (10 + 64) + 50 / STEPS, 10 + 64),
    # the outer gradient returns through the outer forward and then through the backward of the inner step, where it
    # meets the generator: that acts behind the first layer, so the inner forward has no gradient of its own
    "scale, exactly": ("scale", {"second_order": True}, 2 * (10 + 64) + 50 / STEPS, 3 * (10 + 64)),
    "scale, exactly, two inner steps": (
        "scale",
        {"second_order": True, "inner_steps": 2},
        3 * (10 + 64) + 50 / STEPS,
        # the gradient of the second inner step is taken at the weights after the first: its forward returns one, too
        (2 + 1 + 3) * (10 + 64),
    ),
    "scale, averaged": ("scale", {"weight_average": 0.9, "consistency": 0.1}, 3 * 74 + 50 / STEPS, 74),
    "lwf": ("lwf", {}, 10 + 10, 10),  # the teacher has no gradient
    # anchors by two sets of weights, the step's backward and forward, through which the gradient goes; the optimisation
    # of anchors
    "hal": (
        "hal",
        {"forgetting_steps": 5, "anchor_steps": 6},
        20 + 2 * 10 + (5 * 10 + 2 * 6 * 10) / STEPS,
        20 + 2 * 10 + 20 + 20 + (5 * 10 + 2 * 6 * 10) / STEPS,
    ),
    "hal, first order": (
        "hal",
        {"second_order": False, "forgetting_steps": 5, "anchor_steps": 6},
        20 + 2 * 10 + (5 * 10 + 2 * 6 * 10) / STEPS,
        20 + 2 * 10 + (5 * 10 + 2 * 6 * 10) / STEPS,
    ),
    "acl": ("acl", {}, 5 * (10 + 10) + 10, 5 * (10 + 10)),  # shared and private; the shared one for the discriminator
    "den": ("den", {}, 10, 10),
    # once per task, two candidates in three passes over 30 stored samples, judged by 10, which are learnt at last
    "bocl": (
        "bocl",
        {"trials": 2, "memory": 40, "search_steps": 4},
        10 + (2 * (3 * 30 + 10) + 10) / STEPS,
        10 + (2 * 3 * 30 + 10) / STEPS,
    ),
    "joint": ("joint", {"epochs": 4}, 40, 40),
    "mas": ("mas", {}, 10 + 100 / STEPS, 10 + 100 / STEPS),  # one gradient per sample at the end of a task
}


@pytest.mark.parametrize("case", CASES)
def test_images_per_batch_are_those_of_the_closed_form(case: str) -> None:
    name, settings, forward, backward = CASES[case]
    found = cost(name, **settings)
    assert (found.forward, found.backward) == pytest.approx((forward, backward))
    assert found.images == pytest.approx(forward + 2 * backward)


def test_batch_norm_measured_on_the_memory_is_work_at_task_end() -> None:
    without, with_it = (cost("er", "scifar100", 2, updates=1, norm_on_memory=on) for on in (False, True))
    assert (without.forward, without.backward) == (20, 20)
    assert (with_it.forward, with_it.backward) == pytest.approx((20 + 2 * 64 / 250, 20))  # of 100 samples, 64 at once


def test_only_images_count_and_only_where_they_enter() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6), nn.Linear(6, 2))
    x = torch.zeros(5, 6)
    with ImageCount((2, 3)) as passed:
        net[0](x)
        net[0](x[:2]).sum().backward()
        with torch.no_grad():
            net[0](x[:1])
    net[0](x)
    assert (passed.forward, passed.backward) == (5 + 2 + 1, 2)


def kept(name: str, spec: InputSpec, classes: tuple[int, ...], **settings: Any) -> tuple[int, int, int, int]:
    return bytes_kept(name, build(learners.config_class(name), settings), spec, classes)


def test_bytes_are_those_of_what_is_kept() -> None:
    colour, grey = InputSpec((3, 32, 32), 255.0, "task"), InputSpec((1, 8, 8), 16.0, "domain")
    assert kept("er", colour, (5,) * 17) == (17 * 50 * (3072 + 16), 0, 0, 0)
    learner = learners.make("er", colour)
    for task in range(17):
        learner.begin_task(TaskInfo(f"task {task}", 5))
    assert kept("er", colour, (5,) * 17, weight_average=0.9)[3] == parameters_in_use(learner) * 4
    trunk, head, tasks = (64 + 1 + 256 + 1) * 256 * 4, 257 * 10 * 4, (10,) * 10
    assert kept("er", grey, tasks, memory=40, memory_budget="total")[0] == 40 * (64 + 16)
    assert kept("er", grey, tasks, memory=4, memory_budget="class")[0] == 4 * 10 * (64 + 16)
    assert kept("derpp", grey, tasks)[1] == 10 * 50 * 10 * 4
    assert kept("scale", grey, tasks)[1] == 50 * (10 * 10 + sum(range(2, 12))) * 4  # of classes and of tasks
    assert kept("independent", grey, tasks)[3] == 9 * trunk
    assert kept("lwf", grey, tasks) == (0, 0, 0, trunk + head)
    assert kept("si", grey, tasks)[2] % (trunk + head) == 0
    assert Cost(1, 2, 3, 4, 5, 6).bytes == 18
