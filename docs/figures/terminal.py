"""The picture of a terminal in the README: `scale-cl demo` is run, and what it prints is drawn as SVG.

    python docs/figures/terminal.py      # about a minute

The picture loads nothing from elsewhere: its font is whatever monospace font the reader has.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).with_name("terminal.svg")
COMMAND = ("demo", "--quiet")
COLUMNS = 80
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<!-- made by docs/figures/terminal.py -->
<style>
.{unique_id}-matrix {{
    font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
    font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def printed() -> str:
    """What the command prints on a terminal, colours and all."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    words = [sys.executable, "-m", "scale_cl", *COMMAND]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


def drawn(text: str) -> str:
    """A terminal with the command and what it printed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "green"), (" ".join(("scale-cl", *COMMAND)), "bold")))
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="scale-cl", theme=MONOKAI, code_format=FORMAT, unique_id="terminal")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(printed()), encoding="utf-8")
