"""A task that will not fit into memory is refused in one line, and the estimator stays as it was."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from scale_cl import ContinualClassifier
from scale_cl.errors import ConfigError
from scale_cl.training import memory_check
from tests.estimator.problems import blobs

UNDER_A_LIMIT = """
import resource
from pathlib import Path
from scale_cl import ContinualClassifier
from scale_cl.errors import ConfigError
x, y = [[0.0, 1.0], [1.0, 0.0]] * 5, [0, 1] * 5
model = ContinualClassifier("independent", backbone="mlp-3000-3000").partial_fit(x, y, task="first")
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 300 * 2**20,) * 2)
for task in range(20):
    try:
        model.partial_fit(x, y, task=task)
    except ConfigError as error:
        print(error)
        break
print(len(model.tasks_) == 1 + task, model.predict(x, task="first").tolist() == y)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_under_the_limit_of_a_process_a_network_per_task_is_refused_before_it_is_made() -> None:
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], check=True, capture_output=True, text=True)
    refused, after = done.stdout.splitlines()
    assert refused.startswith("task number ")
    assert " of independent needs about " in refused
    assert refused.endswith(" MiB free; take fewer tasks or another backbone (backbone)")
    assert after == "True True"


@pytest.mark.parametrize(
    ("name", "settings", "free", "advice"),
    [
        ("er", {"memory": 10**12}, 2**33, "fewer memory slots (memory)"),
        ("er", {"batch_size": 10**6}, 2**30, "smaller batches (batch_size, replay)"),
        ("pnn", {"backbone": "mlp-9000-9000"}, 2**30, "another backbone (backbone) or narrower columns (width)"),
    ],
)
def test_what_a_first_task_takes_most_of_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any], free: int, advice: str
) -> None:
    monkeypatch.setattr(memory_check, "free_bytes", lambda device: free)
    with pytest.raises(ConfigError, match=rf"^task number 1 of {name} needs about .* GiB free; take ") as caught:
        ContinualClassifier(name, **settings).fit(*blobs(("cat", "dog")))
    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize("bound", [{"max_tasks": 1}, {}], ids=["too many tasks", "too little memory"])
def test_a_task_that_is_refused_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, bound: dict[str, Any]) -> None:
    x, y = blobs(("cat", "dog"))
    model = ContinualClassifier("pnn", backbone="mlp-8-8", **bound).partial_fit(x, y, task="first")
    before = model.predict_proba(x)
    monkeypatch.setattr(memory_check, "free_bytes", lambda device: 2**33 if bound else 2**10)
    refused = "bounded to 1" if bound else r"task number 2 of pnn needs about .* 1.0 KiB free; take "
    with pytest.raises(ConfigError, match=refused):
        model.partial_fit(*blobs(("oak", "elm")), task="second")
    assert model.tasks_ == model.labels_.tasks == ["first"]
    np.testing.assert_array_equal(model.predict_proba(x), before)
    model.partial_fit(x, y, task="first")
    assert model.tasks_ == ["first"]
    assert model.classes_.tolist() == ["cat", "dog"]
