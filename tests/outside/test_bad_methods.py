"""A method from outside that cannot be used: one line that says what is wrong and where, exit code 2, nothing left."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import ContinualClassifier
from scale_cl.errors import ConfigError, ScaleClError
from scale_cl.learners import Learner, registry
from scale_cl.nets.custom_backbone import BACKBONES
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.tiny import batch
from tests.outside.installed import entry_points

METHODS = '''
"""Methods with a fault each."""

import sys
from dataclasses import dataclass

import torch

from scale_cl.engine import LearnerConfig
from scale_cl.learners import Learner
from scale_cl.learners.presets import Preset
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting

number = 5


class Plain:
    """No learner."""


class Idle(Learner):
    """No step."""


@dataclass(frozen=True)
class SilentConfig(LearnerConfig):
    """Settings."""

    rate: float = 0.1


@dataclass(frozen=True)
class GoodConfig(LearnerConfig):
    """Settings."""

    lr: float = setting(0.1, "learning rate", above=0)


class Good(Learner):
    """Plain SGD."""

    config_class = GoodConfig

    def update(self, batch):
        samples = self.engine.samples(batch)
        self.network.base.descend(cross_entropy(self.network(samples).logits, samples.y), self.config.lr)


class Silent(Good):
    """A setting says nothing about itself."""

    config_class = SilentConfig


@dataclass(frozen=True)
class NamedConfig(LearnerConfig):
    """Settings."""

    name: str = setting("x", "a name")


class Named(Good):
    """Has a setting that is called as what says which learner it is."""

    config_class = NamedConfig


class Undescribed(Good):
    description = ""


Undescribed.__doc__ = None


class Failing(Good):
    """Raises in its step."""

    def update(self, batch):
        if self.engine.steps == 3:
            raise TypeError("this\\nis wrong")
        super().update(batch)


class FailingAtStart(Good):
    """Raises as a task begins."""

    def task_began(self, task):
        raise ValueError("no\\nstart")


class FailingAtEnd(Good):
    """Raises as a task ends."""

    def task_ended(self, task):
        return {}["end"]


class FailingInScores(Good):
    """Raises as it predicts."""

    def scores(self, x, task):
        raise TypeError("no scores")


class FailingInPauses(Good):
    """Raises as it is asked for a pause."""

    def pauses(self, step):
        raise ValueError("no pause")


class Scoreless(Good):
    """Forgets to return its scores."""

    def scores(self, x, task):
        self.engine.evaluated(x, task)


class Underived(Good):
    """Forgets to return what its scores read."""

    def scores(self, x, task):
        return self.engine.evaluated(x, task).logits

    def derived(self):
        pass


class Leaving(Good):
    """Ends the process in its step."""

    def update(self, batch):
        sys.exit(0)


class Deaf(Good):
    """A step that takes no batch."""

    def update(self):
        pass


class Growing(Good):
    """Its module per task cannot be made."""

    def build(self, engine):
        super().build(engine)
        engine.task_modules("columns", lambda shape: torch.nn.Linear(3, shape.heads))


class Hoarding(Good):
    """Keeps a tensor that it did not declare."""

    def update(self, batch):
        super().update(batch)
        self.seen = {"last": [batch.y.float().mean()]}


class Unbuildable(Good):
    """Raises as it is built."""

    def build(self, engine):
        raise KeyError("no such part")


class Misset(Good):
    """Has settings where a preset should be."""

    presets = {"ours": {"lr": 3}}


class Prefixed(Good):
    """Has a preset with a setting that it lacks."""

    presets = {"ours": Preset({"rate": 3})}


class ElsewherePreset(Good):
    """Has a preset that nobody can ask for."""

    presets = {"mine": Preset({"lr": 3})}


class RateConfig(LearnerConfig):
    lr: float = setting(0.1, "rate")


@dataclass(frozen=True)
class CheckedConfig(GoodConfig):
    """Settings with a check of their own."""

    def __post_init__(self):
        super().__post_init__()
        if self.lr > 1:
            raise ValueError("too\\nfast")


class Checked(Good):
    """Checks its settings itself."""

    config_class = CheckedConfig


class Hasty(Good):
    """Has a preset that its settings refuse."""

    config_class = CheckedConfig
    presets = {"ours": Preset({"lr": 2.0})}


@dataclass(frozen=True)
class UntypedConfig(LearnerConfig):
    """Settings."""

    lr: "Absent" = setting(0.1, "learning rate")


class Untyped(Good):
    """Has a setting of a type that does not exist."""

    config_class = UntypedConfig


class Forgotten(Good):
    """Has settings without the decorator of a dataclass."""

    config_class = RateConfig


class Smaller(Good):
    """Has a word where a pair should be."""

    smaller = "width"


class Slotless(Good):
    """Keeps a memory of nothing."""

    def build(self, engine):
        super().build(engine)
        engine.memory("memory", 0)


class Anywhere(Good):
    """Has a number where scenarios should be."""

    scenarios = 5


class TasksOnly(Good):
    """Takes no other scenario."""

    scenarios = ("task",)


class Netless(Good):
    """Declares no network."""

    def build(self, engine):
        self.memory = engine.memory("memory", 5)


class Twice(Good):
    """Declares two things of one name."""

    def build(self, engine):
        super().build(engine)
        engine.tensor("a", torch.zeros(1), changes="step")
        engine.tensor("a", torch.zeros(1), changes="step")


def gone():
    return {}["gone"]


def wide(width):
    return torch.nn.Linear(64, width)


def leaving():
    sys.exit("no backbone")
'''
FAULTS = {
    "nowhere_at_all:Method": r"learner 'nowhere_at_all:Method' cannot be imported: ModuleNotFoundError: .*",
    "nowhere.py:Method": r"learner 'nowhere\.py:Method' cannot be imported: FileNotFoundError: .*nowhere\.py does no.*",
    "wrong.py:Method": r"learner 'wrong\.py:Method' cannot be imported: SyntaxError: .*",
    "faults.py:Absent": r"learner 'faults\.py:Absent': faults\.py has no attribute 'Absent'",
    "faults.py:number": r"learner 'faults\.py:number' is 5; it must be a subclass of scale_cl\.learners\.Learner",
    "faults.py:Plain": r"learner 'faults\.py:Plain' is <class .*>; it must be a subclass of scale_cl\.learners\.L.*",
    "faults.py:Idle": r"learner 'faults\.py:Idle' has no step: Idle must define update\(self, batch\)",
    "faults.py:Silent": (
        r"learner 'faults\.py:Silent': setting 'rate' of SilentConfig has no documentation; "
        r"declare it with setting\(default, documentation\)"
    ),
    "faults.py:Named": (
        r"learner 'faults\.py:Named': NamedConfig has a setting 'name', which means the learner; rename it"
    ),
    "faults.py:Undescribed": (
        r"learner 'faults\.py:Undescribed': Undescribed has no docstring; its first line is shown in lists and tables"
    ),
    "faults.py:Failing": r"Failing failed in its step \(faults\.py, line \d+\): TypeError: this is wrong",
    "faults.py:FailingAtStart": r"FailingAtStart failed in task_began \(faults\.py, line \d+\): ValueError: no start",
    "faults.py:FailingAtEnd": r"FailingAtEnd failed in task_ended \(faults\.py, line \d+\): KeyError: 'end'",
    "faults.py:FailingInScores": r"FailingInScores failed in scores \(faults\.py, line \d+\): TypeError: no scores",
    "faults.py:Hoarding": (
        r"Hoarding keeps a tensor in its attribute 'seen' that it did not declare; "
        r"declare it in build \(.*\) and change it in place, so that it is saved and resumed"
    ),
    "faults.py:Unbuildable": (
        r"learner 'faults\.py:Unbuildable' cannot be built for inputs of \[1, 8, 8\] "
        r"\(faults\.py, line \d+\): KeyError: 'no such part'"
    ),
    "raising.py:Method": r"learner 'raising\.py:Method' cannot be imported \(raising\.py, line 2\): KeyError: 'gone'",
    "faults.py:Misset": (
        r"learner 'faults\.py:Misset': Misset\.presets is \{'ours': \{'lr': 3\}\}; it must map paper or ours to .*"
    ),
    "faults.py:ElsewherePreset": (
        r"learner 'faults\.py:ElsewherePreset': .*presets is \{'mine': .*\}; it must map paper or ours to Preset, .*"
    ),
    "faults.py:Forgotten": (
        r"learner 'faults\.py:Forgotten': Forgotten\.config_class must be a dataclass derived from LearnerConfig"
    ),
    "faults.py:Hasty": (
        r"the preset 'ours' of learner 'faults\.py:Hasty' cannot be used: "
        r"CheckedConfig cannot be made of these settings \(faults\.py, line \d+\): ValueError: too fast"
    ),
    "faults.py:Untyped": (
        r"the defaults of learner 'faults\.py:Untyped' cannot be used: "
        r"UntypedConfig cannot be made of these settings: NameError: name 'Absent' is not defined"
    ),
    "faults.py:Smaller": (
        r"learner 'faults\.py:Smaller': Smaller\.smaller is 'width'; "
        r"it must be None, or words and the name of a setting"
    ),
    "faults.py:Slotless": r"memory slots: 0 is out of range, it must be at least 1",
    "leaving.py:Method": r"learner 'leaving\.py:Method' cannot be imported \(leaving\.py, line 3\): SystemExit",
    "faults.py": r"learner 'faults\.py' is a file; say what to take from it, --learner faults\.py:Class",
    "faults.py:FailingInPauses": r"FailingInPauses failed in pauses \(faults\.py, line \d+\): ValueError: no pause",
    "faults.py:Scoreless": (
        r"Scoreless failed in scores \(faults\.py, line \d+\): TypeError: it returns NoneType; "
        r"it must return scores \[\d+, classes\]"
    ),
    "faults.py:Underived": r"Underived failed in derived \(faults\.py, line \d+\): AttributeError: 'NoneType' .*",
    "faults.py:Leaving": r"Leaving failed in its step \(faults\.py, line \d+\): SystemExit: 0",
    "faults.py:Deaf": r"Deaf failed in its step \(faults\.py, line \d+\): TypeError: .*takes 1 positional argument .*",
    "faults.py:Growing": r"Growing failed in build \(faults\.py, line \d+\): AttributeError: .*'heads'",
    "faults.py:Prefixed": (
        r"the preset 'ours' of learner 'faults\.py:Prefixed' cannot be used: unknown setting 'rate'; known are .*"
    ),
    "faults.py:Anywhere": (
        r"learner 'faults\.py:Anywhere': Anywhere\.scenarios is 5; it must be a tuple of some of task, domain, class"
    ),
    "faults.py:Netless": r"Netless\.build declares no network; call engine\.network\(\)",
    "faults.py:Twice": r"Twice declares 'a', which is taken; take another name, without a dot",
}
BACKBONE_FAULTS = {
    "faults.py:gone": r"the backbone cannot be made \(faults\.py, line \d+\): KeyError: 'gone'",
    "faults.py:wide": r"the backbone cannot be made \(faults\.py, line \d+\): TypeError: wide\(\) missing 1 .*",
    "faults.py:leaving": r"the backbone cannot be made \(faults\.py, line \d+\): SystemExit: no backbone",
}


@pytest.fixture(autouse=True)
def faults(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with faulty methods in the working directory."""
    Path("faults.py").write_text(METHODS)
    Path("wrong.py").write_text("class Method(:\n")
    Path("raising.py").write_text('def look():\n    return {}["gone"]\n\n\nlook()\n')
    Path("leaving.py").write_text("import sys\n\nsys.exit()\n")
    for kind in (registry.OUTSIDE, BACKBONES):
        monkeypatch.setattr(kind, "given", {})


def refused(command: Callable[..., Any], *words: str) -> str:
    """The one line that a command leaves as it refuses."""
    done = command(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert not Path("o").exists(), "nothing is left"
    return str(done.err.removeprefix("scale-cl: error: ").rstrip("\n"))


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_one_line(name: str, command: Callable[..., Any]) -> None:
    said = refused(command, "run", "-q", "--tasks", "1", "--learner", name, "--out", "o")
    assert re.fullmatch(FAULTS[name], said)


def test_a_setting_that_the_method_itself_refuses_is_one_line(command: Callable[..., Any]) -> None:
    given = "run", "-q", "--tasks", "1", "--learner", "faults.py:Checked", "--out", "o", "--set"
    said = refused(command, *given, "lr=2")
    assert re.fullmatch(r"CheckedConfig cannot be made of these settings \(.*, line \d+\): ValueError: too fast", said)
    assert refused(command, *given, "lr=-1") == "learner.lr: -1.0 is out of range, it must be above 0"


@pytest.mark.parametrize("name", BACKBONE_FAULTS)
def test_what_is_wrong_with_a_backbone_is_one_line(name: str, command: Callable[..., Any]) -> None:
    said = refused(command, "run", "-q", "--tasks", "1", "--set", f"backbone={name}", "--out", "o")
    assert re.fullmatch(BACKBONE_FAULTS[name], said)


@pytest.mark.usefixtures("quick_processes")
def test_an_error_in_a_process_of_its_own_is_the_same_line(command: Callable[..., Any]) -> None:
    two = ("--seeds", "2", "--set", "run.processes=2")
    done = command("run", "-q", "--tasks", "1", "--learner", "faults.py:Failing", *two, "--out", "o")
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(f"scale-cl: error: {FAULTS['faults.py:Failing']}\n", done.err)


def test_an_estimator_says_the_same(command: Callable[..., Any]) -> None:
    for idle in ("faults.py:Idle", registry.OUTSIDE.find("faults.py:Idle")):
        with pytest.raises(ConfigError, match="has no step: Idle must define update"):
            ContinualClassifier(idle).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(ConfigError, match=r"cannot be built for inputs of \[1\] \(faults\.py, line \d+\): KeyError"):
        ContinualClassifier("faults.py:Unbuildable").fit([[0.0], [1.0]], [0, 1])


def test_an_error_of_a_method_keeps_its_cause() -> None:
    spec = InputSpec((1, 4, 4), 255.0, "task")
    failing = registry.OUTSIDE.find("faults.py:Failing")(spec)
    failing.begin_task(TaskInfo("one", 3))
    for step in range(3):
        failing.observe(*batch(spec, 4, seed=step))
    with pytest.raises(ScaleClError) as raised:
        failing.observe(*batch(spec, 4))
    assert isinstance(raised.value.__cause__, TypeError)
    assert failing.steps == 3


def test_our_own_errors_keep_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Learner, batch: object) -> None:
        raise TypeError("ours")

    spec = InputSpec((1, 4, 4), 255.0, "task")
    learner = registry.make("er", spec)
    monkeypatch.setattr(type(learner), "update", fails)
    learner.begin_task(TaskInfo("one", 3))
    with pytest.raises(TypeError, match="ours"):
        learner.observe(*batch(spec, 4))


def test_an_entry_point_cannot_take_the_name_of_one_of_ours(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(entry_points(tmp_path / "site", {"er": "nowhere_at_all:Method"}))
    said = (
        "the entry point 'er' of package others takes the name of a learner of scale-cl; "
        "rename it or uninstall the package"
    )
    assert refused(command, "run", "--learner", "er", "--out", "o") == said
    assert refused(command, "show", "er") == said
    assert command("show", "scale").code == 0, "others are not touched"
    listed = command("list", "learners")
    assert listed.code == 0
    assert [line.split(maxsplit=1)[1] for line in listed.out.splitlines() if line.startswith("er ")] == [
        f"cannot be used: {said}"
    ]
    assert listed.out.splitlines()[-1] == f"* er is not in the table: {said}"


def test_an_entry_point_cannot_take_the_name_of_a_backbone_of_ours(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = entry_points(tmp_path / "site", {"mlp": "nowhere_at_all:make"}, "scale_cl.backbones")
    monkeypatch.syspath_prepend(folder)
    said = refused(command, "run", "--set", "backbone=mlp", "--out", "o")
    assert said.startswith("the entry point 'mlp' of package others takes the name of a backbone of scale-cl; ")
    assert command("show", "er").code == 0, "others are not touched"


def test_a_broken_package_hides_no_other_learner(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"broken": "nowhere_at_all:Method", "unbuildable": "faults_installed:Unbuildable"}
    points["tasks-only"] = "faults_installed:TasksOnly"
    folder = entry_points(tmp_path / "site", points)
    (folder / "faults_installed.py").write_text(METHODS)
    monkeypatch.syspath_prepend(folder)
    listed = command("list", "learners")
    assert (listed.code, listed.err) == (0, "")
    lines = listed.out.splitlines()
    assert [" ".join(line.split()) for line in lines if line.startswith("broken")] == [
        "broken cannot be used: learner 'broken' of package others cannot be imported: "
        "ModuleNotFoundError: No module named 'nowhere_at_all'"
    ]
    assert [line for line in lines if line.startswith("finetune ")] != []
    (row,) = (line.split()[1:] for line in lines if line.startswith("tasks-only ") and "Takes" not in line)
    assert (row[0], row[-4:-2], row[-1][0]) == ("task", ["-", "-"], "+"), "sizes on streams of that scenario alone"
    assert [line.partition(":")[0] for line in lines[-2:]] == [
        "* broken is not in the table",
        "* unbuildable is not in the table",
    ]
