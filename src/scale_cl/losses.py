"""The losses, as pure functions of logits and targets: means over samples, never sums."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NO_CLASS = float("-inf")  # added to a logit that does not exist for its sample


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [B, C] and labels [B]; logits of classes that a head does not have are -inf."""
    return F.cross_entropy(logits, target)


def cross_entropy_of_parts(logits: Tensor, target: Tensor, parts: tuple[int, ...]) -> Tensor:
    """Sum over the parts of a batch of their mean cross-entropies; `parts` are sizes that add up to B, in order."""
    if len(set(parts)) == 1:
        return F.cross_entropy(logits, target, reduction="sum") / parts[0]
    each = F.cross_entropy(logits, target, reduction="none")
    return (each * torch.cat([each.new_full((n,), 1 / n) for n in parts])).sum()


def cross_entropies(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each sample [B]."""
    return F.cross_entropy(logits, target, reduction="none")


def logit_distance(logits: Tensor, stored: Tensor, exists: Tensor | None) -> Tensor:
    """Mean over samples of the mean squared distance to the stored logits, over the columns that were stored.

    Args:
        logits: [B, C] float.
        stored: [B, C] float, zero where nothing was stored.
        exists: [B, C] bool, the columns that existed when the sample's logits were stored; None: all. A sample without
            stored logits is at no distance, and counts.
    """
    if exists is None:
        return F.mse_loss(logits, stored)
    squares = F.mse_loss(torch.where(exists, logits, stored), stored, reduction="none")
    return squares.sum(1) @ exists.sum(1, dtype=squares.dtype).clamp_(min=1).mul_(len(stored)).reciprocal_()


def entropy(logits: Tensor) -> Tensor:
    """Mean over samples of the entropy of softmax(logits) [B, C], in nats; logits that do not exist are -inf."""
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p.masked_fill(log_p == NO_CLASS, 0.0)).sum(1).mean()


def squared_distance(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over samples of the mean squared distance of those logits [B, C] that exist; the others are -inf."""
    exists = logits > NO_CLASS
    squares = F.mse_loss(torch.where(exists, logits, 0.0), torch.where(exists, target, 0.0), reduction="none")
    return (squares.sum(1) / exists.sum(1).clamp(min=1)).mean()


def distillation(logits: Tensor, target: Tensor, exists: Tensor | None, temperature: float) -> Tensor:
    """Divergence KL(target || logits) of the outputs softened at `temperature`, times temperature squared.

    A mean over samples (Hinton et al., 2015; LwF, equation 3).

    Args:
        logits: [B, C] float.
        target: [B, C] float, the outputs of an earlier model.
        exists: [B, C] bool, the columns that the earlier model had; None: all. A sample without any counts, with 0.
        temperature: what both are divided by.
    """
    if exists is not None:
        logits, target = (t.masked_fill(~exists, torch.finfo(t.dtype).min) for t in (logits, target))
    old, new = (target / temperature).log_softmax(1), (logits / temperature).log_softmax(1)
    terms = old.exp() * (old - new)
    if exists is not None:
        terms = torch.where(exists, terms, torch.zeros_like(terms))
    return temperature**2 * terms.sum(1).mean()


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
