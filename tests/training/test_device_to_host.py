"""Tensors that travel as one block come out as they went in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.training.checkpointing import HostCopy
from tests.learners.representatives import representatives
from tests.learners.tiny import COLOUR, new, teach

DTYPES = [torch.float32, torch.uint8, torch.int64, torch.bool, torch.bfloat16, torch.float64, torch.int32]


@given(
    kinds=st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=12),
    seed=st.integers(0, 99),
)
def test_every_tensor_comes_out_with_its_bits_its_shape_and_its_place(
    kinds: list[tuple[torch.dtype, list[int]]], seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    tensors = {f"t{i}": torch.randint(0, 2, shape, generator=draws).to(dtype) for i, (dtype, shape) in enumerate(kinds)}
    packed = HostCopy(tensors, torch.device("cpu")).unpacked()
    assert list(packed) == list(tensors)
    for name, tensor in tensors.items():
        assert packed[name].dtype == tensor.dtype
        assert packed[name].shape == tensor.shape
        assert torch.equal(packed[name], tensor)


def test_what_is_packed_no_longer_follows_and_what_is_elsewhere_stays() -> None:
    one = torch.ones(3)
    packed, elsewhere = HostCopy({"a": one}, torch.device("cpu")), HostCopy({"a": one}, torch.device("meta"))
    one.zero_()
    assert packed.unpacked()["a"].tolist() == [1, 1, 1]
    assert elsewhere.unpacked()["a"] is one


@pytest.mark.parametrize("name", representatives())
def test_a_learner_goes_on_from_a_packed_state(name: str) -> None:
    learner, other = (new(name, COLOUR, seed=seed) for seed in (0, 1))
    teach(learner, tasks=2, steps=1)
    state = learner.state_dict()
    packed = HostCopy(state["tensors"], torch.device("cpu")).unpacked()
    other.load_state_dict({"tensors": packed, "meta": state["meta"]})
    for one in (learner, other):
        teach(one, tasks=1, steps=1, first=2)
    now, there = learner.state_dict()["tensors"], other.state_dict()["tensors"]
    assert now.keys() == there.keys()
    assert all(torch.equal(now[key], there[key]) for key in now)
