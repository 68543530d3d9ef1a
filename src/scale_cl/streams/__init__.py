"""Streams of tasks: named ones, and builders for data of your own.

`load("digits")` and `load("split-digits")` need no download; other names read their data set from the data root.
`permuted`, `split`, `by_domain`, `from_arrays`, `from_folder`, `from_manifest` and `from_dataset` build streams from
other data; `thinned` and `blurred` change what arrives, and when.
"""

from scale_cl.streams.builders import blurred, by_domain, permuted, split, thinned
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
    "blurred",
    "build",
    "by_domain",
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
    "thinned",
]
