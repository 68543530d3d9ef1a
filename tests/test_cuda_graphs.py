"""Recording steps: on the CPU a call is a call; on a GPU a replay is what an eager call would have been."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scale_cl import cuda_graphs
from scale_cl.cuda_graphs import RecordedFunction
from scale_cl.learners import Compute, Scale, ScaleConfig
from scale_cl.streams import InputSpec, TaskInfo

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Counter:
    """A function with a state of its own and random draws, as a step has."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.total = torch.zeros(3, device=self.device)
        self.calls = 0

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        drawn = torch.rand(3, generator=self.generator, device=self.device)
        self.total += x * drawn
        return {"drawn": drawn, "total": self.total.clone()}

    def captured(self, enabled: bool = True) -> RecordedFunction:
        return RecordedFunction(self, device=self.device, generator=self.generator, enabled=enabled)


def test_on_the_cpu_every_call_is_made_and_nothing_is_recorded() -> None:
    counter = Counter("cpu")
    captured = counter.captured()
    outputs = [captured("key", torch.ones(3))["total"] for _ in range(4)]
    assert counter.calls == 4
    assert captured.recorded == 0
    assert torch.equal(outputs[-1], counter.total)
    assert not torch.equal(outputs[0], outputs[1])
    captured.drop()
    assert captured.recorded == 0


def test_on_the_cpu_errors_of_the_function_come_through() -> None:
    def fails(x: Tensor) -> dict[str, Tensor]:
        raise ValueError("as it should")

    captured = RecordedFunction(fails, device=torch.device("cpu"), generator=torch.Generator(), enabled=True)
    with pytest.raises(ValueError, match="as it should"):
        captured("key", torch.ones(1))


@needs_gpu
def test_a_replay_draws_and_computes_what_an_eager_call_does() -> None:
    eager, recorded = Counter("cuda"), Counter("cuda")
    plain, captured = eager.captured(enabled=False), recorded.captured()
    for step in range(6):
        x = torch.full((3,), float(step), device="cuda")
        one, other = plain("key", x), captured("key", x)
        assert torch.equal(one["drawn"], other["drawn"])
        assert torch.equal(one["total"], other["total"])
    assert (eager.calls, recorded.calls) == (6, 2)
    assert captured.recorded == 1


@needs_gpu
def test_each_key_has_a_recording_and_dropping_them_starts_anew() -> None:
    counter = Counter("cuda")
    captured = counter.captured()
    for key in ("a", "b"):
        for _ in range(3):
            captured(key, torch.ones(3, device="cuda"))
    assert captured.recorded == 2
    captured.drop()
    assert captured.recorded == 0
    expected = counter.total + 1
    captured("a", torch.zeros(3, device="cuda"))
    assert torch.equal(counter.total + 1, expected)


@needs_gpu
def test_recordings_that_are_dropped_leave_their_memory_to_the_next_ones() -> None:
    def scratch(x: Tensor) -> dict[str, Tensor]:
        return {"sum": (x.unsqueeze(1) * torch.ones(1, 1000, device="cuda")).sum()}

    captured = RecordedFunction(scratch, device=torch.device("cuda"), generator=torch.Generator("cuda"), enabled=True)
    reserved = []
    for _ in range(4):
        for _ in range(3):
            captured("key", torch.ones(50_000, device="cuda"))  # 200 MB in between
        assert captured.recorded == 1
        reserved.append(torch.cuda.memory_reserved())
        captured.drop()
    assert reserved[1:] == reserved[:-1]


@needs_gpu
def test_calls_whose_conditions_alternate_are_recorded_too() -> None:
    counter = Counter("cuda")
    captured = counter.captured()
    for _ in range(4):
        for key in ("a", "b"):
            captured(key, torch.ones(3, device="cuda"))
    assert (captured.recorded, counter.calls) == (2, 4)


@needs_gpu
def test_what_cannot_be_recorded_still_runs_and_says_so() -> None:
    total = torch.zeros(1, device="cuda")

    def looks(x: Tensor) -> dict[str, Tensor]:
        return {"sum": total + x.sum().item()}  # the host waits: not possible inside a graph

    captured = RecordedFunction(looks, device=total.device, generator=torch.Generator("cuda"), enabled=True)
    captured("key", torch.ones(2, device="cuda"))
    with pytest.warns(RuntimeWarning, match="CUDA graph capture failed; running eagerly"):
        assert float(captured("key", torch.ones(2, device="cuda"))["sum"]) == 2
    assert float(captured("key", torch.ones(3, device="cuda"))["sum"]) == 3


@needs_gpu
def test_a_recording_that_fails_for_want_of_memory_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "_AGAIN", 3)
    counter, is_full = Counter("cuda"), True

    def greedy(x: Tensor) -> dict[str, Tensor]:
        outputs = counter(x)
        if is_full and torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        return outputs

    captured = RecordedFunction(greedy, device=counter.device, generator=counter.generator, enabled=True)
    other = Counter("cuda")
    plain = other.captured(enabled=False)
    x = torch.ones(3, device="cuda")
    assert torch.equal(captured("key", x)["total"], plain("key", x)["total"])
    with pytest.warns(RuntimeWarning, match="memory is full; the next attempt is made after 3 steps"):
        assert torch.equal(captured("key", x)["total"], plain("key", x)["total"])
    is_full = False
    for step in range(2, 8):
        assert torch.equal(captured("key", x)["total"], plain("key", x)["total"])
        assert captured.recorded == (step >= 4), step


@needs_gpu
@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 17, 17)], ids=["mlp", "resnet"])
@pytest.mark.parametrize(
    "values",
    [{}, {"weight_average": 0.9, "memory_policy": "ring"}, {"ce": "added", "memory_policy": "class-ring"}],
    ids=["as the paper", "average and ring", "class-ring"],
)
def test_a_learner_learns_the_same_with_and_without_graphs(shape: tuple[int, ...], values: dict[str, object]) -> None:
    spec = InputSpec(shape, 255.0, "task")
    torch.backends.cudnn.deterministic = True
    learners = []
    for capture in (True, False):
        config = ScaleConfig(memory=8, replay=12, **values)  # type: ignore[arg-type]
        learner = Scale(spec, config, device="cuda", compute=Compute("fp32", capture=capture))
        data = torch.Generator().manual_seed(0)
        for task, classes in (("a", 3), ("b", 3), ("c", 2), ("a", 3)):
            learner.begin_task(TaskInfo(task, classes))
            for n in (5, 5, 5, 5, 2):
                x = torch.randint(0, 256, (n, *shape), generator=data, dtype=torch.uint8)
                learner.observe(x.cuda(), torch.randint(0, classes, (n,), generator=data).cuda())
        learner.end_task()
        learners.append(learner)
    assert learners[0].memory.seen == learners[1].memory.seen
    assert torch.equal(learners[0].memory.x, learners[1].memory.x)
    x = torch.randint(0, 256, (6, *shape), dtype=torch.uint8).cuda()
    for task in ("a", "b", "c"):
        torch.testing.assert_close(learners[0].predict(x, task), learners[1].predict(x, task), rtol=2e-3, atol=2e-3)


@needs_gpu
def test_what_is_done_when_a_task_ends_is_recorded_once_and_comes_out_the_same() -> None:
    spec = InputSpec((3, 17, 17), 255.0, "task")
    learners = []
    for capture in (True, False):
        learner = Scale(spec, ScaleConfig(memory=64), device="cuda", compute=Compute("fp32", capture=capture))
        data = torch.Generator().manual_seed(0)
        for task in range(4):
            learner.begin_task(TaskInfo(f"task {task}", 3))
            x = torch.randint(0, 256, (64, *spec.shape), generator=data, dtype=torch.uint8)
            learner.observe(x.cuda(), torch.randint(0, 3, (64,), generator=data).cuda())
            learner.end_task()
        learners.append(learner)
    recorded, eager = learners
    for learner, count in ((recorded, 1), (eager, 0)):
        ((_, measurement),) = learner.engine.measurements
        assert (measurement.recorded, learner.to_store.recorded) == (count, count)
    one, other = (learner.state_dict()["tensors"] for learner in learners)
    for name in (n for n in one if "running" in n or n in ("memory.class.flat", "memory.task.flat")):
        torch.testing.assert_close(one[name], other[name], rtol=2e-3, atol=2e-3, msg=name)
