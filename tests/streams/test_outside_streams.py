"""Streams from outside this package: entry points, `module:function` and `file.py:function`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scale_cl import streams
from scale_cl.errors import ConfigError, DataError, ScaleClError, StreamError
from scale_cl.plugins import give_references
from scale_cl.streams.user_streams import OUTSIDE
from scale_cl.training.config import resolve
from tests.streams.outside_package import CODE, install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the search path with a package that has the entry point `halves`."""
    folder = install(tmp_path / "site", {"halves": "halves:two_halves", "broken": "halves_without:it"})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(OUTSIDE, "given", {})
    return folder


@pytest.mark.parametrize("form", ["halves", "halves:two_halves", "file"])
def test_a_stream_is_loaded_by_each_form_of_name(site: Path, form: str) -> None:
    name = f"{site / 'halves.py'}:two_halves" if form == "file" else form
    stream = streams.load(name, seed=3)
    assert (stream.name, stream.seed, len(stream)) == (name, 3, 2)
    assert stream.tasks[0].info.classes == 2
    assert len(streams.load(name, tasks=1)) == 1
    assert streams.describe(name) == "Two tasks of two classes each: which half of a vector is brighter."
    entry = streams.catalog.entry(name)
    assert (entry.tasks, entry.search, entry.train, entry.test) == (2, 0, 40, 40)


def test_installed_streams_are_among_the_names(site: Path) -> None:
    assert streams.names() == [*streams.catalog.ENTRIES, "broken", "halves"]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("nowhere_at_all:f", ConfigError, "'nowhere_at_all:f' cannot be imported: ModuleNotFoundError"),
        ("nowhere.py:f", ConfigError, r"cannot be imported: FileNotFoundError: .*nowhere\.py does not exist"),
        ("wrong.py:f", ConfigError, r"'wrong\.py:f' cannot be imported: SyntaxError"),
        ("broken", ConfigError, "stream 'broken' of package halves cannot be imported: ModuleNotFoundError"),
        ("halves:three", ConfigError, "halves has no attribute 'three'"),
        ("halves:number", ConfigError, r"is a int; it must be a function \(seed: int\) -> Stream"),
        ("halves:demanding", ConfigError, "cannot be called with a seed alone .*'size'"),
        ("halves:no_stream", StreamError, "returned a list; it must return a scale_cl.Stream"),
        ("halves:failing", StreamError, "failed with seed 0: RuntimeError: no data"),
    ],
)
def test_what_is_wrong_with_a_plug_in_is_said_in_one_line(
    site: Path, name: str, error: type[ScaleClError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text("def f(:\n")
    with pytest.raises(error, match=words) as raised:
        streams.load(name)
    assert "\n" not in str(raised.value)


def test_settings_of_the_catalog_are_refused(site: Path) -> None:
    with pytest.raises(ConfigError, match="class_order and part are for streams of the catalog"):
        streams.load("halves", part="search")
    with pytest.raises(ConfigError, match="class_order and part are for streams of the catalog"):
        streams.load("halves", class_order=1)
    with pytest.raises(ConfigError, match="tasks is 3; halves has 2"):
        streams.load("halves", tasks=3)
    with pytest.raises(ConfigError, match="no data set of the catalog"):
        streams.load_arrays("halves")


def test_an_entry_point_cannot_take_the_name_of_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install(tmp_path / "site", {"digits": "halves:two_halves"}))
    uses: list[Callable[[], object]] = [lambda: streams.load("digits"), lambda: resolve(stream="digits")]
    for use in uses:
        with pytest.raises(ConfigError, match="'digits' of package halves takes the name of a stream of scale-cl"):
            use()
    assert len(streams.catalog.ENTRIES) == len(streams.names())


def test_a_name_of_two_packages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("halves", "others"):
        monkeypatch.syspath_prepend(install(tmp_path / package, {"twice": "halves:two_halves"}, package))
    with pytest.raises(ConfigError, match="an entry point of package halves and package others; uninstall all but one"):
        streams.load("twice")


def test_a_reference_in_a_file_is_not_imported_unless_the_user_gave_it(site: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"{CODE}\nraise SystemExit('imported')\n")
    name = f"{trap}:two_halves"
    config = tmp_path / "config.yaml"
    config.write_text(f"stream: '{name}'\n")
    recorded = {"stream": {"name": name}}
    reads: list[Callable[[], object]] = [lambda: resolve(file=config), lambda: resolve(recorded=recorded)]
    for read in reads:
        with pytest.raises(ConfigError, match=r"is named in a file, from which nothing is imported; name it yourself"):
            read()
    config.write_text("stream: 'halves:two_halves'\n")
    OUTSIDE.give("halves:two_halves")
    assert resolve(file=config).stream.name == "halves:two_halves"
    assert resolve(assignments=["stream.name=halves:no_stream"]).stream.short_name == "halves-no_stream"
    assert resolve(options={"stream.name": "halves"}).stream.name == "halves", "entry points are installed on purpose"
    assert list(OUTSIDE.given) == ["halves:two_halves", "halves:no_stream"]


def test_a_child_process_is_told_of_references_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OUTSIDE, "given", {})
    give_references({OUTSIDE.group: {"gone.module:stream": "gone.module:stream"}})
    assert resolve(stream="digits").stream.name == "digits"
    with pytest.raises(ConfigError, match=r"stream 'gone.module:stream' cannot be imported: ModuleNotFoundError"):
        resolve(recorded={"stream": {"name": "gone.module:stream"}})


@pytest.mark.parametrize("kind", ["Numbers", "Lost"])
def test_workers_read_a_data_set_of_a_file_or_say_why_not(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "numbers.py"
    file.write_text(
        "import numpy as np\n"
        "from scale_cl import streams\n"
        "class Numbers:\n"
        "    targets = [0, 1] * 10\n"
        "    def __len__(self): return 20\n"
        "    def __getitem__(self, i): return np.full(3, i, np.float32), self.targets[i]\n"
        "class Lost(Numbers):\n"
        "    def __reduce__(self): return lost, ()\n"
        "def lost(): raise OSError('the share is gone')\n"
        f"def made(seed): return streams.from_dataset([({kind}(), {kind}())], keep='disk', workers=1, shuffle=False)\n"
    )
    samples = streams.load(f"{file}:made").arrival(0, torch.device("cpu"))
    if kind == "Numbers":
        assert samples.take(0, 3)[0][:, 0].tolist() == [0, 1, 2]
        return
    with pytest.raises(DataError, match=r"worker process \(OSError: the share is gone\); .* workers=0$"):
        samples.take(0, 3)
