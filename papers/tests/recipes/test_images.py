"""Image folders: layout, odd files, crops."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from eigenheads_papers.recipes._augment import (  # noqa: E402
    Augmentation,
    Augmenter,
    ImagewiseRandAugment,
    NoiseErasing,
    smooth_targets,
)
from eigenheads_papers.recipes._data import (  # noqa: E402
    ImageFolder,
    ImageReader,
    centre_crop,
    random_crop,
)

pytestmark = pytest.mark.torch


def test_folder_lists_classes_and_files(miniature):
    folder = ImageFolder.open(miniature / "train")
    assert folder.classes[0] == "n00000000" and len(folder.classes) == 20
    assert len(folder) == 80 and folder.masked() is None
    assert folder.labels.tolist() == sorted(folder.labels.tolist())


def test_some_of_the_known_classes_mask_the_others(miniature, tmp_path):
    for name in ("n00000003", "n00000007"):
        shutil.copytree(miniature / "val" / name, tmp_path / name)
    classes = [f"n{label:08d}" for label in range(20)]
    folder = ImageFolder.open(tmp_path, classes=classes)
    assert torch.nonzero(folder.masked()).flatten().tolist() == [3, 7]


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda root: shutil.rmtree(root), "which does not exist"),
        (lambda root: [shutil.rmtree(p) for p in root.iterdir()], "no sub-folders"),
        (lambda root: (root / "n00000099").mkdir(), "n00000099, which holds none"),
    ],
)
def test_bad_folders_get_a_sentence(miniature, tmp_path, spoil, match):
    root = tmp_path / "train"
    shutil.copytree(miniature / "val", root)
    spoil(root)
    with pytest.raises(ValueError, match=match):
        ImageFolder.open(root)


def test_a_foreign_class_is_named(miniature, tmp_path):
    shutil.copytree(miniature / "val", tmp_path / "val")
    with pytest.raises(ValueError, match=r"that the model was trained on; got .*n0"):
        ImageFolder.open(tmp_path / "val", classes=["n00000001"])


def test_a_corrupt_file_is_named(miniature, tmp_path):
    shutil.copytree(miniature / "val", tmp_path / "val")
    bad = tmp_path / "val" / "n00000000" / "0_0.png"
    bad.write_bytes(bad.read_bytes()[:60])
    reader = ImageReader(ImageFolder.open(tmp_path / "val"), size=8)
    with pytest.raises(ValueError, match=r"can be decoded; got .*0_0\.png"):
        reader.read([0, 1], seed=(0,), first=0)


def test_crops_depend_on_the_place_in_the_global_batch_only(miniature):
    folder = ImageFolder.open(miniature / "train")
    reader = ImageReader(folder, size=8, smallest_crop=0.1)
    whole, labels = reader.read(range(8), seed=(0, 3), first=0)
    second, _ = reader.read(range(4, 8), seed=(0, 3), first=4)
    torch.testing.assert_close(whole[4:], second, rtol=0, atol=0)
    assert whole.shape == (8, 3, 8, 8) and labels.tolist() == [0] * 4 + [1] * 4
    other, _ = reader.read(range(8), seed=(0, 4), first=0)
    assert (whole != other).any()


def test_centre_crop_keeps_the_middle():
    pixels = np.zeros((32, 64, 3), dtype=np.uint8)
    pixels[:, 24:40] = 255
    cut = np.array(centre_crop(Image.fromarray(pixels), 28))
    # The square of side 28 around the centre holds the stripe of width 16.
    assert cut[14, 14, 0] == 255 and cut[14, 1, 0] == 0 and cut.shape == (28, 28, 3)
    assert (cut[14, :, 0] > 127).sum() == 16


def test_random_crops_have_the_stated_areas():
    ramp = np.tile(np.linspace(0, 255, 240, dtype=np.uint8)[None, :, None], (240, 1, 3))
    image = Image.fromarray(ramp)
    rng = np.random.default_rng(0)
    widths = []
    for _ in range(300):
        cut = np.array(random_crop(image, 32, rng, smallest=0.25)).astype(float)
        widths.append((cut[16, -1, 0] - cut[16, 0, 0]) / 255 * 32 / 31)
    # Width is at least √(¼ · ¾) of the image, with or without the fall-back.
    assert min(widths) > 0.25**0.5 * 0.75**0.5 - 0.02
    assert 0.6 < np.mean(widths) < 0.9


def test_mixed_targets_are_the_shares_of_the_pixels():
    images = torch.zeros(6, 3, 8, 8)
    for number in range(6):
        images[number] = number / 10
    labels = torch.arange(6)
    for name in ("mixup", "cutmix"):
        options = Augmentation.none().__class__(
            **{**vars(Augmentation.none()), name: 1.0}
        )
        torch.manual_seed(0)
        mixed, targets = Augmenter(options, 6)(images, labels)
        # Class c has grey value c / 10, so the mean grey is the targets' mean.
        expected = targets @ (torch.arange(6.0) / 10)
        torch.testing.assert_close(mixed.mean((1, 2, 3)), expected)
        assert (targets < 1).any()


def test_smoothing_keeps_a_probability():
    targets = smooth_targets(torch.tensor([1, 0]), 4, 0.1)
    torch.testing.assert_close(targets.sum(1), torch.ones(2))
    assert targets[0, 1] == pytest.approx(0.925)


def test_paths_are_of_this_folder(miniature):
    folder = ImageFolder.open(miniature / "val")
    assert all(Path(path).is_file() for path in folder.paths)
    assert len(folder.subset([3, 5])) == 2


def test_rand_augment_draws_per_image():
    torch.manual_seed(0)
    # The same image many times: what differs between them was drawn per image.
    images = torch.rand(1, 3, 16, 16).expand(256, -1, -1, -1).contiguous()
    augment = ImagewiseRandAugment(1, 9.0, 0.5)
    result = augment(images)
    changed = (result != images).flatten(1).any(1).float().mean()
    # Half of the images skip; a few transformations may change nothing.
    assert 0.35 < changed < 0.6
    assert len(torch.unique(result.flatten(1), dim=0)) > 15
    assert result.min() >= 0 and result.max() <= 1
    never = ImagewiseRandAugment(2, 9.0, 0.5, probability=0.0)
    torch.testing.assert_close(never(images), images, rtol=0, atol=0)


def test_erased_rectangles_have_the_noise_of_normalised_images():
    torch.manual_seed(0)
    images = torch.full((200, 3, 24, 24), 0.5)
    erased = NoiseErasing(0.25)(images)
    hit = (erased != images).any(1)
    assert 0.15 < hit.flatten(1).any(1).float().mean() < 0.35
    red = erased[:, 0][hit]
    # Mean and standard deviation of ImageNet's red channel.
    assert red.mean() == pytest.approx(0.485, abs=0.01)
    assert red.std() == pytest.approx(0.229, abs=0.01)
