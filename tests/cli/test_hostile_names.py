"""Names that are not UTF-8, too long, empty or hold terminal escapes; pipes and devices where files are expected."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import scale_cl
from scale_cl.errors import DataError, Interrupted
from scale_cl.streams import from_folder, from_manifest
from scale_cl.training.config import resolve
from tests.cli.test_bad_input import assert_refused

TINY = ("--learner", "er", "--set", "memory=4", "--set", "replay=4", "--set", "backbone=mlp-8-8")
FOREIGN = os.fsdecode(b"t\xff")  # a name that is not UTF-8
ESCAPE = "\x1b[31mred"
LONG = "n" * 300


def images(folder: Path, tasks: tuple[str, ...] = ("a",), classes: tuple[str, ...] = ("x", "y")) -> Path:
    """A stream of two images per class."""
    for own in (folder / task / name for task in tasks for name in classes):
        own.mkdir(parents=True)
        for i in range(2):
            Image.fromarray(np.full((4, 4, 3), 20 * i, np.uint8)).save(own / f"{i}.png")
    return folder


def leaves(*names: str) -> set[str]:
    """All paths below these, as they are now."""
    return {str(path) for name in names for path in (Path(name), *Path(name).rglob("*"))}


@pytest.mark.parametrize(
    ("folder", "tasks", "classes", "what"),
    [
        ("s", (FOREIGN,), ("x", "y"), r"the name of task 't\udcff' is not UTF-8"),
        ("s", ("a",), (FOREIGN, "y"), r"the name of class 't\udcff' is not UTF-8"),
        (FOREIGN, ("a",), ("x", "y"), r"stream.name: 'folder:t\udcff' is not UTF-8"),
    ],
)
def test_a_folder_whose_name_no_result_can_hold_is_refused(
    command: Callable[..., Any], folder: str, tasks: tuple[str, ...], classes: tuple[str, ...], what: str
) -> None:
    images(Path(folder), tasks, classes)
    assert_refused(command("run", "--stream", f"folder:{folder}", *TINY), what, leaving=leaves(folder))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("run", "--out", FOREIGN), r"the name of t\udcff is not UTF-8 text; choose another --out"),
        (("run", "--out", LONG), "File name too long; choose another --out"),
        (("run", "--out", ""), "--out is empty"),
        (("run", "--out="), "--out is empty"),
        (("run", "--config", LONG), "cannot be read: File name too long"),
        (("run", "--stream", f"folder:{LONG}"), "cannot be read: File name too long"),
        (("run", "--stream", f"csv:{LONG}"), "cannot be read: File name too long"),
        (("run", "--stream", "pmnist", "--data", LONG), "File name too long"),
        (("resume", LONG), "is not a directory"),
        (("resume", ""), "an argument is empty"),
        (("report", LONG), "does not exist"),
        (("compare", LONG), "does not exist"),
        (("memory", "list", LONG), "is not a directory"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_in_one_line(
    command: Callable[..., Any], arguments: tuple[str, ...], part: str
) -> None:
    assert_refused(command(*arguments), part)


def test_a_file_name_in_other_bytes_is_an_image_like_any_other(tmp_path: Path) -> None:
    folder = images(tmp_path / "s")
    (folder / "a" / "x" / "0.png").rename(folder / "a" / "x" / f"{FOREIGN}.png")
    assert len(from_folder(folder)) == 1


def test_terminal_escapes_in_names_are_escaped_where_they_are_printed(command: Callable[..., Any]) -> None:
    images(Path(ESCAPE), (ESCAPE,))
    done = command("run", "--stream", f"folder:{ESCAPE}", "--out", f"{ESCAPE}-out", *TINY)
    assert done.code == 0
    assert r"wrote \x1b[31mred-out/result.json" in done.err
    assert r"task \x1b[31mred: " in done.err
    assert done.out.startswith(r"er on \x1b[31mred: ACC")
    shown = command("report", f"{ESCAPE}-out", "--out", f"{ESCAPE}-page")
    compared = command("compare", f"{ESCAPE}-out")
    assert shown.code == compared.code == 0
    assert "\x1b" not in done.out + done.err + shown.out + shown.err + compared.out + compared.err


def test_terminal_escapes_in_warnings_are_escaped(command: Callable[..., Any], caplog: Any) -> None:
    command("--version")
    logging.getLogger("scale_cl").warning("scale-cl: warning: %s", ESCAPE)
    assert caplog.messages == [r"scale-cl: warning: \x1b[31mred"]


@pytest.mark.parametrize("config", ["pipe", "/dev/zero"])
def test_a_pipe_or_device_is_no_config_and_no_csv_file(command: Callable[..., Any], config: str) -> None:
    os.mkfifo("pipe")
    what = f"{config} cannot be read: it is not a plain file"
    assert_refused(command("run", "--config", config), what, leaving={"pipe"})
    assert_refused(command("run", "--stream", f"csv:{config}"), what, leaving={"pipe"})


@pytest.mark.parametrize("keep", ["memory", "disk"])
def test_a_pipe_or_device_is_no_image(keep: Any, tmp_path: Path) -> None:
    folder = images(tmp_path / "s")
    os.mkfifo(folder / "a" / "x" / "pipe.png")
    (folder / "a" / "x" / "zero.png").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"2 images in .* cannot be decoded: pipe\.png, zero\.png"):
        from_folder(folder, keep="memory")
    rows = [f"s/a/x/{name}.png,x,a,{part}" for name, part in (("0", "train"), ("pipe", "test"))]
    (tmp_path / "m.csv").write_text("\n".join(["path,label,task,split", *rows]))

    def read() -> None:
        listed = from_manifest(tmp_path / "m.csv", keep=keep, workers=0)
        list(listed.test_batches(0, 4, torch.device("cpu")))

    with pytest.raises(DataError, match=r"pipe\.png is not an image that can be read"):
        read()


def test_a_pipe_is_no_data_file(command: Callable[..., Any]) -> None:
    folder = Path("root") / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        os.mkfifo(folder / f"{part}-ubyte")
    assert_refused(command("run", "--stream", "pmnist", "--data", "root"), "MNIST", leaving=leaves("root"))


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_that_is_to_stop_while_data_is_read_stops_and_leaves_nothing(seeds: int, tmp_path: Path) -> None:
    folder = images(tmp_path / "s")
    config = resolve(stream=f"folder:{folder}", learner="er", options={"run.seeds": seeds, "run.processes": seeds})
    with pytest.raises(Interrupted, match="stopped as asked; no checkpoint was written"):
        scale_cl.run(config, out=tmp_path / "out", stop=lambda: True)
    assert not (tmp_path / "out").exists()
