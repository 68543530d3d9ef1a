"""Which configs ask for the same numbers."""

from __future__ import annotations

import copy
from typing import Any

from tests.experiments.small_runs import config

from scale_cl.experiments.identity import identity


def changed(section: str, name: str, value: object) -> dict[str, Any]:
    values = copy.deepcopy(config("scale").as_dict())
    values[section][name] = value
    return values


def test_seeds_and_machine_settings_do_not_matter() -> None:
    plain = identity(config("scale").as_dict())
    for name, value in {"seed": 3, "seeds": 5, "device": "cuda", "processes": 2, "autotune": True}.items():
        assert identity(changed("run", name, value)) == plain


def test_everything_else_does() -> None:
    plain = identity(config("scale").as_dict())
    others = [
        *(changed("run", *pair) for pair in {"batch_size": 20, "threads": 2, "precision": "fp32"}.items()),
        *(changed("learner", *pair) for pair in {"name": "scale-ema", "memory": 51, "unknown": 1}.items()),
        *(changed("stream", *pair) for pair in {"tasks": 5, "class_order": "natural", "name": "pmnist"}.items()),
    ]
    assert plain not in {identity(other) for other in others}
    assert len({identity(other) for other in others}) == len(others)


def test_a_setting_that_came_after_a_result_was_written_has_its_default() -> None:
    older = copy.deepcopy(config("scale").as_dict())
    del older["learner"]["second_order"], older["run"]["autotune"]
    assert identity(older) == identity(config("scale").as_dict())
    assert identity({}) != identity(older)
