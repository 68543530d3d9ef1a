"""Joint training: its step against a plain re-computation, and its way through the training loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl import streams
from scale_cl.errors import ConfigError, InputError, ScaleClError
from scale_cl.learners import Finetune, FinetuneConfig, Joint, JointConfig, StepStats
from scale_cl.streams import InputSpec, Stream, TaskInfo
from scale_cl.training import Event, train, train_many
from scale_cl.training.events import Evaluated, Finished, Started, Stepped, TaskStarted
from tests.learners.plain import IMAGE, SPLIT, VECTOR, PlainNet, gradients, in_double, pixels
from tests.learners.tiny import batch


def make(spec: InputSpec) -> Joint:
    return Joint(spec)


# ---- the step --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [VECTOR, SPLIT, IMAGE], ids=["one head", "a head a task", "resnet"])
def test_steps_on_mixed_batches_are_those_of_the_plain_computation(spec: InputSpec) -> None:
    learner = in_double(Joint(spec, JointConfig(lr=0.02)))
    classes = (3, 3, 3) if spec is VECTOR else (2, 4, 3)
    for name, width in zip("abc", classes, strict=True):
        learner.begin_task(TaskInfo(name, width))
    learner.end_task()
    net = PlainNet(learner)
    net.meet(learner)
    data = torch.Generator().manual_seed(1)
    for _ in range(3):
        x, y = pixels(spec, 6, min(classes), data)
        task = torch.randint(0, 3, (6,), generator=data)
        loss = net.loss(x, y.tolist(), task.tolist())
        stats = learner.observe(x, y, task)
        torch.testing.assert_close(stats["loss"], loss.detach())
        for name, g in gradients(loss, net.base).items():
            net.base[name] = (net.base[name] - 0.02 * g).detach().requires_grad_()
        net.compare(learner)
    assert learner.steps == 3


def test_a_batch_of_the_open_task_is_one_of_fine_tuning() -> None:
    joint, plain = Joint(SPLIT, JointConfig(lr=0.1)), Finetune(SPLIT, FinetuneConfig(lr=0.1))
    for learner in (joint, plain):
        for task in "ab":
            learner.begin_task(TaskInfo(task, 3))
            learner.observe(*batch(SPLIT, 4))
    for name, p in plain.net.base_parameters().items():
        assert torch.equal(joint.net.base_parameters()[name], p)


def test_the_weight_average_follows() -> None:
    learner = Joint(SPLIT, JointConfig(weight_average=0.9))
    learner.begin_task(TaskInfo("a", 3))
    x, y = batch(SPLIT, 4)
    first = learner.engine.average["backbone.layers.0.weight"].clone()
    learner.observe(x, y, torch.zeros_like(y))
    expected = 0.9 * first + 0.1 * learner.net.base_parameters()["backbone.layers.0.weight"].detach()
    torch.testing.assert_close(learner.engine.average["backbone.layers.0.weight"], expected)


@pytest.mark.parametrize(
    ("task", "label", "message"),
    [
        (torch.tensor([0, 1, 2]), 0, "task number 2 was never begun; tasks are 0 to 1"),
        (torch.tensor([0, -1, 1]), 0, "task number -1 was never begun"),
        (torch.tensor([0, 1]), 0, r"task numbers have shape \[2\] and torch.int64; expected \[3\] and torch.int64"),
        (torch.tensor([0.0, 1.0, 1.0]), 0, r"torch.float32; expected \[3\] and torch.int64"),
        (torch.tensor([0, 1, 1]), 2, "label 2 is outside the head of task 0; its labels are 0 to 1"),
        (torch.tensor([1, 1, 1]), 3, "label 3 is outside the head of task 1; its labels are 0 to 2"),
    ],
)
def test_bad_tasks_are_refused_in_one_line(task: Tensor, label: int, message: str) -> None:
    learner = Joint(SPLIT)
    learner.begin_task(TaskInfo("a", 2))
    learner.begin_task(TaskInfo("b", 3))
    x, _ = batch(SPLIT, 3)
    with pytest.raises(InputError, match=message) as caught:
        learner.observe(x, torch.tensor([label, 0, 0]), task)
    assert "\n" not in str(caught.value)
    assert learner.steps == 0


def test_a_mixed_batch_before_any_task_is_refused() -> None:
    x, y = batch(SPLIT, 3)
    with pytest.raises(ScaleClError, match="no task was begun: call begin_task"):
        Joint(SPLIT).observe(x, y, torch.zeros_like(y))


@pytest.mark.parametrize("values", [{"lr": 0.0}, {"epochs": 0}])
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        JointConfig(**values)


# ---- the training loop -----------------------------------------------------------------------------------------------


class Recorder(Joint):
    """Learns nothing and remembers what it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        assert task is not None
        self.batches.append((x.clone(), y.clone(), task.clone()))
        return {}


def digits(seed: int = 0, tasks: int = 3) -> Stream:
    return streams.permuted(streams.load_arrays("digits"), tasks=tasks, train=25, test=20, seed=seed, name="few")


def colours() -> Stream:
    data = torch.Generator().manual_seed(0)
    labels = [torch.arange(9) % (k + 2) for k in range(3)]  # heads of different widths
    parts = [(pixels(IMAGE, 9, 1, data)[0], y, pixels(IMAGE, 5, 1, data)[0], y[:5]) for y in labels]
    return streams.from_arrays(parts, scenario="task")


@pytest.mark.parametrize("stream", [digits(), colours()], ids=["permuted", "split"])
def test_every_sample_of_every_task_comes_once_an_epoch_in_a_new_order(stream: Stream) -> None:
    learner = Recorder(stream.spec, JointConfig(epochs=2))
    train(learner, stream, batch_size=7)
    total = sum(len(task.train) for task in stream.tasks)
    assert [len(y) for _, y, _ in learner.batches] == 2 * [*[7] * (total // 7), *[total % 7] * (total % 7 > 0)]
    x, y, task = (torch.cat(column) for column in zip(*learner.batches, strict=True))
    wanted = sorted(
        (number, int(label), sample.tolist())
        for number in range(len(stream))
        for sample, label in zip(*stream.train_data(number), strict=True)
    )
    orders = []
    for part in (slice(0, total), slice(total, None)):
        came = [
            (int(k), int(label), sample.tolist()) for k, label, sample in zip(task[part], y[part], x[part], strict=True)
        ]
        assert sorted(came) == wanted
        orders.append(came)
    assert orders[0] != orders[1]
    assert any(len(set(tasks.tolist())) > 1 for _, _, tasks in learner.batches), "batches mix tasks"


def test_a_blurred_stream_has_the_same_samples_each_with_its_own_task() -> None:
    came = []
    for stream in (digits(), streams.blurred(digits(), share=0.5)):
        learner = Recorder(stream.spec, JointConfig(epochs=1))
        train(learner, stream, batch_size=25)
        x, y, task = (torch.cat(column) for column in zip(*learner.batches, strict=True))
        came.append(sorted((int(k), int(label), sample.tolist()) for k, label, sample in zip(task, y, x, strict=True)))
    assert came[0] == came[1]


def test_only_the_last_row_is_evaluated_and_only_acc_is_defined() -> None:
    stream, told = digits(), list[Event]()
    learner = Joint(stream.spec, JointConfig(epochs=2))
    result = train(learner, stream, on_event=told.append)
    assert result.matrix[:-1] == [[None] * 3] * 2
    assert all(value is not None and 0 <= value <= 100 for value in result.matrix[-1])
    assert result.acc is not None
    assert (result.fm, result.la, result.bwt) == (None, None, None)
    assert learner.steps == 16
    last = [value for value in result.matrix[-1] if value is not None]
    assert told == [
        Started("few", "joint", (0,), 3, 16),
        TaskStarted(0, "all tasks together", 16),
        *(Stepped(step) for step in range(1, 17)),
        Evaluated(0, 2, last),
        Finished(),
    ]


def test_seeds_side_by_side_have_the_results_they_have_alone() -> None:
    tracks = [digits(seed) for seed in (4, 9)]
    together = train_many([Joint(track.spec, seed=track.seed) for track in tracks], tracks)
    alone = [train(Joint(track.spec, seed=track.seed), track) for track in tracks]
    assert [result.matrix for result in together] == [result.matrix for result in alone]
    assert together[0].matrix != together[1].matrix


def test_more_epochs_learn_more() -> None:
    stream = digits()
    once, often = (train(Joint(stream.spec, JointConfig(lr=0.1, epochs=epochs)), stream) for epochs in (1, 12))
    assert once.acc is not None
    assert often.acc is not None
    assert often.acc > once.acc + 5


def test_joint_training_does_not_run_beside_other_learners() -> None:
    stream = digits()
    with pytest.raises(ConfigError, match="joint training does not run side by side"):
        train_many([Joint(stream.spec), Finetune(stream.spec)], [stream, stream])


def test_the_command_line_reports_acc_alone(command: Any) -> None:
    finished = command("run", "--learner", "joint", "--stream", "digits", "--tasks", "2", "--quiet", "--out", "joint")
    assert finished.code == 0, finished.err
    assert "joint on digits: ACC" in finished.out
