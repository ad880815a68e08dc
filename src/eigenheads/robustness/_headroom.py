"""Gain from hiding exactly the corrupted tokens, and gain of a screen."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eigenheads._checks import (
    check_callable,
    check_count,
    check_instance,
    check_number,
    fail,
)
from eigenheads._modules import device_of
from eigenheads._rng import generator
from eigenheads.robustness._intervals import pair_bounds
from eigenheads.robustness._plan import top_meter
from eigenheads.robustness._read import read_images
from eigenheads.robustness._tokens import corrupt_patches

# More tokens than any model has before its patches.
_MOST_LEADING = 1000
Hide = Callable[[nn.Module, Tensor], AbstractContextManager[Any]]
Correct = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class HeadroomRow:
    """Accuracy with one remedy, and its gain.

    Attributes
    ----------
    remedy
        ``"none"``, ``"oracle"`` (exactly the corrupted tokens hidden), ``"random"`` (as
        many random ones) or ``"screen"``.
    accuracy
        Share of images that are classified correctly.
    gain, low, high
        Accuracy less that without a remedy, with its interval, paired over images.
    """

    remedy: str
    accuracy: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """Result of :func:`screening_headroom`.

    Attributes
    ----------
    rows
        One per remedy.
    corruption
        The corruption as text.
    clean
        Accuracy on clean images.
    n_examples
        Number of images.
    confidence
        Confidence of the intervals.
    """

    rows: tuple[HeadroomRow, ...]
    corruption: str
    clean: float
    n_examples: int
    confidence: float

    def __getitem__(self, remedy: str) -> HeadroomRow:
        for row in self.rows:
            if row.remedy == remedy:
                return row
        raise KeyError(remedy)

    @property
    def can_help(self) -> bool:
        """True if the oracle gains: the whole interval is above zero."""
        return self["oracle"].low > 0

    @property
    def summary(self) -> str:
        """The finding in one sentence."""
        oracle = self["oracle"]
        sentence = (
            "Hiding exactly the corrupted tokens gains "
            f"{100 * oracle.gain:+.1f} points ({_ends(oracle)})"
        )
        screens = [row for row in self.rows if row.remedy == "screen"]
        if screens:
            (screen,) = screens
            return f"{sentence}; the screen {100 * screen.gain:+.1f} ({_ends(screen)})."
        if self.can_help:
            return f"{sentence}: a screen can help."
        return (
            f"{sentence}: no screen that hides them can help this model here. One that "
            "imputes them may; or train it with dropped tokens."
        )

    def __str__(self) -> str:
        head = ("hidden", "accuracy", "gain, points")
        lines = [
            (row.remedy, f"{100 * row.accuracy:.1f} %", _told(row)) for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        table = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in (head, *lines)
        ]
        title = (
            f"{self.corruption}, {self.n_examples} images, clean "
            f"{100 * self.clean:.1f} %"
        )
        return "\n".join([title, *table, self.summary])


def _ends(row: HeadroomRow) -> str:
    return f"{100 * row.low:+.1f} to {100 * row.high:+.1f}"


def _told(row: HeadroomRow) -> str:
    return "" if row.remedy == "none" else f"{100 * row.gain:+.1f} [{_ends(row)}]"


def screening_headroom(
    model: nn.Module,
    data: Any,
    *,
    patch: int,
    hide: Hide,
    screened: nn.Module | None = None,
    kind: str = "replaced",
    share: float = 0.2,
    n_leading: int = 1,
    batch_size: int = 256,
    seed: int = 0,
    confidence: float = 0.95,
) -> Headroom:
    """Measure how much hiding corrupted tokens can gain, before a screen is tried.

    Patches of known places are corrupted. Hiding exactly these from attention is the
    *oracle*, the gain of a screen that finds all of them. If the oracle gains nothing,
    the model does not tolerate missing tokens. The oracle is a guide, not a bound: a
    screen that hides some of the tokens, or imputes them, may gain where hiding all of
    them loses.

    Parameters
    ----------
    model
        A vision model with its original attention, from images to logits.
    data
        Images and classes ``(x, y)``, as for :func:`evaluate_robustness`.
    patch
        Width of a patch in pixels, such that each patch is a token.
    hide
        Function of a model and booleans ``(batch, tokens)`` that returns a context in
        which attention does not see these tokens:
        :func:`eigenheads.adapters.hide_tokens`.
    screened
        The same model with a screen (:func:`eigenheads.adapters.screen_tokens` of a
        copy), or None.
    kind, share
        The corruption; see :func:`corrupt_patches`.
    n_leading
        Tokens before those of the patches, such as the class token.
    batch_size, seed
        Images per forward pass, and seed of all random numbers.
    confidence
        Confidence of the intervals, which are paired over images.

    Returns
    -------
    headroom
        Accuracies and gains; printed, it ends with one sentence.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from eigenheads.adapters import hide_tokens
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed = nn.Conv2d(1, 8, 2, stride=2)
    ...         self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
    ...
    ...     def forward(self, x):
    ...         tokens = self.embed(x).flatten(2).mT
    ...         return self.mix(tokens, tokens, tokens)[0].mean(1)
    >>> data = torch.rand(20, 1, 4, 4), torch.arange(20) % 8
    >>> found = screening_headroom(
    ...     Net(), data, patch=2, hide=hide_tokens, share=0.25, n_leading=0
    ... )
    >>> [row.remedy for row in found.rows]
    ['none', 'oracle', 'random']
    """
    for name, module in (("model", model), ("screened", screened)):
        if module is not None or name == "model":
            check_instance(name, module, nn.Module)
    contract = "a function of a model and hidden tokens that returns a context"
    check_callable("hide", hide, contract)
    n_leading = check_count("n_leading", n_leading, minimum=0, maximum=_MOST_LEADING)
    size = check_count("batch_size", batch_size)
    seed = check_count("seed", seed, minimum=0)
    confidence = check_number("confidence", confidence, minimum=0.5, maximum=0.9999)
    if not isinstance(data, tuple | list):
        fail("data", "a pair (images, classes)", data, error=TypeError)
    images = read_images(data)
    rng = generator(seed)
    x, flags = corrupt_patches(images.x, kind, share, patch=patch, rng=rng)
    # As many random tokens per image as are corrupted.
    order = rng.random(flags.shape).argsort(1).argsort(1)
    random = order < flags.sum(1, keepdims=True)

    def correct(
        who: nn.Module, inputs: Tensor, hidden: NDArray[np.bool_] | None = None
    ) -> Correct:
        return _correct(who, inputs, images.y, hidden, hide, n_leading, size)

    clean = correct(model, images.x)
    correct_with = {
        "none": correct(model, x),
        "oracle": correct(model, x, flags),
        "random": correct(model, x, random),
    }

    def row(remedy: str) -> HeadroomRow:
        return _compared(remedy, correct_with[remedy], correct_with["none"], confidence)

    if screened is not None:
        correct_with["screen"] = correct(screened, x)
    return Headroom(
        rows=tuple(row(remedy) for remedy in correct_with),
        corruption=f"patches {kind}, share {share:g}",
        clean=float(clean.mean()),
        n_examples=len(clean),
        confidence=confidence,
    )


def _correct(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    hidden: NDArray[np.bool_] | None,
    hide: Hide,
    n_leading: int,
    size: int,
) -> Correct:
    """Return which images are classified correctly, with tokens hidden."""
    measure, parts = top_meter((1,), model), []
    for first in range(0, len(x), size):
        rows = slice(first, first + size)
        hiding: AbstractContextManager[Any] = nullcontext()
        if hidden is not None:
            mask = torch.from_numpy(hidden[rows]).to(device_of(model))
            hiding = hide(model, nn.functional.pad(mask, (n_leading, 0)))
        with hiding:
            parts.append(measure(x[rows], y[rows])[:, 0] > 0)
    return np.concatenate(parts)


def _compared(
    remedy: str, correct: Correct, without: Correct, confidence: float
) -> HeadroomRow:
    """Return the gain with its interval, paired over images."""
    gains = correct.astype(float) - without
    low, high, _ = pair_bounds(gains, confidence)
    return HeadroomRow(
        remedy=remedy,
        accuracy=float(correct.mean()),
        gain=float(gains.mean()),
        low=low,
        high=high,
    )
