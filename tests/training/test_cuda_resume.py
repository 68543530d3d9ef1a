"""Going on from a checkpoint on any device: the same bits where the arithmetic is deterministic, close elsewhere.

Without `run.deterministic` a GPU may add up in another order each time. How far a resumed run may then be from one that
was left alone is printed by the test; the bound it asserts is wide: 10 points of accuracy anywhere in the matrix.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scale_cl.errors import CheckpointError
from scale_cl.learners import Learner
from scale_cl.results import SeedResult
from scale_cl.streams import Stream
from scale_cl.training import Checkpointer, Event, train
from scale_cl.training.config import RunSettings
from scale_cl.training.events import Stepped
from scale_cl.training.machine import compute, prepare
from tests.learners.sameness import differences
from tests.training.devices import DEVICES, LEARNERS, STREAMS, as_found, make

BOUND = 10.0  # points of accuracy
BY_ROUNDING = ("hal", "learn-to-grow")  # on a few images rounding decides: where anchors go, which layer is reused
ON_THE_CPU = ("scale",)  # where test_checkpointing.py has every learner
pytestmark = pytest.mark.usefixtures("as_found")
__all__ = ["as_found"]


class Crash(Exception):
    pass


class CrashAt:
    """Ends the run after so many steps, as a power cut would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, event: Event) -> None:
        if event == Stepped(self.step):
            raise Crash


def straight_and_resumed(
    name: str, stream: Stream, run: RunSettings, folder: Path
) -> tuple[tuple[Learner, SeedResult], tuple[Learner, SeedResult]]:
    """A run left alone, and one that broke off in its second task and was resumed from one step before."""
    device = prepare(run)

    def new() -> Learner:
        return make(name, stream.spec, str(device), compute(run, device), memory=16)

    alone, broken, resumed = new(), new(), new()
    wanted = train(alone, stream, batch_size=5)
    steps = -(-len(stream.tasks[0].train) // 5)
    with pytest.raises(Crash):
        train(
            broken,
            stream,
            batch_size=5,
            on_event=CrashAt(steps + 3),
            checkpointer=Checkpointer(folder, every=steps + 2),
        )
    result = train(resumed, stream, batch_size=5, checkpointer=Checkpointer(folder, every=steps + 2, resume=True))
    return (alone, wanted), (resumed, result)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("name", LEARNERS)
def test_a_resumed_run_has_the_same_bits_if_it_is_deterministic(
    name: str, kind: str, device: str, tmp_path: Path
) -> None:
    if device == "cpu" and name not in ON_THE_CPU:
        pytest.skip("shown elsewhere for the CPU")
    run = RunSettings(device=device, deterministic=True)
    (alone, wanted), (resumed, result) = straight_and_resumed(name, STREAMS[kind](), run, tmp_path)
    assert result.matrix == wanted.matrix
    assert differences(alone, resumed) == []


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("name", LEARNERS)
def test_a_resumed_run_is_close_by_default(name: str, kind: str, device: str, tmp_path: Path) -> None:
    run = RunSettings(device=device)
    (alone, wanted), (resumed, result) = straight_and_resumed(name, STREAMS[kind](), run, tmp_path)
    ones, others = (torch.tensor([[v or 0.0 for v in row] for row in r.matrix]) for r in (wanted, result))
    apart = float((ones - others).abs().max())
    a, b = (list(learner.net.parameters()) for learner in (alone, resumed))
    weights = max(float((p - q).detach().abs().max()) for p, q in zip(a, b, strict=True))
    print(f"{name}, {kind}, {device}: accuracies differ by {apart:.2f} points at most, parameters by {weights:.2e}")
    assert apart <= BOUND or (name in BY_ROUNDING and kind == "images")


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_of_one_device_is_gone_on_with_on_another(device: str, tmp_path: Path) -> None:
    stream = STREAMS["digits"]()
    on_cpu, there = make("er", stream.spec, "cpu", memory=16), make("er", stream.spec, device, memory=16)
    with pytest.raises(Crash):
        train(on_cpu, stream, batch_size=5, on_event=CrashAt(8), checkpointer=Checkpointer(tmp_path))
    if device == "cpu":
        result = train(there, stream, batch_size=5, checkpointer=Checkpointer(tmp_path, resume=True))
        assert result.acc is not None
        assert result.acc > 5
        return
    # random numbers of another device cannot go on: this is refused, not guessed
    with pytest.raises(CheckpointError, match="was made on another kind of device than cuda"):
        train(there, stream, batch_size=5, checkpointer=Checkpointer(tmp_path, resume=True))
