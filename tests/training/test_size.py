"""A run that cannot fit is refused before it takes the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_streams import few_digits

from scale_cl.errors import ConfigError
from scale_cl.training import size
from scale_cl.training.config import resolve

CPU = torch.device("cpu")


def test_a_memory_larger_than_the_machine_is_refused_with_advice(command: Callable[..., Any]) -> None:
    refused = command("run", "--memory", "100000000000", "-q", "--out", "o")
    assert refused.code == 2
    assert "1 learner on digits need 116.4 TiB (memory 116.4 TiB" in refused.err
    assert "take fewer memory slots (learner.memory)" in refused.err
    assert not Path("o").exists()


def test_what_fits_passes_and_what_nobody_knows_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    config, stream = resolve(), few_digits()
    size.check_fits(config, stream, CPU, learners=1)
    monkeypatch.setattr(size, "free_bytes", lambda device: None)
    size.check_fits(resolve(options={"learner.memory": 10**12}), stream, CPU, learners=1)


def test_several_learners_at_once_need_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config, stream = resolve(), few_digits()
    one = size.needed(config, stream, on_gpu=False, learners=1)
    assert one == {"stream": 0, "memory": 2 * 50 * 3 * 64, "tasks": (60 + 50) * 64}
    assert size.needed(config, stream, on_gpu=True, learners=1)["stream"] > 0
    monkeypatch.setattr(size, "free_bytes", lambda device: 3 * sum(one.values()))
    size.check_fits(config, stream, CPU, learners=3)
    with pytest.raises(ConfigError, match=r"4 learners on few need .* but cpu has .* free"):
        size.check_fits(config, stream, CPU, learners=4)


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    assert size._left_in_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert size._left_in_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("5000\n")
    assert size._left_in_group(tmp_path) == 4000


def test_sizes_are_said_in_words() -> None:
    assert [size.words(n) for n in (5, 2048, 3 * 2**29)] == ["5 bytes", "2.0 KiB", "1.5 GiB"]
