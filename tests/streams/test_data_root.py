"""Where data sets lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale_cl.streams import data_root


def test_the_argument_comes_before_the_environment_and_that_before_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALE_CL_DATA", raising=False)
    assert data_root().name == "scale-cl"
    monkeypatch.setenv("SCALE_CL_DATA", str(tmp_path / "named"))
    assert data_root() == tmp_path / "named"
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root("~/data") == Path.home() / "data"
    assert data_root("~nobody-of-this-name/data") == Path("~nobody-of-this-name/data")
