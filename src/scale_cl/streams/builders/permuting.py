"""Permuted streams: each task is the same classes seen through a pixel permutation of its own (domain-incremental)."""

from __future__ import annotations

from scale_cl.errors import StreamError
from scale_cl.streams.builders.assembly import assemble
from scale_cl.streams.randomness import as_rows, draw, generator
from scale_cl.streams.stream import Arrays, Stream, Task


def permuted(
    arrays: Arrays,
    *,
    tasks: int,
    train: int,
    test: int,
    seed: int = 0,
    name: str = "permuted",
    first_task: int = 0,
) -> Stream:
    """`tasks` tasks of `train` and `test` images, drawn afresh for each, from task number `first_task` (from 0) on."""
    available = {"training": (train, len(arrays.x_train)), "test": (test, len(arrays.x_test))}
    for part, (wanted, there) in available.items():
        if not 1 <= wanted <= there:
            raise StreamError(f"{wanted} {part} images a task were asked for; {name} has {there}, so take 1 to {there}")
    if tasks < 1:
        raise StreamError(f"tasks is {tasks}; it must be at least 1")
    pixels = arrays.x_train[0].numel()
    made = [
        Task(
            name=f"task-{k + 1}",
            classes=arrays.class_names,
            train=draw(train, len(arrays.x_train), seed, k, "train"),
            test=draw(test, len(arrays.x_test), seed, k, "test"),
            permutation=as_rows(generator(seed, k, "permutation").permutation(pixels)),
        )
        for k in range(first_task, first_task + tasks)
    ]
    return assemble(name, "domain", seed, arrays.on("cpu"), made)
