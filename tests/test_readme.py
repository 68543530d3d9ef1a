"""The README's Python runs, and its commands exist."""

from __future__ import annotations

import html
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


ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(p for f in ("docs", "examples", "benchmarks", "results") for p in (ROOT / f).rglob("*.md"))]
)
LINK = re.compile(r"\]\((?P<markdown>[^)\s]+)\)|(?:src|href)=\"(?P<html>[^\"]+)\"")


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of the headings, as a repository viewer and the built manual make them, and those that are written out."""
    headings = re.findall(r"^#+ (.+?)(?: *\{.*\})?$", prose(page), flags=re.MULTILINE)
    written = set(re.findall(r'<a id="([^"]+)"', prose(page)))
    return written | {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    found = []
    for match in LINK.finditer(prose(page)):
        link = match["markdown"] or match["html"]
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere_in_the_checkout(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# One\n[a](page.md#one) [b](#two) [c](gone.md) <img src="gone.svg"> [d](https://e.f/g)')
    assert broken_links(page) == ["#two", "gone.md", "gone.svg"]


def test_the_pictures_of_the_readme_load_nothing_from_elsewhere() -> None:
    pictures = [ROOT / match["html"] for match in LINK.finditer(README) if match["html"]]
    assert [picture.name for picture in pictures] == ["forgetting.svg", "terminal.svg"]
    for picture in pictures:
        text = picture.read_text(encoding="utf-8")
        assert not re.search(r"@font-face|@import|<script|(?:href|src)=\"(?!#)|url\((?!#)", text), picture
    shown = html.unescape(re.sub(r"<[^>]+>", "", (ROOT / "docs/figures/terminal.svg").read_text(encoding="utf-8")))
    assert "$\N{NO-BREAK SPACE}scale-cl\N{NO-BREAK SPACE}demo" in shown
    assert re.search(r"SCALE\s*│\s*8\d\.\d", shown)
