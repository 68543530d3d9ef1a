"""Plans: what is asked for, less what is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scale_cl.errors import ConfigError
from scale_cl.experiments.definitions import EXPERIMENTS, POINTS, chosen
from scale_cl.experiments.engine import searched_lines
from scale_cl.experiments.planning import ExperimentCell, ExperimentPlan, Request, groups, plan, rerun_command
from scale_cl.settings import as_dict
from tests.experiments.small_runs import made_up


def planned(name: str, request: Request, *, gpu: bool = False) -> ExperimentPlan:
    return plan(chosen(name), request, gpu=gpu)


def digits(out: Path, **changes: object) -> Request:
    return replace(Request(out, streams=("digits",), learners=("er",), seeds=(0, 1), tasks=2), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_can_be_planned_on_digits(name: str, tmp_path: Path) -> None:
    made = planned(name, Request(tmp_path, streams=("digits",), seeds=(0,)))
    experiment = EXPERIMENTS[name]
    cells = sum(len(experiment.grids.get(learner, experiment.cases)) for learner in experiment.learners)
    assert len(made.cells) == cells + len(experiment.bounds)
    assert len(made.runs) == len({cell.key for cell in made.cells})  # of equal ones, one is run
    assert len({run.folder for run in made.runs}) == len(made.runs)
    assert all(run.config.stream.part == experiment.part for run in made.runs)
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_may_have_a_preset_which_the_user_may_replace(tmp_path: Path) -> None:
    request = Request(tmp_path, streams=("digits",), seeds=(0,))
    for preset, policy in ((None, "ring"), ("ours", "reservoir")):
        cell = next(c for c in planned("departures", replace(request, preset=preset)).cells if not c.case)
        assert (cell.config.preset, as_dict(cell.config.learner)["memory_policy"]) == (preset or "paper", policy)
        assert ("--preset paper" in rerun_command(cell.runs[0], None)) == (preset is None)


def test_a_learner_of_this_package_that_is_named_by_a_reference_is_shown_by_its_class(tmp_path: Path) -> None:
    made = planned("variants", Request(tmp_path, streams=("digits",), seeds=(0,)))
    names = [name.rpartition(":")[2] for name in EXPERIMENTS["variants"].learners]
    assert [cell.name for cell in made.cells] == [run.folder.parent.name for run in made.runs] == names
    assert f"--learner {EXPERIMENTS['variants'].learners[1]} " in rerun_command(made.runs[1], None)


def test_a_run_is_a_seed_on_a_cpu_and_a_row_of_seeds_on_a_gpu(tmp_path: Path) -> None:
    request = digits(tmp_path, seeds=(0, 1, 2, 5))
    assert [run.config.seeds for run in planned("main", request).runs] == [[0], [1], [2], [5]]
    assert [run.config.seeds for run in planned("main", request, gpu=True).runs] == [[0, 1, 2], [5]]
    assert [run.folder.name for run in planned("main", request, gpu=True).runs] == ["seeds-0-2", "seed-5"]
    assert [run.config.seeds for run in planned("time", request, gpu=True).runs] == [[0], [1], [2], [5]]
    assert groups([], together=True) == []


def test_what_is_done_is_skipped_wherever_it_lies_below_out(tmp_path: Path) -> None:
    first, second = planned("main", digits(tmp_path)).runs
    made_up(replace(first, folder=tmp_path / "by" / "hand"))
    again = planned("main", digits(tmp_path))
    assert again.runs == [second]
    assert list(again.cells[0].done) == [0]
    assert planned("main", digits(tmp_path, seeds=(0, 1, 2))).runs[0].config.seeds == [1]


def test_machine_settings_do_not_make_another_run_but_settings_that_change_numbers_do(tmp_path: Path) -> None:
    for run in planned("main", digits(tmp_path)).runs:
        made_up(run)
    assert planned("main", digits(tmp_path, device="cpu")).runs == []
    for changes in ({"threads": 2}, {"assignments": ("lr=0.5",)}, {"assignments": ("run.batch_size=20",)}):
        (first, _) = planned("main", digits(tmp_path, **changes)).runs
        assert first.folder.name == "seed-0-2"  # the other result stays
    assert len(planned("main", digits(tmp_path, tasks=1)).runs) == 2


def test_a_half_written_or_damaged_folder_is_redone_in_place_and_a_newer_one_left_alone(tmp_path: Path) -> None:
    first, second = planned("main", digits(tmp_path)).runs
    made_up(first)
    result = first.folder / "result.json"
    content = result.read_text()
    result.write_text(content[:200])
    (second.folder / "seeds").mkdir(parents=True)
    assert planned("main", digits(tmp_path)).runs == [first, second]
    result.write_text(json.dumps({**json.loads(content), "schema": 99}))
    assert planned("main", digits(tmp_path)).runs[0].folder == first.folder.with_name("seed-0-2")
    result.write_text('["not", "ours"]')
    assert planned("main", digits(tmp_path)).runs == [first, second]


def test_times_are_taken_anew_and_do_not_serve_other_experiments(tmp_path: Path) -> None:
    for run in planned("main", digits(tmp_path)).runs:
        made_up(run)
    timed = planned("time", digits(tmp_path)).runs
    assert len(timed) == 2
    assert all(run.alone and run.folder.is_relative_to(tmp_path / "time") for run in timed)
    for run in timed:
        made_up(run, alone=True)
    assert planned("time", digits(tmp_path)).runs == []
    assert len(planned("time", digits(tmp_path), gpu=True).runs) == 2  # another device
    assert len(planned("main", digits(tmp_path, learners=("er", "mir"))).runs) == 2


def test_experiments_planned_together_share_runs(tmp_path: Path) -> None:
    request = Request(tmp_path, streams=("digits",), learners=("scale",), seeds=(0,), strict=False)
    made = planned("all", request)
    names = [run.folder.relative_to(tmp_path).as_posix() for run in made.runs]
    assert names[0] == "main/digits/scale/seed-0"
    assert "memory/digits/scale-memory=50/seed-0" not in names
    assert "memory/digits/scale-memory=100/seed-0" in names
    assert "ablation/digits/scale/seed-0" not in names
    shared = {cell.experiment for cell in made.cells if cell.elsewhere}
    ours = {"families", "memory", "ablation", "sensitivity", "rates", "variants", "departures"}
    assert shared == {*ours, "paper-search", "matched", "unsearched"}


def test_what_does_not_fit_is_an_error_alone_and_left_out_of_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'learner.adversary'"):
        planned("ablation", digits(tmp_path))
    with pytest.raises(ConfigError, match="scifar10 has no tasks kept for search"):
        planned("search", Request(tmp_path, streams=("scifar10",)))
    with pytest.raises(ConfigError, match="tasks is 11; the continual part of digits has 10"):
        planned("main", digits(tmp_path, tasks=11))
    with pytest.raises(ConfigError, match="unknown stream 'digit'; did you mean 'digits'"):
        planned("main", digits(tmp_path, streams=("digit",)))
    with pytest.raises(ConfigError, match="unknown learner 'scal'; did you mean 'scale'"):
        planned("main", digits(tmp_path, learners=("scal",)))
    lenient = planned("all", digits(tmp_path, strict=False))
    fit = {"main", "families", "memory", "variants", "time"}
    fit |= {"search", "matched", "unsearched", "beyond-search", "beyond"}
    assert {cell.experiment for cell in lenient.cells} == fit
    with pytest.raises(ConfigError, match="nothing to do"):
        plan(chosen("ablation"), digits(tmp_path, strict=False), gpu=False)


def test_joint_training_is_a_bound_that_has_no_memory_to_vary(tmp_path: Path) -> None:
    cells = planned("memory", digits(tmp_path, learners=("mer", "joint"))).cells
    assert [cell.name for cell in cells] == [
        "mer memory=50",
        "mer memory=100",
        "mer memory=150",
        "mer memory=200",
        "joint",
    ]


def test_a_result_is_found_whichever_preset_gave_its_settings(tmp_path: Path) -> None:
    first, second = planned("main", digits(tmp_path, preset="paper")).runs
    assert (first.config.preset, second.config.preset) == ("paper", "paper")
    made_up(first)
    assert planned("main", digits(tmp_path, preset="ours")).runs[0].config.seeds == [1]


def test_class_orders_are_cells_of_their_own_with_fresh_seeds(tmp_path: Path) -> None:
    made = planned("matched", Request(tmp_path, streams=("pmnist", "scifar100"), learners=("er",)), gpu=True)
    pmnist, *orders = made.cells
    assert (pmnist.seeds, pmnist.config.stream.class_order) == ((200, 201, 202, 203, 204), "default")
    assert [cell.config.stream.class_order for cell in orders] == [3, 4, 5]
    assert [cell.seeds for cell in orders] == [(200, 201, 202)] * 3
    assert [run.folder.relative_to(tmp_path).as_posix() for run in made.runs] == [
        "matched/pmnist/er/seeds-200-204",
        *(f"matched/scifar100-order-{order}/er/seeds-200-202" for order in (3, 4, 5)),
    ]
    assert made.runs[1].title == "er on scifar100 order 3, seeds 200 to 202"


def test_matched_methods_have_a_uniform_sample_and_what_search_found(tmp_path: Path) -> None:
    streams = ("pmnist", "scifar10", "sminiimagenet")

    def cells() -> list[ExperimentCell]:
        made = planned("matched", Request(tmp_path, streams, ("er", "joint"), seeds=(200,)))
        return [cell for cell in made.cells if cell.config.stream.class_order in ("default", 3)]

    usual = {cell.config.stream.name: cell.config.learner for cell in cells() if cell.config.learner_name == "er"}
    assert [er.memory_policy for er in usual.values()] == ["reservoir"] * 3  # type: ignore[attr-defined]
    assert [er.norm_on_memory for er in usual.values()] == [False, True, True]  # type: ignore[attr-defined]
    said = "no `scale-cl reproduce search` below --out on pmnist for er, joint; on scifar100 for er, joint"
    assert searched_lines(cells()) == [f"{said}: preset settings there"]
    (tmp_path / "search").mkdir()
    for name, lr in (("pmnist-er", 0.2), ("scifar100-er", 0.01), ("sminiimagenet-er", 0.7)):
        settings = f"learner: {{name: er, lr: {lr}, memory_policy: ring}}"
        (tmp_path / "search" / f"{name}.yaml").write_text(f"stream: {{name: {name[:-3]}}}\n{settings}\n")
    found = [cell for cell in cells() if cell.config.learner_name == "er"]
    assert [cell.config.learner.lr for cell in found] == [0.2, 0.01, 0.01]  # type: ignore[attr-defined]
    assert {cell.config.learner.memory_policy for cell in found} == {"reservoir"}  # type: ignore[attr-defined]
    assert [cell.config.stream.name for cell in found] == list(streams)
    lines = searched_lines(cells())
    assert lines[:2] == [f"settings from {tmp_path}/search/{name}-er.yaml" for name in ("pmnist", "scifar100")]
    assert lines[2].endswith("on pmnist for joint; on scifar100 for joint: preset settings there")
    assert cells()[1].config.learner == usual_joint(tmp_path)
    unsearched = planned("unsearched", Request(tmp_path, streams, ("er",), seeds=(200,))).cells
    assert {cell.config.stream.name: cell.config.learner for cell in unsearched} == usual


def test_extras_are_those_of_all_unless_a_search_has_found_others(tmp_path: Path) -> None:
    def extras() -> dict[str, tuple[object, ...]]:
        cells = planned("beyond", Request(tmp_path, ("pmnist", "scifar100"), seeds=(200,))).cells
        names = ("weight_average", "consistency", "memory_policy", "lr")
        read = {
            f"{c.name} on {c.config.stream.name}": [getattr(c.config.learner, n, None) for n in names] for c in cells
        }
        return {name: tuple(values) for name, values in read.items()}

    usual = extras()
    assert usual["er on pmnist"][:3] == usual["scale-plus on pmnist"][:3] == (0.985, 0.1, "class-ring")
    assert usual["derpp on scifar100"][:3] == usual["scale-plus on scifar100"][:3] == (0.995, 0.1, "class-ring")
    assert "scale-plus adversary=false generator=false on scifar100" in usual
    (tmp_path / "beyond-search").mkdir()
    settings = "learner: {name: er, lr: 0.2, weight_average: 0.98, memory_policy: ring}"
    (tmp_path / "beyond-search" / "scifar100-er.yaml").write_text(f"stream: {{name: scifar100}}\n{settings}\n")
    assert extras() == usual | {"er on scifar100": (0.98, 0.0, "class-ring", 0.2)}
    (other,) = planned("beyond", Request(tmp_path, ("pmnist",), ("der",), seeds=(200,))).cells
    assert (other.name, other.config.learner.weight_average) == ("der", 0.985)


def usual_joint(out: Path) -> object:
    return planned("main", Request(out, ("pmnist",), ("joint",), seeds=(0,))).cells[0].config.learner


def test_a_learner_without_a_grid_is_told_to_be_given_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`search` has no grid for finetune; give one: --grid FIELD=A,B"):
        planned("search", digits(tmp_path, learners=("finetune",)))
    search = planned("search", digits(tmp_path, learners=("er",), seeds=(0,)))
    assert len(search.cells) == 1 + POINTS
    assert {cell.config.learner.memory_policy for cell in search.cells} == {"reservoir"}  # type: ignore[attr-defined]
