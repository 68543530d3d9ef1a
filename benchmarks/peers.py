"""ER and DER++ of scale-cl, of Avalanche and of a plain PyTorch script: the time per batch for the same work.

    python benchmarks/peers.py [--rounds 60] [--block 20] [--out FILE.json]

**The work:** an MLP (784-256-256-10, one head), images of 28x28 pixels of noise, batches of 10, replay of 10, SGD,
float32, one thread on the CPU. Three tasks of 150 samples are learned first, so that the memory holds 50 of each; the
fourth is timed. All contestants run in one process and take turns in short blocks (A B C A B C ...). A figure is the
median over the rounds of a block's mean, in CPU time of the thread. Trust ratios before milliseconds.

**scale-cl:** `learner.observe(x, y)` with uint8 images, defaults elsewhere: draw the replay, make floats, update, check
for divergence, write to the memory. `er` makes one update per batch, as Avalanche does; `er-3` makes three, each with a
fresh draw, as in the SCALE paper; `derpp` makes one, with two draws.

**plain:** the same arithmetic without checks and bookkeeping, on uint8 tensors. ER: per update, `randperm` draws 10 of
the 150 stored samples; one forward of batch and replay; the mean cross-entropy of each; `backward`; `torch.optim.SGD`.
After the updates the batch is written to a ring. DER++: two draws of 10, one forward of 30 images, cross-entropy of
the batch, squared distance of the first draw to the stored logits, cross-entropy of the second; the batch and its
logits are written to a reservoir.

**avalanche:** ER is `Replay`, one update on 10 + 10 samples. DER++ is `DER(beta=1)`, one update on 10 + 20 samples, as
many as above, with one draw for both terms. Its datasets hold floats, so it converts no pixels, and it writes its
memory at the end of a task, which is left out. A whole pass over the task is divided by its batches, which includes
the data loaders that collate sample by sample; "avalanche, iterations" leaves the loader of the batch out (for ER, that
of the replay too; DER loads its replay in the iteration).

**floor:** forward, backward and SGD update of the MLP on as many images (20; `derpp` 30) that are floats already: no
memory, no draws.

Bounds that scale-cl holds itself to: `er-3` takes at most 1.25 times the plain script and 1.35 times three floors,
`derpp` 1.5 times the plain script.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from scale_cl import InputSpec, TaskInfo, files
from scale_cl.learners import Derpp, Er
from scale_cl.learners.der import DerppConfig
from scale_cl.learners.er import ErConfig

BATCH, REPLAY, SLOTS, TASKS, CLASSES, RATE = 10, 10, 50, 4, 10, 0.01
STORED = SLOTS * (TASKS - 1)  # samples of finished tasks
BOUNDS = {("er-3", "plain"): 1.25, ("er-3", "three floors"): 1.35, ("derpp", "plain"): 1.5}
Block = Callable[[], float]  # runs some batches; seconds per batch


def mlp() -> nn.Sequential:
    """The network of all contestants."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES)
    )


def images(samples: int) -> tuple[Tensor, Tensor]:
    """Noise: [samples, 1, 28, 28] uint8, and labels."""
    return torch.randint(0, 256, (samples, 1, 28, 28), dtype=torch.uint8), torch.randint(0, CLASSES, (samples,))


class PlainEr:
    """ER as one would write it for oneself."""

    def __init__(self, updates: int) -> None:
        self.model, self.updates, self.seen = mlp(), updates, 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE)
        self.x, self.y = images(SLOTS * TASKS)  # rows of a task lie together; the last task is being learned

    def observe(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        for _ in range(self.updates):
            rows = torch.randperm(STORED)[:REPLAY]
            logits = self.model(torch.cat([x, self.x[rows]]).float() / 255)
            loss = F.cross_entropy(logits[:BATCH], y) + F.cross_entropy(logits[BATCH:], self.y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        rows = STORED + (self.seen + torch.arange(BATCH)) % SLOTS
        self.x[rows], self.y[rows] = x, y
        self.seen += BATCH


class PlainDerpp(PlainEr):
    """DER++ likewise."""

    def __init__(self) -> None:
        super().__init__(updates=1)
        self.logits = torch.randn(SLOTS * TASKS, CLASSES)

    def observe(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        first, second = torch.randperm(STORED)[:REPLAY], torch.randperm(STORED)[:REPLAY]
        logits = self.model(torch.cat([x, self.x[first], self.x[second]]).float() / 255)
        loss = F.cross_entropy(logits[:BATCH], y)
        loss = loss + F.mse_loss(logits[BATCH : BATCH + REPLAY], self.logits[first])
        loss = loss + F.cross_entropy(logits[BATCH + REPLAY :], self.y[second])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        number = self.seen + torch.arange(BATCH)  # of each sample in its task
        slot = torch.where(number < SLOTS, number, (torch.rand(BATCH) * (number + 1)).long())
        kept = slot < SLOTS
        rows = STORED + slot[kept]
        self.x[rows], self.y[rows], self.logits[rows] = x[kept], y[kept], logits.detach()[:BATCH][kept]
        self.seen += BATCH


class Floor:
    """One forward, backward and SGD update on images that are floats already."""

    def __init__(self, samples: int) -> None:
        self.model = mlp()
        self.parameters: list[Tensor] = list(self.model.parameters())
        x, self.y = images(samples)
        self.x = x.float() / 255

    def observe(self, x: Tensor, y: Tensor) -> None:
        """The batch is not looked at."""
        loss = F.cross_entropy(self.model(self.x), self.y)
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            torch._foreach_add_(self.parameters, list(gradients), alpha=-1e-6)


def ours(learner: Er | Derpp) -> Er | Derpp:
    """A learner that has learned all tasks but the last, and has begun that."""
    for task in range(TASKS):
        learner.begin_task(TaskInfo(f"task-{task}", classes=CLASSES))
        if task < TASKS - 1:
            for _ in range(15):
                learner.observe(*images(BATCH))
            learner.end_task()
    return learner


def blocks_of(observe: Callable[[Tensor, Tensor], object], batches: int) -> Block:
    """Blocks of `observe` over fresh batches."""
    pool = cycle([images(BATCH) for _ in range(50)])

    def block() -> float:
        seconds = 0.0
        for _ in range(batches):
            x, y = next(pool)
            began = time.thread_time()
            observe(x, y)
            seconds += time.thread_time() - began
        return seconds / batches

    return block


class Stopwatch:
    """A plugin of Avalanche that times the pass over an experience, and its iterations alone."""

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """The pass begins, with its data loader."""
        self.passed, self.iterating, self.began = 0.0, 0.0, time.thread_time()

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """The batch is loaded."""
        self.iteration_began = time.thread_time()

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """The batch is learned."""
        self.iterating += time.thread_time() - self.iteration_began

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """The pass ends."""
        self.passed = time.thread_time() - self.began


class Targeted(Dataset[tuple[Tensor, int]]):
    """Float images with the `targets` that Avalanche asks for."""

    def __init__(self, samples: int) -> None:
        pixels, labels = images(samples)
        self.x, self.targets = pixels.float() / 255, labels.tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image and its label."""
        return self.x[index], self.targets[index]


def of_avalanche(kind: str, batches: int) -> tuple[Block, Block]:
    """Blocks of an Avalanche strategy: a whole pass, and the iterations of the same pass."""
    from avalanche.benchmarks import benchmark_from_datasets, task_incremental_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training import DER, Replay
    from avalanche.training.plugins import EvaluationPlugin

    sizes = [15] * (TASKS - 1) + [batches]
    datasets = [as_classification_dataset(Targeted(BATCH * n)) for n in sizes]
    benchmark = task_incremental_benchmark(benchmark_from_datasets(train=datasets), reset_task_labels=True)
    watch, model = Stopwatch(), mlp()
    common: dict[str, Any] = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), RATE)}
    common |= {"mem_size": STORED, "train_mb_size": BATCH, "plugins": [watch], "evaluator": EvaluationPlugin()}
    if kind == "er":
        strategy: Any = Replay(criterion=nn.CrossEntropyLoss(), **common)
    else:
        strategy = DER(alpha=1.0, beta=1.0, batch_size_mem=2 * REPLAY, **common)
    *earlier, last = benchmark.train_stream
    for experience in earlier:
        strategy.train(experience)
    for owner in (strategy, *strategy.plugins):  # each round is the fourth task: nothing is added to the memory
        if hasattr(owner, "storage_policy"):
            owner.storage_policy.update = lambda *_, **__: None

    def whole() -> float:
        strategy.train(last)
        return watch.passed / batches

    return whole, lambda: watch.iterating / batches


def declared_names() -> torch.library.Library:
    """Lets Avalanche import torchvision where its compiled library does not fit this torch: two names are enough."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        sys.exit("Avalanche is not there: pip install 'scale-cl[avalanche]'")
    names = torch.library.Library("torchvision", "FRAGMENT")
    try:
        for library in Path(found.origin).parent.glob("_C.*"):
            torch.ops.load_library(library)
    except OSError:
        for operator in ("nms", "qnms"):
            names.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return names  # they exist as long as this does


def measured(rounds: int, batches: int) -> dict[str, dict[str, float]]:
    """Milliseconds per batch of every contestant, by kind of work."""
    spec = InputSpec(shape=(1, 28, 28), pixel_max=255.0, scenario="domain")
    er = partial(ErConfig, memory=SLOTS, replay=REPLAY, lr=RATE)
    derpp = DerppConfig(memory=SLOTS, replay=REPLAY, lr=RATE, updates=1)
    blocks: dict[tuple[str, str], Block] = {}
    for kind, learner, plain in (
        ("er", Er(spec, er(updates=1)), PlainEr(1)),
        ("er-3", Er(spec, er(updates=3)), PlainEr(3)),
        ("derpp", Derpp(spec, derpp), PlainDerpp()),
    ):
        blocks[kind, "scale-cl"] = blocks_of(ours(learner).observe, batches)
        blocks[kind, "plain"] = blocks_of(plain.observe, batches)
        blocks[kind, "floor"] = blocks_of(Floor(BATCH + REPLAY * (1 + (kind == "derpp"))).observe, batches)
        if kind != "er-3":
            blocks[kind, "avalanche"], blocks[kind, "avalanche, iterations"] = of_avalanche(kind, batches)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in blocks}
    for counted in [False, False] + [True] * rounds:
        for key, block in blocks.items():
            taken = block()
            if counted:
                seconds[key].append(taken)
    found: dict[str, dict[str, float]] = {}
    for (kind, name), each in seconds.items():
        found.setdefault(kind, {})[name] = 1e3 * statistics.median(each)
    found["er-3"]["three floors"] = 3 * found["er-3"]["floor"]
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--block", type=int, default=20, help="batches in a round")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    names = declared_names()
    with contextlib.redirect_stderr(io.StringIO()):  # Avalanche warns of itself in every task
        found = measured(asked.rounds, asked.block)
    del names
    ratios: dict[str, dict[str, float]] = {}
    print(f"{'work':<7} {'contestant':<23} {'ms per batch':>12} {'scale-cl is':>12} {'bound':>6}")
    for kind, each in found.items():
        ratios[kind] = {name: each["scale-cl"] / ms for name, ms in each.items() if name != "scale-cl"}
        for name, ms in each.items():
            ratio = f"{ratios[kind][name]:.2f} x" if name in ratios[kind] else ""
            print(f"{kind:<7} {name:<23} {ms:>12.3f} {ratio:>12} {BOUNDS.get((kind, name), ''):>6}")
    if asked.out is not None:
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        entry = {"ms_per_batch": found, "scale_cl_to": ratios, "rounds": asked.rounds, "block": asked.block}
        entry |= {"versions": versions, "processor": platform.processor() or platform.machine(), "command": sys.argv}
        files.write_text(asked.out, json.dumps(entry, indent=1) + "\n")


if __name__ == "__main__":
    main()
