"""The README's Python runs, and its commands exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
RUNS = [line.split("#")[0].split(">")[0].split()[1:] for line in README.splitlines() if line.startswith("scale-cl run")]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_python_block_of_the_readme_runs(
    number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = BLOCKS[number]
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    if "result" in names:
        assert names["result"].acc > 80
        assert capsys.readouterr().out.startswith("accuracy 8")
    elif "model" in names:
        assert capsys.readouterr().out == "[0 1] [0 1]\n"
        assert (tmp_path / "model.safetensors").is_file()
    else:
        assert names["logits"].shape == (3, 2)


def test_the_readme_has_all_ways_of_use_from_python() -> None:
    assert len(BLOCKS) == 3
    assert any("train(learner, stream)" in block for block in BLOCKS)


@pytest.mark.parametrize("arguments", [a for a in RUNS if "--config" not in a], ids=" ".join)
def test_a_run_of_the_readme_is_understood(command: Callable[..., Any], arguments: list[str]) -> None:
    assert command(*arguments, "--dry-run").code == 0


def test_the_files_the_readme_links_to_exist() -> None:
    root = Path(__file__).parents[1]
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    missing = [link for link in links if not (root / link).exists()]
    assert missing == []
