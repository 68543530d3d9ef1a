"""All data sets by name."""

from __future__ import annotations

from scale_cl.streams.sources.cifar10 import CIFAR10
from scale_cl.streams.sources.cifar100 import CIFAR100
from scale_cl.streams.sources.digits import Digits
from scale_cl.streams.sources.mini_imagenet import MiniImageNet
from scale_cl.streams.sources.mnist import Mnist
from scale_cl.streams.sources.source import Source

SOURCES: dict[str, Source] = {s.name: s for s in (Digits(), Mnist(), CIFAR10, CIFAR100, MiniImageNet())}
