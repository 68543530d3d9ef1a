"""Networks: backbones, growing heads, the FiLM parameter generator and the discriminator."""

from scale_cl.nets.backbones import MLP, Backbone, ReducedResNet18
from scale_cl.nets.custom_backbone import CustomBackbone
from scale_cl.nets.discriminator import Discriminator
from scale_cl.nets.film import ParameterGenerator
from scale_cl.nets.growing_parameter import GrowingParameter
from scale_cl.nets.heads import Heads
from scale_cl.nets.inputs import Inputs
from scale_cl.nets.model import ContinualNet, Outputs

__all__ = [
    "MLP",
    "Backbone",
    "ContinualNet",
    "CustomBackbone",
    "Discriminator",
    "GrowingParameter",
    "Heads",
    "Inputs",
    "Outputs",
    "ParameterGenerator",
    "ReducedResNet18",
]
