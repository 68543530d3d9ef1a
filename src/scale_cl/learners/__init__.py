"""Continual learners: one file a method, one protocol (`Learner`), one catalog."""

from scale_cl.learners import catalog
from scale_cl.learners.acl import Acl, AclConfig
from scale_cl.learners.base import Compute, Learner, LearnerConfig, State, StepStats
from scale_cl.learners.ctn import Ctn, CtnConfig
from scale_cl.learners.finetune import Finetune, FinetuneConfig
from scale_cl.learners.gem import Gem, GemConfig
from scale_cl.learners.replay import MemoryConfig, ReplayConfig, ReplayLearner
from scale_cl.learners.scale import Scale, ScaleConfig
from scale_cl.learners.traits import Traits

__all__ = [
    "Acl",
    "AclConfig",
    "Compute",
    "Ctn",
    "CtnConfig",
    "Finetune",
    "FinetuneConfig",
    "Gem",
    "GemConfig",
    "Learner",
    "LearnerConfig",
    "MemoryConfig",
    "ReplayConfig",
    "ReplayLearner",
    "Scale",
    "ScaleConfig",
    "State",
    "StepStats",
    "Traits",
    "catalog",
]
