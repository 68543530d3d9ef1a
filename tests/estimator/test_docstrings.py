"""The examples in the estimators' docstrings run."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

import scale_cl.estimator.classifier
import scale_cl.estimator.scale


@pytest.mark.parametrize("module", [scale_cl.estimator.classifier, scale_cl.estimator.scale])
def test_the_examples_of_a_docstring_give_what_they_say(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 2) == (0, True)
