"""The files that scale-cl reads, mutated, and all that is done with one: an iteration over the stages it reaches."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
import yaml
from PIL import Image

import scale_cl
from scale_cl import ContinualClassifier, results, streams
from scale_cl.estimator import model_file
from scale_cl.export.export_task import learner_of_run
from scale_cl.reports import collect, sections, write_report
from scale_cl.reports.charts import charts
from scale_cl.reports.tables import tables
from scale_cl.streams.images import read_images
from scale_cl.streams.reading import LazyRows
from scale_cl.training import checkpoint
from scale_cl.training.config import resolve
from scale_cl.training.run_directory import NOTE_NAME, RunDirectory, RunRequest
from tests.fuzzing.mutations import mutated_bytes, mutated_json, mutated_tensors

RIGHT = 0.52  # share of inputs with right checksums; half of any thousands have one
SETTINGS = ("memory=4", "replay=4", "backbone=mlp-8-8")


class FileFormat(Protocol):
    """A kind of file; made with a folder of its own, in which it writes a sound one."""

    def __init__(self, folder: Path) -> None: ...

    def write(self, draw: Random) -> bool:
        """Write a mutated file; whether a checksum in it, if the format has one, is right."""

    def use(self) -> Iterator[str]:
        """Read the file and use it, and say how far that came."""


class ResultFile:
    """`result.json`, in a folder with a sound one; of one in so many, the whole report is written."""

    WHOLE = 500  # a report with its figures takes a second

    def __init__(self, folder: Path) -> None:
        config = resolve(learner="er", assignments=(*SETTINGS, "stream.tasks=2", "run.evaluate_every=20"))
        scale_cl.run(config, out=folder / "sound")
        self._folder, self._path = folder, folder / "odd" / results.RESULT_NAME
        self._text = (folder / "sound" / results.RESULT_NAME).read_bytes()
        self._path.parent.mkdir()
        self._whole = False

    def write(self, draw: Random) -> bool:
        self._whole = draw.randrange(self.WHOLE) == 0
        self._path.write_bytes(_mutated_text(self._text, draw))
        return False

    def use(self) -> Iterator[str]:
        collection = collect(self._folder)
        for section in sections(collection):
            tables(section)
            charts(section)
        if self._whole:
            assert write_report(collection, self._folder / "report").page.stat().st_size > 0
            yield "in a report"
        found = results.read(self._path)
        found.line()
        yield "in a report" if self._whole else "in a table"


class NoteFile:
    """`run.json`."""

    def __init__(self, folder: Path) -> None:
        RunDirectory(folder).begin(RunRequest(resolve(), None, ["run", "--tasks", "2"]), resume=False)
        self._folder, self._path = folder, folder / NOTE_NAME
        self._text = self._path.read_bytes()

    def write(self, draw: Random) -> bool:
        self._path.write_bytes(_mutated_text(self._text, draw))
        return False

    def use(self) -> Iterator[str]:
        RunDirectory(self._folder).request()
        yield "read"


class CheckpointFile:
    """A checkpoint of a run that was stopped: JSON and tensors."""

    def __init__(self, folder: Path) -> None:
        config = resolve(learner="er", assignments=(*SETTINGS, "stream.tasks=2", "run.keep_state=true"))
        scale_cl.run(config, out=folder)
        self._folder = folder
        self._path = checkpoint.found(folder / "checkpoints" / "seed-0")[0]
        self._tensors = self._path.with_suffix(".safetensors")
        self._sound = self._path.read_bytes(), self._tensors.read_bytes()
        for other in self._path.parent.iterdir():
            if other not in (self._path, self._tensors):
                other.unlink()

    def write(self, draw: Random) -> bool:
        text, data = self._sound
        if right := draw.random() < RIGHT:
            content = json.loads(text)
            if draw.random() < 0.5:
                data = mutated_tensors(data, draw)
            else:
                content = mutated_json(content, draw)
            if isinstance(content, dict):
                content.pop("checksum", None)
                with contextlib.suppress(KeyError, TypeError, IndexError):
                    content["model"]["tensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                content["checksum"] = _digest(content)
            text = _dumped(content)
        elif draw.random() < 0.5:
            text = mutated_bytes(text, draw)
        else:
            data = mutated_bytes(data, draw)
        self._path.write_bytes(text)
        self._tensors.write_bytes(data)
        return right

    def use(self) -> Iterator[str]:
        checkpoint.read(self._path)
        yield "read"
        learner = learner_of_run(self._folder).learner
        yield "loaded"
        for task in learner.tasks:
            learner.predict(torch.zeros(2, *learner.spec.shape, dtype=torch.uint8), task)
        yield "used"


class EstimatorFile:
    """What `ContinualClassifier.save` writes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model"
        x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
        model = ContinualClassifier("er", memory=4, replay=4, backbone="mlp-8-8")
        for name in ("a", "b"):
            model.partial_fit(x, ["even" if i % 2 else "odd" for i in range(40)], task=name, classes=["even", "odd"])
        model.save(self._path)
        self._data, self._inputs = self._path.read_bytes(), x[:2]

    def write(self, draw: Random) -> bool:
        if right := draw.random() < RIGHT:
            data = self._data if draw.random() < 0.5 else mutated_tensors(self._data, draw)
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + size])
            (key,) = header["__metadata__"]
            content = json.loads(header["__metadata__"][key])
            content.pop("sha256")
            if data is self._data:
                content = mutated_json(content, draw)
            if isinstance(content, dict):
                with contextlib.suppress(Exception):  # tensors that cannot be read have no checksum
                    content["sha256"] = _digest(content, safetensors.torch.load(data))
            header["__metadata__"][key] = _dumped(content).decode()
            text = json.dumps(header).encode()
            data = len(text).to_bytes(8, "little") + text + data[8 + size :]
        else:
            data = mutated_bytes(self._data, draw)
        self._path.write_bytes(data)
        return right

    def use(self) -> Iterator[str]:
        model_file.read(self._path)
        yield "read"
        model = ContinualClassifier.load(self._path)
        yield "loaded"
        for task in model.tasks_:
            model.predict(self._inputs, task=task)
        yield "used"


class ConfigFile:
    """A config in YAML or JSON."""

    LINES = (
        *(
            "run:",
            "  seeds: 3",
            "  batch_size: 20",
            "stream:",
            "  name: digits",
            "  tasks: 2",
            "learner:",
            "  name: er",
        ),
        *(
            "  lr: 0.1",
            "  memory: 50",
            "preset: paper",
            "  name: !!python/object:os.system x",
            "- a",
            "? b",
            "x: &a [*a]",
        ),
        *("  lr: 1:2:3:4:5", "  seeds: 1_000", "  lr: .inf", "  memory: 0x10", "<<: {a: b}", "---", "%YAML 9.9"),
        *("  lr: " + "9" * 5000, "  lr: " + "1:" * 500 + "1", "\t", "# c", "  when: 2001-13-45", "  b: !!binary x"),
    )

    def __init__(self, folder: Path) -> None:
        self._path = folder / "c.yaml"
        self._config = json.loads(json.dumps(resolve(learner="er", assignments=SETTINGS).as_dict()))
        self._text = yaml.safe_dump(self._config).encode()

    def write(self, draw: Random) -> bool:
        how = draw.randrange(4)
        if how == 0:
            data = "\n".join(draw.choices(self.LINES, k=draw.randrange(1, 9))).encode()
        elif how == 1:
            data = mutated_bytes(self._text, draw)
        elif how == 2:
            data = _dumped(mutated_json(self._config, draw))
        else:
            lines = self._text.split(b"\n")
            lines[draw.randrange(len(lines))] = draw.choice(self.LINES).encode()
            data = b"\n".join(lines)
        self._path.write_bytes(data)
        return False

    def use(self) -> Iterator[str]:
        resolve(file=self._path)
        yield "read"


class ManifestFile:
    """A CSV file that lists images."""

    def __init__(self, folder: Path) -> None:
        self._path, rows = folder / "m.csv", ["path,label,task,split"]
        os.mkfifo(folder / "pipe.png")
        for i in range(8):
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(folder / f"{i}.png")
            rows.append(
                f"{i}.png,{'cat' if i % 2 else 'dog'},{'one' if i < 4 else 'two'},{'test' if i & 2 else 'train'}"
            )
        self._rows = rows

    def write(self, draw: Random) -> bool:
        rows = [row.split(",") for row in self._rows]
        for _ in range(draw.randrange(3)):
            row = draw.choice(rows)
            row[draw.randrange(len(row))] = draw.choice(
                (
                    "",
                    "x",
                    "0.png",
                    "pipe.png",
                    "..",
                    "/dev/zero",
                    "a\0b",
                    '"',
                    '"a,b"',
                    "n" * 5000,
                    "\x1b[2J",
                    "\udcff",
                    "é",
                    "train",
                )
            )
        for _ in range(draw.randrange(2)):
            at = draw.randrange(len(rows))
            rows[at] = draw.choice(([], rows[at] * 2, rows[at][:-1], rows[0], ["x"] * 9))
        data = "\r\n".join(",".join(row) for row in rows).encode(errors="surrogateescape")
        self._path.write_bytes(mutated_bytes(data, draw) if draw.random() < 0.6 else data)
        return False

    def use(self) -> Iterator[str]:
        stream = streams.from_manifest(self._path, keep="disk", workers=0)
        yield "listed"
        try:
            for task in range(len(stream.tasks)):
                for _ in stream.test_batches(task, 4, torch.device("cpu")):
                    pass
        finally:
            for x in (stream.arrays.x_train, stream.arrays.x_test):
                assert isinstance(x, LazyRows)
                x.readers.close()
        yield "read"


class ImageFile:
    """An image; in a PNG file the checksums of the pieces may be right."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._sound = folder, {}
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8))
        for kind in ("png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm"):
            data = io.BytesIO()
            (image.quantize(16) if kind == "gif" else image).save(data, kind)
            self._sound[kind] = data.getvalue()
        data = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(data, "jpeg", exif=exif)
        self._sound["jpg"] = data.getvalue()

    def write(self, draw: Random) -> bool:
        if right := draw.random() < RIGHT:
            kind, data = "png", _png(self._sound["png"], draw)
        else:
            kind = draw.choice(sorted(self._sound))
            data = mutated_bytes(self._sound[kind], draw)
        self._path = self._folder / f"i.{kind}"
        self._path.write_bytes(data)
        return right

    def use(self) -> Iterator[str]:
        read_images([self._path], (4, 4))
        yield "read"


FORMATS: dict[str, type[FileFormat]] = {
    "result": ResultFile,
    "note": NoteFile,
    "checkpoint": CheckpointFile,
    "estimator": EstimatorFile,
    "config": ConfigFile,
    "manifest": ManifestFile,
    "image": ImageFile,
}


def _mutated_text(text: bytes, draw: Random) -> bytes:
    """JSON text with other content, or with other bytes."""
    return _dumped(mutated_json(json.loads(text), draw)) if draw.random() < 0.7 else mutated_bytes(text, draw)


def _dumped(content: Any) -> bytes:
    return json.dumps(content).encode()


def _digest(content: Any, tensors: dict[str, torch.Tensor] | None = None) -> str:
    """The checksum of JSON content, and of tensors in the same file."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    for name, t in sorted((tensors or {}).items()):
        digest.update(f"{name} {t.dtype} {list(t.shape)}".encode() + t.numpy().tobytes())
    return digest.hexdigest()


def _png(data: bytes, draw: Random) -> bytes:
    """A PNG file with one piece changed, lost, doubled or put in, and right checksums."""
    pieces, at = [], 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        pieces.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    number = draw.randrange(len(pieces))
    name, body = pieces[number]
    how = draw.randrange(6)
    if how <= 2:
        pieces[number] = name, zlib.compress(draw.randbytes(200)) if how == 2 else mutated_bytes(body, draw)
    elif how == 3:
        del pieces[number]
    elif how == 4:
        pieces.insert(number, pieces[draw.randrange(len(pieces))])
    else:
        extra = draw.choice((b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"acTL", b"fcTL", b"PLTE", b"tRNS", b"iCCP", b"gAMA"))
        pieces.insert(number, (extra, draw.randbytes(draw.randrange(40))))
    written = data[:8]
    for name, body in pieces:
        written += len(body).to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big")
    return written
