"""Compiling kernels: once each, ahead of use if asked; where there is no GPU, none."""

import time

from scale_cl.nets.kernels import Program, compile_ahead, compiled, convolution, finish_compiling, norm, source


def test_sources_come_with_the_package() -> None:
    text = source("primitives.cu", "convolution.cu")
    assert all(name in text for name in convolution.NAMES)


def test_what_cannot_be_compiled_is_none() -> None:
    assert compiled((Program("no kernel", ("none",)),), 99) is None


def test_recording_waits_for_what_compiles_ahead() -> None:
    done: list[int] = []

    def slow(device: int) -> None:
        time.sleep(0.2)
        done.append(device)

    compile_ahead(slow, slow, device=7)
    assert done == []
    finish_compiling()
    assert done == [7, 7]
    finish_compiling()  # nothing is left to wait for


def test_both_sets_of_kernels_can_be_asked_for_by_device() -> None:
    for module in (convolution, norm):
        assert module.kernels(99) is None
