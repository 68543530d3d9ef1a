"""Markdown, LaTeX and HTML: the same tables, and no text can break out of its place."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import pytest

from scale_cl.cli.report import sparkline
from scale_cl.reports import collect, sections, write_report
from scale_cl.reports.table import Column, Table, TableCell, latex_escape, markdown_escape, markdown_lines
from scale_cl.reports.tables import tables
from scale_cl.reports.write_report import tables_tex
from tests.reports.made_results import ENVIRONMENT, everything, run_result

NASTY = '<script>alert(1)</script> & "x" | `y` $z$ 100% \\n_{#}'


def page(directory: Path) -> str:
    return write_report(collect(directory), directory / "out").page.read_text()


def test_a_nasty_name_is_shown_as_text_everywhere(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "command": NASTY, "device_name": NASTY}
    run_result(NASTY, NASTY, environment=environment, setting=NASTY).write(tmp_path / "a <b>")
    run_result("er", NASTY).write(tmp_path / "c")
    text = page(tmp_path)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert text.count("<script") == 1
    assert "alert(1)" in (tmp_path / "out" / "tables.md").read_text()
    assert "<script" not in (tmp_path / "out" / "tables.md").read_text().replace("\\<", "")
    assert "\\textless{}script\\textgreater{}" in (tmp_path / "out" / "tables.tex").read_text()


def test_a_control_character_in_a_name_reaches_no_output(tmp_path: Path) -> None:
    run_result("bad\x1b[31m\x00name").write(tmp_path)
    text = page(tmp_path)
    assert "\x1b" not in text
    assert "\x00" not in text
    assert r"bad\x1b[31m\x00name" in text


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of every experiment there is."""
    directory = tmp_path_factory.mktemp("results")
    everything(directory)
    return page(directory)


def test_the_page_refers_to_nothing_outside_itself(whole: str) -> None:
    assert re.findall(r"(?:src|href|action|srcset)=\"(?!#)[^\"]*", whole) == []
    assert "url(" not in whole
    assert "@import" not in whole
    assert "default-src 'none'" in whole


def test_every_link_in_the_page_has_its_place(whole: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', whole)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', whole)) <= set(ids)


def test_the_page_is_well_formed(whole: str) -> None:
    checker = _Nesting()
    checker.feed(whole)
    assert checker.open == []


def test_every_number_leads_to_file_command_versions_revision_and_device(tmp_path: Path) -> None:
    run_result().write(tmp_path / "mine")
    text = page(tmp_path)
    for fact in ("mine/result.json", "scale-cl run --stream digits", "torch 2.13.0", "0123abcd", "Abacus 9"):
        assert fact in text
        assert markdown_escape(fact) in (tmp_path / "out" / "tables.md").read_text()


def test_what_was_not_recorded_is_said_to_be_unknown(tmp_path: Path) -> None:
    run_result(environment={"git_revision": "77", "git_changed": True}).write(tmp_path)
    text = page(tmp_path)
    assert "77, with uncommitted changes" in text
    assert "unknown device" in text
    assert "not recorded" in text


def test_a_page_without_javascript_still_has_the_values(tmp_path: Path) -> None:
    run_result().write(tmp_path)
    assert "<title>scale, task 1: 90.50 ± 0.50</title>" in page(tmp_path)


def test_markdown_rows_have_as_many_cells_as_headings(tmp_path: Path) -> None:
    everything(tmp_path)
    for section in sections(collect(tmp_path)):
        for table in tables(section):
            counts = {len(re.split(r"(?<!\\)\|", line)) for line in markdown_lines(table)}
            assert counts == {len(table.columns) + 2}


def test_latex_has_booktabs_bold_and_deviations() -> None:
    columns = (Column("A_B", numeric=False), Column("ACC ↑"))
    table = Table(
        "k",
        "T",
        columns,
        ((TableCell("x & y"), TableCell("80.65 ± 0.63", 80.65, best=True)), (TableCell("–"), TableCell("-1.00"))),
    )
    text = tables_tex(table, [])
    assert r"\toprule" in text
    assert r"A\_B & ACC $\uparrow$ \\" in text
    assert r"x \& y & \textbf{80.65} {\scriptsize $\pm$ 0.63} \\" in text
    assert r"-- & $-$1.00 \\" in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("text", [NASTY, "a\\b", "50 % {x}", '~^|<>"', "日本"])
def test_latex_escapes_leave_no_special_character(text: str) -> None:
    escaped = latex_escape(text)
    for command in (r"\\text\w+\{\}", r"\\[&%$#_{}]"):
        escaped = re.sub(command, "", escaped)
    assert not set(escaped) & set("\\&%$#_{}~^")
    assert escaped.isascii()


def test_a_sparkline_rises_with_its_values_and_shows_what_is_missing() -> None:
    assert sparkline([0.0, 50.0, None, 100.0], 0.0, 100.0) == "▁▅·█"
    assert sparkline([5.0, 5.0], 5.0, 5.0) == "██"
    assert len(sparkline([float(v) for v in range(200)], 0.0, 199.0, longest=12)) == 12


class _Nesting(html.parser.HTMLParser):
    """Checks that tags close in the order in which they open."""

    alone = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.alone:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"
