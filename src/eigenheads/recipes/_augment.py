"""Augmentation of batches of images in training, by kornia, and their soft targets."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Strengths of the augmentations; the defaults are DeiT's.

    Attributes
    ----------
    smallest_crop
        Smallest share of an image's area that a random crop keeps.
    flip
        Probability of a horizontal flip.
    n_policies, magnitude
        Transformations per batch and their strength (RandAugment), 0 to 30.
    erasing
        Probability of erasing a rectangle.
    mixup, cutmix
        Parameters of the Beta laws of the mixing shares; 0 switches one off.
    smoothing
        Label smoothing.
    repeats
        Copies of an image per epoch, augmented differently (repeated augmentation).
    """

    smallest_crop: float = 0.08
    flip: float = 0.5
    n_policies: int = 2
    magnitude: int = 9
    erasing: float = 0.25
    mixup: float = 0.8
    cutmix: float = 1.0
    smoothing: float = 0.1
    repeats: int = 3

    @classmethod
    def none(cls) -> "Augmentation":
        """Return no augmentation at all."""
        return cls(
            smallest_crop=1.0,
            flip=0.0,
            n_policies=0,
            erasing=0.0,
            mixup=0.0,
            cutmix=0.0,
            smoothing=0.0,
            repeats=1,
        )


class Augmenter:
    """Apply the augmentations to batches; randomness is torch's global generator."""

    def __init__(self, options: Augmentation, n_classes: int) -> None:
        self.options, self.n_classes = options, n_classes
        self._pixels = _pixel_pipeline(options)

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return augmented images and target probabilities of the classes."""
        images = self._pixels(images).clamp(0.0, 1.0)
        targets = smooth_targets(labels, self.n_classes, self.options.smoothing)
        choice = self._choose_mixing()
        # A single image has no partner to mix with.
        if choice is None or len(images) < 2:
            return images, targets
        return _mix(images, targets, *choice)

    def _choose_mixing(self) -> tuple[str, float] | None:
        """Return mixup or cutmix, each for half of the batches, and the share."""
        laws = {"mixup": self.options.mixup, "cutmix": self.options.cutmix}
        usable = [(name, value) for name, value in laws.items() if value > 0.0]
        if not usable:
            return None
        name, value = usable[int(torch.randint(len(usable), ()))]
        share = torch.distributions.Beta(value, value).sample()
        return name, float(share)


def _pixel_pipeline(options: Augmentation) -> nn.Module:
    """Return flips, RandAugment and erasing in one module."""
    import kornia.augmentation as augmentation
    from kornia.augmentation.auto import RandAugment

    parts: list[nn.Module] = []
    if options.flip:
        parts.append(augmentation.RandomHorizontalFlip(p=options.flip))
    if options.n_policies:
        parts.append(RandAugment(n=options.n_policies, m=options.magnitude))
    if options.erasing:
        parts.append(augmentation.RandomErasing(p=options.erasing))
    return nn.Sequential(*parts)


def smooth_targets(labels: Tensor, n_classes: int, smoothing: float) -> Tensor:
    """Return one-hot targets, of which `smoothing` is spread over all classes."""
    targets = torch.full(
        (len(labels), n_classes), smoothing / n_classes, device=labels.device
    )
    rows = torch.arange(len(labels), device=labels.device)
    targets[rows, labels] += 1.0 - smoothing
    return targets


def _mix(
    images: Tensor, targets: Tensor, name: str, share: float
) -> tuple[Tensor, Tensor]:
    """Mix every image and target with another one of the batch.

    kornia draws the partners, the rectangles and what is pasted. Given the number of
    each example as its label, it returns the partners and the realised shares, from
    which the targets are mixed.
    """
    import kornia.augmentation as augmentation

    numbers = torch.arange(len(images), device=images.device)
    # An interval of a single point makes kornia draw exactly this share.
    shares = torch.tensor([share, share], device=images.device)
    keys = ["input", "class"]
    if name == "mixup":
        mixer = augmentation.RandomMixUpV2(lambda_val=shares, data_keys=keys)
        mixed, found = mixer(images, numbers)
        # The third column is the weight of the partner.
        weight = found[:, 2:3]
    else:
        mixer = augmentation.RandomCutMixV2(
            cut_size=shares, data_keys=keys, use_correct_lambda=True
        )
        mixed, (found,) = mixer(images, numbers)
        # The third column is the share of pixels that an image keeps.
        weight = 1.0 - found[:, 2:3]
    partner, weight = found[:, 1].long(), weight.to(targets)
    return mixed, (1.0 - weight) * targets + weight * targets[partner]
