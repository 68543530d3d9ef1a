"""CIFAR-100: 50,000 training and 10,000 test images of 100 classes, binary or python version."""

from __future__ import annotations

from scale_cl.streams.sources.cifar import Cifar, Version
from scale_cl.streams.sources.source import Download

_SITE = "https://www.cs.toronto.edu/~kriz/"

_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASS_NAMES = tuple(_NAMES.split())

BINARY = Version(
    folders=("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100", "."),
    train=("train.bin",),
    test="test.bin",
    pickled=False,
    md5={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
)
PYTHON = Version(
    folders=("cifar-100-python", "cifar100/cifar-100-python", "cifar100", "."),
    train=("train",),
    test="test",
    pickled=True,
    md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)

CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    class_names=CLASS_NAMES,
    train_per_class=500,
    test_per_class=100,
    label_bytes=2,  # coarse, fine
    label_key="fine_labels",
    versions=(BINARY, PYTHON),
    downloads=(
        (
            Download(
                f"{_SITE}cifar-100-binary.tar.gz",
                "cifar-100-binary.tar.gz",
                168_513_733,
                "03b5dce01913d631647c71ecec9e9cb8",
                unpacks_to="cifar-100-binary",
            ),
        ),
        (
            Download(
                f"{_SITE}cifar-100-python.tar.gz",
                "cifar-100-python.tar.gz",
                169_001_437,
                "eb9058c3a382ffc7106e4002c42a8d85",
                unpacks_to="cifar-100-python",
            ),
        ),
    ),
    placing="the folder cifar-100-binary or cifar-100-python of the official archive",
    image_checksums=("897abebd74e0da3b116b2ae5ecfb3b61", "2471856e1ba25664ba09dde9fd5d9853"),
)
