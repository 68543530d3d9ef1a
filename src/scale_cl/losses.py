"""The losses, as pure functions of logits and targets: means over samples, never sums."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NO_CLASS = float("-inf")  # added to a logit that does not exist for its sample


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy; logits of classes a head does not have are -inf and take no part.

    Args:
        logits: [B, C] float.
        target: [B] int64.
    """
    return F.cross_entropy(logits, target)


def cross_entropy_of_parts(logits: Tensor, target: Tensor, parts: tuple[int, ...]) -> Tensor:
    """Sum over the parts of a batch of their mean cross-entropies.

    Args:
        logits: [B, C] float.
        target: [B] int64.
        parts: sizes that add up to B, in order.
    """
    if len(set(parts)) == 1:
        return F.cross_entropy(logits, target, reduction="sum") / parts[0]
    each = F.cross_entropy(logits, target, reduction="none")
    return (each * torch.cat([each.new_full((n,), 1 / n) for n in parts])).sum()


def cross_entropy_of_parts_and_gradient(
    logits: Tensor, target: Tensor, parts: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`cross_entropy_of_parts`, and its gradient at the logits [B, C]."""
    each, error = cross_entropies(logits, target)
    if len(set(parts)) == 1:
        return each.sum().div_(parts[0]), error.div_(parts[0])
    weights = torch.cat([each.new_full((n,), 1 / n) for n in parts])
    return weights @ each, error.mul_(weights.unsqueeze(1))


def cross_entropies(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Each sample's cross-entropy [B], and its gradient at the logits [B, C]: softmax minus one at the target."""
    log_softmax = logits.log_softmax(1)
    each = F.nll_loss(log_softmax, target, reduction="none")
    minus_one = log_softmax.new_full((1, 1), -1.0).expand(len(target), 1)
    return each, log_softmax.exp_().scatter_add_(1, target.unsqueeze(1), minus_one)


def weighted_cross_entropy(logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Several weighted sums of the samples' cross-entropies, from one softmax.

    Args:
        logits: [B, C] float.
        target: [B] int64.
        weights: [..., B] float, a row for each sum.
    """
    return weights @ F.cross_entropy(logits, target, reduction="none")


def logit_distance(logits: Tensor, stored: Tensor, exists: Tensor | None) -> Tensor:
    """Mean over samples of the mean squared distance to the stored logits, over the columns that were stored.

    Args:
        logits: [B, C] float.
        stored: [B, C] float, zero where nothing was stored.
        exists: [B, C] bool, the columns that existed when the sample's logits were stored; None: all.
    """
    if exists is None:
        return F.mse_loss(logits, stored)
    squares = F.mse_loss(torch.where(exists, logits, stored), stored, reduction="none")
    return squares.sum(1) @ exists.sum(1, dtype=squares.dtype).mul_(len(stored)).reciprocal_()


def logit_distance_and_gradient(logits: Tensor, stored: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
    """`logit_distance` of logits that are finite, and its gradient at them [B, C]."""
    apart = logits - stored
    if exists is None:
        share = 1 / apart.numel()
        return torch.linalg.vecdot(apart.flatten(), apart.flatten()).mul_(share), apart.mul_(2 * share)
    apart.mul_(exists)
    shared = apart / (exists.sum(1, keepdim=True) * len(apart))
    return torch.linalg.vecdot(apart.flatten(), shared.flatten()), shared.mul_(2)


def softened_divergence(logits: Tensor, stored: Tensor, exists: Tensor | None, temperature: float) -> Tensor:
    """Divergence KL(stored || logits) of the outputs softened at `temperature`: the mean over all elements.

    No factor of temperature squared, and the mean runs over samples and existing columns, as in the CTN authors' code;
    a sample without any has no divergence, and counts.
    """
    if exists is None:
        exists = torch.ones_like(stored, dtype=torch.bool)
    target = torch.where(exists, stored / temperature, torch.full_like(stored, NO_CLASS)).log_softmax(1)
    output = torch.where(exists, logits / temperature, torch.full_like(logits, NO_CLASS)).log_softmax(1)
    terms = torch.where(exists, target.exp() * (target - output), torch.zeros_like(target))
    return (terms.sum(1) / exists.sum(1).clamp(min=1)).mean()
