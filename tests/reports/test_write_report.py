"""Writing a report: what is there afterwards, and what is not."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from scale_cl import files
from scale_cl.errors import OutputInUseError
from scale_cl.reports import collect, plots, sections, write_report
from scale_cl.reports.charts import charts, heatmaps
from tests.reports.made_results import everything, run_result


def test_a_report_has_a_page_tables_and_figures(tmp_path: Path) -> None:
    run_result().write(tmp_path / "runs" / "a")
    run_result("er").write(tmp_path / "runs" / "b")
    written = write_report(collect(tmp_path / "runs"), tmp_path / "out")
    names = sorted(p.relative_to(tmp_path / "out").as_posix() for p in written.files)
    pictures = ["accuracy", "forgetting", "matrix-er", "matrix-scale", "time"]
    assert names == sorted(
        ["report.html", "tables.md", "tables.tex"]
        + [f"figures/digits-4-tasks-{name}.{kind}" for name in pictures for kind in ("pdf", "svg")]
    )
    assert all(p.stat().st_size > 100 for p in written.files)
    assert written.page == tmp_path / "out" / "report.html"


def test_figures_are_pdf_and_svg_and_the_same_each_time(tmp_path: Path) -> None:
    run_result("$x_1$ 日").write(tmp_path / "a")
    run_result("_hidden").write(tmp_path / "b")
    (section,) = sections(collect(tmp_path))
    (chart, *_), (heatmap, *_) = charts(section), heatmaps(section)
    for first, second in (
        (plots.plot(chart), plots.plot(chart)),
        (plots.plot_heatmap(heatmap), plots.plot_heatmap(heatmap)),
    ):
        assert first == second
        assert first["pdf"].startswith(b"%PDF")
        assert ElementTree.fromstring(first["svg"]).tag.endswith("svg")


def test_every_kind_of_chart_can_be_plotted(tmp_path: Path) -> None:
    everything(tmp_path)
    for section in sections(collect(tmp_path)):
        for chart in charts(section):
            assert plots.plot(chart)["pdf"].startswith(b"%PDF")


def test_a_second_report_removes_figures_of_the_first_and_nothing_else(tmp_path: Path) -> None:
    run_result().write(tmp_path / "a")
    run_result("er").write(tmp_path / "b")
    write_report(collect(tmp_path), tmp_path)
    (tmp_path / "figures" / "mine.pdf").write_text("mine")
    (tmp_path / "b" / "result.json").unlink()
    written = write_report(collect(tmp_path), tmp_path)
    left = {p.name for p in (tmp_path / "figures").iterdir() if not p.name.startswith(".")}
    assert left == {p.name for p in written.files if p.parent.name == "figures"} | {"mine.pdf"}
    assert not any("matrix-er" in name for name in left)
    assert [gap.name for gap in written.gaps] == ["b"]


def test_a_place_that_cannot_be_written_to_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_result().write(tmp_path)

    def full_disk(path: Path, data: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_text", full_disk)
    with pytest.raises(OutputInUseError, match="cannot be written to: No space left on device; choose another --out"):
        write_report(collect(tmp_path), tmp_path / "out")


def test_reports_do_not_import_torch(tmp_path: Path) -> None:
    run_result().write(tmp_path)
    script = (
        "import sys; from pathlib import Path; from scale_cl.reports import collect, write_report\n"
        f"write_report(collect(Path({str(tmp_path)!r})), Path({str(tmp_path / 'out')!r}))\n"
        "print({'torch', 'sklearn', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
