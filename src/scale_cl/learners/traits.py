"""What a method keeps and needs: the columns of table 1 of the paper's supplement, declared by each learner's class."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """Yes or no in each column; heads are not counted, as all methods have the same."""

    episodic_memory: bool = False  # keeps samples of earlier tasks
    task_specific_parameters: bool = False  # has parameters that only one task uses
    task_at_inference: bool = True  # must be told the task of what it predicts
    history_in_training: bool = False  # keeps parameters, gradients or logits of earlier moments, to train with
    history_in_testing: bool = False  # keeps parameters of earlier moments, to predict with
