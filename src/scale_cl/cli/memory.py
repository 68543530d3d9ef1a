"""`scale-cl memory`: list, export and delete the samples in the memory of a stopped or kept run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scale_cl.cli import counted, say

app = typer.Typer(
    no_args_is_help=True, help="List, export and delete a run's stored samples. They may be personal data."
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the run.")]
Seed = Annotated[int | None, typer.Option(metavar="S", help="Only this seed.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", metavar="NAME", help="Samples of this task; repeatable.")]
Ids = Annotated[list[str] | None, typer.Option("--sample", metavar="ID", help="Such as memory:17; repeatable.")]


@app.command("list")
def list_samples(
    directory: Directory,
    seed: Seed = None,
    samples: Annotated[bool, typer.Option("--samples", help="List every sample, not only how many.")] = False,
) -> None:
    """List what the memory holds at the newest checkpoint."""
    from scale_cl.training.memory_editing import listed, newest

    for number, folder in _folders(directory, seed):
        saved = newest(folder)
        there = listed(saved)
        say(f"seed {number}: {counted(len(there), 'sample')}")
        for name, _ in saved.state["meta"]["tasks"]:
            own = [s for s in there if s.task == name]
            say(f"  {name}: {len(own)}")
            for sample in own if samples else ():
                say(f"    {sample.id}  label {sample.label}")


@app.command()
def export(
    directory: Directory,
    to: Annotated[Path, typer.Argument(metavar="TO", help="A new folder for x.npy, y.npy and samples.json per seed.")],
    seed: Seed = None,
    task: Tasks = None,
    sample: Ids = None,
) -> None:
    """Write samples to a folder as NumPy arrays."""
    import io
    import shutil

    import numpy as np

    from scale_cl import files
    from scale_cl.errors import CheckpointError, OutputInUseError
    from scale_cl.training.memory_editing import chosen, inputs, newest

    if to.exists():
        raise OutputInUseError(f"{to} exists already; name a folder that does not")
    coming, written = to.with_name(f".{to.name}-coming"), list[str]()
    try:
        shutil.rmtree(coming, ignore_errors=True)
        for number, folder in _folders(directory, seed):
            saved = newest(folder)
            picked = chosen(saved, ids=sample or (), tasks=task or ())
            labels = np.array([s.label for s in picked], dtype=np.int64)
            for name, array in (("x.npy", inputs(saved, picked).numpy()), ("y.npy", labels)):
                content = io.BytesIO()
                np.save(content, array, allow_pickle=False)
                files.write_bytes(coming / f"seed-{number}" / name, content.getvalue())
            files.write_json(coming / f"seed-{number}" / "samples.json", [vars(s) for s in picked])
            written.append(f"seed {number}: {counted(len(picked), 'sample')} written to {to / f'seed-{number}'}")
        coming.replace(to)
    except OSError as error:
        raise CheckpointError(f"samples cannot be written to {to}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(coming, ignore_errors=True)
    say("\n".join(written))


@app.command()
def delete(
    directory: Directory,
    seed: Seed = None,
    task: Tasks = None,
    sample: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All samples.")] = False,
) -> None:
    """Delete samples with their labels and stored logits.

    Training continues without them.
    """
    from scale_cl.errors import ConfigError
    from scale_cl.training import memory_editing
    from scale_cl.training.run_directory import RunDirectory

    if everything == bool(task or sample):
        raise ConfigError("say what is to be deleted: --task NAME, --sample ID or --all")
    if sample and seed is None and len(_folders(directory, None)) > 1:
        raise ConfigError("a sample's ID belongs to one seed; say which with --seed S")
    with RunDirectory(directory).claimed(force=True):
        for number, folder in _folders(directory, seed):
            count = memory_editing.delete(folder, ids=sample or (), tasks=task or ())
            say(f"seed {number}: {counted(count, 'sample')} deleted")


def _folders(directory: Path, seed: int | None) -> list[tuple[int, Path]]:
    """The seeds that have checkpoints, and the folders of these."""
    from scale_cl import files
    from scale_cl.errors import CheckpointError
    from scale_cl.training.run_directory import RunDirectory

    if not files.is_folder(directory):
        raise CheckpointError(f"{directory} is not a directory; name a run's")
    run = RunDirectory(directory)
    found = [(number, run.checkpoints_of(number)) for number in run.seeds if seed in (None, number)]
    if not found:
        of = "" if seed is None else f" of seed {seed}"
        raise CheckpointError(f"{directory} holds no checkpoint{of}: a finished run keeps none without run.keep_state")
    return found
