"""Accuracy: every test sample is scored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scale_cl import streams
from scale_cl.learners import Finetune
from scale_cl.streams import Stream
from scale_cl.training import accuracies, learner_run


class Oracle(Finetune):
    """Knows the label of every sample that it has been shown, and says 0 for the others."""

    def __init__(self, stream: Stream, known: int) -> None:
        super().__init__(stream.spec)
        self.sizes: list[int] = []
        self.answers: dict[bytes, int] = {}
        for task in range(len(stream)):
            x, y = stream.test_data(task)
            for sample, label in zip(x[:known], y[:known], strict=True):
                self.answers[sample.numpy().tobytes()] = int(label)

    def predict(self, x: Tensor, task: str | None = None) -> Tensor:
        self.sizes.append(len(x))
        labels = torch.tensor([self.answers.get(sample.numpy().tobytes(), 0) for sample in x])
        return torch.nn.functional.one_hot(labels, 10).float()


@pytest.mark.parametrize("chunk", [1, 7, 40, 2000])
def test_accuracy_is_the_share_of_right_answers_whatever_the_chunks(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_run, "CHUNK", chunk)
    stream = streams.permuted(streams.load_arrays("digits"), tasks=2, train=10, test=40, seed=0)
    assert accuracies(Oracle(stream, 40), stream, 2) == [100.0, 100.0]
    oracle = Oracle(stream, 13)
    expected = []
    for task in range(2):
        _, y = stream.test_data(task)
        expected.append(100 * (13 + int((y[13:] == 0).sum())) / 40)
    assert accuracies(oracle, stream, 2) == expected
    assert sum(oracle.sizes) == 80
    assert max(oracle.sizes) == min(chunk, 40)
    assert accuracies(oracle, stream, 1) == expected[:1]
