"""Losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from scale_cl.losses import (
    NO_CLASS,
    cross_entropy,
    logit_distance,
    softened_divergence,
)


def test_cross_entropy_is_a_mean_over_samples() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]])
    assert float(cross_entropy(logits, torch.tensor([0, 1]))) == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)


def test_a_class_that_does_not_exist_takes_no_part_in_the_softmax() -> None:
    ragged = torch.tensor([[0.5, 1.5, NO_CLASS]], requires_grad=True)
    loss = cross_entropy(ragged, torch.tensor([1]))
    assert float(loss.detach()) == pytest.approx(float(cross_entropy(torch.tensor([[0.5, 1.5]]), torch.tensor([1]))))
    loss.backward()
    assert ragged.grad is not None
    assert ragged.grad.isfinite().all()
    assert ragged.grad[0, 2] == 0


def test_the_distance_runs_over_the_columns_that_were_stored() -> None:
    logits = torch.tensor([[1.0, 2.0, 99.0], [1.0, 1.0, 1.0]])
    stored = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 4.0]])
    exists = torch.tensor([[True, True, False], [True, True, True]])
    # (1 + 4) / 2 and (1 + 0 + 9) / 3, and their mean
    assert float(logit_distance(logits, stored, exists)) == pytest.approx((5 / 2 + 10 / 3) / 2)


def test_the_distance_has_no_gradient_where_a_logit_does_not_exist() -> None:
    logits = torch.tensor([[1.0, NO_CLASS]], requires_grad=True)
    loss = logit_distance(logits, torch.zeros(1, 2), torch.tensor([[True, False]]))
    loss.backward()
    assert float(loss.detach()) == 1.0
    assert logits.grad is not None
    assert logits.grad.tolist() == [[2.0, 0.0]]


def test_the_softened_divergence_is_zero_for_equal_logits_and_else_that_of_the_definition() -> None:
    logits, stored = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    exists = torch.ones(1, 2, dtype=torch.bool)
    assert float(softened_divergence(stored, stored, exists, 5.0)) == pytest.approx(0, abs=1e-7)
    p = [1 / (1 + math.exp(2 / 5)), 1 / (1 + math.exp(-2 / 5))]
    q = [1 / (1 + math.exp(-1 / 5)), 1 / (1 + math.exp(1 / 5))]
    divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert float(softened_divergence(logits, stored, exists, 5.0)) == pytest.approx(divergence / 2)


def test_the_softened_divergence_ignores_columns_that_do_not_exist() -> None:
    exists = torch.tensor([[True, True, False]])
    logits = torch.tensor([[1.0, 0.0, NO_CLASS]], requires_grad=True)
    loss = softened_divergence(logits, torch.tensor([[0.0, 2.0, 0.0]]), exists, 5.0)
    narrow = softened_divergence(
        torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool), 5.0
    )
    assert float(loss.detach()) == pytest.approx(float(narrow))
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
