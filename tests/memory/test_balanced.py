"""The policy `balanced`: as many samples of each class as possible, uniform within a class, whatever the stream is."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scale_cl.memory import Batch, EpisodicMemory
from tests.memory.numbered_memory import memory
from tests.memory.test_budgets import stored

SKEWED = [0] * 60 + [1] * 30 + [2] * 20 + [3] * 10  # labels of a stream, to be shuffled


def stream(labels: list[int], batch: int, tasks: list[int] | None = None) -> list[Batch]:
    """Batches of samples that know their number."""
    x, y = torch.arange(len(labels), dtype=torch.float32).view(-1, 1), torch.tensor(labels)
    task = torch.zeros_like(y) if tasks is None else torch.tensor(tasks)
    return [Batch(x, y, task)[i : i + batch] for i in range(0, len(labels), batch)]


def by_class(kept: EpisodicMemory) -> dict[tuple[int, int], int]:
    return Counter((task, label) for task, label, _ in stored(kept))


def shuffled(labels: list[int], seed: int) -> list[int]:
    return random.Random(seed).sample(labels, len(labels))


@pytest.mark.parametrize("on_host", [True, False])
def test_classes_that_came_often_enough_have_equal_shares(on_host: bool) -> None:
    for seed in range(4):
        kept = memory(22, policy="balanced", budget="total", seed=seed)
        kept.on_host = on_host
        kept.open(0, 4)
        for batch in stream(shuffled(SKEWED, seed), 7):
            kept.write(batch)
        counts = sorted(by_class(kept).values())
        assert (sum(counts), counts[-1] - counts[0] <= 1) == (22, True), counts


def test_a_rare_class_keeps_all_its_samples_and_the_others_share_the_rest() -> None:
    kept = memory(20, policy="balanced", budget="total")
    kept.open(0, 3)
    for batch in stream(shuffled([0] * 50 + [1] * 50 + [2] * 3, 1), 5):
        kept.write(batch)
    assert by_class(kept)[0, 2] == 3
    assert sorted(by_class(kept).values()) == [3, 8, 9]


def test_every_sample_of_a_class_is_kept_with_the_same_chance() -> None:
    """Class 0 fills the memory before class 1 begins; both lose samples and must lose them uniformly."""
    labels, runs = [0] * 12 + [0, 1] * 10, 400
    counts: Counter[int] = Counter()
    for seed in range(runs):
        kept = memory(8, policy="balanced", budget="total", seed=seed)
        kept.open(0, 2)
        for batch in stream(labels, 6):
            kept.write(batch)
        assert by_class(kept) == {(0, 0): 4, (0, 1): 4}
        counts.update(number for _, _, number in stored(kept))
    for label, freedom_limit in ((0, 50), (1, 30)):  # 21 and 9 degrees of freedom
        own = [number for number, of in enumerate(labels) if of == label]
        expected = runs * 4 / len(own)
        assert sum((counts[number] - expected) ** 2 / expected for number in own) < freedom_limit


class Plain:
    """Algorithm 1 of Chrysakis and Moens in Python numbers, with the same chances: a list of (number, class)."""

    def __init__(self, slots: int) -> None:
        self.slots, self.held = slots, list[tuple[int, int]]()
        self.full, self.came = set[int](), Counter[int]()

    def observe(self, number: int, of: int, chance: float) -> None:
        sizes = Counter(label for _, label in self.held)
        if sizes[of] == 0:
            self.full.discard(of)
            self.came[of] = 0
        self.came[of] += 1
        if len(self.held) < self.slots:
            self.held.append((number, of))
        elif of in self.full:
            own = [i for i, (_, label) in enumerate(self.held) if label == of]
            if int(chance * self.came[of]) < len(own):
                self.held[own[int(chance * self.came[of])]] = (number, of)
        else:
            among = [i for i, (_, label) in enumerate(self.held) if sizes[label] == max(sizes.values())]
            self.held[among[int(chance * len(among))]] = (number, of)
        sizes = Counter(label for _, label in self.held)
        if len(self.held) == self.slots:
            self.full |= {label for label in sizes if sizes[label] == max(sizes.values())}


@given(
    st.integers(1, 9),
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=60)
def test_the_slots_are_those_of_the_published_algorithm(
    slots: int, batches: list[list[int]], on_host: bool, seed: int
) -> None:
    kept, plain, number = memory(slots, policy="balanced", budget="total", seed=seed), Plain(slots), 0
    kept.on_host = on_host
    chances = torch.Generator().manual_seed(seed)
    kept.open(0, 5)
    for labels in batches:
        uniform = torch.rand(len(labels), generator=chances, dtype=torch.float64).tolist()
        for i, (label, chance) in enumerate(zip(labels, uniform, strict=True)):
            plain.observe(number + i, label, chance)
        x, y = torch.arange(number, number + len(labels)).float().view(-1, 1), torch.tensor(labels)
        kept.write(Batch(x, y, torch.zeros_like(y)))
        number += len(labels)
    assert [(n, label) for _, label, n in stored(kept)] == plain.held


def test_a_class_is_a_label_of_one_task_or_a_label_of_all() -> None:
    """Twice as many tasks have label 0 as have label 1."""
    tasks = [0] * 20 + [1] * 20 + [2] * 20
    labels = [0, 1] * 10 + [0] * 20 + [0] * 20
    found: list[dict[tuple[int, int], int]] = []
    for shared in (False, True):
        kept = memory(12, policy="balanced", budget="total", shared_labels=shared)
        for number, batch in enumerate(stream(labels, 5, tasks)):
            kept.open(number // 4, 2)
            kept.write(batch)
        found.append(by_class(kept))
    assert found[0] == {(0, 0): 3, (0, 1): 3, (1, 0): 3, (2, 0): 3}
    assert sum(n for (_, label), n in found[1].items() if label == 0) == 6
    assert found[1][0, 1] == 6


def test_slots_per_task_are_balanced_within_each_task() -> None:
    kept = memory(9, policy="balanced")
    for task in range(3):
        kept.open(task, 3)
        for batch in stream(shuffled([0] * 40 + [1] * 9 + [2] * 9, task), 4, [task] * 58):
            kept.write(batch)
        kept.close()
    assert by_class(kept) == {(task, label): 3 for task in range(3) for label in range(3)}


@pytest.mark.parametrize("on_host", [True, False])
def test_classes_that_appear_while_the_task_is_open_get_their_share_and_nothing_is_lost(on_host: bool) -> None:
    """One task without an end, opened again whenever its head widens, as a stream without boundaries is."""
    kept = memory(12, policy="balanced", budget="total", shared_labels=True, seed=3)
    kept.on_host = on_host
    for classes in range(1, 6):
        before = stored(kept)
        kept.open(0, classes)
        assert stored(kept) == before
        assert kept.available() == len(before) == len(kept.candidates)
        if before:
            assert sorted(kept.draws(1, len(before))[0].tolist()) == kept.candidates.tolist()
        for batch in stream([classes - 1] * 20, 5):
            kept.write(batch)
        counts = list(by_class(kept).values())
        assert len(counts) == classes
        assert max(counts) - min(counts) <= 1
    assert kept.seen == [100]


@pytest.mark.parametrize("budget", ["task", "total"])
def test_a_state_taken_in_the_middle_of_an_open_task_goes_on_to_the_bit(budget: str) -> None:
    batches = stream(shuffled(SKEWED, 5), 8)
    straight, loaded = (memory(10, policy="balanced", budget=budget, seed=seed) for seed in (0, 9))  # type: ignore[arg-type]
    straight.open(0, 4)
    for batch in batches[:8]:
        straight.write(batch)
    loaded.load_state_dict(straight.state_dict())
    loaded.generator.set_state(straight.generator.get_state())
    for batch in batches[8:]:
        straight.write(batch)
        loaded.write(batch)
    one, other = straight.state_dict(), loaded.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_logits_of_a_sample_that_is_replaced_are_dropped() -> None:
    kept = memory(6, policy="balanced", budget="total")
    kept.open(0, 2)
    kept.write(stream([0] * 6, 6)[0])
    kept.keep_logits("class", torch.arange(6), torch.ones(6, 2))
    kept.write(stream([1] * 3, 3)[0])
    width: Tensor = kept.logits["class"].width
    assert torch.equal(width[:6] == 0, kept.y == 1)
