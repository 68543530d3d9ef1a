"""Where `scale-cl reproduce` has its runs carried out: on this machine, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scale_cl.experiments import Engine


@dataclass(frozen=True)
class Place:
    """Where runs go."""

    engine: Engine
    gpu: bool
    slots: int  # runs that it has room for


@contextlib.contextmanager
def here(device: str, threads: int, data: Path | None) -> Iterator[Place]:
    """This machine."""
    from scale_cl.experiments import local
    from scale_cl.training.machine import choose_device

    gpu = choose_device(device).type == "cuda"
    gpus = _gpus(device) if gpu else []
    engine = local.LocalEngine(root=data, threads=threads, gpus=gpus)
    yield Place(engine, gpu, local.slots(gpus=len(gpus), threads=threads))


@contextlib.contextmanager
def on_ray(
    device: str, threads: int, data: Path | None, address: str | None, gpu_share: float | None, retries: int | None
) -> Iterator[Place]:
    """A Ray cluster; one of this machine alone is started with the first run."""
    from scale_cl.errors import ConfigError
    from scale_cl.experiments import local
    from scale_cl.experiments.ray_cluster import Cluster, imported_ray
    from scale_cl.experiments.ray_engine import GPU_SHARE, RETRIES, RayEngine
    from scale_cl.training.machine import choose_device

    imported_ray()
    if device.startswith("cuda:"):
        raise ConfigError(f"--device {device}: which GPU a run gets is up to Ray; use cuda")
    with Cluster(address, gpus=device != "cpu") as cluster:
        if address is None:
            gpu = choose_device(device).type == "cuda"
        else:
            cluster.start()
            gpu = device == "cuda" or (device == "auto" and any(node.gpus for node in cluster.nodes()))
        share = (gpu_share or GPU_SHARE) if gpu else 0.0
        engine = RayEngine(
            cluster, root=data, threads=threads, gpu_share=share, retries=RETRIES if retries is None else retries
        )
        room = engine.slots() if address else local.slots(gpus=len(_gpus(device)) if gpu else 0, threads=threads)
        yield Place(engine, gpu, room)


def _gpus(device: str) -> list[str]:
    """The GPUs to share, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    if device.startswith("cuda:"):
        return [device.removeprefix("cuda:")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]
