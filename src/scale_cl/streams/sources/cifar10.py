"""CIFAR-10: 50,000 training and 10,000 test images of 10 classes, binary or python version."""

from __future__ import annotations

from scale_cl.streams.sources.cifar import Cifar, Version
from scale_cl.streams.sources.source import Download

_SITE = "https://www.cs.toronto.edu/~kriz/"

BINARY = Version(
    folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "cifar-10-binary", "."),
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    pickled=False,
    md5={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)
PYTHON = Version(
    folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10", "cifar-10-python", "."),
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    pickled=True,
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)

CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train_per_class=5000,
    test_per_class=1000,
    label_bytes=1,
    label_key="labels",
    versions=(BINARY, PYTHON),
    downloads=(
        (
            Download(
                f"{_SITE}cifar-10-binary.tar.gz",
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c32a1d4ab5d03f1284b67883e8d87530",
                unpacks_to="cifar-10-batches-bin",
            ),
        ),
        (
            Download(
                f"{_SITE}cifar-10-python.tar.gz",
                "cifar-10-python.tar.gz",
                170_498_071,
                "c58f30108f718f92721af3b95e74349a",
                unpacks_to="cifar-10-batches-py",
            ),
        ),
    ),
    placing="the folder cifar-10-batches-bin or cifar-10-batches-py of the official archive",
    image_checksums=("3020052945433ce9e5ff232bf34b19e4", "7b9413a1ccbc1e48cbedc5f1f3a8dd44"),
)
