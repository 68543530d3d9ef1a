"""Device, threads and precision of a run; signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.training import machine
from scale_cl.training.config import RunSettings
from scale_cl.training.machine import choose_device, compute, interrupts_held, prepare, stop_on_signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def threads_are_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


FIRST_PROCESS = """
import multiprocessing, signal

def report(pipe):
    pipe.send(signal.pthread_sigmask(signal.SIG_BLOCK, []) >= {signal.SIGINT, signal.SIGTERM})

if __name__ == "__main__":
    from scale_cl.training.machine import signals_blocked

    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    with signals_blocked():
        process = spawn.Process(target=report, args=(there,))
        process.start()
    print(here.recv(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    process.join()
"""


def test_the_first_process_that_is_spawned_gets_no_signals_either(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(FIRST_PROCESS)
    done = subprocess.run([sys.executable, tmp_path / "first.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"


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


@pytest.fixture
def handlers_are_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers_are_put_back")
def test_the_second_of_many_signals_interrupts_and_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SAME", 0.0)
    with stop_on_signal() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    for number in SIGNALS:
        signal.raise_signal(number)  # while the process ends


@pytest.mark.usefixtures("handlers_are_put_back")
def test_a_signal_that_a_wrapper_sends_twice_is_one() -> None:
    with stop_on_signal() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop()


@pytest.mark.usefixtures("handlers_are_put_back")
def test_where_nothing_is_to_be_saved_the_first_signal_interrupts_and_no_other() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signal(at_once=True):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)


def test_without_a_signal_the_handlers_are_as_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop_on_signal(), interrupts_held():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_held_interrupts_are_counted_and_raised_at_the_end() -> None:
    counts = []

    def interrupted() -> None:
        with interrupts_held() as held:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
                counts.append(held())

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert counts == [1, 2]
