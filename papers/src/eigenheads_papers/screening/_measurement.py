"""Train a small vision transformer, and measure it with every remedy."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads.adapters import augment_tokens
from eigenheads.estimators import TokenScreen
from eigenheads.extend import FloatArray, generator, torch_generator
from eigenheads.functional import token_distances
from eigenheads.robustness import corrupt_patches, pgd
from eigenheads_papers._training import SmallModel, seeded, train
from eigenheads_papers.teo2024.inputs import Digits, corrupt_small, linear_accuracy

if TYPE_CHECKING:
    from eigenheads_papers.screening.images import Params

# Training images for the linear classifier.
_FOR_LINEAR = 5000
SIDE = 28
# Share of the columns of the photographs whose crops are used in training.
_TRAINED = 0.6
Images = NDArray[np.float32]
Flags = NDArray[np.bool_]


# --- Images --------------------------------------------------------------------------


def compose(
    digits: NDArray[np.uint8],
    *,
    photographs: bool,
    trained: bool,
    rng: np.random.Generator,
) -> Images:
    """Return images ``(n, channels, 28, 28)`` with entries 0 to 1.

    Parameters
    ----------
    digits
        Bytes.
    photographs
        Whether a digit of a random light colour lies on a darkened crop of one of
        scikit-learn's two photographs, instead of white on black.
    trained
        Whether the crops are of the part of the photographs for training.
    rng
        Random numbers.
    """
    ink = digits.astype(np.float32)[:, None] / np.float32(255)
    if not photographs:
        return ink
    from sklearn.datasets import load_sample_images

    photographs_pixels = np.stack(load_sample_images().images).astype(np.float32) / 255
    border = round(_TRAINED * photographs_pixels.shape[2])
    part = (
        photographs_pixels[:, :, :border]
        if trained
        else photographs_pixels[:, :, border:]
    )
    which = rng.integers(0, len(part), len(ink))
    rows = rng.integers(0, part.shape[1] - SIDE + 1, len(ink))
    columns = rng.integers(0, part.shape[2] - SIDE + 1, len(ink))
    crops = np.stack(
        [
            part[image, row : row + SIDE, column : column + SIDE]
            for image, row, column in zip(which, rows, columns, strict=True)
        ]
    ).transpose(0, 3, 1, 2)
    color = rng.uniform(0.7, 1.0, (len(ink), 3, 1, 1)).astype(np.float32)
    return ((1 - ink) * 0.7 * crops + ink * color).astype(np.float32)


def random_places(n: int, count: int, k: int, rng: np.random.Generator) -> Flags:
    """Return `k` random places of `count` in each of `n` rows."""
    flags = np.zeros((n, count), dtype=bool)
    chosen = rng.random((n, count)).argsort(1)[:, :k]
    np.put_along_axis(flags, chosen, True, axis=1)
    return flags


def median_filtered(images: Images) -> Images:
    """Return images after a 3 × 3 median filter per channel."""
    return ndimage.median_filter(images, size=(1, 1, 3, 3), mode="nearest")


# --- Models --------------------------------------------------------------------------


class PatchClassifier(nn.Module):
    """A vision transformer of PyTorch's layers that reads out a class token."""

    def __init__(self, size: SmallModel, channels: int) -> None:
        super().__init__()
        d = size.d_model
        self.patches = nn.Conv2d(channels, d, size.patch, stride=size.patch)
        self.start = nn.Parameter(0.5 * torch.randn(1, 1, d))
        self.place = nn.Parameter(0.5 * torch.randn((SIDE // size.patch) ** 2, d))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d, size.n_heads, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(size.depth)
        )
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def embed(self, x: Tensor) -> Tensor:
        """Return the tokens that enter the first block, the class token first."""
        tokens = self.patches(2 * x - 1).flatten(2).mT + self.place
        return torch.cat([self.start.expand(len(tokens), -1, -1), tokens], 1)

    def classify(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return logits; attention does not see the patches that are hidden."""
        if hidden is not None:
            hidden = F.pad(hidden, (1, 0))
        for block in self.blocks:
            tokens = block(tokens, src_key_padding_mask=hidden)
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of images."""
        return self.classify(self.embed(x))


def measure_screens(
    params: "Params", kind: str, seed: int, digits: Digits, conditions: Sequence[str]
) -> FloatArray:
    """Return accuracies by remedy and condition, shares of flags, and baselines."""
    rng = generator(seed)
    photographs = params.photographs
    chosen = rng.permutation(len(digits.train))[: params.n_train]
    images = compose(
        digits.train[chosen], photographs=photographs, trained=True, rng=rng
    )
    classes = digits.train_classes[chosen]
    order = rng.permutation(len(digits.test))
    test, for_screens = order[: params.n_test], order[params.n_test :]
    clean = compose(digits.test[test], photographs=photographs, trained=False, rng=rng)
    truth = digits.test_classes[test]
    # Calibration images are neither trained on nor tested.
    unlabelled = compose(
        digits.test[for_screens[: max(params.calibration)]],
        photographs=photographs,
        trained=True,
        rng=rng,
    )
    linear = linear_accuracy(images[:_FOR_LINEAR], classes[:_FOR_LINEAR], clean, truth)
    model = _trained(params, kind, seed, images, classes)
    bench = _Bench(params, model, unlabelled, clean, truth, rng)
    return np.concatenate([bench.measure(conditions), [linear]])


def _trained(
    params: "Params", kind: str, seed: int, images: Images, classes: NDArray[np.int64]
) -> PatchClassifier:
    data = (torch.from_numpy(images), torch.from_numpy(classes))
    with seeded(seed % 2**32):
        model = PatchClassifier(params, images.shape[1])
    generator = torch_generator(seed % 2**32)
    # A share for each update, uniform between nothing and the largest one.
    shares = torch.rand(params.n_steps + 1, generator=generator) * params.dropped

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        if kind == "augmented":
            x = _augmented(x, generator)
        return F.cross_entropy(model(x), y)

    if kind == "dropped":
        with augment_tokens(
            model, lambda n: float(shares[n]), mode="drop", generator=generator
        ):
            train(model, data, loss, how=params, seed=seed % 2**32)
    else:
        train(model, data, loss, how=params, seed=seed % 2**32)
    return model


def _augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to two pixels, and erase one rectangle of every other."""
    n, _, side, _ = x.shape
    by = torch.randint(-2, 3, (2, n, 1), generator=generator)
    rows, columns = (torch.arange(side) + by).clamp(0, side - 1)
    picked = torch.arange(n)[:, None, None]
    x = x[picked, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    size = torch.randint(6, 15, (2, n, 1), generator=generator)
    start = (torch.rand(2, n, 1, generator=generator) * (side - size)).long()
    inside = (torch.arange(side) >= start) & (torch.arange(side) < start + size)
    square = inside[0][:, :, None] & inside[1][:, None, :]
    square = square & (torch.rand(n, 1, 1, generator=generator) < 0.5)
    noise = torch.rand(x.shape, generator=generator)
    return torch.where(square[:, None], noise, x)


class _Bench:
    """A trained model with its screens and its test images."""

    def __init__(
        self,
        params: "Params",
        model: PatchClassifier,
        unlabelled: Images,
        clean: Images,
        truth: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> None:
        self.params, self.model, self.rng = params, model, rng
        self.clean, self.truth = clean, truth
        tokens = self.tokens(unlabelled)
        self.screens = [TokenScreen().fit(tokens[:n]) for n in params.calibration]
        # The screen that all remedies but those of the other sizes use.
        self.screen = self.screens[params.calibration.index(params.main_calibration)]

    @torch.no_grad()
    def tokens(self, images: Images) -> FloatArray:
        """Return embedded tokens in double precision."""
        return self.model.embed(torch.from_numpy(images)).double().numpy()

    def flags(self, tokens: FloatArray, screen: TokenScreen | None = None) -> Flags:
        """Return the patches that do not fit; the class token always does."""
        return (screen or self.screen).predict(tokens)[:, 1:] < 0

    @torch.no_grad()
    def accuracy(
        self,
        tokens: FloatArray,
        truth: NDArray[np.int64],
        hidden: Flags | None = None,
    ) -> float:
        """Return the accuracy in percent."""
        mask = None if hidden is None else torch.from_numpy(hidden)
        logits = self.model.classify(torch.from_numpy(tokens).float(), mask)
        return 100 * float(np.mean(logits.argmax(1).numpy() == truth))

    def measure(self, conditions: Sequence[str]) -> FloatArray:
        """Return accuracies by condition and remedy, then flagged and found shares."""
        rows = []
        for condition in conditions:
            images, corrupted = self.corrupted(condition)
            rows.append(self.row(images, self.truth[: len(images)], corrupted))
        measured = np.array(rows)
        # The screened model meets an attack on itself, not on the model without it.
        main = self.params.calibration.index(self.params.main_calibration)
        measured[conditions.index("pgd"), 1 + main] = self.attacked_screen()
        return measured.ravel()

    def row(
        self, images: Images, truth: NDArray[np.int64], corrupted: Flags | None
    ) -> list[float]:
        """Return the accuracy with each remedy, and the shares of flags."""
        tokens = self.tokens(images)
        flags = [self.flags(tokens, screen) for screen in self.screens]
        main_flags = flags[self.params.calibration.index(self.params.main_calibration)]
        as_many = self.rng.random(main_flags.shape).argsort(1).argsort(1)
        has_truth = corrupted is not None
        return [
            self.accuracy(tokens, truth),
            *(self.accuracy(tokens, truth, hidden) for hidden in flags),
            self.accuracy(self.screen.impute(tokens), truth),
            self.accuracy(tokens, truth, as_many < main_flags.sum(1, keepdims=True)),
            self.accuracy(tokens, truth, corrupted) if has_truth else np.nan,
            self.accuracy(self.tokens(median_filtered(images)), truth),
            100 * float(main_flags.mean()),
            100 * float(main_flags[corrupted].mean()) if has_truth else np.nan,
        ]

    def corrupted(self, condition: str) -> tuple[Images, Flags | None]:
        """Return the images of a condition, and their corrupted patches if known."""
        params, few = self.params, self.params.n_attacked
        kind, _, strength = condition.partition(" ")
        if condition == "clean":
            return self.clean, None
        if kind in ("replaced", "saturated", "shuffled", "occluded"):
            share = int(strength) / 16 if strength else params.occluded
            changed, flags = corrupt_patches(
                self.clean, kind, share, patch=params.patch, rng=self.rng
            )
            return changed.astype(np.float32), flags
        if condition == "pgd":
            return self.attack(self.model), None
        if condition in ("patches", "patches aimed"):
            places = random_places(
                few, (SIDE // params.patch) ** 2, params.n_patches, self.rng
            )
            is_aimed = condition == "patches aimed"
            return self.patch_attack(places, is_aimed=is_aimed), places
        noisy = corrupt_small(self.clean, condition, params.severity, self.rng)
        return noisy.astype(np.float32), None

    def attack(self, model: Callable[[Tensor], Tensor]) -> Images:
        """Return the first images after projected gradient ascent."""
        few = slice(self.params.n_attacked)
        attacked = pgd(
            model,
            torch.from_numpy(self.clean[few]),
            torch.from_numpy(self.truth[few]),
            budget=self.params.attack_budget,
            n_steps=self.params.n_attack_steps,
            random_start=False,
        )
        return attacked.detach().numpy()

    def attacked_screen(self) -> float:
        """Return the accuracy of the screened model under an attack on itself."""

        def screened(x: Tensor) -> Tensor:
            tokens = self.model.embed(x)
            flags = self.flags(tokens.detach().double().numpy())
            return self.model.classify(tokens, torch.from_numpy(flags))

        tokens = self.tokens(self.attack(screened))
        hidden = self.flags(tokens)
        return self.accuracy(tokens, self.truth[: len(tokens)], hidden)

    def patch_attack(self, places: Flags, *, is_aimed: bool) -> Images:
        """Return images with patches that are optimised to mislead the model.

        Pixels of the chosen patches are free between 0 and 1. The aimed attack also
        keeps their distances, and those of the others, below the thresholds.
        """
        x = torch.from_numpy(self.clean[: len(places)])
        y = torch.from_numpy(self.truth[: len(places)])
        grid, patch = SIDE // self.params.patch, self.params.patch
        free = torch.from_numpy(places).view(-1, 1, grid, grid).float()
        free = F.interpolate(free, scale_factor=patch)
        fitted = [
            torch.from_numpy(np.asarray(part)).float()
            for part in (
                self.screen.mean_,
                self.screen.components_,
                self.screen.precision_,
                self.screen.thresholds_,
            )
        ]
        mean, components, precision, thresholds = fitted
        attacked = x.clone()
        n_steps = 2 * self.params.n_attack_steps
        for step in range(n_steps):
            attacked.requires_grad_(True)
            tokens = self.model.embed(attacked)
            gain = F.cross_entropy(self.model.classify(tokens), y, reduction="sum")
            if is_aimed:
                ratio = (
                    token_distances((tokens - mean) @ components, precision)
                    / thresholds
                )
                gain = gain - self.params.penalty * (ratio - 0.9).clamp(min=0).sum()
            (gradient,) = torch.autograd.grad(gain, attacked)
            # Steps shrink, so that the last ones can settle below the thresholds.
            size = 0.2 * (1 - step / n_steps)
            with torch.no_grad():
                attacked = (attacked + size * free * gradient.sign()).clamp(0.0, 1.0)
        return attacked.detach().numpy()
