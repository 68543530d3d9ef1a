"""Learners of the catalog, trained and exported: the file gives the learner's answers, sample by sample."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import scale_cl
from scale_cl import CustomBackbone, ScaleConfig, Stream, TaskInfo, streams, train
from scale_cl.engine import Engine
from scale_cl.export import to_onnx, to_torch_export
from scale_cl.export.export_files import check
from scale_cl.export.export_task import subject_of
from scale_cl.learners import AclConfig, Batch, Compute, Finetune, Learner, registry
from scale_cl.settings import build
from tests.export.loaded import OnnxFile, constants, operations, pt2_logits
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, VECTORS, batch, new, teach
from tests.nets.test_custom_backbone import Tokens, headless
from tests.outside.installed import PACKAGE
from tests.training.devices import DEVICES
from tests.training.small_streams import few_digits

# torch.export.load, in torch 2.13, calls what torch itself has deprecated; the package hides it, the tests load alone
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
TOLERANCE = 1e-4  # of a logit, as a share of the largest


def tinted_digits() -> Stream:
    """Two tasks of two digits each as colour images, for the ResNet."""
    grey = streams.load_arrays("digits")
    colour = torch.tensor([1.0, 0.6, 0.3])[:, None, None]
    parts = []
    for digits in ((0, 1), (2, 3)):
        pairs = []
        for x, y, n in ((grey.x_train, grey.y_train, 60), (grey.x_test, grey.y_test, 40)):
            rows = torch.isin(y, torch.tensor(digits)).nonzero().flatten()[:n]
            pairs += [(x[rows] * 15 * colour).to(torch.uint8), y[rows] - digits[0]]
        parts.append(tuple(pairs))
    return streams.from_arrays(parts, scenario="task", name="tinted")


def trained(name: str, stream: Stream, like: str = "digits", **settings: object) -> Learner:
    """By the settings for another stream."""
    values = registry.preset_settings(name, like) | settings
    config = build(registry.config_class(name), values, section="learner")
    learner = registry.make(name, stream.spec, config)
    train(learner, stream)
    return learner


def assert_same_answers(learner: Learner, task: str, x: Tensor, logits: Any) -> None:
    wanted = learner.predict(x, task).numpy()
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=TOLERANCE * max(1, np.abs(wanted).max()))
    np.testing.assert_array_equal(logits.argmax(1), wanted.argmax(1))


@pytest.mark.parametrize("name", ["scale-ema", "acl"])  # the common network with FiLM, and one of its own
def test_on_real_test_data_an_onnx_file_predicts_as_the_learner(name: str, tmp_path: Path) -> None:
    stream = few_digits(tasks=2, train=400)
    learner, task = trained(name, stream), stream.tasks[0]
    exported = to_onnx(learner, tmp_path / "a.onnx", task=task.name, classes=task.classes)
    file, (x, y) = OnnxFile(tmp_path / "a.onnx"), stream.test_data(0)
    for size in (1, 7, len(x)):
        assert_same_answers(learner, task.name, x, file.logits(x, size))
    assert np.mean(file.logits(x).argmax(1) == y.numpy()) > 0.5, "it has learned something"
    assert (exported.size, exported.samples) == ((tmp_path / "a.onnx").stat().st_size, 64)
    assert exported.difference < TOLERANCE
    assert file.classes == [str(digit) for digit in range(10)]
    assert (file.metadata["task"], file.metadata["learner"]) == (task.name, name)
    assert file.metadata["scale_cl"] == scale_cl.__version__
    assert (file.metadata["input_dtype"], file.input.type) == ("uint8", "tensor(uint8)")
    assert (file.input.shape, file.output.shape) == (["batch", 1, 8, 8], ["batch", 10])


def test_a_resnet_is_exported_without_batch_norms(tmp_path: Path) -> None:
    stream = tinted_digits()
    learner = trained("scale", stream, "scifar10")
    x, task = stream.test_data(0)[0], stream.tasks[0].name
    to_onnx(learner, tmp_path / "a.onnx", task=task)
    file = OnnxFile(tmp_path / "a.onnx")
    for size in (1, len(x)):
        assert_same_answers(learner, task, x, file.logits(x, size))
    assert operations(tmp_path / "a.onnx")["BatchNormalization"] == 0
    to_torch_export(learner, tmp_path / "a.pt2", task=task)
    assert_same_answers(learner, task, x, pt2_logits(tmp_path / "a.pt2", x))
    program = torch.export.load(tmp_path / "a.pt2")
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)


def test_a_private_module_of_convolutions_is_exported_with_the_resnet(tmp_path: Path) -> None:
    learner = teach(registry.make("acl", COLOUR, AclConfig(private_channels=4)))
    x, _ = batch(COLOUR, 9)
    to_torch_export(learner, tmp_path / "a.pt2", task="task 1")
    assert_same_answers(learner, "task 1", x, pt2_logits(tmp_path / "a.pt2", x))


def test_the_weight_average_is_what_is_exported(tmp_path: Path) -> None:
    stream = few_digits(tasks=2)
    learner = trained("scale-ema", stream)
    x, task = stream.test_data(0)[0], stream.tasks[0].name
    to_torch_export(learner, tmp_path / "a.pt2", task=task)
    found = pt2_logits(tmp_path / "a.pt2", x)
    assert_same_answers(learner, task, x, found)
    with torch.no_grad():
        raw = learner.net.eval()(learner.net.inputs(x), torch.zeros(len(x), dtype=torch.int64)).logits.numpy()
    assert np.abs(raw - found).max() > 0.1, "the weights of the last step predict otherwise"


@pytest.mark.parametrize("name", registry.names())
def test_every_learner_can_be_exported(name: str, tmp_path: Path) -> None:
    learner = teach(new(name))
    x, _ = batch(SPLIT, 9)
    to_torch_export(learner, tmp_path / "a.pt2", task="task 1")
    assert_same_answers(learner, "task 1", x, pt2_logits(tmp_path / "a.pt2", x))


@pytest.mark.parametrize(
    ("spec", "config", "backbone", "form"),
    [
        (DOMAIN, ScaleConfig(film="sum"), None, "pt2"),
        (DOMAIN, ScaleConfig(standardise=True), None, "pt2"),
        (VECTORS, ScaleConfig(standardise=True), None, "onnx"),
        (COLOUR, ScaleConfig(), headless, "pt2"),
        (COLOUR, ScaleConfig(), CustomBackbone(headless, film=("stem", "layer1.0", "output")), "onnx"),
        (COLOUR, ScaleConfig(film="sum"), CustomBackbone(Tokens, film=("embed", "output")), "onnx"),
    ],
)
def test_every_kind_of_network_can_be_exported(
    spec: Any, config: ScaleConfig, backbone: Any, form: str, tmp_path: Path
) -> None:
    learner = teach(registry.make("scale", spec, config, backbone=backbone))
    x, _ = batch(spec, 9)
    path = tmp_path / f"a.{form}"
    (to_onnx if form == "onnx" else to_torch_export)(learner, path, task="task 1")
    logits = OnnxFile(path).logits(x) if form == "onnx" else pt2_logits(path, x)
    assert_same_answers(learner, "task 1", x, logits)
    assert np.abs(logits - learner.predict(x, "task 0").numpy()).max() > 100 * TOLERANCE, "tasks differ"


def test_only_the_head_of_the_task_is_in_the_file_and_nothing_of_the_generator(tmp_path: Path) -> None:
    learner = registry.make("scale", VECTORS)
    for name, classes in (("a", 3), ("b", 5), ("c", 2)):
        learner.begin_task(TaskInfo(name, classes))
        learner.observe(*batch(VECTORS, 4, classes))
    to_onnx(learner, tmp_path / "a.onnx", task="b")
    shapes = [tuple(sorted(n for n in shape if n != 1)) for shape in constants(tmp_path / "a.onnx")]
    film = [(256,)] * 4  # a scale and a shift at each of two layers
    assert sorted(shapes) == sorted([(6, 256), (256,), (256, 256), (256,), (5, 256), (5,), *film])
    assert OnnxFile(tmp_path / "a.onnx").output.shape == ["batch", 5]
    content = (tmp_path / "a.onnx").read_bytes()
    assert str(Path(scale_cl.__file__).parent).encode() not in content, "no path of the machine that wrote it"


def test_a_task_of_a_shared_head_has_the_classes_that_it_was_begun_with(tmp_path: Path) -> None:
    learner = registry.make("er", DOMAIN)
    for name, classes in (("a", 3), ("b", 5)):
        learner.begin_task(TaskInfo(name, classes))
        learner.observe(*batch(DOMAIN, 4, classes))
    x, _ = batch(DOMAIN, 6)
    to_torch_export(learner, tmp_path / "a.pt2", task="a")
    found = pt2_logits(tmp_path / "a.pt2", x)
    assert found.shape == (6, 3)
    assert_same_answers(learner, "a", x, found)


def test_exporting_leaves_no_trace_in_the_learner(tmp_path: Path) -> None:
    learners = [teach(registry.make("scale-ema", COLOUR, backbone=headless)) for _ in range(2)]
    to_torch_export(learners[0], tmp_path / "a.pt2", task="task 0")
    for learner in learners:
        teach(learner, tasks=1, first=3)
    one, other = (learner.state_dict()["tensors"] for learner in learners)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert learners[0].net.training


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["own scores", "mean of flips", "own backbone"])
def test_a_learner_that_lives_elsewhere_is_exported_as_it_predicts(
    kind: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"device": device, "compute": Compute("fp32", capture=device != "cpu"), "seed": 3}
    if kind == "own scores":  # and a network that has no plain forward
        monkeypatch.syspath_prepend(PACKAGE / "src")
        learner: Learner = importlib.import_module("outside_methods.pnn").Pnn(COLOUR, **given)
    elif kind == "mean of flips":
        learner = registry.make("scale", COLOUR, ScaleConfig(average_flips=True, weight_average=0.9), **given)
    else:
        learner = registry.make("er", COLOUR, backbone=headless, **given)
    teach(learner, tasks=2)
    learner.begin_task(TaskInfo("task 2", 3))
    learner.observe(*batch(COLOUR, 4, seed=9))
    x, _ = batch(COLOUR, 9)
    wanted = {task: learner.predict(x, task).cpu().numpy() for task in learner.tasks[1:]}
    if device == "cpu":
        learner.device = torch.device("cuda")  # as if it lived there: this is what export looks at
    for task, logits in wanted.items():
        to_torch_export(learner, tmp_path / f"{task}.pt2", task=task)
        found = pt2_logits(tmp_path / f"{task}.pt2", x)
        np.testing.assert_allclose(found, logits, rtol=0, atol=10 * TOLERANCE * max(1, np.abs(logits).max()))


def test_stored_samples_are_compared_whatever_the_memory_is_called() -> None:
    class Keeper(Finetune):
        def build(self, engine: Engine) -> None:
            super().build(engine)
            self.kept = engine.memory("kept", 5)

        def update(self, batch: Batch) -> None:
            super().update(batch)
            self.kept.write(batch)

    learner = teach(Keeper(SPLIT))
    subject, asked = subject_of(learner, "task 1"), list[Tensor]()
    net = subject.net()

    def answer(x: Tensor) -> Tensor:
        asked.append(x)
        logits: Tensor = net(x)
        return logits

    assert check(subject, answer).samples == 64
    assert torch.equal(asked[0][:5], learner.kept.x[learner.kept.rows_of(1)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_learner_on_a_gpu_is_exported_in_32_bits(precision: Any, tmp_path: Path) -> None:
    stream = tinted_digits()
    learner = registry.make("scale", stream.spec, device="cuda", compute=Compute(precision=precision))
    train(learner, stream.to("cuda"))
    x, task = stream.test_data(0)[0], stream.tasks[0].name
    exported = to_onnx(learner, tmp_path / "a.onnx", task=task)
    assert exported.difference < TOLERANCE * 50
    found, wanted = OnnxFile(tmp_path / "a.onnx").logits(x), learner.predict(x, task).cpu().numpy()
    np.testing.assert_allclose(found, wanted, atol=0.1 * max(1, np.abs(wanted).max()))
