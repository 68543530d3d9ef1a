"""TensorBoard: event files under `DIR/tensorboard`, one folder per seed, the whole run in the folder itself.

The records are written here in TensorBoard's format, because its own writer has a thread that reports errors late or
never.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scale_cl.errors import TrackerError
from scale_cl.results import MEASURE_NAMES, percent
from scale_cl.trackers.backend import About, Axis, Ending, flat

FOLDER = "tensorboard"
_numbers = itertools.count()


class TensorBoard:
    """Writes what `tensorboard --logdir` shows: scalars, images, text and hyper-parameters."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._folder = Path()
        self._about = About(Path(), "")
        self._logs: dict[int | None, _Log] = {}
        self._from: dict[int, int] = {}  # by seed, the step from which earlier points are void

    def start(self, about: About, before: Mapping[str, Any] | None) -> str:
        """Create the folder."""
        self._about, self._folder = about, about.directory / FOLDER
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            reason = f"{self._folder} cannot be written to: {error.strerror}"
            raise TrackerError(f"tracking with tensorboard: {reason}") from None
        return str(self._folder)

    def open(self, seeds: Sequence[int]) -> None:
        """Nothing yet: a file is created with its first point, when it is known which earlier points are void."""

    def memory(self) -> dict[str, Any]:
        """Nothing: the files are in the run's directory."""
        return {}

    def restored(self, seed: int, steps: int) -> None:
        """Have TensorBoard hide the points of steps that are repeated."""
        self._from[seed] = steps + 1

    def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
        """Points of curves."""
        self._log(seed).write(at, _values({"tag": tag, "simple_value": value} for tag, value in values.items()))

    def picture(self, seed: int | None, png: bytes, at: int) -> None:
        """The matrix, under Images."""
        from tensorboard.compat.proto import summary_pb2

        width, height = struct.unpack(">II", png[16:24])  # of the PNG's header
        image = summary_pb2.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
        self._log(seed).write(at, _values([{"tag": "matrix", "image": image}]))

    def result(self, seed: int | None, measures: Mapping[str, float]) -> None:
        """Scalars with a single point, which the table of hyper-parameters shows too."""
        self._log(seed).write(0, _values({"tag": tag, "simple_value": value} for tag, value in measures.items()))

    def document(self, content: Mapping[str, Any]) -> None:
        """A table of the measures, under Text."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        seeds, measures = content["seeds"], [measure for measure in MEASURE_NAMES if measure in content]
        rows = [[f"seed {seed}", *(percent([content[m][k]]) for m in measures)] for k, seed in enumerate(seeds)]
        if len(seeds) > 1:
            rows.append(["all", *(percent(content[m]) for m in measures)])
        lines = [["", *(MEASURE_NAMES[m] for m in measures)], ["---"] * (1 + len(measures)), *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        self._log(None).write(0, text_pb("result", f"{content['run']}\n\n{table}"))

    def flush(self) -> None:
        """Write to disk, where a reader sees it."""
        for log in self._logs.values():
            log.flush()

    def end(self, how: Ending) -> None:
        """Close the files; remove the folder if it is empty."""
        for log in self._logs.values():
            log.write(0, _session_end(how))
            log.close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def drop(self) -> None:
        """Close the files."""
        for log in self._logs.values():
            with contextlib.suppress(OSError):
                log.close()

    def _log(self, seed: int | None) -> _Log:
        if seed not in self._logs:
            folder = self._folder if seed is None else self._folder / f"seed-{seed}"
            purge = None if seed is None else self._from.get(seed)
            self._logs[seed] = _Log(folder, purge)
            if purge is None:
                self._introduce(self._logs[seed], seed)
        return self._logs[seed]

    def _introduce(self, log: _Log, seed: int | None) -> None:
        """Write the config as text and as hyper-parameters."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        for name, content in (("config", self._about.config), ("environment", self._about.environment)):
            if content:
                text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
                log.write(0, text_pb(name, f"```\n{text}```"))
        settings = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in flat(self._about.config)}
        settings |= {} if seed is None else {"run.seed": seed}
        log.write(0, hparams_pb(settings, trial_id=f"{self._about.title}/{'all' if seed is None else seed}"))


class _Log:
    """One event file."""

    def __init__(self, folder: Path, purge: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        made_by = f"{socket.gethostname()}.{os.getpid()}.{next(_numbers):06}"
        self._file = (folder / f"events.out.tfevents.{int(time.time()):010}.{made_by}").open("xb")
        self._records, self._event = RecordWriter(self._file), Event
        self._add(file_version="brain.Event:2")
        if purge is not None:
            self._add(step=purge, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, summary: Any) -> None:
        """One event."""
        self._add(step=step, summary=summary)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def _session_end(how: Ending) -> Any:
    """The state of a run in the table of hyper-parameters; TensorBoard's own function for it needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    state = api_pb2.STATUS_SUCCESS if how == "finished" else api_pb2.STATUS_FAILURE
    ended = plugin_data_pb2.SessionEndInfo(status=state, end_time_secs=time.time())
    content = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, session_end_info=ended)
    named = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content.SerializeToString())
    value = {"tag": metadata.SESSION_END_INFO_TAG, "tensor": metadata.NULL_TENSOR}
    return Summary(value=[Summary.Value(**value, metadata=SummaryMetadata(plugin_data=named))])


def _values(values: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(**value) for value in values])
