"""Where data sets lie: the folder given, else SCALE_CL_DATA, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder in which sources look for their files."""
    if root is not None:
        return expanded(root)
    if named := os.environ.get("SCALE_CL_DATA"):
        return expanded(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("scale-cl"))


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with `~` as the home folder; where there is no such user, `~user` is a name like any other."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
