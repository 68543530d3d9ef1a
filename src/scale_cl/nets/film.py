"""The parameter generator: a task embedding from which linear layers make FiLM scales and shifts (eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.nets.backbones import Backbone, Modulation
from scale_cl.nets.growing_parameter import BlankLinear, GrowingParameter, linear_rows

FilmForm = Literal["branches", "sum"]
Films = list[tuple[Tensor, ...]]
"""Scale and shift at each site, [tasks or samples, C] each and of unit length."""


class ParameterGenerator(nn.Module):
    """P(t) of equation 1: task embedding -> (scale, shift) at each FiLM site of a backbone."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        generator: torch.Generator,
        form: FilmForm = "branches",
        embedding_width: int = 0,
        capacity: int = 32,
    ) -> None:
        """One linear layer per site; `embedding_width` 0 takes the backbone's own."""
        super().__init__()
        self.form: FilmForm = form
        self.detach_norms = backbone.detach_norms
        self.embedding_width = embedding_width or backbone.embedding_width
        self.embedding = GrowingParameter((self.embedding_width,), capacity)
        layers: list[nn.Linear] = [BlankLinear(self.embedding_width, 2 * width) for width in backbone.film_widths]
        self.layers = nn.ModuleList(layers)
        self._widths = backbone.film_widths
        with torch.no_grad():
            for layer in layers:
                outputs = (layer.out_features,)
                weight, bias = linear_rows(outputs, self.embedding_width, xavier=backbone.xavier, generator=generator)
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)

    def add_task(self, *, generator: torch.Generator) -> None:
        """A new task's embedding row, drawn N(0, 1)."""
        self.embedding.add(torch.randn(1, self.embedding_width, generator=generator))

    def films(self) -> Films:
        """Scale and shift of each task so far: less work than for each sample when tasks are few."""
        return _pairs(self._made(self.embedding.data[: self.embedding.count]))

    def modulation(self, task: Tensor) -> Modulation:
        """What FiLM does at each site for samples of these tasks [B]."""
        if task.device.type == "cpu" and self.embedding.count <= len(task):  # no recording needs a fixed shape there
            every = self._made(self.embedding.data[: self.embedding.count])
            pairs = _pairs([unit.index_select(0, task) for unit in every])
        else:
            pairs = _pairs(self._made(F.embedding(task, self.embedding.data)))

        def modulate(site: int, h: Tensor, common: Tensor) -> Tensor:
            return film(h, *pairs[site], common=common, form=self.form)

        return modulate

    def _made(self, embedded: Tensor) -> Sequence[Tensor]:
        """Scale and shift of each embedding at each site, [n, 2, C]; if all are as wide, side by side in one tensor."""
        widths, generated = self._widths, [layer(embedded) for layer in self.layers]
        if len(set(widths)) == 1:
            generated = [torch.cat(generated, 1)]
        generated = [v.view(len(v), -1, width) for v, width in zip(generated, widths, strict=False)]
        if self.detach_norms or not torch.is_grad_enabled():
            return [v / torch.linalg.vector_norm(v.detach(), dim=2, keepdim=True) for v in generated]
        units: tuple[Tensor, ...] = _Units.apply(*generated)  # type: ignore[no-untyped-call]
        return units


def _pairs(units: Sequence[Tensor]) -> Films:
    """Scale and shift at each site, of what `_made` returns."""
    each = [vector for unit in units for vector in unit.unbind(1)]
    return list(zip(each[::2], each[1::2], strict=True))


class _Units(torch.autograd.Function):
    """v / |v| over the last dimension of each, with the short form of the gradient: (g - u (u . g)) / |v|."""

    @staticmethod
    def forward(ctx: Any, *vectors: Tensor) -> tuple[Tensor, ...]:
        norms = [torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in vectors]
        units = tuple(v / norm for v, norm in zip(vectors, norms, strict=True))
        ctx.save_for_backward(*units, *norms)
        return units

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        units, norms = ctx.saved_tensors[: len(gradients)], ctx.saved_tensors[len(gradients) :]
        return tuple(
            torch.addcmul(g, unit, (unit * g).sum(-1, keepdim=True), value=-1) / norm
            for g, unit, norm in zip(gradients, units, norms, strict=True)
        )


def film(h: Tensor, scale: Tensor, shift: Tensor, *, common: Tensor, form: FilmForm = "branches") -> Tensor:
    """Equations 1 and 2: task-specific plus common features.

    `branches` activates each before the sum, relu(scale * h + shift) + relu(h); `sum`, as the equations are printed,
    after it: relu(scale * h + shift + h). The pre-activations `h` are [B, C] or [B, C, H, W], `common` is relu(h), and
    `scale` and `shift` are [B, C], of unit length.
    """
    if h.dim() == 4:
        scale, shift = scale[:, :, None, None], shift[:, :, None, None]
    private = torch.addcmul(shift, scale, h)
    return private.relu_() + common if form == "branches" else private.add_(h).relu_()
