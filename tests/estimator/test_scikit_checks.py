"""Scikit-learn's own checks of what an estimator must do: all that apply pass."""

from __future__ import annotations

import contextlib
import unittest
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from scale_cl import ContinualClassifier, ScaleClassifier

QUICK: dict[str, Any] = {"epochs": 4, "batch_size": 32}


@parametrize_with_checks([ContinualClassifier("er", **QUICK), ScaleClassifier(**QUICK)])  # type: ignore[untyped-decorator]
def test_scikit_learns_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.soak
@pytest.mark.parametrize("estimator", [ContinualClassifier("er"), ScaleClassifier()], ids=repr)
def test_scikit_learns_checks_with_the_default_parameters(estimator: Any) -> None:
    for made, check in estimator_checks_generator(estimator):
        with contextlib.suppress(unittest.SkipTest):
            check(made)
