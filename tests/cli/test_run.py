"""`scale-cl run`, for real, on a few tasks of digits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scale_cl import files, metrics, results

CLOSING = re.compile(r"(\S+) on (\S+): ACC \d+\.\d  FM -?\d+\.\d  LA \d+\.\d \(1 seed, \d+ s\)\n")
SHORT = ("run", "--tasks", "2")
WIDE = ("--set", "run.batch_size=50")  # 20 steps per task


def test_alone_it_runs_scale_on_digits_into_a_new_folder(command: Callable[..., Any]) -> None:
    finished = command("run", "--tasks", "3")
    assert finished.code == 0
    closing = CLOSING.fullmatch(finished.out)
    assert closing
    assert closing.groups() == ("scale", "digits")
    (directory,) = Path("runs").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-scale-digits", directory.name)
    assert sorted(str(p.relative_to(directory)) for p in directory.rglob("*")) == [
        "result.json",
        "seeds",
        "seeds/seed-0.json",
    ]
    assert f"wrote {directory}/result.json" in finished.err
    assert [line.split(":")[0] for line in finished.err.splitlines()[:4]] == [
        "scale on digits",
        "task 1/3",
        "task 2/3",
        "task 3/3",
    ]


def test_the_result_file_says_what_made_it(command: Callable[..., Any]) -> None:
    assert command(*SHORT, *WIDE, "--out", "o", "--seed", "7", "--threads", "1", "--quiet").code == 0
    content = json.loads(Path("o/result.json").read_text())
    assert content["schema"] == results.SCHEMA
    assert (content["stream"], content["learner"], content["seeds"]) == ("digits", "scale", [7])
    (matrix,) = content["matrix"]
    assert [[a is None for a in row] for row in matrix] == [[False, True], [False, False]]
    assert all(0 <= a <= 100 for row in matrix for a in row if a is not None)
    for measure in ("acc", "fm", "la", "bwt"):
        assert content[measure] == [getattr(metrics, measure)(matrix)]
    assert content["config"]["run"]["seed"] == 7
    assert content["config"]["learner"]["inner_lr"] == 0.1
    assert all(s > 0 for key in ("seconds_train", "seconds_eval") for s in content[key])
    environment = content["environment"]
    assert (
        environment["command"] == "scale-cl run --tasks 2 --set run.batch_size=50 --out o --seed 7 --threads 1 --quiet"
    )
    assert {
        "scale_cl",
        "python",
        "torch",
        "numpy",
        "platform",
        "device",
        "device_name",
        "threads",
        "git_revision",
    } <= set(environment)
    assert results.read(Path("o")).seeds[0].seed == 7


def test_the_same_config_gives_the_same_result_and_another_seed_another(command: Callable[..., Any]) -> None:
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert command(*SHORT, *WIDE, "--out", out, "--seed", str(seed), "-q").code == 0
    a, b, c = (results.read(Path(out)).seeds[0].matrix for out in "abc")
    assert a == b
    assert a != c


def test_several_seeds_are_summed_up_with_deviations(command: Callable[..., Any]) -> None:
    finished = command(*SHORT, *WIDE, "--seeds", "2", "--set", "run.processes=1", "--out", "o")
    assert re.fullmatch(
        r"scale on digits: ACC \d+\.\d ± \d+\.\d  FM -?\d+\.\d ± \d+\.\d  LA \d+\.\d \(2 seeds, \d+ s\)\n", finished.out
    )
    assert "2 tasks, 40 steps, seeds 0 to 1" in finished.err
    both = results.read(Path("o"))
    assert command(*SHORT, *WIDE, "--seed", "1", "--out", "one", "-q").code == 0
    assert results.read(Path("one")).seeds[0].matrix == both.seeds[1].matrix


def test_quiet_leaves_the_closing_line_alone(command: Callable[..., Any]) -> None:
    finished = command(*SHORT, *WIDE, "--quiet")
    assert CLOSING.fullmatch(finished.out)
    assert finished.err == ""


def test_a_second_run_of_the_day_gets_a_number(command: Callable[..., Any]) -> None:
    for _ in range(2):
        assert command("run", "--tasks", "1", "--learner", "finetune", "-q").code == 0
    first, second = sorted(p.name for p in Path("runs").iterdir())
    assert first.endswith("-finetune-digits")
    assert second == f"{first}-2"


def test_force_replaces_the_result_and_leaves_other_files(command: Callable[..., Any]) -> None:
    tiny = ("run", "--tasks", "1", "--learner", "finetune", "-q", "--out", "o")
    assert command(*tiny).code == 0
    Path("o/notes.txt").write_text("mine")
    assert command(*tiny, "--seed", "5").code == 2
    assert command(*tiny, "--seed", "5", "--force").code == 0
    assert sorted(p.name for p in Path("o").rglob("*")) == ["notes.txt", "result.json", "seed-5.json", "seeds"]
    assert results.read(Path("o")).seeds[0].seed == 5


def test_one_task_has_no_forgetting(command: Callable[..., Any]) -> None:
    finished = command("run", *WIDE, "--tasks", "1", "-q", "--out", "o")
    assert "  FM -  LA " in finished.out
    assert json.loads(Path("o/result.json").read_text())["fm"] == [None]


def test_a_dry_run_prints_the_plan_and_touches_nothing(command: Callable[..., Any]) -> None:
    finished = command("run", "--dry-run", "--seeds", "3", "--learner", "finetune", "--out", "x/y")
    assert finished.code == 0
    assert finished.out.startswith("# would run finetune on digits, seeds 0, 1, 2, into x/y\n")
    assert list(Path().iterdir()) == []


def test_options_win_over_the_file_and_the_file_over_the_paper(command: Callable[..., Any]) -> None:
    Path("c.yaml").write_text("stream: {tasks: 2}\nlearner: {inner_lr: 5e-2, outer_lr: 0.02}\nrun: {seed: 3}\n")
    assert (
        command("run", *WIDE, "--config", "c.yaml", "--tasks", "1", "--set", "outer_lr=0.03", "-q", "--out", "o").code
        == 0
    )
    config = results.read(Path("o")).seeds[0].config
    assert config["stream"]["tasks"] == 1
    assert (config["learner"]["inner_lr"], config["learner"]["outer_lr"]) == (0.05, 0.03)
    assert config["learner"]["lambda3"] == 0.03
    assert config["run"]["seed"] == 3


def test_a_result_serves_as_the_config_of_a_rerun(command: Callable[..., Any]) -> None:
    assert command("run", *WIDE, "--tasks", "1", "--set", "inner_lr=0.07", "--seed", "4", "-q", "--out", "a").code == 0
    assert command("run", "--config", "a/result.json", "-q", "--out", "b").code == 0
    first, second = results.read(Path("a")).seeds[0], results.read(Path("b")).seeds[0]
    assert (first.config, first.matrix) == (second.config, second.matrix)


def test_the_preset_is_recorded_and_kept_by_a_rerun(command: Callable[..., Any]) -> None:
    tiny = ("run", *WIDE, "--tasks", "1", "--learner", "finetune", "-q")
    assert command(*tiny, "--preset", "paper", "--out", "a").code == 0
    assert command("run", "--config", "a/result.json", "-q", "--out", "b").code == 0
    assert command(*tiny, "--out", "c").code == 0
    assert [results.read(Path(out)).seeds[0].preset for out in "abc"] == ["paper", "paper", "ours"]
    assert [results.read(Path(out)).seeds[0].scenario for out in "abc"] == ["domain"] * 3
    refused = command(*tiny, "--preset", "our", "--out", "d")
    assert (refused.code, refused.err) == (2, "scale-cl: error: unknown preset 'our'; did you mean 'ours'?\n")


def test_a_result_that_cannot_be_written_is_one_line_and_leaves_nothing(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(path: Path, obj: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_json", full_disk)
    finished = command("run", "--tasks", "1", "--learner", "finetune", "-q", "--out", "a/b")
    assert (finished.code, finished.out) == (2, "")
    assert finished.err == "scale-cl: error: the note of the run cannot be written to a/b: No space left on device\n"
    assert list(Path().iterdir()) == []


def test_a_run_on_images_of_ones_own_ends_with_the_accuracy_on_each_task(command: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    for number in range(11):
        for label in ("dark", "light"):
            for i in range(5):
                file = Path("images", f"{number}-day", label, f"{i}.png")
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(random.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(file)
    own = ("run", "--stream", "folder:images", "--learner", "finetune", "--set", "run.processes=1")
    finished = command(*own, "--tasks", "2", "--seeds", "2", "--out", "two")
    assert finished.code == 0
    last = [seed.matrix[-1] for seed in results.read(Path("two")).seeds]
    means = [sum(row[task] or 0 for row in last) / 2 for task in range(2)]
    by_task = f"task 0-day: {means[0]:.1f}   task 1-day: {means[1]:.1f}"
    model = "the model is kept in two (it holds no training samples; `scale-cl info two`)"
    assert finished.err.endswith(f"wrote two/result.json\n{by_task}\n{model}\n")
    assert finished.out.count("\n") == 1
    assert "task 0-day" not in command(*own, "--tasks", "2", "--out", "quiet", "-q").err
    assert "task 0-day" not in command(*own, "--out", "many").err, "eleven would be a long line"
