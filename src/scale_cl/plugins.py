"""Functions and classes from outside this package, by name.

A name is an installed entry point (`my-stream`), an attribute of a module (`package.module:function`) or of a file
(`folder/file.py:function`). Importing a module or a file runs its code, so such a reference must come from the user:
from the command line or from a call in Python. A name that was read from a file (a run's note, a checkpoint, a result,
a config file) is only looked up among the entry points and the references that the user has given to this process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import operator
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from scale_cl.errors import FAILURES, ConfigError, one_line, place_in

_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<file_attribute>[\w.]+)|(?P<module>\w+(\.\w+)*):(?P<attribute>[\w.]+)")
_OF_FILES = "scale_cl_plugin_"  # begins the names of modules that are made of files
_FILE_ALONE = re.compile(r".+\.py:?")  # without what to take from it


_kinds: dict[str, Plugins] = {}  # by group


def given_references() -> dict[str, dict[str, str]]:
    """All references that the user gave to this process, by group of entry points; a child process is told them."""
    return {group: dict(plugins.given) for group, plugins in _kinds.items() if plugins.given}


def name_references(**named: object) -> None:
    """Take over what the user named: `stream`, `learner` or `backbone`; what is no name counts as nothing."""
    for kind, name in named.items():
        if isinstance(name, str):
            _kinds[f"scale_cl.{kind}s"].give(str(name))


def give_references(references: Mapping[str, Mapping[str, str]]) -> None:
    """Take over the references that the parent process was given, and import what they stand for.

    Importing them lets a child process unpickle objects of their classes. The run may need only some of them, so one
    that cannot be imported here is an error where it is needed.
    """
    for group, names in references.items():
        for name, reference in names.items():
            _kinds[group].given[name] = reference
            with contextlib.suppress(ConfigError):
                _kinds[group].find(name)


def files_needed(pickled: bytes) -> list[str]:
    """The files that another process has to import before it can unpickle this."""
    made = [(name, module.__file__) for name, module in list(sys.modules.items()) if name.startswith(_OF_FILES)]
    return [file for name, file in made if file is not None and name.encode() in pickled]


def import_files(files: Iterable[str]) -> None:
    """Import files that `files_needed` has named in another process, under the names that their modules have there."""
    for file in files:
        _module_of_file(file)


class Plugins:
    """Everything of one kind that comes from outside, such as streams: entry points, and references of this process."""

    def __init__(self, kind: str, group: str) -> None:
        """`kind` is used in messages, such as "stream"; `group` is the group of entry points."""
        self.kind, self.group = kind, group
        self.given: dict[str, str] = {}  # what the user named in this process, with the absolute path of a file
        _kinds[group] = self

    def give(self, name: str) -> None:
        """Note that the user has named `name` in this process; does nothing for a name that is no reference."""
        parts = _REFERENCE.fullmatch(name)
        if parts is not None:
            file = parts["file"] and Path(parts["file"]).expanduser().resolve()
            self.given[name] = f"{file}:{parts['file_attribute']}" if file else name

    def require_given(self, name: str, option: str) -> None:
        """Raise ConfigError for a reference that the user did not give: nothing is imported because a file names it.

        A given file serves for a file of that name in another folder, as a run may have recorded it, if the attribute
        is the same. `option` is what the user writes before the name, such as "--stream ".
        """
        if _FILE_ALONE.fullmatch(name):
            wanted = f"{name.rstrip(':')}:{'Class' if self.kind == 'learner' else 'function'}"
            raise ConfigError(f"{self.kind} {name!r} is a file; say what to take from it, {option}{wanted}")
        if is_reference(name) and self._served_by(name) is None:
            ways = dict.fromkeys(
                (f"--{self.kind} {name}", f"{option}{name}")
            )  # commands that read a run have the first
            raise ConfigError(
                f"{self.kind} {name!r} is named in a file, from which nothing is imported; name it yourself, "
                f"{' or '.join(ways)}, or install it as an entry point"
            )

    def _served_by(self, name: str) -> str | None:
        """What the user gave, with the absolute path of a file, that a name stands for; None: nothing, or several."""
        wanted = _in_file(name)
        if name in self.given or wanted is None:
            return self.given.get(name)
        alike = {reference for reference in self.given.values() if _in_file(reference) == wanted}
        return alike.pop() if len(alike) == 1 else None

    def names(self) -> list[str]:
        """Names of the installed entry points, sorted."""
        return sorted(self._installed())

    def check_not_taken(self, name: str) -> None:
        """Raise ConfigError if an entry point has the name of one of ours."""
        for entry_point in self._installed().get(name, ()):
            raise ConfigError(
                f"the entry point {name!r} of {_package(entry_point)} takes the name of a {self.kind} of scale-cl; "
                "rename it or uninstall the package"
            )

    def find(self, name: str) -> Any:
        """Import and return what `name` stands for; ConfigError in one line if that fails."""
        entry_points = self._installed().get(name, ())
        if len(entry_points) > 1:
            packages = " and ".join(sorted(map(_package, entry_points)))
            raise ConfigError(f"{self.kind} {name!r} is an entry point of {packages}; uninstall all but one")
        reference = entry_points[0].value.replace(" ", "") if entry_points else self._served_by(name) or name
        where = f"{self.kind} {name!r}" + (f" of {_package(entry_points[0])}" if entry_points else "")
        parts = _REFERENCE.fullmatch(reference)
        if parts is None:
            raise ConfigError(f"{where}: {reference!r} is not of the form module:name or file.py:name")
        source, attribute = parts["file"] or parts["module"], parts["file_attribute"] or parts["attribute"]
        try:
            module = _module_of_file(source) if parts["file"] else importlib.import_module(source)
        except FAILURES as error:  # importing runs the code of others, which may raise anything
            raise ConfigError(f"{where} cannot be imported{_place(error)}: {one_line(error)}") from error
        try:
            return operator.attrgetter(attribute)(module)
        except AttributeError:
            said = name.rpartition(":")[0] or source  # as the user wrote it
            raise ConfigError(f"{where}: {said} has no attribute {attribute!r}") from None

    def _installed(self) -> dict[str, tuple[importlib.metadata.EntryPoint, ...]]:
        return _entry_points(self.group, tuple(sys.path))


def is_reference(name: str) -> bool:
    """Whether a name is of the form `module:name` or `file.py:name`."""
    return _REFERENCE.fullmatch(name) is not None


def _in_file(reference: str) -> tuple[str, str] | None:
    """Name of the file, without its folder, and the attribute; None for a name of another form."""
    parts = _REFERENCE.fullmatch(reference)
    return (Path(parts["file"]).name, parts["file_attribute"]) if parts is not None and parts["file"] else None


def shown(name: str) -> str:
    """A name as tables show it: of a reference into this package the class alone, any other name as it is."""
    return name.rpartition(":")[2] if name.startswith("scale_cl.") and is_reference(name) else name


def reference_to(thing: Any) -> str:
    """The reference `module:name` of a function or class."""
    return f"{thing.__module__}:{thing.__qualname__}"


@functools.lru_cache(maxsize=8)
def _entry_points(group: str, _path: tuple[str, ...]) -> dict[str, tuple[importlib.metadata.EntryPoint, ...]]:
    """The entry points of a group by name; cached until the search path changes."""
    found: dict[str, tuple[importlib.metadata.EntryPoint, ...]] = {}
    for entry_point in importlib.metadata.entry_points(group=group):
        found[entry_point.name] = (*found.get(entry_point.name, ()), entry_point)
    return found


def _package(entry_point: importlib.metadata.EntryPoint) -> str:
    return f"package {entry_point.dist.name}" if entry_point.dist is not None else "an unnamed package"


def _place(error: BaseException) -> str:
    """Where importing failed, in the first file that was executed: " (ewc.py, line 12)"."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ran = (file for file in files if file not in (__file__, importlib.__file__) and not file.startswith("<frozen"))
    return place_in(next(ran, None), error)


def _module_of_file(path: str) -> ModuleType:
    """The module of a Python file, executed once per process."""
    file = Path(path).expanduser().resolve()
    name = f"{_OF_FILES}{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FileNotFoundError(f"{file} does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution, as dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
