"""Unpacking archives, also hostile ones."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from scale_cl.errors import DataError
from scale_cl.streams.fetch import unpack


def pack(path: Path, *members: tuple[str, Any]) -> Path:
    """An archive of members: bytes for a file, or attributes of a TarInfo."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                for attribute, value in content.items():
                    setattr(info, attribute, value)
                tar.addfile(info)
    return path


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_files_and_folders_come_out(tmp_path: Path) -> None:
    archive = pack(
        tmp_path / "a.tar.gz", ("data", {"type": tarfile.DIRTYPE}), ("data/x.bin", b"x"), ("data/sub/y.bin", b"y")
    )
    assert unpack(archive, tmp_path, "data") == tmp_path / "data"
    assert (tmp_path / "data" / "sub" / "y.bin").read_bytes() == b"y"
    assert names(tmp_path) == ["a.tar.gz", "data", "data/sub", "data/sub/y.bin", "data/x.bin"]


def test_what_was_there_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").write_bytes(b"")
    unpack(pack(tmp_path / "a.tar.gz", ("data/new", b"")), tmp_path, "data")
    assert names(tmp_path) == ["a.tar.gz", "data", "data/new"]


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", b"x"),
        ("/tmp/outside", b"x"),
        ("data/../../outside", b"x"),
        ("other/file", b"x"),
        ("data\\..\\outside", b"x"),
        ("data/link", {"type": tarfile.SYMTYPE, "linkname": "/etc"}),
        ("data/hard", {"type": tarfile.LNKTYPE, "linkname": "data/good"}),
        ("data/pipe", {"type": tarfile.FIFOTYPE}),
        ("data/device", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("data/good", b"twice"),
    ],
)
def test_nothing_is_written_of_an_archive_that_reaches_out(tmp_path: Path, member: tuple[str, Any]) -> None:
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "data" / "old").write_bytes(b"old")
    archive = pack(tmp_path / "a.tar.gz", ("data/good", b"good"), member)
    with pytest.raises(DataError, match=r"a\.tar\.gz"):
        unpack(archive, root, "data")
    assert names(tmp_path) == ["a.tar.gz", "root", "root/data", "root/data/old"]


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    whole = pack(tmp_path / "a.tar.gz", ("data/x.bin", bytes(range(256)) * 400)).read_bytes()
    empty = pack(tmp_path / "b.tar.gz").read_bytes()
    for content in (b"", b"not an archive", whole[: len(whole) // 2], whole[:-4] + b"abcd", empty):
        (tmp_path / "a.tar.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.tar\.gz"):
            unpack(tmp_path / "a.tar.gz", tmp_path, "data")
        assert names(tmp_path) == ["a.tar.gz", "b.tar.gz"]
