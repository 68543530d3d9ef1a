"""Every learner learns on a GPU what it learns on the CPU, recorded or not, as far as float32 allows.

Random draws differ between devices, so here nothing is left to chance: whatever is stored is replayed, and the noise of
a discriminator is a fixed pattern. Rates are small, as batch statistics of a few samples make all else chaotic. On the
CPU the comparison is with other arithmetic, images with channels first. The largest difference is printed; what is
asserted is a bound of some hundred times what other arithmetic gives on the CPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Compute, Joint, Learner, registry
from scale_cl.streams import InputSpec, TaskInfo
from scale_cl.training.config import RunSettings
from scale_cl.training.machine import prepare
from tests.training.devices import DEVICES, as_found, make, samples

SPECS = {"mlp": InputSpec((1, 8, 8), 255.0, "task"), "resnet": InputSpec((3, 32, 32), 255.0, "task")}
BOUNDS = {"mlp": 1e-3, "resnet": 2e-2}  # of logits, which are of the order of 1
LOOSER = {"ctn": 0.5}  # its first outer step sees one sample many times: batch norm divides by next to nothing
FURTHER = 20  # scores without a task add ten times the confidence of a head to its logits
STEPS, BATCH, CLASSES = 3, 8, 3  # as they come, while recorded, and replayed
BY_CHANCE = ("gdumb",)  # it shuffles what it trains on when a task ends
SMALL: dict[str, Any] = {
    "augment": "none",
    "replay_current": False,
    "lr": 0.002,
    "inner_lr": 0.005,
    "outer_lr": 0.005,
    "distillation": 1.0,
    "shared_steps": 2,
}
ON_THE_CPU = ("scale", "acl")  # of the ResNet, which takes its time there: the common network, and one of its own
pytestmark = pytest.mark.usefixtures("as_found")
__all__ = ["as_found"]


def fixed_noise(*size: Any, device: Any = None, dtype: Any = torch.float32, **_: Any) -> Tensor:
    """What stands for `torch.randn`: the same values on every device."""
    shape = torch.Size(size if isinstance(size[0], int) else size[0])
    return torch.arange(shape.numel(), device=device, dtype=torch.float32).sin().view(shape).to(dtype)


def taught(name: str, spec: InputSpec, device: str, *, capture: bool, channels_last: bool) -> Learner:
    """Two tasks of a few steps, in which every draw from the memory takes all there is."""
    how = Compute("fp32", capture=capture, channels_last=channels_last)
    learner = make(name, spec, device, how, memory=30, replay=100, candidates=100, **SMALL)
    for task in range(2):
        learner.begin_task(TaskInfo(str(task), CLASSES))
        for step in range(STEPS):
            x, y = (t.to(device) for t in samples(spec, BATCH, CLASSES, seed=10 * task + step))
            if isinstance(learner, Joint):
                learner.observe(x, y, torch.full_like(y, task))
            else:
                learner.observe(x, y)
        if capture and device == "cuda":
            assert learner.engine.step.recorded > 0, "steps were not recorded"
        learner.end_task()
    return learner


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("capture", [True, False], ids=["recorded", "eager"])
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("name", [name for name in registry.names() if name not in BY_CHANCE])
def test_a_learner_learns_on_a_device_what_it_learns_on_the_cpu(
    name: str, kind: str, capture: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu" and capture:
        pytest.skip("the CPU records nothing")
    if device == "cpu" and kind == "resnet" and name not in ON_THE_CPU:
        pytest.skip("slow on the CPU, where others have shown it")
    prepare(RunSettings(device=device, precision="fp32"))
    monkeypatch.setattr(torch, "randn", fixed_noise)
    spec = SPECS[kind]
    there = taught(name, spec, device, capture=capture, channels_last=device == "cpu")
    here = taught(name, spec, "cpu", capture=False, channels_last=False)
    x = samples(spec, 50, CLASSES, seed=99)[0]
    apart = 0.0
    for task in ("0", "1"):
        one, other = there.predict(x.to(device), task).cpu(), here.predict(x, task)
        assert bool(one.isfinite().all())
        apart = max(apart, float((one - other).abs().max()))
    if not here.engine.owned.memories:  # without a task, a memory would fit a calibration to what it stores
        for _ in range(3):  # as they come, while recorded, and replayed
            one, other = there.predict(x.to(device)).cpu(), here.predict(x)
            apart = max(apart, float((one - other).abs().max()) / FURTHER)
    print(f"{name}, {kind}, {device}, {'recorded' if capture else 'eager'}: logits differ by {apart:.1e} at most")
    assert apart <= (LOOSER.get(name, BOUNDS[kind]) if kind == "resnet" else BOUNDS[kind])
