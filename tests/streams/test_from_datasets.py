"""Data sets in the style of other libraries as streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from scale_cl.errors import StreamError
from scale_cl.streams import from_dataset

CLASSES = ["ant", "bee", "cat", "dog"]


class Pairs:
    """In the style of torchvision: (image, class number), names in `classes`."""

    def __init__(self, labels: list[int], *, form: str = "pil", classes: list[str] | None = CLASSES) -> None:
        self.labels, self.form = labels, form
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if i >= len(self):
            raise IndexError
        pixels = np.full((4, 5, 3), 10 * i + self.labels[i], dtype=np.uint8)
        forms = {
            "pil": Image.fromarray(pixels),
            "grey": Image.fromarray(pixels[:, :, 0]),
            "palette": Image.fromarray(pixels).quantize(),
            "numpy": pixels,
            "tensor": torch.from_numpy(pixels).permute(2, 0, 1),
            "scaled": torch.from_numpy(pixels).permute(2, 0, 1) / 255,
            "vector": torch.arange(3.0) + i,
        }
        return forms[self.form], self.labels[i]


class Named:
    """In the style of Hugging Face: items are dicts, names of classes are in `features`."""

    class Feature:
        names = CLASSES

    def __init__(self, labels: list[int], fields: tuple[str, str] = ("image", "label")) -> None:
        self.pairs, self.fields = Pairs(labels), fields
        self.features = {fields[1]: self.Feature()}

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return dict(zip(self.fields, self.pairs[i], strict=True))


@pytest.mark.parametrize("form", ["pil", "grey", "palette", "numpy", "tensor", "scaled"])
def test_each_pair_of_data_sets_is_a_task(form: str) -> None:
    tasks = [
        (Pairs([0, 1, 0, 1], form=form), Pairs([1, 0], form=form)),
        (Pairs([2, 3], form=form), Pairs([3], form=form)),
    ]
    stream = from_dataset(tasks, names=["first", "second"], shuffle=False)
    assert [(t.name, t.classes) for t in stream.tasks] == [("first", ("ant", "bee")), ("second", ("cat", "dog"))]
    assert stream.spec.shape == (1 if form == "grey" else 3, 4, 5)
    x, y = stream.train_data(0)
    assert [int(image[0, 0, 0]) for image in x] == [0, 11, 20, 31]
    assert y.tolist() == [0, 1, 0, 1]
    assert stream.test_data(1)[1].tolist() == [1]


def test_the_classes_of_one_data_set_are_dealt_out_over_tasks() -> None:
    stream = from_dataset(Named([0, 1, 2, 3] * 3), Named([3, 2, 1, 0]), classes_per_task=2, name="insects")
    assert (stream.name, [t.classes for t in stream.tasks]) == ("insects", [("ant", "bee"), ("cat", "dog")])
    assert [len(t.train) for t in stream.tasks] == [6, 6]


def test_fields_of_other_names_are_named() -> None:
    odd = Named([0, 1], ("photo", "species"))
    stream = from_dataset([(odd, odd)], image="photo", label="species")
    assert stream.tasks[0].classes == ("ant", "bee")
    with pytest.raises(StreamError, match="items have fields photo, species; say which is the image: image="):
        from_dataset([(odd, odd)])


def test_vectors_and_numbers_without_names_stay_what_they_are() -> None:
    data = Pairs([0, 1], form="vector", classes=None)
    stream = from_dataset([(data, data)], scenario="domain", shuffle=False)
    assert stream.train_data(0)[0].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert stream.tasks[0].classes == ("0", "1")


def test_images_are_resized_where_a_size_is_given() -> None:
    data = Pairs([0, 1])
    assert from_dataset([(data, data)], size=8).spec.shape == (3, 8, 8)


def test_what_is_no_data_set_is_said() -> None:
    data = Pairs([0, 1])
    mixed = [(np.zeros((4, 4), np.uint8), 0), (np.zeros((5, 4), np.uint8), 1)]
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([data], {}, "give pairs of data sets"),
        ([(data, iter([]))], {}, "is no data set"),
        ([(data, [])], {}, "a data set is empty"),
        ([(data, [3])], {}, "an item is a int"),
        ([(data, mixed)], {}, "give a size"),
        ([(data, [(torch.full((3, 4, 5), -1.0), 0)])], {}, "within 0 and 1"),
        ([(data, [(np.zeros((2, 3, 4, 5)), 0)])], {}, r"shape \[2, 3, 4, 5\]"),
        (data, {"test": data}, "classes_per_task splits the classes of one training and one test data set"),
        (data, {"test": data, "classes_per_task": 1, "scenario": "domain"}, "scenario is 'domain'"),
    ]
    for tasks, options, message in wrong:
        with pytest.raises(StreamError, match=message):
            from_dataset(tasks, **options)
