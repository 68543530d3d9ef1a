"""Every code block of the manual does what the page says: it runs, and prints what is shown."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from scale_cl.learners import registry as learners
from scale_cl.nets.custom_backbone import BACKBONES
from scale_cl.streams import user_streams
from tests.manual.blocks import PAGES, Block, blocks_of, commands_of, without_fences
from tests.manual.running import Reader
from tests.manual.torchvision_ops import imported

NOT_RUN = {  # the only blocks that are parsed and not run: page, what they need
    ("start.md", "installs"),
    ("start.md", "downloads MNIST"),
    ("own-data.md", "downloads a data set"),
    ("large-data.md", "downloads a data set"),
    ("reproduce.md", "needs MNIST, CIFAR and mini-ImageNet"),
    ("reproduce.md", "needs MNIST"),
    ("reproduce.md", "needs a Ray cluster"),
    ("speed.md", "needs a GPU and CIFAR-100"),
    ("trackers.md", "needs a server or an account"),
}
_INLINE = re.compile(r"`(scale-cl [^`\n]+)`")
_INDENTED = re.compile(r"^ {4,}(?:\$ )?(scale-cl [^\n]+)$", re.M)


def marked(page: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.reason is not None]


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)])
def test_the_blocks_of_a_page_run_and_print_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # a file that a page writes can be imported by the next block
    monkeypatch.setenv("SCALE_CL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "100")
    for plugins in (learners.OUTSIDE, user_streams.OUTSIDE, BACKBONES):  # a reader begins each page in a new process
        monkeypatch.setattr(plugins, "given", {})
    blocks = [block for block in blocks_of(page) if block.reason is None]
    code = "\n".join(block.code for block in blocks)
    for name in ("torchvision", "avalanche.training"):
        if re.search(rf"^(?:import|from) {name.partition('.')[0]}\b", code, re.M):
            imported(name)
    reader = Reader()
    for block in blocks:
        reader.read(block)


def test_only_the_listed_blocks_are_not_run() -> None:
    found = [(page, block.reason) for page in PAGES for block in marked(page)]
    assert sorted(found) == sorted(NOT_RUN)


@pytest.mark.parametrize("block", [b for page in PAGES for b in marked(page)], ids=lambda block: block.place)
def test_a_block_that_is_not_run_is_at_least_well_formed(block: Block) -> None:
    if block.language == "python":
        ast.parse(block.code)
        return
    assert block.language in ("bash", "console"), block.place
    for command in commands_of(block):
        assert shlex.split(command.text)
        if command.text.startswith("scale-cl "):
            check_options(command.text)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist_with_the_options_they_are_given(page: str) -> None:
    text = without_fences(page)
    for command in [*_INLINE.findall(text), *_INDENTED.findall(text)]:
        check_options(re.sub(r"\s+#\s.*$", "", command))


def test_a_command_with_an_option_that_does_not_exist_is_found() -> None:
    check_options("scale-cl run --seeds 2")
    for wrong in ("scale-cl run --sedes 2", "scale-cl walk", "scale-cl list planets"):
        with pytest.raises(AssertionError):
            check_options(wrong)


def check_options(text: str) -> None:
    """Resolve a command down to its last option, without running it."""
    from scale_cl.cli.main import app

    words = shlex.split(text.split(" > ")[0])[1:]
    words = ["1" if word.isupper() and at > 0 else word for at, word in enumerate(words)]  # a reader's own: N, DIR
    command: object = typer.main.get_command(app)
    context = None
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            return  # `scale-cl --help`, `scale-cl list`
        found = command.commands.get(words[0])
        assert found is not None or words[0].isupper(), f"{text}: there is no command {words[0]!r}"
        if found is None:
            return  # `scale-cl COMMAND --help`
        command, words = found, words[1:]
    if not words or "--help" in words:
        return
    try:
        context = command.make_context("scale-cl", list(words))  # type: ignore[attr-defined]
    except Exception as error:
        raise AssertionError(f"{text}: {error}") from error
    context.close()
