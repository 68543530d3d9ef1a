"""Saving and loading: a sequence with a save and a load in the middle is the sequence without, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from scale_cl.errors import CheckpointError
from scale_cl.learners import Learner, State, registry
from scale_cl.settings import field_names
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, batch, new, teach

EMA = {"weight_average": 0.9}


def few_slots(name: str) -> dict[str, Any]:
    """A memory so small that samples are replaced, for a learner that has one."""
    return {"memory": 5} if "memory" in field_names(registry.config_class(name)) else {}


CASES: dict[str, tuple[str, InputSpec, dict[str, Any]]] = {
    **{name: (name, SPLIT, few_slots(name)) for name in registry.names()},
    "scale, one head": ("scale", DOMAIN, {"memory": 5, "replay": 8}),
    "scale, resnet": ("scale", COLOUR, {"memory": 5, "replay": 8}),
    "scale, average": ("scale", SPLIT, EMA),
    "scale, average, one head": ("scale", DOMAIN, EMA),
    "scale, standardised": ("scale", COLOUR, {"standardise": True, "backbone": "mlp"}),
    "scale, augmented": ("scale", COLOUR, {"augment": "crop-flip", "backbone": "mlp"}),
    "scale, ring": ("scale", SPLIT, {"memory": 5, "memory_policy": "ring"}),
    "scale, class-ring": ("scale", SPLIT, {"memory": 6, "memory_policy": "class-ring"}),
    "scale, refreshed logits": ("scale", SPLIT, {"refresh_logits": True}),
    "scale, ablations": ("scale", SPLIT, {"adversary": False, "derpp": False, "generator": False}),
    "scale, second order": ("scale", SPLIT, {"second_order": True, "inner_steps": 2} | EMA),
    "finetune, average": ("finetune", SPLIT, EMA),
    "er, slots per class": ("er", SPLIT, {"memory": 2, "memory_budget": "class"}),
    "er, slots in total": ("er", SPLIT, {"memory": 9, "memory_budget": "total", "memory_policy": "reservoir"}),
    "derpp, slots in total": ("derpp", SPLIT, {"memory": 9, "memory_budget": "total"}),
    "scale, slots per class": ("scale", SPLIT, {"memory": 3, "memory_budget": "class"}),
    "scale, slots in total": ("scale", SPLIT, {"memory": 9, "memory_budget": "total"}),
    "er, herding": ("er", SPLIT, {"memory": 6, "memory_policy": "herding"}),
    "er, herding, slots in total": (
        "er",
        SPLIT,
        {"memory": 60, "memory_budget": "total", "memory_policy": "herding"},
    ),
}


def make(case: str, seed: int = 0) -> Learner:
    name, spec, values = CASES[case]
    return new(name, spec, seed=seed, **values)


def through_files(state: State, folder: Path) -> State:
    """What comes back from disk, where nothing but tensors and JSON goes."""
    save_file(state["tensors"], folder / "state.safetensors")
    meta = json.loads(json.dumps(state["meta"]))
    return {"tensors": load_file(folder / "state.safetensors"), "meta": meta}


def same_from_here(one: Learner, other: Learner) -> None:
    """Both are the same, go on in one task that is known and one that is new, and are the same to the bit again."""
    assert differences(one, other) == []
    for learner in (one, other):
        teach(learner, tasks=2, first=0, n=5, steps=1)
    assert differences(one, other) == []
    x, _ = batch(one.spec, 6, seed=52)
    for task in ("task 0", "task 1"):
        assert torch.equal(one.predict(x, task), other.predict(x, task))


@pytest.mark.parametrize("case", CASES)
def test_a_learner_loaded_inside_a_task_goes_on_as_the_saved_one(case: str, tmp_path: Path) -> None:
    straight = teach(make(case), tasks=1)
    straight.begin_task(TaskInfo("open", 4))
    straight.observe(*batch(straight.spec, 3, 4, seed=50))
    loaded = make(case, seed=99)  # nothing of its own may survive
    loaded.load_state_dict(through_files(straight.state_dict(), tmp_path))
    for learner in (straight, loaded):
        learner.observe(*batch(learner.spec, 5, 4, seed=51))
    same_from_here(straight, loaded)


@pytest.mark.parametrize("case", CASES)
def test_an_earlier_state_may_be_loaded_into_a_learner_that_went_on_and_is_a_copy(case: str, tmp_path: Path) -> None:
    straight = teach(make(case), tasks=1)
    early = straight.state_dict()
    frozen = {name: t.clone() for name, t in early["tensors"].items()}
    used = make(case, seed=99)
    used.load_state_dict(early)
    teach(used, tasks=1, first=5, classes=5)
    used.begin_task(TaskInfo("never ended", 6))
    used.observe(*batch(used.spec, 3, 6))
    assert all(torch.equal(t, frozen[name]) for name, t in early["tensors"].items()), "loading does not tie them"
    used.load_state_dict(through_files(early, tmp_path))
    same_from_here(straight, used)
    assert all(torch.equal(t, frozen[name]) for name, t in early["tensors"].items()), "saving does not tie them"


def test_a_new_learner_has_a_state_too() -> None:
    for case in ("scale", "finetune"):
        fresh, loaded = make(case, seed=3), teach(make(case, seed=4), tasks=2)
        loaded.load_state_dict(fresh.state_dict())
        assert differences(teach(fresh), teach(loaded)) == []


@pytest.mark.parametrize(
    ("saved", "loading"),
    [
        ("finetune", "scale"),
        ("scale", "scale, resnet"),
        ("scale", "scale, class-ring"),
        ("scale", "scale, ablations"),
        ("scale, ablations", "scale"),
        ("scale", "scale, average"),
        ("scale", "finetune"),
    ],
)
def test_a_state_of_another_config_is_refused(saved: str, loading: str) -> None:
    state = teach(make(saved), tasks=2).state_dict()
    with pytest.raises(CheckpointError) as caught:
        make(loading).load_state_dict(state)
    assert "\n" not in str(caught.value)


# ---- any sequence of calls -------------------------------------------------------------------------------------------

calls = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 3)),
        st.tuples(st.just("observe"), st.integers(1, 7)),
        st.tuples(st.just("observe"), st.integers(1, 7)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("predict"), st.integers(0, 3)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("load"), st.just(0)),  # into a new learner
        st.tuples(st.just("reload"), st.just(0)),  # into the same one
    ),
    max_size=14,
)
CLASSES = (2, 4, 3, 2)


@given(
    st.sampled_from(["scale", "scale, average", "scale, ring", "scale, class-ring", "scale, one head", "finetune"]),
    calls,
)
@settings(max_examples=40)
def test_predicting_saving_and_loading_anywhere_change_nothing(case: str, sequence: list[tuple[str, int]]) -> None:
    plain, busy = make(case), make(case)
    known: list[int] = []
    is_open = False
    for number, (call, value) in enumerate(sequence):
        if call == "begin":
            info = TaskInfo(f"task {value}", 3 if plain.spec is DOMAIN else CLASSES[value])
            plain.begin_task(info)
            busy.begin_task(info)
            known, is_open = [*known, value], True
        elif call == "observe" and is_open:
            classes = 3 if plain.spec is DOMAIN else CLASSES[known[-1]]
            samples = batch(plain.spec, value, classes, seed=number)
            plain.observe(*samples)
            busy.observe(*samples)
        elif call == "end":
            plain.end_task()
            busy.end_task()
            is_open = False
        elif call == "predict" and value in known:
            busy.predict(batch(busy.spec, 3)[0], f"task {value}")
        elif call == "save":
            busy.state_dict()
        elif call == "load":
            state = busy.state_dict()
            busy = make(case, seed=number)
            busy.load_state_dict(state)
        elif call == "reload":
            busy.load_state_dict(busy.state_dict())
    assert differences(plain, busy) == []
