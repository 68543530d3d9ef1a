"""Data that is read as it comes has the same bits as data in memory; what cannot be read is named."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from scale_cl.errors import DataError, StreamError
from scale_cl.streams import Stream, from_folder, from_manifest, reading, split
from scale_cl.streams.keeping import Reading
from scale_cl.streams.reading import Block, LazyRows, ReadAhead, Readers

CPU = torch.device("cpu")


def folder(root: Path, images: int = 60) -> Path:
    """Two tasks of two classes, random pixels of 6 x 5."""
    draw = np.random.default_rng(0)
    for i in range(images):
        place = root / f"task{i % 2}" / "ab"[i % 4 // 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (6, 5, 3), dtype=np.uint8)).save(place / f"{i:03}.png")
    return root


def lazy(stream: Stream) -> LazyRows:
    assert isinstance(stream.arrays.x_train, LazyRows)
    return stream.arrays.x_train


def file_of(stream: Stream, task: int, position: int) -> Path:
    """The file that arrives at a position of a task."""
    source: Any = lazy(stream).readers.source
    return Path(source.path(int(stream.tasks[task].train[position])))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_is_the_one_that_memory_gives(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 7 * 90)  # requests of seven images
    here, there = (from_folder(folder(tmp_path), seed=3, keep=keep, workers=workers) for keep in ("memory", "disk"))
    assert isinstance(lazy(there), LazyRows)
    assert (there.spec, [t.train.tolist() for t in there.tasks]) == (here.spec, [t.train.tolist() for t in here.tasks])
    for k in range(2):
        x, y = here.train_data(k)
        samples = there.arrival(k, CPU)
        for start in [*range(0, len(x), 5), 13, 14, 2]:  # on, and from anywhere, as after a resume
            got = samples.take(start, start + 5)
            assert torch.equal(got[0], x[start : start + 5])
            assert torch.equal(got[1], y[start : start + 5])
        tested = list(there.test_batches(k, 4, CPU))
        assert torch.equal(torch.cat([x for x, _ in tested]), here.test_data(k)[0])
        assert torch.equal(torch.cat([y for _, y in tested]), here.test_data(k)[1])
        assert torch.equal(there.train_data(k)[0], x)
    again = pickle.loads(pickle.dumps(there))
    assert torch.equal(again.test_data(1)[0], here.test_data(1)[0])


def test_a_data_set_that_is_read_as_it_comes_is_split_like_one_in_memory(tmp_path: Path) -> None:
    made = [from_folder(folder(tmp_path), scenario="domain", keep=keep, workers=0) for keep in ("memory", "disk")]
    one, other = (split(stream.arrays, classes_per_task=1).train_data(1) for stream in made)
    assert torch.equal(one[0], other[0])
    with pytest.raises(StreamError, match=r"max.* needs all inputs, but these are read as they come"):
        made[1].arrays.x_train.max()


@pytest.mark.parametrize("fault", ["gone", "broken"])
def test_a_file_that_fails_in_mid_stream_is_named_when_its_batch_is_due(fault: str, tmp_path: Path) -> None:
    stream = from_folder(folder(tmp_path), keep="disk", workers=0)
    file = file_of(stream, 0, 12)
    file.unlink() if fault == "gone" else file.write_bytes(file.read_bytes()[:60])
    samples = stream.arrival(0, CPU)
    assert len(samples.take(0, 10)[0]) == 10
    with pytest.raises(DataError, match=rf"^{file} .*; stream.on_error=skip .* leaves such samples out$") as refused:
        samples.take(10, 20)
    assert "\n" not in str(refused.value)


def test_files_that_fail_are_left_out_of_their_batch_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = from_folder(folder(tmp_path), keep="memory").train_data(0)
    stream = from_folder(tmp_path, workers=0, on_error="skip")  # read as it comes, however small
    file = file_of(stream, 0, 12)
    file.write_bytes(b"no picture")
    with caplog.at_level(logging.WARNING):
        for start in (0, 10):  # the second is a resume
            x, y = stream.arrival(0, CPU).take(start, 20)
            kept = [i for i in range(start, 20) if i != 12]
            assert torch.equal(x, whole[0][kept])
            assert torch.equal(y, whole[1][kept])
    assert [r.getMessage() for r in caplog.records] == [
        f"scale-cl: warning: skipped: {file} is not an image that can be read: replace or remove it"
    ]
    assert len(lazy(stream).readers.skipped) == 1
    in_memory = from_folder(tmp_path, keep="memory", on_error="skip")
    assert len(in_memory.arrays.x_train) == len(stream.arrays.x_train) - 1
    assert [task.unread for task in in_memory.tasks] == [1, 0]
    with pytest.raises(DataError, match=rf"^{file} .*; stream.on_error=skip .* leaves such samples out$"):
        from_folder(tmp_path, keep="memory")
    first = Path(lazy(stream).readers.source.path(0))  # type: ignore[attr-defined]
    first.unlink()
    first.symlink_to(tmp_path / "nothing")  # listed, and not there
    assert from_folder(tmp_path, workers=0, on_error="skip").spec.shape == (3, 6, 5)


def test_a_worker_that_is_killed_is_an_error_of_one_line(tmp_path: Path) -> None:
    stream = from_folder(folder(tmp_path), keep="disk", workers=1)
    before = set(multiprocessing.active_children())
    assert len(stream.arrival(0, CPU).take(0, 1)[0]) == 1
    (worker,) = set(multiprocessing.active_children()) - before
    worker.kill()
    worker.join()
    with pytest.raises(DataError, match="a process that reads data was killed"):
        stream.arrival(0, CPU).take(0, 10)


class Stuck:
    """A source whose rows never come, until `go` is set."""

    shape, sequential = (3,), False

    def __init__(self) -> None:
        self.go = threading.Event()

    def read(self, rows: NDArray[np.int64]) -> Block:
        self.go.wait()
        return Block(np.zeros((len(rows), 3), np.float32))


def test_readers_that_nobody_needs_any_more_are_not_waited_for() -> None:
    source = Stuck()
    readers = [Readers(source, workers=0)]
    block = readers[0].submit(np.arange(2))
    dropping = threading.Thread(target=readers.clear, daemon=True)
    dropping.start()
    dropping.join(20)
    waited = dropping.is_alive()
    source.go.set()
    assert not waited
    assert block.result().x.shape == (2, 3)


def test_samples_change_places_within_their_window_only(tmp_path: Path) -> None:
    stream = from_folder(folder(tmp_path), window=5, keep="disk")
    for task in stream.tasks:
        first = int(task.train.min())
        rows = (task.train - first).tolist()
        assert sorted(rows) != rows
        assert [row // 5 for row in rows] == [position // 5 for position in range(len(rows))]


def test_small_data_stays_in_memory_and_the_choice_can_be_set(tmp_path: Path) -> None:
    folder(tmp_path)
    assert not isinstance(from_folder(tmp_path).arrays.x_train, LazyRows)
    assert not isinstance(from_folder(tmp_path, keep=60 * 90).arrays.x_train, LazyRows)
    assert isinstance(from_folder(tmp_path, keep=60 * 90 - 1).arrays.x_train, LazyRows)
    assert not Reading().in_memory(2**60)
    for wrong in (
        {"keep": "tape"},
        {"window": 0},
        {"workers": -1, "keep": "disk"},
        {"on_error": "cry", "keep": "disk"},
    ):
        with pytest.raises(StreamError, match="must be"):
            from_folder(tmp_path, **wrong)


def test_many_tasks_are_listed_without_looking_at_all_rows_for_each(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    lines = [f"a.png,{i % 2},t{t},{part}" for t in range(3000) for i, part in enumerate(("train", "train", "test"))]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,task,split", *lines]))
    stream = from_manifest(tmp_path / "list.csv", keep="disk", workers=0)
    assert len(stream) == 3000
    assert stream.tasks[2999].test.tolist() == [2999]


def test_an_empty_slice_at_the_end_is_empty(tmp_path: Path) -> None:
    stream = from_folder(folder(tmp_path), keep="disk", workers=0)
    x = lazy(stream)
    rows = torch.arange(10)
    assert [len(ReadAhead(x, rows, rows).take(start, 20)[0]) for start in (0, 8, 9)] == [10, 2, 1]
