"""Several runs at once: each has the result, the folder and the error that it has alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results
from scale_cl.errors import DivergenceError, ScaleClError
from scale_cl.results import RunResult
from scale_cl.training import Event, memory_check, run, run_side_by_side
from scale_cl.training.config import Config, resolve
from scale_cl.training.events import Restored, Started, Stepped
from scale_cl.training.lanes import build_stream
from scale_cl.training.run_directory import RunDirectory, RunRequest

PLAIN = {"run.device": "cpu", "run.processes": 1, "stream.tasks": 2}


def config(learner: str = "er", stream: str = "digits", **options: Any) -> Config:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return resolve(stream=stream, learner=learner, options={**PLAIN, **named})


def few(learner: str = "er", **options: Any) -> Config:
    """Two tasks of ten steps."""
    return config(learner, run__batch_size=100, **options)


def together(folder: Path, configs: list[Config], **keywords: Any) -> list[RunResult | ScaleClError]:
    asked = [(RunDirectory(folder / str(n)), RunRequest(c, None, ["run", str(n)])) for n, c in enumerate(configs)]
    return run_side_by_side(asked, **keywords)


def timeless(folder: Path) -> dict[str, Any]:
    """The content of all files of a run, without times."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = json.loads(path.read_text())
        content["environment"] = {k: v for k, v in content.get("environment", {}).items() if k != "date"}
        found[str(path.relative_to(folder))] = {k: v for k, v in content.items() if not k.startswith("seconds")}
    return found


def test_settings_class_orders_and_seeds_together_write_what_they_write_alone(tmp_path: Path) -> None:
    ten: dict[str, Any] = {"stream": "split-digits", "stream__train_share": 0.04}  # samples per task, in any order
    for number, configs in enumerate(
        (
            [few(learner__lr=0.03, run__seeds=2), few(learner__lr=0.1, learner__replay=5), few(run__seed=7)],
            [config("er", **ten, stream__class_order=order, run__seed=order) for order in (3, 4)],
        )
    ):
        here, told = tmp_path / str(number), list[Event]()
        made = together(here / "together", configs, on_event=told.append, environment={"experiment": "search"})
        assert [len(event.seeds) for event in told if isinstance(event, Started)] == [4 if number == 0 else 2]
        for n, c in enumerate(configs):
            run(c, here / "alone" / str(n), arguments=["run", str(n)], environment={"experiment": "search"})
            assert results.read(here / "together" / str(n)) == made[n]
        assert timeless(here / "together") == timeless(here / "alone")


def test_a_run_that_diverges_fails_as_it_does_alone_and_the_others_finish(tmp_path: Path) -> None:
    configs = [few(), few(learner__lr=1e30, run__seeds=2), few(learner__lr=0.03)]
    first, failed, last = together(tmp_path / "o", configs)
    with pytest.raises(DivergenceError) as alone:
        run(configs[1])
    assert (type(failed), str(failed)) == (DivergenceError, str(alone.value))
    for made, c in ((first, configs[0]), (last, configs[2])):
        assert isinstance(made, RunResult)
        assert [seed.matrix for seed in made.seeds] == [seed.matrix for seed in run(c).seeds]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["0", "2"]
    assert all(isinstance(one, DivergenceError) for one in together(tmp_path / "all", [configs[1]] * 2))


def crash(event: Event) -> None:
    if event == Stepped(15):
        raise MemoryError


def test_a_group_that_broke_off_goes_on_from_its_checkpoints_alone_or_in_another_group(tmp_path: Path) -> None:
    configs, told = [few(learner__lr=rate) for rate in (0.03, 0.1, 0.2)], list[Event]()
    straight = [run(c).seeds[0].matrix for c in configs]
    with pytest.raises(MemoryError):
        together(tmp_path, configs, on_event=crash)
    assert [RunDirectory(tmp_path / name).unfinished for name in "012"] == [True] * 3
    assert run(configs[0], tmp_path / "0", resume=True).seeds[0].matrix == straight[0]
    rest = [(RunDirectory(tmp_path / str(n)), RunRequest(c)) for n, c in enumerate([*configs, few(run__seed=5)]) if n]
    made = run_side_by_side(rest, on_event=told.append)
    assert [event.steps for event in told if isinstance(event, Restored)] == [10, 10]
    assert [one.seeds[0].matrix for one in made[:2] if isinstance(one, RunResult)] == straight[1:]
    assert all(RunDirectory(folder).finished for folder in tmp_path.iterdir())


def test_a_run_that_is_ahead_finishes_though_all_others_diverge(tmp_path: Path) -> None:
    ahead = few()
    with pytest.raises(MemoryError):
        run(ahead, tmp_path / "1", on_event=crash)
    failed, made = together(tmp_path, [few(learner__lr=1e30), ahead])
    assert isinstance(failed, DivergenceError)
    assert isinstance(made, RunResult)
    assert made.seeds[0].matrix == run(ahead).seeds[0].matrix


def test_what_does_not_fit_or_cannot_be_resumed_is_trained_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, told = [few(run__seed=seed) for seed in range(4)], list[Event]()
    with pytest.raises(MemoryError):
        run(few(run__seed=3, learner__lr=0.5), tmp_path / "3", on_event=crash)  # leaves checkpoints of other settings
    needed = memory_check.needed(configs[0], build_stream(configs[0], 0, None), on_gpu=False, learners=2)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 2 * sum(needed.values()))
    made = together(tmp_path, configs, on_event=told.append)
    assert [event.seeds for event in told if isinstance(event, Started)] == [(0, 1), (2,), (3,)]
    assert [one.seeds[0].matrix for one in made if isinstance(one, RunResult)] == [
        run(c).seeds[0].matrix for c in configs
    ]
