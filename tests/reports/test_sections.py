"""Sections and rows: what belongs together is put together, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scale_cl.reports import Section, collect, sections
from scale_cl.reports.collection import distinct, slug
from scale_cl.reports.paper import printed_settings
from scale_cl.reports.sections import lane, main_rows, our_row
from scale_cl.reports.seed_statistics import paired
from scale_cl.reports.table import seeds_cell
from scale_cl.training.config import resolve
from tests.reports.made_results import run_result


def sections_of(directory: Path) -> list[Section]:
    return sections(collect(directory))


def test_streams_and_their_variants_are_sections_of_their_own(tmp_path: Path) -> None:
    run_result(stream="zoo").write(tmp_path / "1")
    run_result(stream="pmnist", tasks=20).write(tmp_path / "2")
    run_result(stream="pmnist", tasks=5).write(tmp_path / "3")
    run_result(stream="pmnist", tasks=3, part="search").write(tmp_path / "4")
    made = sections_of(tmp_path)
    assert [s.title for s in made] == [
        "pmnist, 20 tasks",
        "pmnist, 5 tasks",
        "pmnist, 3 tasks, part=search",
        "zoo, 4 tasks",
    ]
    assert [s.is_the_papers for s in made] == [True, False, False, False]
    assert len({s.key for s in made}) == 4


def test_seeds_of_the_same_settings_are_pooled_from_several_runs(tmp_path: Path) -> None:
    run_result(seeds=(0, 1)).write(tmp_path / "a")
    run_result(seeds=(4, 3)).write(tmp_path / "b")
    (section,) = sections_of(tmp_path)
    (row,) = section.rows
    assert [seed.seed for seed in row.seeds] == [0, 1, 3, 4]
    assert [run.name for run in row.runs] == ["a/result.json", "b/result.json"]
    assert section.gaps == []


def test_numbered_class_orders_are_pooled_and_seeds_paired_within_them(tmp_path: Path) -> None:
    for order in (3, 4):
        run_result("er", level=80.0, seeds=(0, 1), order=order).write(tmp_path / f"er-{order}")
        run_result("scale", level=80.0 + order, seeds=(0, 1), order=order).write(tmp_path / f"scale-{order}")
    run_result("er", seeds=(7,), order=3).write(tmp_path / "er-more")
    run_result("er", order="natural").write(tmp_path / "natural")
    run_result("er").write(tmp_path / "default")
    made = sections_of(tmp_path)
    settings = [section.title.removeprefix("digits, 4 tasks") for section in made]
    assert settings == ["", ", class_order=[3, 4]", ", class_order=natural"]
    pooled = made[1]
    rows = {row.learner: row for row in pooled.rows}
    assert [lane(seed) for seed in rows["er"].seeds] == [(3, 0), (3, 1), (3, 7), (4, 0), (4, 1)]
    assert seeds_cell(rows["scale"]).text == "4, orders 3, 4"
    difference = paired(rows["scale"].by_lane("la"), rows["er"].by_lane("la"))
    assert difference is not None
    assert difference.difference.values == (3.0, 3.0, 4.0, 4.0)
    assert pooled.gaps == []


def test_scale_is_called_scale_on_own_images(tmp_path: Path) -> None:
    configs = [resolve(stream="folder:photos", options=options) for options in ({}, {"learner.clip": 0.0})]
    for number, config in enumerate(configs):
        made = run_result(stream="photos")
        seeds = [replace(seed, config=config.as_dict(), preset="ours") for seed in made.seeds]
        replace(made, seeds=tuple(seeds)).write(tmp_path / str(number))
    (section,) = sections_of(tmp_path)
    assert [row.label for row in section.rows] == ["scale", "scale clip=0.0"]
    assert our_row(section) is section.rows[0]


def test_the_memory_that_learners_have_without_boundaries_is_their_default_there(tmp_path: Path) -> None:
    for number, options in enumerate(({}, {"learner.memory": 200})):
        config = resolve(stream="digits", learner="er", options={"stream.boundaries": "hidden", **options})
        made = run_result("er")
        seeds = [replace(seed, config=config.as_dict(), preset="ours") for seed in made.seeds]
        replace(made, seeds=tuple(seeds)).write(tmp_path / str(number))
    (section,) = sections_of(tmp_path)
    assert [row.label for row in section.rows] == ["er", "er memory=200"]
    assert main_rows(section) == list(section.rows)  # their slots are in all, not per task


def test_a_seed_that_is_there_twice_counts_once_and_is_said(tmp_path: Path) -> None:
    run_result(seeds=(0, 1)).write(tmp_path / "a")
    run_result(seeds=(1, 2)).write(tmp_path / "b")
    (section,) = sections_of(tmp_path)
    assert [seed.seed for seed in section.rows[0].seeds] == [0, 1, 2]
    assert [g.reason for g in section.gaps] == ["repeats seed 1 of a/result.json; counted once"]


def test_the_same_seed_with_other_accuracies_is_a_row_of_its_own(tmp_path: Path) -> None:
    run_result(level=90).write(tmp_path / "a")
    run_result(level=70).write(tmp_path / "b")
    (section,) = sections_of(tmp_path)
    assert [row.label for row in section.rows] == ["scale (a/result.json)", "scale (b/result.json)"]
    assert "other accuracies; a row of its own" in section.gaps[0].reason


def test_a_label_says_what_differs_from_the_paper(tmp_path: Path) -> None:
    changes: tuple[dict[str, Any], ...] = ({}, {"memory": 200}, {"derpp": False}, {"new_trick": 3}, {"new_trick": 0})
    for at, changed in enumerate(changes):
        run_result(seeds=(at,), **{"memory": 50, "derpp": True, **changed}).write(tmp_path / str(at))
    (section,) = sections_of(tmp_path)
    assert {row.label for row in section.rows} == {
        "scale",
        "scale memory=200",
        "scale derpp=false",
        "scale new_trick=3",
    }


def test_a_label_of_a_learner_that_is_not_in_the_paper_says_what_varies(tmp_path: Path) -> None:
    run_result("mine", depth=2, lr=0.1).write(tmp_path / "a")
    run_result("mine", depth=2, lr=0.2).write(tmp_path / "b")
    (section,) = sections_of(tmp_path)
    assert [row.label for row in section.rows] == ["mine lr=0.1", "mine lr=0.2"]


@pytest.mark.parametrize("learner", ["gem", "mer", "mir", "er", "ctn", "scale"])
@pytest.mark.parametrize("stream", ["pmnist", "scifar10", "scifar100", "sminiimagenet", "digits"])
def test_the_usual_settings_are_the_default_ones_and_the_preset_paper_is_known(
    tmp_path: Path, learner: str, stream: str
) -> None:
    for preset, differences in (("ours", {}), ("paper", printed_settings(learner, stream))):
        settings: dict[str, Any] = resolve(stream=stream, learner=learner, preset=preset).as_dict()["learner"]
        del settings["name"]
        run_result(learner, stream, **settings).write(tmp_path / preset)
        (section,) = sections(collect(tmp_path / preset))
        if stream != "digits" or preset == "ours":
            assert section.rows[0].differences == differences


@pytest.mark.parametrize(("stream", "label"), [("pmnist", "scale"), ("scifar100", "scale norm_on_memory=false")])
def test_what_scale_did_before_there_was_a_setting_for_it_is_said(tmp_path: Path, stream: str, label: str) -> None:
    settings: dict[str, Any] = resolve(stream=stream, learner="scale").as_dict()["learner"]
    del settings["name"], settings["norm_on_memory"]
    run_result("scale", stream, **settings).write(tmp_path)
    assert [row.label for row in sections_of(tmp_path)[0].rows] == [label]


def test_settings_of_own_images_and_an_older_result_without_them_make_no_section(tmp_path: Path) -> None:
    now = resolve(stream="digits", learner="er").as_dict()
    result = run_result("er", seeds=(7,))
    new = replace(result.seeds[0], config={**result.seeds[0].config, "stream": now["stream"]})
    replace(result, seeds=(new,)).write(tmp_path / "new")
    run_result("er", seeds=(8,)).write(tmp_path / "old")
    (section,) = sections_of(tmp_path)
    assert section.title == "digits, 4 tasks"
    assert [seed.seed for seed in section.rows[0].seeds] == [7, 8]


def test_another_number_of_threads_gives_other_bits_and_is_a_row_of_its_own(tmp_path: Path) -> None:
    result = run_result()
    run_result().write(tmp_path / "one")
    config = result.seeds[0].config
    two = tuple(replace(s, config={**config, "run": {**config["run"], "threads": 2}}) for s in result.seeds)
    replace(result, seeds=two).write(tmp_path / "two")
    assert [row.label for row in sections_of(tmp_path)[0].rows] == ["scale", "scale run.threads=2"]


def test_times_of_several_devices_are_not_averaged(tmp_path: Path) -> None:
    run_result(seeds=(0,)).write(tmp_path / "a")
    run_result(seeds=(1,), environment={"device_name": "Other"}).write(tmp_path / "b")
    (section,) = sections_of(tmp_path)
    assert section.rows[0].devices == ["Abacus 9", "Other"]
    assert section.rows[0].summary("seconds_train") is None
    assert section.rows[0].summary("acc") is not None


def test_names_for_files_are_plain_and_distinct() -> None:
    assert slug("../Etwas <b> & 5%") == "etwas-b-5"
    assert slug("…") == "x"
    assert distinct(["a b", "a-b", "A/B", "c"]) == ["a-b", "a-b-2", "a-b-3", "c"]
