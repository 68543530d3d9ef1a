"""A run that cannot fit is refused before it takes the memory; what will be taken is known beforehand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.learners import registry
from scale_cl.streams import InputSpec, Stream, keeping
from scale_cl.training import memory_check, train
from scale_cl.training.config import resolve
from scale_cl.training.lanes import build_learner
from tests.learners.representatives import representatives
from tests.learners.tiny import is_mlp, quick
from tests.training.allocations import peak_bytes
from tests.training.small_streams import colours, few_digits

CPU = torch.device("cpu")
FACTOR = 3.5  # how much more than is really taken may be foreseen; never less
STREAMS: dict[str, Callable[[], Stream]] = {
    "mlp": lambda: few_digits(tasks=3, train=50),  # as many as the memory keeps
    "resnet": lambda: colours(tasks=2, train=50),
}


FEW = [name if name in representatives() else pytest.param(name, marks=pytest.mark.soak) for name in registry.names()]


@pytest.mark.parametrize("name", registry.names())
def test_what_a_learner_takes_is_foreseen_from_above_within_a_factor(name: str) -> None:
    check_foreseen(name, "mlp")


@pytest.mark.parametrize("name", FEW)
def test_what_a_learner_takes_on_a_resnet_is_foreseen_likewise(name: str) -> None:
    check_foreseen(name, "resnet")


def check_foreseen(name: str, kind: str) -> None:
    few = {f"learner.{key}": value for key, value in quick(name).items() if key != "width"}
    stream, config = STREAMS[kind](), resolve(learner=name, options={"run.batch_size": 25, **few})
    foreseen = memory_check.needed(config, stream, on_gpu=False, learners=1)
    taken = peak_bytes(lambda: train(build_learner(config, stream, 0, CPU), stream, batch_size=25))
    ratio = sum(foreseen.values()) / taken
    print(f"{name}, {kind}: {ratio:.2f}, taken {memory_check.words(taken)}, foreseen {foreseen}")
    assert 1 <= ratio <= FACTOR


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("scale", {"second_order": True, "inner_steps": 2}),
        ("scale", {"inner_steps": 3, "outer_steps": 2, "memory": 200}),
        ("er", {"weight_average": 0.9, "memory": 500, "replay": 100, "updates": 5}),
    ],
)
def test_settings_that_take_more_are_foreseen_as_well(name: str, values: dict[str, Any]) -> None:
    stream = few_digits(tasks=3, train=120)
    config = resolve(learner=name, options={"run.batch_size": 40, **{f"learner.{k}": v for k, v in values.items()}})
    foreseen = memory_check.needed(config, stream, on_gpu=False, learners=1)
    taken = peak_bytes(lambda: train(build_learner(config, stream, 0, CPU), stream, batch_size=40))
    assert 1 <= sum(foreseen.values()) / taken <= FACTOR


DECLARING = '''
"""Plain SGD that declares more and more."""

from dataclasses import dataclass

import torch

from scale_cl.learners import Learner, LearnerConfig
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class Config(LearnerConfig):
    """Settings."""

    slots: int = setting(2000, "samples in total", low=1)


class Plain(Learner):
    """Plain SGD."""

    config_class = Config

    def update(self, batch):
        samples = self.engine.samples(batch)
        self.network.base.descend(cross_entropy(self.network(samples).logits, samples.y), 0.01)


class Remembering(Plain):
    """A memory whose size is a setting of another name than ours."""

    def build(self, engine):
        super().build(engine)
        self.buffer = engine.memory("buffer", self.config.slots, budget="total")

    def update(self, batch):
        super().update(batch)
        self.buffer.write(batch)


class Taught(Plain):
    """A frozen copy of the network."""

    def build(self, engine):
        super().build(engine)
        self.teacher = engine.teacher("teacher")

    def task_ended(self, task):
        self.teacher.take(self.network.module)


class Counting(Plain):
    """A large tensor."""

    changes = "step"

    def build(self, engine):
        super().build(engine)
        self.counts = engine.tensor("counts", torch.zeros(2**20), changes=self.changes)


class CountingTasks(Counting):
    """One that changes only per task."""

    changes = "task"
'''


@pytest.mark.parametrize(
    ("name", "part", "more"),
    [
        ("Remembering", "memory", 2000 * 64),
        ("Taught", "copies", 4 * 64 * 256),  # its first layer
        ("Counting", "copies", 2 * 4 * 2**20),  # and the guard's copy
        ("CountingTasks", "copies", 4 * 2**20),
    ],
)
def test_what_a_method_from_outside_declares_is_foreseen(name: str, part: str, more: int, tmp_path: Path) -> None:
    (tmp_path / "declaring.py").write_text(DECLARING)
    stream = few_digits(tasks=3, train=50)
    plain, config = (resolve(learner=f"{tmp_path / 'declaring.py'}:{kind}") for kind in ("Plain", name))
    less, foreseen = (memory_check.needed(one, stream, on_gpu=False, learners=1) for one in (plain, config))
    assert foreseen[part] - less[part] >= more
    taken = peak_bytes(lambda: train(build_learner(config, stream, 0, CPU), stream, batch_size=10))
    assert 1 <= sum(foreseen.values()) / taken <= FACTOR


def test_growth_beyond_what_heads_have_room_for_is_foreseen() -> None:
    stream = few_digits(tasks=34, train=10)
    config = resolve(learner="er", options={"learner.memory": 10})
    foreseen = memory_check.needed(config, stream, on_gpu=False, learners=1)
    taken = peak_bytes(lambda: train(build_learner(config, stream, 0, CPU), stream, batch_size=10))
    assert 1 <= sum(foreseen.values()) / taken <= FACTOR


def foreseen_for(name: str, tasks: int, shape: tuple[int, ...] = (1, 8, 8)) -> memory_check.Footprint:
    work = memory_check.Work(InputSpec(shape, 255.0, "task"), (5,) * tasks, 10, 100, on_gpu=False)
    return memory_check.footprint(name, resolve(learner=name).learner, work)


@pytest.mark.parametrize("name", FEW)
def test_more_tasks_never_take_less(name: str) -> None:
    sizes = [sum(vars(foreseen_for(name, tasks)).values()) for tasks in (1, 5, 33, 64, 65, 300)]
    assert sizes == sorted(sizes)


def test_parts_that_a_method_keeps_a_task_grow_with_the_tasks() -> None:
    few, many = foreseen_for("gem", 5), foreseen_for("gem", 20)
    parameters = sum(p.nbytes for p in _new("gem").net.base_parameters().values())
    assert many.gradients - few.gradients >= 15 * parameters, "a gradient of each finished task"
    few, many = foreseen_for("acl", 4), foreseen_for("acl", 16)
    assert many.model - few.model >= 12 * 4 * 256 * 64, "a private layer a task"


def _new(name: str) -> Any:
    return registry.make(name, InputSpec((1, 8, 8), 255.0, "task"))


def test_the_model_is_counted_and_not_made() -> None:
    taken = peak_bytes(lambda: foreseen_for("acl", 7, (3, 2000, 2000)))
    assert foreseen_for("acl", 7, (3, 2000, 2000)).evaluation > 2**34
    assert taken < 2**20


def test_nothing_heavy_is_loaded_to_count_a_model() -> None:
    code = (
        "import sys\nfrom scale_cl.learners import registry\nfrom scale_cl.streams import InputSpec\n"
        "from scale_cl.training.memory_check import Work, footprint\n"
        "for name in registry.names():\n    for shape in ((1, 8, 8), (3, 8, 8)):\n"
        "        work = Work(InputSpec(shape, 255.0, 'task'), (2, 3), 10, 100, False)\n"
        "        footprint(name, registry.config_class(name)(), work)\n"
        "print([m for m in sys.modules if m in ('sympy', 'torch._dynamo')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_the_parameters_foreseen_are_those_that_a_learner_has() -> None:
    for name in registry.names():
        stream = few_digits(tasks=3, train=10)
        learner = build_learner(resolve(learner=name), stream, 0, CPU)
        for task in stream.tasks:
            learner.begin_task(task.info)
        real = sum(t.nbytes for t in learner.engine.owned.module_tensors())
        work = memory_check.work_of(resolve(learner=name), stream, on_gpu=False)
        foreseen = memory_check.footprint(name, learner.config, work).model
        if is_mlp(name):  # units that a task does not use are dropped when it ends
            assert foreseen >= real, name
        else:
            assert abs(foreseen - real) <= 0.01 * real + 5000, name


def test_a_memory_larger_than_the_machine_is_refused_with_advice(command: Callable[..., Any]) -> None:
    for slots in (10**11, 10**18):
        refused = command("run", "--memory", str(slots), "-q", "--out", "o")
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert "1 learner on digits need about " in refused.err
        assert "TiB (memory " in refused.err
        assert "take fewer memory slots (learner.memory)" in refused.err
        assert not Path("o").exists()


def refusal(monkeypatch: pytest.MonkeyPatch, config: Any, stream: Stream, free: int, **how: Any) -> str:
    monkeypatch.setattr(memory_check, "free_bytes", lambda device: free)
    with pytest.raises(ConfigError) as caught:
        memory_check.check_fits(config, stream, CPU, **{"learners": 1, **how})
    return str(caught.value)


@pytest.mark.parametrize("name", FEW)
def test_too_small_a_budget_is_refused_with_the_parts_before_anything_large_is_allocated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, config = colours(), resolve(learner=name)
    memory_check.footprint.cache_clear()
    said: list[str] = []
    taken = peak_bytes(lambda: said.append(refusal(monkeypatch, config, stream, 4 * 2**20)))
    assert "1 learner on colours need about " in said[0]
    assert "MiB" in said[0]
    assert "but cpu has 4.0 MiB free; take " in said[0]
    for part in ("model", "copies"):
        assert f"{part} " in said[0]
    assert taken < 2**18
    total = sum(memory_check.needed(config, stream, on_gpu=False, learners=1).values())
    monkeypatch.setattr(memory_check, "free_bytes", lambda device: total)
    memory_check.check_fits(config, stream, CPU, learners=1)


def test_advice_goes_by_what_takes_most(monkeypatch: pytest.MonkeyPatch) -> None:
    few = few_digits()
    assert "take fewer memory slots (learner.memory)" in refusal(
        monkeypatch, resolve(options={"learner.memory": 10**6}), few, 2**20
    )
    large = few_digits(train=1000)
    wide = resolve(options={"run.batch_size": 1000, "learner.replay": 1000, "learner.memory": 1000})
    assert "take smaller batches (run.batch_size, learner.replay)" in refusal(monkeypatch, wide, large, 2**23)
    several = refusal(monkeypatch, resolve(), few, 2**20, learners=3, apart=True)
    assert "3 learners on few need about" in several
    assert "processes 600.0 MiB" in several
    assert several.endswith("take fewer processes (run.processes)")
    assert "fewer tasks (stream.tasks)" in refusal(monkeypatch, resolve(learner="acl"), few_digits(tasks=20), 2**22)
    columns = refusal(monkeypatch, resolve(learner="pnn"), few_digits(tasks=20), 2**22)
    assert columns.endswith("take fewer tasks (stream.tasks) or narrower columns (learner.width)")
    units = refusal(monkeypatch, resolve(learner="bocl", options={"learner.units": 30000}), few, 2**30)
    assert units.endswith("take another backbone (learner.backbone) or fewer new units (learner.units)")
    clusters = refusal(monkeypatch, resolve(learner="adcn", options={"learner.max_clusters": 10**7}), few, 2**30)
    assert clusters.endswith("take another backbone (learner.backbone) or fewer clusters (learner.max_clusters)")


def test_on_a_gpu_the_stream_lies_there_too_and_recordings_keep_their_room() -> None:
    stream, config = few_digits(), resolve()
    here, there = (memory_check.needed(config, stream, on_gpu=on, learners=1) for on in (False, True))
    held = stream.arrays
    assert (here["stream"], there["stream"]) == (
        0,
        sum(t.nbytes for t in (held.x_train, held.y_train, held.x_test, held.y_test)),
    )
    eager = replace(config, run=replace(config.run, capture=False))
    without = memory_check.needed(eager, stream, on_gpu=True, learners=1)
    assert sum(there.values()) == sum(without.values()) + there["evaluation"]
    three = memory_check.needed(config, stream, on_gpu=True, learners=3)
    assert three["memory"] == 3 * there["memory"]
    assert three["stream"] == there["stream"]


HUGE = {"learner.memory": 10**12}


def test_what_fits_passes_and_what_nobody_knows_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = few_digits()
    memory_check.check_fits(resolve(), stream, CPU, learners=1)
    with pytest.raises(ConfigError):
        memory_check.check_fits(resolve(options=HUGE), stream, CPU, learners=1)
    monkeypatch.setattr(memory_check, "free_bytes", lambda device: None)
    memory_check.check_fits(resolve(options=HUGE), stream, CPU, learners=1)


def test_a_learner_that_cannot_be_counted_is_not_refused_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def fails(*_: object) -> None:
        counted.append(True)
        raise RuntimeError

    monkeypatch.setattr(memory_check, "footprint", fails)
    memory_check.check_fits(resolve(), few_digits(), CPU, learners=1)
    assert counted, "it was tried"


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    assert keeping._left_in_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert keeping._left_in_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("5000\n")
    assert keeping._left_in_group(tmp_path) == 4000


def test_sizes_are_said_in_words() -> None:
    assert [memory_check.words(n) for n in (5, 2048, 3 * 2**29)] == ["5 bytes", "2.0 KiB", "1.5 GiB"]
