"""Your own images: one folder a task, a folder for each class inside; train, save, load, predict, go on.

    python examples/own_images.py PATH/TO/FOLDER

Without a folder, a small one is made: photographs of warm and cold things by day, then by night.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from scale_cl import ScaleClassifier, streams


def made_up(folder: Path) -> Path:
    """Squares (warm) and stripes (cold), bright by day and dim by night, 40 images each."""
    random = np.random.default_rng(0)
    for task, light in (("1-day", 1.0), ("2-night", 0.3)):
        for label in ("cold", "warm"):
            for i in range(40):
                pixels = random.uniform(0, 60, (16, 16, 3))
                if label == "warm":
                    pixels[4:12, 4:12, 0] += 180
                else:
                    pixels[::4, :, 2] += 180
                file = folder / task / label / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray((light * pixels).clip(0, 255).astype(np.uint8)).save(file)
    return folder


def main(folder: Path, saved: Path) -> float:
    """Learn task after task as they come; the mean accuracy at the end, by the model read back from its file."""
    stream = streams.from_folder(folder, size=32)  # a fifth of each class is held out for testing
    model = ScaleClassifier()
    for k, task in enumerate(stream.tasks):
        x, y = stream.train_data(k)
        for _ in range(3):  # passes; images that arrive once are given once
            model.partial_fit(x, np.array(task.classes)[y], task=task.name)
        model.save(saved)  # the next task may come next month
        model = ScaleClassifier.load(saved)
    accuracies = []
    for k, task in enumerate(stream.tasks):
        x, y = stream.test_data(k)
        labels = np.array(task.classes)[y]
        accuracies.append(model.score(x, labels, task=task.name))
        found = np.mean(model.infer_task(x) == task.name)
        print(f"{task.name}: {accuracies[-1]:.0%} right; task found without being told: {found:.0%}")
    return float(np.mean(accuracies))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else made_up(Path(scratch) / "images")
        main(given, Path(scratch) / "model.safetensors")
