"""Reports: turn result files into tables (Markdown, LaTeX), figures and an HTML page; they read results only."""

from __future__ import annotations

from scale_cl.reports.collection import Collection, Gap, Run, collect
from scale_cl.reports.sections import ResultRow, Section, sections
from scale_cl.reports.write_report import Written, write_report

__all__ = ["Collection", "Gap", "ResultRow", "Run", "Section", "Written", "collect", "sections", "write_report"]
