"""Where data sets lie: the folder given, else SCALE_CL_DATA, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder in which sources look for their files."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("SCALE_CL_DATA"):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("scale-cl"))
