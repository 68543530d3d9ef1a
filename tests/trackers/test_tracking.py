"""Tracking as such, with a tracker in memory: what it is told, and that nothing it does reaches the training."""

from __future__ import annotations

import json
import logging
import statistics
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from scale_cl.errors import ConfigError, Interrupted, TrackerError
from scale_cl.learners import Er
from scale_cl.results import OPTIONAL_MEASURES
from scale_cl.trackers import read, tracking
from scale_cl.trackers.backend import Axis
from scale_cl.trackers.tracking import _PATIENCE
from scale_cl.training import Checkpointer, run, train, train_many
from scale_cl.training.config import resolve
from scale_cl.training.events import to_all
from tests.trackers.small_runs import Pages, acc_so_far, accuracies, forgotten, losses, trained
from tests.training.small_streams import few_digits
from tests.training.test_checkpointing import Crash, CrashAt, make


def test_curves_measures_pictures_and_result_of_every_seed(tmp_path: Path) -> None:
    pages = Pages()
    with tracking([pages], tmp_path / "mine", every=1) as tracker:
        results, noted = trained(tracker, seeds=(3, 8))
    assert tracker.places == {"pages": "memory"}
    assert pages.events == [("start", "mine", None), ("open", [3, 8]), ("end", "finished")]
    assert pages.axes == {"loss": {"step"}, "accuracy": {"task"}, "so_far": {"task"}}
    for result in results:
        seed = result.seed
        assert pages.curves[seed, "loss/loss"] == losses(noted[seed])
        for task in range(3):
            assert pages.curves[seed, f"accuracy/task-{task + 1}"] == accuracies(result, task)
        assert pages.curves[seed, "so_far/acc"] == pytest.approx(acc_so_far(result))
        assert list(pages.curves[seed, "so_far/fm"]) == [2, 3], "one task alone cannot be forgotten"
        assert pages.curves[seed, "so_far/fm"][3] == pytest.approx(forgotten(result))
        assert pages.results[seed] == {
            f"result/{m}": pytest.approx(getattr(result, m)) for m in ("acc", "fm", "la", "bwt")
        }
    assert pages.pictures == [(3, 3), (8, 3), (None, 3)]
    accs = [result.acc for result in results if result.acc is not None]
    assert pages.results[None]["result/acc"] == pytest.approx(statistics.fmean(accs))
    assert pages.results[None]["result/acc_deviation"] == pytest.approx(statistics.stdev(accs))
    (document,) = pages.documents
    assert document["seeds"] == [3, 8]
    assert document["matrix"] == [result.matrix for result in results]
    assert document["tasks"] == results[0].tasks
    assert document["acc"] == [result.acc for result in results]


def test_one_seed_has_no_means_and_its_losses_come_at_the_interval(tmp_path: Path) -> None:
    pages = Pages()
    with tracking([pages], tmp_path, every=4) as tracker:
        _, noted = trained(tracker, tasks=1, every=4)
    assert list(pages.results) == [0]
    assert set(pages.results[0]) == {"result/acc", "result/la"}, "FM and BWT need two tasks"
    curve = pages.curves[0, "loss/loss"]
    assert curve == {4: pytest.approx(statistics.fmean(noted[0][:4])), 6: pytest.approx(statistics.fmean(noted[0][4:]))}


def test_no_loss_curves_are_made_for_an_interval_of_nought(tmp_path: Path) -> None:
    pages = Pages()
    with tracking([pages], tmp_path, every=0) as tracker:
        assert tracker.loss_every == 0
        trained(tracker, tasks=1, every=0)
    assert {name for _, name in pages.curves} == {"accuracy/task-1", "so_far/acc", "so_far/la"}


@pytest.mark.usefixtures("quick_processes")
def test_seeds_one_by_one_and_over_processes_are_tracked_alike(tmp_path: Path) -> None:
    options = {"stream.tasks": 2, "run.seeds": 2, "run.batch_size": 100, "run.device": "cpu"}
    each, matrices = [Pages(), Pages()], []
    for processes, pages in enumerate(each, start=1):
        config = resolve(stream="digits", learner="er", options={**options, "run.processes": processes})
        with tracking([pages], tmp_path, every=3) as tracker:
            results = run(config, on_event=to_all(CrashAt(10**9), tracker), loss_every=3).seeds
        matrices.append([result.matrix for result in results])
        for seed in (0, 1):
            assert list(pages.curves[seed, "loss/loss"]) == [3, 6, 9, 10, 12, 15, 18, 20]
            assert pages.curves[seed, "accuracy/task-1"] == accuracies(results[seed], 0)
        assert pages.events[-2:] == [("open", [0, 1]), ("end", "finished")]
    assert matrices[0] == matrices[1]
    assert each[0].curves == each[1].curves
    assert each[0].results == each[1].results


class Broken(Pages):
    """Fails at its second point."""

    def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
        if self.curves:
            raise OSError(28, "No space left on device")
        super().scalars(seed, axis, at, values)


def test_a_tracker_that_fails_is_left_behind_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain, _ = trained(None)
    broken, pages = Broken(), Pages()
    pages.name = "whole"
    with caplog.at_level(logging.WARNING), tracking([broken, pages], tmp_path, every=1) as tracker:
        results, noted = trained(tracker)
    assert results[0].matrix == plain[0].matrix
    (warning,) = caplog.messages
    assert warning == (
        "scale-cl: warning: tracking with pages broke off, the run goes on without it: "
        "OSError: [Errno 28] No space left on device"
    )
    assert broken.events[-1] == ("drop",)
    assert pages.curves[0, "loss/loss"] == losses(noted[0]), "the other tracker goes on"
    assert pages.events[-1] == ("end", "finished")


def test_a_tracker_that_hangs_holds_up_neither_the_steps_nor_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_PATIENCE, "finished", 0.2)
    released = threading.Event()

    class Hanging(Pages):
        def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
            assert released.wait(60)

    try:
        with caplog.at_level(logging.WARNING), tracking([Hanging()], tmp_path, every=1) as tracker:
            results, _ = trained(tracker, tasks=1)
    finally:
        released.set()
    assert len(results) == 1
    (warning,) = caplog.messages
    assert "tracking with pages broke off" in warning
    assert "it has not ended within" in warning


def test_how_a_run_ends_is_told(tmp_path: Path) -> None:
    for error, how in ((Interrupted("asked"), "stopped"), (KeyboardInterrupt(), "stopped"), (ValueError(), "failed")):
        pages = Pages()
        with pytest.raises(type(error)), tracking([pages], tmp_path):
            raise error
        assert pages.events[-1] == ("end", how)


def test_one_that_cannot_start_ends_those_that_have(tmp_path: Path) -> None:
    class Unwilling(Pages):
        name = "unwilling"

        def start(self, about: object, before: object) -> str:
            raise TrackerError("not today")

    pages = Pages()
    with pytest.raises(TrackerError, match="not today"), tracking([pages, Unwilling()], tmp_path):
        raise AssertionError("the run began")
    assert pages.events[-1] == ("end", "failed")


def test_a_resumed_run_goes_on_in_the_places_it_had(tmp_path: Path) -> None:
    stream, whole = few_digits(tasks=3), Pages()
    with tracking([whole], tmp_path / "whole", every=1) as tracker:
        straight = train(make("er", stream), stream, on_event=tracker, loss_every=tracker.loss_every)
    with pytest.raises(Crash), tracking([Pages()], tmp_path, every=1) as tracker:
        train(
            make("er", stream),
            stream,
            on_event=to_all(tracker, CrashAt(14)),
            loss_every=1,
            checkpointer=Checkpointer(tmp_path),
        )
    assert json.loads((tmp_path / "tracking.json").read_text())["trackers"] == {"pages": {"page": 7}}
    noted = read(tmp_path)
    assert noted is not None
    assert noted.every == 1
    pages = Pages()
    with tracking([pages], tmp_path, every=noted.every, resume=True) as tracker:
        resumed = train(
            make("er", stream),
            stream,
            on_event=tracker,
            loss_every=tracker.loss_every,
            checkpointer=Checkpointer(tmp_path, resume=True),
        )
    assert resumed.matrix == straight.matrix
    assert pages.events[:3] == [("start", tmp_path.name, {"page": 7}), ("open", [0]), ("restored", 0, 12)]
    assert list(pages.curves[0, "loss/loss"]) == list(range(13, 19))
    for (seed, name), curve in pages.curves.items():
        assert curve.items() <= whole.curves[seed, name].items(), name
    assert pages.results == whole.results


def test_a_run_begun_anew_forgets_the_places_of_the_last(tmp_path: Path) -> None:
    logs = tmp_path / "tensorboard" / "seed-0"
    logs.mkdir(parents=True)
    with tracking([Pages()], tmp_path):
        assert logs.exists(), "not known to be ours"
    (tmp_path / "tracking.json").write_text("{}")
    with tracking([Pages()], tmp_path) as tracker:
        assert not logs.exists()
        trained(tracker, tasks=1)
    assert (tmp_path / "tracking.json").exists()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("[", "is not JSON"),
        ("{}", "no schema version"),
        ('{"schema": 2, "kind": "tracking"}', "has schema 2"),
        ('{"schema": 1, "kind": "tracking", "every": true, "trackers": {}}', "of another type"),
        ('{"schema": 1, "kind": "tracking", "every": 5, "trackers": []}', "of another type"),
        ('{"schema": 1, "kind": "tracking", "every": -5, "trackers": {}}', "of another type"),
        ('{"schema": 1, "kind": "tracking", "every": 5, "trackers": {"mlflow": 1}}', "of another type"),
    ],
)
def test_a_damaged_note_is_refused(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "tracking.json").write_text(content)
    with pytest.raises(TrackerError, match=part):
        read(tmp_path)
    assert read(tmp_path / "elsewhere") is None


def test_trackers_that_make_no_sense_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give at least one"), tracking("", tmp_path):
        pass
    with pytest.raises(ConfigError, match="each once"), tracking(["tensorboard", "tensorboard"], tmp_path):
        pass
    with pytest.raises(ConfigError, match="it must be at least 0"), tracking("tensorboard", tmp_path, every=-1):
        pass


def test_evaluations_within_tasks_and_predictions_before_learning_are_curves_and_results(tmp_path: Path) -> None:
    pages, tracks = Pages(), [few_digits(seed, tasks=2) for seed in (3, 8)]
    with tracking([pages], tmp_path / "run") as tracker:
        learners = [Er(track.spec, seed=track.seed) for track in tracks]
        results = train_many(learners, tracks, on_event=tracker, evaluate_every=5, prequential=True)
    assert pages.axes["anytime"] == pages.axes["prequential"] == {"step"}
    for result in results:
        seed = result.seed
        of_first = {found.step: found.accuracies[0] for found in result.evaluations}
        assert pages.curves[seed, "anytime/task-1"] == of_first
        assert pages.curves[seed, "anytime/mean"][12] == pytest.approx(sum(result.evaluations[-1].accuracies) / 2)
        assert pages.curves[seed, "prequential/all"][12] == pytest.approx(result.prequential_acc)
        assert set(pages.curves[seed, "prequential/window"]) == {10, 12}
        for measure in OPTIONAL_MEASURES:
            assert pages.results[seed][f"result/{measure}"] == pytest.approx(getattr(result, measure))
    mean = (results[0].aaa or 0) / 2 + (results[1].aaa or 0) / 2
    assert pages.results[None]["result/aaa"] == pytest.approx(mean)
    assert pages.documents[0]["wc_acc"] == [result.wc_acc for result in results]
