"""How long runs will take, roughly: their steps are known, the time of a step is taken from measurements."""

from __future__ import annotations

from scale_cl.streams import catalog as streams
from scale_cl.training.config import Config

# Milliseconds a step of each learner in the middle of a stream, rounded, on one core of an ordinary server:
# on the MLP (PMNIST), on the ResNet with 32x32 images, and with 84x84.
CPU_MILLISECONDS = {
    "scale": (5, 180, 1200),
    "scale-ema": (5, 180, 1200),
    "er": (2.5, 110, 700),
    "mir": (7, 240, 1600),
    "mer": (6, 300, 2000),
    "der": (3, 80, 550),
    "derpp": (4, 120, 800),
    "agem": (3, 80, 550),
    "gem": (12, 450, 3000),
    "ctn": (12, 370, 2500),
    "acl": (10, 90, 600),
    "joint": (1, 30, 200),
    "finetune": (1, 20, 120),
}
_UNKNOWN = (5.0, 200, 1000)
_GPU_SPEEDUP = (0.7, 20, 60)  # of the H200, one seed, against that core; small steps wait for the host


def tasks(config: Config) -> int:
    """Tasks that a config of the catalog's streams asks for."""
    entry = streams.entry(config.stream.name)
    there = {"continual": entry.continual, "search": entry.search, "all": entry.tasks}[config.stream.part]
    return min(config.stream.tasks or there, there)


def steps(config: Config) -> int:
    """Steps of one seed."""
    entry, many = streams.entry(config.stream.name), tasks(config)
    epochs = int(getattr(config.learner, "epochs", 1))
    batch = config.run.batch_size
    if config.learner_name == "joint":  # batches run across tasks
        return epochs * -(-many * entry.train // batch)
    return epochs * many * -(-entry.train // batch)


def seconds(config: Config, *, gpu: bool) -> float:
    """Of one seed, alone on a core or a GPU; for a plan, not for a promise."""
    kind = {"digits": 0, "pmnist": 0, "sminiimagenet": 2}.get(config.stream.name, 1)
    milliseconds = CPU_MILLISECONDS.get(config.learner_name, _UNKNOWN)[kind]
    return steps(config) * milliseconds / 1000 / (_GPU_SPEEDUP[kind] if gpu else 1)
