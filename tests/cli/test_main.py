"""The command itself: quick to start, and errors in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scale_cl


def test_help_does_not_import_what_is_slow() -> None:
    asked = [["--help"], ["--version"]]
    asked += [[name, "--help"] for name in ("run", "data", "list", "bench", "report", "compare", "reproduce")]
    slow = {"torch", "sklearn", "pandas", "matplotlib", "jinja2", "scipy", "ray"}
    script = (
        "import contextlib, sys\n"
        "from scale_cl.cli.main import main\n"
        f"for arguments in {asked}:\n"
        "    sys.argv = ['scale-cl', *arguments]\n"
        "    with contextlib.suppress(SystemExit):\n        main()\n"
        f"    print(arguments, *({slow} & set(sys.modules)), file=sys.stderr)\n"
        "    print('----')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [str(arguments) for arguments in asked]
    *texts, rest = done.stdout.split("----\n")
    assert rest == ""
    for arguments, text in zip(asked, texts, strict=True):
        assert arguments == ["--version"] or f"Usage: scale-cl {' '.join(arguments[:-1])}" in text
    assert "DIR" in texts[6]
    assert "DIR" in texts[7]
    assert "--dry-run" in texts[8]


GROUPS = ("", "data", "list", "memory")


@pytest.mark.parametrize("group", GROUPS)
def test_the_first_sentence_about_a_command_fits_in_a_list_of_80_columns(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = command(*filter(None, [group]), "--help").out.partition("Commands:")[2]
    assert listed.count("\n") > 2
    assert "..." not in listed


def test_a_flag_has_no_type_and_a_default_in_brackets_is_shown(command: Callable[..., Any]) -> None:
    for words in ([], ["run"], ["resume"], ["demo"], ["report"], ["export"], ["data", "get"]):
        assert "<bool>" not in command(*words, "--help").out
    assert "The learner's settings [ours]." in command("run", "--help").out  # not taken for markup


def test_the_version_is_printed(command: Callable[..., Any]) -> None:
    finished = command("--version")
    assert (finished.code, finished.out) == (0, f"scale-cl {scale_cl.__version__}\n")


def test_the_installed_command_and_the_module_are_the_same() -> None:
    script = Path(sys.executable).parent / "scale-cl"
    outputs = [
        subprocess.run([*start, "--version"], capture_output=True, text=True, check=True).stdout
        for start in ([script], [sys.executable, "-m", "scale_cl"])
    ]
    assert outputs[0] == outputs[1] == f"scale-cl {scale_cl.__version__}\n"


@pytest.mark.parametrize("arguments", [["fly"], ["run", "--fly"], ["run", "--seeds", "many"], ["show", "scale", "er"]])
def test_a_wrong_usage_ends_with_code_2_and_no_traceback(command: Callable[..., Any], arguments: list[str]) -> None:
    finished = command(*arguments)
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert "Usage: " in finished.err


def test_an_error_leaves_one_line_on_stderr_of_a_real_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scale_cl", "run", "--stream", "dgits"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "scale-cl: error: unknown stream 'dgits'; did you mean 'digits'? (see `scale-cl list streams`)\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_can_be_imported() -> None:
    for name in scale_cl.__all__:
        assert getattr(scale_cl, name) is not None
    assert set(scale_cl.__all__) <= set(dir(scale_cl))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        scale_cl.nothing  # noqa: B018
