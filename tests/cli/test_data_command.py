"""`scale-cl data` from its command line to its exit code."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scale_cl.cli.main import main
from scale_cl.streams import catalog
from scale_cl.streams.sources.mini_imagenet import MiniImageNet
from scale_cl.streams.sources.mnist import FILES, Mnist
from tests.streams.loopback import Site, serving


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `scale-cl data ...`."""
    monkeypatch.setattr(sys, "argv", ["scale-cl", "data", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """MNIST with 30 training and 20 test images in the place of the real one; its packed files by name."""
    import hashlib

    from scale_cl.streams.sources import mnist

    draw, files, known = np.random.default_rng(0), {}, []
    for i, file in enumerate(FILES):
        n = 30 if i < 2 else 20
        header = struct.pack(">4B3I", 0, 0, 8, 3, n, 28, 28) if i % 2 == 0 else struct.pack(">4BI", 0, 0, 8, 1, n)
        content = header + draw.integers(0, 10, n * (784 if i % 2 == 0 else 1), np.uint8).tobytes()
        files[f"{file.name}.gz"] = gzip.compress(content)
        known.append(mnist.IdxFile(file.name, hashlib.md5(content).hexdigest()))
    monkeypatch.setattr(mnist, "FILES", tuple(known))
    return files


def offered(site: Site, files: dict[str, bytes]) -> Mnist:
    return Mnist(30, 20, downloads=(tuple(site.offer(n, c, f"MNIST/raw/{n}") for n, c in files.items()),))


def test_get_downloads_and_check_approves(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    small_mnist: dict[str, bytes],
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    data = ("--data", str(tmp_path))
    with serving() as site:
        monkeypatch.setitem(catalog.SOURCES, "mnist", offered(site, small_mnist))
        assert run(capsys, monkeypatch, "check", "pmnist", *data)[0] == 2
        site.script = ["cut", "well", "ignore range"]
        code, out, _ = run(capsys, monkeypatch, "get", "pmnist", *data)
        assert code == 0
        assert out.count("downloaded, checksum right") == 4
        code, out, _ = run(capsys, monkeypatch, "check", "mnist", *data)
        assert (code, out.count("ok ")) == (0, 4)
        assert "already, whole and right" in run(capsys, monkeypatch, "get", "mnist", *data)[1]
        assert "MNIST                there" in run(capsys, monkeypatch, "list", *data)[1]
        path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:500])
        code, out, err = run(capsys, monkeypatch, "check", "pmnist", *data)
        assert code == 2
        assert "BAD  MNIST/raw/train-images-idx3-ubyte.gz" in out
        assert "1 of 4 checks failed" in err


def test_wrong_bytes_end_in_one_line_and_leave_nothing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    small_mnist: dict[str, bytes],
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as site:
        monkeypatch.setitem(catalog.SOURCES, "mnist", offered(site, small_mnist))
        site.script = ["wrong bytes"]
        code, out, err = run(capsys, monkeypatch, "get", "pmnist", "--data", str(tmp_path))
    assert (code, out) == (2, "")
    first, second, error = err.splitlines()
    assert first == "pmnist: checking what is there already"
    assert second.startswith("downloading train-images-idx3-ubyte.gz, 0.0 MB, to ")
    assert "served wrong bytes" in error
    assert (
        f"you can also put it in {tmp_path} yourself: the four files *-idx?-ubyte, plain or .gz, in MNIST/raw" in error
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_list_says_what_is_missing_and_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, out, _ = run(capsys, monkeypatch, "list", "--data", str(tmp_path))
    assert code == 0
    assert f"data root: {tmp_path}" in out
    assert "missing: scale-cl data get scifar100" in out
    assert "sminiimagenet  mini-ImageNet        missing: place its files yourself" in out
    assert "digits         scikit-learn digits  comes with scikit-learn" in out


def test_the_data_root_comes_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SCALE_CL_DATA", str(tmp_path))
    assert f"data root: {tmp_path}" in run(capsys, monkeypatch, "list")[1]


def test_mini_imagenet_says_how_to_place_the_files_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, out, err = run(capsys, monkeypatch, "get", "sminiimagenet", "--data", str(tmp_path))
    assert (code, out) == (2, "")
    assert "mini-ImageNet is not downloaded by scale-cl; put it in" in err
    assert "train.csv, val.csv, test.csv and images/" in err
    source = MiniImageNet(classes=2, train_per_class=2, test_per_class=1)
    monkeypatch.setitem(catalog.SOURCES, "mini-imagenet", source)
    for label in ("n01", "n02"):
        (tmp_path / "mini-imagenet" / label).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (84, 84)).save(tmp_path / "mini-imagenet" / label / f"{i}.jpg")
    assert run(capsys, monkeypatch, "get", "sminiimagenet", "--data", str(tmp_path))[0] == 0
    code, out, _ = run(capsys, monkeypatch, "check", "mini-imagenet", "--data", str(tmp_path))
    assert (code, out) == (0, "ok   n01: 3 images\nok   n02: 3 images\n")


def test_digits_need_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing to download" in run(capsys, monkeypatch, "get", "digits")[1]
    assert run(capsys, monkeypatch, "check", "digits")[:2] == (0, "ok   digits: 1797 images, part of scikit-learn\n")


def test_an_unknown_name_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("get", "check"):
        code, _, err = run(capsys, monkeypatch, command, "pmnits")
        assert code == 2
        assert "unknown stream 'pmnits': did you mean pmnist?" in err
        assert err.count("scale-cl: error: ") == 1


def test_the_module_does_not_import_torch() -> None:
    code = "import sys, scale_cl.cli.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_terminal_gets_a_bar_for_each_file(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    small_mnist: dict[str, bytes],
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with serving() as site:
        monkeypatch.setitem(catalog.SOURCES, "mnist", offered(site, small_mnist))
        code, out, err = run(capsys, monkeypatch, "get", "pmnist", "--data", str(tmp_path))
    assert code == 0
    assert "\x1b" not in out  # the bars are on stderr
    for name in small_mnist:
        assert name in err
    assert run(capsys, monkeypatch, "check", "pmnist", "--data", str(tmp_path))[0] == 0
