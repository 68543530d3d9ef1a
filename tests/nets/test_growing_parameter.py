"""Parameters that grow by doubling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.nets import GrowingParameter
from scale_cl.nets.growing_parameter import linear_rows


@given(st.integers(1, 8), st.lists(st.integers(1, 5), max_size=8))
def test_rows_stay_as_they_were_however_often_capacity_doubles(capacity: int, sizes: list[int]) -> None:
    rows, expected = GrowingParameter((3,), capacity), torch.empty(0, 3)
    for n in sizes:
        new = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
        rows.add(new)
        expected = torch.cat([expected, new])
        assert rows.count == len(expected) <= rows.capacity
        assert torch.equal(rows.data[: rows.count], expected)
        assert rows.capacity == capacity or rows.capacity < 2 * rows.count


def test_only_rows_in_use_are_saved_and_they_load_into_any_capacity() -> None:
    full = GrowingParameter((2,), 4)
    full.add(torch.arange(6.0).view(3, 2))
    state = full.state_dict()
    assert state["data"].shape == (3, 2)
    for capacity in (1, 3, 64):
        other = GrowingParameter((2,), capacity)
        other.add(torch.full((1, 2), 9.0))
        other.load_state_dict(state)
        assert other.count == 3
        assert torch.equal(other.data[:3], full.data[:3])
        assert not other.data[3:].any()


def test_rows_of_a_wider_state_widen_the_parameter() -> None:
    wide = GrowingParameter((2, 3), 1)
    wide.add(torch.ones(1, 2, 3))
    narrow = GrowingParameter((1, 3), 2)
    narrow.load_state_dict(wide.state_dict())
    assert torch.equal(narrow.data[:1], wide.data)


def test_xavier_rows_stay_within_their_bound_and_have_no_bias() -> None:
    weight, bias = linear_rows((10,), 20, xavier=True, generator=torch.Generator().manual_seed(0))
    assert weight.shape == (10, 20)
    assert 0.9 * (6 / 30) ** 0.5 < float(weight.abs().max()) <= (6 / 30) ** 0.5
    assert not bias.any()


@pytest.mark.parametrize("shape", [(), (4,)])
def test_rows_of_any_shape_grow(shape: tuple[int, ...]) -> None:
    rows = GrowingParameter(shape, 0)
    rows.add(torch.ones(3, *shape))
    assert torch.equal(rows.data[:3], torch.ones(3, *shape))
