"""GEM's quadratic program against independent solvers and against the conditions of its optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

from scale_cl.learners.gem_qp import least_at_or_above, most_pivots, nonnegative_least

programs = st.tuples(
    st.integers(1, 24),  # variables
    st.integers(1, 30),  # rank of the gradients
    st.floats(-2, 1.5),  # size of the gradients, a power of ten
    st.integers(0, 2**31),
)


def program(n: int, rank: int, size: float, seed: int) -> tuple[Tensor, Tensor]:
    """GG' + 1e-3 I and Gg of random gradients."""
    random = np.random.default_rng(seed)
    past = random.normal(size=(n, rank)) @ random.normal(size=(rank, 40)) * 10**size
    g = random.normal(size=40) * 10 ** random.uniform(-2, 2) - random.uniform(0, 3) * past.mean(0)
    return torch.from_numpy(past @ past.T + 1e-3 * np.eye(n)), torch.from_numpy(past @ g)


def by_nnls(q: Tensor, c: Tensor) -> Tensor:
    """The same minimum as a least-squares problem: |L'z + L^-1 c| with LL' = Q, by Lawson and Hanson."""
    lower = np.linalg.cholesky(q.numpy())
    z, _ = optimize.nnls(lower.T, -np.linalg.solve(lower, c.numpy()), maxiter=10_000)
    return torch.from_numpy(z)


def value(q: Tensor, c: Tensor, z: Tensor) -> float:
    return float(z @ q @ z / 2 + c @ z)


@given(programs)
@settings(max_examples=150)
def test_the_minimum_is_that_of_scipys_nonnegative_least_squares(numbers: tuple[int, int, float, int]) -> None:
    q, c = program(*numbers)
    ours, theirs = nonnegative_least(q, c), by_nnls(q, c)
    worst = 1e-12 * (1 + abs(value(q, c, theirs)))
    assert value(q, c, ours) <= value(q, c, theirs) + worst
    weighted = (q @ (ours - theirs)).abs().max()  # in the gradients' own size; z itself may be ill-determined
    assert weighted <= 1e-8 * (1 + (q @ theirs).abs().max())


@given(programs)
@settings(max_examples=150)
def test_the_conditions_of_the_optimum_hold(numbers: tuple[int, int, float, int]) -> None:
    q, c = program(*numbers)
    z = nonnegative_least(q, c)
    multiplier = q @ z + c
    scale = q.diagonal().sqrt()
    small = 1e-10 * float(1 + (c / scale).abs().max())
    assert bool((z >= 0).all())
    assert bool((multiplier / scale >= -small).all())
    assert bool(((multiplier / scale).abs()[z > 0] <= small).all())


@given(programs, st.sampled_from([0.0, 0.5, 2.0]))
@settings(max_examples=30)
def test_a_lower_bound_is_a_shift(numbers: tuple[int, int, float, int], bound: float) -> None:
    q, c = program(*numbers)
    n = len(c)
    ours = least_at_or_above(q, c, bound)
    assert bool((ours >= bound).all())
    found = optimize.minimize(
        lambda v: v @ q.numpy() @ v / 2 + c.numpy() @ v,
        np.full(n, bound + 1.0),
        jac=lambda v: q.numpy() @ v + c.numpy(),
        bounds=[(bound, None)] * n,
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 0, "gtol": 1e-12},
    )
    assert value(q, c, ours) <= found.fun + 1e-9 * (1 + abs(found.fun))


@given(programs)
@settings(max_examples=50)
def test_the_pivots_of_a_recording_that_come_too_late_change_nothing(numbers: tuple[int, int, float, int]) -> None:
    q, c = program(*numbers)
    assert torch.equal(nonnegative_least(q, c, stop=True), nonnegative_least(q, c, stop=False))


@pytest.mark.parametrize("n", [1, 17, 100])
def test_the_pivots_suffice_for_many_tasks(n: int) -> None:
    for seed in range(5):
        q, c = program(n, n, 0.0, seed)
        ours, theirs = nonnegative_least(q, c), by_nnls(q, c)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    assert most_pivots(n) >= n


def test_worked_examples() -> None:
    q = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    c = torch.tensor([-4.0, 8.0], dtype=torch.float64)
    assert nonnegative_least(q, c).tolist() == pytest.approx([2, 0])  # each variable alone: 4/2, and 0 as 8 > 0
    assert least_at_or_above(q, c, 0.5).tolist() == pytest.approx([2, 0.5])
    coupled = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    # at z2 = 0 the first is 1, and the multiplier of the second 0.9 - 0.5 > 0
    assert nonnegative_least(coupled, torch.tensor([-1.0, -0.5], dtype=torch.float64)).tolist() == pytest.approx([1, 0])


def test_no_negative_product_still_has_a_solution() -> None:
    q, c = program(4, 4, 0.0, 1)
    assert nonnegative_least(q, c.abs()).tolist() == [0, 0, 0, 0]
