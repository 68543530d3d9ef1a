"""The engine of a Ray cluster, with a real cluster, real workers and real deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scale_cl import results, training
from scale_cl.experiments.ray_cluster import Cluster, Share
from scale_cl.experiments.ray_engine import RayEngine, _Attempt
from scale_cl.training import checkpoint
from tests.experiments.processes import waited_for
from tests.experiments.ray_here import Marked, joined, ray_here
from tests.experiments.small_runs import config, mark_checkpoint, planned
from tests.experiments.small_runs import marked as with_mark
from tests.experiments.test_local import Notes

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks processes up in /proc")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ray_here() as found:
        yield found


@pytest.fixture
def marked() -> Iterator[Marked]:
    made = Marked()
    try:
        yield made
        waited_for(lambda: not made.processes())
    finally:
        made.end()


# Runs that are to be caught at work are of MER: three steps a batch take long enough for that.


def reproduce(*more: str, streams: str = "digits", tasks: int = 2, seeds: str = "2") -> list[str]:
    words = ["reproduce", "main", "--streams", streams, "--tasks", str(tasks), "--seeds", seeds, "--device", "cpu"]
    return [*words, "--engine", "ray", *more]


def matrices(directory: Path) -> dict[str, Any]:
    paths = sorted(directory.rglob("result.json"))
    return {str(p.parent.relative_to(directory)): [seed.matrix for seed in results.read(p).seeds] for p in paths}


def expected(learner: str, seed: int, tasks: int) -> Any:
    return [training.run(config(learner, seed=seed, tasks=tasks)).seeds[0].matrix]


def holder(folder: Path, *, other_than: int = 0) -> int:
    """The process that is at work in the folder of a run, as soon as there is one."""

    def found() -> int:
        lock = folder / ".lock"
        pid = int(lock.read_text().strip() or 0) if lock.exists() else 0
        return 0 if pid == other_than else pid

    pid = waited_for(found, 120)
    assert isinstance(pid, int)
    return pid


def test_runs_of_the_cluster_have_the_matrices_of_runs_here_and_make_a_report(
    command: Callable[..., Any], address: str, marked: Marked
) -> None:
    asked = reproduce("--learners", "er,scale", "--address", address, "--out", "cluster", seeds="1")
    process = marked.start(*asked, cwd=Path(), log=Path("log"))
    here = {f"main/digits-2-tasks/{learner}/seed-0": expected(learner, 0, 2) for learner in ("er", "scale")}
    assert process.wait() == 0, Path("log").read_text()
    assert matrices(Path("cluster")) == here
    told = Path("log").read_text()
    assert "2 runs to do, up to 2 at once" in told
    assert "[2/2] " in told
    assert command("report", "cluster", "-q").code == 0
    assert "| scale " in Path("cluster/tables.md").read_text()
    assert Path("cluster/report.html").read_text().count("<svg") > 2


def test_a_run_whose_worker_dies_begins_again_and_one_that_fails_does_not(
    tmp_path: Path, address: str, marked: Marked
) -> None:
    out, log = tmp_path / "o", tmp_path / "log"
    asked = reproduce(
        "--learners", "mer", "--address", address, "--slots", "1", "--retries", "1", streams="digits,pmnist", tasks=4
    )
    process = marked.start(*asked, "--data", str(tmp_path / "none"), "--out", str(out), cwd=tmp_path, log=log)
    folders = [out / "main" / "digits-4-tasks" / "mer" / f"seed-{seed}" for seed in (0, 1)]
    os.kill(holder(folders[0]), signal.SIGKILL)
    first = holder(folders[1])
    os.kill(first, signal.SIGKILL)
    os.kill(holder(folders[1], other_than=first), signal.SIGKILL)
    assert process.wait() == 1
    told = log.read_text()
    assert matrices(out) == {"main/digits-4-tasks/mer/seed-0": expected("mer", 0, 4)}, told
    assert told.count("mer on digits, seed 0: begins again; attempt 1 of 2: ") == 1
    assert told.count("mer on digits, seed 1: begins again; attempt 1 of 2: ") == 1
    assert "mer on pmnist, seed 0: begins again" not in told
    assert "3 runs failed:" in told
    assert "  mer on digits, seed 1: the worker of this run died 2 times; the last time: " in told
    assert "  mer on pmnist, seed 0: " in told
    assert told.count("    scale-cl run --stream ") + told.count(f"    scale-cl resume {folders[1]}") == 3
    assert "Traceback" not in told
    left = [path for path in out.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert left in ([], [folders[1] / ".lock"])  # the lock file of the dead locks nothing


def test_killed_with_the_ray_that_it_started_and_begun_again_it_continues_in_the_middle_of_a_run(
    tmp_path: Path, address: str, marked: Marked
) -> None:
    asked = reproduce("--learners", "finetune,mer", "--slots", "1", "--out", "o", tasks=6, seeds="1")
    process = marked.start(*asked, cwd=tmp_path, log=tmp_path / "first")
    folder = tmp_path / "o/main/digits-6-tasks/mer/seed-0"
    waited_for(lambda: checkpoint.found(folder / "checkpoints" / "seed-0"), 120)
    assert len(marked.processes()) > 3  # the command, Ray's own, and workers
    process.kill()
    process.wait()
    waited_for(lambda: not marked.processes())
    assert list(matrices(tmp_path / "o")) == ["main/digits-6-tasks/finetune/seed-0"]
    mark_checkpoint(folder)
    again = marked.start(*asked, "--address", address, cwd=tmp_path, log=tmp_path / "second")
    assert again.wait() == 0, (tmp_path / "second").read_text()
    made = {f"main/digits-6-tasks/{name}/seed-0": expected(name, 0, 6) for name in ("finetune", "mer")}
    made["main/digits-6-tasks/mer/seed-0"] = [with_mark(made["main/digits-6-tasks/mer/seed-0"][0])]
    assert matrices(tmp_path / "o") == made
    assert not [path for path in (tmp_path / "o").rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize("started_here", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_an_interruption_ends_every_run_and_is_told(
    tmp_path: Path, address: str, marked: Marked, started_here: bool
) -> None:
    where = () if started_here else ("--address", address)
    asked = reproduce("--learners", "mer", "--out", "o", *where, tasks=10, seeds="1")
    process = marked.start(*asked, cwd=tmp_path, log=tmp_path / "log")
    worker = holder(tmp_path / "o/main/digits-10-tasks/mer/seed-0")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(60) == 130
    told = (tmp_path / "log").read_text()
    assert told.endswith("stopped; finished runs are kept, and the same command continues\n")
    assert "Traceback" not in told
    assert not marked.processes()
    waited_for(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.soak
def test_a_run_whose_node_dies_goes_to_another_one(command: Callable[..., Any], address: str, marked: Marked) -> None:
    asked = reproduce("--learners", "er", "--threads", "3", seeds="1", tasks=4)  # more than the first node has
    assert command(*(word for word in asked if word not in ("--engine", "ray")), "--out", "here").code == 0
    where = ("--address", address, "--out", "cluster")
    none_fits = command(*asked, *where)
    assert none_fits.code == 2
    assert "no node of the Ray cluster has 3 CPUs for a run; the largest: 2 CPUs" in none_fits.err
    with joined(address, cpus=3) as node:
        process = marked.start(*asked, *where, cwd=Path(), log=Path("log"))
        holder(Path("cluster/main/digits-4-tasks/er/seed-0"))
        node.end()
    with joined(address, cpus=3):
        assert process.wait() == 0, Path("log").read_text()
    assert "begins again; attempt 1 of 4: " in Path("log").read_text()
    assert matrices(Path("cluster")) == matrices(Path("here"))


@pytest.mark.soak
def test_the_main_table_of_digits_is_the_same_from_both_engines(
    command: Callable[..., Any], address: str, marked: Marked
) -> None:
    asked = ["reproduce", "main", "--streams", "digits", "--seeds", "2"]
    local = command(*asked, "--out", "here")
    process = marked.start(
        *asked, "--engine", "ray", "--address", address, "--out", "cluster", cwd=Path(), log=Path("log")
    )
    assert process.wait() == 0, Path("log").read_text()
    assert local.code == 0
    assert len(matrices(Path("here"))) == 12
    assert matrices(Path("cluster")) == matrices(Path("here"))
    texts = []
    for out in ("here", "cluster"):
        assert command("report", out, "-q").code == 0
        texts.append(Path(out, "tables.md").read_text().partition("Execution times")[0].replace(out, "OUT"))
    assert texts[0] == texts[1]
    assert "| scale " in texts[0]


def test_what_a_worker_says_is_not_believed_without_a_result(tmp_path: Path) -> None:
    notes, run = Notes(), planned(tmp_path, config())
    engine = RayEngine(Cluster("auto"))
    engine._storage_patience = 0.0
    liar = SimpleNamespace(get=lambda task: {"node": "n7", "error": None})
    assert engine._ended(liar, None, _Attempt(run, Share(1)), notes) is None
    error = notes.outcomes[run.folder].error
    assert error is not None
    assert error.startswith("the worker on n7 has done it, but ")
    assert error.endswith("--out must be on storage that all nodes see")


def test_nobody_imports_ray_who_has_not_asked_for_it() -> None:
    code = "import sys, scale_cl.experiments.ray_engine, scale_cl.cli.reproduce; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
