"""Downloads from a server that cuts, ignores and lies."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scale_cl.errors import FetchError, OutputInUseError
from scale_cl.files import lock
from scale_cl.streams.catalog import SOURCES
from scale_cl.streams.fetch import Patience, download, fetch
from scale_cl.streams.sources.cifar import CIFAR100, Cifar
from scale_cl.streams.sources.mini_imagenet import MiniImageNet
from scale_cl.streams.sources.mnist import Mnist
from scale_cl.streams.sources.source import CheckedFile, Progress
from tests.streams.loopback import Site, serving

CONTENT = np.random.default_rng(0).bytes(1_000_000)
HASTE = Patience(attempts=3, pause=0.001, timeout=5.0)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as site:
        yield site


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        ([], 1),
        (["cut"], 2),
        (["cut", "cut", "cut", "cut", "cut", "cut"], 7),
        (["hang up", "503", "well"], 3),
        (["cut", "hang up", "429"], 4),
        (["cut", "ignore range"], 2),
        (["cut", "ignore range", "cut", "ignore range"], 2),
        (["no length"], 1),
        (["cut", "wrong range"], 3),
        (["cut", "416"], 3),
    ],
)
def test_a_file_arrives_whole_over_bad_connections(
    site: Site, tmp_path: Path, script: list[str], requests: int
) -> None:
    file = site.offer("a.bin", CONTENT)
    site.script = list(script)
    seen: list[tuple[str, int, int]] = []
    was_there = download(file, tmp_path / "a.bin", report=lambda *now: seen.append(now), patience=HASTE)
    assert not was_there
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert len(site.ranges) == requests
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))


def test_a_cut_download_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    file = site.offer("a.bin", CONTENT)
    site.script = ["cut"]
    download(file, tmp_path / "a.bin", patience=HASTE)
    assert site.ranges == [None, "bytes=500000-"]


def test_what_was_kept_serves_the_next_run(site: Site, tmp_path: Path) -> None:
    file = site.offer("a.bin", CONTENT)
    site.script = ["cut", "hang up", "hang up", "hang up"]
    with pytest.raises(FetchError, match="500000 of 1000000 bytes are kept; run it again to resume"):
        download(file, tmp_path / "a.bin", patience=HASTE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin.part"]
    download(file, tmp_path / "a.bin", patience=HASTE)
    assert site.ranges[-1] == "bytes=500000-"
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"x" * 600_000, b"y" * len(CONTENT), b"z" * (len(CONTENT) + 1)])
def test_a_part_of_something_else_is_thrown_away(site: Site, tmp_path: Path, left: bytes) -> None:
    file = site.offer("a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(left)
    download(file, tmp_path / "a.bin", patience=HASTE)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (["wrong bytes"], "served wrong bytes: the checksum is not"),
        (["shorter"], "is a file of 333333 bytes; the published one has 1000000"),
        (["endless"], "serves more than the 1000000 bytes"),
        (["404"], "HTTP 404"),
        (["403"], "HTTP 403"),
        (["hang up"] * 3, "could not be fetched"),
        (["500", "502", "503"], "HTTP 503"),
        (["cut", "wrong bytes", "wrong bytes"], "served wrong bytes"),
    ],
)
def test_a_file_that_does_not_come_right_is_not_kept(
    site: Site, tmp_path: Path, script: list[str], message: str
) -> None:
    file = site.offer("a.bin", CONTENT)
    (tmp_path / "a.bin").write_bytes(b"what was there")
    site.script = list(script)
    with pytest.raises(FetchError, match=message) as caught:
        download(file, tmp_path / "a.bin", patience=HASTE)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"what was there"


def test_a_file_that_is_there_and_right_is_not_asked_for(site: Site, tmp_path: Path) -> None:
    file = site.offer("a.bin", CONTENT)
    (tmp_path / "a.bin").write_bytes(CONTENT)
    assert download(file, tmp_path / "a.bin", patience=HASTE)
    assert site.ranges == []


def test_a_server_that_is_not_there_is_named(tmp_path: Path, site: Site) -> None:
    file = replace(site.offer("a.bin", CONTENT), url="http://127.0.0.1:1/a.bin")
    with pytest.raises(FetchError, match=r"127.0.0.1:1/a.bin could not be fetched \(.*refused"):
        download(file, tmp_path / "a.bin", patience=HASTE)
    with pytest.raises(FetchError, match="is not an http address"):
        download(replace(file, url="file:///etc/passwd"), tmp_path / "a.bin", patience=HASTE)


def test_a_server_that_does_not_answer_is_given_up_soon(tmp_path: Path, site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:  # connects, and never says a word
        file = replace(site.offer("a.bin", CONTENT), url=f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin")
        hasty = replace(HASTE, attempts=100, answer=0.02)
        seen: list[tuple[str, int, int]] = []
        with pytest.raises(FetchError, match=r"could not be fetched \(no answer within 0.02 s\)"):
            download(file, tmp_path / "a.bin", report=lambda *now: seen.append(now), patience=hasty)
        assert seen == [("a.bin", 0, len(CONTENT))]  # before anything arrived


def archive(folder: str, files: dict[str, bytes]) -> bytes:
    """A .tar.gz of `files` in `folder`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def cifar_files() -> dict[str, bytes]:
    """The binary version with one training and one test image a class."""
    draw = np.random.default_rng(1)
    y = np.arange(100, dtype=np.uint8).reshape(-1, 1)
    return {
        name: np.hstack([y, y, draw.integers(0, 256, (100, 3072), dtype=np.uint8)]).tobytes()
        for name in ("train.bin", "test.bin")
    }


def published(site: Site, files: dict[str, bytes]) -> Cifar:
    """CIFAR-100 with these files as the published ones, on this site."""
    checksums = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    version = replace(CIFAR100.versions[0], md5=checksums)
    file = site.offer("c.tar.gz", archive("cifar-100-binary", files), unpacks_to="cifar-100-binary")
    other = replace(file, url=f"{site.address}/none.tar.gz", path="python.tar.gz")
    return replace(CIFAR100, train_per_class=1, test_per_class=1, versions=(version,), downloads=((file,), (other,)))


def test_an_archive_is_fetched_unpacked_and_cleared_away(
    site: Site, tmp_path: Path, cifar_files: dict[str, bytes]
) -> None:
    source = published(site, cifar_files)
    root = tmp_path / "root"
    site.script = ["cut"]
    lines = fetch(source, root, patience=HASTE)
    assert lines == ["cifar-100-binary: downloaded, checksum right"]
    assert [path.name for path in root.iterdir()] == ["cifar-100-binary"]
    assert len(source.read(root).x_train) == 100
    asked = len(site.ranges)
    assert fetch(source, root, patience=HASTE) == [f"CIFAR-100 is in {root} already, whole and right"]
    assert len(site.ranges) == asked


def test_an_archive_that_is_there_is_used_and_left(site: Site, tmp_path: Path, cifar_files: dict[str, bytes]) -> None:
    source = published(site, cifar_files)
    root = tmp_path / "root"
    root.mkdir()
    (root / "python.tar.gz").write_bytes(site.files["/c.tar.gz"])
    fetch(source, root, patience=HASTE)
    assert site.ranges == []
    assert sorted(path.name for path in root.iterdir()) == ["cifar-100-binary", "python.tar.gz"]


def test_damaged_files_are_replaced(site: Site, tmp_path: Path, cifar_files: dict[str, bytes]) -> None:
    source = published(site, cifar_files)
    root = tmp_path / "root"
    fetch(source, root, patience=HASTE)
    (root / "cifar-100-binary" / "train.bin").write_bytes(b"short")
    fetch(source, root, patience=HASTE)
    assert (root / "cifar-100-binary" / "train.bin").read_bytes() == cifar_files["train.bin"]
    assert [path.name for path in root.iterdir()] == ["cifar-100-binary"]


def test_files_that_stay_wrong_after_the_download_are_told(site: Site, tmp_path: Path) -> None:
    class Stubborn(Mnist):
        def check(self, root: Path, progress: Progress | None = None) -> list[CheckedFile]:
            return [CheckedFile("old", False, "altered")]

    source = Stubborn(downloads=((site.offer("a", b"a"),),))
    with pytest.raises(FetchError, match=r"old is still not right after the download \(altered\): remove it"):
        fetch(source, tmp_path, patience=HASTE)


def test_two_fetches_at_once_are_refused(site: Site, tmp_path: Path) -> None:
    source = Mnist(downloads=((site.offer("a", b"a"),),))
    with lock(tmp_path / ".mnist.lock"), pytest.raises(OutputInUseError):
        fetch(source, tmp_path, patience=HASTE)


def test_a_data_root_that_cannot_be_written_is_told(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="MNIST cannot be put in"):
        fetch(Mnist(downloads=((site.offer("a", b"a"),),)), tmp_path / "file" / "root", patience=HASTE)


def test_mini_imagenet_says_how_to_place_it(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="mini-ImageNet cannot be downloaded: in the folder mini-imagenet"):
        fetch(MiniImageNet(), tmp_path)


def test_every_published_file_has_an_official_address_a_size_and_a_checksum() -> None:
    for source in SOURCES.values():
        for file in (file for files in source.downloads for file in files):
            assert file.url.startswith("https://")
            assert file.url.endswith(file.file_name)
            assert file.size > 4000
            assert len(file.md5) == 32
