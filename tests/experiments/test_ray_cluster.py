"""Reaching a Ray cluster: what does not answer is an error in bounded time, and shares fit into nodes."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from scale_cl.errors import ConfigError
from scale_cl.experiments.ray_cluster import Cluster, Share


@pytest.mark.parametrize(
    ("share", "node", "times"),
    [
        (Share(1), Share(2), 2),
        (Share(3), Share(8, 1), 2),
        (Share(3), Share(2), 0),
        (Share(1, 0.5), Share(8, 2), 4),
        (Share(1, 0.1), Share(64, 1), 10),
        (Share(2, 0.5), Share(3, 2), 1),
        (Share(1, 0.5), Share(8), 0),
    ],
)
def test_as_many_runs_fit_into_a_node_as_it_has_cpus_and_gpus_for(share: Share, node: Share, times: int) -> None:
    assert share.times_in(node) == times


def test_a_share_is_said_in_words() -> None:
    assert [str(s) for s in (Share(1), Share(2, 0.5), Share(4, 1))] == [
        "1 CPU",
        "2 CPUs and 0.5 GPUs",
        "4 CPUs and 1 GPU",
    ]


def test_a_port_where_nobody_listens_is_one_line(command: Callable[..., Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    finished = command("reproduce", "main", "--engine", "ray", "--address", f"127.0.0.1:{port}")
    assert time.monotonic() - began < 60  # Ray itself would wait for minutes
    assert (finished.code, finished.out) == (2, "")
    line = f"scale-cl: error: --address 127.0.0.1:{port} does not answer: Connection refused; is Ray running there?\n"
    assert finished.err == line


def test_a_port_where_somebody_else_listens_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with (
            Cluster(f"127.0.0.1:{port}", patience=1.0) as cluster,
            pytest.raises(ConfigError, match=f"--address 127.0.0.1:{port} does not answer as Ray does, in 1 s"),
        ):
            cluster.start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--address", "auto"], "--address is for --engine ray, not for local"),
        (["--retries", "2"], "--retries is for --engine ray, not for local"),
        (["--engine", "ray", "--address", "ray://h:10001"], "--address: 'ray://h:10001' is not HOST:PORT of a cluster"),
        (["--engine", "ray", "--address", "6379"], "--address: '6379' is not HOST:PORT of a cluster"),
        (["--engine", "ray", "--device", "cuda:0"], "--device cuda:0: which GPU a run gets is up to Ray; use cuda"),
    ],
)
def test_wrong_options_are_one_line(command: Callable[..., Any], arguments: list[str], message: str) -> None:
    finished = command("reproduce", "main", "--streams", "digits", *arguments)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"scale-cl: error: {message}")
    assert finished.err.count("\n") == 1


def test_without_the_extra_one_line_says_how_to_get_it(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    finished = command("reproduce", "main", "--streams", "digits", "--engine", "ray")
    assert (finished.code, finished.out) == (2, "")
    assert finished.err == "scale-cl: error: the engine ray needs the extra: pip install 'scale-cl[ray]'\n"


def test_a_plan_starts_no_ray(command: Callable[..., Any]) -> None:
    finished = command("reproduce", "main", "--streams", "digits", "--engine", "ray", "--device", "cpu", "--dry-run")
    assert finished.code == 0
    assert " to do, up to " in finished.out
    assert not sys.modules["ray"].is_initialized()
