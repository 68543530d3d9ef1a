"""Streams of tasks: named ones, and builders for data of your own.

`load("digits")` needs no download; other names read their data set from the data root. `permuted`, `split`,
`from_arrays`, `from_folder`, `from_manifest` and `from_dataset` build streams from other data.
"""

from scale_cl.streams.builders import permuted, split
from scale_cl.streams.catalog import build, describe, load, load_arrays, names
from scale_cl.streams.from_arrays import from_arrays
from scale_cl.streams.from_datasets import from_dataset
from scale_cl.streams.from_images import from_folder, from_manifest
from scale_cl.streams.sources.source import data_root
from scale_cl.streams.stream import Arrays, Boundaries, InputSpec, Scenario, Stream, Task, TaskInfo

__all__ = [
    "Arrays",
    "Boundaries",
    "InputSpec",
    "Scenario",
    "Stream",
    "Task",
    "TaskInfo",
    "build",
    "data_root",
    "describe",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "from_manifest",
    "load",
    "load_arrays",
    "names",
    "permuted",
    "split",
]
