"""SCALE once more in plain torch, to hold the package against: it shares the stream's data with it, and nothing else.

`python benchmarks/plain_scale.py --stream scifar100 --seeds 5 --out FILE.json`. Written from the equations alone, with
torch's own layers, losses and optimisers, one kernel at a time, so it is slow: for image streams of equal heads only.
Weights and draws differ from the package's at the same seed; what arrives, and in which order, does not.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl import metrics, streams

BATCH, SLOTS, REPLAY = 10, 50, 64
INNER, OUTER, ADVERSARIAL = 0.01, 0.1, 0.001  # learning rates
LAMBDA1, LAMBDA2, LAMBDA3 = 1.0, 1.0, 0.03


class Block(nn.Module):
    """Two convolutions and a shortcut, not activated."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """Their sum."""
        y: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut: Tensor = self.shortcut(x)
        return y + shortcut


class Base(nn.Module):
    """The trunk g, and f's heads for all tasks side by side."""

    def __init__(self, tasks: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 20, 3, 1, 1, bias=False), nn.BatchNorm2d(20), nn.ReLU())
        sizes = [
            (20, 20, 1),
            (20, 20, 1),
            (20, 40, 2),
            (40, 40, 1),
            (40, 80, 2),
            (80, 80, 1),
            (80, 160, 2),
            (160, 160, 1),
        ]
        self.stages = nn.Sequential(nn.MaxPool2d(3, 2, 1), *(Block(*size) for size in sizes))
        self.heads, self.tasks = nn.Linear(160, tasks * classes), tasks

    def trunk(self, x: Tensor) -> Tensor:
        """The last stage of raw images."""
        h: Tensor = self.stages(self.first(x.float() / 255))
        return h

    def logits(self, features: Tensor, task: Tensor) -> Tensor:
        """Of each sample's own head."""
        every: Tensor = self.heads(features).view(len(features), self.tasks, -1)
        return every[torch.arange(len(features), device=task.device), task]


class Generator(nn.Module):
    """FiLM of the last stage, from an embedding of the task."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.embedding, self.film = nn.Embedding(tasks, 64), nn.Linear(64, 320)

    def forward(self, h: Tensor, task: Tensor) -> Tensor:
        """The last stage, made task-specific."""
        scale, shift = self.film(self.embedding(task)).chunk(2, 1)
        scale = scale / scale.norm(dim=1, keepdim=True).detach()
        shift = shift / shift.norm(dim=1, keepdim=True).detach()
        return F.relu(scale[:, :, None, None] * h + shift[:, :, None, None]) + F.relu(h)


class Plain:
    """One seed of SCALE."""

    def __init__(self, stream: streams.Stream, seed: int, device: torch.device, *, measure: bool = False) -> None:
        torch.manual_seed(seed)
        self.measure = measure  # batch norm's statistics, when a task ends
        tasks, classes = len(stream), len(stream.tasks[0].classes)
        self.base, self.generator = Base(tasks, classes).to(device), Generator(tasks).to(device)
        self.discriminator = nn.Sequential(nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, tasks + 1)).to(device)
        self.inner = torch.optim.SGD(self.base.parameters(), INNER)
        self.outer = torch.optim.SGD(self.generator.parameters(), OUTER)
        self.game = torch.optim.SGD(self.discriminator.parameters(), ADVERSARIAL)
        rows = tasks * SLOTS
        self.x = torch.zeros(rows, *stream.spec.shape, dtype=torch.uint8, device=device)
        self.y = torch.zeros(rows, dtype=torch.int64, device=device)
        self.h, self.d = torch.zeros(rows, classes, device=device), torch.zeros(rows, tasks + 1, device=device)
        self.task, self.device = torch.arange(rows, device=device) // SLOTS, device

    def forward(self, x: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
        """Common features, and logits of each sample's own head."""
        h = self.base.trunk(x)
        return F.relu(h).mean((2, 3)), self.base.logits(self.generator(h, task).mean((2, 3)), task)

    def joined(self, x: Tensor, y: Tensor, now: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The batch and a fresh draw of the finished tasks: samples, labels, tasks, and the rows drawn."""
        rows = torch.randperm(now * SLOTS, device=self.device)[:REPLAY]
        task = torch.full((len(y),), now, device=self.device)
        return torch.cat([x, self.x[rows]]), torch.cat([y, self.y[rows]]), torch.cat([task, self.task[rows]]), rows

    def loss(self, x: Tensor, y: Tensor, task: Tensor, rows: Tensor, now: int) -> tuple[Tensor, Tensor]:
        """Equation 3, and the features it saw."""
        n = len(y) - len(rows)
        features, o = self.forward(x, task)
        loss = F.cross_entropy(o[:n], y[:n])
        if len(rows):
            loss = loss + LAMBDA1 * F.mse_loss(o[n:], self.h[rows]) + LAMBDA2 * F.cross_entropy(o[n:], y[n:])
        return loss - LAMBDA3 * F.cross_entropy(self.discriminator(features)[:, : now + 2], task + 1), features

    def observe(self, x: Tensor, y: Tensor, now: int) -> None:
        """Inner, outer and discriminator step on one batch of task `now`."""
        descend(self.loss(*self.joined(x, y, now), now)[0], self.inner)
        samples, labels, task, rows = self.joined(x, y, now)
        loss, features = self.loss(samples, labels, task, rows, now)
        descend(loss, self.outer)
        features, n, m = features.detach(), len(y), len(labels)
        guess = self.discriminator(torch.cat([features, torch.randn_like(features)]))[:, : now + 2]
        loss = F.cross_entropy(guess, torch.cat([task + 1, torch.zeros_like(task)]))
        if len(rows):
            exists = torch.arange(now + 2, device=self.device) < task[n:, None] + 2  # columns when d was stored
            distance = ((guess[n:m] - self.d[rows][:, : now + 2]) ** 2 * exists).sum(1) / exists.sum(1)
            loss = loss + LAMBDA1 * distance.mean() + LAMBDA2 * F.cross_entropy(guess[n:m], task[n:] + 1)
        descend(loss, self.game)

    def learn(self, x: Tensor, y: Tensor, now: int) -> None:
        """One pass over task `now`; the memory keeps its last samples, and their logits when it ends."""
        own = slice(now * SLOTS, (now + 1) * SLOTS)
        self.base.train()
        for start in range(0, len(y), BATCH):
            self.observe(x[start : start + BATCH], y[start : start + BATCH], now)
            at = now * SLOTS + torch.arange(start, min(start + BATCH, len(y)), device=self.device) % SLOTS
            self.x[at], self.y[at] = x[start : start + BATCH], y[start : start + BATCH]
        if self.measure:
            self.measure_norms((now + 1) * SLOTS)
        self.base.eval()
        with torch.no_grad():
            features, self.h[own] = self.forward(self.x[own], self.task[own])
            self.d[own] = self.discriminator(features)

    @torch.no_grad()
    def measure_norms(self, stored: int) -> None:
        """Running statistics anew, as means over random parts of the memory."""
        norms = [module for module in self.base.modules() if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean
        for rows in torch.randperm(stored, device=self.device).chunk(-(-stored // 64)):
            self.forward(self.x[rows], self.task[rows])
        for norm in norms:
            norm.momentum = 0.1

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor, task: int) -> float:
        """On the test samples of a task, in percent."""
        right = 0
        for part, labels in zip(x.split(500), y.split(500), strict=True):
            o = self.forward(part, torch.full((len(part),), task, device=self.device))[1]
            right += int((o.argmax(1) == labels).sum())
        return 100 * right / len(y)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step along a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def trained(
    name: str, seed: int, device: torch.device, tasks: int | None, *, measure: bool
) -> list[list[float | None]]:
    """The matrix of accuracies of one seed."""
    stream = streams.load(name, seed=seed, tasks=tasks).to(device)
    model = Plain(stream, seed, device, measure=measure)
    matrix: list[list[float | None]] = [[None] * len(stream) for _ in stream.tasks]
    began = time.perf_counter()
    for now in range(len(stream)):
        model.learn(*stream.train_data(now), now)
        matrix[now][: now + 1] = [model.accuracy(*stream.test_data(task), task) for task in range(now + 1)]
        accuracy = metrics.acc([row[: now + 1] for row in matrix[: now + 1]])
        print(f"seed {seed}, task {now + 1}, ACC {accuracy:.2f}, {time.perf_counter() - began:.0f} s", flush=True)
    return matrix


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", default="scifar100")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--norm-on-memory", action="store_true", help="measure batch norm's statistics when a task ends"
    )
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    seeds = list(range(asked.seed, asked.seed + asked.seeds))
    device, measure = torch.device(asked.device), asked.norm_on_memory
    matrices = [trained(asked.stream, seed, device, asked.tasks, measure=measure) for seed in seeds]
    found = {"stream": asked.stream, "seeds": seeds, "acc": [metrics.acc(m) for m in matrices]}
    found |= {"fm": [metrics.fm(m) for m in matrices], "matrix": matrices}
    asked.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
