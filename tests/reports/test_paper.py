"""The paper's numbers: checked against what the paper's own tables are known to add up to."""

from __future__ import annotations

import pytest

from scale_cl.reports import paper


def test_every_stream_has_all_learners_and_times() -> None:
    assert paper.MAIN.keys() == paper.TASKS.keys() == paper.SECONDS.keys()
    for stream, targets in paper.MAIN.items():
        assert set(targets) == set(paper.SECONDS[stream]) == set(paper.LEARNERS)


def test_scale_leads_every_column() -> None:
    for targets in paper.MAIN.values():
        assert max(targets, key=lambda name: targets[name].acc.mean) == "scale"
        assert min(targets, key=lambda name: targets[name].fm.mean) == "scale"


def test_differences_that_are_known_come_out() -> None:
    scifar100 = paper.MAIN["scifar100"]
    assert scifar100["scale"].acc.mean - scifar100["mir"].acc.mean == pytest.approx(8.98)
    ablation = paper.ABLATION_TARGETS["scifar10"]["B"]
    assert paper.MAIN["scifar10"]["scale"].acc.mean - ablation.acc.mean == pytest.approx(8.82)
    grid = paper.SENSITIVITY["scifar100"].values()
    assert max(t.acc.mean for t in grid) - min(t.acc.mean for t in grid) == pytest.approx(1.04)
    assert max(t.fm.mean for t in grid) - min(t.fm.mean for t in grid) == pytest.approx(1.34)
    assert paper.SENSITIVITY["scifar100"][1.0, 0.03] == scifar100["scale"]


@pytest.mark.parametrize(
    ("stream", "faster"), [("pmnist", 21), ("scifar10", 60), ("scifar100", 66), ("sminiimagenet", 35)]
)
def test_scale_is_as_much_faster_than_ctn_as_the_table_says(stream: str, faster: int) -> None:
    seconds = paper.SECONDS[stream]
    assert round(100 * (1 - seconds["scale"] / seconds["ctn"])) == faster


def test_a_stream_of_another_has_no_learning_rates_of_the_papers() -> None:
    assert paper.usual_settings("scale", "pmnist")["inner_lr"] == 0.1
    assert paper.usual_settings("scale", "scifar10")["inner_lr"] == 0.01
    assert "inner_lr" not in paper.usual_settings("scale", "digits")
    assert paper.usual_settings("mine", "pmnist") == {"memory": 50}
