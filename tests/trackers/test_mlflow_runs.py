"""MLflow, with a real server of its own on loopback."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scale_cl.errors import TrackerError
from scale_cl.trackers import read, tracking
from scale_cl.training import Event
from scale_cl.training.events import Stepped, TaskStarted, to_all
from tests.trackers.mlflow_server import door, serving
from tests.trackers.small_runs import Points, acc_so_far, accuracies, forgotten, losses, trained


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("mlflow")) as address:
        yield address


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


class Asked:
    """What the server answers."""

    def __init__(self, address: str, experiment: str) -> None:
        from mlflow import MlflowClient

        self.client: Any = MlflowClient(tracking_uri=address)
        self.experiment = self.client.get_experiment_by_name(experiment)
        found = self.client.search_runs([self.experiment.experiment_id])
        self.runs: dict[str, Any] = {run.info.run_name: run for run in found}
        assert len(self.runs) == len(found)

    def curve(self, name: str, metric: str) -> Points:
        history = self.client.get_metric_history(self.runs[name].info.run_id, metric)
        return {point.step: point.value for point in history}

    def file(self, name: str, path: str, folder: Path) -> bytes:
        run = self.runs[name].info.run_id
        return Path(self.client.download_artifacts(run, path, str(folder))).read_bytes()


def test_the_server_has_curves_matrix_config_and_result(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    config = {"learner": {"name": "er", "lr": 0.03}, "run": {"seed": 3, "seeds": 2}}
    made_with = {"command": "scale-cl run", "git_revision": "abc"}
    with tracking("mlflow", tmp_path / "mine", every=1, config=config, environment=made_with) as tracker:
        assert tracker.places["mlflow"].startswith(f"{server}/#/experiments/")
        results, noted = trained(tracker, seeds=(3, 8))
    assert caplog.messages == []
    asked = Asked(server, "scale-cl")
    assert set(asked.runs) == {"mine", "mine, seed 3", "mine, seed 8"}
    whole = asked.runs["mine"]
    for result in results:
        name = f"mine, seed {result.seed}"
        assert asked.curve(name, "loss/loss") == losses(noted[result.seed])
        for task in range(3):
            assert asked.curve(name, f"accuracy/task-{task + 1}") == accuracies(result, task)
        assert asked.curve(name, "so_far/acc") == pytest.approx(acc_so_far(result))
        own = asked.runs[name]
        assert own.data.metrics["result/acc"] == pytest.approx(result.acc)
        assert own.data.metrics["result/fm"] == pytest.approx(forgotten(result))
        assert own.data.params == {
            "learner.name": "er",
            "learner.lr": "0.03",
            "run.seed": str(result.seed),
            "run.seeds": "2",
        }
        assert own.data.tags["mlflow.parentRunId"] == whole.info.run_id
        assert own.info.status == "FINISHED"
        with Image.open(io.BytesIO(asked.file(name, "matrix.png", tmp_path))) as image:
            assert image.size == (640, 520)
    assert whole.info.status == "FINISHED"
    assert whole.data.tags["mlflow.source.git.commit"] == "abc"
    assert whole.data.metrics["result/acc"] == pytest.approx(sum(r.acc or 0 for r in results) / 2)
    assert whole.data.metrics["result/acc_deviation"] > 0
    assert json.loads(asked.file("mine", "config.json", tmp_path)) == config
    assert json.loads(asked.file("mine", "result.json", tmp_path))["matrix"] == [r.matrix for r in results]
    assert asked.file("mine", "matrix.png", tmp_path).startswith(b"\x89PNG")


def test_one_seed_is_one_run_and_a_resumed_one_goes_on_in_it(server: str, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event == Stepped(8):
            raise KeyboardInterrupt

    given: dict[str, Any] = {"project": "alone", "address": server}
    with pytest.raises(KeyboardInterrupt), tracking("mlflow", tmp_path / "one", every=1, **given) as tracker:
        trained(to_all(tracker, interrupt))
    (run,) = Asked(server, "alone").runs.values()
    assert run.info.status == "KILLED"
    note = read(tmp_path / "one")
    assert note is not None
    assert note.trackers["mlflow"]["run"] == run.info.run_id
    with tracking("mlflow", tmp_path / "one", every=1, resume=True) as tracker:
        results, noted = trained(tracker)
    asked = Asked(server, "alone")
    (run,) = asked.runs.values()
    assert run.info.status == "FINISHED"
    assert asked.curve("one", "loss/loss") == losses(noted[0])
    assert run.data.metrics["result/acc"] == results[0].acc


def test_a_server_that_goes_away_stops_nothing(server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain, _ = trained(None)
    with door(server) as (address, shut):

        def shut_in_the_second_task(event: Event) -> None:
            if isinstance(event, TaskStarted) and event.task == 1:
                shut.set()

        given: dict[str, Any] = {"project": "gone", "address": address}
        warnings = caplog.at_level(logging.WARNING, "scale_cl")
        with warnings, tracking("mlflow", tmp_path / "gone", every=1, **given) as tracker:
            results, _ = trained(to_all(shut_in_the_second_task, tracker))
    assert results[0].matrix == plain[0].matrix
    (warning,) = [record.message for record in caplog.records if record.name == "scale_cl"]
    assert warning.startswith("scale-cl: warning: tracking with mlflow broke off, the run goes on without it: ")
    (run,) = Asked(server, "gone").runs.values()
    assert run.info.status == "RUNNING", "nobody could say that it has ended"


def test_an_address_where_nobody_answers_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TrackerError) as refused, tracking("mlflow", tmp_path, address="http://u:secret@127.0.0.1:9"):
        raise AssertionError("the run began")
    words = str(refused.value)
    assert words.startswith("tracking with mlflow at http://127.0.0.1:9 cannot start: no server answers there")
    assert "secret" not in words
    assert "\n" not in words


def test_a_run_that_the_server_does_not_know_cannot_be_gone_on_with(server: str, tmp_path: Path) -> None:
    memory = {"address": server, "experiment": "0", "run": "f" * 32, "seeds": {}}
    content = {"schema": 1, "kind": "tracking", "every": 1, "trackers": {"mlflow": memory}}
    (tmp_path / "tracking.json").write_text(json.dumps(content))
    with pytest.raises(TrackerError, match=r"cannot start: .*not found"), tracking("mlflow", tmp_path, resume=True):
        raise AssertionError("the run began")
