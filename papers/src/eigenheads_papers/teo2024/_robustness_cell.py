"""Train one small vision transformer, and measure it under every condition."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from eigenheads.extend import FloatArray, generator
from eigenheads.functional import attention_pursuit
from eigenheads.nn import RPCAttention
from eigenheads.robustness import (
    RobustnessPlan,
    apgd,
    corrupt,
    corrupt_patches,
    evaluate_robustness,
    fgsm,
    pgd,
    spsa,
    uniform_noise,
)
from eigenheads_papers._training import seeded, train
from eigenheads_papers.teo2024._models import SmallViT, look_inside
from eigenheads_papers.teo2024.attacks import carlini_wagner, sparse_l1_descent
from eigenheads_papers.teo2024.inputs import Digits, linear_accuracy
from eigenheads_papers.teo2024.variants import VARIANTS

if TYPE_CHECKING:
    from eigenheads_papers.teo2024 import robustness
    from eigenheads_papers.teo2024.robustness import CellSettings

_BATCH = 500
# Training images for the linear classifier.
_FOR_LINEAR = 10_000
# Images on which the first layer is measured.
_LOOKED_AT = 500


def measure_model(
    how: "CellSettings",
    name: str,
    conditions: Sequence[str],
    seed: int,
    digits: Digits,
) -> FloatArray:
    """Return accuracies by condition, measurements of S, and a linear baseline.

    Parameters
    ----------
    how
        Settings of training and evaluation.
    name
        Name of the variant of attention.
    conditions
        Conditions to measure.
    seed
        Seed of initial weights and batches. Models of one seed have the same ones.
    digits
        Training and test images.
    """
    x = torch.tensor(digits.train[:, None]).float() / 255
    y = torch.from_numpy(digits.train_classes)
    model = train_averaged_vit(how, name, seed, x, y)
    test = torch.tensor(digits.test[: how.n_test, None]).float() / 255
    truth = torch.from_numpy(digits.test_classes[: how.n_test])
    few = slice(_FOR_LINEAR)
    linear = linear_accuracy(
        x[few].numpy(), y[few].numpy(), test.numpy(), truth.numpy()
    )
    accuracies = _accuracies(how, model, conditions, test, truth)
    inside = _measure_layer(model.first_attention, model, how, test)
    return np.array([*accuracies, *inside, linear])


def train_averaged_vit(
    how: "robustness.AveragedViT", name: str, seed: int, x: Tensor, y: Tensor
) -> SmallViT:
    """Return the model whose weights are averages over the updates."""
    with seeded(seed % 2**32):
        model = SmallViT(VARIANTS[name], size=how, side=x.shape[-1])
    average = AveragedModel(
        model, avg_fn=lambda mean, new, _: torch.lerp(new, mean, how.averaging)
    )

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    train(
        model,
        (x, y),
        loss,
        how=how,
        seed=seed % 2**32,
        every=1,
        watch=lambda _: average.update_parameters(model),
    )
    averaged = average.module.eval()
    assert isinstance(averaged, SmallViT)
    return averaged


# --- Conditions ----------------------------------------------------------------------


def _accuracies(
    how: "CellSettings",
    model: nn.Module,
    conditions: Sequence[str],
    x: Tensor,
    y: Tensor,
) -> list[float]:
    """Return the accuracy under each condition, in percent.

    Corruptions do not depend on the model or its seed, as in a published test set.
    """
    corrupted: dict[str, dict[int, Any]] = {}
    attacks: dict[int, dict[str, Callable[..., Tensor]]] = {}
    for name in conditions[1:]:
        kind, _, level = name.rpartition(" ")
        if kind == "attack":
            n = how.n_attacked if level in how.main_attacks else how.n_blind
            attacks.setdefault(n, {})[name] = _attack(how, level)
        elif kind == "replaced":
            corrupted[kind] = {0: (_replaced(how, x)[0], y)}
        else:
            loader = _corrupted(kind, int(level), x, y)
            corrupted.setdefault(kind, {})[int(level)] = loader
    evaluate = partial(evaluate_robustness, model, corruptions=(), batch_size=_BATCH)
    plan = RobustnessPlan(corrupted=corrupted)
    rows = [*evaluate((x, y), attacks={}, plan=plan).select(metric="top-1")]
    for n, attacks_of_n in attacks.items():
        rows += evaluate((x[:n], y[:n]), attacks=attacks_of_n).select(metric="top-1")
    accuracies = {
        row.condition if row.level in (None, 0) else f"{row.condition} {row.level:g}": (
            100 * row.value
        )
        for row in reversed(rows)
    }
    accuracies[f"replaced {how.replaced:g}"] = accuracies.pop("replaced", math.nan)
    return [accuracies[name] for name in conditions]


def _corrupted(
    kind: str, level: int, x: Tensor, y: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield corrupted images and their classes, batch by batch."""
    rng = generator([level, *kind.encode()])
    for images, classes in zip(
        torch.split(x, _BATCH), torch.split(y, _BATCH), strict=True
    ):
        yield corrupt(images, kind, level, rng), classes


def _replaced(how: "CellSettings", x: Tensor) -> tuple[Tensor, NDArray[np.bool_]]:
    """Return images with a share of patches from other images, and which."""
    rng = generator(len(x))
    return corrupt_patches(x, "replaced", how.replaced, patch=how.patch, rng=rng)


def _attack(how: "CellSettings", name: str) -> Callable[..., Tensor]:
    """Return an attack with its options, by the name that conditions have."""
    steps = how.n_attack_steps
    drawn = {"budget": how.attack_budget}
    few = {"n_steps": max(steps // 2, 1), "n_samples": 8}
    attacks: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
        "fgsm": (fgsm, drawn),
        "pgd": (pgd, {"n_steps": steps, **drawn}),
        "apgd": (apgd, {"n_steps": steps, **drawn}),
        "spsa": (spsa, {**few, **drawn}),
        "noise": (uniform_noise, drawn),
        "cw": (
            carlini_wagner,
            {"n_steps": 2 * steps, "max_distance": how.attack_distance},
        ),
        "l1": (sparse_l1_descent, {"n_steps": steps, "budget": how.attack_sum}),
    }
    function, options = attacks[name]
    return partial(function, **options)


# --- The first layer -----------------------------------------------------------------


@torch.no_grad()
def _measure_layer(
    attention: nn.Module, model: SmallViT, how: "CellSettings", x: Tensor
) -> list[float]:
    """Return the self-weight, the size of keys, and shares of S in percent.

    Shares are those of the last iteration: clean, noisy, replaced patches; then in
    replaced and in intact tokens of the latter.
    """
    x = x[:_LOOKED_AT]
    clean = model.first_tokens(x)
    self_weight = look_inside(attention, clean)[1]
    keys = attention._heads(clean)[1]  # type: ignore[operator]
    size = float(keys.abs().mean())
    if not isinstance(attention, RPCAttention):
        return [self_weight, size, 0.0, 0.0, 0.0, 0.0, 0.0]
    rng = generator(0)
    noisy = model.first_tokens(corrupt(x, "gaussian_noise", 5, rng))
    changed, places = _replaced(how, x)
    replaced = _flagged(attention, model.first_tokens(changed))
    hit = torch.from_numpy(places)
    shares = [
        _flagged(attention, clean).mean(),
        _flagged(attention, noisy).mean(),
        replaced.mean(),
        replaced[hit].mean(),
        replaced[~hit].mean(),
    ]
    return [self_weight, size, *(100 * float(share) for share in shares)]


def _flagged(attention: RPCAttention, tokens: Tensor) -> Tensor:
    """Return the share of key entries that S takes in the last iteration, by token."""
    q, k, v = attention._heads(tokens)
    settings = attention._settings
    pursuit = attention_pursuit(
        k,
        v,
        queries=None if attention.symmetric else q,
        n_iter=settings.n_iter,
        sparsity=settings.sparsity,
        threshold="paper" if settings.width is None else "reference",
        width=None if settings.width is None else attention.d_model,
        multiplier=settings.multiplier,
        query_steps=settings.query_steps,
    )
    share: Tensor = (pursuit.sparse != 0).float().mean((1, 3))
    return share
