"""Going on from a checkpoint: the same bits as without a stop, for every learner, wherever the stop was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scale_cl.errors import CheckpointError, Interrupted
from scale_cl.learners import Compute, Learner, registry
from scale_cl.settings import as_dict
from scale_cl.streams import Stream
from scale_cl.training import Event, checkpoint, memory_editing, train, train_many
from scale_cl.training.checkpoint import found
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.events import Stepped
from scale_cl.training.learnt_streams import fingerprint
from scale_cl.training.run_directory import RunDirectory
from tests.learners.sameness import differences
from tests.learners.tiny import quick
from tests.training.small_streams import colours, few_digits


class Crash(Exception):
    pass


class CrashAt:
    """Ends the run after so many steps, as a power cut would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, event: Event) -> None:
        if event == Stepped(self.step):
            raise Crash


def make(name: str, stream: Stream, seed: int = 0, **values: Any) -> Learner:
    settings = {**registry.preset_settings(name, "digits"), **quick(name), **values}
    if "memory" in registry.config_class(name).__dataclass_fields__:
        settings = {"memory": 10, **settings}
    compute = Compute(precision="fp32", capture=False)
    return registry.make(name, stream.spec, registry.config_class(name)(**settings), seed=seed, compute=compute)


def check_resumed(name: str, stream: Stream, folder: Path, *stops: tuple[int, int, str], **values: Any) -> None:
    """Stopped and resumed several times. A stop: at which step, how often the state was saved, where it was last."""
    straight = make(name, stream, **values)
    wanted = train(straight, stream)
    for number, (crash, every, last) in enumerate(stops):
        saving = Checkpointer(folder, every=every, resume=number > 0)
        with pytest.raises(Crash):
            train(make(name, stream, **values), stream, on_event=CrashAt(crash), checkpointer=saving)
        assert found(RunDirectory(folder).checkpoints_of(0))[0].stem == last
    resumed = make(name, stream, **values)
    result = train(resumed, stream, checkpointer=Checkpointer(folder, resume=True))
    assert result.matrix == wanted.matrix
    assert differences(straight, resumed) == []


@pytest.mark.parametrize("name", registry.names())
def test_a_run_resumed_from_a_tasks_end_and_from_inside_a_task_has_the_bits_of_one_that_was_never_stopped(
    name: str, tmp_path: Path
) -> None:
    together = name == "joint"  # all its tasks are one
    stops = [(3, 2, "at-00000-00000002")] if together else [(6, 0, "at-00001-00000000")]
    stops += [(7, 2, "at-00000-00000006" if together else "at-00001-00000002")]
    check_resumed(name, few_digits(train=40), tmp_path, *stops)


@pytest.mark.parametrize("name", ["scale", "ctn", "acl"])
def test_so_has_the_resnet(name: str, tmp_path: Path) -> None:
    check_resumed(name, colours(train=20), tmp_path, (4, 1, "at-00001-00000001"))


@pytest.mark.parametrize("name", ["joint", "acl"])
def test_so_have_learners_of_several_epochs(name: str, tmp_path: Path) -> None:
    places = ["00000-00000007", "00000-00000007", "00001-00000002"]
    if name == "joint":
        places = ["00000-00000007", "00000-00000007", "00000-00000014"]
    stops = zip((10, 12, 20), places, strict=True)  # in the second epoch, at the end of a task, in the next task
    check_resumed(name, few_digits(tasks=2), tmp_path, *((crash, 7, f"at-{at}") for crash, at in stops), epochs=2)


def test_seeds_side_by_side_may_have_stopped_at_different_places(tmp_path: Path) -> None:
    streams = [few_digits(seed) for seed in range(3)]
    straight = [make("scale", s, s.seed) for s in streams]
    wanted = train_many(straight, streams)
    with pytest.raises(Crash):
        train_many(
            [make("scale", s, s.seed) for s in streams],
            streams,
            on_event=CrashAt(11),
            checkpointer=Checkpointer(tmp_path),
        )
    again = [make("scale", s, s.seed) for s in streams[1:2]]
    train_many(again, streams[1:2], checkpointer=Checkpointer(tmp_path, resume=True))  # one of them is finished now
    for path in RunDirectory(tmp_path).checkpoints_of(2).iterdir():
        path.unlink()  # and one at the start
    resumed = [make("scale", s, s.seed) for s in streams]
    results = train_many(resumed, streams, checkpointer=Checkpointer(tmp_path, resume=True))
    assert [r.matrix for r in results] == [r.matrix for r in wanted]
    assert [differences(a, b) for a, b in zip(straight, resumed, strict=True)] == [[], [], []]


def test_at_most_as_many_steps_are_repeated_as_lie_between_checkpoints(tmp_path: Path) -> None:
    stream = few_digits()
    for crash in (3, 4, 8, 11, 17):
        folder = tmp_path / str(crash)
        with pytest.raises(Crash):
            train(make("finetune", stream), stream, on_event=CrashAt(crash), checkpointer=Checkpointer(folder, every=3))
        newest = found(RunDirectory(folder).checkpoints_of(0))
        done = 0
        if newest:
            stage, step = map(int, newest[0].stem.split("-")[1:])
            done = 6 * stage + step
        assert crash - done <= 3


def test_the_last_few_are_kept_and_by_time_there_is_one_a_step(tmp_path: Path) -> None:
    stream = few_digits()
    with pytest.raises(Crash):
        train(
            make("er", stream), stream, on_event=CrashAt(11), checkpointer=Checkpointer(tmp_path, seconds=1e-9, kept=3)
        )
    names = [p.stem for p in found(RunDirectory(tmp_path).checkpoints_of(0))]
    assert names == ["at-00001-00000004", "at-00001-00000003", "at-00001-00000002"]


def test_being_asked_to_stop_ends_the_step_and_saves(tmp_path: Path) -> None:
    stream = few_digits()
    asked: list[int] = []

    def ask(event: Event) -> None:
        if event == Stepped(8):
            asked.append(8)

    with pytest.raises(Interrupted, match=f"scale-cl resume {tmp_path}"):
        train(make("er", stream), stream, on_event=ask, checkpointer=Checkpointer(tmp_path, stop=lambda: bool(asked)))
    assert found(RunDirectory(tmp_path).checkpoints_of(0))[0].stem == "at-00001-00000002"
    result = train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path, resume=True))
    assert result.matrix == train(make("er", stream), stream).matrix


def stopped(folder: Path, stream: Stream, name: str = "er") -> list[Path]:
    with pytest.raises(Crash):
        train(make(name, stream), stream, on_event=CrashAt(13), checkpointer=Checkpointer(folder, every=5))
    return found(RunDirectory(folder).checkpoints_of(0))


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = few_digits()
    newest, _ = stopped(tmp_path, stream)
    tensors = newest.with_suffix(".safetensors")
    data = bytearray(tensors.read_bytes())
    data[len(data) // 2] ^= 1
    tensors.write_bytes(data)
    learner, straight = make("er", stream), make("er", stream)
    result = train(learner, stream, checkpointer=Checkpointer(tmp_path, every=5, resume=True))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "checkpoint refused, trying the one before" in line
    assert str(tensors) in line
    assert result.matrix == train(straight, stream).matrix
    assert differences(learner, straight) == []


def test_a_newer_checkpoint_is_not_passed_over_for_an_older_one(tmp_path: Path) -> None:
    stream = few_digits()
    newest, older = stopped(tmp_path, stream)
    newest.write_text(newest.read_text().replace('"schema": 2', '"schema": 3', 1))
    before = {p: p.read_bytes() for p in newest.parent.iterdir()}
    for attempt in (
        lambda: train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path, every=5, resume=True)),
        lambda: memory_editing.delete(newest.parent),
    ):
        with pytest.raises(CheckpointError, match="has schema 3, this version reads up to 2: use a newer scale-cl"):
            attempt()
    assert {p: p.read_bytes() for p in newest.parent.iterdir()} == before
    assert older.exists()


def test_when_none_is_good_the_run_does_not_begin_anew_by_itself(tmp_path: Path) -> None:
    stream = few_digits()
    for path in stopped(tmp_path, stream):
        path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint of 2 in .* can be used.*remove the folder"):
        train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path, resume=True))


def test_checkpoints_of_another_run_are_foreign(tmp_path: Path) -> None:
    stream = few_digits()
    stopped(tmp_path, stream)
    with pytest.raises(CheckpointError, match="holds checkpoints already"):
        train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path))
    with pytest.raises(CheckpointError, match="it is of er on few, seed 0, expected gem on few, seed 0"):
        train(make("gem", stream), stream, checkpointer=Checkpointer(tmp_path, resume=True))
    with pytest.raises(CheckpointError, match="made with another config"):
        train(make("er", stream, lr=0.5), stream, checkpointer=Checkpointer(tmp_path, resume=True))
    other = few_digits(tasks=4)
    with pytest.raises(CheckpointError, match="made with other data"):
        train(make("er", other), other, checkpointer=Checkpointer(tmp_path, resume=True))


def test_a_checkpoint_of_another_kind_of_device_is_told_so(tmp_path: Path) -> None:
    stream = few_digits()
    for path in stopped(tmp_path, stream):
        saved = checkpoint.read(path)
        saved.state["tensors"]["rng"] = torch.zeros(16, dtype=torch.uint8)  # as long as a GPU's
        checkpoint.write(path.parent, saved)
    with pytest.raises(CheckpointError, match=r"made on another kind of device than cpu.*resume it where it ran"):
        train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path, resume=True))


def test_a_checkpoint_says_what_its_model_takes_and_knows(tmp_path: Path) -> None:
    stream = few_digits()
    model = checkpoint.read(stopped(tmp_path, stream)[0]).model
    assert (model.learner, model.seed, model.spec) == ("er", 0, stream.spec)
    assert [(task.name, task.classes) for task in model.tasks] == [(t.name, t.classes) for t in stream.tasks[:2]]
    assert model.settings == as_dict(make("er", stream).config)


def test_a_finished_seed_gives_its_result_without_a_step(tmp_path: Path) -> None:
    stream = few_digits()
    wanted = train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path))
    again = train(make("er", stream), stream, on_event=CrashAt(1), checkpointer=Checkpointer(tmp_path, resume=True))
    assert again == wanted


def test_seconds_go_on_where_they_were(tmp_path: Path) -> None:
    stream = few_digits()
    stopped(tmp_path, stream)
    before = checkpoint.read(found(RunDirectory(tmp_path).checkpoints_of(0))[0])
    result = train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path, resume=True))
    assert result.seconds_train > before.seconds_train > 0
    assert result.seconds_eval > before.seconds_eval > 0


def test_the_stream_needs_no_random_state_beyond_its_seed() -> None:
    assert fingerprint(few_digits(4)) == fingerprint(few_digits(4))
    assert fingerprint(few_digits(4)) != fingerprint(few_digits(5))
    assert fingerprint(few_digits(4)) != fingerprint(few_digits(4, train=50))
