"""TensorBoard's logs, read with its own reader."""

from __future__ import annotations

import io
import logging
import struct
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS

from scale_cl.errors import TrackerError
from scale_cl.trackers import tracking
from scale_cl.training import Checkpointer, train
from scale_cl.training.events import to_all
from tests.trackers.small_runs import Points, acc_so_far, accuracies, forgotten, losses, trained
from tests.training.small_streams import few_digits
from tests.training.test_checkpointing import Crash, CrashAt, make


def opened(folder: Path) -> Any:
    """All that TensorBoard reads in a folder."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    reader.Reload()
    return reader


def curve(reader: Any, tag: str) -> Points:
    """One curve; TensorBoard keeps single precision."""
    events = reader.Scalars(tag)
    points = {event.step: event.value for event in events}
    assert len(points) == len(events), f"{tag} has two points at one place"
    return points


def single(points: Points) -> Points:
    return {at: struct.unpack("f", struct.pack("f", value))[0] for at, value in points.items()}


def text(reader: Any, tag: str) -> str:
    (event,) = reader.Tensors(tag)
    content: bytes = event.tensor_proto.string_val[0]
    return content.decode()


def test_the_reader_finds_curves_matrix_config_and_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"learner": {"name": "er", "lr": 0.03, "augment": None}, "run": {"seed": 3}}
    with tracking("tensorboard", tmp_path, every=1, config=config, environment={"torch": "2.x"}) as tracker:
        assert tracker.places == {"tensorboard": str(tmp_path / "tensorboard")}
        results, noted = trained(tracker, seeds=(3, 8))
    for result in results:
        reader = opened(tmp_path / "tensorboard" / f"seed-{result.seed}")
        assert curve(reader, "loss/loss") == single(losses(noted[result.seed]))
        for task in range(3):
            assert curve(reader, f"accuracy/task-{task + 1}") == single(accuracies(result, task))
        assert curve(reader, "so_far/acc") == single(acc_so_far(result))
        assert curve(reader, "so_far/fm")[3] == pytest.approx(forgotten(result), rel=1e-6)
        assert curve(reader, "result/acc")[0] == pytest.approx(result.acc, rel=1e-6)
        (picture,) = reader.Images("matrix")
        with Image.open(io.BytesIO(picture.encoded_image_string)) as image:
            assert image.size == (picture.width, picture.height) == (640, 520)
            assert picture.step == 3
        assert "lr: 0.03" in text(reader, "config")
        assert "torch: 2.x" in text(reader, "environment")
        data = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        settings = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info.hparams
        assert settings["learner.lr"].number_value == 0.03
        assert settings["run.seed"].number_value == result.seed
        data = reader.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
        assert plugin_data_pb2.HParamsPluginData.FromString(data).session_end_info.status == STATUS_SUCCESS
    assert caplog.messages == []
    whole = opened(tmp_path / "tensorboard")
    assert curve(whole, "result/acc")[0] == pytest.approx(sum(r.acc or 0 for r in results) / 2, rel=1e-6)
    assert "result/fm_deviation" in whole.Tags()["scalars"]
    assert [event.step for event in whole.Images("matrix")] == [3]
    table = text(whole, "result").splitlines()
    assert table[2] == "|  | ACC | FM | LA | BWT |"
    assert table[4].startswith(f"| seed 3 | {results[0].acc:.1f} | {results[0].fm:.1f} |")
    assert table[6].startswith("| all | ")
    assert "±" in table[6]


def test_a_resumed_run_has_one_unbroken_curve_without_the_steps_that_were_lost(tmp_path: Path) -> None:
    stream = few_digits(tasks=3)
    with tracking("tensorboard", tmp_path / "straight", every=1) as tracker:
        train(make("er", stream), stream, on_event=tracker, loss_every=tracker.loss_every)
    with pytest.raises(Crash), tracking("tensorboard", tmp_path, every=1) as tracker:
        train(
            make("er", stream),
            stream,
            on_event=to_all(tracker, CrashAt(16)),
            loss_every=1,
            checkpointer=Checkpointer(tmp_path),
        )
    folder = tmp_path / "tensorboard" / "seed-0"
    assert max(curve(opened(folder), "loss/loss")) == 16, "what was there when it broke off"
    with tracking("tensorboard", tmp_path, every=1, resume=True) as tracker:
        train(
            make("er", stream),
            stream,
            on_event=tracker,
            loss_every=tracker.loss_every,
            checkpointer=Checkpointer(tmp_path, resume=True),
        )
    whole, parts = opened(tmp_path / "straight" / "tensorboard" / "seed-0"), opened(folder)
    assert len(list(folder.iterdir())) == 2
    assert whole.Tags()["scalars"] == parts.Tags()["scalars"]
    for tag in whole.Tags()["scalars"]:
        assert curve(parts, tag) == curve(whole, tag), tag


def test_a_folder_that_cannot_be_made_is_said_before_training(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("mine")
    with (
        pytest.raises(
            TrackerError, match=r"tracking with tensorboard: .*tensorboard cannot be written to: File exists"
        ),
        tracking("tensorboard", tmp_path),
    ):
        raise AssertionError("the run began")


def test_logs_that_cannot_be_written_any_more_do_not_stop_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, _ = trained(None)
    with caplog.at_level(logging.WARNING), tracking("tensorboard", tmp_path, every=1) as tracker:
        (tmp_path / "tensorboard").rmdir()
        (tmp_path / "tensorboard").write_text("in the way")
        results, _ = trained(tracker)
    assert results[0].matrix == plain[0].matrix
    (warning,) = caplog.messages
    assert warning.startswith("scale-cl: warning: tracking with tensorboard broke off, the run goes on without it: ")


def test_a_run_that_never_began_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad data"), tracking("tensorboard", tmp_path / "new"):
        raise ValueError("bad data")
    assert not (tmp_path / "new" / "tensorboard").exists()
