"""Training: the loop, evaluation, and whole runs from a config."""

from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.evaluation import accuracies
from scale_cl.training.loop import train, train_many
from scale_cl.training.observer import NoObserver, Observer
from scale_cl.training.run import Saving, run

__all__ = ["Checkpointer", "NoObserver", "Observer", "Saving", "accuracies", "run", "train", "train_many"]
