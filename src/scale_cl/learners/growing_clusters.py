"""What KIERA and ADCN share: stacked autoencoders whose units, layers and clusters grow, without a label.

Room for all that may grow is made at once, and what is not in use is zero. So every shape is fixed, the most that the
network can take is known beforehand, and units and clusters come and go inside a step that can be recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.nets import MLP, Backbone
from scale_cl.nets.backbones import Modulation

_NEAR = 1e-6  # smaller distances count as this one
_FAR = 1e4  # distance to a cluster that does not exist
_UNSET = 1e30  # a lowest value, before there is one
_SETTLED = 20  # batches before a unit is dropped


class Autoencoder(nn.Module):
    """A layer: z = relu(W h + b), decoded as W' z + c, with clusters of what it encodes."""

    running_units: Tensor
    running_centroids: Tensor
    running_clusters: Tensor
    running_seeds: Tensor
    running_input: Tensor
    running_tests: Tensor

    def __init__(self, linear: nn.Linear, gained: int, spare: int, clusters: int) -> None:
        """Begin with the weights of `linear`, with room for inputs that may be gained, spare units, and clusters."""
        super().__init__()
        weight = F.pad(linear.weight.detach(), (0, gained, 0, spare))
        units, inputs = weight.shape
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(units))
        self.offset = nn.Parameter(torch.zeros(inputs))  # of the decoder
        self.register_buffer("running_units", F.pad(torch.ones(linear.out_features), (0, spare)))  # 1 if in use
        self.register_buffer("running_centroids", torch.zeros(clusters, units))
        # of each cluster: its samples (0: there is none), their mean distance, the sum of its squared deviations
        self.register_buffer("running_clusters", torch.zeros(3, clusters))
        self.register_buffer("running_seeds", torch.zeros(()))  # so many samples to come begin a cluster each
        self.register_buffer("running_input", torch.zeros(inputs))  # mean of all batches
        # of bias and of variance: batches, mean, sum of squared deviations, lowest mean, lowest deviation
        self.register_buffer("running_tests", F.pad(torch.zeros(2, 3), (0, 2), value=_UNSET))

    def encode(self, h: Tensor) -> Tensor:
        """[..., inputs] to [..., units]."""
        return torch.relu(F.linear(h, self.weight, self.bias)) * self.running_units

    def decode(self, z: Tensor, reads: Tensor) -> Tensor:
        """[..., units] to [..., inputs]; `reads` [inputs] is 1 for those in use."""
        return F.linear(z, self.weight.T, self.offset) * reads

    # ---- clusters ----------------------------------------------------------------------------------------------------

    def distances(self, z: Tensor) -> Tensor:
        """[B, clusters] of encoded samples from all centroids; far where there is none."""
        z, centroids = z.to(self.running_centroids.dtype), self.running_centroids
        squared = z.square().sum(1, keepdim=True) - 2 * z @ centroids.T + centroids.square().sum(1)
        return torch.where(self.running_clusters[0] > 0, squared.clamp(min=0).sqrt(), _FAR)

    def nearness(self, z: Tensor, softness: float) -> Tensor:
        """[B, clusters] shares that sum to 1: exp(-distance / (softness * that of the nearest cluster))."""
        found = self.distances(z)
        nearest = found.amin(1, keepdim=True).clamp(min=_NEAR)
        return (-found / (softness * nearest)).softmax(1) * (self.running_clusters[0] > 0)

    def pull(self, z: Tensor) -> Tensor:
        """[B] squared distances of encoded samples from their nearest centroid; 0 without one."""
        nearest = self.distances(z.detach()).argmin(1)
        return (z - self.running_centroids[nearest]).square().sum(1) * (self.running_clusters[0].amax() > 0)

    @torch.no_grad()
    def take(self, z: Tensor, *, opens: bool) -> None:
        """One encoded sample [units]: its nearest cluster follows it; if it `opens` one, it may be a new centroid.

        It is if its distance d exceeds mu + (2 exp(-d) + 2) sigma, by the distances that the nearest cluster has met.
        A new cluster takes a free place, else that of the smallest one.
        """
        centroids, clusters = self.running_centroids, self.running_clusters
        exists = clusters[0] > 0
        distance = torch.where(exists, (centroids - z).norm(dim=1), _FAR)
        seed = ((self.running_seeds > 0) | ~exists.any()) & opens
        follows = exists.any() & ~seed
        k = distance.argmin().view(1)
        count, mean, spread = clusters[:, k]
        count = count + 1
        centroid = centroids[k] + (z - centroids[k]) / count
        d = (centroid - z).norm(dim=1)
        mean, spread = _welford(d, count, mean, spread)
        clusters.index_copy_(1, k, torch.where(follows, torch.stack([count, mean, spread]), clusters[:, k]))
        centroids.index_copy_(0, k, torch.where(follows, centroid, centroids[k]))
        if not opens:
            return
        opened = seed | (d > mean + (2 * (-d).exp() + 2) * (spread / count).sqrt())
        nearest = torch.where(follows, d, torch.where(exists.any(), distance.amin(), 1.0))
        begun = torch.stack([torch.ones_like(nearest), nearest, torch.zeros_like(nearest)])
        place = clusters[0].argmin().view(1)
        clusters.index_copy_(1, place, torch.where(opened, begun, clusters[:, place]))
        centroids.index_copy_(0, place, torch.where(opened, z, centroids[place]))
        self.running_seeds -= (seed & (self.running_seeds > 0)).to(z)

    # ---- units -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evolve(self, h: Tensor, reads: Tensor, drawn: Tensor, least: int) -> None:
        """Gain a unit if the bias is high; else, if the variance is, lose the least active one, down to `least` units.

        Both are those of the mean input's reconstruction. A new unit's weights are `drawn` [inputs], standard normal.
        """
        units, weight = self.running_units, self.weight
        self.running_input += (h.mean(0) - self.running_input) / (self.running_tests[0, 0] + 1)
        x = self.running_input * reads
        z = self.encode(x)
        bias = (self.decode(z, reads) - x).square().sum() / reads.sum()
        variance = ((self.decode(z.square(), reads) - x.square()).sum() / reads.sum()).clamp(min=0)
        gains = self.rises(0, bias, 1.0, 0) & (units.amin() == 0)
        loses = self.rises(1, variance, 2.0, _SETTLED) & ~gains & (units.sum() > least)
        new, old = units.argmin().view(1), torch.where(units > 0, z, torch.inf).argmin().view(1)
        fresh = drawn * reads * (2 / (reads.sum() + units.sum())).sqrt()
        weight.index_copy_(0, new, torch.where(gains, fresh, weight[new]))
        self.bias.index_copy_(0, new, torch.where(gains, 0.0, self.bias[new]))
        units.index_copy_(0, new, torch.where(gains, 1.0, units[new]))
        units.index_copy_(0, old, torch.where(loses, 0.0, units[old]))
        centroids, own = self.running_centroids, self.encode(x)[new]  # a new unit counts as the mean input excites it
        centroids.index_copy_(1, new, torch.where(gains, own, centroids[:, new]))
        centroids *= units

    def rises(self, which: int, value: Tensor, times: float, settled: int) -> Tensor:
        """Whether mu + sigma > lowest mu + times (1.3 exp(-value) + 0.7) lowest sigma, with the value taken in.

        Where it does, the lowest ones begin anew; before so many batches they are the present ones.
        """
        count, mean, spread, low_mean, low_deviation = self.running_tests[which]
        count = count + 1
        mean, spread = _welford(value, count, mean, spread)
        deviation = (spread / count).sqrt()
        low_mean = torch.where(count >= settled, torch.minimum(low_mean, mean), mean)
        low_deviation = torch.where(count >= settled, torch.minimum(low_deviation, deviation), deviation)
        high: Tensor = mean + deviation > low_mean + times * (1.3 * (-value).exp() + 0.7) * low_deviation
        lows = torch.where(high, _UNSET, torch.stack([low_mean, low_deviation]))
        self.running_tests[which] = torch.cat([torch.stack([count, mean, spread]), lows])
        return high


class ClusteringTrunk(Backbone):
    """Autoencoders on top of each other; the features are how near a sample is to each cluster of each layer."""

    reads: Tensor
    running_windows: Tensor
    running_seen: Tensor
    running_depth: Tensor
    film_widths = ()
    xavier = True
    detach_norms = True
    embedding_width = 1

    def __init__(self, mlp: MLP, spare: int, clusters: int, softness: float) -> None:
        """Layers as wide as those of `mlp`, each with spare units and room for clusters; the first is in use."""
        super().__init__()
        layers = [layer for layer in mlp.layers if isinstance(layer, nn.Linear)]
        self.layers = nn.ModuleList(
            Autoencoder(layer, spare if i else 0, spare, clusters) for i, layer in enumerate(layers)
        )
        inputs = layers[0].in_features
        self.depth, self.softness = 1, softness  # layers in use; of `nearness`
        self.feature_width = len(layers) * clusters
        self.register_buffer("running_depth", torch.ones(()))
        self.register_buffer("reads", torch.ones(inputs), persistent=False)  # all inputs are in use
        self.register_buffer("running_windows", torch.zeros(2, 3, inputs))  # now and before: sum, lowest, highest
        self.register_buffer("running_seen", torch.zeros(2))  # samples in each window

    def in_use(self) -> Iterator[tuple[Autoencoder, Tensor]]:
        """The layers in use, and which of their inputs are [inputs]."""
        reads = self.reads
        for layer in list(self.layers)[: self.depth]:
            assert isinstance(layer, Autoencoder)
            yield layer, reads
            reads = layer.running_units

    def stem(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """[B, ...] to [B, inputs]."""
        return x.flatten(1)

    def top(self, h: Tensor, modulate: Modulation) -> tuple[Tensor, Tensor]:
        """Nearness [B, layers * clusters]; 0 for layers that are not in use."""
        found = []
        for layer, _ in self.in_use():
            h = layer.encode(h)
            found.append(layer.nearness(h, self.softness))
        features = F.pad(torch.cat(found, 1), (0, self.feature_width - sum(f.shape[1] for f in found)))
        return features, features

    # ---- drift -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def note(self, x: Tensor) -> None:
        """Take samples [B, inputs] into the present window."""
        total, low, high = self.running_windows[0]
        is_first = self.running_seen[0] == 0
        low = torch.where(is_first, x.amin(0), torch.minimum(low, x.amin(0)))
        high = torch.where(is_first, x.amax(0), torch.maximum(high, x.amax(0)))
        self.running_windows[0] = torch.stack([total + x.sum(0), low, high])
        self.running_seen[0] += len(x)

    def drifted(self, chance: float) -> bool:
        """Whether the mean input of the window before differs from that of both by more than Hoeffding's bound."""
        now, before = self.running_seen.tolist()
        if now == 0 or before == 0:
            return False
        both, (total, low, high) = now + before, self.running_windows.unbind(1)
        span = high.amax(0) - low.amin(0)
        bound = span.mean() * math.sqrt((both - before) / (2 * before * both) * math.log(1 / chance))
        return bool((total[1] / before - total.sum(0) / both).abs().mean() > bound)

    @torch.no_grad()
    def next_window(self) -> None:
        """The present window, unless it is empty, becomes the one before."""
        if float(self.running_seen[0]) > 0:
            for windows in (self.running_windows, self.running_seen):
                windows[1] = windows[0]
                windows[0] = 0

    def deepen(self) -> None:
        """Put one more layer to use."""
        self.depth += 1
        self.running_depth.fill_(self.depth)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """As usual, if so many layers can be in use."""
        depth = float(state_dict[f"{prefix}running_depth"])
        if depth not in range(1, len(self.layers) + 1):
            raise ValueError(f"{depth:g} layers are in use, of {len(self.layers)}")
        self.depth = int(depth)
        super()._load_from_state_dict(state_dict, prefix, *others)


def _welford(value: Tensor, count: Tensor, mean: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations with one more value; `count` has it already."""
    step = value - mean
    mean = mean + step / count
    return mean, spread + step * (value - mean)
