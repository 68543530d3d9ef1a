"""What counts as the output that a page shows: the words and the lines, not the seconds."""

from __future__ import annotations

import pytest

from tests.manual.blocks import blocks_of, commands_of
from tests.manual.running import check_output


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("ACC 82.1 (1 seed, 5 s)", "ACC 83.9 (1 seed, 61 s)"),
        ("task 1/3: 204 steps/s, 1 s left", "task 1/3: 5.5 steps/s, 1:20 left"),
        ("first\n...\nlast", "first\nsecond\nthird\nlast"),
        ("a  b\n\nc", " a b \nc\n"),
        ("x ACC s\ny 80.0 0.1", "x ACC s\ny 80.0 99.9"),
        ("97% right", "96% right"),
    ],
)
def test_times_widths_and_small_differences_do_not_matter(shown: str, printed: str) -> None:
    check_output(shown, printed, "here")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("ACC 82.1", "ACC 90.1"),
        ("3 tasks", "4 tasks"),
        ("wrote it", "wrote that"),
        ("first", "first\nsecond"),
        ("first\nsecond", "first"),
        ("first\n...\nlast", "first\nsecond"),
        ("97% right", "60% right"),
        ("x ACC\ny 80.0 0.1", "x ACC\ny 80.0 99.9"),
    ],
)
def test_other_words_numbers_and_lines_do(shown: str, printed: str) -> None:
    with pytest.raises(AssertionError):
        check_output(shown, printed, "here")


def test_blocks_are_read_with_their_marks_titles_and_commands() -> None:
    page = (
        'Text.\n\n```python title="a.py"\nx = 1\n```\n```text\n1\n```\n\n<!-- not run: no GPU -->\n```bash\n'
        "scale-cl run \\\n  --tasks 2  # two\n# nothing\n```\n\n```console\n$ ls\na.py\n$ pwd\n```\n"
    )
    first, output, marked, typed = blocks_of("page.md", page)
    assert (first.language, first.title, first.line, first.follows) == ("python", "a.py", 3, False)
    assert (output.language, output.follows, output.reason) == ("text", True, None)
    assert (marked.reason, [c.text for c in commands_of(marked)]) == ("no GPU", ["scale-cl run    --tasks 2"])
    assert [(c.text, c.shown) for c in commands_of(typed)] == [("ls", "a.py"), ("pwd", None)]
