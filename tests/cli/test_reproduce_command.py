"""`scale-cl reproduce`, for real, on a few tasks of digits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results, training
from scale_cl.experiments.definitions import EXPERIMENTS
from scale_cl.training import checkpoint
from scale_cl.training.config import resolve
from tests.experiments.processes import children, waited_for
from tests.experiments.small_runs import mark_checkpoint, marked

DIGITS = ("--streams", "digits", "--tasks", "2", "--device", "cpu")
WIDE = ("--set", "run.batch_size=50")  # 20 steps per task


def matrices(directory: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(directory.rglob("result.json")):
        found[str(path.parent.relative_to(directory))] = [seed.matrix for seed in results.read(path).seeds]
    return found


def expected(learner: str, seed: int) -> Any:
    options = {"run.seed": seed, "stream.tasks": 2, "run.device": "cpu", "run.batch_size": 50}
    return [training.run(resolve(stream="digits", learner=learner, options=options)).seeds[0].matrix]


def test_a_table_is_made_once_and_then_found(command: Callable[..., Any]) -> None:
    small = (*DIGITS, *WIDE, "--learners", "er,finetune", "--seeds", "2", "--slots", "1")
    asked = ("reproduce", "main", *small, "--out", "o")
    finished = command(*asked)
    assert finished.code == 0
    assert "4 runs to do" in finished.err
    assert "[4/4] " in finished.err
    head, *rows = finished.out.splitlines()[1:]
    assert head.split() == ["stream", "learner", "ACC", "FM", "seconds", "seeds"]
    assert [row.split()[:2] for row in rows] == [["digits", "er"], ["digits", "finetune"]]
    made = matrices(Path("o"))
    assert made == {f"main/digits-2-tasks/{n}/seed-{s}": expected(n, s) for n in ("er", "finetune") for s in (0, 1)}
    again = command(*asked)
    assert (again.code, again.out) == (0, finished.out)
    assert "0 runs to do" in again.err
    assert "4 seeds done already" in again.err
    more = command(*asked, "--dry-run", "--seeds", "0,7")
    assert "2 runs to do" in more.out


def test_killed_and_started_again_it_continues_in_the_middle_of_a_run(command: Callable[..., Any]) -> None:
    learners = ("--learners", "finetune,mer", "--seeds", "1", "--slots", "1")
    asked = ("reproduce", "main", *DIGITS, "--tasks", "3", *learners, "--out", "o")
    process = subprocess.Popen(
        [sys.executable, "-m", "scale_cl", *asked], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = Path("o/main/digits-3-tasks/mer/seed-0")
    waited_for(lambda: checkpoint.found(folder / "checkpoints" / "seed-0"))
    (worker,) = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    waited_for(lambda: not Path(f"/proc/{worker}/cmdline").exists())  # it ends when nobody asks for its runs any more
    done = matrices(Path("o"))
    assert list(done) == ["main/digits-3-tasks/finetune/seed-0"]
    mark_checkpoint(folder)
    assert command(*asked).code == 0
    options = {"stream.tasks": 3, "run.device": "cpu"}
    for name in ("finetune", "mer"):
        (straight,) = training.run(resolve(stream="digits", learner=name, options=options)).seeds
        done[f"main/digits-3-tasks/{name}/seed-0"] = [marked(straight.matrix) if name == "mer" else straight.matrix]
    assert matrices(Path("o")) == done
    assert sorted(path.name for path in folder.iterdir()) == ["result.json", "seeds"]
    assert not [path for path in Path("o").rglob("*") if path.name.startswith(".")]


def test_a_failure_stops_nobody_and_is_told_with_the_command_that_repeats_it(command: Callable[..., Any]) -> None:
    finished = command(
        *("reproduce", "main", "--streams", "pmnist,digits", "--learners", "finetune", "--seeds", "1", "--tasks", "1"),
        *("--out", "o", "--device", "cpu", "--slots", "1"),
    )
    assert finished.code == 1
    assert list(matrices(Path("o"))) == ["main/digits-1-tasks/finetune/seed-0"]
    *_, head, told, repeat = finished.err.splitlines()
    assert head == "1 run failed:"
    assert told.startswith("  finetune on pmnist, seed 0: ")
    assert "scale-cl data get" in told or "MNIST" in told or "mnist" in told
    assert repeat.strip().startswith("scale-cl run --stream pmnist --learner finetune ")
    assert "Traceback" not in finished.err
    row = next(line for line in finished.out.splitlines() if line.startswith("pmnist"))
    assert row.split() == ["pmnist", "finetune", "-", "-", "-", "0", "of", "1"]
    repeated = command(*repeat.split()[1:])
    assert repeated.code == 2
    assert told.partition(": ")[2] in repeated.err


def test_search_writes_a_config_that_run_takes(command: Callable[..., Any]) -> None:
    asked = ("reproduce", "search", *DIGITS, *WIDE, "--learners", "finetune", "--slots", "1", "--out", "o")
    finished = command(*asked, "--grid", "lr=0.0001,0.1")
    assert finished.code == 0
    assert "best on digits, 2 of 2 points: ACC " in finished.out
    more = command(*asked, "--grid", "lr=0.0001,0.1,0.2", "--no-run")
    assert more.code == 0
    assert "best on digits, 2 of 3 points: ACC " in more.out
    assert len(list(Path("o").rglob("result.json"))) == 2
    assert json.loads(Path("o/search/digits-finetune.json").read_text())["best"] == {"lr": 0.1}
    (found,) = [results.read(p) for p in Path("o").rglob("*lr=0.1/seed-0/result.json")]
    assert found.seeds[0].config["stream"]["part"] == "search"
    assert command("run", "--config", "o/search/digits-finetune.yaml", "--tasks", "1", "-q", "--out", "best").code == 0
    config = results.read(Path("best")).seeds[0].config
    assert (config["learner"]["lr"], config["stream"]["part"]) == (0.1, "continual")


def test_a_matched_comparison_takes_what_search_found(command: Callable[..., Any]) -> None:
    small = ("--streams", "split-digits", "--tasks", "2", "--device", "cpu", *WIDE, "--slots", "1", "--out", "o")
    Path("o/search").mkdir(parents=True)
    Path("o/search/split-digits-er.yaml").write_text("learner: {name: er, lr: 0.07, memory_policy: ring}\n")
    asked = ("reproduce", "matched", *small, "--learners", "er,scale", "--seeds", "200,")
    plan = command(*asked, "--dry-run").out.splitlines()
    assert plan[-3] == "settings from o/search/split-digits-er.yaml"
    assert "on split-digits for scale: preset settings there" in plan[-2]
    finished = command(*asked)
    assert finished.code == 0
    rows = [line.split() for line in finished.out.splitlines() if line.startswith("split-digits")]
    assert [(row[1], row[-1]) for row in rows] == [("er", "3"), ("scale", "3")]  # three class orders
    made = [results.read(path).seeds[0].config for path in sorted(Path("o/matched").rglob("er/*/result.json"))]
    assert [config["stream"]["class_order"] for config in made] == [3, 4, 5]
    assert {(config["learner"]["lr"], config["learner"]["memory_policy"]) for config in made} == {(0.07, "reservoir")}
    er, scale = json.loads(Path("o/matched/split-digits-2-tasks.json").read_text())["rows"]
    assert (er["cost"]["forward"], er["cost"]["backward"]) == (180, 180)
    assert len(er["acc_difference"]["difference"]["values"]) == 3
    assert scale["cost"]["logits"] > 0
    assert Path("o/matched/split-digits-2-tasks.md").read_text().startswith("# split-digits-2-tasks\n")


def test_families_are_compared_by_their_sizes(command: Callable[..., Any]) -> None:
    small = ("--streams", "split-digits", "--tasks", "2", "--device", "cpu", *WIDE, "--slots", "1", "--out", "o")
    finished = command("reproduce", "families", *small, "--learners", "er,independent", "--seeds", "1")
    assert finished.code == 0
    heading, *rows = [line.split("  ") for line in finished.out.splitlines() if line.startswith(("stream", "split-"))]
    assert [word.strip() for word in heading if word][-4:] == ["parameters", "per task", "bytes kept", "seeds"]
    er, independent = [[word.strip() for word in row if word] for row in rows]
    assert (er[1], independent[1]) == ("er", "independent")
    assert er[5] == independent[5] == independent[6].removeprefix("+"), "one network more per task"
    found = json.loads(Path("o/families/split-digits-2-tasks.json").read_text())["rows"]
    assert [f"{row['size']['bytes']:,}" for row in found] == [er[7], independent[7]]
    assert "| Parameters | Per task | KiB | Seconds |" in Path("o/families/split-digits-2-tasks.md").read_text()


def test_claims_are_measured_alone(command: Callable[..., Any]) -> None:
    finished = command("reproduce", "claims", *DIGITS, *WIDE, "--out", "o")
    assert finished.code == 0
    assert "digits: the adversary takes " in finished.out
    assert [results.read(path).environment["alone"] for path in Path("o").rglob("result.json")] == 3 * [True]
    content = json.loads(Path("o/claims/digits.json").read_text())
    assert {row["learner"]: row["growth"] for row in content["parameters"]}["scale"] > 0
    assert set(content["alignment"]) == {"scale", "scale adversary=false", "ScalePlainDiscriminator"}
    ((first, second),) = content["alignment"]["scale"]["own_discriminator_by_seed_and_task"]
    assert first + second > 0
    assert content["alignment"]["scale"]["chance"] == 50
    assert Path("o/claims/digits-features.png").read_bytes().startswith(b"\x89PNG")
    assert content["adversary_cost"]["with"][0] > 0


@pytest.mark.parametrize(
    ("experiment", "said"),
    [("main", "up to 3 at once, about"), ("time", "all one after another"), ("all", "up to 3 at once, 13 one after")],
)
def test_a_plan_says_what_has_nothing_beside_it(command: Callable[..., Any], experiment: str, said: str) -> None:
    asked = ("--streams", "digits", "--tasks", "2", "--seeds", "1", "--slots", "3", "--dry-run", "--out", "o")
    assert said in command("reproduce", experiment, *asked).out.splitlines()[-1]


def test_an_interruption_is_told_and_has_an_exit_code_of_its_own(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scale_cl.experiments.local.LocalEngine.execute", interrupted)
    finished = command("reproduce", "main", *DIGITS, "--out", "o")
    assert (finished.code, finished.out) == (130, "")
    assert finished.err.endswith("stopped; finished runs are kept, and the same command continues\n")


@pytest.mark.parametrize("name", [*EXPERIMENTS, "all"])
def test_a_plan_is_shown_for_every_experiment_and_touches_nothing(command: Callable[..., Any], name: str) -> None:
    finished = command("reproduce", name, *DIGITS, "--seeds", "2", "--dry-run")
    assert (finished.code, finished.err) == (0, "")
    assert finished.out.split()[:8] == ["experiment", "stream", "learner", "seeds", "done", "to", "run", "steps"]
    assert (
        " to do, all one after another" if name in ("steps", "time", "claims") else " to do, up to "
    ) in finished.out
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["everything"], "unknown experiment 'everything'; known are main, families"),
        (["main", "--engine", "rey"], "unknown engine 'rey'"),
        (["main", "--streams", "digit"], "unknown stream 'digit'; did you mean 'digits'?"),
        (["main", "--learners", ","], "--learners ',' names none"),
        (["main", "--seeds", "many"], "--seeds: 'many' is neither a number of seeds"),
        (["main", "--seeds", "0"], "--seeds: '0' is neither a number of seeds"),
        (["main", "--device", "gpu"], "run.device: 'gpu' is not one of auto, cpu"),
        (["main", "--grid", "lr=1"], "--grid is for `reproduce search`, not for 'main'"),
        (["search", "--grid", "iner_lr=1"], "unknown setting 'learner.iner_lr'; did you mean 'inner_lr'?"),
        (["search", "--streams", "digits", "--learners", "finetune"], "`search` has no grid for finetune; give one"),
        (["main", "--out", "file"], "file is a file; --out names a directory"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(
    command: Callable[..., Any], arguments: list[str], message: str
) -> None:
    Path("file").write_text("mine")
    finished = command("reproduce", *arguments)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"scale-cl: error: {message}")
    assert finished.err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["file"]
