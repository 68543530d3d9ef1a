"""KIERA and ADCN against a plain re-computation with lists of units and clusters; labels that nothing depends on."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev

import pytest
import torch
from torch import Tensor

from scale_cl import train
from scale_cl.errors import CheckpointError, ConfigError, InputError, ScaleClError
from scale_cl.learners import Adcn, AdcnConfig, Batch, Kiera, KieraConfig, Learner
from scale_cl.learners.growing_clusters import Autoencoder
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.hardships import goes_on_after_loading, leaves_the_host_alone
from tests.learners.plain import in_double
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, batch, new
from tests.training.small_streams import few_digits

BOTH = pytest.mark.parametrize("name", ["kiera", "adcn"])
CLASSES = InputSpec((1, 5, 5), 255.0, "class")
C = AdcnConfig(
    backbone="mlp-6-4",
    memory=6,
    lr=0.02,
    momentum=0.8,
    clustering=0.3,
    softness=0.3,
    first_clusters=2,
    max_clusters=5,
    spare_units=2,
    min_units=3,
    drift_window=9,
    distillation=0.5,
)


@dataclass
class Cluster:
    """A centroid and the distances that it has met, the first of which it began with."""

    centroid: Tensor
    met: list[float]


@dataclass
class PlainLayer:
    """An autoencoder whose units and inputs in use are listed."""

    w: Tensor
    b: Tensor
    c: Tensor
    units: list[int]
    velocity: list[Tensor]
    clusters: dict[int, Cluster] = field(default_factory=dict)  # by place
    seeds: int = 0
    inputs: list[Tensor] = field(default_factory=list)  # means of batches
    values: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))  # biases and variances
    lows: list[tuple[float, float] | None] = field(default_factory=lambda: [None, None])

    @classmethod
    def of(cls, layer: Autoencoder) -> PlainLayer:
        w, b, c = (p.detach().clone() for p in (layer.weight, layer.bias, layer.offset))
        units = layer.running_units.nonzero().flatten().tolist()
        return cls(w, b, c, units, [torch.zeros_like(p) for p in (w, b, c)])

    def encode(self, h: Tensor, reads: list[int]) -> Tensor:
        z = torch.zeros(len(h), len(self.b), dtype=torch.float64)
        z[:, self.units] = torch.relu(h[:, reads] @ self.w[self.units][:, reads].T + self.b[self.units])
        return z

    def decode(self, z: Tensor, reads: list[int]) -> Tensor:
        h = torch.zeros(len(z), len(self.c), dtype=torch.float64)
        h[:, reads] = z[:, self.units] @ self.w[self.units][:, reads] + self.c[reads]
        return h

    def evolve(self, h: Tensor, reads: list[int], drawn: Tensor) -> str:
        self.inputs.append(h.mean(0))
        x = torch.zeros_like(h[:1])
        x[0, reads] = torch.stack(self.inputs).mean(0)[reads]
        z = self.encode(x, reads)
        bias = (self.decode(z, reads) - x)[0, reads].square().mean().item()
        variance = max(0.0, (self.decode(z.square(), reads) - x.square())[0, reads].mean().item())
        high, wide = self.rises(0, bias, 1, 0), self.rises(1, variance, 2, 20)
        free = [unit for unit in range(len(self.b)) if unit not in self.units]
        if high and free:
            self.w[free[0]] = 0
            self.w[free[0], reads] = drawn[reads] * math.sqrt(2 / (len(reads) + len(self.units)))
            self.b[free[0]] = 0
            self.units = sorted([*self.units, free[0]])
            for cluster in self.clusters.values():
                cluster.centroid[free[0]] = self.encode(x, reads)[0, free[0]]
            return "gained"
        if wide and len(self.units) > C.min_units:
            dull = min(self.units, key=lambda unit: z[0, unit].item())
            self.units.remove(dull)
            for cluster in self.clusters.values():
                cluster.centroid[dull] = 0
            return "lost"
        return ""

    def rises(self, which: int, value: float, times: float, settled: int) -> bool:
        met = self.values[which]
        met.append(value)
        mean, deviation, low = fmean(met), pstdev(met), self.lows[which]
        if low is None or len(met) < settled:
            low = mean, deviation
        low = min(low[0], mean), min(low[1], deviation)
        high = mean + deviation > low[0] + times * (1.3 * math.exp(-value) + 0.7) * low[1]
        self.lows[which] = None if high else low
        return high

    def take(self, z: Tensor) -> str:
        if self.seeds:
            nearest = min([float((z - own.centroid).norm()) for own in self.clusters.values()], default=1.0)
            self.seeds -= 1
            return self.begin(z, nearest)
        near = min(self.clusters.values(), key=lambda own: float((z - own.centroid).norm()))
        near.centroid += (z - near.centroid) / (len(near.met) + 1)
        d = float((z - near.centroid).norm())
        near.met.append(d)
        return self.begin(z, d) if d > fmean(near.met) + (2 * math.exp(-d) + 2) * pstdev(near.met) else ""

    def begin(self, z: Tensor, nearest: float) -> str:
        sizes = [len(self.clusters[k].met) if k in self.clusters else 0 for k in range(C.max_clusters)]
        place = sizes.index(min(sizes))
        what = "replaced" if place in self.clusters else "opened"
        self.clusters[place] = Cluster(z.clone(), [nearest])
        return what

    def nearness(self, z: Tensor) -> Tensor:
        far = {k: (z - own.centroid).norm(dim=1) for k, own in self.clusters.items()}
        nearest = torch.stack([*far.values()]).amin(0)
        shares = torch.zeros(len(z), C.max_clusters, dtype=torch.float64)
        for k, d in far.items():
            shares[:, k] = (-d / (C.softness * nearest)).exp()
        return shares / shares.sum(1, keepdim=True)


class Plain:
    """The whole learner."""

    def __init__(self, learner: Adcn) -> None:
        self.layers = [PlainLayer.of(layer) for layer, _ in learner.trunk.in_use()]
        self.previous: list[PlainLayer] | None = None
        self.tasks = 0
        self.events: set[str] = set()

    def in_use(self, layers: list[PlainLayer]) -> list[tuple[PlainLayer, list[int]]]:
        return list(zip(layers, [list(range(25)), *(layer.units for layer in layers)], strict=False))

    def observe(self, x: Tensor, drawn: list[Tensor]) -> None:
        h = x
        total = torch.zeros((), dtype=torch.float64)
        for layer, reads in self.in_use(self.layers):
            self.events.add(layer.evolve(h, reads, drawn.pop(0)))
            for p in (layer.w, layer.b, layer.c):
                p.requires_grad_()
            z = layer.encode(h, reads)
            total = total + sum((layer.decode(z, reads) - h).square().sum(1)) / len(h)
            for one in z if layer.clusters else []:
                squares = [(one - own.centroid).square().sum() for own in layer.clusters.values()]
                total = total + C.clustering * min(squares) / len(h)
            h = z.detach()
        if self.previous is not None:
            total = (total + self.tasks * C.distillation * self.distance(x)) / (1 + self.tasks * C.distillation)
        self.descend(total)
        h = x
        for layer, reads in self.in_use(self.layers):
            h = layer.encode(h, reads)
            self.events |= {layer.take(one) for one in h}

    def distance(self, h: Tensor) -> Tensor:
        assert self.previous is not None
        found = torch.zeros((), dtype=torch.float64)
        pairs = zip(self.in_use(self.layers), self.in_use(self.previous), strict=False)
        for (layer, reads), (before, read) in pairs:
            z = before.encode(h, read)
            made = layer.decode(layer.encode(h, reads), reads)
            found = found + sum((made - before.decode(z, read)).square().sum(1)) / len(h)
            h = z
        return found

    def descend(self, loss: Tensor) -> None:
        leaves = [(layer, i, p) for layer in self.layers for i, p in enumerate((layer.w, layer.b, layer.c))]
        gradients = torch.autograd.grad(loss, [p for *_, p in leaves])
        for (layer, i, p), g in zip(leaves, gradients, strict=True):
            layer.velocity[i] = C.momentum * layer.velocity[i] + g
            p.requires_grad_(False)
            p -= C.lr * layer.velocity[i]

    def shares(self, x: Tensor) -> list[Tensor]:
        found = []
        for layer, reads in self.in_use(self.layers):
            x = layer.encode(x, reads)
            found.append(layer.nearness(x))
        return found

    def scores(self, x: Tensor, labelled: Tensor, y: Tensor, classes: int) -> Tensor:
        """By the clusters' allegiance to classes, as these labelled samples say, averaged over layers."""
        found = torch.zeros(len(x), classes, dtype=torch.float64)
        for near, known in zip(self.shares(x), self.shares(labelled), strict=True):
            for k in range(C.max_clusters):
                means = [float(known[y == c, k].mean()) if (y == c).any() else 0.0 for c in range(classes)]
                for c in range(classes):
                    found[:, c] += near[:, k] * means[c] / max(sum(means), 1e-300) / len(self.layers)
        return found

    def compare(self, learner: Adcn) -> None:
        for (layer, _), own in zip(learner.trunk.in_use(), self.layers, strict=True):
            for mine, theirs in ((own.w, layer.weight), (own.b, layer.bias), (own.c, layer.offset)):
                torch.testing.assert_close(theirs.detach(), mine, rtol=1e-6, atol=1e-9)
            assert layer.running_units.nonzero().flatten().tolist() == own.units
            for k in range(C.max_clusters):
                count = int(layer.running_clusters[0, k])
                assert count == (len(own.clusters[k].met) if k in own.clusters else 0)
                if count:
                    torch.testing.assert_close(layer.running_centroids[k], own.clusters[k].centroid)
                    assert float(layer.running_clusters[1, k]) == pytest.approx(fmean(own.clusters[k].met))
                    spread = math.sqrt(max(0.0, float(layer.running_clusters[2, k])) / count)
                    assert spread == pytest.approx(pstdev(own.clusters[k].met), abs=1e-7)


def shaded(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples whose brightness changes from batch to batch, and rises after the 25th."""
    x, y = batch(DOMAIN, n, seed=seed)
    return (x * (0.1 + (0.1 if seed < 25 else 0.9) * abs(math.sin(seed)))).to(torch.uint8), y


def recording_draws(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    drawn: list[Tensor] = []
    real = learner.engine.randn

    def randn(like: Tensor) -> Tensor:
        drawn.append(real(like))
        return drawn[-1]

    monkeypatch.setattr(learner.engine, "randn", randn)
    return drawn


def test_every_step_every_growth_and_every_score_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = in_double(Adcn(DOMAIN, C))
    monkeypatch.setattr(learner, "pauses", lambda step: False)
    drawn, plain = recording_draws(learner, monkeypatch), Plain(learner)
    for task in range(3):
        learner.begin_task(TaskInfo(str(task), 3))
        for layer in plain.layers:
            layer.seeds = C.first_clusters
        plain.tasks = task
        for step in range(30):
            if task == 1 and step == 5:  # as drift would
                learner.trunk.deepen()
                learner.engine.owned.look_up()
                new = list(learner.trunk.in_use())[1][0]
                new.running_seeds.fill_(C.first_clusters)
                plain.layers.append(PlainLayer.of(new))
                plain.layers[1].seeds = C.first_clusters
            x, y = shaded(4, 100 * task + step)
            learner.observe(x, y)
            plain.observe(x.flatten(1).double() / 255, drawn)
            plain.compare(learner)
        learner.end_task()
        plain.previous = copy.deepcopy(plain.layers)
        rows = learner.memory.stored
        labelled = learner.memory.x[rows].flatten(1).double() / 255, learner.memory.y[rows]
        x = batch(DOMAIN, 7, seed=task)[0]
        wanted = plain.scores(x.flatten(1).double() / 255, *labelled, 3)
        torch.testing.assert_close(learner.predict(x, str(task)).double(), wanted, rtol=1e-4, atol=1e-6)
    assert plain.events >= {"gained", "lost", "opened", "replaced"}


def test_a_layer_is_added_when_the_mean_input_moves_further_than_hoeffdings_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    for shift, drifts in ((0, False), (20, False), (120, True)):
        learner = Kiera(DOMAIN, KieraConfig(backbone="mlp-6-4", drift_window=5, drift=0.01))
        learner.begin_task(TaskInfo("one", 2))
        seen = []
        for step in range(11):
            x = torch.randint(0, 100, (8, 1, 5, 5), generator=generator, dtype=torch.uint8) + (shift if step > 4 else 0)
            seen.append(x.flatten(1).double() / 255)
            learner.observe(x, torch.zeros(8, dtype=torch.int64))
        before, now = torch.cat(seen[:5]), torch.cat(seen[5:10])
        both = torch.cat([before, now])
        span = (both.amax(0) - both.amin(0)).mean()
        bound = span * math.sqrt((80 - 40) / (2 * 40 * 80) * math.log(1 / 0.01))
        assert bool((before.mean(0) - both.mean(0)).abs().mean() > bound) == drifts
        assert learner.trunk.depth == (2 if drifts else 1)
        assert "velocity.1.weight" in learner.state_dict()["tensors"] or not drifts


def test_kiera_replays_the_candidates_that_the_centroids_cover_least_and_they_open_no_cluster() -> None:
    config = KieraConfig(backbone="mlp-6", memory=20, first_clusters=3, replay=4, candidates=12, max_clusters=50)
    learner = in_double(Kiera(DOMAIN, config))
    for task in ("one", "two"):
        learner.begin_task(TaskInfo(task, 3))
        for step in range(4):
            learner.observe(*shaded(5, step))
    (samples,) = learner.memory.replay_with(learner_batch(learner), 12)
    chosen = learner.chosen(samples)
    assert chosen.parts == (5, 4)
    assert torch.equal(chosen.x[:5], samples.x[:5])
    layer = learner.trunk.layers[0]
    assert isinstance(layer, Autoencoder)
    z = torch.relu(samples.x[5:].flatten(1) @ layer.weight.T + layer.bias) * layer.running_units
    centroids = layer.running_centroids[layer.running_clusters[0] > 0]
    away = (z.unsqueeze(1) - centroids).norm(dim=2).amin(1)
    wanted = sorted(away.tolist(), reverse=True)[:4]
    picked = torch.relu(chosen.x[5:].flatten(1) @ layer.weight.T + layer.bias) * layer.running_units
    torch.testing.assert_close(
        (picked.unsqueeze(1) - centroids).norm(dim=2).amin(1), torch.tensor(wanted, dtype=torch.float64)
    )
    count = int((layer.running_clusters[0] > 0).sum())
    learner.cluster(1e3 + samples.x.flatten(1), 0)  # nothing like it was seen
    assert int((layer.running_clusters[0] > 0).sum()) == count


def learner_batch(learner: Kiera) -> Batch:
    x, y = shaded(5, 7)
    return Batch(x, y, torch.full((5,), learner.engine.open_task))


@BOTH
@pytest.mark.parametrize("spec", [DOMAIN, SPLIT, CLASSES], ids=["domain", "task", "class"])
def test_no_label_but_those_of_the_samples_kept_changes_a_bit(name: str, spec: InputSpec) -> None:
    def taught(lie: set[tuple[int, ...]] | None) -> Learner:
        """With the true labels, or with wrong ones for all samples that are not among these."""
        learner = new(name, spec, backbone="mlp-6-4", memory=4, first_clusters=2, drift_window=2)
        for task in range(2):
            learner.begin_task(TaskInfo(str(task), 3))
            for step in range(5):
                x, y = batch(spec, 6, seed=10 * task + step)
                kept = [lie is None or tuple(one) in lie for one in x.flatten(1).tolist()]
                learner.observe(x, torch.where(torch.tensor(kept), y, (y + 1) % 3))
            learner.end_task()
        return learner

    truly = taught(None)
    memory = truly.engine.owned.memories["memory"]
    stored = {tuple(one) for one in memory.x[memory.stored].flatten(1).tolist()}
    assert len(stored) == 8
    assert differences(truly, taught(stored)) == []
    found = differences(truly, taught(set()))
    assert {"memory.y", "net.heads.weight.data"} >= set(found) - {"previous.heads.weight.data"} != set()


def test_labels_may_be_left_out_and_told_when_the_task_has_been_seen() -> None:
    told, silent, never = (
        in_double(Kiera(SPLIT, KieraConfig(backbone="mlp-6", memory=6, first_clusters=3))) for _ in range(3)
    )
    x, y = batch(SPLIT, 6)
    for learner in (told, silent, never):
        learner.begin_task(TaskInfo("one", 3))
        for step in range(3):
            seen, labels = batch(SPLIT, 6, seed=step)
            learner.observe(seen, labels) if learner is told else learner.observe(seen)
    for learner in (told, silent):
        learner.label(x, y)
    assert set(differences(told, silent)) == set()
    assert torch.equal(silent.memory.y[silent.memory.stored].sort().values, y.sort().values)
    resumed = in_double(Kiera(SPLIT, never.config))
    resumed.load_state_dict(never.state_dict())
    for learner in (told, silent, never, resumed):
        learner.end_task()
    assert differences(told, silent) == []
    assert bool((silent.predict(x, "one") > 0).any())
    for learner in (never, resumed):  # nobody has told a label
        assert not bool(learner.memory.stored.any())
        assert bool((learner.predict(x, "one") == 0).all())
    silent.begin_task(TaskInfo("two", 3))
    with pytest.raises(InputError, match="label 3 is outside the task's head; labels are 0 to 2"):
        silent.label(x, torch.full_like(y, 3))
    with pytest.raises(InputError, match=r"a batch has shape \[6, 4\]; this learner takes \[n, 1, 5, 5\]"):
        silent.label(torch.zeros(6, 4, dtype=torch.uint8), y)
    silent.end_task()
    with pytest.raises(ScaleClError, match="no task is open: call begin_task"):
        silent.label(x, y)


@BOTH
def test_growth_between_steps_is_resumed_to_the_bit_and_recorded_steps_leave_the_host_alone(name: str) -> None:
    def make(spec: InputSpec) -> Learner:
        return new(
            name, spec, backbone="mlp-6-4-3", drift_window=1, drift=0.9, memory=5, first_clusters=2, max_clusters=4
        )

    goes_on_after_loading(make, SPLIT)
    leaves_the_host_alone(make, SPLIT)


@BOTH
def test_it_learns_far_more_than_chance_without_labels(name: str) -> None:
    stream = few_digits(tasks=2, train=200)
    learner = new(name, stream.spec, backbone="mlp-32", first_clusters=40, max_clusters=100)
    assert (train(learner, stream).acc or 0) > 40  # of ten classes


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"adcn grows the layers of an MLP; learner.backbone must be mlp"):
        Adcn(COLOUR, AdcnConfig(backbone="resnet18"))
    with pytest.raises(ConfigError, match=r"memory_policy must be ring or reservoir.*knows no label while a task"):
        KieraConfig(memory_policy="balanced")
    with pytest.raises(ConfigError, match="memory_budget task or total"):
        KieraConfig(memory_budget="class")
    with pytest.raises(ConfigError, match="weight_average must be 0"):
        AdcnConfig(weight_average=0.9)
    with pytest.raises(ConfigError, match="adcn must be told where tasks begin and end"):
        Adcn(replace(DOMAIN, boundaries=False))
    learner = Adcn(DOMAIN, C)
    state = learner.state_dict()
    state["tensors"]["net.backbone.running_depth"] = torch.tensor(7.0)
    with pytest.raises(CheckpointError, match="7 layers are in use, of 2"):
        learner.load_state_dict(state)
