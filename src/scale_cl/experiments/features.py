"""The common features that a trained learner has for the test samples, and how well tasks can be told apart by them.

The adversary is to make them indistinguishable. Its own discriminator may just be a bad one, so a probe is the measure,
a discriminator of the same shape trained afresh on the finished features: the closer to chance, the better aligned.
On the MLP a FiLM layer stands before the last one, so that there even common features tell their task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor, nn

from scale_cl import files
from scale_cl.errors import ResultError
from scale_cl.learners import Learner
from scale_cl.streams import Stream

NAME = "features.safetensors"
_STEPS = 400  # of a probe: its loss has settled by then
_CHUNK = 500


def keep_features(folder: Path, learner: Learner, stream: Stream) -> None:
    """Write the features that a trained learner has for its stream's test samples."""
    features, task = test_features(learner, stream)
    kept = {"features": features, "task": task}
    own = own_accuracy(learner, torch.from_numpy(features), torch.from_numpy(task))
    if own is not None:
        kept["own_accuracy"] = np.array(own)
    files.write_bytes(folder / NAME, save(kept))


def read(folder: Path) -> dict[str, Any]:
    """What a run kept: features [n, width], task [n], and own_accuracy if it has a discriminator."""
    path = folder / NAME
    try:
        kept = load(path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise ResultError(f"{path} is damaged: {error}") from None
    if not {"features", "task"} <= set(kept) or kept["features"].shape[:1] != kept["task"].shape:
        raise ResultError(f"{path} is damaged: it does not hold features and tasks of the same samples")
    return dict(kept)


def test_features(learner: Learner, stream: Stream) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Common features [n, width] float32 of all test samples in evaluation mode, and the task [n] of each."""
    features, tasks = [], []
    learner.net.eval()
    try:
        with torch.no_grad():
            for number in range(len(stream)):
                for x in stream.test_data(number)[0].split(_CHUNK):
                    task = torch.full((len(x),), number, dtype=torch.int64, device=learner.device)
                    prepared = learner.net.inputs(x.to(learner.device))
                    features.append(learner.net.common(prepared, task).float().cpu())
                    tasks.append(task.cpu())
    finally:
        learner.net.train()
    return torch.cat(features).numpy(), torch.cat(tasks).numpy()


def own_accuracy(learner: Learner, features: Tensor, task: Tensor) -> float | None:
    """Percent of samples whose task the learner's own discriminator names; None if it has none."""
    discriminator = getattr(learner, "discriminator", None)
    if discriminator is None:
        return None
    with torch.no_grad():
        guess = (discriminator(features.to(learner.device)) + discriminator.missing).argmax(1).cpu()
    return 100 * float((guess == task + 1).double().mean())


def probe_accuracy(features: Tensor, task: Tensor, *, seed: int = 0) -> float:
    """Percent of held-out samples whose task a fresh discriminator names, after learning from the other half."""
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    learned, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    mean, deviation = features[learned].mean(0), features[learned].std(0).clamp(min=1e-6)
    x = (features - mean) / deviation
    width, classes = x.shape[1], int(task.max()) + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
    optimizer = torch.optim.Adam(probe.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(probe(x[learned]), task[learned]).backward()
        optimizer.step()
    with torch.no_grad():
        guess = probe(x[held_out]).argmax(1)
    return 100 * float((guess == task[held_out]).double().mean())


def plane(features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[n, 2]: the first two principal components, each with its largest loading positive."""
    centred = features - features.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    largest = np.abs(directions).argmax(1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    projected: np.ndarray[Any, Any] = centred @ (directions * signs[:, None]).T
    return projected
