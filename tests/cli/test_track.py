"""`scale-cl run --track`: settings, errors before training, and runs that are resumed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results
from scale_cl.trackers import without_passwords
from tests.cli.test_resume import crash_after
from tests.trackers.test_tensorboard_logs import curve, opened
from tests.training.test_checkpointing import Crash

SHORT = ("run", "--tasks", "2", "--learner", "er", "--set", "run.batch_size=50")


def test_a_tracked_run_has_the_result_of_one_that_is_not_and_says_where_to_look(command: Callable[..., Any]) -> None:
    assert command(*SHORT, "--out", "plain", "-q").code == 0
    tracked = command(*SHORT, "--out", "o", "--track", "tensorboard", "--track-every", "5")
    assert tracked.code == 0
    assert tracked.err.startswith("tracked with tensorboard: o/tensorboard\n")
    one, other = (results.read(Path(d)).seeds[0] for d in ("plain", "o"))
    assert other.matrix == one.matrix
    assert other.config == one.config, "how a run is tracked is no part of what it is"
    reader = opened(Path("o/tensorboard/seed-0"))
    assert list(curve(reader, "loss/loss")) == [5, 10, 15, 20, 25, 30, 35, 40]
    assert curve(reader, "result/acc")[0] == pytest.approx(one.acc, rel=1e-6)
    assert sorted(p.name for p in Path("o").iterdir()) == ["result.json", "seeds", "tensorboard", "tracking.json"]
    assert command(*SHORT, "--out", "o", "-q", "--force").code == 0
    assert sorted(p.name for p in Path("o").iterdir()) == ["result.json", "seeds"], "logs of another result go"


def test_a_resumed_run_goes_on_in_the_same_logs(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    more = ("--set", "run.checkpoint_every=12", "-q", "--track", "tensorboard", "--track-every", "4")
    assert command(*SHORT, *more, "--out", "straight").code == 0
    crash_after(30, monkeypatch)
    with pytest.raises(Crash):
        command(*SHORT, *more, "--out", "o")
    assert command("resume", "o", "-q").code == 0
    whole, parts = (opened(Path(d) / "tensorboard" / "seed-0") for d in ("straight", "o"))
    for tag in whole.Tags()["scalars"]:
        assert curve(parts, tag) == curve(whole, tag), tag


def test_a_tracker_that_is_gone_can_be_left_out_of_a_resumed_run(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_after(30, monkeypatch)
    with pytest.raises(Crash):
        command(*SHORT, "--out", "o", "-q", "--track", "tensorboard")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    refused = command("resume", "o", "-q")
    assert refused.code == 2
    assert refused.err == (
        "scale-cl: error: tracking with tensorboard needs the extra: pip install 'scale-cl[tensorboard]'; "
        "--no-track goes on without it\n"
    )
    assert command("resume", "o", "-q", "--no-track").code == 0


def test_where_to_look_is_not_said_before_the_data_could_be_read(command: Callable[..., Any]) -> None:
    refused = command("run", "--stream", "folder:nowhere", "--out", "o", "--track", "tensorboard")
    assert refused.code == 2
    assert "tracked with" not in refused.err
    assert refused.err.startswith("scale-cl: error: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--track", "tensorbord"), "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        (("--track", "mlflow,neptune"), "unknown tracker 'neptune'; known are tensorboard, mlflow, wandb"),
        (("--track-every", "5"), "--track-every, --track-project and --track-address need --track NAME"),
        (
            ("--track", "mlflow", "--track-address", "http://127.0.0.1:9"),
            "tracking with mlflow at http://127.0.0.1:9 cannot start: no server answers there ([Errno 111] Connection "
            "refused)",
        ),
    ],
)
def test_what_cannot_be_tracked_is_one_line_before_training(
    command: Callable[..., Any], arguments: tuple[str, ...], words: str
) -> None:
    refused = command(*SHORT, "--out", "o", *arguments)
    assert refused.code == 2
    assert refused.err == f"scale-cl: error: {words}\n"
    assert not Path("o").exists()


def test_a_missing_extra_is_one_line_before_training(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    refused = command(*SHORT, "--out", "o", "--track", "tensorboard", "--track", "mlflow")
    assert refused.code == 2
    assert refused.err == "scale-cl: error: tracking with mlflow needs the extra: pip install 'scale-cl[mlflow]'\n"
    assert not Path("o").exists()


def test_a_note_that_names_what_is_no_tracker_is_refused(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_after(30, monkeypatch)
    with pytest.raises(Crash):
        command(*SHORT, "--out", "o", "-q", "--track", "tensorboard")
    note = Path("o/tracking.json")
    note.write_text(note.read_text().replace("tensorboard", "shutil"))
    refused = command("resume", "o")
    assert refused.code == 2
    assert refused.err == "scale-cl: error: unknown tracker 'shutil'; known are tensorboard, mlflow, wandb\n"


def test_a_password_is_recorded_nowhere_and_paths_are_as_they_were_given(command: Callable[..., Any]) -> None:
    address = "http://me:se/cr@t@127.0.0.1:9/a?token=secret"
    words = (*SHORT, "--set", "run.keep_state=true", "--set", "run.checkpoint_every=5", "--out", "./a@b/../o")
    tracked = command(*words, "--track", "tensorboard", f"--track-address={address}")
    assert tracked.code == 0
    shown = "--track-address=http://127.0.0.1:9/a?token=***"
    wanted = shlex.join(["scale-cl", *words, "--track", "tensorboard", shown])
    assert results.read(Path("o")).environment["command"] == wanted
    everything = [p.read_bytes() for p in Path("o").rglob("*") if p.is_file()]
    everything += [tracked.out.encode(), tracked.err.encode()]
    assert not any(b"secret" in content or b"cr@t" in content for content in everything)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pass@host:5000/x", "http://host:5000/x"),
        ("http://token@host", "http://host"),
        ("http://me:p/a?s@s@host", "http://host"),
        ("API request to https://me:pass@host/api/2.0 failed", "API request to https://host/api/2.0 failed"),
        (
            "postgresql://host/db?user=me&password=pass&sslmode=on",
            "postgresql://host/db?user=me&password=***&sslmode=on",
        ),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("sqlite:////data/me@work/a.db", "sqlite:////data/me@work/a.db"),
        ("folder:images/me@work", "folder:images/me@work"),
    ],
)
def test_addresses_are_shown_without_passwords(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
