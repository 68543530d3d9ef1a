"""The code blocks of a page: what is run, what it prints, and what is marked as not run.

Fenced blocks only have a meaning here; the manual uses these:

- `python` is executed; a `text` block right after it is what it prints.
- `bash` and `console` hold commands; in `console` a command follows `$ ` and the lines below it are what it prints.
- any language with `title="NAME"` is a file of that name, written before what comes after; python is executed as well.
- `<!-- not run: REASON -->` right before a block: it is only parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
_MARK = re.compile(r"<!-- not run: (?P<reason>[^\n]+) -->\s*\Z")
_INFO = re.compile(r'(?P<language>\w+)?(?: +title="(?P<title>[^"]+)")?')
_SILENT = re.compile(r"\s*\Z")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int  # of the fence, from 1
    language: str
    code: str
    title: str | None = None  # name of the file it is
    reason: str | None = None  # why it is not run
    follows: bool = False  # nothing but white space stands between it and the block before

    @property
    def place(self) -> str:
        """For messages."""
        return f"docs/{self.page}, line {self.line}"


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8") if text is None else text
    blocks: list[Block] = []
    end = 0
    for found in _FENCE.finditer(text):
        before = text[end : found.start()]
        info = _INFO.fullmatch(found["info"].strip())
        assert info is not None, f"{page}: cannot read the fence {found['info']!r}"
        mark = _MARK.search(before)
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.M)
        blocks.append(
            Block(
                page=page,
                line=text.count("\n", 0, found.start()) + 1,
                language=info["language"] or "",
                code=code,
                title=info["title"],
                reason=None if mark is None else mark["reason"],
                follows=bool(blocks) and _SILENT.match(before) is not None,
            )
        )
        end = found.end()
    return blocks


def without_fences(page: str) -> str:
    """The text of a page outside its fenced blocks."""
    return _FENCE.sub("", (DOCS / page).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Command:
    """A command line and what is shown below it."""

    text: str
    shown: str | None  # None: nothing is said of what it prints


def commands_of(block: Block) -> list[Command]:
    """The commands of a `bash` or `console` block; a backslash at the end of a line goes on with the next."""
    if block.language == "bash":
        lines = block.code.replace("\\\n", " ").splitlines()
        texts = [re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in lines]
        return [Command(text, None) for text in texts if text]
    commands: list[Command] = []
    for part in re.split(r"^\$ ", block.code, flags=re.M)[1:]:
        text, _, shown = part.replace("\\\n", " ").partition("\n")
        commands.append(Command(re.sub(r"\s+#\s.*$", "", text).strip(), shown.rstrip("\n") or None))
    return commands
