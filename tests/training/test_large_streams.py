"""Runs on data that is read as it comes: the same bits as from memory, also after a kill; errors leave the state."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from scale_cl import resolve, results, run
from scale_cl.errors import DataError, Interrupted
from scale_cl.streams import Stream, from_folder
from scale_cl.streams.reading import LazyRows
from scale_cl.training import memory_check, train
from scale_cl.training.config import Config
from scale_cl.training.lanes import build_learner, build_stream
from tests.learners.sameness import differences
from tests.training.child import Child
from tests.training.test_kill import assert_same, end, finish

CPU = torch.device("cpu")


def images(root: Path, count: int = 160) -> Path:
    """Grey images of two classes in two tasks, for the small network."""
    draw = np.random.default_rng(0)
    for i in range(count):
        place = root / f"task{i % 2}" / "ab"[i % 4 // 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 128, (8, 8), dtype=np.uint8) + 100 * (i % 4 // 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i:04}.png")
    return root


def config(root: Path, options: dict[str, Any] | None = None, *, learner: str = "er") -> Config:
    given = {"stream.channels": 1, "run.device": "cpu", "stream.keep": "disk", "stream.workers": 0}
    return resolve(stream=f"folder:{root}", learner=learner, options={**given, **(options or {})})


@pytest.mark.parametrize("learner", ["er", "joint"])
def test_a_run_that_reads_as_it_comes_has_the_bits_of_one_from_memory(learner: str, tmp_path: Path) -> None:
    images(tmp_path)
    trained = []
    for keep in ("memory", "disk"):
        stream = from_folder(tmp_path, channels=1, keep=keep, workers=0, seed=1)
        made = build_learner(config(tmp_path, learner=learner), stream, 1, CPU)
        trained.append((made, train(made, stream, batch_size=9).matrix))
    assert trained[0][1] == trained[1][1]
    assert differences(trained[0][0], trained[1][0]) == []


def test_a_file_that_goes_missing_stops_the_run_which_resumes_from_memory_or_disk_when_it_is_back(
    tmp_path: Path,
) -> None:
    settings = config(images(tmp_path / "images"), {"run.checkpoint_every": 2, "run.keep_state": True})
    run(settings, out=tmp_path / "whole")
    stream = build_stream(settings, 0, None)
    assert isinstance(stream.arrays.x_train, LazyRows)
    source: Any = stream.arrays.x_train.readers.source
    lost = Path(source.path(int(stream.tasks[1].train[50])))
    kept = lost.read_bytes()

    def lose(event: object) -> None:
        lost.unlink(missing_ok=True)

    with pytest.raises(DataError, match=f"^{lost} is missing; stream.on_error=skip"):
        run(settings, out=tmp_path / "stopped", on_event=lose)
    lost.write_bytes(kept)
    again = config(tmp_path / "images", {"stream.keep": "memory", "run.checkpoint_every": 2, "run.keep_state": True})
    run(again, out=tmp_path / "stopped", resume=True)
    assert_same(end(tmp_path / "stopped"), end(tmp_path / "whole"))


def test_skipped_samples_are_counted_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    skipping = {"stream.on_error": "skip", "run.checkpoint_every": 2}
    settings = config(images(tmp_path / "images"), skipping)
    for file in sorted(tmp_path.glob("images/*/a/*.png"))[:30]:
        file.write_bytes(b"no picture")
    with caplog.at_level(logging.WARNING):
        whole = run(settings)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[-1] == "scale-cl: warning: samples that could not be read and were left out: 30"
    assert sum("is not an image" in text for text in texts) == 10
    in_memory = run(config(tmp_path / "images", {**skipping, "stream.keep": "memory"}))
    assert whole.seeds[0].skipped_samples == in_memory.seeds[0].skipped_samples
    assert 15 < whole.seeds[0].skipped_samples < 30  # the others were to be tested on
    with pytest.raises(Interrupted):
        run(settings, out=tmp_path / "out", stop=iter([False] * 9 + [True] * 9).__next__)
    assert run(settings, out=tmp_path / "out", resume=True).seeds == results.read(tmp_path / "out").seeds
    assert results.read(tmp_path / "out").values("skipped_samples") == whole.values("skipped_samples")


def test_data_that_is_read_as_it_comes_takes_little_memory(tmp_path: Path) -> None:
    settings = config(images(tmp_path, 40))
    sizes = {}
    for keep in ("memory", "disk"):
        stream: Stream = from_folder(tmp_path, channels=1, size=100, keep=1 if keep == "disk" else "auto")
        sizes[keep] = memory_check.needed(settings, stream, on_gpu=True, learners=1, whole=False)
    assert sizes["disk"]["stream"] < 10_000 < sizes["memory"]["stream"]


def test_a_killed_run_is_resumed_to_the_bit_and_leaves_no_workers(tmp_path: Path) -> None:
    often = {"run.checkpoint_every": 5, "run.keep_state": True}
    run(config(images(tmp_path / "images", 600), {"stream.keep": "memory", **often}), out=tmp_path / "whole")
    values = {"stream.channels": 1, "stream.keep": "disk", "stream.workers": 1, "run.device": "cpu", **often}
    words = [word for name, value in values.items() for word in ("--set", f"{name}={str(value).lower()}")]
    stream = f"folder:{tmp_path / 'images'}"
    child = Child(tmp_path, "run", "-q", "--stream", stream, "--learner", "er", *words, "--out", tmp_path / "o")
    child.wait_for(tmp_path / "o" / "checkpoints" / "seed-0" / "*")
    workers = descendants(child.pid)
    child.kill()
    assert (tmp_path / "o" / "run.json").exists()
    finish(tmp_path, "resume", "-q", tmp_path / "o")
    assert_same(end(tmp_path / "o"), end(tmp_path / "whole"))
    ends = time.monotonic() + 30
    while alive := [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()]:
        assert time.monotonic() < ends, alive
        time.sleep(0.05)


def descendants(process: int) -> list[int]:
    """The children of a process and theirs."""
    found = [
        int(word) for file in Path(f"/proc/{process}/task").glob("*/children") for word in file.read_text().split()
    ]
    return found + [pid for child in found for pid in descendants(child)]
