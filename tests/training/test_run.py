"""Whole runs from a config: one by one and over processes, with the same results."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

import scale_cl
from scale_cl import results
from scale_cl.errors import ConfigError, Interrupted, OutputInUseError
from scale_cl.learners import Learner
from scale_cl.results import SeedResult
from scale_cl.streams import Stream
from scale_cl.training import Event, run, train
from scale_cl.training.checkpoint import UnusableCheckpointError
from scale_cl.training.config import Config, resolve
from scale_cl.training.events import Evaluated, Finished, Loaded, Restored, Started, Stepped, TaskStarted
from scale_cl.training.lanes import build_learner, build_stream
from scale_cl.training.run_directory import RunDirectory


def config(processes: int, learner: str = "scale") -> Config:
    options = {"stream.tasks": 2, "run.seeds": 2, "run.seed": 3, "run.batch_size": 60, "run.device": "cpu"}
    return resolve(stream="digits", learner=learner, options={**options, "run.processes": processes})


def deterministic(results: tuple[SeedResult, ...]) -> list[tuple[object, ...]]:
    return [(r.stream, r.learner, r.seed, r.tasks, r.matrix) for r in results]


def test_seeds_over_processes_have_the_results_of_one_after_the_other_and_hand_their_learners_over(
    tmp_path: Path,
) -> None:
    watched: list[Event] = []
    apart: list[Event] = []
    folders = [tmp_path / "one by one", tmp_path / "over processes"]
    for folder in folders:
        folder.mkdir()
    one_by_one = run(config(1), on_event=watched.append, on_trained=partial(note_tasks, folders[0]))
    over_processes = run(config(2), on_event=apart.append, on_trained=partial(note_tasks, folders[1]))
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["3 after 34 steps", "4 after 34 steps"]
    assert deterministic(one_by_one.seeds) == deterministic(over_processes.seeds)
    assert [result.seed for result in over_processes.seeds] == [3, 4]
    assert over_processes.seeds[0].config == config(2).as_dict()
    for told in (watched, apart):
        assert told[:2] == [Loaded(), Started("digits", "scale", (3, 4), 2, 34)]
        assert told[-1] == Finished()
        assert told.count(Loaded()) == told.count(Finished()) == 1
        assert [event.task for event in told if isinstance(event, TaskStarted)] == [0, 1]
        tested = {(event.seed, event.task): event.accuracies for event in told if isinstance(event, Evaluated)}
        assert tested == {(r.seed, k): r.matrix[k][: k + 1] for r in one_by_one.seeds for k in range(2)}
        steps = [event.steps for event in told if isinstance(event, Stepped)]
        assert steps == sorted(steps)
        assert steps[-1] == 34


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_without_a_directory_stops_when_asked(quick_processes: None, processes: int) -> None:
    told: list[Event] = []
    long = resolve(stream="digits", learner="er", options={"run.seeds": 3, "run.processes": processes})
    with pytest.raises(Interrupted, match="stopped as asked; nothing was kept"):
        run(long, on_event=told.append, stop=lambda: any(isinstance(event, Stepped) for event in told))
    assert Finished() not in told


def test_a_task_of_a_single_class_is_remarked_on_once(tmp_path: Path) -> None:
    for task, classes in (("first", ("cat",)), ("second", ("cat", "dog"))):
        for label in classes:
            (tmp_path / task / label).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / task / label / f"{number}.png")
    told: list[Event] = []
    options = {"run.seeds": 2, "run.processes": 1, "learner.backbone": "mlp"}
    run(resolve(stream=f"folder:{tmp_path}", learner="finetune", options=options), on_event=told.append)
    (loaded,) = [event for event in told if isinstance(event, Loaded)]
    (remark,) = loaded.remarks
    assert remark.startswith("task first has a single class, which its head always predicts")
    told.clear()
    options["stream.scenario"] = "class"
    run(resolve(stream=f"folder:{tmp_path}", learner="finetune", options=options), on_event=told.append)
    assert told[0] == Loaded()


def test_a_run_is_the_training_of_its_parts() -> None:
    wanted = config(1, learner="finetune")
    device = torch.device("cpu")
    by_hand = []
    for seed in wanted.seeds:
        stream = build_stream(wanted, seed, None)
        by_hand.append(train(build_learner(wanted, stream, seed, device), stream, batch_size=60))
    results = run(wanted).seeds
    assert [r.matrix for r in results] == [r.matrix for r in by_hand]
    assert results[0].matrix != results[1].matrix


def small(**options: object) -> Config:
    values = {"stream.tasks": 2, "run.batch_size": 60, "run.device": "cpu", "run.processes": 1}
    return resolve(stream="digits", learner="er", options={**values, **options})


def crash(event: Event) -> None:
    if event == Stepped(20):  # in the second task
        raise MemoryError


def test_what_is_no_config_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^config is a dict; make it by scale_cl.resolve"):
        run({"learner": {"name": "er"}}, tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_run_into_a_directory_leaves_the_result_that_it_returns(tmp_path: Path) -> None:
    result = scale_cl.run(small(), out=tmp_path / "o")
    assert results.read(tmp_path / "o") == result
    assert [seed.matrix for seed in result.seeds] == [seed.matrix for seed in run(small()).seeds]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["result.json", "seeds"]
    assert result.seconds_wall > result.seconds_load > 0
    with pytest.raises(OutputInUseError, match="holds a result already"):
        scale_cl.run(small(), out=tmp_path / "o")
    assert scale_cl.run(small(**{"run.seed": 5}), out=tmp_path / "o", force=True).seeds[0].seed == 5


def test_an_interrupted_run_continues_and_a_finished_one_is_returned(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        run(small(), out=tmp_path, on_event=crash)
    assert RunDirectory(tmp_path).request().config == small()
    with pytest.raises(OutputInUseError, match="holds a run that is not finished"):
        run(small(), out=tmp_path)
    told: list[Event] = []
    resumed = run(small(), out=tmp_path, resume=True, on_event=told.append)
    assert [event.steps for event in told if isinstance(event, Restored)] == [17]
    assert resumed.seeds[0].matrix == run(small()).seeds[0].matrix
    assert run(small(), out=tmp_path, resume=True, on_event=crash) == resumed
    with pytest.raises(OutputInUseError, match="holds the result of another run"):
        run(small(**{"learner.lr": 0.5}), out=tmp_path, resume=True)


def test_to_resume_where_nothing_is_starts_the_run(tmp_path: Path) -> None:
    assert run(small(), out=tmp_path / "o", resume=True).seeds[0].matrix == run(small()).seeds[0].matrix


def test_a_run_is_not_resumed_with_other_settings_unless_forced_to_start_again(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        run(small(), out=tmp_path, on_event=crash)
    other = small(**{"learner.lr": 0.5})
    with pytest.raises(UnusableCheckpointError, match="made with another config"):
        run(other, out=tmp_path, resume=True)
    assert RunDirectory(tmp_path).seeds == [0], "the state stays"
    assert run(other, out=tmp_path, resume=True, force=True).seeds[0].matrix == run(other).seeds[0].matrix


def test_a_failed_run_leaves_nothing_unless_it_can_be_continued(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        run(small(), out=tmp_path / "o", on_event=lambda event: crash(Stepped(20)))
    assert not (tmp_path / "o").exists()


def note_tasks(folder: Path, learner: Learner, stream: Stream) -> None:
    (folder / f"{stream.seed} after {learner.steps} steps").touch()


def test_the_settings_of_the_stream_say_what_arrives_and_when() -> None:
    options = {"stream.scenario": "class", "stream.class_order": "seed", "stream.train_share": 0.5}
    plain = resolve(stream="split-digits", learner="er", options=options)
    one, other = (build_stream(plain, seed, None) for seed in (1, 2))
    assert one.tasks[-1].classes != other.tasks[-1].classes
    assert sorted(one.tasks[-1].classes) == sorted(other.tasks[-1].classes)
    assert 640 <= sum(len(task.train) for task in one.tasks) <= 656
    mixed = resolve(stream="split-digits", options={**options, "stream.blur": 0.4, "stream.boundaries": "hidden"})
    made = build_stream(mixed, 1, None)
    assert sorted(torch.cat([t.train for t in made.tasks]).tolist()) == sorted(
        torch.cat([t.train for t in one.tasks]).tolist()
    )
    assert not made.spec.boundaries
    drifting = resolve(stream="digits", options={"stream.schedule": "gaussian", "stream.width": 0.3, "stream.tasks": 3})
    assert [len(build_stream(drifting, 0, None).origin(k).unique()) for k in range(3)] == [2, 3, 2]
