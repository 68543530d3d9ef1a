"""Continual learners: one file per method, one protocol (`Learner`), one registry."""

from scale_cl.engine import (
    Batch,
    Compute,
    Engine,
    LearnerConfig,
    MemoryConfig,
    ReplayConfig,
    Samples,
    State,
    StepStats,
)
from scale_cl.learners import registry
from scale_cl.learners.acl import Acl, AclConfig
from scale_cl.learners.adcn import Adcn, AdcnConfig, Kiera, KieraConfig
from scale_cl.learners.agem import Agem, AgemConfig
from scale_cl.learners.bocl import Bocl, BoclConfig
from scale_cl.learners.ctn import Ctn, CtnConfig
from scale_cl.learners.den import Den, DenConfig
from scale_cl.learners.der import Der, DerConfig, Derpp, DerppConfig
from scale_cl.learners.er import Er, ErConfig
from scale_cl.learners.er_ace import ErAce, ErAceConfig
from scale_cl.learners.ewc import Ewc, EwcConfig
from scale_cl.learners.finetune import Finetune, FinetuneConfig
from scale_cl.learners.gdumb import Gdumb, GdumbConfig
from scale_cl.learners.gem import Gem, GemConfig
from scale_cl.learners.hal import Hal, HalConfig
from scale_cl.learners.icarl import Icarl, IcarlConfig
from scale_cl.learners.independent import Independent, IndependentConfig
from scale_cl.learners.isyana import Isyana, IsyanaConfig
from scale_cl.learners.joint import Joint, JointConfig
from scale_cl.learners.learn_to_grow import LearnToGrow, LearnToGrowConfig
from scale_cl.learners.learner import Learner, ReplayLearner, StepSize, Traits, replay_memory
from scale_cl.learners.lwf import Lwf, LwfConfig
from scale_cl.learners.mas import Mas, MasConfig
from scale_cl.learners.mer import Mer, MerConfig
from scale_cl.learners.mir import Mir, MirConfig
from scale_cl.learners.npc import Npc, NpcConfig
from scale_cl.learners.pnn import Pnn, PnnConfig
from scale_cl.learners.presets import Preset
from scale_cl.learners.scale import Scale, ScaleConfig
from scale_cl.learners.scr import Scr, ScrConfig
from scale_cl.learners.si import Si, SiConfig
from scale_cl.learners.slda import Slda, SldaConfig

__all__ = [
    "Acl",
    "AclConfig",
    "Adcn",
    "AdcnConfig",
    "Agem",
    "AgemConfig",
    "Batch",
    "Bocl",
    "BoclConfig",
    "Compute",
    "Ctn",
    "CtnConfig",
    "Den",
    "DenConfig",
    "Der",
    "DerConfig",
    "Derpp",
    "DerppConfig",
    "Engine",
    "Er",
    "ErAce",
    "ErAceConfig",
    "ErConfig",
    "Ewc",
    "EwcConfig",
    "Finetune",
    "FinetuneConfig",
    "Gdumb",
    "GdumbConfig",
    "Gem",
    "GemConfig",
    "Hal",
    "HalConfig",
    "Icarl",
    "IcarlConfig",
    "Independent",
    "IndependentConfig",
    "Isyana",
    "IsyanaConfig",
    "Joint",
    "JointConfig",
    "Kiera",
    "KieraConfig",
    "LearnToGrow",
    "LearnToGrowConfig",
    "Learner",
    "LearnerConfig",
    "Lwf",
    "LwfConfig",
    "Mas",
    "MasConfig",
    "MemoryConfig",
    "Mer",
    "MerConfig",
    "Mir",
    "MirConfig",
    "Npc",
    "NpcConfig",
    "Pnn",
    "PnnConfig",
    "Preset",
    "ReplayConfig",
    "ReplayLearner",
    "Samples",
    "Scale",
    "ScaleConfig",
    "Scr",
    "ScrConfig",
    "Si",
    "SiConfig",
    "Slda",
    "SldaConfig",
    "State",
    "StepSize",
    "StepStats",
    "Traits",
    "registry",
    "replay_memory",
]
