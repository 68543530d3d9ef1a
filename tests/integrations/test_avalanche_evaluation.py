"""Evaluation inside Avalanche: its metrics and logs, of scores over its labels."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch import nn

from scale_cl.learners import Scale
from scale_cl.streams import TaskInfo
from tests.integrations.benchmarks import PAPER, accuracies, assert_same, evaluator, labelled, made, run, split


def test_metrics_and_logs_are_avalanches() -> None:
    log = io.StringIO()
    strategy, benchmark = made(like="digits", evaluator=evaluator(log)), labelled(split(3))
    rows = run(strategy, benchmark)
    metrics = strategy.evaluator.get_last_metrics()
    forgotten = [(rows[task][task] - rows[-1][task]) / 100 for task in range(2)]
    assert metrics["StreamForgetting/eval_phase/test_stream"] == pytest.approx(np.mean(forgotten))
    assert metrics["Top1_Acc_Stream/eval_phase/test_stream/Task002"] == pytest.approx(np.mean(rows[-1]) / 100)
    for task, accuracy in enumerate(rows[-1]):
        line = f"Top1_Acc_Exp/eval_phase/test_stream/Task{task:03}/Exp{task:03} = {accuracy / 100:.4f}"
        assert line in log.getvalue()
    assert f"StreamForgetting/eval_phase/test_stream = {np.mean(forgotten):.4f}" in log.getvalue()


def test_the_default_is_avalanches_interactive_log(capsys: pytest.CaptureFixture[str]) -> None:
    from scale_cl.integrations.avalanche import Scale as Strategy

    strategy, benchmark = Strategy(pixel_max=16, like="digits"), labelled(split(1))
    strategy.train(benchmark.train_stream, shuffle=False)
    accuracy = strategy.eval(benchmark.test_stream)["Top1_Acc_Stream/eval_phase/test_stream/Task000"]
    out = capsys.readouterr().out
    assert "100%" in out
    assert f"Top1_Acc_Stream/eval_phase/test_stream/Task000 = {accuracy:.4f}" in out


def test_the_loss_is_the_cross_entropy_within_the_samples_own_task() -> None:
    stream = split(2)
    strategy, benchmark = made(like="digits"), labelled(stream)
    run(strategy, benchmark)
    for task in range(2):
        x, y = stream.test_data(task)
        loss = nn.functional.cross_entropy(strategy.learner.predict(x, str(task)), y)
        found = strategy.evaluator.get_last_metrics()[f"Loss_Exp/eval_phase/test_stream/Task00{task}/Exp00{task}"]
        assert found == pytest.approx(float(loss), rel=1e-5)


def test_a_task_that_was_never_trained_gets_the_same_score_for_every_class() -> None:
    strategy, benchmark = made(), labelled(split(3))
    loss = "Loss_Exp/eval_phase/test_stream/Task002/Exp002"
    assert accuracies(strategy.eval(benchmark.test_stream[0]), 1)[0] > 0  # all is taken for the first class
    assert strategy.eval(benchmark.test_stream)[loss] == pytest.approx(np.log(6))
    strategy.train(benchmark.train_stream[0])
    metrics = strategy.eval(benchmark.test_stream)
    assert metrics[loss] == pytest.approx(np.log(6))
    assert accuracies(metrics, 3)[2] == 0


def test_a_batch_of_several_tasks_is_scored_sample_by_sample() -> None:
    stream = split(2)
    strategy = made(like="digits")
    run(strategy, labelled(stream))
    (x, _), (z, _) = stream.test_data(0), stream.test_data(1)
    mixed = strategy.model(torch.cat([x[:4], z[:4]])[[0, 4, 1, 5]], torch.tensor([0, 1, 0, 1]))
    assert torch.equal(mixed[[0, 2], :2], strategy.learner.predict(x[:2], "0"))
    assert torch.equal(mixed[[1, 3], 2:], strategy.learner.predict(z[:2], "1"))
    assert (mixed.softmax(1)[[0, 2], 2:] == 0).all()


def test_accuracy_in_training_is_that_of_before_each_step() -> None:
    stream = split(1)
    strategy = made(like="digits")
    strategy.train(labelled(stream).train_stream, shuffle=False)
    learner, right = Scale(stream.spec, PAPER), 0
    x, y = stream.train_data(0)
    for rows in torch.arange(len(x)).split(10):
        scores = learner.predict(x[rows], "0") if learner.steps else torch.zeros(10, 2)
        right += int((scores.argmax(1) == y[rows]).sum())
        if not learner.steps:
            learner.begin_task(TaskInfo("0", 2))
        learner.observe(x[rows], y[rows])
    found = strategy.evaluator.get_last_metrics()["Top1_Acc_Epoch/train_phase/train_stream/Task000"]
    assert found == pytest.approx(right / len(x))


def test_evaluation_in_the_middle_of_training_leaves_no_trace() -> None:
    benchmark = labelled(split(2))
    plain, watched = made(), made(eval_every=2, peval_mode="iteration")
    for strategy in (plain, watched):
        for experience in benchmark.train_stream:
            strategy.train(experience, eval_streams=[benchmark.test_stream], shuffle=False)
    assert watched.clock.total_iterations > plain.clock.total_iterations
    assert_same(plain.learner, watched.learner)
