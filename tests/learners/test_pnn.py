"""PNN: what a column reads, what is frozen, how it grows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scale_cl import train
from scale_cl.errors import ConfigError
from scale_cl.learners import Pnn, PnnConfig
from scale_cl.learners.independent import Column
from scale_cl.learners.method_properties import parameters_in_use
from scale_cl.learners.pnn import Lateral, ProgressiveColumn
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, SPLIT, batch, teach
from tests.nets.test_custom_backbone import headless
from tests.training.small_streams import few_digits


def make(spec: InputSpec) -> Pnn:
    return Pnn(spec, PnnConfig(width=4))


def column(learner: Pnn, number: int) -> ProgressiveColumn:
    found = learner.columns[number]
    assert isinstance(found, ProgressiveColumn)
    return found


def widths(learner: Pnn, number: int) -> list[int]:
    """Of the lateral connections of a column."""
    return [len(lateral.u) for lateral in column(learner, number).laterals if isinstance(lateral, Lateral)]


def test_a_layer_of_the_third_column_reads_the_layers_below_of_the_first_two() -> None:
    learner = teach(make(SPLIT), tasks=3)
    x = batch(SPLIT, 5)[0]
    h: list[list[Tensor]] = []  # of each column, of each layer
    for k in range(3):
        own, before, sites = column(learner, k), x.flatten(1) / 255, []
        for i, layer in enumerate(own.backbone.layers):  # type: ignore[arg-type]
            sites.append(torch.relu(before @ layer.weight.T + layer.bias))
            before = sites[-1]
            if k > 0:
                lateral = own.laterals[i]
                assert isinstance(lateral, Lateral)
                read = torch.cat([lateral.scale[j] * h[j][i] for j in range(k)], 1)
                before = before + torch.relu(read @ lateral.v.T + lateral.bias) @ lateral.u.T
        h.append(sites)
        logits = before @ learner.net.heads.weight.data[k].T + learner.net.heads.bias.data[k]
        torch.testing.assert_close(learner.predict(x, f"task {k}"), logits.detach(), rtol=1e-5, atol=1e-6)


def test_a_resnet_reads_at_the_ends_of_its_stages() -> None:
    learner = teach(make(COLOUR), tasks=2, steps=1)
    assert widths(learner, 1) == [4, 8, 16, 32]
    seen: list[tuple[int, ...]] = []
    handles = [
        lateral.register_forward_hook(lambda _m, _i, out: seen.append(tuple(out.shape)))
        for lateral in column(learner, 1).laterals
    ]
    learner.predict(batch(COLOUR, 3)[0], "task 1")
    for handle in handles:
        handle.remove()
    assert seen == [(3, 4, 9, 9), (3, 8, 5, 5), (3, 16, 3, 3), (3, 32)]


def test_a_lateral_of_feature_maps_reads_each_pixel_as_one_of_vectors_would() -> None:
    generator = torch.Generator().manual_seed(0)
    lateral = Lateral(4, 2, xavier=True, generator=generator)
    with torch.no_grad():
        lateral.scale.copy_(torch.tensor([0.5, -2.0]))
    maps = [torch.randn(3, 4, 5, 5, generator=generator) for _ in range(2)]
    found = lateral(maps)
    for i in range(5):
        for j in range(5):
            read = torch.cat([0.5 * maps[0][:, :, i, j], -2.0 * maps[1][:, :, i, j]], 1)
            wanted = (read @ lateral.v.T + lateral.bias).clamp(min=0) @ lateral.u.T
            torch.testing.assert_close(found[:, :, i, j], wanted)


@pytest.mark.parametrize("spec", [SPLIT, COLOUR], ids=["mlp", "resnet"])
def test_finished_columns_do_not_move_by_a_bit(spec: InputSpec) -> None:
    learner = teach(make(spec), tasks=2)
    x = batch(spec, 5)[0]
    before = [learner.predict(x, f"task {k}").clone() for k in range(2)]
    kept = {name: t.clone() for name, t in learner.columns.state_dict().items()}
    teach(learner, tasks=2, first=2)
    now = learner.columns.state_dict()
    assert all(torch.equal(now[name], t) for name, t in kept.items()), "running statistics too"
    assert all(torch.equal(learner.predict(x, f"task {k}"), before[k]) for k in range(2))
    kept = {name: t.clone() for name, t in now.items()}
    teach(learner, tasks=1)  # the first task comes back: all read its column, and its head alone learns
    now = learner.columns.state_dict()
    assert all(torch.equal(now[name], t) for name, t in kept.items())
    assert torch.equal(learner.predict(x, "task 1"), before[1])
    assert not torch.equal(learner.predict(x, "task 0"), before[0])


def test_on_digits_nothing_is_forgotten_and_the_matrix_says_so_to_the_bit() -> None:
    stream = few_digits(tasks=3, train=100)
    learner = Pnn(stream.spec, PnnConfig(lr=0.1))
    result = train(learner, stream)
    assert result.fm == 0.0
    assert all(row[j] == result.matrix[j][j] for i, row in enumerate(result.matrix) for j in range(i))


def test_a_column_learns_by_reading_as_well() -> None:
    learner = teach(make(SPLIT), tasks=1)
    learner.begin_task(TaskInfo("next", 3))
    before = {name: p.detach().clone() for name, p in column(learner, 1).named_parameters()}
    learner.observe(*batch(SPLIT, 6))
    moved = {name for name, p in column(learner, 1).named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before)


def test_a_step_of_the_third_column_descends_by_its_own_weights_laterals_and_head() -> None:
    learner = Pnn(SPLIT, PnnConfig(width=4, lr=0.1))
    teach(learner, tasks=2)
    learner.begin_task(TaskInfo("open", 3))
    x, y = batch(SPLIT, 6, seed=5)
    kept = {name: t.clone() for name, t in learner.columns.state_dict().items()}
    heads = {name: p.detach().clone() for name, p in learner.net.heads.named_parameters()}
    theta = {name: p.clone().requires_grad_() for name, p in kept.items() if name.startswith("columns.2.")}
    theta |= {f"head.{name}": p[2].clone().requires_grad_() for name, p in heads.items()}
    h: list[list[Tensor]] = []  # of each column, of each layer
    for k in range(3):
        own = kept | theta if k == 2 else kept
        before, sites = x.flatten(1) / 255, []
        for i in (0, 1):
            name = f"columns.{k}.backbone.layers.{i}"
            sites.append((before @ own[f"{name}.weight"].T + own[f"{name}.bias"]).clamp(min=0))
            before = sites[-1]
            if k > 0:
                lateral = f"columns.{k}.laterals.{i}"
                read = torch.cat([own[f"{lateral}.scale"][j] * h[j][i] for j in range(k)], 1)
                inside = (read @ own[f"{lateral}.v"].T + own[f"{lateral}.bias"]).clamp(min=0)
                before = before + inside @ own[f"{lateral}.u"].T
        h.append(sites)
    logits = before @ theta["head.weight.data"].T + theta["head.bias.data"]
    loss = -logits.log_softmax(1)[range(6), y].mean()
    gradient = dict(zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True))
    assert float(learner.observe(x, y)["loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    expected = {name: (p - 0.1 * gradient[name]).detach() for name, p in theta.items()}
    for name, t in learner.columns.state_dict().items():
        torch.testing.assert_close(t, expected.get(name, kept[name]), rtol=1e-5, atol=1e-7)
        assert name in expected or torch.equal(t, kept[name])
    for name, p in learner.net.heads.named_parameters():
        torch.testing.assert_close(p.detach()[2], expected[f"head.{name}"], rtol=1e-5, atol=1e-7)
        assert torch.equal(p.detach()[:2], heads[name][:2])
    assert all(float(g.abs().max()) > 0 for g in gradient.values())


def test_parameters_grow_as_the_formula_says() -> None:
    learner, width, inputs = make(SPLIT), 4, 25
    counts = []
    for task in range(3):
        learner.begin_task(TaskInfo(str(task), 3))
        counts.append(parameters_in_use(learner))
    own = (inputs + 1) * width + (width + 1) * width + 3 * (width + 1)
    lateral = [2 * (k + (k * width + 1) * width + width * width) if k else 0 for k in range(3)]
    assert counts == [sum(own + lateral[j] for j in range(k + 1)) for k in range(3)]


def test_one_task_too_many_is_refused_in_one_line_and_the_open_one_goes_on() -> None:
    learner = Pnn(SPLIT, PnnConfig(width=4, max_tasks=2))
    teach(learner, tasks=2)
    learner.begin_task(TaskInfo("task 1", 3))
    other = Pnn(SPLIT, PnnConfig(width=4, max_tasks=2))
    other.load_state_dict(learner.state_dict())
    refused = r"'third' would be number 3, but pnn adds .* bounded to 2 \(learner.max_tasks\)"
    with pytest.raises(ConfigError, match=refused) as e:
        learner.begin_task(TaskInfo("third", 3))
    assert "\n" not in str(e.value)
    assert differences(learner, other) == []
    learner.observe(*batch(SPLIT, 4))


def test_a_backbone_of_ones_own_is_read_at_its_features_and_has_no_width_to_set() -> None:
    learner = teach(Pnn(COLOUR, backbone=headless), tasks=2, steps=1)
    assert widths(learner, 1) == [12]
    with pytest.raises(ConfigError, match=r"learner.width is for the backbones mlp and resnet18"):
        Pnn(COLOUR, PnnConfig(width=4), backbone=headless)


def test_what_is_frozen_in_a_backbone_stays_frozen() -> None:
    module = headless()
    module.stem.requires_grad_(False)
    learner = teach(Pnn(COLOUR, backbone=module), tasks=2, steps=1)
    for k in range(2):
        own = learner.columns[k]
        assert isinstance(own, Column)
        inside = own.backbone.get_submodule("module")
        assert torch.equal(inside.get_parameter("stem.0.weight"), module.stem[0].weight)  # type: ignore[arg-type]
        assert not torch.equal(inside.get_parameter("layer1.0.weight"), module.layer1[0].weight)  # type: ignore[arg-type]


def test_an_average_of_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner.weight_average must be 0"):
        PnnConfig(weight_average=0.9)
