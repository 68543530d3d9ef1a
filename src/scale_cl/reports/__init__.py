"""Reports: from result files to tables (Markdown, LaTeX), figures and one HTML page; reads results and nothing else."""

from __future__ import annotations

from scale_cl.reports.collection import Collection, Gap, Run, collect
from scale_cl.reports.rows import Row
from scale_cl.reports.sections import Section, sections
from scale_cl.reports.write_report import Written, write_report

__all__ = ["Collection", "Gap", "Row", "Run", "Section", "Written", "collect", "sections", "write_report"]
