"""A sensor stream whose domain drifts: the same machine states, read by sensors that age and are recalibrated.

    python examples/drifting_sensors.py

Every season the sensors answer differently. A plain online model forgets how they answered before; SCALE does not, and
the readings of last spring are still understood when they are replayed from the archive.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scale_cl import ContinualClassifier

STATES = np.array(["idle", "running", "worn", "blocked"])
SEASONS = ["spring", "summer", "autumn", "winter"]
SCALE = 10.0 ** np.arange(-3, 5)  # volts, degrees, rounds a minute: sensors have units of their own


def readings(season: int, n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Eight sensors mix three hidden quantities; each season mixes them anew and adds an offset."""
    random, mixing = np.random.default_rng((season, seed)), np.random.default_rng(season)
    state = random.integers(0, len(STATES), n)
    corners = np.array([[0, 0, 0], [2, 0, 1], [2, 2, 0], [0, 2, 2]])
    hidden = corners[state] + 0.5 * random.normal(size=(n, 3))
    return (hidden @ mixing.normal(size=(3, 8)) + mixing.normal(size=8)) * SCALE, STATES[state]


def main(hours: int = 40, an_hour: int = 25) -> dict[str, float]:
    """Accuracy over all seasons at the end, of fine-tuning and of SCALE, each sample seen once."""
    result = {}
    for learner in ("finetune", "scale"):
        model = ContinualClassifier(learner, scenario="domain")  # the states are the same: one head for all seasons
        for number, season in enumerate(SEASONS):
            for hour in range(hours):
                model.partial_fit(*readings(number, an_hour, seed=hour), task=season)
        right = [model.score(*readings(k, 500, seed=10**6), task=season) for k, season in enumerate(SEASONS)]
        result[learner] = float(np.mean(right))
        print(f"{learner:9}" + "".join(f"  {name} {value:.0%}" for name, value in zip(SEASONS, right, strict=True)))
    return result


if __name__ == "__main__":
    main()
