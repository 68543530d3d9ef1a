"""A learner: the protocol that callers see, and what a method of one's own fills in.

A method is a subclass with a config (its settings), `build` (what it owns) and `update` (its step). Everything else is
the engine's: see `scale_cl.engine` for what `build` and `update` can ask of it, and `docs/own-method.md` for two
complete methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from scale_cl.engine import (
    Batch,
    Compute,
    Engine,
    LearnerConfig,
    MemoryConfig,
    ReplayConfig,
    ReplayMemory,
    Setup,
    State,
    StepStats,
)
from scale_cl.errors import ConfigError, InputError
from scale_cl.learners.presets import Preset
from scale_cl.nets import MLP, ContinualNet
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.streams import InputSpec, Scenario, TaskInfo

FORWARD = "batch and replay in two forwards, each with its own batch statistics, or in one (joint)"
AT_ONCE = 256  # stored samples in one forward when a task ends


@dataclass(frozen=True)
class Traits:
    """What a method keeps and needs: the columns of table 1 of the paper's supplement; heads are not counted."""

    episodic_memory: bool = False  # keeps samples of earlier tasks
    task_specific_parameters: bool = False  # has parameters that only one task uses
    task_at_inference: bool = True  # must be told the task of what it predicts
    history_in_training: bool = False  # keeps parameters, gradients or logits of earlier moments, to train with
    history_in_testing: bool = False  # keeps parameters of earlier moments, to predict with


class StepSize(NamedTuple):
    """What a step holds at its peak."""

    samples: int  # in the largest forward
    sets: int = 1  # how many such sets are prepared at once
    copies: int = 5  # gradients and copies of all base parameters; a method that says nothing may hold several


class Learner:
    """Learns tasks one after another, one batch at a time."""

    config_class: ClassVar[type[LearnerConfig]] = LearnerConfig
    config: Any
    traits: ClassVar[Traits] = Traits()
    scenarios: ClassVar[tuple[Scenario, ...]] = ("task", "domain", "class")  # those it applies to
    needs_boundaries: ClassVar[bool] = False  # whether it must be told where tasks begin and end
    needs_labels: ClassVar[bool] = True  # whether it trains on labels; if not, a few are told when a task ends
    learns_at_end: ClassVar[bool] = False  # whether it knows nothing of a task before that ends
    update_settings: ClassVar[tuple[str, ...]] = ("updates",)  # their product: updates of the network per step
    smaller: ClassVar[tuple[str, str] | None] = None  # what makes its network smaller, in words, and the setting
    order: ClassVar[Literal["tasks", "shuffled"]] = "tasks"  # one task after another, or all shuffled together
    presets: ClassVar[Mapping[str, Preset]] = {}  # settings by stream, for a method from outside
    after: ClassVar[str] = ""  # the learner after which it stands in tables; by default after all of ours
    description: ClassVar[str] = ""  # one line for `scale-cl list`; without it, the first line of the docstring
    name: str = ""  # as the registry has it; results carry it

    def __init__(
        self,
        spec: InputSpec,
        config: LearnerConfig | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compute: Compute | None = None,
        backbone: BackboneLike | None = None,
    ) -> None:
        """A learner for inputs as described by `spec`; `seed` decides its weights and its draws.

        A `backbone` of your own, which returns features, replaces the one that the config names.
        """
        self.name = self.name or type(self).__name__.lower()
        self.config = self.config_class() if config is None else config
        self.spec, self.seed, self.device = spec, seed, torch.device(device)
        self.compute = Compute() if compute is None else compute  # how the arithmetic is done
        self.check_applies(spec)
        setup = Setup(
            spec,
            self.config,
            seed,
            self.device,
            self.compute,
            backbone,
            task_specific=self.traits.task_specific_parameters,
            own_scores=type(self).scores is not Learner.scores,
            derives=type(self).derived is not Learner.derived,
        )
        self.engine = Engine(self, setup)
        self.build(self.engine)
        self.engine.ready()

    @classmethod
    def check_applies(cls, spec: InputSpec, name: str = "", stream: str = "") -> None:
        """ConfigError if the method, called `name`, does not apply to such a stream, with what would."""
        name = name or cls.name or cls.__name__.lower()
        if spec.scenario not in cls.scenarios:
            allowed = " or ".join(cls.scenarios)
            of = f", that of {stream}" if stream else ""
            raise ConfigError(f"{name} does not apply to scenario {spec.scenario}{of}; it takes scenario {allowed}")
        if not spec.boundaries and cls.needs_boundaries:
            raise ConfigError(
                f"{name} must be told where tasks begin and end; tell it, have boundaries detected, or take a learner "
                "that needs none (`scale-cl list learners` says which)"
            )

    # ---- what a method fills in --------------------------------------------------------------------------------------

    def build(self, engine: Engine) -> None:
        """Declare what the method owns; by default the common network."""
        self.network = engine.network()

    def update(self, batch: Batch) -> None:
        """One step on a batch: device work only, because on a GPU it is recorded and replayed."""
        raise NotImplementedError

    def task_began(self, task: int) -> None:
        """After a task was opened."""

    def pauses(self, step: int) -> bool:
        """Whether `pause` is to be called before step number `step` of the open task, from 0."""
        return False

    def pause(self, step: int) -> None:
        """Work between two steps, which is never recorded: look at values, change what was learnt, grow."""

    def task_ended(self, task: int) -> None:
        """Before the open task closes; its samples are stored and may be replayed."""

    def derived(self) -> dict[str, Tensor]:
        """What `scores` finds in `engine.derived`: computed once for the present weights and memory, never recorded.

        Under a name `net.NAME` it is what predictions use in place of the network's tensor NAME.
        """
        return {}

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        """Scores [B, classes] of raw samples [B, ...] of these tasks [B]; the highest is the prediction."""
        return self.engine.evaluated(x, task).logits

    def log(self, **terms: Tensor) -> None:
        """Report loss terms of this step, by name."""
        self.engine.log(terms)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """How much a step holds at its peak, from which the memory that a run needs is estimated.

        Args:
            config: the settings.
            batch: samples that arrive at once.
            stored: samples in the memory when all tasks are done.
            tasks: how many tasks there will be.
        """
        return StepSize(batch + min(int(getattr(config, "replay", 0)), stored), int(getattr(config, "updates", 1)))

    # ---- the protocol ------------------------------------------------------------------------------------------------

    def begin_task(self, task: TaskInfo) -> None:
        """Open a task; a name seen before continues that task, perhaps with more classes.

        In the scenario `class`, `task.classes` counts all classes so far, those of earlier tasks included.
        """
        self.engine.begin_task(task)

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        """Learn from one batch of the open task, or of several tasks; without boundaries, just from one batch.

        Args:
            x: [B, *shape] raw samples: uint8 for pixels, float32 for features.
            y: [B] int64 labels: within the head of the sample's task, or in the scenario `class` of all classes in
                order of arrival.
            task: [B] int64 numbers of the samples' tasks, in the order in which they were begun; by default all
                samples belong to the open task. A learner that predicts by parameters of each task takes no others.
        """
        if task is not None and self.traits.history_in_testing and bool((task != self.engine.task).any()):
            raise InputError(f"{self.name} trains parameters of the open task only; give it no samples of other tasks")
        return self.engine.observe(x, y, task)

    def end_task(self) -> None:
        """Close the open task; without one, nothing happens."""
        self.engine.end_task()

    def predict(self, x: Tensor, task: str | None = None) -> Tensor:
        """Scores [B, classes], in evaluation mode; the state stays as it is.

        With a task: of its classes. Without: of all classes learnt, whatever their task; in the scenario `task` those
        of the first task come first. Other threads may predict while one trains: a step waits for a prediction, and a
        prediction for a step.
        """
        return self.engine.predict(x, task)

    def features(self, x: Tensor, task: str | None = None) -> Tensor:
        """Features [B, width] that the task's head sees, in evaluation mode; the state stays as it is."""
        return self.engine.features(x, task)

    def predicting_net(self) -> ContinualNet:
        """A copy of the network that predicts, with the weight average if there is one, in evaluation mode."""
        return self.engine.predicting_net()

    def state_dict(self) -> State:
        """Everything that decides what the learner does from here on."""
        return self.engine.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Become the learner that `state_dict` was taken of, made with the same config; on an error, stay as it was."""
        self.engine.load_state_dict(state)

    def check_finite(self) -> None:
        """Wait for the device and raise DivergenceError if a step has diverged that nobody was told of yet."""
        self.engine.check_finite()

    # ---- what there is to know ---------------------------------------------------------------------------------------

    @property
    def net(self) -> ContinualNet:
        """The common network: inputs, backbone, heads and perhaps a generator."""
        return self.engine.net

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks seen, in order of arrival."""
        return self.engine.tasks

    @property
    def current_task(self) -> str | None:
        """Name of the open task, if one is."""
        return self.engine.current

    @property
    def steps(self) -> int:
        """Batches observed."""
        return self.engine.steps

    @property
    def skipped_steps(self) -> int:
        """Steps since this learner was made or loaded that had no effect, as they diverged; waits for the device."""
        return self.engine.skipped_steps

    @property
    def epochs(self) -> int:
        """Passes over a task's data that the training loop makes: one, unless the method has a setting for it."""
        return int(getattr(self.config, "epochs", 1))


def replay_memory(engine: Engine, config: MemoryConfig, *, logits: Sequence[str] = ()) -> ReplayMemory:
    """The memory that the settings of `MemoryConfig` describe, with these kinds of logits."""
    return engine.memory(
        "memory",
        config.memory,
        policy=config.memory_policy,
        budget=config.memory_budget,
        logits=logits,
        measure_norms=config.norm_on_memory,
    )


def mlp_to_grow(learner: Learner) -> MLP:
    """The backbone of a learner that grows its layers; ConfigError in one line if it is no MLP."""
    backbone = learner.engine.backbone
    if not isinstance(backbone, MLP):
        raise ConfigError(f"{learner.name} grows the layers of an MLP; learner.backbone must be mlp or mlp-WIDTH-WIDTH")
    return backbone


class ReplayLearner(Learner):
    """A learner with the common network and one episodic memory."""

    config_class: ClassVar[type[LearnerConfig]] = ReplayConfig
    traits = Traits(episodic_memory=True)

    def build(self, engine: Engine) -> None:
        """Declare the network and the memory."""
        self.network = engine.network()
        self.memory = replay_memory(engine, self.config)

    @torch.no_grad()
    def store_outputs(self, task: int) -> None:
        """Keep the logits of the stored samples of a task by the weights that predict; for the end of a task."""
        for rows in self.memory.rows_of(task).split(AT_ONCE):
            if len(rows) > 0:
                logits = self.engine.evaluated(self.memory.x[rows], self.memory.task[rows]).logits
                self.memory.keep_logits("class", rows, logits[:, : self.engine.classes[task]])
