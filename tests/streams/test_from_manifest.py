"""Streams of image files that a CSV file lists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from scale_cl.errors import DataError, StreamError
from scale_cl.streams import from_manifest


def listed(folder: Path, header: str = "path,label,task,split") -> Path:
    """Ten images of each of two classes in tasks `late` and `early`, every fifth to test with."""
    lines = [header]
    for t, task in enumerate(("late", "early")):
        for i in range(20):
            label, part = ("ant", "bee")[i % 2], "test" if i % 5 == 0 else "train"
            file = folder / "images" / f"{task}-{i}.png"
            file.parent.mkdir(exist_ok=True)
            Image.new("RGB", (5, 4), (100 * t + i, 0, 0)).save(file)
            fields = {"path": f"images/{file.name}", "label": label, "task": task, "split": part}
            lines.append(",".join(fields[name] for name in header.split(",")))
    target = folder / "all.csv"
    target.write_text("\n".join(lines) + "\n")
    return target


def test_tasks_come_in_the_order_of_the_file_with_its_split(tmp_path: Path) -> None:
    stream = from_manifest(listed(tmp_path), shuffle=False)
    assert (stream.name, stream.spec.shape) == ("all", (3, 4, 5))
    assert [(task.name, task.classes) for task in stream.tasks] == [("late", ("ant", "bee")), ("early", ("ant", "bee"))]
    x, y = stream.test_data(1)
    assert [int(image[0, 0, 0]) for image in x] == [100, 105, 110, 115]
    assert y.tolist() == [0, 1, 0, 1]
    assert [int(image[0, 0, 0]) for image in stream.train_data(0)[0]] == [i for i in range(20) if i % 5]


def test_without_a_split_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    stream = from_manifest(listed(tmp_path, "task,label,path"), held_out=0.3, scenario="domain")
    for k in range(2):
        assert stream.test_data(k)[1].bincount().tolist() == [3, 3]
        colours = [int(i[0, 0, 0]) for x in (stream.train_data(k)[0], stream.test_data(k)[0]) for i in x]
        assert sorted(colours) == [100 * k + i for i in range(20)]


def test_all_rows_may_be_for_training(tmp_path: Path) -> None:
    file = listed(tmp_path)
    file.write_text("path,label,task,split\nimages/late-1.png,x,t,train\n")
    assert [(len(task.train), len(task.test)) for task in from_manifest(file).tasks] == [(1, 0)]


def test_a_file_written_by_a_spreadsheet_is_read(tmp_path: Path) -> None:
    file = listed(tmp_path)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert len(from_manifest(file)) == 2


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("file,label,task\na.png,x,y\n", StreamError, "no column 'path'"),
        ("path,label,task\n", StreamError, "lists no files"),
        ("path,label,task\na.png,,t\n", StreamError, "line 2: label is empty"),
        ("path,label,task,split\na.png,x,t,valid\n", StreamError, "line 2: split is 'valid'"),
        (
            "path,label,task,split\nimages/late-1.png,x,t,train\nimages/late-1.png,x,u,train\nimages/late-1.png,x,u,test\n",
            StreamError,
            "'t' has no test samples, but others have",
        ),
        ("path,label,task\n\na.png,x,t\nimages/late-1.png,x,t\n", DataError, "line 3: .*a.png is missing"),
        ("path,label,task\na.png,x,t\nb.png,x,t\n", DataError, r"2 images .*: a.png \(line 2\), b.png \(line 3\);"),
        ("path,label,task\n" + "a.png,x,t\n" * 12, DataError, r"a.png \(line 11\) and 2 more;"),
        ("path;label;task\na.png;x;t\n", StreamError, "looks separated by semicolons; save it with commas"),
        ("path\tlabel\ttask\na.png\tx\tt\n", StreamError, "looks separated by tabs"),
        ('path,label,task\n"a.png,x,t\n', DataError, "not a CSV file"),
        ("path,label,task\n\xff", DataError, "not a CSV file in UTF-8"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    file = listed(tmp_path)
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(error, match=message):
        from_manifest(file)


def test_a_missing_manifest_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        from_manifest(tmp_path / "none.csv")
    with pytest.raises(DataError, match=f"is a folder; for images in folders use folder:{tmp_path}"):
        from_manifest(tmp_path)
    with pytest.raises(StreamError, match="held_out is 1"):
        from_manifest(listed(tmp_path), held_out=1)


def test_listed_images_that_are_missing_are_skipped_where_errors_are_unless_all_are(tmp_path: Path) -> None:
    file = listed(tmp_path)
    (tmp_path / "images" / "late-1.png").unlink()
    with pytest.raises(DataError, match=r"line 3: .*late-1\.png is missing"):
        from_manifest(file)
    stream = from_manifest(file, on_error="skip", workers=0, shuffle=False)
    x, y = stream.arrival(0, torch.device("cpu")).take(0, 4)
    assert [int(image[0, 0, 0]) for image in x] == [2, 3, 4]
    assert y.tolist() == [0, 1, 0]
    for image in (tmp_path / "images").iterdir():
        image.unlink()
    with pytest.raises(DataError, match="lists 40 images that are missing"):
        from_manifest(file, on_error="skip")
