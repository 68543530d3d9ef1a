"""300,000 images that are read as they come: memory stays low and flat over a full pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.large_stream import full_pass, make_images, step_rates


@pytest.mark.soak
def test_a_pass_over_more_images_than_memory_should_hold_takes_little_of_it(tmp_path: Path) -> None:
    make_images(tmp_path, 300_000)
    found = full_pass(tmp_path)
    print(found)
    memory = found["tree_megabytes"]
    assert found["images"] == 300_000
    assert memory["most_resident"] < 1500
    assert memory["quarters_shared_once"][3] < 1.1 * memory["quarters_shared_once"][1]


@pytest.mark.soak
def test_steps_from_disk_and_from_memory_are_timed(tmp_path: Path) -> None:
    make_images(tmp_path, 18_000)
    found = step_rates(tmp_path, "cpu", 50)
    print(found)
    assert found["memory"] > 0 < found["disk"]
