"""What a method sees of the engine: what it declares in `build`, and what it uses in its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from scale_cl.cuda_graphs import HostLog, RecordedFunction
from scale_cl.engine.extras import Extras
from scale_cl.engine.network import Network, Statistics
from scale_cl.engine.owned import Owned
from scale_cl.engine.parts import Part, TaskModules, TaskPart, TaskShape, Teacher
from scale_cl.engine.replay import Batch, ReplayMemory, Samples
from scale_cl.engine.settings import Setup, StepStats
from scale_cl.engine.weights import Changes, Weights, WeightState
from scale_cl.errors import ConfigError, ScaleClError
from scale_cl.memory import Budget, PolicyName
from scale_cl.nets import Backbone, ContinualNet, Heads, Inputs, Outputs, ParameterGenerator
from scale_cl.nets.custom_backbone import make_backbone
from scale_cl.nets.film import FilmForm
from scale_cl.nets.heads import LabelMap
from scale_cl.nets.kernels import finish_compiling
from scale_cl.nets.kernels.convolution import use_direct
from scale_cl.nets.kernels.norm import BatchNorm

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class Builder:
    """Makes what a method declares, and offers what its step needs."""

    def __init__(self, method_name: str, setup: Setup) -> None:
        """Draw the backbone; the method then declares the rest, and `ready` ends that."""
        self.method_name, self.spec, self.config, self.seed = method_name, setup.spec, setup.config, setup.seed
        self.device, self.compute, self.given_backbone = setup.device, setup.compute, setup.backbone
        self.is_cpu = self.device.type == "cpu"  # the host reads tensors without waiting, and nothing is recorded
        self.capacity = 16 if self.is_cpu else 32  # tasks that growing parts have room for at first
        self.weights_rng = torch.Generator().manual_seed(self.seed)  # on the CPU: the same weights on every device
        self.rng = torch.Generator(self.device).manual_seed(self.seed)
        self.task = torch.zeros((), dtype=torch.int64, device=self.device)  # number of the open task
        self.numbers: dict[str, int] = {}  # of the tasks by name, in order of arrival
        self.classes: list[int] = []  # of each task
        self.labels = LabelMap(self.device)  # the task of each class, where heads per task learn one set of classes
        self.current: str | None = None  # name of the open task, if one is
        self.predicted_task = 0  # number of the task that is being predicted; what depends on it asks `host`
        self.stats: StepStats = {}  # loss terms of the current step
        self.host = HostLog()
        self.owned = Owned()
        self.measurements: list[tuple[ReplayMemory, RecordedFunction]] = []  # of batch-norm statistics, at task end
        self.statistics: Mapping[str, Tensor] = {}  # batch-norm buffers for the prediction that is being made
        self.recorded: list[RecordedFunction] = []
        self.backbone = self._new_backbone()

    def _new_backbone(self) -> Backbone:
        c, given = self.config, self.given_backbone
        kind = c.backbone if given is None else given
        rng = self.weights_rng
        return make_backbone(kind, self.spec.shape, momentum=c.norm_momentum, generator=rng, seed=self.seed)

    # ---- what a method declares --------------------------------------------------------------------------------------

    def generator(self, form: FilmForm = "branches", embedding_width: int = 0, *, when: bool = True) -> Part:
        """The parameter generator, trained apart from trunk and heads; it takes part in the network's forward."""
        if not when:
            return Part(None)
        rng, width = self.weights_rng, embedding_width
        return Part(ParameterGenerator(self.backbone, generator=rng, form=form, embedding_width=width))

    def network(
        self,
        module: ContinualNet | None = None,
        *,
        film: Part | None = None,
        statistics: Statistics = "separate",
        twice: bool = False,
    ) -> Network:
        """The common network: the backbone, growing heads and perhaps a generator.

        In the scenario `task` each task has a head, in `domain` all tasks share one. In `class` all classes seen have
        one head, but with a generator, whose FiLM belongs to a task, each task's new classes have a head of their own.

        Args:
            module: a network of the method's own instead.
            film: the generator.
            statistics: batch and replay have batch statistics of their own, or joint ones.
            twice: use kernels that can be differentiated twice.
        """
        if module is None:
            shared = self.spec.scenario == "domain" or (self.spec.scenario == "class" and film is None)
            heads = Heads(self.backbone.feature_width, shared=shared, xavier=self.backbone.xavier)
            generator = film.module if film else None
            assert generator is None or isinstance(generator, ParameterGenerator)
            module = ContinualNet(self.inputs(), self.backbone, heads, generator)
        module = self._placed(module)
        if self.compute.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        use_direct(module, self.compute.direct_convolutions and not twice)
        for norm in module.modules():
            if isinstance(norm, BatchNorm):
                norm.fuse = not twice  # our own kernels have no second derivative
        finish_compiling()
        network = self.owned.network = Network(module, statistics=statistics, twice=twice)
        self.owned.weights += [network.base] if film is None else [network.base, film.weights]
        moves = self.tensor("average_moves", torch.zeros(()), changes="step") if self.config.average_warmup else None
        self.extras = Extras(self.config, network, average=lambda: self.owned.average, moves=moves, log=self.log)
        return network

    def inputs(self) -> Inputs:
        """The layer that turns raw samples into inputs, as the settings say."""
        c, spec, last = self.config, self.spec, self.compute.channels_last
        return Inputs(spec.shape, spec.pixel_max, standardise=c.standardise, augment=c.augment, channels_last=last)

    def part(self, name: str, make: Callable[[], nn.Module], *, when: bool = True) -> Part:
        """A network of the method's own; one with a method `ensure_task` grows with the tasks."""
        return self._declare(self.owned.parts, name, Part(self._placed(make()) if when else None))

    def task_part(self, name: str, make: Callable[[TaskShape], nn.Module]) -> TaskPart:
        """A network that is made anew for each task."""
        part = TaskPart(lambda shape: self._placed(make(shape)))
        self._declare(self.owned.parts, name, part)
        return part

    def task_modules(
        self, name: str, make: Callable[[TaskShape], nn.Module], *, most: int | None = None
    ) -> TaskModules:
        """Networks of which each task has one, of any shape; only the open task's is trained.

        Beyond `most` tasks, another one is refused.
        """
        modules = TaskModules(lambda shape: self._placed(make(shape)), most)
        return self._declare(self.owned.task_modules, name, modules)

    def weights(self, find: Callable[[], Mapping[str, Tensor]]) -> Weights:
        """Parameters that are trained together, looked up again whenever a task begins."""
        weights = Weights(find)
        self.owned.weights.append(weights)
        return weights

    def memory(
        self,
        name: str,
        slots: int,
        *,
        policy: PolicyName = "ring",
        budget: Budget = "task",
        logits: Sequence[str] = (),
        measure_norms: bool = False,
    ) -> ReplayMemory:
        """An episodic memory of samples.

        Args:
            name: of the memory.
            slots: samples per task, per class or in total, as `budget` says.
            policy: which samples stay.
            budget: what the slots are counted by.
            logits: what may be kept with a sample: logits of the classes ("class"), of the tasks ("task"), or under any
                other name a vector of any width, which estimates of memory take to be as wide as the features.
            measure_norms: measure batch-norm statistics on it when a task ends, and for predictions within a task.
        """
        if not self.spec.boundaries and budget != "total":
            raise ConfigError(f"memory_budget is {budget}; a stream without boundaries needs total")
        memory = ReplayMemory(
            slots,
            self.spec.shape,
            torch.float32 if self.spec.pixel_max is None else torch.uint8,
            device=self.device,
            generator=self.rng,
            policy=policy,
            budget=budget,
            shared_labels=self.spec.scenario == "class" and self.owned.network is not None and not self.translates,
            logits=logits,
            host=self.host,
            prepare=self.prepared,
        )
        if measure_norms:
            self.measurements.append((memory, self.record(lambda *given: self._measure_norms(memory, *given))))
        return self._declare(self.owned.memories, name, memory)

    def like(self, name: str, weights: Weights, *, changes: Changes) -> WeightState:
        """Tensors of the shapes of some weights, zero at first; they change in every `step` or only per `task`."""
        self._check_changes(name, changes)
        return self._declare(self.owned.states, name, WeightState(weights, changes=changes))

    def teacher(self, name: str) -> Teacher:
        """A frozen copy of the network, none at first."""
        return self._declare(self.owned.teachers, name, Teacher())

    def tensor(self, name: str, value: Tensor, *, changes: Changes) -> Tensor:
        """A tensor of a fixed shape, to be changed in place; it changes in every `step` or only per `task`."""
        self._check_changes(name, changes)
        return self._declare(self.owned.tensors, name, (value.to(self.device), changes))[0]

    def record(self, function: Callable[..., dict[str, Tensor]]) -> RecordedFunction:
        """`function` of device tensors, recorded on a GPU; recordings are dropped when declared tensors move."""
        enabled = self.compute.capture
        recorded = RecordedFunction(function, device=self.device, generator=self.rng, enabled=enabled, host=self.host)
        self.recorded.append(recorded)
        return recorded

    def ready(self) -> None:
        """All is declared."""
        if self.owned.network is None:
            raise ScaleClError(f"{self.method_name}.build declares no network; call engine.network()")

    def _declare(self, kind: Any, name: str, value: T) -> T:
        if not self.owned.is_free(name):
            raise ScaleClError(
                f"{self.method_name} declares {name!r}, which is taken; take another name, without a dot"
            )
        kind[name] = value
        return value

    def _check_changes(self, name: str, changes: str) -> None:
        if changes not in get_args(Changes):
            raise ScaleClError(
                f"{self.method_name} declares {name!r} with changes={changes!r}; it must be step or task"
            )

    def _placed(self, module: M) -> M:
        """On the device, in the type of the backbone."""
        like = next((p for p in self.backbone.parameters() if p.is_floating_point()), None)
        return module.to(self.device, None if like is None else like.dtype)

    # ---- what a method uses ------------------------------------------------------------------------------------------

    @property
    def net(self) -> ContinualNet:
        """The module of the network."""
        net: ContinualNet = self.owned.net
        return net

    @property
    def translates(self) -> bool:
        """Whether labels count all classes while heads belong to tasks."""
        return self.spec.scenario == "class" and not self.net.heads.shared

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks seen, in order of arrival."""
        return list(self.numbers)

    @property
    def open_task(self) -> int:
        """Number of the open task."""
        if self.current is None:
            raise ScaleClError(
                "no task is open: call begin_task(TaskInfo(name, classes)) before observe, or make the learner for a "
                "stream without boundaries (boundaries=False in InputSpec)"
            )
        return self.numbers[self.current]

    @property
    def average(self) -> Mapping[str, Tensor]:
        """The averaged base parameters by name; empty without a weight average."""
        return {} if self.owned.average is None else self.owned.average.named

    def prepared(self, x: Tensor) -> Tensor:
        """Training inputs of raw samples: augmentation, units, standardisation."""
        inputs = self.net.inputs
        prepared: Tensor = inputs(inputs.augmented(x, self.rng))
        return prepared

    def samples(self, batch: Batch) -> Samples:
        """The batch, ready for the network."""
        return Samples(self.prepared(batch.x), batch.y, batch.task, (len(batch),))

    def evaluated(self, x: Tensor, task: Tensor) -> Outputs:
        """Outputs of raw samples by the weights that predict, in evaluation mode."""
        assert self.owned.network is not None
        apart = self.statistics if self.host.ask(lambda: bool(self.statistics)) else {}
        return self.owned.network.evaluated(x, task, {**self.average, **apart})

    def autocast(self) -> AbstractContextManager[object]:
        """What forwards run in."""
        if self.compute.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()  # even one that is off costs more than a layer of the MLP's head

    def fresh_weights(self) -> list[Tensor]:
        """New values of trunk and heads, drawn as at the start; a backbone of one's own has those it was given."""
        old = self.net.heads
        heads = Heads(old.width, shared=old.shared, xavier=old.xavier)
        for number, classes in enumerate(old.classes):
            heads.ensure(number, classes, generator=self.weights_rng)
        drawn = dict(ContinualNet(self.inputs(), self._new_backbone(), heads, None).named_parameters())
        return [drawn[name].detach().to(self.device) for name in self.owned.base.named]

    def randn(self, like: Tensor) -> Tensor:
        """Standard normal noise of the shape and type of `like`."""
        return torch.randn(like.shape, generator=self.rng, device=self.device, dtype=like.dtype)

    def log(self, terms: Mapping[str, Tensor]) -> None:
        """Report loss terms of this step; a term that is not finite marks the step as diverged."""
        for name, value in terms.items():
            self.stats[name] = value.detach()

    def _measure_norms(self, memory: ReplayMemory, rows: Tensor, share: Tensor) -> dict[str, Tensor]:
        assert self.owned.network is not None
        self.owned.network.measure(memory, self.average, rows, share)
        return {}
