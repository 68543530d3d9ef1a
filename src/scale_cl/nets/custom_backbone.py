"""Which backbone a learner gets: one of ours by name, or anybody's `nn.Module`.

A module returns features [B, W] or a feature map [B, C, H, W], which is averaged. FiLM goes on the module's output, or
on the outputs of submodules by name, as torchvision's or timm's models have them ("layer3"). Where it goes on the
output only, all of the module is the stem, and the outer step needs no gradient of it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.errors import FAILURES, ConfigError, InputError, ScaleClError, one_line, place_of
from scale_cl.nets.backbones import MLP, Backbone, Modulation, ReducedResNet18, unmodulated
from scale_cl.plugins import Plugins, is_reference

OUTPUT = "output"
NAMES = ("auto", "mlp", "resnet18", "resnet18-relu", "resnet18-relu-nopool")
_MLP = re.compile(r"mlp((?:-[1-9]\d{0,4}){1,16})")  # mlp-128-128: two hidden layers of 128
BACKBONES = Plugins("backbone", "scale_cl.backbones")
AnyBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


@dataclass(frozen=True, eq=False)
class CustomBackbone:
    """A module of your own, and where FiLM goes in it.

    Attributes:
        module: an `nn.Module`, of which each learner takes a copy, weights and all; or a function that makes one, which
            is called under the learner's seed.
        film: "output", the name of a submodule, or several of these in the order in which they are computed.
        embedding_width: width of the task embedding that goes with it.
    """

    module: nn.Module | Callable[[], nn.Module]
    film: str | tuple[str, ...] = OUTPUT
    embedding_width: int = 64

    @classmethod
    def of(cls, given: BackboneLike) -> CustomBackbone:
        """The same, if it is one already; else with FiLM on the output."""
        return given if isinstance(given, CustomBackbone) else cls(given)

    def built(self, shape: tuple[int, ...], *, seed: int) -> Wrapped:
        """The backbone of one learner, for inputs [B, *shape]."""
        if isinstance(self.module, nn.Module):
            module = copy.deepcopy(self.module)
        elif not callable(self.module):
            module = self.module
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                module = _made_by(self.module)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"backbone is {type(module).__name__}; give an nn.Module or a function that makes one")
        sites = (self.film,) if isinstance(self.film, str) else tuple(self.film)
        return Wrapped(module, shape, sites, self.embedding_width)


def _made_by(function: Callable[[], nn.Module]) -> nn.Module:
    """What a function of somebody else makes; ConfigError in one line if it fails."""
    try:
        return function()
    except ScaleClError:
        raise
    except FAILURES as error:
        raise ConfigError(f"the backbone cannot be made{place_of(function, error)}: {one_line(error)}") from error


BackboneLike = CustomBackbone | nn.Module | Callable[[], nn.Module]


def check_name(name: str) -> None:
    """Raise ConfigError unless `name` is a backbone of ours, an entry point or a reference, and not two of these."""
    if is_ours(name):
        BACKBONES.check_not_taken(name)
    elif name not in BACKBONES.names() and not is_reference(name):
        known = ", ".join([*NAMES, "mlp-128-64 (any widths)", *BACKBONES.names()])
        raise ConfigError(
            f"learner.backbone: {name!r} is not one of {known}; for another network, name a function that makes it "
            "(module:function or file.py:function) or, in Python, give the nn.Module itself"
        )


def is_ours(name: str) -> bool:
    """Whether `name` is a backbone of this package."""
    return name in NAMES or _MLP.fullmatch(name) is not None


def make_backbone(
    kind: str | BackboneLike, shape: tuple[int, ...], *, momentum: float, generator: torch.Generator, seed: int
) -> Backbone:
    """The backbone for inputs [B, *shape]: a name, a module, or a function that makes one."""
    if isinstance(kind, str) and not is_ours(kind):
        check_name(kind)
        BACKBONES.require_given(kind, "--set backbone=")
        made = BACKBONES.find(kind)
        if not callable(made):
            raise ConfigError(f"backbone {kind!r} is {made!r}; it must be a function that makes an nn.Module")
        kind = made
    if not isinstance(kind, str):
        return CustomBackbone.of(kind).built(shape, seed=seed)
    if kind == "auto":
        kind = "resnet18" if len(shape) == 3 and shape[0] == 3 else "mlp"
    resnet = kind.startswith("resnet18")
    if resnet and len(shape) != 3:
        raise InputError(f"backbone {kind} needs images [C, H, W]; inputs have shape {list(shape)}: use mlp")
    if resnet:
        relu, pool = "-relu" in kind, "-nopool" not in kind
        return ReducedResNet18(shape[0], momentum=momentum, relu_sums=relu, pool=pool, generator=generator)
    inputs, match = int(torch.Size(shape).numel()), _MLP.fullmatch(kind)
    if match is None:
        return MLP(inputs, generator=generator)
    return MLP(inputs, tuple(int(width) for width in match[1][1:].split("-")), generator=generator)


class Wrapped(Backbone):
    """A module whose weights are left as they are; parameters that do not require gradients are not trained.

    FiLM adds relu(scale * h + shift) to the features h, which need not be activations. Batch norms take statistics of
    each part of a batch where FiLM is on the output, and of the whole batch where it is inside. A batch of one sample
    is normalised by the running statistics, and so is everything by a batch norm whose own parameters are frozen.
    """

    xavier = False
    detach_norms = True

    def __init__(self, module: nn.Module, shape: tuple[int, ...], sites: tuple[str, ...], embedding_width: int) -> None:
        """Measure the widths by a batch of zeros."""
        super().__init__()
        self.module, self.embedding_width = module, embedding_width
        known = dict(module.named_modules())
        for site in sites:
            if site != OUTPUT and (site == "" or site not in known):
                names = ", ".join(name for name, _ in module.named_children()) or "none"
                raise ConfigError(f"FiLM cannot go to {site!r}; it goes to 'output' or a submodule, such as {names}")
        if not sites or len(set(sites)) < len(sites) or OUTPUT in sites[:-1]:
            raise ConfigError(f"film is {sites}; name each place once, and 'output' last")
        self._sites = sites
        norms = [m for m in module.modules() if isinstance(m, AnyBatchNorm)]
        self._fixed_norms = [m for m in norms if m.weight is not None and not m.weight.requires_grad]
        self._norms = [m for m in norms if m not in self._fixed_norms]
        self.film_widths, self.feature_width = self._measured(shape)

    def stem(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """All of the module where FiLM is on its output only; else nothing."""
        return self._output(x, parts) if self._sites == (OUTPUT,) else x

    def top(self, h: Tensor, modulate: Modulation) -> tuple[Tensor, Tensor]:
        """The features without and with FiLM on the output."""
        if self._sites != (OUTPUT,):
            with self._modulated_inside(modulate):
                h = self._output(h)
        if self._sites[-1] != OUTPUT:
            return _pooled(h), _pooled(h)
        return _pooled(h), _pooled(modulate(len(self._sites) - 1, h, h))

    def train(self, mode: bool = True) -> Wrapped:
        """Training mode, except for batch norms that are frozen."""
        super().train(mode)
        for norm in self._fixed_norms:
            norm.eval()
        return self

    def _output(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        if self.training and self._norms and len(parts) > 1:
            return torch.cat([self._features(part) for part in x.split_with_sizes(parts)])
        return self._features(x)

    def _features(self, x: Tensor) -> Tensor:
        alone = self.training and len(x) == 1
        for norm in self._norms if alone else ():
            norm.eval()
        try:
            features = self.module(x)
        finally:
            for norm in self._norms if alone else ():
                norm.train()
        if not isinstance(features, Tensor) or features.dim() not in (2, 4):
            found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise InputError(f"the backbone returns {found}; it must return features [B, W] or maps [B, C, H, W]")
        return features

    @contextmanager
    def _modulated_inside(self, modulate: Modulation) -> Iterator[None]:
        """FiLM at the named submodules for the length of a forward; nothing stays behind in the module."""
        hooks = []
        try:
            for i, site in enumerate(self._sites):
                if site != OUTPUT:
                    hook = _hook(i, modulate)
                    hooks.append(self.module.get_submodule(site).register_forward_hook(hook))
            yield
        finally:
            for handle in hooks:
                handle.remove()

    def _measured(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Widths of the FiLM sites and of the features; parameters that have no part in them are frozen."""
        widths: dict[int, int] = {}

        def note(site: int, h: Tensor, common: Tensor) -> Tensor:
            widths[site] = h.shape[1]
            return unmodulated(site, h, common)

        self.eval()
        try:
            with torch.enable_grad():
                features = self.top(self.stem(torch.zeros(2, *shape)), note)[1]
        except ScaleClError:
            raise
        except FAILURES as error:
            inputs = ", ".join(map(str, shape))
            raise InputError(f"the backbone cannot take inputs [B, {inputs}]: {one_line(error)}") from error
        if missing := [site for i, site in enumerate(self._sites) if i not in widths]:
            raise ConfigError(f"FiLM cannot go to {missing[0]!r}: the backbone's forward does not use it")
        trained = [p for p in self.parameters() if p.requires_grad]
        if trained and features.requires_grad:
            gradients = torch.autograd.grad(features.sum(), trained, allow_unused=True)
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.requires_grad_(gradient is not None)
        self.train()
        return tuple(widths[i] for i in range(len(self._sites))), features.shape[1]


def _hook(site: int, modulate: Modulation) -> Callable[[nn.Module, Any, Any], Tensor]:
    def hook(_module: nn.Module, _args: Any, h: Any) -> Tensor:
        if not isinstance(h, Tensor) or h.dim() not in (2, 3, 4):
            raise InputError("FiLM goes to a submodule that returns [B, W], [B, tokens, W] or [B, C, H, W]")
        if h.dim() == 3:  # tokens: their width is the channel
            wide = h.transpose(1, 2).unsqueeze(3)
            return modulate(site, wide, wide).squeeze(3).transpose(1, 2)
        return modulate(site, h, h)

    return hook


def _pooled(h: Tensor) -> Tensor:
    return h.mean((2, 3)) if h.dim() == 4 else h
