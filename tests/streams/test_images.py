"""Image files to arrays."""

from __future__ import annotations

import logging
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scale_cl.errors import DataError
from scale_cl.streams.images import ImageFiles, image_files, read_images, size_of


def test_pixels_come_out_as_they_went_in(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 6, 5, 3), dtype=np.uint8)
    paths = [tmp_path / f"{i:03}.png" for i in range(150)]
    for path, picture in zip(paths, pixels, strict=True):
        Image.fromarray(picture).save(path)
    assert np.array_equal(read_images(paths, (6, 5)), pixels.transpose(0, 3, 1, 2))
    assert image_files(tmp_path) == paths


def test_palette_grey_and_transparent_images_are_read_as_colour(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 7).save(tmp_path / "a.png")
    Image.new("RGBA", (4, 4), (7, 7, 7, 100)).save(tmp_path / "b.png")
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([7, 7, 7] * 256)
    palette.save(tmp_path / "c.png", transparency=b"\x00\x80")
    assert (read_images(image_files(tmp_path), (4, 4)) == 7).all()


def test_other_files_are_no_images(tmp_path: Path) -> None:
    for name in ("a.txt", ".hidden.png", "b.PNG"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in image_files(tmp_path)] == ["b.PNG"]


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    for suffix in ("jpg", "png"):
        path = tmp_path / f"cut.{suffix}"
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:1500])
        with pytest.raises(DataError, match=rf"cut.{suffix} cannot be decoded"):
            read_images([path], (60, 60))


def test_broken_images_are_named_together(tmp_path: Path) -> None:
    paths = [tmp_path / str(i % 2) / f"{i:03}.png" for i in range(140)]
    for i, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
        if i in (3, 70, 139):
            path.write_bytes(path.read_bytes()[:45] if i == 70 else b"no picture")
    with pytest.raises(DataError) as refused:
        read_images(paths, (4, 4))
    names = "1/003.png, 0/070.png, 1/139.png"
    assert str(refused.value) == f"3 images in {tmp_path} cannot be decoded: {names}; remove or replace them"
    for path in paths[:13]:
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"^15 images in .*: 0/000.png, .*, 1/009.png and 5 more; remove or replace"):
        read_images(paths, (4, 4))


def test_broken_images_with_nothing_in_common_are_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [Path("a.png"), tmp_path / "b.png"]
    for path in paths:
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=rf"^2 images cannot be decoded: a.png, {tmp_path}/b.png; remove"):
        read_images(paths, (4, 4))


@pytest.mark.parametrize("size", [(100_000, 100_000), (8, 6_000_000)])
def test_a_small_file_that_claims_a_huge_picture_is_refused(size: tuple[int, int], tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "bomb.png").write_bytes(data + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))
    said = "" if size[0] > 8 else f"claims {size[1]} x {size[0]} pixels; at most 100000000, and 65536 a side, are read"
    with pytest.raises(DataError, match=rf"bomb.png.*{said}"):
        read_images([tmp_path / "bomb.png"], (4, 4))


def test_pixels_of_sixteen_bits_are_refused_rather_than_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        read_images([tmp_path / "deep.png"], (4, 4))


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.png is missing"):
        read_images([tmp_path / "gone.png"], (4, 4))


def test_images_are_turned_upright_as_their_orientation_says(tmp_path: Path) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 200  # the left half is light
    for suffix in ("jpg", "png", "webp"):
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned right by 90 degrees: left becomes top
        path = tmp_path / f"turned.{suffix}"
        Image.fromarray(pixels).save(path, exif=exif)
        assert size_of(path) == (16, 8)
        (read,) = read_images([path], (16, 8), resize=False)
        assert read[:, 1:7].min() > 150
        assert read[:, 9:15].max() < 50
        assert np.array_equal(ImageFiles([str(path)], (16, 8)).read(np.array([0])).x[0], read)


def test_the_first_frame_of_an_animation_is_used_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [Image.new("L", (4, 4), value) for value in (50, 200)]
    for name in ("a.gif", "b.gif", "c.webp", "d.png"):
        frames[0].save(tmp_path / name, save_all=name != "d.png", append_images=frames[1:] if name != "d.png" else ())
    with caplog.at_level(logging.WARNING):
        read = read_images(image_files(tmp_path), (4, 4))
    assert abs(read.astype(int) - 50).max() < 3
    assert [r.getMessage() for r in caplog.records] == [
        "scale-cl: warning: 3 files have several frames; the first frame is used"
    ]
    block = ImageFiles([str(p) for p in image_files(tmp_path)], (4, 4)).read(np.arange(4))
    assert np.array_equal(block.x, read)
    assert block.remark == f"{tmp_path}/a.gif has several frames; of such files the first frame is used"
