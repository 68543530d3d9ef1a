"""The engine: what makes any method run, and knows none by name.

A method declares in `build` what it owns (see `building`, `owned`). From then on the engine grows it as tasks arrive,
saves and loads it, guards it against divergence and drops recorded steps when it moves. The engine opens and closes
tasks, checks batches, runs the step, keeps the weight average and predicts.
"""

from __future__ import annotations

import logging
import math
from dataclasses import fields
from typing import Literal, Protocol

import torch
from torch import Tensor

from scale_cl.engine.divergence import DeviceGuard, Finding, Guard, HostGuard
from scale_cl.engine.parts import TaskPart, TaskShape
from scale_cl.engine.prediction import Predictor
from scale_cl.engine.replay import Batch, ReplayMemory
from scale_cl.engine.settings import Setup, State, StepStats
from scale_cl.engine.turns import in_turn
from scale_cl.engine.validation import (
    check_heads,
    check_inputs,
    check_labels,
    check_memories,
    check_plain_values,
    check_taken,
    check_tasks,
)
from scale_cl.engine.weights import WeightState
from scale_cl.errors import FAILURES, CheckpointError, ConfigError, DivergenceError, InputError, ScaleClError, one_line
from scale_cl.memory import Journal
from scale_cl.streams import TaskInfo

STREAM = "stream"  # name of the one task of a stream without boundaries
_log = logging.getLogger("scale_cl")


class Method(Protocol):
    """What the engine calls of a method."""

    name: str  # of the learner, for messages

    def update(self, batch: Batch) -> None:
        """One step: device work only."""

    def task_began(self, task: int) -> None:
        """After a task was opened."""

    def pauses(self, step: int) -> bool:
        """Whether the host has work to do before a step of the open task."""

    def pause(self, step: int) -> None:
        """That work."""

    def task_ended(self, task: int) -> None:
        """Before the open task closes."""

    def derived(self) -> dict[str, Tensor]:
        """What `scores` reads besides, computed once for the present weights and memory."""

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        """Scores [B, classes] of raw samples, by which the method predicts."""


class Engine(Predictor):
    """Runs one method: tasks, steps and state; prediction is inherited."""

    def __init__(self, method: Method, setup: Setup) -> None:
        """`method` is called by the engine from the first task on."""
        super().__init__(method, setup)
        # what else to do after a diverged step; whoever makes the learner may know a better way
        self.advice = ', or let such steps be skipped (on_divergence="skip" in Compute)'
        self._under_way = False  # whether a step has begun and not ended
        self._places: object = None  # where tensors lay when steps were recorded
        self._divergence_reported = False  # whether a diverged step was reported
        self._searched: set[str] = set()  # after what the method was searched for state that it did not declare
        self.guard: Guard = (HostGuard if self.is_cpu else DeviceGuard)(self.device, self.compute.on_divergence)
        self.step = self.record(self._whole_step)
        self._classes_are_given = False  # without boundaries: whether the caller says which classes there are

    # ---- tasks -------------------------------------------------------------------------------------------------------

    @in_turn
    def begin_task(self, task: TaskInfo) -> None:
        """Open a task; a name seen before continues that task, perhaps with more classes.

        A stream without boundaries is one task called "stream"; begun again, it goes on with more classes.
        """
        self._check_whole()
        if task.classes < 1:
            raise InputError(f"task {task.name!r} has {task.classes} classes; a head needs at least one")
        if not self.spec.boundaries and task.name != STREAM:
            raise InputError(f"task {task.name!r} begins, but this learner was made for a stream without boundaries")
        if task.name not in self.numbers:
            number = len(self.numbers) + 1
            self.check_room(number, f"task {task.name!r} would be number {number}")
        self._classes_are_given = True
        self._open(task)

    def _open(self, task: TaskInfo) -> None:
        if self.spec.boundaries or self.current is None:
            self.end_task()
        number = self.numbers.get(task.name, len(self.numbers))
        if self.translates:
            self.labels.check(number, task.classes)
        with self.whole("begin_task"):
            self._open_number(number, task)

    def _open_number(self, number: int, task: TaskInfo) -> None:
        classes = self.labels.extend(number, task.classes) if self.translates else task.classes
        self.numbers[task.name] = number
        if number == len(self.classes):
            self.classes.append(0)
        self.classes[number] = max(self.classes[number], classes)
        heads = self.net.heads
        head = 0 if heads.shared else number
        outputs = heads.classes[head] if head < len(heads.classes) else 0
        with self.calling("build"):  # which declared how modules of a task are made
            self.owned.grow(number, self.classes[number], generator=self.weights_rng)
        self._look_up()
        self._average_takes(head, outputs)
        self.task.fill_(number)
        if self.current is None:
            self.task_steps = 0
        self.current, self._measured = task.name, -1
        shape = TaskShape(number, self.classes[number], len(self.classes))
        for memory in self.owned.memories.values():
            memory.open(number, shape.classes)
        task_parts = [part for part in self.owned.parts.values() if isinstance(part, TaskPart)]
        with self.calling("build"):
            for part in task_parts:
                part.begin(shape)
        if task_parts:
            self._look_up()
        with self.calling("task_began"):
            self.method.task_began(number)
        self._drop_what_moved()

    def check_room(self, tasks: int, where: str) -> None:
        """ConfigError if a method that grows with the tasks bounds their number to fewer than these.

        It does so by its modules per task, or by a network of its own. `where` begins the message: "pmnist has 102
        tasks".
        """
        bounds = [*(m.most for m in self.owned.task_modules.values()), getattr(self.net, "most_tasks", None)]
        most = min((bound for bound in bounds if bound is not None), default=None)
        if most is not None and tasks > most:
            raise ConfigError(
                f"{where}, but {self.method.name} adds to its network with each "
                f"and is bounded to {most} (learner.max_tasks); raise that, or take a learner that does not grow"
            )

    @in_turn
    def end_task(self) -> None:
        """Close the open task; without one, nothing happens."""
        if self.current is None:
            return
        self._check_whole()
        self.check_finite()
        with self.whole("end_task"):
            self._close()
        if "task" not in self._searched:
            self._search("task")

    def _close(self) -> None:
        for memory in self.owned.memories.values():
            memory.close()
        assert self.owned.network is not None
        for memory, measure in self.measurements:
            for rows, share in self.owned.network.measurement(memory):
                with self.autocast():
                    measure((len(rows),), rows, share)
        for memory in self.owned.memories.values():
            if memory.policy.ranked:
                self._rank(memory, self.open_task)
        with self.calling("task_ended"):
            self.method.task_ended(self.open_task)
        self._look_up()  # modules may have shrunk
        self._check_learned(f"when task {self.current!r} ended")
        self.current = None
        self._drop_what_moved()

    def _rank(self, memory: ReplayMemory, task: int) -> None:
        """Rank the task's stored samples by herding on the features that its head sees."""
        rows = memory.rows_of(task)
        if len(rows) == 0:
            return
        memory.herd(task, self.evaluated(memory.x[rows], memory.task[rows]).features)

    def _look_up(self) -> None:
        """After growth: find the parameters again."""
        self.owned.look_up()
        if self.config.weight_average > 0 and self.numbers and self.owned.average is None:  # it begins with the first
            self.owned.average = WeightState(self.owned.base, changes="step", start="values")

    def _drop_what_moved(self) -> None:
        """Drop recordings if a tensor that they read or write has moved; the guard looks its tensors up again."""
        self.guard.drop()
        places = None if self.is_cpu else (self.owned.places(), self.labels.place)
        if places != self._places:
            self._places = places
            for recorded in self.recorded:
                recorded.drop()

    # ---- steps -------------------------------------------------------------------------------------------------------

    @in_turn
    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        """Learn from one batch of the open task, or of the tasks whose numbers are given.

        Without boundaries no task has to be open, and labels may be new.
        """
        self._check_whole()
        check_inputs(x, self.spec)
        if not self.spec.boundaries:
            self._meet(x, y)
        if task is not None:
            check_tasks(y, task, self.classes)
        classes = max(self.classes, default=0) if task is not None else self.classes[self.open_task]
        check_labels(x, y, len(self.labels.owners) if self.translates else classes)
        given = (x, y) if task is None else (x, y, task)
        if self.current is not None:
            with self.calling("pauses"):
                pauses = self.method.pauses(self.task_steps)
            if pauses:
                self._pause()
        graded = torch.is_grad_enabled()
        try:
            if not self.guard.watching and self.guard.watch(self.learned(), self.owned.others()):
                self.step.drop()
            if self._skips_unseen:
                self._agree(if_filling=True)
            self._under_way, self.guard.settled = True, False
            with self.autocast():
                stats = self.step((len(x), task is None), *(t.to(self.device, non_blocking=True) for t in given))
        except BaseException:
            torch.set_grad_enabled(graded)
            if self._under_way:
                self._end_broken_step()
            raise
        self._under_way, self.steps, self.task_steps = False, self.steps + 1, self.task_steps + 1
        if "step" not in self._searched:
            self._search("step")
        finding = self.guard.found(self.steps)
        if finding is not None:
            self._diverged(finding)
        return stats

    @property
    def _skips_unseen(self) -> bool:
        """Whether steps may have no effect before the host knows of it."""
        return self.compute.on_divergence == "skip" and isinstance(self.guard, DeviceGuard)

    def _end_broken_step(self) -> None:
        """Undo a step that broke off, unless it was settled by then; if this breaks off, the next call does it."""
        self.restore_modes()
        journals = self._journals
        if not self.guard.settled:
            self.guard.take_back(journals)
        for journal in journals:
            journal.end()
        self._agree()
        self._under_way = False
        self.steps, self.task_steps = self.steps + self.guard.settled, self.task_steps + self.guard.settled

    def _agree(self, *, if_filling: bool = False) -> None:
        """Let the host's counts follow what the memories hold."""
        for memory in self.owned.memories.values():
            memory.agree(if_filling=if_filling)

    def _check_whole(self) -> None:
        """Refuse to go on after a change that broke off, and end a step that did."""
        self.refuse_if_broken()
        if self._under_way:
            self._end_broken_step()

    def _pause(self) -> None:
        """Between two steps: the method may look at values, change what it has learned, and grow."""
        self.check_finite()
        with self.whole("a pause of the method"):
            with self.calling("pause"):
                self.method.pause(self.task_steps)
            self._look_up()
            self._check_learned(f"between steps {self.steps} and {self.steps + 1}")
            self._drop_what_moved()

    def _meet(self, x: Tensor, y: Tensor) -> None:
        """Without boundaries: widen the head to the labels of a batch, unless the caller says which there are."""
        if self.current is not None and self._classes_are_given:
            return
        if y.dtype == torch.int64 and y.shape == x.shape[:1]:  # else the checks that follow say what is wrong
            before = self.classes[0] if self.classes else 0
            classes = max(before, int(y.max()) + 1)
            if self.current is None or classes > before:
                self._open(TaskInfo(STREAM, max(1, classes)))

    def _whole_step(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        self.stats = {}
        inputs, journals = self.net.inputs, self._journals
        for journal in journals:
            journal.begin()
        extent = inputs.extent(x)
        inputs.seen(x)
        if self.translates:
            task, y = self.labels.translated(y)
        try:
            self.method.update(Batch(x, y, self.task.expand(len(y)) if task is None else task))
        except FAILURES as error:
            self.retell(error, "update")
            raise
        finally:
            self.extras.end_step()
        self.guard.settle(self.stats, extent, journals)
        for journal in journals:
            journal.end()
        return self.stats

    @property
    def _journals(self) -> list[Journal]:
        return [memory.journal for memory in self.owned.memories.values()]

    def _search(self, after: Literal["step", "task"]) -> None:
        """After the first step and task: state that a method keeps and did not declare is lost in a checkpoint."""
        self._searched.add(after)
        found = self.owned.undeclared(self.method, (self.rng, self.weights_rng))
        if found is None:
            return
        name, what = found
        advice = (
            "declare it in build (engine.tensor, engine.like, engine.part) and change it in place"
            if what == "a tensor"
            else "draw from engine.rng, on the device, or engine.weights_rng, on the CPU"
        )
        raise ScaleClError(
            f"{self.method_name} keeps {what} in its attribute {name!r} that it did not declare; {advice}, so that it "
            "is saved and resumed"
        )

    def learned(self) -> list[Tensor]:
        """All that a step changes and that must stay finite."""
        return self.owned.learned()

    @in_turn
    def check_finite(self) -> None:
        """Wait for the device and raise DivergenceError if a step has diverged that nobody was told of yet."""
        finding = self.guard.found(self.steps, wait=True)
        if finding is not None:
            self._diverged(finding)

    @property
    @in_turn
    def skipped_steps(self) -> int:
        """Steps since the learner was made or loaded that had no effect, as they diverged; waits for the device."""
        return self.guard.skipped(self.steps)

    def _diverged(self, finding: Finding) -> None:
        """Report a step that had no effect; unless such steps are to be skipped, training ends."""
        self._agree()
        what = f"seed {self.seed}, step {finding.step}: "
        if finding.term == "input":
            what, remedy = what + _about_input(finding), "mend the data"
        else:
            what, remedy = what + f"{finding.term} is not a finite number{self._rates()}", "lower the rate"
        if self.compute.on_divergence == "stop":
            raise DivergenceError(f"{what}; {remedy}{self.advice}")
        if not self._divergence_reported:
            _log.warning("scale-cl: warning: %s; it is skipped, as others may be", what)
        self._divergence_reported = True
        self.guard.rearm()

    def _rates(self) -> str:
        """The learning rates of the settings for a message: ", with lr 0.1", or nothing."""
        names = [f.name for f in fields(self.config) if f.name == "lr" or f.name.endswith("_lr")]
        rates = ", ".join(f"{name} {getattr(self.config, name):g}" for name in names)
        return f", with {rates}" if rates else ""

    def _check_learned(self, when: str) -> None:
        """DivergenceError if what a method did outside of steps left anything that is not a finite number.

        This is so too if diverged steps are to be skipped: here there is no step, and nothing to go back to.
        """
        learned = [t for t in self.learned() if t.is_floating_point() and t.numel()]
        if learned and not bool(torch.stack(torch._foreach_norm(learned, math.inf)).isfinite().all()):
            what = f"{self.method.name} diverged {when}: what it learned is not finite{self._rates()}"
            raise DivergenceError(f"seed {self.seed}: {what}; lower the rate")

    # ---- the weight average ------------------------------------------------------------------------------------------

    def _average_takes(self, head: int, first: int) -> None:
        """The outputs of a head from `first` on are new: they enter the average as they are."""
        for name in ("heads.weight.data", "heads.bias.data"):
            if name in self.average:
                self.average[name][head, first:] = self.owned.base.named[name].detach()[head, first:]

    # ---- state -------------------------------------------------------------------------------------------------------

    @in_turn
    def state_dict(self) -> State:
        """Everything that decides what the learner does from here on."""
        self._check_whole()
        return self._present_state()

    def _present_state(self) -> State:
        tensors = self.owned.state_tensors()
        tensors |= {"rng": self.rng.get_state(), "weights_rng": self.weights_rng.get_state()}
        meta = {
            "tasks": [[name, self.classes[number]] for name, number in self.numbers.items()],
            "current": self.current,
            "steps": self.steps,
            "task_steps": self.task_steps,
            "memories": list(self.owned.memories),
            "shapes": self.owned.shapes(),
            "owners": list(self.labels.owners),
        }
        return {"tensors": tensors, "meta": meta}

    @in_turn
    def load_state_dict(self, state: State) -> None:
        """Become the learner that `state_dict` was taken of, made with the same config; on an error, stay as it was."""
        before = None if self.broken_off else self.state_dict()
        with self.modes_kept():
            self._load(state, before)

    def _load(self, state: State, before: State | None) -> None:
        self.broken_off = self.broken_off or "load_state_dict"
        try:
            check_plain_values(state["meta"], list(self.owned.memories))
            check_heads(state["tensors"], state["meta"], shared=self.net.heads.shared)
            check_memories(state["tensors"], state["meta"])
            self._take_state(state)
            check_taken(state["tensors"], self._present_state()["tensors"])
        except Exception as error:
            if before is not None:
                self._take_state(before)
                self.broken_off = ""
            if isinstance(error, CheckpointError):
                raise
            what = f"state does not fit this learner ({one_line(error)}); make it with the same config"
            raise CheckpointError(what) from None
        self.broken_off = ""

    def _take_state(self, state: State) -> None:
        """What `load_state_dict` does; it may break off in the middle."""
        tensors, meta = state["tensors"], state["meta"]
        self._under_way = False
        self.owned.load_memories(tensors)
        self.owned.clear(meta["shapes"])
        self.numbers, self.classes, self._calibrated, self._derived_at = {}, [], None, None
        self.labels.set(meta.get("owners", []))
        for name, classes in meta["tasks"]:
            number = self.numbers[name] = len(self.numbers)
            self.classes.append(int(classes))
            self.owned.grow(number, int(classes), generator=self.weights_rng)
        self.owned.load_modules(tensors, meta["shapes"])
        self.owned.average = None
        self.current, self.steps, self._measured = meta["current"], int(meta["steps"]), -1
        if self.current is not None:
            self.task.fill_(self.open_task)
            self.owned.grow(self.open_task, self.classes[self.open_task], generator=self.weights_rng)
        self.task_steps = int(meta.get("task_steps", 0))  # states of earlier versions have no such number
        self._look_up()
        self.owned.load_states(tensors)
        self.rng.set_state(tensors["rng"].cpu())
        self.weights_rng.set_state(tensors["weights_rng"].cpu())
        self._places = None
        self._drop_what_moved()
        self.guard.begin(self.steps)


def _about_input(finding: Finding) -> str:
    """What is wrong with the batch: "sample 3 of the batch holds NaN"."""
    size, limit, sample = finding.extent
    if math.isfinite(size):
        return f"sample {sample} of the batch holds a value of size {size:.3g}; the largest allowed is {limit:.3g}"
    return f"sample {sample} of the batch holds {'NaN' if math.isnan(size) else 'infinity'}"
