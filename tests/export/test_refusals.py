"""What cannot be exported, or came out wrong: one line says why, and nothing is left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scale_cl import ContinualClassifier, ScaleClassifier
from scale_cl.errors import ConfigError, ExportError, InputError, OutputInUseError, UnknownTaskError
from scale_cl.export import to_onnx, to_torch_export
from scale_cl.export.export_files import check
from scale_cl.export.export_task import RawTaskNet, Subject, subject_of
from scale_cl.learners import Finetune, Learner, registry
from tests.learners.tiny import VECTORS, teach


@pytest.fixture(scope="module")
def learner() -> Learner:
    return teach(registry.make("scale", VECTORS), tasks=2)


def inside(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_that_answers_otherwise_is_not_left(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Subject.net

    def wrong(self: Subject) -> RawTaskNet:
        net = real(self)
        net.network.get_parameter("head.bias")[1] += 0.01
        return net

    monkeypatch.setattr(Subject, "net", wrong)
    for export in (to_onnx, to_torch_export):
        with pytest.raises(ExportError, match=r"'task 0': logits differ by 0\.01, at most 0\.0001 is allowed"):
            export(learner, tmp_path / "new" / "a", task="task 0")
    assert inside(tmp_path) == []
    old = tmp_path / "a.pt2"
    old.write_text("as it was")
    with pytest.raises(ExportError):
        to_torch_export(learner, old, task="task 0", force=True)
    assert old.read_text() == "as it was"


def test_another_class_or_shape_or_nan_is_no_agreement(learner: Learner) -> None:
    subject = subject_of(learner, "task 0")
    net = subject.net()
    assert check(subject, net).difference < 1e-5
    with pytest.raises(ExportError, match="differ"):
        check(subject, lambda x: net(x).flip(1))
    with pytest.raises(ExportError, match="differ by nan"):
        check(subject, lambda x: net(x) * torch.nan)
    with pytest.raises(ExportError, match=r"gives logits \[64, 2\], expected \[64, 3\]"):
        check(subject, lambda x: net(x)[:, :2])


def test_scores_that_the_network_does_not_compute_are_named(tmp_path: Path) -> None:
    class Doubled(Finetune):
        def scores(self, x: Tensor, task: Tensor) -> Tensor:
            return 2 * super().scores(x, task)

    learner = teach(Doubled(VECTORS), tasks=1)
    said = "; nothing is left of it; Doubled has `scores` of its own, which `for_task` of the network that predicts"
    with pytest.raises(ExportError, match=said):
        to_torch_export(learner, tmp_path / "a.pt2")
    assert inside(tmp_path) == []


def test_a_class_that_changes_within_the_tolerance_of_a_logit_is_seen(learner: Learner) -> None:
    """Logits near 1000 may differ by 0.1; samples whose first two classes are further apart must keep their class."""
    subject = subject_of(learner, "task 0")

    class Apart(Learner):
        device, tasks = torch.device("cpu"), learner.tasks
        spec, net, engine = learner.spec, learner.net, learner.engine

        def __init__(self) -> None:
            pass

        def predict(self, x: Tensor, task: str | None = None) -> Tensor:
            return torch.tensor([[1000.0, 999.85, 0.0]]).expand(len(x), 3)

    apart = Subject(Apart(), subject.task, subject.classes)
    assert check(apart, lambda x: torch.tensor([[999.95, 999.9, 0.0]]).expand(len(x), 3)).samples == 64
    with pytest.raises(ExportError, match="64 of 64 samples another class"):
        check(apart, lambda x: torch.tensor([[999.91, 999.94, 0.0]]).expand(len(x), 3))


def test_files_that_are_there_are_kept_unless_forced(learner: Learner, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_text("mine")
    with pytest.raises(OutputInUseError, match="exists already"):
        to_torch_export(learner, path, task="task 0")
    assert path.read_text() == "mine"
    to_torch_export(learner, path, task="task 0", force=True)
    assert torch.export.load(path).module()(torch.zeros(2, 6)).shape == (2, 3)
    assert inside(tmp_path) == ["a.pt2"]
    with pytest.raises(OutputInUseError, match="is a folder"):
        to_torch_export(learner, tmp_path, task="task 0")
    with pytest.raises(OutputInUseError, match="cannot be written"):
        to_torch_export(learner, path / "inside.pt2", task="task 0")


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (lambda one: one, {"task": "task 9"}, UnknownTaskError, "'task 9' was never seen; tasks seen: 'task 0', "),
        (lambda one: one, {}, InputError, "several tasks were seen .*; say which one"),
        (lambda one: one, {"task": "task 0", "classes": "ab"}, InputError, "2 class names .* has 3 classes"),
        (lambda _: registry.make("er", VECTORS), {}, ExportError, "seen no task yet"),
        (lambda _: ScaleClassifier(), {}, InputError, "ScaleClassifier is not fitted yet"),
        (lambda _: nn.Linear(2, 2), {}, InputError, "Linear is neither a learner nor a fitted classifier"),
    ],
)
def test_what_is_wrong_is_said(
    learner: Learner, model: Any, options: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        to_torch_export(model(learner), tmp_path / "a.pt2", **options)
    assert inside(tmp_path) == []


def test_a_name_that_ends_as_the_other_format_is_refused(learner: Learner, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a file of onnx ends in \.onnx"):
        to_onnx(learner, tmp_path / "a.pt2", task="task 0")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_extra_is_named(
    learner: Learner, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=r"needs the extra: pip install 'scale-cl\[onnx\]'"):
        to_onnx(learner, tmp_path / "a.onnx", task="task 0")
    to_torch_export(learner, tmp_path / "a.pt2", task="task 0")


def test_a_backbone_that_no_graph_can_hold_is_refused_in_one_line(tmp_path: Path) -> None:
    class ByValue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.one(x), self.other(x)
            out: Tensor = first + second if x.sum() > 1 else first - second
            return out

    model = ContinualClassifier("er", backbone=ByValue(), epochs=1).fit([[0.0] * 6, [1.0] * 6], [0, 1])
    with pytest.raises(ExportError, match=r"torch\.export cannot follow the network: ") as raised:
        to_torch_export(model, tmp_path / "a.pt2")
    assert "\n" not in str(raised.value)
    assert inside(tmp_path) == []
