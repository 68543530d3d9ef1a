"""Training: the loop, evaluation, and whole runs from a config."""

from scale_cl.training.evaluation import accuracies
from scale_cl.training.loop import train, train_many
from scale_cl.training.observer import NoObserver, Observer
from scale_cl.training.seeds import run

__all__ = ["NoObserver", "Observer", "accuracies", "run", "train", "train_many"]
