"""Which configs ask for the same numbers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from scale_cl.experiments import result_index as definition
from scale_cl.experiments.planning import key_of
from scale_cl.experiments.result_index import identities, identity, scan
from scale_cl.reports import collect, sections
from scale_cl.training.config import RunSettings, StreamSettings, resolve
from tests.experiments.small_runs import config, made_up, planned

Config = dict[str, Any]


def changed(section: str, name: str, value: object) -> Config:
    values = copy.deepcopy(config("scale").as_dict())
    values[section][name] = value
    return values


def test_seeds_and_machine_settings_do_not_matter() -> None:
    plain = identity(config("scale").as_dict(), 10)
    for name, value in {"seed": 3, "seeds": 5, "device": "cuda", "processes": 2, "autotune": True}.items():
        assert identity(changed("run", name, value), 10) == plain


def test_everything_else_does() -> None:
    plain = identity(config("scale").as_dict(), 10)
    others = [
        *(changed("run", *pair) for pair in {"batch_size": 20, "threads": 2, "precision": "fp32"}.items()),
        *(changed("learner", *pair) for pair in {"name": "scale-ema", "memory": 51, "unknown": 1}.items()),
        *(changed("stream", *pair) for pair in {"part": "all", "class_order": "natural", "name": "pmnist"}.items()),
    ]
    texts = [*(identity(other, 10) for other in others), identity(config("scale").as_dict(), 9)]
    assert plain not in texts
    assert len(set(texts)) == len(texts)


def test_a_setting_that_came_after_a_result_was_written_has_its_default() -> None:
    older = copy.deepcopy(config("scale").as_dict())
    del older["learner"]["second_order"], older["run"]["autotune"], older["run"]["threads"], older["stream"]["scenario"]
    assert identity(older, 10) == identity(config("scale").as_dict(), 10)
    assert identity({}, 10) != identity(older, 10)


def test_the_default_scenario_was_called_task_in_earlier_results() -> None:
    for stream in ("digits", "scifar100", "folder:images"):
        now = resolve(stream=stream, learner="er").as_dict()
        older = copy.deepcopy(now)
        older["stream"] = {"name": stream, "tasks": None, "scenario": "task", "size": None, "channels": 3}
        assert identity(older, 10) == identity(now, 10)
    others = [changed("stream", *pair) for pair in {"scenario": "class", "blur": 0.1, "boundaries": "hidden"}.items()]
    texts = {identity(config("scale").as_dict(), 10), *(identity(other, 10) for other in others)}
    assert len(texts) == 4


def test_what_was_so_before_there_was_a_setting_for_it_is_not_todays_default() -> None:
    now = resolve(stream="scifar100", learner="scale").as_dict()
    older = copy.deepcopy(now)
    del older["learner"]["norm_on_memory"]
    without = copy.deepcopy(now)
    without["learner"]["norm_on_memory"] = False
    assert identity(older, 17) == identity(without, 17) != identity(now, 17)
    first, second = identities([older, now], 17)
    assert first != second


def test_a_setting_that_only_a_newer_version_has_and_that_is_off_is_as_good_as_not_there() -> None:
    assert identity(changed("learner", "to_come", False), 10) == identity(config("scale").as_dict(), 10)
    own: Config = {"learner": {"name": "mine", "to_come": None}}
    assert identity(own, 1) == identity({"learner": {"name": "mine"}}, 1)


def test_all_tasks_asked_for_by_their_number_are_all_tasks() -> None:
    plain, counted = (resolve(stream="digits", options={"stream.tasks": tasks}) for tasks in (None, 10))
    assert key_of(plain) == key_of(counted)
    assert key_of(plain) != key_of(resolve(stream="digits", options={"stream.tasks": 9}))


def test_the_defaults_that_are_written_down_are_those_of_the_settings() -> None:
    stream = {field.name: field.default for field in dataclasses.fields(StreamSettings)}
    assert {name: value for name, value in stream.items() if name not in ("name", "tasks")} == definition.STREAM
    run = {field.name: field.default for field in dataclasses.fields(RunSettings)}
    assert {name: run[name] for name in definition.RUN} == definition.RUN


def sections_of(fields: dict[str, list[Any]], *needed: str) -> st.SearchStrategy[dict[str, Any]]:
    given = {name: st.sampled_from(values) for name, values in fields.items()}
    optional = {name: strategy for name, strategy in given.items() if name not in needed}
    return st.fixed_dictionaries({name: given[name] for name in needed}, optional=optional)


CONFIGS = st.fixed_dictionaries(
    {
        "learner": sections_of({"name": ["scale", "er", "mine"], "memory": [50, 60], "replay": [10, 64]}, "name"),
        "run": sections_of({"threads": [1, 2], "seed": [0, 1], "channels_last": [True, False]}),
        "stream": sections_of({"name": ["digits"], "class_order": ["default", "natural"]}, "name"),
    }
)


def partition(texts: Sequence[str]) -> list[int]:
    return [texts.index(text) for text in texts]


@hypothesis.given(st.lists(CONFIGS, max_size=6))
def test_many_are_told_apart_as_each_by_itself(configs: list[Config]) -> None:
    assert partition(identities(configs, 10)) == partition([identity(config, 10) for config in configs])


def test_what_an_experiment_skips_a_report_pools(tmp_path: Path) -> None:
    """Results that differ in one setting each: the same ones are the same run for both."""
    differences: dict[str, object] = {"run.seed": 1, "run.device": "cuda", "run.threads": 2, "learner.memory": 60}
    differences |= {"run.channels_last": False, "run.autotune": True, "stream.class_order": "natural"}
    plain = resolve(stream="digits", learner="er", options={"stream.tasks": 3})
    for name, value in differences.items():
        other = resolve(stream="digits", learner="er", options={"stream.tasks": 3, "run.seed": 9, name: value})
        folder = tmp_path / name
        made_up(planned(folder / "a", plain))
        made_up(planned(folder / "b", other))
        skipped = set(scan(folder).of(key_of(plain)))
        rows = [{seed.seed for seed in row.seeds} for part in sections(collect(folder)) for row in part.rows]
        assert skipped in rows
        assert len(skipped) == (2 if name in ("run.seed", "run.device", "run.autotune") else 1)
