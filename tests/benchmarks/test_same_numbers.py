"""What `benchmarks/same_numbers.py` calls the same, and what it finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.same_numbers import Array, Row, compared_matrices, compared_states

ROOT = Path(__file__).parents[2]


def state(**changed: Array) -> dict[str, Array]:
    tensors: dict[str, Array] = {"net.w": np.arange(6, dtype=np.float32).reshape(2, 3), "net.b": np.ones(3, np.float32)}
    return tensors | {"rng": np.arange(4, dtype=np.uint8)} | changed


def test_equal_states_are_the_same_in_all_tensors() -> None:
    assert compared_states(state(), state()) == ("all", 0.0)


def test_the_smallest_change_of_a_weight_is_found() -> None:
    changed = np.nextafter(np.ones(3, np.float32), np.float32(2))
    verdict, difference = compared_states(state(), state(**{"net.b": changed}))
    assert verdict == "differs"
    assert 0 < difference < 1e-6


def test_a_change_of_the_generator_is_found_though_no_weight_differs() -> None:
    assert compared_states(state(), state(rng=np.zeros(4, np.uint8))) == ("differs", 0.0)


def test_a_change_of_sign_of_zero_or_of_type_is_found() -> None:
    zero = np.zeros(2, np.float32)
    for other in (-zero, zero.astype(np.float64)):
        assert compared_states({"net.z": zero}, {"net.z": other})[0] == "differs"


def test_weights_under_other_names_are_found_by_their_content() -> None:
    old = state()
    new = {"model/weight": old["net.w"], "model/bias": old["net.b"][None], "draws": old["rng"]}
    assert compared_states(old, new) == ("net", 0.0)
    new["model/weight"] = np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(0.5)
    assert compared_states(old, new) == ("differs", 0.5)


def test_a_weight_that_occurs_twice_must_occur_twice() -> None:
    once = np.ones(3, np.float32)
    verdict, _ = compared_states({"net.a": once, "net.b": once}, {"a": once, "b": once + 1})
    assert verdict == "differs"


def test_a_state_on_one_side_only_is_a_difference() -> None:
    assert compared_states({}, {}) == ("none", 0.0)
    assert compared_states(state(), {})[0] == "differs"


def test_matrices_are_compared_cell_by_cell() -> None:
    assert compared_matrices([[90.0, None]], [[90.0, None]]) == ("same", 0.0)
    assert compared_matrices([[90.0, None]], [[89.5, None]]) == ("differs", 0.5)
    assert compared_matrices([[90.0, None]], [[90.0, 1.0]]) == ("differs", float("inf"))


@pytest.mark.parametrize(
    ("row", "same"),
    [
        (Row("er", "digits:4", "same", "all"), True),
        (Row("er", "digits:4", "same", "net"), True),
        (Row("er", "digits:4", "differs", "all"), False),
        (Row("er", "digits:4", "same", "differs"), False),
        (Row("er", "digits:4", note="NEW: error"), False),
    ],
)
def test_a_run_that_failed_or_differs_is_not_the_same(row: Row, same: bool) -> None:
    assert row.same is same


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "same_numbers.py"), str(ROOT), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "holds no src/scale_cl" in ended.stderr
