"""What all learners share: the protocol, the registry of tasks, prediction, the weight average and the state.

A method is one file: a config (its settings), `_update` (its step, device work only) and perhaps `_task_began` and
`_task_ended`. `observe` calls `_update` through a recorded graph, so it must not look at tensor values.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call

from scale_cl.cuda_graphs import RecordedFunction
from scale_cl.errors import CheckpointError, DivergenceError, InputError, ScaleClError, UnknownTaskError
from scale_cl.learners.divergence import DeviceGuard, Finding, Guard, HostGuard, OnDivergence
from scale_cl.learners.state_validation import check_memories, check_plain_values, check_taken
from scale_cl.learners.traits import Traits
from scale_cl.nets import (
    MLP,
    Backbone,
    ContinualNet,
    CustomBackbone,
    Heads,
    Inputs,
    ParameterGenerator,
    ReducedResNet18,
)
from scale_cl.nets.convolution import use_direct
from scale_cl.nets.cuda_compile import finish_compiling
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.nets.film import FilmForm
from scale_cl.nets.inputs import Augmentation
from scale_cl.nets.norm import BatchNorm
from scale_cl.settings import Settings, setting
from scale_cl.streams import InputSpec, TaskInfo

_log = logging.getLogger("scale_cl")

StepStats = dict[str, Tensor]
"""Loss terms of a step as device tensors; the next step may overwrite them."""


class State(TypedDict):
    """A learner, whole: tensors by name, and plain values that fit into JSON."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def plain_copy(t: Tensor) -> Tensor:
    """A copy that shares nothing and lies in memory as its shape says, fit for any file format."""
    return t.detach().clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class Compute:
    """How the arithmetic is done: none of it is part of a method."""

    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    channels_last: bool = True
    direct_convolutions: bool = True
    capture: bool = True
    on_divergence: OnDivergence = "stop"


@dataclass(frozen=True)
class LearnerConfig(Settings):
    """Settings of every learner."""

    backbone: Literal["auto", "mlp", "resnet18"] = setting(
        "auto", "network: mlp, resnet18 (reduced), or auto (resnet18 for images of three channels)"
    )
    weight_average: float = setting(
        0.0, "decay of the average of the base parameters used for prediction and stored logits; 0: off", low=0, below=1
    )
    standardise: bool = setting(False, "standardise inputs by the running mean and deviation of what has been seen")
    augment: Augmentation = setting("none", "random changes of training images: none, flip, crop-flip")
    norm_momentum: float = setting(
        0.1, "share that a batch has in the running statistics of the resnet18's batch norm", above=0, high=1
    )


class Learner:
    """Learns tasks one after another, a batch at a time."""

    config_class: ClassVar[type[LearnerConfig]] = LearnerConfig
    config: Any
    traits: ClassVar[Traits] = Traits()
    order: ClassVar[Literal["tasks", "joint"]] = "tasks"  # how the training loop presents the samples
    name: str = ""  # as the catalog has it; results carry it

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
        """A learner for inputs as `spec` says; `seed` decides its weights and its draws.

        A `backbone` of your own, which returns features, takes the place of the one that the config names.
        """
        self.spec, self.seed = spec, seed
        self._own_backbone = None if backbone is None else CustomBackbone.of(backbone)
        self.name = self.name or type(self).__name__.lower()
        self.config = self.config_class() if config is None else config
        self.compute = Compute() if compute is None else compute
        self.device = torch.device(device)
        self._weights_rng = torch.Generator().manual_seed(seed)  # on the CPU: the same weights on every device
        self._rng = torch.Generator(self.device).manual_seed(seed)
        self._tasks: dict[str, int] = {}
        self._classes: list[int] = []
        self._current: str | None = None
        self._task = torch.zeros((), dtype=torch.int64, device=self.device)  # number of the open task
        self.net = self._make_net().to(self.device)
        if self.compute.channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        use_direct(self.net, self.compute.direct_convolutions)
        finish_compiling()
        self._average: dict[str, Tensor] = {}
        self._recorded: list[RecordedFunction] = []
        self._step = self._as_graph(self._whole_step)
        self._prediction = self._as_graph(self._predicted)
        self._guard: Guard = (HostGuard if self.is_cpu else DeviceGuard)(self.device, self.compute.on_divergence)
        self._known_version: object = None
        self._base: list[Tensor] = []
        self.steps = 0
        self._told = False  # whether a diverged step was spoken of
        # what to do after a diverged step; whoever makes the learner may know a better way
        self.advice = 'lower the rate, or let such steps be skipped (on_divergence="skip" in Compute)'

    # ---- the protocol ------------------------------------------------------------------------------------------------

    def begin_task(self, task: TaskInfo) -> None:
        """Open a task; a name seen before goes on with that task, perhaps with more classes."""
        if task.classes < 1:
            raise InputError(f"task {task.name!r} has {task.classes} classes; a head needs at least one")
        self.end_task()
        number = self._tasks.setdefault(task.name, len(self._tasks))
        new = number == len(self._classes)
        if new:
            self._classes.append(0)
        self._classes[number] = max(self._classes[number], task.classes)
        head = 0 if self.net.heads.shared else number
        outputs = self.net.heads.classes[head] if head < len(self.net.heads.classes) else 0
        self._ensure_task(number, self._classes[number], new=new)
        self._refresh()
        self._average_takes(head, outputs)
        self._task.fill_(number)
        self._current = task.name
        self._task_began(number)
        self._guard.drop()  # the task's new parameters are good

    def observe(self, x: Tensor, y: Tensor) -> StepStats:
        """Learn from one batch of the open task.

        Args:
            x: [B, *shape] raw samples: uint8 for pixels, float32 for features.
            y: [B] int64 labels of the task's own head.
        """
        number = self._open_task()
        self._check_batch(x, y, number)
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        stats = self._guarded_step((len(x), self._phase(), self._known_version), x, y)
        self._observed(len(x))
        self._count_step()
        return stats

    def end_task(self) -> None:
        """Close the open task; without one, nothing happens."""
        if self._current is None:
            return
        self.check_finite()
        self._task_ended(self._tasks[self._current])
        self._current = None
        self._refresh()

    def predict(self, x: Tensor, task: str) -> Tensor:
        """Logits [B, classes of the task], in evaluation mode and without a trace in the state."""
        number = self._number_of(task)
        self._check_shape(x)
        x = x.to(self.device, non_blocking=True)
        t = torch.full((), number, dtype=torch.int64, device=self.device)
        with torch.no_grad(), self._autocast():
            logits = self._prediction((len(x), self._known_version), x, t)["logits"]
        return logits[:, : self._classes[number]].float()

    def features(self, x: Tensor, task: str) -> Tensor:
        """Features [B, width] that the task's head sees, in evaluation mode and without a trace in the state."""
        number = self._number_of(task)
        self._check_shape(x)
        x = x.to(self.device)
        return self._evaluated(x, torch.full((len(x),), number, device=self.device))[1].float()

    def predicting_net(self) -> ContinualNet:
        """A copy of the network that predicts, by the weight average if there is one, in evaluation mode."""
        net = copy.deepcopy(self.net).eval()
        with torch.no_grad():
            for name, average in self._average.items():
                net.get_parameter(name).copy_(average)
        return net

    def state_dict(self) -> State:
        """Everything that decides what the learner does from here on."""
        tensors = {f"net.{name}": plain_copy(t) for name, t in self.net.state_dict().items()}
        tensors |= {f"average.{name}": plain_copy(t) for name, t in self._trimmed_average().items()}
        tensors |= {"rng": self._rng.get_state(), "weights_rng": self._weights_rng.get_state()}
        tasks = [[name, self._classes[number]] for name, number in self._tasks.items()]
        return {"tensors": tensors, "meta": {"tasks": tasks, "current": self._current, "steps": self.steps}}

    def load_state_dict(self, state: State) -> None:
        """Become the learner that `state_dict` was taken of, made with the same config; on an error, stay as it was."""
        before = self.state_dict()
        try:
            check_plain_values(state["meta"])
            check_memories(state["tensors"], [classes for _, classes in state["meta"]["tasks"]])
            self._take_state(state)
            check_taken(state["tensors"], self.state_dict()["tensors"])
        except Exception as error:
            self._take_state(before)
            if isinstance(error, CheckpointError):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise CheckpointError(f"state does not fit this learner ({reason}); make it with the same config") from None

    def _take_state(self, state: State) -> None:
        """What `load_state_dict` does; it may break off in the middle."""
        tensors, meta = state["tensors"], state["meta"]
        self._tasks, self._classes = {}, []
        self.net.heads.clear()
        for name, classes in meta["tasks"]:
            number = self._tasks[name] = len(self._tasks)
            self._classes.append(int(classes))
            self._ensure_task(number, int(classes), new=True)
        self._load_module(self.net, "net.", tensors)
        self.net.heads.refresh()
        self._average = {}
        self._refresh(force=True)
        if {n for n in tensors if n.startswith("average.")} != {f"average.{n}" for n in self._average}:
            raise CheckpointError("state has another weight average than this learner; make it with the same config")
        for name, average in self._average.items():
            saved = tensors[f"average.{name}"]
            average[tuple(slice(n) for n in saved.shape)] = saved.to(average)
        self._rng.set_state(tensors["rng"].cpu())
        self._weights_rng.set_state(tensors["weights_rng"].cpu())
        self._current, self.steps = meta["current"], int(meta["steps"])
        if self._current is not None:
            self._task.fill_(self._tasks[self._current])
        self._guard.begin(self.steps)

    @property
    def is_cpu(self) -> bool:
        """Whether the host sees tensors without waiting and nothing is recorded, so that a step may take short cuts."""
        return self.device.type == "cpu"

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks seen, in order of arrival."""
        return list(self._tasks)

    @property
    def current_task(self) -> str | None:
        """Name of the open task, if one is."""
        return self._current

    def check_finite(self) -> None:
        """Wait for the device and raise DivergenceError if a step has diverged that nobody was told of yet."""
        finding = self._guard.found(self.steps, wait=True)
        if finding is not None:
            self._diverged(finding)

    @property
    def skipped_steps(self) -> int:
        """Steps since this learner was made or loaded that had no effect, as they diverged; waits for the device."""
        return self._guard.skipped(self.steps)

    @property
    def epochs(self) -> int:
        """Passes over a task's data that the training loop is to make: one, unless the method has a setting for it."""
        return int(getattr(self.config, "epochs", 1))

    # ---- what a method fills in --------------------------------------------------------------------------------------

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        """The method's step on a raw batch: device work only."""
        raise NotImplementedError

    def _task_began(self, task: int) -> None:
        """After a task was opened."""

    def _task_ended(self, task: int) -> None:
        """Before the open task closes."""

    def _phase(self) -> object:
        """All that the host decides inside `_update`, apart from the batch size: sizes of draws, branches."""
        return ()

    def _observed(self, n: int) -> None:
        """Host bookkeeping after a step over `n` samples."""

    def _wrap_up(self, x: Tensor, y: Tensor) -> None:
        """The end of every step, on the device: by default nothing."""

    def _version(self) -> object:
        """Changes whenever a tensor the step uses has moved."""
        return self.net.version

    def _ensure_task(self, task: int, classes: int, *, new: bool) -> None:
        """Make the parts that task number `task` needs."""
        self.net.ensure_task(task, classes, generator=self._weights_rng)

    def _make_generator(self, backbone: Backbone) -> ParameterGenerator | None:
        """The parameter generator, for the methods that have one."""
        return None

    # ---- shared machinery --------------------------------------------------------------------------------------------

    def _make_net(self) -> ContinualNet:
        c, spec = self.config, self.spec
        inputs = Inputs(
            spec.shape,
            spec.pixel_max,
            standardise=c.standardise,
            augment=c.augment,
            channels_last=self.compute.channels_last,
        )
        backbone = self._make_backbone()
        heads = Heads(backbone.feature_width, shared=spec.scenario == "domain", xavier=backbone.xavier)
        return ContinualNet(inputs, backbone, heads, self._make_generator(backbone))

    def _make_backbone(self) -> Backbone:
        kind, shape = self.config.backbone, self.spec.shape
        if self._own_backbone is not None:
            return self._own_backbone.built(shape, seed=self.seed)
        if kind == "auto":
            kind = "resnet18" if len(shape) == 3 and shape[0] == 3 else "mlp"
        if kind == "resnet18" and len(shape) != 3:
            raise InputError(f"backbone resnet18 needs images [C, H, W]; inputs have shape {list(shape)}: use mlp")
        if kind == "resnet18":
            return ReducedResNet18(shape[0], momentum=self.config.norm_momentum, generator=self._weights_rng)
        return MLP(int(torch.Size(shape).numel()), generator=self._weights_rng)

    def _film_generator(self, backbone: Backbone, form: FilmForm, width: int) -> ParameterGenerator:
        return ParameterGenerator(backbone, generator=self._weights_rng, form=form, embedding_width=width)

    def _use_twice_differentiable_kernels(self) -> None:
        """For methods that take gradients of gradients: the kernels of our own have none."""
        for module in self.net.modules():
            if isinstance(module, BatchNorm):
                module.fuse = False
        use_direct(self.net, False)

    def _as_graph(self, function: Callable[..., dict[str, Tensor]]) -> RecordedFunction:
        """`function`, recorded on a GPU; what is recorded is dropped when tensors move. Its keys say all else."""
        captured = RecordedFunction(function, device=self.device, generator=self._rng, enabled=self.compute.capture)
        self._recorded.append(captured)
        return captured

    def _whole_step(self, x: Tensor, y: Tensor) -> StepStats:
        self.net.inputs.seen(x)
        stats = self._update(x, y)
        self._guard.settle(stats)
        self._wrap_up(x, y)
        return stats

    def _guarded_step(self, key: Hashable, *inputs: Tensor) -> StepStats:
        if not self._guard.watching:
            self._guard.watch(self._learned())
        with self._autocast():
            return self._step(key, *inputs)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.compute.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()  # even one that is off costs more than a layer of the MLP's head

    def _count_step(self) -> None:
        self.steps += 1
        finding = self._guard.found(self.steps)
        if finding is not None:
            self._diverged(finding)

    def _diverged(self, finding: Finding) -> None:
        """Say that a step came to nothing; unless such steps are to be skipped, training ends."""
        names = [f.name for f in fields(self.config) if f.name == "lr" or f.name.endswith("_lr")]
        rates = ", ".join(f"{name} {getattr(self.config, name):g}" for name in names)
        what = f"seed {self.seed}, step {finding.step}: {finding.term} is not a finite number, with {rates}"
        if self.compute.on_divergence == "stop":
            raise DivergenceError(f"{what}; {self.advice}")
        if not self._told:
            _log.warning("scale-cl: warning: %s; it is skipped, as others may be", what)
        self._told = True
        self._guard.rearm()

    def _learned(self) -> list[Tensor]:
        """All that a step changes and that must stay finite."""
        running = [b for name, b in self.net.named_buffers() if "running" in name]
        return [*self.net.parameters(), *running, *self._average.values()]

    def _prepared(self, x: Tensor) -> Tensor:
        """Raw samples to training inputs: augmentation, units, standardisation."""
        prepared: Tensor = self.net.inputs(self.net.inputs.augmented(x, self._rng))
        return prepared

    def _predicted(self, x: Tensor, task: Tensor) -> dict[str, Tensor]:
        return {"logits": self._evaluated(x, task.expand(len(x)))[2]}

    def _evaluated(self, x: Tensor, task: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Common features, features and logits of raw samples by the model that predicts."""
        with torch.no_grad(), self._evaluation():
            out: tuple[Tensor, Tensor, Tensor] = functional_call(self.net, self._average, (self.net.inputs(x), task))
        return out

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        self.net.eval()
        try:
            yield
        finally:
            self.net.train()

    def _descend(
        self,
        loss: Tensor,
        parameters: Sequence[Tensor],
        rate: float,
        *,
        keep_graph: bool = False,
        clip: float = 0.0,
    ) -> None:
        """One step of plain SGD; `keep_graph` if another loss shares part of this one's computation.

        With `clip`, a gradient whose norm over all parameters is larger is scaled down to that norm.
        """
        gradients = list(torch.autograd.grad(loss, parameters, retain_graph=keep_graph))
        with torch.no_grad():
            if clip > 0:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
                torch._foreach_mul_(gradients, clip / norm.clamp(min=clip))  # a norm that is not finite stays one
            torch._foreach_add_(list(parameters), gradients, alpha=-rate)

    def _update_average(self, base: Sequence[Tensor] | None = None) -> None:
        """After every update of the base parameters (or of `base`, in their order): the weight average follows."""
        if self._average:
            with torch.no_grad():
                weight = 1 - self.config.weight_average
                torch._foreach_lerp_(list(self._average.values()), list(self._base if base is None else base), weight)

    def _refresh(self, *, force: bool = False) -> None:
        """If tensors have moved: drop recordings and look the parameters up again."""
        version = self._version()
        if version == self._known_version and not force:
            return
        self._known_version = version
        self._guard.drop()
        for captured in self._recorded:
            captured.drop()
        named = self.net.base_parameters()
        self._base = list(named.values())
        if self.config.weight_average > 0 and self._tasks:  # it begins with the first task
            averages = {}
            for name, p in named.items():
                averages[name] = p.detach().clone()
                old = self._average.get(name)
                if old is not None:
                    averages[name][tuple(slice(n) for n in old.shape)] = old
            self._average = averages

    def _average_takes(self, head: int, first: int) -> None:
        """The outputs of a head from `first` on are new: they enter the average as they are."""
        named = self.net.base_parameters()
        for name in ("heads.weight.data", "heads.bias.data"):
            if name in self._average:
                self._average[name][head, first:] = named[name].detach()[head, first:]

    def _trimmed_average(self) -> Mapping[str, Tensor]:
        heads = self.net.heads.weight.count
        return {n: t[:heads] if n.startswith("heads.") else t for n, t in self._average.items()}

    def _load_module(self, module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        try:
            module.load_state_dict(own)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"state does not fit this learner ({reason}); make it with the same config") from None

    def _number_of(self, task: str) -> int:
        if task not in self._tasks:
            seen = ", ".join(map(repr, self._tasks)) or "none"
            raise UnknownTaskError(f"task {task!r} was never seen; tasks seen: {seen}")
        return self._tasks[task]

    def _open_task(self) -> int:
        if self._current is None:
            raise ScaleClError("no task is open: call begin_task(TaskInfo(name, classes)) before observe")
        return self._tasks[self._current]

    def _check_shape(self, x: Tensor) -> None:
        shape, dtype = tuple(x.shape), torch.float32 if self.spec.pixel_max is None else torch.uint8
        if shape[1:] != tuple(self.spec.shape) or len(x) == 0:
            wanted = ", ".join(map(str, self.spec.shape))
            raise InputError(f"a batch has shape {list(shape)}; this learner takes [n, {wanted}] with n >= 1")
        if x.dtype != dtype:
            raise InputError(f"a batch is of {x.dtype}; this learner takes {dtype}")

    def _check_batch(self, x: Tensor, y: Tensor, task: int) -> None:
        self._check_shape(x)
        if y.shape != x.shape[:1] or y.dtype != torch.int64:
            raise InputError(f"labels have shape {list(y.shape)} and {y.dtype}; expected [{len(x)}] and torch.int64")
        if y.device.type == "cpu":  # elsewhere it would stop the device; a stream checks its labels when it is built
            low, high = (int(end) for end in torch.aminmax(y))
            if low < 0 or high >= self._classes[task]:
                wrong = low if low < 0 else high
                raise InputError(f"label {wrong} is outside the task's head; labels are 0 to {self._classes[task] - 1}")
