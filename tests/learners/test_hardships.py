"""What every learner must bear, beside the protocol: odd tasks, steps that are recorded, being saved with a ResNet.

That it bears more tasks than it has room for is in `tests/engine/test_capacity.py`, and that it is saved and loaded to
the bit in `tests/engine/test_state.py`, also for every learner. A learner's own file has only what is its own.
"""

from __future__ import annotations

import pytest

from scale_cl.learners import registry
from scale_cl.learners.gem_qp import nonnegative_least
from scale_cl.settings import build, field_names
from tests.learners import hardships
from tests.learners.plain import IMAGE
from tests.learners.representatives import representatives
from tests.learners.tiny import SPLIT, quick

every_learner = pytest.mark.parametrize("name", registry.names())


def maker(name: str) -> hardships.Maker:
    """Makes the learner with a memory so small that samples are replaced."""
    kind = registry.config_class(name)
    config = build(kind, quick(name) | ({"memory": 5} if "memory" in field_names(kind) else {}))
    return lambda spec: registry.make(name, spec, config)


@every_learner
def test_odd_tasks_are_borne(name: str) -> None:
    hardships.bears_odd_tasks(maker(name))


@every_learner
def test_a_step_leaves_the_host_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nonnegative_least.__kwdefaults__, "stop", False)  # type: ignore[arg-type]  # as on a GPU
    hardships.leaves_the_host_alone(maker(name), SPLIT)


@every_learner
def test_what_recorded_steps_write_to_stays(name: str) -> None:
    hardships.keeps_what_recorded_steps_write_to(maker(name), SPLIT)


@pytest.mark.parametrize("name", representatives())
def test_so_does_one_of_the_resnet_which_goes_on_after_loading(name: str) -> None:
    hardships.leaves_the_host_alone(maker(name), IMAGE)
    hardships.goes_on_after_loading(maker(name), IMAGE)
