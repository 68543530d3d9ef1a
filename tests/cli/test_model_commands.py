"""`scale-cl learn`, `predict`, `evaluate` and `info`: from a folder of images to a model that goes on, and back."""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scale_cl
from scale_cl import ContinualClassifier, ScaleClassifier, results
from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.export import export_files
from scale_cl.streams import user_streams
from scale_cl.training.kept_model import kept_model
from tests.estimator.problems import blobs
from tests.training.child import Child
from tests.training.small_images import SETTINGS, draw_images, run_on

DAYS = {"monday": ("cold", "warm"), "tuesday": ("dry", "wet")}
NEXT = {"weekend": ("cold", "warm")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of images, and a run on the first."""
    folder = tmp_path_factory.mktemp("made")
    run_on(draw_images(folder / "first", DAYS, count=30), folder / "run", "memory=30", "lr=0.1")
    draw_images(folder / "next", NEXT, count=30)
    return folder


@pytest.fixture
def here(made: Path, command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, where the run and the new images are, and the images of before are not."""
    shutil.copytree(made / "run", "run")
    shutil.copytree(made / "next", "next")
    shutil.copytree(made / "first/monday", "monday")
    user_streams._read.clear()
    return command


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_from_folders_to_a_model_that_learns_and_predicts(command: Callable[..., Any], made: Path) -> None:
    more = [word for setting in (*SETTINGS, "memory=30", "lr=0.1") for word in ("--set", setting)][4:]
    done = command("run", "--stream", f"folder:{made / 'first'}", "--learner", "er", "--out", "run",
                   "--set", "backbone=mlp-8-8", *more)  # fmt: skip
    assert done.code == 0, done.err
    assert done.err.splitlines()[-1] == "the model is kept in run (it holds 60 training samples; `scale-cl info run`)"
    taught = command("learn", "run", "--stream", f"folder:{made / 'next'}")
    assert taught.code == 0, taught.err
    assert "task 3/3: accuracy so far" in taught.err
    assert taught.err.splitlines()[-1] == "the model is kept in run (it holds 90 training samples; `scale-cl info run`)"
    assert taught.out.startswith("er on first: ACC ")
    assert results.read(Path("run")).seeds[0].tasks == ["monday", "tuesday", "weekend"]
    told = command("predict", "run", made / "next", "--task", "weekend", "--out", "p.csv")
    assert (told.code, told.out) == (0, "")
    assert told.err.splitlines() == ["60 of 60 images", "wrote p.csv: 60 predictions"]
    right = [row["label"] == Path(row["path"]).parent.name for row in rows("p.csv")]
    tested = command("evaluate", "run", made / "next", "-q")
    assert tested.out == f"task weekend: {100 * np.mean(right):.1f} ({sum(right)} of 60 images)\n"
    assert np.mean(right) > 0.8


def test_a_model_is_used_when_its_training_data_is_gone(here: Callable[..., Any], made: Path) -> None:
    told = here("info", "run")
    assert told.code == 0, told.err
    last = results.read(Path("run")).seeds[0].matrix
    for line in (
        "run: er, seed 0, scenario task",
        "learnt: 2 tasks (first: 2)",
        f"  monday    cold, warm   accuracy {last[1][0]:.1f}, right after learning it {last[0][0]:.1f}",
        "inputs: grey, 6 x 6 (height x width), not resized, channels first",
        "memory: 60 samples of the training data are in the file (scale-cl memory lists and deletes them)",
    ):
        assert line in told.out.splitlines()
    assert "settings: backbone=mlp-8-8" in told.out
    as_json = json.loads(here("info", "run", "--json").out)
    assert (as_json["stored_samples"], as_json["settings"]["memory"]) == (60, 30)

    said = scale_cl.predict("run", "monday", task="monday")
    model = ContinualClassifier.load("run")
    learner = kept_model("run").learner()
    stream = scale_cl.streams.from_folder(made / "first", channels=1, shuffle=False)
    x, _ = stream.train_data(0)
    by_hand = np.array(["cold", "warm"])[learner.predict(x, "monday").argmax(1)]
    assert np.array_equal(model.predict(x, task="monday"), by_hand)
    model.save("model.safetensors")
    assert scale_cl.predict("model.safetensors", "monday", task="monday") == said
    assert scale_cl.info("model.safetensors").stored_samples == 60
    assert all(one.accuracy > 60 for one in scale_cl.evaluate(model, made / "first"))
    model.partial_fit(x[:4], ["cold"] * 4, task="monday")
    assert scale_cl.predict("run", "monday", task="monday") == said, "what the estimator learns is its own"
    assert here("export", "run", "--task", "monday", "--format", "torch").code == 0


def test_predictions_in_every_form(here: Callable[..., Any]) -> None:
    one, other = "monday/cold/1.png", "monday/warm/2.png"
    told = here("predict", "run", one, other, "--task", "tuesday", "--probabilities", "-q")
    assert (told.code, told.err) == (0, "")
    header, first, second = csv.reader(told.out.splitlines())
    assert header == ["path", "task", "label", "probability", "p(cold)", "p(dry)", "p(warm)", "p(wet)"]
    assert (first[:2], second[:2]) == ([one, "tuesday"], [other, "tuesday"])
    assert first[2] in ("dry", "wet")
    assert (first[4], first[6]) == ("0.000000", "0.000000"), "classes of another task"
    assert float(first[5]) + float(first[7]) == pytest.approx(1, abs=1e-5)

    assert here("predict", "run", "monday", "--task", "infer", "--out", "p.jsonl", "--probabilities", "-q").code == 0
    lines = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    assert [line["path"] for line in lines] == sorted(str(path) for path in Path("monday").rglob("*.png"))
    assert {line["task"] for line in lines} <= {"monday", "tuesday"}
    assert all(line["probabilities"][line["label"]] == line["probability"] for line in lines)

    Path("list.csv").write_text(f"task,path\nmonday,{one}\ntuesday,{other}\n")
    assert here("predict", "run", "list.csv", "--out", "listed.csv", "-q").code == 0
    assert [(row["path"], row["task"]) for row in rows("listed.csv")] == [(one, "monday"), (other, "tuesday")]
    kept = Path("listed.csv").read_bytes()
    refused = here("predict", "run", "list.csv", "--out", "listed.csv")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "listed.csv exists already" in refused.err
    assert Path("listed.csv").read_bytes() == kept
    assert here("predict", "run", "list.csv", "--out", "listed.csv", "--force", "-q").code == 0


def test_images_may_have_names_that_are_no_text(here: Callable[..., Any]) -> None:
    odd = Path("odd")
    odd.mkdir()
    name = os.fsdecode(b"\xff.png")
    shutil.copy(next(Path("monday").rglob("*.png")), odd / name)
    for out in ("p.csv", "p.jsonl"):
        assert here("predict", "run", "odd", "--task", "monday", "--out", out).code == 0
    assert b"odd/\xff.png,monday," in Path("p.csv").read_bytes()
    assert json.loads(Path("p.jsonl").read_text())["path"] == f"odd/{name}"


def test_bad_input_is_one_line_and_code_2(here: Callable[..., Any], made: Path) -> None:
    draw_images(Path("large"), {"monday": ("cold", "warm")}, size=9)
    draw_images(Path("other"), {"monday": ("cold", "hot")})
    Path("empty").mkdir()
    Path("broken.png").write_text("no image")
    Path("gone.csv").write_text("path\nnowhere.png\n")
    Path("label.csv").write_text("image\nmonday/cold/1.png\n")
    x, y = blobs(("cat", "dog"), seed=1)
    ScaleClassifier().partial_fit(x, y, task="animals").save("features")
    run = ("run", "--stream", "folder:next", "--learner", "er", "--tasks", "1", "-q", "--set", "backbone=mlp-8-8")
    assert here(*run, "--out", "none", "--set", "run.keep_state=false").code == 0
    assert here(*run, "--out", "two", "--seeds", "2", "--set", "run.processes=1").code == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for words, said in (
        (("predict", "run", "monday"), "the model knows several tasks ('monday', 'tuesday'); say which one the images"),
        (("predict", "run", "monday", "--task", "noday"), "task 'noday' was never learnt; the model knows 'monday'"),
        (("predict", "run", "large", "--task", "monday"), "0.png is 9 x 9, the model takes 6 x 6; it was trained with"),
        (("predict", "run", "nowhere", "--task", "monday"), "nowhere does not exist; name images, a folder of them"),
        (("predict", "run", "empty", "--task", "monday"), "empty holds no images"),
        (("predict", "run", "broken.png", "--task", "monday"), "broken.png is not an image that can be read"),
        (("predict", "run", "gone.csv", "--task", "monday"), "nowhere.png is missing"),
        (("predict", "run", "label.csv", "--task", "monday"), "label.csv has no column 'path'"),
        (("predict", "run", "monday", "--task", "monday", "--seed", "3"), "run has no model of seed 3"),
        (("predict", "features", "monday"), "the model was not trained on image files, its inputs are 6"),
        (("predict", "none", "monday"), "none has kept no model; run it again with --set run.keep_state=true"),
        (("predict", "two", "monday"), "two has several seeds (0, 1); say which one with --seed S"),
        (("predict", "nothing", "monday"), "nothing does not exist; name a run's directory, or a file"),
        (("predict", "run", "monday", "--task", "monday", "--out", "broken.png/p.csv"), "broken.png is not a folder"),
        (("predict", "run", "monday", "--task", "monday", "--out", "empty"), "empty is a folder; name a file in it"),
        (("predict", "run", "monday", "--task", "monday", "--out", "p.xlsx"), "end the name in .csv or .jsonl"),
        (("evaluate", "run", "monday"), "if monday is one task, name the folder above it, .; else put the class"),
        (("evaluate", "run", "next"), "task 'weekend' was never learnt"),
        (("evaluate", "run", "other"), "class 'hot' of task 'monday' was never learnt"),
        (("evaluate", "run", "other", "--task", "monday"), "task is 'monday'; it can only be 'infer'"),
        (("evaluate", "run", "empty"), "empty holds nothing to test with"),
        (("evaluate", "run", "broken.png"), "is neither a folder TASK/CLASS/ of images nor a CSV file"),
        (("info", "none"), "none has kept no model"),
        (("info", "empty"), "empty is not a run's directory: it has no result.json"),
        (("info", "broken.png"), "broken.png is damaged or no safetensors file"),
        (("info", "features", "--seed", "1"), "features is a file, which has one seed"),
        (("learn", "none", "--stream", "folder:next"), "none has kept no model"),
        (("learn", "features", "--stream", "folder:next"), "features is a file; only a run's directory"),
        (("learn", "run", "--stream", "folder:large"), "samples of large are 1 x 9 x 9, the model takes 1 x 6 x 6"),
        (("learn", "run", "--stream", "nowhere"), "unknown stream 'nowhere'"),
    ):
        refused = here(*words)
        assert (refused.code, refused.out) == (2, ""), (words, refused.err)
        assert said in refused.err, words
        assert len(refused.err.splitlines()) == 1, words
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    with pytest.raises(CheckpointError, match="run is a run's directory: load it with ContinualClassifier"):
        ScaleClassifier.load("run")
    with pytest.raises(ConfigError, match="several seeds"):
        ContinualClassifier.load("two")
    assert ContinualClassifier.load("two", seed=1).seed_ == 1


def test_a_lesson_that_is_killed_is_resumed(here: Callable[..., Any], tmp_path: Path) -> None:
    straight = Path(shutil.copytree("run", "straight"))
    assert here("learn", straight, "--stream", "folder:next", "-q").code == 0
    said = scale_cl.predict("run", "monday", task="monday")
    child = Child(tmp_path, "learn", "run", "--stream", "folder:next", "--set", "run.checkpoint_every=1")
    child.wait_for(Path("run/checkpoints/seed-0/at-00002-00000002.json"))
    child.kill()
    child.finished()
    assert scale_cl.predict("run", "monday", task="monday") == said, "the model of before"
    assert "it has begun to learn folder:next and not finished: scale-cl resume run" in here("info", "run").out
    done = here("resume", "run", "-q")
    assert done.code == 0, done.err
    assert results.read(Path("run")).seeds[0].matrix == results.read(straight).seeds[0].matrix
    assert [one.task for one in scale_cl.evaluate("run", "next")] == ["weekend"]


def test_export_is_silent_about_torchvision(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    with caplog.at_level(logging.WARNING), export_files._without_exporter_warnings():
        log.warning("torchvision is not installed. Skipping %s", "torchvision::nms")
        log.warning("something else")
    log.warning("torchvision is back")
    heard = [record.getMessage() for record in caplog.records]
    assert "something else" in heard
    assert not any("Skipping" in message for message in heard)
