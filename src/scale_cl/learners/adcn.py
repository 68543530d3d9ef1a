"""KIERA and ADCN: deep clustering that grows, without labels; a few labels after each task name the clusters.

KIERA: Pratama, Ashfahani and Lughofer, "Unsupervised Continual Learning via Self-Adaptive Deep Clustering Approach",
2021. ADCN: Ashfahani and Pratama, "Unsupervised Continual Learning in Streaming Environments", 2022. SCALE's paper says
of them: "[They] put forward a data-driven structural learning for unsupervised continual learning problems where hidden
clusters, nodes and layers dynamically grow and shrink"; ADCN regularises "via the Knowledge Distillation (KD)
strategy", KIERA has "centroid-based experience replay".

Each layer is a tied autoencoder, trained on what the layer below encodes: `|W' z + c - h|^2 + clustering |z - nearest
centroid|^2`. It gains a unit if the bias of its reconstructions rises, and loses its least active one if their variance
does. A sample that is too far from its nearest cluster begins another. Drift of the inputs adds a layer. KIERA replays
the stored samples that its centroids cover least; ADCN stays near to what it reconstructed before the task. No label is
used in a step: those of the few samples that the memory keeps are told when the task ends. They decide each cluster's
allegiance to classes, and a prediction is the allegiance of the clusters near a sample, averaged over layers.

Adapted to one pass over batches of ten:

* The authors begin each task and layer with 50 epochs on a part of the data. Here `first_clusters` samples begin a
  cluster each, the squared error is summed over inputs (the authors: their mean, which takes a rate so many times
  higher), and a cluster's nearness is relative to the nearest one's, as distances have another scale in every layer.
* There is no convolution in front, the decoder is linear, and the factor log(layer) + 1 in the tests of units is left
  out. Drift is tested between windows of batches, as ten samples bound nothing, without the search for a cut.
* If all places are taken, a new cluster replaces the smallest one. Room for growth is bounded by settings.
* ADCN's authors keep a network per task; here the last one counts for all tasks before.
* KIERA's authors store what began a cluster beside the labelled samples; here both are one memory, a uniform sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from scale_cl.engine import MEMORY_POLICY, Batch, Engine, MemoryConfig, Samples, StepStats
from scale_cl.engine.validation import check_inputs, check_labels
from scale_cl.errors import ConfigError
from scale_cl.learners.growing_clusters import ClusteringTrunk
from scale_cl.learners.learner import AT_ONCE, Learner, StepSize, Traits, mlp_to_grow, replay_memory
from scale_cl.memory import PolicyName
from scale_cl.nets import ContinualNet, Heads
from scale_cl.nets.backbones import unmodulated
from scale_cl.settings import setting

_BLIND = ("ring", "reservoir")  # policies that do not look at labels


@dataclass(frozen=True)
class ClusteringConfig(MemoryConfig):
    """Settings of learners that cluster without labels."""

    backbone: str = setting(
        "mlp-96-48-24", "network: units that each layer begins with; the first is in use, another one is added on drift"
    )
    memory: int = setting(50, "samples kept per task (memory_budget), whose labels are told when it ends", low=1)
    memory_policy: PolicyName = setting("reservoir", MEMORY_POLICY + "; here only ring and reservoir")
    lr: float = setting(0.001, "learning rate", above=0)
    momentum: float = setting(0.95, "momentum of the gradient", low=0, below=1)
    clustering: float = setting(0.005, "weight of the squared distance from the nearest centroid", low=0)
    softness: float = setting(
        0.05, "a cluster that is farther than the nearest by this share counts 1/e of it", above=0
    )
    first_clusters: int = setting(50, "samples at the beginning of a task or layer that each begin a cluster", low=1)
    max_clusters: int = setting(1000, "most clusters per layer; then a new one replaces the smallest", low=1)
    spare_units: int = setting(96, "most units that a layer gains", low=0)
    min_units: int = setting(10, "fewest units that a layer keeps", low=1)
    drift_window: int = setting(
        50, "batches whose mean is compared with that of the ones before, to detect drift", low=1
    )
    drift: float = setting(1e-4, "chance of taking for drift what is none (Hoeffding's bound)", above=0, below=1)
    epochs: int = setting(1, "passes over a task's data; the authors make many, an online learner one", low=1)
    trains_outputs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check that no label decides what is kept, and that nothing averages units that come and go."""
        super().__post_init__()
        if self.memory_policy not in _BLIND or self.memory_budget == "class":
            raise ConfigError(
                "learner.memory_policy must be ring or reservoir, and learner.memory_budget task or total: "
                "this learner knows no label while a task lasts"
            )
        if self.weight_average > 0:
            raise ConfigError("learner.weight_average must be 0 for a network whose units come and go")


class ClusteringLearner(Learner):
    """Autoencoders that grow, and clusters in each layer; a class is predicted by the clusters near a sample."""

    config_class = ClusteringConfig
    config: Any
    needs_boundaries = True
    needs_labels = False
    learns_at_end = True
    smaller = ("fewer clusters", "max_clusters")
    traits = Traits(episodic_memory=True, history_in_training=True)  # centroids and momentum
    after = "bocl"

    def build(self, engine: Engine) -> None:
        """Declare the network, whose heads are the clusters' allegiance to classes, momentum, and the memory."""
        c = self.config
        self.trunk = ClusteringTrunk(mlp_to_grow(self), c.spare_units, c.max_clusters, c.softness)
        heads = Heads(self.trunk.feature_width, shared=self.spec.scenario != "task", xavier=True)
        self.network = engine.network(ContinualNet(engine.inputs(), self.trunk, heads, None))
        self.layers = engine.weights(self.trained)
        self.velocity = engine.like("velocity", self.layers, changes="step")
        self.memory = replay_memory(engine, c)
        self.untold = engine.tensor("untold", torch.zeros(()), changes="task")  # 1: labels in the memory are missing

    def observe(self, x: Tensor, y: Tensor | None = None, task: Tensor | None = None) -> StepStats:
        """As any learner; labels may be left out, if `label` tells those of a few samples before the task ends."""
        if y is not None:
            return super().observe(x, y, task)
        stats = super().observe(x, torch.zeros(x.shape[:1], dtype=torch.int64, device=x.device), task)
        self.untold.fill_(1)
        return stats

    def label(self, x: Tensor, y: Tensor) -> None:
        """Tell the labels [n] of some samples [n, *shape] of the open task, after its last batch.

        They take the place of the samples that the memory keeps of the task.
        """
        self.engine.turns.take(self._label, x, y)

    def _label(self, x: Tensor, y: Tensor) -> None:
        engine, memory = self.engine, self.memory
        engine.refuse_if_broken()
        engine.check_finite()
        task = engine.open_task
        check_inputs(x, self.spec)
        check_labels(x, y, engine.classes[task])
        with engine.whole("label"):
            memory.forget(memory.rows_of(task))
            memory.write(Batch(x.to(self.device), y.to(self.device), engine.task.expand(len(y))))
            self.untold.zero_()

    def trained(self) -> dict[str, Tensor]:
        """The parameters of the layers in use."""
        named = ((f"{i}.{n}", p) for i, (own, _) in enumerate(self.trunk.in_use()) for n, p in own.named_parameters())
        return dict(named)

    def learn(self, samples: Samples) -> None:
        """Let units come and go, descend the loss of every layer, and let clusters follow and open."""
        c, x = self.config, samples.x.flatten(1)
        self.trunk.note(x[: samples.n])
        h, reconstruction, pull = x, x.new_zeros(()), x.new_zeros(())
        for layer, reads in self.trunk.in_use():
            layer.evolve(h, reads, self.engine.randn(layer.weight[0]), c.min_units)
            z = layer.encode(h)
            reconstruction = reconstruction + (layer.decode(z, reads) - h).square().sum(1).mean()
            pull = pull + layer.pull(z).mean()
            h = z.detach()
        loss = self.objective(reconstruction + c.clustering * pull, samples)
        velocity = self.velocity.tensors
        torch._foreach_mul_(velocity, c.momentum)
        torch._foreach_add_(velocity, self.layers.gradient(loss))
        self.layers.move(velocity, c.lr)
        self.log(reconstruction=reconstruction, pull=pull, loss=loss)
        self.cluster(x, samples.n)

    def objective(self, loss: Tensor, samples: Samples) -> Tensor:
        """What is descended: the loss on the samples, perhaps with a term against forgetting."""
        return loss

    @torch.no_grad()
    def cluster(self, h: Tensor, new: int) -> None:
        """Take samples into the clusters of every layer, one after another; only the first `new` may open one."""
        for layer, _ in self.trunk.in_use():
            h = layer.encode(h)
            for i, z in enumerate(h):
                layer.take(z, opens=i < new)

    # ---- between steps -----------------------------------------------------------------------------------------------

    def task_began(self, task: int) -> None:
        """The first samples begin clusters; no class of a new head is known."""
        for layer, _ in self.trunk.in_use():
            layer.running_seeds.fill_(self.config.first_clusters)
        self.name_clusters()

    def pauses(self, step: int) -> bool:
        """After every window."""
        return step % int(self.config.drift_window) == 0

    def pause(self, step: int) -> None:
        """Add a layer on drift."""
        if self.trunk.depth < len(self.trunk.layers) and self.trunk.drifted(self.config.drift):
            self.trunk.deepen()
            list(self.trunk.in_use())[-1][0].running_seeds.fill_(self.config.first_clusters)
        self.trunk.next_window()

    def task_ended(self, task: int) -> None:
        """Labels are told: name the clusters. Samples whose labels are missing are dropped."""
        if bool(self.untold):
            self.memory.forget(self.memory.rows_of(task))
            self.untold.zero_()
        self.name_clusters()

    @torch.no_grad()
    def name_clusters(self) -> None:
        """Heads: each cluster's allegiance, which sums to 1 over classes and is averaged over layers.

        It is the mean nearness of a class's labelled samples to the cluster, relative to that of all classes.
        """
        memory, heads = self.memory, self.net.heads
        weight, count = heads.weight.data, heads.bias.data
        weight.zero_()
        count.zero_()
        stored = memory.stored.nonzero().flatten()
        for rows in stored.split(AT_ONCE) if len(stored) else ():
            near = self.trunk.top(self.trunk.stem(self.net.inputs(memory.x[rows])), unmodulated)[1].to(weight)
            head = torch.zeros_like(rows) if heads.shared else memory.task[rows]
            weight.index_put_((head, memory.y[rows]), near, accumulate=True)
            count.index_put_((head, memory.y[rows]), count.new_ones(()), accumulate=True)
        weight /= count.clamp(min=1).unsqueeze(2)
        weight /= self.trunk.depth * weight.sum(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        count.zero_()


@dataclass(frozen=True)
class AdcnConfig(ClusteringConfig):
    """Settings of ADCN."""

    distillation: float = setting(
        5.0, "weight, per earlier task, of the squared distance from reconstructions before the task", low=0
    )


class Adcn(ClusteringLearner):
    """Clustering that keeps the reconstructions which it made before the task."""

    config_class = AdcnConfig
    config: AdcnConfig

    def build(self, engine: Engine) -> None:
        """Declare a frozen copy of the network too."""
        super().build(engine)
        self.previous = engine.teacher("previous")

    def update(self, batch: Batch) -> None:
        """Learn from the batch."""
        self.learn(self.engine.samples(batch))
        self.memory.write(batch)

    def objective(self, loss: Tensor, samples: Samples) -> Tensor:
        """The mean of the loss and of the distance from the previous network, which counts for each task before."""
        weight = self.config.distillation * self.engine.host.ask(self.tasks_before)
        if weight == 0:
            return loss
        distance = self.distance(samples.x.flatten(1))
        self.log(distillation=distance)
        return (loss + weight * distance) / (1 + weight)

    def tasks_before(self) -> int:
        """How many tasks there are beside the open one."""
        return len(self.engine.classes) - 1

    def distance(self, h: Tensor) -> Tensor:
        """Over the previous network's layers, the squared distance from what it reconstructs of samples [B, inputs]."""
        assert self.previous.module is not None
        trunk, found = self.previous.module.backbone, h.new_zeros(())
        assert isinstance(trunk, ClusteringTrunk)
        for (layer, reads), (before, read) in zip(self.trunk.in_use(), trunk.in_use(), strict=False):
            with torch.no_grad():
                z = before.encode(h)
                wanted = before.decode(z, read)
            found = found + (layer.decode(layer.encode(h), reads) - wanted).square().sum(1).mean()
            h = z
        return found

    def task_ended(self, task: int) -> None:
        """Name the clusters, and keep the network as it is."""
        super().task_ended(task)
        self.previous.take(self.net)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch, of which no head is computed; a gradient and momentum."""
        return StepSize(batch, copies=3)


@dataclass(frozen=True)
class KieraConfig(ClusteringConfig):
    """Settings of KIERA."""

    replay: int = setting(10, "samples replayed with each batch, at most as many as are stored", low=1)
    candidates: int = setting(30, "samples drawn from the memory, of which the least covered are replayed", low=1)


class Kiera(ClusteringLearner):
    """Clustering that replays the stored samples which the centroids cover least."""

    config_class = KieraConfig
    config: KieraConfig

    def update(self, batch: Batch) -> None:
        """Learn from the batch and from what is replayed."""
        (samples,) = self.memory.replay_with(batch, max(self.config.replay, self.config.candidates))
        self.learn(self.chosen(samples) if samples.replayed else samples)
        self.memory.write(batch)

    @torch.no_grad()
    def chosen(self, samples: Samples) -> Samples:
        """The batch, and those replayed samples that are farthest from their nearest centroids, over all layers."""
        h, n = samples.replay.x.flatten(1), samples.n
        away = h.new_zeros(len(h))
        for layer, _ in self.trunk.in_use():
            h = layer.encode(h)
            away = away + layer.distances(h).amin(1)
        rows = away.topk(min(self.config.replay, len(h))).indices + n
        picked = torch.cat([torch.arange(n, device=rows.device), rows])
        return Samples(samples.x[picked], samples.y[picked], samples.task[picked], (n, len(rows)))

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch and what is replayed, of which no head is computed; a gradient and momentum."""
        return StepSize(batch + min(config.replay, stored), copies=3)
