"""The trained learner of a run, restored from the newest good checkpoint in the run's directory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from scale_cl.export.export_task import Subject, subject_of
from scale_cl.learners import Learner
from scale_cl.training.kept_model import KeptModel, kept_model


@dataclass(frozen=True, eq=False)
class Trained:
    """A learner on the CPU, and what its run has kept of it."""

    learner: Learner
    kept: KeptModel

    def subject(self, task: str) -> Subject:
        """One task, ready for export."""
        classes = {saved.name: saved.classes for saved in self.kept.model.tasks}
        return replace(subject_of(self.learner, task, classes.get(task)), preprocess=self.kept.preprocess)


def learner_of_run(directory: Path, *, seed: int | None = None) -> Trained:
    """The learner of one seed of a run, finished or not; its data is not needed."""
    kept = kept_model(directory, seed=seed, unfinished=True)
    return Trained(kept.learner(), kept)
