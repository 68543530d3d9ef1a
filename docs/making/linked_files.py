"""Links of a page to files of the repository outside docs/ (results, examples) lead to copies inside the manual.

On disk and in a repository viewer the links of the pages hold as they are written; in the built manual the files are
under files/, by their path in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FOLDER = "files"
_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take every file that a page links to into the manual."""
    wanted = {}
    for file in files.documentation_pages():
        if file.abs_src_path is not None:
            for found in _LINK.finditer(Path(file.abs_src_path).read_text(encoding="utf-8")):
                if outside := _outside(found["path"], file, config):
                    wanted[outside] = Path(config.docs_dir).parent / outside
    for name, path in sorted(wanted.items()):
        files.append(File.generated(config, f"{FOLDER}/{name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links to where the copies are."""

    def turned(found: re.Match[str]) -> str:
        outside = _outside(found["path"], page.file, config)
        if outside is None:
            return found[0]
        return f"]({posixpath.relpath(f'{FOLDER}/{outside}', posixpath.dirname(page.file.src_uri) or '.')})"

    return _LINK.sub(turned, markdown)


def _outside(link: str, file: File, config: MkDocsConfig) -> str | None:
    """The path in the repository of a file outside docs/ that a page links to; None for other links."""
    docs = Path(config.docs_dir).name
    path = posixpath.normpath(posixpath.join(docs, posixpath.dirname(file.src_uri), link))
    there = Path(config.docs_dir).parent / path
    return path if not path.startswith(("..", f"{docs}/")) and there.is_file() else None
