"""Batch norms of the reduced ResNet folded into the convolutions before them: in evaluation mode both are linear.

The weights are folded in 64 bits and rounded once, so what changes is the last digits of the sums. A backbone of
somebody's own is left as it is: only its author knows what else looks at a convolution's output.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from scale_cl.nets import Backbone, ReducedResNet18
from scale_cl.nets.fused_norm import Then
from scale_cl.nets.norm import BatchNorm, followed


class _Rest(nn.Module):
    """What is left of a batch norm whose arithmetic has gone into the convolution: what follows it."""

    def forward(
        self, x: Tensor, parts: tuple[int, ...] = (), *, shortcut: Tensor | None = None, then: Then = "nothing"
    ) -> Tensor:
        return followed(x, shortcut, then)


def fold_batch_norms(backbone: Backbone) -> None:
    """Fold them where the backbone is our own ResNet; it must be a copy in evaluation mode."""
    if not isinstance(backbone, ReducedResNet18):
        return
    for module in list(backbone.modules()):
        names = [name for name, _ in module.named_children()]
        for before, name in pairwise(names):
            conv, norm = module.get_submodule(before), module.get_submodule(name)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, BatchNorm):
                setattr(module, before, _folded(conv, norm))
                setattr(module, name, _Rest())


def _folded(conv: nn.Conv2d, norm: BatchNorm) -> nn.Conv2d:
    bias = None if conv.bias is None else conv.bias.double()
    running = norm.running_mean.double(), norm.running_var.double()
    weight, shift = fuse_conv_bn_weights(
        conv.weight.double(), bias, *running, norm.eps, norm.weight.double(), norm.bias.double()
    )
    settings = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
    sizes = conv.in_channels, conv.out_channels, conv.kernel_size
    made = nn.Conv2d(*sizes, **settings, device="meta")  # type: ignore[arg-type]
    made.weight, made.bias = (nn.Parameter(t.to(conv.weight), requires_grad=False) for t in (weight, shift))
    return made
