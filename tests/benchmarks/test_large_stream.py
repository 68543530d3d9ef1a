"""Images that are read as they come, by the benchmark's own figures.

On a machine that does nothing else, 300,000 images pass quickly, and memory stays low and flat; steps are as quick as
from memory, or nearly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.large_stream import full_pass, make_images, step_rates


def test_a_pass_reads_every_image_and_learns_from_it(tmp_path: Path) -> None:
    make_images(tmp_path, 1000)
    found = full_pass(tmp_path, workers=0)
    assert found["images"] == 1000
    assert found["accuracy"] > 40  # of ten classes
    assert found["tree_megabytes"]["most_resident"] > 0


@pytest.mark.soak
def test_a_pass_over_more_images_than_memory_should_hold_is_quick_and_takes_little_of_it(tmp_path: Path) -> None:
    make_images(tmp_path, 300_000)
    found = full_pass(tmp_path)
    print(found)
    memory = found["tree_megabytes"]
    assert found["images"] == 300_000
    assert memory["most_resident"] < 1500
    assert memory["quarters_shared_once"][3] < 1.1 * memory["quarters_shared_once"][1]
    assert found["images_per_second"] >= 1500


@pytest.mark.soak
def test_steps_from_disk_keep_at_least_four_fifths_of_the_rate_of_steps_from_memory(tmp_path: Path) -> None:
    make_images(tmp_path, 72_000)
    found = step_rates(tmp_path, "cpu", 500)
    print(found)
    assert found["steps"] == 500
    assert found["share"] >= 0.8
