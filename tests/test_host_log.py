"""Decisions and effects of the host inside a step: noted while a step is recorded, repeated by each of its replays."""

from __future__ import annotations

import pytest

from scale_cl.cuda_graphs import HostLog
from tests.memory.numbered_memory import CPU, memory, numbered, write
from tests.memory.test_budgets import PAIRS


class Host:
    """Something that the host counts."""

    def __init__(self) -> None:
        self.log = HostLog()
        self.count = 0

    def step(self) -> int:
        """As many samples as there are, three at most, and one more afterwards."""
        size = self.log.ask(lambda: min(3, self.count))
        self.log.do(self.more)
        return size

    def more(self) -> None:
        self.count += 1


def test_outside_a_recording_questions_are_answered_and_effects_happen_at_once() -> None:
    host = Host()
    assert [host.step() for _ in range(5)] == [0, 1, 2, 3, 3]
    assert host.count == 5


def test_an_eager_call_is_noted_and_has_its_effects() -> None:
    host = Host()
    with host.log.noting(recording=False) as noted:
        assert host.step() == 0
    assert host.count == 1
    assert noted.effects == []
    assert not noted.still_holds(), "one sample is there now"


def test_a_recording_leaves_its_effects_to_the_replays() -> None:
    host = Host()
    host.count = 7
    with host.log.noting(recording=True) as noted:
        assert host.step() == 3
    assert host.count == 7
    for replay in range(1, 4):
        assert noted.still_holds()
        for effect in noted.effects:
            effect()
        assert host.count == 7 + replay


def test_a_recording_is_not_used_when_the_host_would_decide_otherwise() -> None:
    host = Host()
    host.count = 2
    with host.log.noting(recording=True) as noted:
        host.step()
    assert noted.still_holds()
    for effect in noted.effects:
        effect()
    assert not noted.still_holds(), "three are there now"
    host.count = 2
    assert noted.still_holds(), "and it serves again when the answer is the same again"


def test_every_decision_counts() -> None:
    log, answers = HostLog(), [1, 2]
    with log.noting(recording=True) as noted:
        for place in range(2):
            assert log.ask(lambda place=place: answers[place]) == answers[place]  # type: ignore[misc]
    for place in range(2):
        answers[place] += 10
        assert not noted.still_holds()
        answers[place] -= 10
        assert noted.still_holds()


def test_notes_are_kept_apart_and_end_with_their_block() -> None:
    host = Host()
    with host.log.noting(recording=True) as outer:
        with host.log.noting(recording=True) as inner:
            host.step()
        host.step()
        host.step()
    host.step()
    assert (len(inner.effects), len(outer.effects), host.count) == (1, 2, 1)
    with pytest.raises(RuntimeError), host.log.noting(recording=True):
        raise RuntimeError
    host.step()
    assert host.count == 2, "a recording that broke off notes nothing any more"


@pytest.mark.parametrize(("budget", "policy"), PAIRS)
def test_a_memory_counts_what_replays_have_written(budget: str, policy: str) -> None:
    kept = memory(8, policy=policy, budget=budget)  # type: ignore[arg-type]
    kept.on_host = False
    assert kept.device == CPU
    kept.open(0, 2)
    write(kept, *numbered(0, 2, 2))
    with kept.host.noting(recording=True) as noted:
        write(kept, *numbered(2, 2, 2))  # what the device would do in a replay
    assert kept.seen == [2]
    for effect in noted.effects:
        effect()
    assert kept.seen == [4]


def test_a_draw_of_another_size_is_another_decision() -> None:
    kept = memory(4)
    kept.on_host = False
    for task in range(3):
        kept.open(task, 3)
        with kept.host.noting(recording=True) as noted:
            assert kept.draw_size(6) == min(6, 4 * task)
        assert noted.still_holds()
        write(kept, *numbered(10 * task, 4))
        assert noted.still_holds(), "the open task's samples are not drawn"
        kept.close()
        assert noted.still_holds() == (task >= 2)
