"""Methods from outside are first-class: an installed package, a file, a class; run, killed, resumed and shown.

The package in `package/` has two: `outside-ewc`, with state of the shapes of the weights, and `outside-pnn`, with a
module per task.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import torch

from scale_cl import ContinualClassifier, results, streams
from scale_cl.errors import ConfigError
from scale_cl.export.export_task import learner_of_run
from scale_cl.learners import registry
from scale_cl.plugins import Plugins
from scale_cl.training import checkpoint
from scale_cl.training.config import resolve
from tests.export.loaded import OnnxFile
from tests.learners.sameness import content
from tests.outside.installed import PACKAGE, install, printed
from tests.training.child import Child

LINES = {
    "outside-ewc": "Online EWC: a quadratic penalty holds the weights that mattered for earlier tasks.",
    "outside-pnn": "Progressive networks: a column per task, reading the earlier ones, which stay as they are.",
}
KEPT = ("--set", "run.keep_state=true")
WIDE = ("--set", "run.batch_size=50")  # 20 steps per task

FILE = '''
"""A method in a file of its own."""

from dataclasses import dataclass

from scale_cl.engine import ReplayConfig
from scale_cl.learners.learner import ReplayLearner, replay_memory
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class MixedConfig(ReplayConfig):
    """Settings."""

    lr: float = setting(0.1, "learning rate", above=0)


class Mixed(ReplayLearner):
    """One cross-entropy over batch and replay, whose features are held near those that are stored."""

    config_class = MixedConfig

    def build(self, engine):
        self.network = engine.network()
        self.memory = replay_memory(engine, self.config, logits=("features",))

    def update(self, batch):
        (samples,) = self.memory.replay_with(batch, self.config.replay)
        out = self.network(samples)
        loss = cross_entropy(out.logits, samples.y)
        if samples.replayed:
            stored, _ = self.memory.stored_logits(samples.rows, self.engine.backbone.feature_width, "features")
            loss = loss + (samples.from_memory(out.features) - stored).square().mean()
        self.network.base.descend(loss, self.config.lr)
        self.log(loss=loss)
        self.memory.write(batch)

    def task_ended(self, task):
        rows = self.memory.rows_of(task)
        stored = self.engine.evaluated(self.memory.x[rows], self.memory.task[rows])
        self.memory.keep_logits("features", rows, stored.features)
'''


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package was installed to, once, also when several processes run the tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "outside"
    with filelock.FileLock(shared / "outside.lock"):
        if not folder.exists():
            install(PACKAGE, tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("building")).rename(folder)
    return folder


@pytest.fixture
def site(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package is installed for this process and its children, and the user has named nothing yet."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH")))))
    monkeypatch.setattr(registry.OUTSIDE, "given", {})
    return installed


@pytest.fixture
def mixed(site: Path, tmp_path: Path) -> str:
    """The name of a method in a file outside any package."""
    folder = tmp_path / "own methods"
    folder.mkdir()
    (folder / "mixed.py").write_text(FILE)
    return f"{folder / 'mixed.py'}:Mixed"


def ended(out: Path) -> tuple[list[Any], dict[str, Any]]:
    """All that a run leaves that is a function of its config: matrices, and learners to the last bit."""
    result, tensors = results.read(out), dict[str, Any]()
    for seed in result.seeds:
        last = checkpoint.read(checkpoint.found(out / "checkpoints" / f"seed-{seed.seed}")[0])
        tensors |= {f"{seed.seed}.{name}": t for name, t in content(last.state).items()}
        tensors[f"{seed.seed}.meta"] = last.state["meta"]
    return [seed.matrix for seed in result.seeds], tensors


def killed_in_its_midst(*run: str) -> None:
    """Start a run in a process of its own, and end it as a power cut would, once it has a checkpoint."""
    child = Child(Path(), *run)
    child.wait_for(Path("killed/checkpoints/seed-0/*.json"))
    child.kill()


def assert_same(one: Path, other: Path) -> None:
    (matrices, a), (others, b) = ended(one), ended(other)
    assert matrices == others
    assert a.keys() == b.keys()
    different = [n for n, v in a.items() if not (torch.equal(v, b[n]) if isinstance(v, torch.Tensor) else v == b[n])]
    assert different == []


# ---- an installed package --------------------------------------------------------------------------------------------


def test_installed_learners_are_listed_by_a_new_process(site: Path, tmp_path: Path) -> None:
    listed = printed(tmp_path, "list", "learners")
    for name, line in LINES.items():
        first, row = (words for words in listed.splitlines() if words.startswith(f"{name} "))
        assert first.split(maxsplit=1)[1] == line
        assert len(row.split()) == 13, "where it applies, its properties and its parameters on two streams"


@pytest.mark.parametrize("name", LINES)
def test_an_installed_learner_is_killed_and_resumed_to_the_bit(
    name: str, site: Path, command: Callable[..., Any]
) -> None:
    run = (
        "run",
        "-q",
        "--stream",
        "digits",
        "--tasks",
        "3",
        "--learner",
        name,
        "--set",
        "run.checkpoint_every=7",
        *KEPT,
    )
    straight = command(*run, "--out", "straight")
    assert straight.code == 0, straight.err
    assert straight.out.startswith(f"{name} on digits: ACC ")
    killed_in_its_midst(*run, "--out", "killed")
    assert Path("killed/run.json").exists()
    assert not Path("killed/result.json").exists()
    assert command("resume", "-q", "killed").code == 0, "an installed entry point need not be named again"
    assert_same(Path("straight"), Path("killed"))
    (seed,) = results.read(Path("killed")).seeds
    assert (seed.learner, seed.config["learner"]["name"]) == (name, name)


def test_what_is_frozen_is_not_forgotten_and_what_is_held_is_forgotten_less(
    site: Path, command: Callable[..., Any]
) -> None:
    run = ("run", "-q", "--tasks", "4", "--set", "run.batch_size=25", "--learner")
    for name, more in (("outside-pnn", ()), ("outside-ewc", ()), ("free", ("--set", "importance=0"))):
        learner = "outside-ewc" if name == "free" else name
        assert command(*run, learner, *more, "--out", name).code == 0
    (pnn,), (ewc,), (free,) = (results.read(Path(name)).seeds for name in ("outside-pnn", "outside-ewc", "free"))
    assert pnn.fm == 0
    assert all(column[0] == column[-1] for column in _columns(pnn.matrix))
    assert ewc.fm is not None
    assert free.fm is not None
    assert ewc.fm < free.fm
    assert ewc.config["learner"]["lr"] == 0.1, "the class's own preset for permuted streams"


def _columns(matrix: list[list[float | None]]) -> list[list[float]]:
    return [[a for a in column if a is not None] for column in zip(*matrix, strict=True)]


def test_learners_from_outside_are_reproduced_and_reported_beside_ours(mixed: str, command: Callable[..., Any]) -> None:
    learners = f"outside-ewc,er,derpp,{mixed}"
    asked = ("reproduce", "main", "--streams", "digits", "--learners", learners, "--tasks", "2", "--seeds", "1")
    done = command(*asked, *WIDE, "--slots", "1", "--device", "cpu", "--out", "r")
    assert done.code == 0, done.err
    assert {"outside-ewc", "er", "derpp"} <= {line.split()[1] for line in done.out.splitlines()[2:]}
    assert mixed in done.out
    assert f"{mixed} on digits, seed 0" in done.err
    again = command(*asked, *WIDE, "--device", "cpu", "--out", "r", "--dry-run")
    assert again.out.splitlines()[-1].startswith("0 runs to do, ")
    assert command("report", "r", "-q").code == 0
    for name in ("report.html", "tables.md", "tables.tex"):
        text = Path("r", name).read_text()
        assert "outside-ewc" in text
        assert ">er<" in text or "er" in text.split()
    compared = command("compare", "r")
    assert "outside-ewc" in compared.out
    assert "mixed.py:Mixed" in Path("r/report.html").read_text()
    listed = re.findall(r"^\W*(er|derpp|outside-ewc)\b", Path("r/tables.md").read_text(), re.M)[:3]
    assert listed == ["er", "outside-ewc", "derpp"], "its class says after which learner it stands in tables"


def test_a_file_is_searched_over_a_grid(mixed: str, command: Callable[..., Any]) -> None:
    asked = ("reproduce", "search", "--streams", "digits", "--learners", mixed, "--grid", "lr=0.05,0.1")
    planned = command(*asked, "--seeds", "1", "--device", "cpu", "--out", "r", "--dry-run")
    assert planned.code == 0, planned.err
    assert planned.out.splitlines()[-1].startswith("2 runs to do, ")


def test_results_of_a_package_that_is_gone_are_still_reported(
    site: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("run", "-q", *WIDE, "--tasks", "2", "--learner", "outside-ewc", "--out", "r/a").code == 0
    monkeypatch.setattr("sys.path", [entry for entry in importlib.import_module("sys").path if entry != str(site)])
    assert "outside-ewc" not in registry.names()
    assert command("report", "r", "-q").code == 0
    assert "outside-ewc" in Path("r/tables.md").read_text()
    refused = command("run", "--config", "r/a/result.json", "--out", "b")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "unknown learner 'outside-ewc'" in refused.err


def test_a_module_per_task_is_exported_to_onnx(site: Path, command: Callable[..., Any]) -> None:
    assert command("run", "-q", *WIDE, "--tasks", "2", "--learner", "outside-pnn", *KEPT, "--out", "r").code == 0
    done = command("export", "r", "--task", "all", "--out", "files")
    assert done.code == 0, done.err
    trained, stream = learner_of_run(Path("r")), streams.load("digits", tasks=2)
    for number, task in enumerate(stream.tasks):
        x, _ = stream.test_data(number)
        logits = OnnxFile(Path("files", f"{task.name}.onnx")).logits(x)
        assert np.allclose(logits, trained.learner.predict(x, task.name).numpy(), atol=1e-5)


def test_samples_of_an_installed_learner_are_listed_and_deleted(site: Path, command: Callable[..., Any]) -> None:
    assert command("run", "-q", *WIDE, "--tasks", "2", "--learner", "outside-ewc", *KEPT, "--out", "r").code == 0
    assert command("memory", "list", "r").out.splitlines()[0] == "seed 0: 100 samples"
    assert command("memory", "delete", "r", "--all").code == 0
    assert command("memory", "list", "r").out.splitlines()[0] == "seed 0: 0 samples"


# ---- a class in Python -----------------------------------------------------------------------------------------------


def blobs(seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    y = np.arange(80) % 2
    return draw.normal(size=(80, 6)) + 3.0 * y[:, None], np.array(["cat", "dog"])[y]


@pytest.mark.parametrize(("module", "name"), [("ewc", "Ewc"), ("pnn", "Pnn")])
def test_a_class_is_an_estimator_that_is_saved_and_loaded(module: str, name: str, site: Path, tmp_path: Path) -> None:
    method: Any = getattr(importlib.import_module(f"outside_methods.{module}"), name)
    x, y = blobs(1)
    model = ContinualClassifier(method, epochs=5).fit(x, y)
    assert model.score(x, y) > 0.9
    model.partial_fit(*blobs(2), task="second")
    path = tmp_path / "model.safetensors"
    model.save(path)
    with pytest.raises(ConfigError, match=f"trained with the learner outside_methods.{module}:{name}: give that class"):
        ContinualClassifier.load(path)
    loaded = ContinualClassifier.load(path, learner=method)
    for task in model.tasks_:
        assert np.array_equal(loaded.predict_proba(x, task=task), model.predict_proba(x, task=task))
    for one in (model, loaded):
        one.partial_fit(*blobs(3), task="third")
    assert np.array_equal(loaded.predict_proba(x, task="third"), model.predict_proba(x, task="third"))


def test_an_estimator_takes_an_installed_name_and_the_settings_of_the_class(site: Path) -> None:
    x, y = blobs(1)
    by_name = ContinualClassifier("outside-ewc", epochs=1).fit(x, y)
    by_class = ContinualClassifier(importlib.import_module("outside_methods.ewc").Ewc, epochs=1).fit(x, y)
    assert by_name.learner_.config == by_class.learner_.config
    assert by_name.learner_.config.lr == 0.1, "the class's own preset, also for feature vectors"
    assert np.array_equal(by_name.predict_proba(x), by_class.predict_proba(x))


# ---- a file ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_processes")
def test_a_file_runs_over_processes_under_its_name(mixed: str, command: Callable[..., Any]) -> None:
    seeds = ("--tasks", "2", "--seeds", "2", *WIDE)
    done = command("run", "-q", *seeds, "--learner", mixed, "--set", "run.processes=2", "--out", "two")
    assert done.code == 0, done.err
    result = results.read(Path("two"))
    assert [(s.seed, s.learner, s.config["learner"]["name"]) for s in result.seeds] == [
        (0, mixed, mixed),
        (1, mixed, mixed),
    ]
    assert command("run", "-q", *seeds, "--learner", mixed, "--set", "run.processes=1", "--out", "one").code == 0
    assert [s.matrix for s in results.read(Path("one")).seeds] == [s.matrix for s in result.seeds]


def test_a_run_of_a_file_is_resumed_only_if_the_user_names_it_again(
    mixed: str, site: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", "-q", "--tasks", "3", "--learner", mixed, "--set", "run.checkpoint_every=7", *KEPT)
    assert command(*run, "--out", "straight").code == 0
    killed_in_its_midst(*run, "--out", "killed")
    for words in (("resume", "killed"), ("export", "straight", "--task", "all")):
        monkeypatch.setattr(registry.OUTSIDE, "given", {})  # as in a new process
        refused = command(*words)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert f"{mixed!r} is named in a file, from which nothing is imported; name it yourself" in refused.err
    Path("moved").mkdir()
    Path("moved/mixed.py").write_text(FILE)
    for other in ("moved/mixed.py:MixedConfig", "moved/other.py:Mixed"):
        assert "is named in a file" in command("resume", "killed", "--learner", other).err
    assert command("resume", "-q", "killed", "--learner", mixed).code == 0
    assert_same(Path("straight"), Path("killed"))
    monkeypatch.setattr(registry.OUTSIDE, "given", {})
    done = command("export", "straight", "--task", "all", "--learner", "moved/mixed.py:Mixed")
    assert done.code == 0, "a file of that name with that class, wherever it is now"


def test_of_two_files_of_one_name_none_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scale_cl.plugins._kinds", {})  # child processes of later tests are not told of this one
    plugins = Plugins("thing", "tests.things")
    plugins.give("a/one.py:f")
    plugins.require_given("one.py:f", "--thing ")
    plugins.give("b/one.py:f")
    with pytest.raises(ConfigError, match="is named in a file"):
        plugins.require_given("one.py:f", "--thing ")


def test_a_name_that_the_user_types_in_python_is_imported(mixed: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is named in a file"):
        resolve(recorded={"learner": {"name": mixed}})
    assert resolve(options={"learner.name": mixed}).learner_name == mixed


def test_an_estimator_takes_a_file_and_its_model_does_not_import_it(
    mixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(1)
    model, path = ContinualClassifier(mixed, epochs=1).fit(x, y), tmp_path / "model.safetensors"
    model.save(path)
    monkeypatch.setattr(registry.OUTSIDE, "given", {})  # as in a new process
    with pytest.raises(ConfigError, match="is named in a file"):
        ContinualClassifier.load(path)
    assert registry.OUTSIDE.given == {}
    loaded = ContinualClassifier.load(path, learner=mixed)
    assert np.array_equal(loaded.predict_proba(x), model.predict_proba(x))


@pytest.mark.usefixtures("quick_processes")
def test_a_file_is_benched(mixed: str, command: Callable[..., Any]) -> None:
    little = ("--synthetic", "--rounds", "1", "--block", "1", "--grow-to", "3", "--seeds", "1", "--seed-steps", "2")
    done = command("bench", "cost", "growth", "seeds", "--stream", "pmnist", *little, "--learner", mixed, "--out", "b")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    begin = {line.split()[0]: line for line in lines if f" {mixed} on pmnist " in line}
    assert "steps/s" in begin["seeds"]
    assert " 0 bytes unexplained" in begin["growth"]
    assert f"logits {20 * 50 * 256 * 4 // 1024} KiB" in begin["cost"], "a vector of features per slot of 20 tasks"


def test_a_run_of_a_file_has_a_folder_without_its_path(mixed: str, command: Callable[..., Any]) -> None:
    assert command("run", "-q", *WIDE, "--tasks", "1", "--learner", mixed).code == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.endswith("-mixed.py-Mixed-digits")
