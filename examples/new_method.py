"""A new method in forty lines: replay with a calm teacher, the moving average of the learner's own weights.

    python examples/new_method.py

A method is a config (its settings, each with a line of documentation) and a step. The network with growing heads, the
memory, the weight average, evaluation, checkpoints and the training loop come with the base class.
"""

from __future__ import annotations

from dataclasses import dataclass

from scale_cl import streams, train
from scale_cl.learners import Batch, Er, ReplayConfig, ReplayLearner
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class CalmConfig(ReplayConfig):
    """Settings of Calm."""

    lr: float = setting(0.1, "learning rate", above=0)
    updates: int = setting(3, "gradient steps per batch, each with a fresh replay draw", low=1)
    calm: float = setting(2.0, "weight of the distance to the teacher's probabilities", low=0)
    weight_average: float = setting(0.95, "decay of the average that teaches and predicts", above=0, below=1)


class Calm(ReplayLearner):
    """ER that keeps its answers on replayed samples near those of its own weight average."""

    config_class = CalmConfig
    config: CalmConfig

    def update(self, batch: Batch) -> None:
        """Descend the cross-entropy of batch and replay, and the distance to the teacher on the replay."""
        c = self.config
        for samples in self.memory.replay_with(batch, c.replay, times=c.updates):  # the batch, and a draw
            logits = self.network(samples).logits
            loss = cross_entropy(logits, samples.y)
            if samples.rows is not None:
                taught = self.engine.evaluated(self.memory.x[samples.rows], samples.replay.task).logits.softmax(1)
                own = samples.from_memory(logits).softmax(1)
                loss = loss + c.calm * (own - taught).square().sum(1).mean()
            self.network.base.descend(loss, c.lr)  # the average follows
            self.log(loss=loss)
        self.memory.write(batch)


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
