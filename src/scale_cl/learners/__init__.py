"""Continual learners: one file per method, one protocol (`Learner`), one registry."""

from scale_cl.engine import Batch, Compute, LearnerConfig, MemoryConfig, ReplayConfig, Samples, State, StepStats
from scale_cl.learners import registry
from scale_cl.learners.acl import Acl, AclConfig
from scale_cl.learners.agem import Agem, AgemConfig
from scale_cl.learners.ctn import Ctn, CtnConfig
from scale_cl.learners.der import Der, DerConfig, Derpp, DerppConfig
from scale_cl.learners.er import Er, ErConfig
from scale_cl.learners.finetune import Finetune, FinetuneConfig
from scale_cl.learners.gem import Gem, GemConfig
from scale_cl.learners.joint import Joint, JointConfig
from scale_cl.learners.learner import Learner, ReplayLearner, Traits
from scale_cl.learners.mer import Mer, MerConfig
from scale_cl.learners.mir import Mir, MirConfig
from scale_cl.learners.scale import Scale, ScaleConfig

__all__ = [
    "Acl",
    "AclConfig",
    "Agem",
    "AgemConfig",
    "Batch",
    "Compute",
    "Ctn",
    "CtnConfig",
    "Der",
    "DerConfig",
    "Derpp",
    "DerppConfig",
    "Er",
    "ErConfig",
    "Finetune",
    "FinetuneConfig",
    "Gem",
    "GemConfig",
    "Joint",
    "JointConfig",
    "Learner",
    "LearnerConfig",
    "MemoryConfig",
    "Mer",
    "MerConfig",
    "Mir",
    "MirConfig",
    "ReplayConfig",
    "ReplayLearner",
    "Samples",
    "Scale",
    "ScaleConfig",
    "State",
    "StepStats",
    "Traits",
    "registry",
]
