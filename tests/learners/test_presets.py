"""Presets: `paper` has nothing of ours, `ours` is what runs by default; a preset is recorded and is no identity."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results
from scale_cl.errors import ConfigError
from scale_cl.learners import registry
from scale_cl.learners.presets import PRESET_NAMES, PRESETS
from scale_cl.memory import POLICIES
from scale_cl.settings import as_dict, build
from scale_cl.streams import InputSpec, catalog
from scale_cl.training.config import resolve

OURS_ADDED = {"scale", "scale-ema", "ctn"}  # learners of the paper to which we added something
PUBLISHED = {"ewc", "si", "mas", "hal", "icarl", "lwf", "npc", "isyana", "den"}  # with settings published elsewhere
STREAMS = [*catalog.ENTRIES, "folder:somewhere", "csv:list.csv", "features:"]
RUN = ("-q", "--tasks", "2", "--device", "cpu")
REPRODUCE = ("reproduce", "main", "--streams", "digits", "--learners", "scale", "--tasks", "2", "--seeds", "1")


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("name", registry.names())
def test_every_preset_of_every_learner_can_be_used_on_every_stream(name: str, preset: str) -> None:
    for stream in STREAMS:
        build(registry.config_class(name), registry.preset_settings(name, stream, preset))


def test_presets_are_of_learners_that_exist_and_differ_where_something_is_ours() -> None:
    assert tuple(PRESETS) == PRESET_NAMES
    assert {name for own in PRESETS.values() for name in own} <= set(registry.names())
    differ = {
        name
        for name in registry.names()
        for stream in STREAMS
        if registry.preset_settings(name, stream, "paper") != registry.preset_settings(name, stream, "ours")
    }
    assert differ == OURS_ADDED | PUBLISHED


def test_without_a_name_the_preset_is_ours_and_an_unknown_one_is_refused() -> None:
    for name in OURS_ADDED:
        assert registry.preset_settings(name, "pmnist") == registry.preset_settings(name, "pmnist", "ours")
    with pytest.raises(ConfigError, match="unknown preset 'papers'; did you mean 'paper'"):
        registry.preset_settings("scale", "pmnist", "papers")


@pytest.mark.parametrize("stream", ["pmnist", "scifar10", "scifar100", "sminiimagenet", "folder:somewhere"])
@pytest.mark.parametrize("name", ["scale", "scale-ema"])
def test_the_paper_has_a_ring_and_running_averages_and_its_rates(name: str, stream: str) -> None:
    c: Any = resolve(stream=stream, learner=name, preset="paper").learner
    assert (c.memory_policy, c.norm_on_memory, c.norm_momentum, c.clip) == ("ring", False, 0.1, 0.0)
    assert (c.inner_lr, c.outer_lr) == ((0.1, 0.01) if stream == "pmnist" else (0.01, 0.1))
    ours: Any = resolve(stream=stream, learner=name).learner
    assert ours.memory_policy == "reservoir"
    assert ours.norm_on_memory == (stream != "pmnist")
    same = as_dict(ours) | {key: as_dict(c)[key] for key in ("memory_policy", "norm_on_memory", "clip")}
    assert same == as_dict(c), "nothing else differs"


def test_what_a_preset_says_is_what_the_learner_does() -> None:
    spec = InputSpec((3, 16, 16), 255.0, "task")
    policies = {}
    for preset in PRESET_NAMES:
        config = resolve(stream="scifar100", learner="scale", preset=preset).learner
        engine = registry.make("scale", spec, config).engine
        policies[preset] = type(engine.owned.memories["memory"].policy), len(engine.measurements)
    assert policies == {"paper": (POLICIES["ring"], 0), "ours": (POLICIES["reservoir"], 1)}


def test_ctn_follows_its_authors_code_in_the_papers_preset() -> None:
    paper, ours = (resolve(stream="scifar100", learner="ctn", preset=preset).learner for preset in PRESET_NAMES)
    differ = {key: value for key, value in as_dict(paper).items() if value != as_dict(ours)[key]}
    assert differ == {"reuse_batch": True, "stored_in_training": True}


def test_settings_of_the_user_come_before_those_of_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("preset: paper\nstream: scifar100\nlearner: {name: scale, norm_on_memory: true}\n")
    c: Any = resolve(file=file, assignments=["memory_policy=herding"]).learner
    assert (c.norm_on_memory, c.memory_policy) == (True, "herding")
    c = resolve(file=file).learner
    assert (c.norm_on_memory, c.memory_policy) == (True, "ring")


def test_show_prints_the_preset_and_reads_it_again(command: Callable[..., Any]) -> None:
    shown = command("show", "scale", "--stream", "scifar100", "--preset", "paper")
    lines = [line.partition("#")[0].strip() for line in shown.out.splitlines()]
    assert lines[0] == "preset: paper"
    assert {"memory_policy: ring", "norm_on_memory: false"} <= set(lines)
    Path("paper.yaml").write_text(shown.out)
    assert command("show", "--config", "paper.yaml").out == shown.out
    ours = command("show", "scale", "--stream", "scifar100").out
    assert ours == command("show", "scale", "--stream", "scifar100", "--preset", "ours").out
    assert ours.startswith("preset: ours ")


@pytest.mark.parametrize("words", [("show",), ("run", "--out", "o"), (*REPRODUCE, "--out", "o")])
def test_an_unknown_preset_is_one_line_and_code_2(words: tuple[str, ...], command: Callable[..., Any]) -> None:
    refused = command(*words, "--preset", "papr")
    assert (refused.code, refused.err) == (2, "scale-cl: error: unknown preset 'papr'; did you mean 'paper'?\n")
    assert not Path("o").exists()


def test_a_run_records_its_preset_and_is_repeated_with_it(command: Callable[..., Any]) -> None:
    short = (*RUN, "--set", "run.batch_size=50")
    assert command("run", "--preset", "paper", *short, "--out", "paper").code == 0
    written = json.loads(Path("paper/result.json").read_text())
    assert written["preset"] == "paper"
    assert written["config"]["learner"]["memory_policy"] == "ring"
    (seed,) = results.read(Path("paper")).seeds
    assert seed.preset == "paper"
    options = {"stream.tasks": 2, "run.device": "cpu", "run.batch_size": 50}
    assert seed.config == resolve(preset="paper", options=options).as_dict()
    again = command("run", "--config", "paper/result.json", "-q", "--out", "again")
    assert again.code == 0
    (repeated,) = results.read(Path("again")).seeds
    assert (repeated.preset, repeated.matrix) == ("paper", seed.matrix)
    assert command("run", *short, "--out", "ours").code == 0
    (ours,) = results.read(Path("ours")).seeds
    assert ours.preset == "ours"
    assert ours.matrix != seed.matrix, "a ring keeps other samples"


def test_reproduce_finds_results_by_their_settings_whatever_the_preset_was_called(command: Callable[..., Any]) -> None:
    spelt_out = ("--set", "memory_policy=ring")  # on digits that is all that `paper` changes
    assert command("run", *RUN, *spelt_out, "--out", "o/by-hand").code == 0
    assert results.read(Path("o/by-hand")).seeds[0].preset == "ours"
    to_run = {}
    for preset in PRESET_NAMES:
        planned = command(*REPRODUCE, "--preset", preset, "--device", "cpu", "--out", "o", "--dry-run")
        assert planned.code == 0
        to_run[preset] = planned.out.splitlines()[-1].partition(",")[0]
    assert to_run == {"paper": "0 runs to do", "ours": "1 run to do"}

    made = command(*REPRODUCE, "--preset", "paper", "--device", "cpu", "--out", "p")
    assert made.code == 0, made.err
    (file,) = Path("p").rglob("result.json")
    (seed,) = results.read(file.parent).seeds
    assert (seed.preset, seed.config["learner"]["memory_policy"]) == ("paper", "ring")
    assert seed.matrix == results.read(Path("o/by-hand")).seeds[0].matrix
    again = command(*REPRODUCE, *spelt_out, "--device", "cpu", "--out", "p", "--dry-run")
    assert again.out.splitlines()[-1].startswith("0 runs to do, ")
