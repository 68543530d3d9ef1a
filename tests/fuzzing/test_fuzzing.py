"""Every file that is read, mutated: a few thousand by default, a million in `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzzing.formats import FORMATS
from tests.fuzzing.fuzzing import soaked, tried

FEW = {"result": 400, "note": 500, "checkpoint": 400, "estimator": 400, "config": 500, "manifest": 500, "image": 800}
MANY = {  # in relation to how fast they are, and at least 20,000 of each
    **{"result": 60_000, "note": 200_000, "checkpoint": 30_000, "estimator": 30_000},
    **{"config": 100_000, "manifest": 100_000, "image": 480_000},
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_file_is_used_or_refused(name: str, tmp_path: Path) -> None:
    counts = tried(name, tmp_path, 10**9, FEW[name])
    ends = {end.rpartition(", ")[2] for end in counts}
    assert ends == {"accepted", "refused"}, "the mutations are neither all harmless nor all refused at once"


@pytest.mark.soak
@pytest.mark.parametrize("name", FORMATS)
def test_a_million_mutated_files(name: str, tmp_path: Path) -> None:
    for end, count in soaked(name, tmp_path, MANY[name]).most_common():
        print(f"{name}: {count} {end}")
