"""Device, threads and precision of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.training.config import RunSettings
from scale_cl.training.machine import choose_device, compute, prepare


@pytest.fixture(autouse=True)
def threads_are_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_auto_is_a_gpu_if_there_is_one_and_else_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda:0")


def test_a_gpu_that_is_not_there_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"run.device: 'cuda' was asked for, but no GPU is there; use cpu or auto"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda") == torch.device("cuda:0")
    with pytest.raises(ConfigError, match="'cuda:3' was asked for, but there are 1 GPUs"):
        choose_device("cuda:3")


def test_the_cpu_gets_the_threads_asked_for_and_counts_in_fp32() -> None:
    run = RunSettings(device="cpu", threads=2, precision="bf16")
    device = prepare(run)
    assert torch.get_num_threads() == 2
    how = compute(run, device)
    assert (how.precision, how.capture) == ("fp32", False)


def test_a_gpu_gets_the_precision_asked_for() -> None:
    how = compute(RunSettings(precision="bf16", channels_last=True), torch.device("cuda:0"))
    assert (how.precision, how.channels_last, how.capture) == ("bf16", True, True)
