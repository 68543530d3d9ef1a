"""A module of one's own as backbone: left as it is, measured, modulated where one says."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl import CustomBackbone, Scale, ScaleConfig, TaskInfo
from scale_cl.errors import ConfigError, InputError
from scale_cl.learners import Er, Ewc, EwcConfig, registry
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, SPLIT, VECTORS, batch, is_mlp, teach


class SmallNet(nn.Module):
    """In the style of torchvision: named stages, a pool, and a classifier `fc` that users replace."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layer1 = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc: nn.Module = nn.Linear(12, 1000)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.pool(self.layer1(self.stem(x))).flatten(1))
        return out


class Tokens(nn.Module):
    """In the style of timm's transformers: tokens inside, features outside, no activation at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.norm = nn.Linear(3, 10), nn.Linear(10, 10), nn.LayerNorm(10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.block(self.embed(x.flatten(2).transpose(1, 2)))
        out: Tensor = self.norm(tokens).mean(1)
        return out


class Rows(nn.Module):
    """Reads an image row by row: with an RNN, or with attention, which uses the weights of a linear layer itself."""

    def __init__(self, *, attention: bool = False) -> None:
        super().__init__()
        self.gru = None if attention else nn.GRU(5, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True) if attention else None

    def forward(self, x: Tensor) -> Tensor:
        if self.gru is not None:
            last: Tensor = self.gru(x[:, 0])[1][-1]
            return last
        assert self.attention is not None
        out: Tensor = self.attention(x[:, 0], x[:, 0], x[:, 0])[0].mean(1)
        return out


def half_frozen(first: bool = True, second: bool = False) -> nn.Module:
    layers = nn.Linear(25, 6).requires_grad_(not first), nn.Linear(6, 4).requires_grad_(not second)
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1])


def headless() -> SmallNet:
    torch.manual_seed(0)
    net = SmallNet()
    net.fc = nn.Identity()
    return net


@pytest.mark.parametrize("name", [name for name in registry.names() if name != "slda" and not is_mlp(name)])
def test_every_learner_trains_a_module_with_batch_norms(name: str) -> None:
    module = headless()
    before = copy.deepcopy(module.state_dict())
    learner = teach(registry.make(name, COLOUR, backbone=module))
    assert learner.net.backbone.feature_width == 12
    inside = [pair for net in learner.engine.owned.modules() for pair in net.named_parameters() if "module." in pair[0]]
    assert inside
    assert any(not torch.equal(p, before[n.rpartition("module.")[2]]) for n, p in inside)
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())  # the user's own is left alone
    logits = learner.predict(batch(COLOUR, 5)[0], "task 0")
    assert torch.isfinite(logits).all()


def test_the_weights_of_a_module_are_left_as_they_are() -> None:
    module = headless()
    learner = Er(COLOUR, backbone=module, seed=5)
    for name, p in learner.net.backbone.get_submodule("module").named_parameters():
        assert torch.equal(p, module.get_parameter(name))


def test_without_a_generator_the_network_is_the_module_and_a_linear_head() -> None:
    module = headless()
    learner = Er(COLOUR, backbone=module)
    learner.begin_task(TaskInfo("a", 2))
    x, _ = batch(COLOUR, 6)
    features = module.eval()(x / 255)
    torch.testing.assert_close(learner.features(x, "a"), features)
    weight, bias = learner.net.heads.weight.data[0], learner.net.heads.bias.data[0]
    torch.testing.assert_close(learner.predict(x, "a"), features @ weight.T + bias)


def test_film_on_the_output_adds_a_modulated_branch_to_the_features() -> None:
    learner = Scale(COLOUR, ScaleConfig(), backbone=headless())
    learner.begin_task(TaskInfo("a", 2))
    x, _ = batch(COLOUR, 6)
    h = headless().eval()(x / 255)
    generator = learner.net.generator
    assert generator is not None
    pair = generator.layers[0](generator.embedding.data[:1]).unflatten(1, (2, -1))
    scale, shift = (pair / pair.norm(dim=2, keepdim=True)).unbind(1)
    torch.testing.assert_close(learner.features(x, "a"), h + torch.relu(scale * h + shift))


@pytest.mark.parametrize(
    ("module", "film", "widths"),
    [
        (headless, "output", (12,)),
        (headless, "layer1", (12,)),
        (headless, ("stem", "layer1.0", "output"), (8, 12, 12)),
        (Tokens, "block", (10,)),
        (Tokens, ("embed", "output"), (10, 10)),
        (lambda: nn.Sequential(nn.Conv2d(3, 7, 3)), "output", (7,)),
    ],
)
def test_film_goes_where_one_says(module: Any, film: Any, widths: tuple[int, ...]) -> None:
    learner = teach(Scale(COLOUR, ScaleConfig(), backbone=CustomBackbone(module, film=film)))
    assert learner.net.backbone.film_widths == widths
    x, _ = batch(COLOUR, 5)
    one, other = learner.features(x, "task 0"), learner.features(x, "task 1")
    assert not torch.allclose(one, other)
    assert torch.equal(learner.features(x, "task 0"), one)


def test_a_function_makes_the_module_under_the_learners_seed() -> None:
    state = torch.get_rng_state()
    first, same, other = (Er(COLOUR, backbone=Tokens, seed=s).net.backbone.state_dict() for s in (1, 1, 2))
    assert all(torch.equal(t, same[n]) for n, t in first.items())
    assert any(not torch.equal(t, other[n]) for n, t in first.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_and_unused_parameters_are_not_trained() -> None:
    module = headless()
    for p in module.stem.parameters():
        p.requires_grad_(False)
    module.fc = nn.Identity()
    module.add_module("unused", nn.Linear(3, 3))
    learner = Scale(COLOUR, ScaleConfig(), backbone=module)
    teach(learner)
    inside = learner.net.backbone.get_submodule("module")
    for name, t in module.state_dict().items():
        frozen = name.startswith(("stem.", "unused."))
        assert torch.equal(inside.state_dict()[name], t) == frozen, name


def test_gradients_of_single_samples_are_there_for_an_rnn_too() -> None:
    learner = Ewc(SPLIT, EwcConfig(memory=4), backbone=Rows())
    learner.begin_task(TaskInfo("a", 3))
    x, y = batch(SPLIT, 4)
    learner.observe(x, y)
    learner.end_task()
    wanted = [torch.zeros_like(p) for p in learner.held.tensors]
    for image, label in zip(x, y, strict=True):
        logits = learner.net(image[None] / 255, torch.zeros(1, dtype=torch.int64)).logits
        found = torch.autograd.grad(F.cross_entropy(logits, label[None]), learner.held.tensors)
        wanted = [total + g.square() / 4 for total, g in zip(wanted, found, strict=True)]
    for fisher, own in zip(learner.importance.tensors, wanted, strict=True):
        torch.testing.assert_close(fisher, own, rtol=1e-4, atol=1e-9)


class Deep(nn.Module):
    """An RNN of two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 4, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.gru(x[:, 0])[1][-1]
        return last


def test_gradients_in_evaluation_mode_take_an_rnn_in_training_mode_without_its_dropout() -> None:
    """On a GPU an RNN has no gradient in evaluation mode, which differs from training mode by dropout alone."""
    learner = teach(Er(SPLIT, backbone=Deep()))
    gru, modes = learner.net.backbone.get_submodule("module.gru"), list[tuple[bool, float]]()
    assert isinstance(gru, nn.GRU)
    gru.register_forward_pre_hook(lambda *_: modes.append((gru.training, gru.dropout)))
    samples = learner.memory.samples(learner.memory.rows_of(0))
    logits = learner.network.in_evaluation(samples).logits
    with torch.no_grad():
        torch.testing.assert_close(logits, learner.net.eval()(samples.x, samples.task).logits)
    learner.net.train()
    alone = learner.network.base.gradient(F.cross_entropy(logits[:1], samples.y[:1]))
    each = learner.network.sample_gradients(samples, F.cross_entropy)
    for g, expected in zip(each, alone, strict=True):
        torch.testing.assert_close(g[0], expected, rtol=1e-3, atol=1e-6)
    assert set(modes) == {(True, 0.0), (False, 0.5)}
    assert (gru.training, gru.dropout) == (True, 0.5)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("isyana", half_frozen()),
        ("isyana", Rows(attention=True)),
        ("npc", half_frozen(second=True)),
        ("learn-to-grow", nn.Flatten()),
    ],
)
def test_methods_of_units_and_layers_bear_what_is_frozen_and_what_has_none(name: str, module: nn.Module) -> None:
    learner = teach(registry.make(name, SPLIT, backbone=module))
    assert all(bool(learner.predict(batch(SPLIT, 5)[0], f"task {k}").isfinite().all()) for k in range(3))


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("isyana", half_frozen(second=True), "frozen"),
        ("isyana", Rows(), "no linear layer or convolution"),
        ("npc", Rows(), "no linear layer or convolution"),
        ("si", half_frozen(second=True), "no weight to hold"),
        ("mas", nn.Flatten(), "no weight to hold"),
    ],
)
def test_methods_that_find_nothing_to_work_on_say_so(name: str, module: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.make(name, SPLIT, backbone=module)


def test_a_part_of_a_batch_has_statistics_of_its_own() -> None:
    backbone = CustomBackbone(headless()).built(COLOUR.shape, seed=0)
    x = torch.rand(7, *COLOUR.shape)
    reference = headless().train()
    expected = torch.cat([reference(x[:4]), reference(x[4:])])
    torch.testing.assert_close(backbone.stem(x, (4, 3)), expected)
    torch.testing.assert_close(backbone.module.state_dict(), reference.state_dict())


def test_a_batch_of_one_is_normalised_by_the_running_statistics() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    learner = Er(VECTORS, backbone=net)
    learner.begin_task(TaskInfo("a", 2))
    learner.observe(*batch(VECTORS, 1, 2))
    assert learner.net.backbone.training


def test_the_state_of_a_learner_with_its_own_backbone_can_be_taken_over() -> None:
    def made() -> Scale:
        return Scale(COLOUR, ScaleConfig(weight_average=0.9), backbone=headless())

    one, other = teach(made(), tasks=2), made()
    other.load_state_dict(one.state_dict())
    assert differences(one, other) == []
    assert differences(teach(one, tasks=1, first=2), teach(other, tasks=1, first=2)) == []


@pytest.mark.parametrize(
    ("backbone", "error", "message"),
    [
        (
            CustomBackbone(headless, film="layer9"),
            ConfigError,
            "FiLM cannot go to 'layer9'.* such as stem, layer1, pool",
        ),
        (CustomBackbone(headless, film=("output", "stem")), ConfigError, "'output' last"),
        (CustomBackbone(headless, film=()), ConfigError, "name each place once"),
        (lambda: 3, ConfigError, "backbone is int"),
        (lambda: nn.Linear(5, 5), InputError, r"cannot take inputs \[B, 3, 17, 17\]"),
        (lambda: nn.Flatten(2), InputError, r"returns \[2, 3, 289\]; it must return features"),
    ],
)
def test_what_cannot_be_a_backbone_is_said(backbone: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Scale(COLOUR, ScaleConfig(), backbone=backbone)


@pytest.mark.parametrize("name", ["resnet50", "mlp-", "resnet"])
def test_an_unknown_name_says_what_would_be_right(name: str) -> None:
    for make in (lambda: ScaleConfig(backbone=name), lambda: registry.make("scale", COLOUR, backbone=cast(Any, name))):
        with pytest.raises(ConfigError) as caught:
            make()
        text = str(caught.value)
        assert text.startswith(f"learner.backbone: {name!r} is not one of auto, mlp, resnet18, ")
        assert text.endswith("(module:function or file.py:function) or, in Python, give the nn.Module itself")


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backbone is int; give an nn\.Module or a function that makes one"):
        Scale(COLOUR, backbone=cast(Any, 3))
