"""Augmentation of batches of images in training, by kornia, and their soft targets."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenheads_papers.recipes._models import IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Strengths of the augmentations; the defaults are DeiT's.

    Attributes
    ----------
    smallest_crop
        Smallest share of an image's area that a random crop keeps.
    flip
        Probability of a horizontal flip.
    n_policies, magnitude, magnitude_noise
        RandAugment: transformations per image, each drawn on its own and skipped with
        probability 1/2; their strength, above 0 and below 10; and the standard
        deviation of the strength.
    erasing
        Probability of replacing a rectangle by noise, per image.
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
    magnitude: float = 9.0
    magnitude_noise: float = 0.5
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
        images = self._pixels(images)
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

    parts: list[nn.Module] = []
    if options.flip:
        parts.append(augmentation.RandomHorizontalFlip(p=options.flip))
    if options.n_policies:
        parts.append(
            ImagewiseRandAugment(
                options.n_policies, options.magnitude, options.magnitude_noise
            )
        )
    if options.erasing:
        parts.append(NoiseErasing(options.erasing))
    return nn.Sequential(*parts)


class ImagewiseRandAugment(nn.Module):
    """RandAugment with transformations drawn per image.

    kornia's own class draws the transformations once per batch. Here each image draws
    its own, and kornia applies every transformation to the images that drew it.

    Parameters
    ----------
    n
        Transformations per image, drawn with replacement.
    magnitude, noise
        Mean and standard deviation of their strength, on a scale from 0 to 10.
    probability
        Probability that a drawn transformation is applied.
    """

    def __init__(
        self, n: int, magnitude: float, noise: float, probability: float = 0.5
    ) -> None:
        from kornia.augmentation.auto import RandAugment
        from kornia.augmentation.auto.rand_augment.rand_augment import default_policy

        super().__init__()
        self.n, self.magnitude, self.noise = n, magnitude, noise
        self.probability = probability
        # One RandAugment per transformation: its policy has this one only.
        self.choices = nn.ModuleList(
            RandAugment(n=1, m=15, policy=[policy]) for policy in default_policy
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return transformed images, entries 0 to 1."""
        for _ in range(self.n):
            images = self._transform_once(images)
        return images

    def _transform_once(self, images: Tensor) -> Tensor:
        drawn = torch.randint(len(self.choices), (len(images),))
        # Images that skip this round have the number -1, which no choice has.
        drawn[torch.rand(len(images)) >= self.probability] = -1
        result = images.clone()
        choice: Any
        for number, choice in enumerate(self.choices):
            rows = (drawn == number).nonzero().flatten().to(images.device)
            if not len(rows):
                continue
            # kornia's scale ends at 30, which it excludes, as it does 0.
            strength = self.magnitude + self.noise * float(torch.randn(()))
            choice.m = min(max(3.0 * strength, 0.03), 29.97)
            result[rows] = choice(images[rows]).clamp(0.0, 1.0).to(images)
        return result


class NoiseErasing(nn.Module):
    """Replace a random rectangle by noise of ImageNet's mean and deviation.

    kornia draws the images and the rectangles: areas from 2 % to 1/3 of the image.
    """

    def __init__(self, probability: float) -> None:
        import kornia.augmentation as augmentation

        super().__init__()
        self.erase = augmentation.RandomErasing(
            p=probability, scale=(0.02, 1 / 3), ratio=(0.3, 3.3), value=0.0
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return images of which some have a rectangle of noise."""
        # Erasing ones shows where kornia erases. The noise is not cut off at 0 and 1:
        # it is standard normal after the model has normalised it.
        erased = self.erase(torch.ones_like(images)) == 0.0
        mean = images.new_tensor(IMAGENET_MEAN).view(1, 3, 1, 1)
        deviation = images.new_tensor(IMAGENET_STD).view(1, 3, 1, 1)
        noise = mean + deviation * torch.randn_like(images)
        return torch.where(erased, noise, images)


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
        mixed, labels = mixer(images, numbers)
        # The third column is the weight of the partner.
        weight = labels[:, 2:3]
    else:
        mixer = augmentation.RandomCutMixV2(
            cut_size=shares, data_keys=keys, use_correct_lambda=True
        )
        mixed, (labels,) = mixer(images, numbers)
        # The third column is the share of pixels that an image keeps.
        weight = 1.0 - labels[:, 2:3]
    partner, weight = labels[:, 1].long(), weight.to(targets)
    return mixed, (1.0 - weight) * targets + weight * targets[partner]
