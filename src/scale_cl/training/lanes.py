"""Seeds of one run, or of several, trained side by side in this process: their streams, learners and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from scale_cl import streams
from scale_cl.errors import DivergenceError, Interrupted
from scale_cl.learners import Learner, registry
from scale_cl.results import SeedResult
from scale_cl.streams import Stream, catalog
from scale_cl.streams.keeping import room
from scale_cl.streams.sources.source import Progress
from scale_cl.streams.user_streams import load_own
from scale_cl.training import machine
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.config import Config, StreamSettings
from scale_cl.training.events import Event, Listener, Loaded, Stepped, ignore, to_all
from scale_cl.training.learnt_streams import after_earlier
from scale_cl.training.loop import train_many
from scale_cl.training.machine import choose_device, compute, prepare
from scale_cl.training.memory_check import check_fits
from scale_cl.training.run_directory import RunDirectory

_SHARE = 0.5  # of the free memory that several runs may take together: the device may have other processes


def build_stream(config: Config, seed: int, root: Path | None, progress: Progress | None = None) -> Stream:
    """The stream of one seed; the arrays behind it are read once per process, or as they come.

    `progress` is called while images are read, and may raise an error to break off.
    """
    c, own = config.stream, config.own_data
    if own is not None:
        device = choose_device(config.run.device)
        copies = 1 if device.type == "cuda" else process_count(config)
        made = load_own(own, seed=seed, tasks=c.tasks, room=room(device, copies=copies), progress=progress)
    else:
        made = streams.load(
            c.name,
            seed=seed,
            root=root,
            scenario=c.scenario,
            class_order=c.class_order,
            part=c.part,
            tasks=c.tasks,
            size=c.size,
            progress=progress,
        )
    if c.train_share < 1:
        made = streams.thinned(made, c.train_share)
    if c.blur or c.schedule == "gaussian":
        made = streams.blurred(made, share=c.blur, schedule=c.schedule, width=c.width)
    return made if c.boundaries == "told" else replace(made, boundaries=c.boundaries)


def build_learner(config: Config, stream: Stream, seed: int, device: torch.device) -> Learner:
    """A new learner for one seed."""
    how = compute(config.run, device)
    learner = registry.make(config.learner_name, stream.spec, config.learner, seed=seed, device=device, compute=how)
    learner.engine.advice = ", or let such steps be skipped (run.on_divergence=skip)"
    return learner


@dataclass(frozen=True)
class Job:
    """What the training of every seed needs."""

    config: Config
    data: Path | None
    directory: Path | None  # None: no checkpoints
    resume: bool
    stop: Callable[[], bool] | None = None
    tell: Listener = ignore
    loss_every: int = 0
    on_trained: Callable[[Learner, Stream], object] | None = None

    def check_stop(self, done: int, total: int) -> None:
        """Raise Interrupted if the run is to stop; called while data is read, when there is nothing to save."""
        if self.stop is not None and self.stop():
            raise Interrupted("stopped as asked while the data was read")

    def stream(self, seed: int) -> Stream:
        """The stream of one seed, after those that were learnt before it."""
        config, made = self.config, build_stream(self.config, seed, self.data, self.check_stop)
        if not config.before:
            return made
        folder = None if self.directory is None else RunDirectory(self.directory).checkpoints_of(seed)
        known = folder if self.resume else None

        def build(settings: StreamSettings, base: Path | None) -> Stream:
            earlier = replace(config, stream=settings, before=(), base=base)
            return build_stream(earlier, seed, self.data, self.check_stop)

        return after_earlier(made, config.before, build, known, warn=seed == config.seeds[0])


def process_count(config: Config) -> int:
    """Number of processes over which seeds are spread on a CPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(len(config.seeds), config.run.processes or max(1, cores // config.run.threads))


def train_lanes(
    lanes: Sequence[tuple[Job, int]], diverged: dict[int, DivergenceError] | None = None
) -> list[SeedResult]:
    """Train seeds of one job, or of several that may train together, side by side; for `diverged` see `train_many`."""
    job = lanes[0][0]
    config, device = job.config, prepare(job.config.run)
    if device.type == "cuda" and any(_uses_convolutions(own.config) for own, _ in lanes):
        machine.compile_kernels(config.run, device)  # while the data is read
    tracks = [own.stream(seed) for own, seed in lanes]
    job.tell(Loaded(remarks(tracks[0])))
    jobs = {id(own): (own, track) for (own, _), track in zip(lanes, tracks, strict=True)}
    for own, track in jobs.values():  # as if all lanes were as large as its own
        check_fits(own.config, track, device, learners=len(lanes), share=_SHARE if len(jobs) > 1 else 1.0)
    pairs = zip(lanes, tracks, strict=True)
    learners = [build_learner(own.config, track, seed, device) for (own, seed), track in pairs]
    checkpointer = _checkpointer([own for own, _ in lanes])
    stop = job.stop if checkpointer is None else None  # a checkpointer heeds it by itself
    trained = train_many(
        learners,
        tracks,
        batch_size=config.run.batch_size,
        on_event=job.tell if stop is None else to_all(job.tell, partial(_stop_if_asked, stop)),
        loss_every=job.loss_every,
        evaluate_every=config.run.evaluate_every,
        evaluate_samples=config.run.evaluate_samples,
        prequential=config.run.prequential,
        config=[own.config.as_dict() for own, _ in lanes],
        checkpointer=checkpointer,
        detection=config.stream,
        diverged=diverged,
    )
    if job.on_trained is not None:
        for learner, track in zip(learners, tracks, strict=True):
            job.on_trained(learner, track)
    return trained


def _checkpointer(jobs: Sequence[Job]) -> Checkpointer | None:
    """Writes the checkpoints of each learner as its job says, if there are directories for them."""
    first, directories = jobs[0], [job.directory for job in jobs if job.directory is not None]
    if not directories:
        return None
    c = first.config.run
    return Checkpointer(
        directories,
        every=c.checkpoint_every,
        seconds=c.checkpoint_seconds,
        kept=c.checkpoints_kept,
        resume=any(job.resume for job in jobs),  # the others have no checkpoints
        stop=first.stop,
        here=os.path.relpath(first.config.base or Path.cwd(), directories[0]) if first.config.own_data else None,
    )


def _stop_if_asked(stop: Callable[[], bool], event: Event) -> None:
    if isinstance(event, Stepped) and stop():
        raise Interrupted("stopped as asked; nothing was kept")


def remarks(stream: Stream) -> tuple[str, ...]:
    """What is odd about a stream, but no error."""
    single = [task.name for task in stream.tasks if len(task.classes) == 1]
    if stream.scenario != "task" or not single:
        return ()
    others = f" (as in {len(single) - 1} more)" if len(single) > 1 else ""
    return (
        f"task {single[0]} has a single class{others}, which its head always predicts: 100 % there says nothing; "
        "stream.scenario=class has one head for the classes of all tasks",
    )


def _uses_convolutions(config: Config) -> bool:
    """Whether the learner's network is a ResNet, as far as the config tells before the data is read."""
    own = config.own_data
    channels = catalog.entry(config.stream.name).channels if own is None else own.channels
    backbone = config.learner.backbone
    return backbone.startswith("resnet18") or (backbone == "auto" and channels == 3)
