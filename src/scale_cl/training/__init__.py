"""Training: the loop, evaluation, and whole runs from a config."""

from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.events import Event, Listener
from scale_cl.training.learner_run import accuracies
from scale_cl.training.loop import train, train_many
from scale_cl.training.run import run, run_side_by_side

__all__ = ["Checkpointer", "Event", "Listener", "accuracies", "run", "run_side_by_side", "train", "train_many"]
