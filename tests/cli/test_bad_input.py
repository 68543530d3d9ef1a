"""Bad input, end to end: one line that names what was wrong and what would be right, code 2, nothing left behind."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import files


def assert_refused(finished: Any, *parts: str, leaving: set[str] | None = None) -> None:
    """One line on stderr with these parts, code 2, nothing on stdout, and only `leaving` in the directory."""
    assert finished.code == 2
    assert finished.out == ""
    lines = finished.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("scale-cl: error: ")
    for part in parts:
        assert part in lines[0]
    assert {str(p) for p in Path().rglob("*")} == (leaving or set())


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--stream", "pmnits"], ["unknown stream 'pmnits'", "did you mean 'pmnist'?"]),
        (["--stream", "zzz"], ["unknown stream 'zzz'", "known are digits, pmnist"]),
        (["--learner", "scal"], ["unknown learner 'scal'", "did you mean 'scale'?"]),
        (["--learner", "SCALE"], ["unknown learner 'SCALE'", "did you mean 'scale'?"]),
        (["--learner", "Scale_EMA"], ["did you mean 'scale-ema'?"]),
        (["--stream", "PMNIST"], ["unknown stream 'PMNIST'", "did you mean 'pmnist'?"]),
        (["--stream", ""], ["--stream is empty"]),
        (["--stream", "x" * 5000], ["unknown stream", "known are digits"]),
        (["--set", "inner_lrr=0.1"], ["unknown setting 'learner.inner_lrr'", "did you mean 'inner_lr'?"]),
        (["--set", "run.sedes=3"], ["unknown setting 'run.sedes'", "did you mean 'seeds'?"]),
        (["--set", "stream.task=3"], ["unknown setting 'stream.task'", "did you mean 'tasks'?"]),
        (["--set", "batch_size=3"], ["unknown setting 'learner.batch_size'", "did you mean 'run.batch_size'?"]),
        (["--set", "model.depth=3"], ["unknown section 'model'", "stream, learner, run"]),
        (["--set", "inner_lr"], ["--set 'inner_lr'", "expected field=value"]),
        (["--set", "inner_lr=fast"], ["learner.inner_lr: 'fast' is not a number"]),
        (["--set", "inner_lr=0,01"], ["learner.inner_lr: '0,01' is not a number; write 0.01"]),
        (["--set", "inner_lr=-1"], ["learner.inner_lr: -1.0 is out of range"]),
        (["--set", "memory=60", "--memory", "50"], ["learner.memory is given twice"]),
        (["--learner", "finetune", "--memory", "50"], ["unknown setting 'learner.memory'"]),
        (["--seeds", "0"], ["run.seeds: 0 is out of range", "at least 1"]),
        (["--seed", "-1"], ["run.seed: -1 is out of range", "at least 0"]),
        (["--memory", "0"], ["learner.memory: 0 is out of range"]),
        (["--threads", "0"], ["run.threads: 0 is out of range"]),
        (["--tasks", "0"], ["stream.tasks: 0 is out of range"]),
        (["--tasks", "11"], ["11", "10"]),
        (["--device", "tpu"], ["run.device: 'tpu' is not one of auto, cpu, cuda, cuda:N"]),
        (["--config", "none.yaml"], ["config file none.yaml does not exist"]),
        (["--stream", "pmnist"], ["no-data"]),
        (["--stream", "scifar100", "--data", "nowhere"], ["nowhere"]),
        (["--stream", "sminiimagenet", "--data", "nowhere", "--out", "a/b/c"], ["nowhere"]),
    ],
)
def test_run_refuses(command: Callable[..., Any], arguments: list[str], parts: list[str]) -> None:
    assert_refused(command("run", "--quiet", *arguments), *parts)


def test_a_folder_or_csv_file_given_as_a_stream_is_told_how_to_be_named(command: Callable[..., Any]) -> None:
    Path("digit").mkdir()  # near the name of a stream, but there
    Path("list.csv").touch()
    Path("notes.txt").touch()
    left = {"digit", "list.csv", "notes.txt"}
    for name, hint in (("digit", "'folder:digit'"), ("list.csv", "'csv:list.csv'")):
        refused = command("run", "--stream", name)
        assert_refused(refused, f"unknown stream '{name}'; did you mean {hint}?", leaving=left)
    assert_refused(command("run", "--stream", "notes.txt"), "known are digits", leaving=left)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("learner: {inner_lr: 0.1", ["bad.yaml, line 1"]),
        ("stream:\n  name: digits\n learner: x\n", ["bad.yaml, line 3"]),
        ("a: &x [1]\nb: *x\n", ["bad.yaml, line 2", "aliases"]),
        ("run: {seeds: 1}\nrun: {seeds: 2}\n", ["bad.yaml, line 2", "'run' is given twice"]),
        ("learner: !!python/object/apply:os.system [ls]\n", ["bad.yaml, line 1"]),
        ("- 1\n- 2\n", ["bad.yaml", "sections stream, learner, run"]),
        ("leaner: {inner_lr: 0.1}\n", ["unknown section 'leaner'", "did you mean 'learner'?"]),
        ("run: 5\n", ["section 'run' must hold named values"]),
        ("learner: {inner_lrr: 0.1}\n", ["unknown setting 'learner.inner_lrr'", "did you mean 'inner_lr'?"]),
        ("learner: {inner_lr: fast}\n", ["learner.inner_lr: 'fast' is not a number"]),
        ("learner: {name: [1]}\n", ["learner.name: [1] is not text; give a name, module:Class or file.py:Class"]),
        ("stream: {name: 5}\n", ["stream.name: 5 is not text"]),
        ("# " + "x" * (1 << 20), ["larger than"]),
        ("\x00", ["bad.yaml"]),
    ],
)
def test_run_refuses_a_bad_config_file(command: Callable[..., Any], text: str, parts: list[str]) -> None:
    Path("bad.yaml").write_text(text)
    assert_refused(command("run", "--config", "bad.yaml"), *parts, leaving={"bad.yaml"})


def test_run_refuses_a_config_that_is_not_text(command: Callable[..., Any]) -> None:
    Path("bad.yaml").write_bytes(b"\xff\xfe\x00")
    assert_refused(command("run", "--config", "bad.yaml"), "bad.yaml is not UTF-8", leaving={"bad.yaml"})
    assert_refused(command("run", "--config", "."), ". cannot be read: Is a directory", leaving={"bad.yaml"})


def test_run_refuses_an_altered_data_file(command: Callable[..., Any]) -> None:
    data = Path("mine") / "mnist"
    data.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (data / f"{part}-ubyte.gz").write_bytes(gzip.compress(b"not an idx file"))
    before = {str(p) for p in Path().rglob("*")}
    assert_refused(command("run", "--stream", "pmnist", "--data", "mine", "-q"), "mine/mnist", leaving=before)


def test_run_refuses_a_directory_that_holds_a_result_before_it_trains(command: Callable[..., Any]) -> None:
    Path("mine").mkdir()
    Path("mine/result.json").write_text("{}")
    for extra in ([], ["--dry-run"]):
        assert_refused(
            command("run", "--out", "mine", *extra),
            "mine holds a result already",
            "--force",
            leaving={"mine", "mine/result.json"},
        )
    assert Path("mine/result.json").read_text() == "{}"


def test_run_refuses_a_directory_that_another_process_uses(command: Callable[..., Any]) -> None:
    with files.lock(Path("mine/.lock")):
        assert_refused(command("run", "--out", "mine", "-q"), "mine is in use", leaving={"mine", "mine/.lock"})


def test_run_refuses_a_file_as_its_directory(command: Callable[..., Any]) -> None:
    Path("mine").write_text("x")
    assert_refused(command("run", "--out", "mine"), "mine is a file; --out names a directory", leaving={"mine"})
    assert_refused(command("run", "--out", "mine/deep"), "mine/deep cannot be written to", leaving={"mine"})


def test_show_refuses_what_run_refuses(command: Callable[..., Any]) -> None:
    assert_refused(command("show", "scal"), "unknown learner 'scal'; did you mean 'scale'?")
    assert_refused(command("show", "scale", "--stream", "x"), "unknown stream 'x'")
    assert_refused(command("show", "scale", "--set", "lambda4=1"), "did you mean 'lambda")
