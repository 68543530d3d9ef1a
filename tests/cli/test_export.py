"""`scale-cl export`: from a run, or from a classifier's file, to a file that others run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from scale_cl import ContinualClassifier, ScaleClassifier, streams
from scale_cl.export import METADATA
from scale_cl.streams import user_streams
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import found
from tests.cli.test_resume import crash_after
from tests.estimator.problems import blobs
from tests.export.loaded import OnnxFile, pt2_logits
from tests.training.test_checkpointing import Crash

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
RUN = ("run", "--tasks", "2", "-q", "--set", "run.batch_size=25", "--set", "run.keep_state=true", "--out", "r")


def files() -> set[str]:
    """What lies in the present directory, without runs."""
    return {str(path) for path in Path().rglob("*") if path.is_file() and path.parts[0] != "r"}


def test_the_files_of_a_run_have_the_accuracy_of_its_result(command: Callable[..., Any]) -> None:
    assert command(*RUN, "--learner", "scale-ema").code == 0
    stream = streams.load("digits", tasks=2)
    last = json.loads(Path("r/seeds/seed-0.json").read_text())["matrix"][-1]
    done = command("export", "r", "--task", "all", "--seed", "0")
    assert (done.code, done.err) == (0, "")
    names = [task.name for task in stream.tasks]
    for k, (name, line) in enumerate(zip(names, done.out.splitlines(), strict=True)):
        path = Path("exported") / f"{name}.onnx"
        size = -(-path.stat().st_size // 1000)
        assert line.startswith(f"wrote {path}: task {name}, 10 classes, {size} kB; logits are the learner's within ")
        assert line.endswith("e-06 on 64 samples") or line.endswith("e-07 on 64 samples")
        file, (x, y) = OnnxFile(path), stream.test_data(k)
        assert file.classes == list(stream.tasks[k].classes)
        assert 100 * np.mean(file.logits(x).argmax(1) == y.numpy()) == pytest.approx(last[k])
    one = command("export", "r", "--task", names[1], "--format", "torch", "--out", "sub/model.pt2")
    assert one.code == 0
    np.testing.assert_allclose(pt2_logits(Path("sub/model.pt2"), x), file.logits(x), atol=1e-4)
    assert command("export", "r", "--task", names[0], "--format", "torch", "--out", "sub").code == 0
    made = {f"exported/{name}.onnx" for name in names} | {"sub/model.pt2", f"sub/{names[0]}.pt2"}
    assert files() == made

    again = command("export", "r", "--task", "all")
    assert (again.code, again.out) == (2, "")
    assert "exists already; choose another, or have it replaced (--force" in again.err
    assert command("export", "r", "--task", names[0], "--format", "torch", "--out", "sub", "--force").code == 0
    assert files() == made


def test_a_run_of_a_gpu_is_exported_where_there_is_none(command: Callable[..., Any]) -> None:
    assert command(*RUN, "--learner", "acl", "--tasks", "1").code == 0
    folder = Path("r/checkpoints/seed-0")
    saved = checkpoint.read(found(folder)[0])
    saved.state["tensors"]["rng"] = torch.zeros(16, dtype=torch.uint8)  # as long as that of a CUDA generator
    checkpoint.write(folder, saved)
    assert command("export", "r", "--format", "torch").code == 0


def test_a_stopped_run_on_images_of_ones_own(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    for label, rows in (("low", slice(4, 8)), ("high", slice(0, 4))):
        for i in range(20):
            pixels = random.integers(0, 60, (8, 8))
            pixels[rows] += 150
            target = Path("pictures", "spring time/1", label, f"{i}.png")
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(target)
    Path("pictures/spring time/1").rename("pictures/spring: 1")
    Path("pictures/spring time").rmdir()
    crash_after(3, monkeypatch)
    with pytest.raises(Crash):
        command("run", "--stream", "folder:pictures", "--set", "stream.channels=1", "--learner", "er", "-q", "--out",
                "r", "--set", "run.checkpoint_every=1", "--set", "run.batch_size=4")  # fmt: skip
    done = command("export", "r")
    assert (done.code, done.err) == (0, "task spring: 1 is not finished: 3 of 8 steps\n")  # 32 images, 4 a step
    file = OnnxFile(Path("spring-1.onnx"))
    assert file.metadata["preprocess"] == "grey, 8 x 8 (height x width), not resized, channels first"
    assert file.classes == ["high", "low"]
    assert (file.metadata["task"], file.input.shape) == ("spring: 1", ["batch", 1, 8, 8])

    newest, before = found(Path("r/checkpoints/seed-0"))[:2]
    newest.with_suffix(".safetensors").write_bytes(b"damaged")
    assert command("export", "r", "--format", "torch").code == 0, f"{before} serves"
    shutil.rmtree("pictures")
    user_streams._read.clear()  # as another process would find it
    assert command("export", "r", "--format", "torch", "--force").code == 0, "the pictures are not needed"


def test_a_file_says_how_an_image_of_any_size_becomes_its_input(command: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    for label, light in (("dark", 0), ("light", 150)):
        for i in range(10):
            target = Path("pictures", "tones", label, f"{i}.png")
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(light, light + 100, (9 + i, 20, 3), dtype=np.uint8)).save(target)
    assert command(*RUN, "--stream", "folder:pictures", "--tasks", "1", "--learner", "er",
                   "--set", "stream.size=12").code == 0  # fmt: skip
    assert command("export", "r").code == 0
    assert command("export", "r", "--format", "torch").code == 0
    file, told = OnnxFile(Path("tones.onnx")), {METADATA: ""}
    torch.export.load("tones.pt2", extra_files=told)
    words = "RGB, resized to 12 x 12 (bilinear), channels first"
    assert file.metadata["preprocess"] == words == json.loads(told[METADATA])["preprocess"]

    stream = streams.from_folder("pictures", size=12, shuffle=False, seed=0)
    x, by_hand = torch.cat([stream.train_data(0)[0], stream.test_data(0)[0]]), []
    for path in sorted(Path("pictures").rglob("*.png")):
        with Image.open(path) as image:
            picture = image.convert("RGB").resize((12, 12), Image.Resampling.BILINEAR)
        by_hand.append(np.asarray(picture).transpose(2, 0, 1))
    assert {image.tobytes() for image in by_hand} == {image.numpy().tobytes() for image in x}


def test_tasks_that_a_stopped_run_has_not_come_to_are_named(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", "-q", "--tasks", "4", "--out", "r", "--set", "run.batch_size=40", "--set", "run.checkpoint_every=1")
    stream = streams.load("digits", tasks=4)
    names = [task.name for task in stream.tasks]
    steps = [-(-len(task.train) // 40) for task in stream.tasks]
    crash_after(steps[0] + 3, monkeypatch)
    with pytest.raises(Crash):
        command(*run, "--learner", "er")
    midst = f"task {names[1]} is not finished: 3 of {steps[1]} steps"
    done = command("export", "r", "--task", "all", "--format", "torch")
    unseen = f"no file for tasks that the run has not reached: {names[2]}, {names[3]}"
    assert (done.code, done.err.splitlines()) == (0, [midst, unseen])
    assert files() == {f"exported/{name}.pt2" for name in names[:2]}
    for name, said in ((names[0], []), (names[1], [midst])):
        assert command("export", "r", "--task", name, "--format", "torch").err.splitlines() == said

    shutil.rmtree("r")
    crash_after(3, monkeypatch)
    with pytest.raises(Crash):
        command(*run, "--learner", "joint", "--set", "epochs=2")
    done = command("export", "r", "--task", "all", "--format", "torch", "--force")
    all_steps = 2 * -(-sum(len(task.train) for task in stream.tasks) // 40)
    words = f"training on all tasks together is not finished: 3 of {all_steps} steps"
    assert (done.code, done.err.splitlines()) == (0, [words])


def test_a_classifiers_file_needs_no_data(command: Callable[..., Any]) -> None:
    x, y = blobs(("cat", "dog"), seed=1)
    model = ScaleClassifier().partial_fit(x, y, task="animals").partial_fit(*blobs(("oak", "elm"), seed=2), task=7)
    model.save("model.safetensors")
    done = command("export", "model.safetensors", "--task", "animals", "--out", "a.onnx")
    assert (done.code, done.err) == (0, "")
    assert OnnxFile(Path("a.onnx")).labels(x) == model.predict(x, task="animals").tolist()

    ContinualClassifier("er", backbone=nn.Sequential(nn.Linear(6, 4)), epochs=1).fit(x, y).save("own.safetensors")
    Path("other.safetensors").write_text("no such thing")
    for arguments, words in (
        (("model.safetensors",), "there are several tasks (animals, 7); say which one with --task NAME, or --task all"),
        (("model.safetensors", "--task", "8"), "task '8' was never seen; tasks seen: 'animals', '7'"),
        (("model.safetensors", "--seed", "1"), "is a file, which has one seed: leave out --seed"),
        (("own.safetensors",), "in Python, ContinualClassifier.load(..., backbone=...)"),
        (("other.safetensors",), "damaged or no safetensors file"),
    ):
        refused = command("export", *arguments, "--out", "b.onnx")
        assert refused.code == 2
        assert words in refused.err
        assert len(refused.err.splitlines()) == 1
    assert not Path("b.onnx").exists()


def test_bad_input_is_one_line_and_code_2(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("run", "--tasks", "1", "--learner", "er", "--seeds", "2", "-q", "--set", "run.batch_size=100")
    assert command(*run, "--set", "run.processes=1", "--set", "run.keep_state=true", "--out", "r").code == 0
    assert command(*run, "--seeds", "1", "--out", "none").code == 0
    Path("there.onnx").write_text("mine")
    before = files()
    for arguments, words in (
        (("nowhere",), "nowhere does not exist; name a run's directory, or a file that save() wrote"),
        (("none",), "none has kept no model; run it again with --set run.keep_state=true"),
        (("r",), "r has several seeds (0, 1); say which one with --seed S"),
        (("r", "--seed", "5"), "r has no model of seed 5; there are some of seed 0, 1"),
        (("r", "--seed", "1", "--task", "x"), "task 'x' was never seen; tasks seen: 'task-4'"),
        (("r", "--seed", "1", "--format", "tflite"), "--format is 'tflite'; formats are onnx, torch"),
        (("r", "--seed", "1", "--out", "a.pt2"), "a.pt2 has the suffix of the format torch"),
        (("r", "--seed", "1", "--out", "there.onnx"), "there.onnx exists already"),
        (
            ("r", "--seed", "1", "--task", "all", "--out", "there.onnx"),
            "there.onnx is a file; --task all needs a folder",
        ),
        (("r", "--seed", "1", "--out", "there.onnx/a.onnx"), "cannot be written"),
    ):
        refused = command("export", *arguments)
        assert (refused.code, refused.out) == (2, ""), arguments
        assert words in refused.err
        assert len(refused.err.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "none has kept no model" in command("export", "none").err, "before a package is asked for"
    missing = command("export", "r", "--seed", "1")
    assert missing.code == 2
    assert missing.err.startswith("scale-cl: error: export to ONNX needs the extra: pip install 'scale-cl[onnx]'")
    assert files() == before


def test_the_help_says_what_comes_out(command: Callable[..., Any]) -> None:
    text = " ".join(command("export", "--help").out.split())
    for words in ("onnx|torch", "--task", "--seed", "run.keep_state=true", "its metadata names the classes"):
        assert words in text
