"""The model that a run has kept: read without its data, and taught more tasks, whatever happens meanwhile."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import scale_cl
from scale_cl import results
from scale_cl.errors import CheckpointError, ConfigError, OutputInUseError, ScaleClError, StreamError
from scale_cl.results import StreamTasks
from scale_cl.streams import user_streams
from scale_cl.training import checkpoint
from scale_cl.training.config import Config, resolve
from scale_cl.training.kept_model import kept_model, learn, model_line
from scale_cl.training.run_directory import RunDirectory
from tests.cli.test_resume import crash_after
from tests.training.small_images import SETTINGS, draw_images, run_on
from tests.training.test_checkpointing import Crash

DAYS = {"monday": ("cold", "warm"), "tuesday": ("cold", "warm")}
LATER = {"weekend": ("cold", "warm"), "winter": ("cold", "warm")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two folders of images, and a run on the first."""
    folder = tmp_path_factory.mktemp("made")
    run_on(draw_images(folder / "first", DAYS), folder / "run")
    draw_images(folder / "second", LATER)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def kept(folder: Path, seed: int = 0) -> list[str]:
    """The checkpoints of a seed."""
    return sorted(path.stem for path in checkpoint.found(folder / "checkpoints" / f"seed-{seed}"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_keeps_its_model_on_own_images_only_unless_told(made: Path, tmp_path: Path) -> None:
    stream = f"folder:{made / 'first'}"
    for assignments, keeps in (((), True), (("run.keep_state=false",), False), (("run.keep_state=true",), True)):
        assert resolve(stream=stream, assignments=assignments).keeps_state is keeps
    assert not resolve().keeps_state
    assert resolve(assignments=("run.keep_state=true",)).keeps_state
    assert model_line(made / "run").startswith(f"the model is kept in {made / 'run'} (it holds 12 training samples; ")
    run_on(stream, tmp_path / "none", "run.keep_state=false", "stream.tasks=1")
    assert model_line(tmp_path / "none") == "no model was kept; --set run.keep_state=true keeps it"
    with pytest.raises(CheckpointError, match=r"has kept no model; run it again with --set run\.keep_state=true"):
        kept_model(tmp_path / "none")


def test_the_model_names_classes_inputs_and_preprocessing(made: Path, tmp_path: Path) -> None:
    found = kept_model(made / "run")
    assert [(task.name, task.classes) for task in found.model.tasks] == list(DAYS.items())
    assert found.model.spec.shape == (1, 6, 6)
    assert found.preprocess == "grey, 6 x 6 (height x width), not resized, channels first"
    assert [len(one.tasks) for one in found.saved.streams] == [2]
    hidden = ("stream.boundaries=hidden", "stream.scenario=domain", "stream.size=4")
    run_on(f"folder:{made / 'first'}", tmp_path / "hidden", *hidden)
    other = kept_model(tmp_path / "hidden")
    assert [(task.name, task.classes) for task in other.model.tasks] == [("stream", ("cold", "warm"))]
    assert other.preprocess == "grey, resized to 4 x 4 (bilinear), channels first"
    draw_images(tmp_path / "more", LATER)
    taught = learn(tmp_path / "hidden", f"folder:{tmp_path / 'more'}").seeds[0]
    assert taught.tasks == [*DAYS, *LATER]
    assert [task.name for task in kept_model(tmp_path / "hidden").model.tasks] == ["stream"]


def test_a_run_that_is_taught_more_is_one_whose_stream_was_longer(made: Path, run: Path) -> None:
    before = results.read(run).seeds[0]
    result = learn(run, f"folder:{made / 'second'}")
    taught = result.seeds[0]
    assert taught.tasks == [*DAYS, *LATER]
    assert taught.streams == (StreamTasks("first", 2), StreamTasks("second", 2))
    assert [row[:2] for row in taught.matrix[:2]] == before.matrix
    assert all(a is not None for a in taught.matrix[-1]), "earlier tasks are still tested"
    assert results.read(run) == result
    assert kept(run) == ["at-00004-00000000"]
    assert not RunDirectory(run).unfinished
    found = kept_model(run)
    again = scale_cl.run(Config.from_dict(found.saved.config))
    assert again.seeds[0].matrix == taught.matrix, "as if all had been one run"
    third = run.parent / "third"
    once_more = learn(run, draw_images(third, {"friday": ("cold", "warm")}))
    assert [part.tasks for part in once_more.seeds[0].streams] == [2, 2, 1]
    assert [row[:4] for row in once_more.seeds[0].matrix[:4]] == taught.matrix


def test_new_classes_are_counted_after_those_learnt(tmp_path: Path) -> None:
    first = draw_images(tmp_path / "first", {"a": ("0", "1"), "b": ("2", "3")}, count=20)
    second = draw_images(tmp_path / "second", {"c": ("1", "4"), "d": ("5",)}, count=20)
    run_on(first, tmp_path / "run", "stream.scenario=class", "memory=20")
    result = learn(tmp_path / "run", second)
    found = kept_model(tmp_path / "run")
    assert found.model.tasks[-1].classes == ("0", "1", "2", "3", "4", "5")
    assert found.model.tasks[-2].classes == ("0", "1", "2", "3", "4")
    assert scale_cl.run(Config.from_dict(found.saved.config)).seeds[0].matrix == result.seeds[0].matrix
    (on_d,) = (task for task in scale_cl.evaluate(tmp_path / "run", tmp_path / "second") if task.task == "d")
    assert on_d.accuracy > 80, "the class that was learnt last has the right name"


@pytest.mark.parametrize("after", [2, 6])
def test_a_lesson_that_breaks_off_leaves_the_model_of_before_and_is_continued(
    made: Path, run: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """After 2 steps the first new task is being learnt; after 6 the second, and there is a checkpoint of the first."""
    straight = learn(shutil.copytree(run, run.with_name("straight")), f"folder:{made / 'second'}")
    second = f"folder:{made / 'second'}"
    old = kept_model(run)
    crash_after(after, monkeypatch)
    with pytest.raises(Crash):
        learn(run, second, assignments=("run.checkpoint_every=1",))
    assert RunDirectory(run).unfinished
    assert "at-00002-00000000" in kept(run)
    now = kept_model(run)
    assert now.path == old.path
    assert all(torch.equal(t, now.model.state["tensors"][n]) for n, t in old.model.state["tensors"].items())
    assert now.learning == second
    assert scale_cl.info(run).learning == second
    with pytest.raises(OutputInUseError, match=r"has begun to learn folder:.*second and not finished: `scale-cl"):
        learn(run, draw_images(run.parent / "third", {"friday": ("cold", "warm")}))
    resumed = learn(run, second, assignments=("run.checkpoint_every=1",))
    assert resumed.seeds[0].matrix == straight.seeds[0].matrix
    assert kept(run) == ["at-00004-00000000"]


def test_a_lesson_can_be_dropped_for_another(made: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_after(6, monkeypatch)
    with pytest.raises(Crash):
        learn(run, f"folder:{made / 'second'}")
    result = learn(run, draw_images(run.parent / "third", {"friday": ("cold", "warm")}), force=True)
    assert result.seeds[0].tasks == [*DAYS, "friday"]
    assert kept(run) == ["at-00003-00000000"]


def test_what_cannot_be_learnt_is_refused_and_changes_nothing(made: Path, run: Path) -> None:
    folder, there = run.parent, content(run)
    draw_images(folder / "large", {"friday": ("cold", "warm")}, size=8)
    draw_images(folder / "again", {"monday": ("cold", "warm")})
    draw_images(folder / "broken", {"friday": ("cold", "warm")})
    (folder / "broken/friday/cold/3.png").write_text("no image")
    cases: list[tuple[str, tuple[str, ...], type[ScaleClError], str]] = [
        ("large", (), StreamError, r"samples of large are 1 x 8 x 8, the model takes 1 x 6 x 6; .*--set stream.size=6"),
        ("large", ("stream.channels=3",), StreamError, "channels are set by --set stream.channels=1"),
        ("again", (), StreamError, "again has a task 'monday', and a task of that name was learnt already"),
        ("broken", (), ScaleClError, "3.png is not an image"),
        ("nowhere", (), ScaleClError, "nowhere is not a folder"),
        ("large", ("memory=9",), ConfigError, "the learner stays as it is"),
        ("large", ("stream.scenario=class",), ConfigError, "it stays as the model was made with it"),
    ]
    for name, more, kind, words in cases:
        with pytest.raises(kind, match=words):
            learn(run, f"folder:{folder / name}", assignments=more)
        assert content(run) == there, name
    with pytest.raises(ConfigError, match="digits has the scenario domain; the model was trained in scenario task"):
        learn(run, "digits")
    with pytest.raises(CheckpointError, match="does not exist"):
        learn(folder / "no-run", f"folder:{made / 'second'}")
    assert not (folder / "no-run").exists()
    assert learn(run, f"folder:{folder / 'large'}", assignments=("stream.size=6",)).seeds[0].tasks[-1] == "friday"


def test_other_classes_in_scenario_domain_and_joint_training_are_refused(tmp_path: Path, made: Path) -> None:
    first = f"folder:{made / 'first'}"
    run_on(first, tmp_path / "domain", "stream.scenario=domain", "stream.tasks=1")
    with pytest.raises(StreamError, match=r"the classes of other \(dry, wet\) are not those learnt \(cold, warm\)"):
        learn(tmp_path / "domain", draw_images(tmp_path / "other", {"friday": ("dry", "wet")}))
    joint = resolve(stream=first, learner="joint", assignments=("backbone=mlp-8-8", "stream.channels=1", "epochs=1"))
    scale_cl.run(joint, out=tmp_path / "joint")
    with pytest.raises(ConfigError, match="joint learns all tasks together, so it cannot be taught more"):
        learn(tmp_path / "joint", f"folder:{made / 'second'}")


def test_an_unfinished_run_is_no_model_yet(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_after(6, monkeypatch)
    with pytest.raises(Crash):
        run_on(f"folder:{made / 'first'}", tmp_path / "run")
    for use in (kept_model, lambda run: learn(run, f"folder:{made / 'second'}"), scale_cl.info):
        with pytest.raises(CheckpointError, match=r"is not finished: `scale-cl resume .*run` finishes it"):
            use(tmp_path / "run")
    assert kept_model(tmp_path / "run", unfinished=True).unseen == ["tuesday"]


def test_tasks_whose_data_is_gone_or_changed_are_not_tested(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_images(Path("first"), DAYS)
    run_on("folder:first", Path("runs/it"), "run.evaluate_every=2", "run.prequential=true")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    user_streams._read.clear()  # as another process would find it
    result = learn("../runs/it", f"folder:{made / 'second'}")
    assert result.seeds[0].matrix[-1][0] is not None, "a relative path is found again, seen from the run"
    assert len(result.seeds[0].evaluations[-1].accuracies) == 4

    (tmp_path / "first/monday/cold/0.png").unlink()
    user_streams._read.clear()
    with caplog.at_level(logging.WARNING, logger="scale_cl"):
        result = learn("../runs/it", draw_images(tmp_path / "third", {"friday": ("cold", "warm")}))
    assert ["the tasks of first are not tested any more" in record.getMessage() for record in caplog.records] == [True]
    last = result.seeds[0].matrix[-1]
    assert [a is None for a in last] == [True, True, False, False, False]
    assert (result.seeds[0].acc, results.read(tmp_path / "runs/it")) == (None, result)
    tasks = scale_cl.info(tmp_path / "runs/it").tasks
    assert (tasks[0].accuracy, tasks[0].accuracy_then) == (None, result.seeds[0].matrix[0][0])


def test_all_seeds_learn_each_from_its_own_model(made: Path, tmp_path: Path) -> None:
    stream, second = f"folder:{made / 'first'}", f"folder:{made / 'second'}"
    run_on(stream, tmp_path / "two", "run.seeds=2", "run.processes=1")
    with pytest.raises(ConfigError, match=r"has several seeds \(0, 1\); say which one with --seed S"):
        kept_model(tmp_path / "two")
    one = learn(shutil.copytree(made / "run", tmp_path / "one"), second)
    two = learn(tmp_path / "two", second)
    assert [seed.seed for seed in two.seeds] == [0, 1]
    assert two.seeds[0].matrix == one.seeds[0].matrix
    assert [kept(tmp_path / "two", seed) for seed in (0, 1)] == [["at-00004-00000000"]] * 2
    shutil.rmtree(tmp_path / "two/checkpoints/seed-1")
    with pytest.raises(CheckpointError, match="has lost the models of some seeds"):
        learn(tmp_path / "two", second)


def test_a_model_of_another_kind_of_device_is_taught_here(made: Path, run: Path) -> None:
    (path,) = checkpoint.found(run / "checkpoints/seed-0")
    saved = checkpoint.read(path)
    saved.state["tensors"]["rng"] = torch.zeros(16, dtype=torch.uint8)  # as long as that of a CUDA generator
    checkpoint.write(path.parent, saved)
    assert len(learn(run, f"folder:{made / 'second'}").seeds[0].tasks) == 4


def test_a_model_from_before_streams_were_recorded_is_used_but_not_taught(made: Path, run: Path) -> None:
    (path,) = checkpoint.found(run / "checkpoints/seed-0")
    written: dict[str, Any] = json.loads(path.read_text())
    del written["position"]["streams"], written["model"]["images"], written["checksum"]
    path.write_text(json.dumps({**written, "checksum": checkpoint.checksum(written)}))
    assert kept_model(run).preprocess is None
    assert kept_model(run).learner().tasks == [*DAYS]
    with pytest.raises(CheckpointError, match="does not say what it has learnt"):
        learn(run, f"folder:{made / 'second'}")


def test_config_files_of_taught_runs_are_refused(made: Path, run: Path) -> None:
    learn(run, f"folder:{made / 'second'}")
    with pytest.raises(ConfigError, match="is of a run that was taught more"):
        resolve(file=run / "result.json")
    config = Config.from_dict(kept_model(run).saved.config)
    assert Config.from_dict(config.as_dict()) == config
    assert replace(config, before=()) != config
    assert SETTINGS[0] == f"backbone={config.learner.backbone}"
