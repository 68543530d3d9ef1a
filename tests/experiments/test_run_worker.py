"""One run, carried out: a result in its folder, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scale_cl import files, results, training
from scale_cl.errors import DataError, OutputInUseError
from scale_cl.experiments import run_worker
from scale_cl.experiments.run_worker import as_message, carry_out, is_done
from scale_cl.training.events import Event, Restored, Stepped
from tests.experiments.small_runs import config, made_up, planned


def test_the_result_is_that_of_a_plain_run_and_says_what_made_it(tmp_path: Path) -> None:
    run = planned(tmp_path, config(tasks=2, seed=4))
    carry_out(as_message(run, None))
    result = results.read(run.folder)
    assert [seed.matrix for seed in result.seeds] == [seed.matrix for seed in training.run(run.config).seeds]
    assert result.seeds[0].config == run.config.as_dict()
    assert result.environment["experiment"] == "main"
    assert result.environment["alone"] is False
    assert result.environment["command"].startswith("scale-cl run --stream digits --learner finetune --set ")
    assert sorted(path.name for path in run.folder.iterdir()) == ["result.json", "seeds"]


def test_the_command_that_is_recorded_has_paths_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = planned(Path("here"), config(tasks=1))
    message = as_message(run, None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # as a worker may be
    carry_out(message)
    command = results.read(tmp_path / run.folder).environment["command"]
    assert command.endswith(f"--out {run.folder}")
    assert str(tmp_path) not in command


def test_what_another_process_has_done_meanwhile_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(tmp_path, config())
    made_up(run)
    monkeypatch.setattr(run_worker, "training", None)  # so that training would fail
    carry_out(as_message(run, None))
    assert results.read(run.folder).seeds[0].acc == 50.0


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path) -> None:
    run = planned(tmp_path, config())
    for name in ("checkpoints/seed-0/half", ".seeds-coming/seed-0.json", "run.json", ".lock"):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("half")
    carry_out(as_message(run, None))
    assert sorted(path.name for path in run.folder.iterdir()) == ["result.json", "seeds"]


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    run = planned(tmp_path / "out", config(stream="pmnist", tasks=1))
    with pytest.raises(DataError):
        carry_out(as_message(run, tmp_path / "no data"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_waited_for_and_then_an_error(tmp_path: Path) -> None:
    run = planned(tmp_path, config())
    with files.lock(run.folder / ".lock"), pytest.raises(OutputInUseError, match="in use by process"):
        carry_out(as_message(run, None), patience=0.3)


def crash_at(step: int) -> Callable[[Event], None]:
    def crash(event: Event) -> None:
        if event == Stepped(step):
            raise MemoryError

    return crash


def test_a_run_that_broke_off_continues_from_its_checkpoint(tmp_path: Path) -> None:
    run, told = planned(tmp_path, config("er", tasks=3)), list[Event]()
    with pytest.raises(MemoryError):
        carry_out(as_message(run, None), crash_at(250))
    assert not is_done(run)
    carry_out(as_message(run, None), told.append)
    assert [event.steps for event in told if isinstance(event, Restored)] == [200]
    assert results.read(run.folder).seeds[0].matrix == training.run(run.config).seeds[0].matrix
    assert sorted(path.name for path in run.folder.iterdir()) == ["result.json", "seeds"]


def test_a_run_whose_time_counts_starts_again(tmp_path: Path) -> None:
    run, told = planned(tmp_path, config("er", tasks=2), alone=True), list[Event]()
    with pytest.raises(MemoryError):
        carry_out(as_message(run, None), crash_at(150))
    carry_out(as_message(run, None), told.append)
    assert not [event for event in told if isinstance(event, Restored)]


def test_checkpoints_that_cannot_be_used_are_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, other = (planned(tmp_path, config(learner, tasks=2)) for learner in ("er", "finetune"))
    other = replace(other, folder=run.folder)
    with pytest.raises(MemoryError):
        carry_out(as_message(other, None), crash_at(150))
    carry_out(as_message(run, None))
    assert results.read(run.folder).learner == "er"
    assert caplog.messages[-1].endswith("the run starts again")
