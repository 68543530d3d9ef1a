"""Streams of tasks: the named ones of the catalog, and builders for anybody's data.

`load("digits")` needs no download; `load(name, root=...)` reads what is in the data root; `permuted`, `split`,
`from_arrays`, `from_folder`, `from_manifest` and `from_dataset` make streams of other data.
"""

from scale_cl.streams.builders.from_arrays import from_arrays
from scale_cl.streams.builders.from_datasets import from_dataset
from scale_cl.streams.builders.from_folder import from_folder
from scale_cl.streams.builders.from_manifest import from_manifest
from scale_cl.streams.builders.permuting import permuted
from scale_cl.streams.builders.splitting import split
from scale_cl.streams.catalog import build, describe, load, load_arrays, names
from scale_cl.streams.data_root import data_root
from scale_cl.streams.stream import Arrays, InputSpec, Stream, Task, TaskInfo

__all__ = [
    "Arrays",
    "InputSpec",
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
