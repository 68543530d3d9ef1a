"""A new method in forty lines: replay with a calm teacher, the moving average of the learner's own weights.

    python examples/new_method.py

A method is a config (its settings, each with a line of documentation) and a step. The memory, growing heads, the weight
average, evaluation, checkpoints and the training loop come with the base class.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scale_cl import streams, train
from scale_cl.learners import Er, ReplayConfig, ReplayLearner, StepStats
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class CalmConfig(ReplayConfig):
    """Settings of Calm."""

    lr: float = setting(0.1, "learning rate", above=0)
    updates: int = setting(3, "gradient steps a batch, each with a fresh replay draw", low=1)
    calm: float = setting(2.0, "weight of the distance to the teacher's probabilities", low=0)
    weight_average: float = setting(0.95, "decay of the average that teaches and predicts", above=0, below=1)


class Calm(ReplayLearner):
    """ER that keeps its answers on replayed samples near those of its own weight average."""

    config_class = CalmConfig
    config: CalmConfig

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        stats = StepStats()
        for samples in self._replay_batches(x, y, self.config.updates):  # the batch, and a draw from the memory
            logits = self.net(samples.x, samples.task)[2]
            loss = cross_entropy(logits, samples.y)
            if samples.rows is not None:
                old, tasks = self.memory.x[samples.rows], samples.task[samples.n :]
                taught = self._evaluated(old, tasks)[2].softmax(1)
                loss = loss + self.config.calm * (logits[samples.n :].softmax(1) - taught).square().sum(1).mean()
            self._descend(loss, self._base, self.config.lr)
            self._update_average()  # the average follows
            stats["loss"] = loss.detach()
        return stats


def main(tasks: int = 5) -> dict[str, float]:
    """Accuracy on the digits stream, beside ER's."""
    result = {}
    for method in (Er, Calm):
        stream = streams.load("digits", tasks=tasks)
        result[method.__name__] = float(train(method(stream.spec), stream).acc or 0)
        print(f"{method.__name__}: {result[method.__name__]:.1f} %")
    return result


if __name__ == "__main__":
    main()
