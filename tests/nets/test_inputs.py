"""From stored pixels to what the backbone sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scale_cl.nets import Inputs


def pixels(n: int, seed: int = 0, shape: tuple[int, ...] = (3, 6, 6)) -> Tensor:
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_pixels_become_numbers_from_0_to_1() -> None:
    x = torch.tensor([[[[0, 4, 16]]]], dtype=torch.uint8)
    assert Inputs((1, 1, 3), 16.0)(x).tolist() == [[[[0.0, 0.25, 1.0]]]]


def test_features_are_taken_as_they_are() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(Inputs((4,), None)(x), x)


@pytest.mark.parametrize("batches", [(40,), (1, 9, 30), (13, 13, 14)])
def test_running_statistics_are_those_of_all_samples_together(batches: tuple[int, ...]) -> None:
    x = pixels(40)
    inputs = Inputs((3, 6, 6), 255.0, standardise=True)
    for part in x.split(list(batches)):
        inputs.seen(part)
    out = inputs(x)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_a_constant_feature_is_centred_and_not_divided_by_zero() -> None:
    inputs = Inputs((2,), None, standardise=True)
    x = torch.tensor([[5.0, 1.0], [5.0, 3.0]])
    inputs.seen(x)
    torch.testing.assert_close(inputs(x), torch.tensor([[0.0, -1.0], [0.0, 1.0]]))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_features_of_any_scale_are_standardised_and_what_never_varied_is_nothing(scale: float) -> None:
    inputs = Inputs((2,), None, standardise=True)
    inputs.seen(scale * torch.tensor([[5.0, 1.0], [5.0, 3.0]]))
    x = scale * torch.tensor([[5.0, 1.0], [900.0, 3.0]])
    torch.testing.assert_close(inputs(x), torch.tensor([[0.0, -1.0], [0.0, 1.0]]))


def test_augmentation_off_changes_nothing_and_draws_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    before, x = generator.get_state(), pixels(4)
    assert torch.equal(Inputs((3, 6, 6), 255.0).augmented(x, generator), x)
    assert torch.equal(generator.get_state(), before)


def test_flips_mirror_about_half_of_the_images_whole() -> None:
    x = pixels(400)
    out = Inputs((3, 6, 6), 255.0, augment="flip").augmented(x, torch.Generator().manual_seed(0))
    same, mirrored = (out == x).flatten(1).all(1), (out == x.flip(3)).flatten(1).all(1)
    assert (same | mirrored).all()
    assert 150 < int(mirrored.sum()) < 250


def test_crops_are_windows_of_the_padded_image_perhaps_mirrored() -> None:
    x = pixels(60)
    out = Inputs((3, 6, 6), 255.0, augment="crop-flip").augmented(x, torch.Generator().manual_seed(0))
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    found = set()
    for image, wide in zip(out, padded, strict=True):
        windows = {
            (top, left, mirror)
            for top in range(9)
            for left in range(9)
            for mirror in (False, True)
            if torch.equal(image.flip(2) if mirror else image, wide[:, top : top + 6, left : left + 6])
        }
        assert windows
        found |= windows
    assert {top for top, _, _ in found} == {left for _, left, _ in found} == set(range(9))


def test_vectors_are_not_augmented() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(Inputs((4,), None, augment="crop-flip").augmented(x, torch.Generator()), x)
