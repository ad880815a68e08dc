"""Heads with a planted effect, and how often statistics detect it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_items,
    check_number,
    fail,
)
from eigenheads._limits import MAX_WORK
from eigenheads._rng import stream
from eigenheads._typing import FloatArray
from eigenheads.functional import kernel_pca, kernel_pca_values
from eigenheads.probes._head_probe import head_probe, read_statistics
from eigenheads.probes._result import LEVEL

# Heads of one probe share the draws; groups have their own.
_GROUP = 20
# Planted queries are this many times as long as random ones.
_GAIN = 3.0


@dataclass(frozen=True, eq=False)
class Calibration:
    """Rejection rates of a statistic.

    Attributes
    ----------
    name
        Of the statistic.
    strengths
        Strengths of the planted effect.
    false_positive_rate
        By null, the share of random heads with p <= `level`.
    power
        By null, the share of planted heads with p <= `level`, one per strength.
    level, n_heads
        Level of the test, and number of heads per rate: the standard error of a rate
        is ``sqrt(rate * (1 - rate) / n_heads)``.
    """

    name: str
    strengths: FloatArray
    false_positive_rate: dict[str, float]
    power: dict[str, FloatArray]
    level: float
    n_heads: int

    def to_records(self) -> list[dict[str, Any]]:
        """Return one row per null and strength; strength 0 is random heads."""
        rows = []
        for null, rate in self.false_positive_rate.items():
            rates = [rate, *self.power[null]]
            for strength, share in zip((0.0, *self.strengths), rates, strict=True):
                row = {"statistic": self.name, "null": null}
                rows.append({**row, "strength": float(strength), "rate": float(share)})
        return rows


def calibrate(
    statistic: object,
    *,
    plant: str | Callable[..., Any] = "kernel_pca",
    strengths: Sequence[float] = (0.25, 0.5, 1.0),
    n_heads: int = 200,
    size: tuple[int, int, int] = (2, 24, 8),
    n_draws: int = 99,
    level: float = LEVEL,
    seed: int = 0,
) -> Calibration:
    """Measure how often a statistic rejects random heads, and planted ones.

    Parameters
    ----------
    statistic
        Name, function of a head, or :class:`HeadStatistic`; its nulls are tested,
        except untrained models.
    plant
        Effect in the planted heads: ``"kernel_pca"`` (values are kernel principal
        components of the keys), ``"previous_token"``, ``"first_token"``, ``"self"``,
        ``"duplicate_token"``, ``"induction"`` (queries point to these keys); or a
        function ``plant(queries, keys, values, token_ids, strength, rng)`` that returns
        planted queries, keys and values from random ones, (sequences, heads, tokens,
        width) each.
    strengths
        From 0 (random) to 1.
    n_heads
        Number of heads per rate.
    size
        Sequences, tokens and width of a head.
    n_draws, level, seed
        Draws of each null, level of the test, seed.

    Returns
    -------
    calibration
        A false-positive rate far above `level` means that a null is wrong for the
        statistic; low power means that the statistic does not detect the effect.

    Examples
    --------
    >>> found = calibrate("previous_token", plant="previous_token", n_heads=40)
    >>> found.power["shuffled_positions"][-1:]
    array([1.])
    """
    (measure,) = read_statistics([statistic])
    n_heads = check_count("n_heads", n_heads)
    n_draws = check_count("n_draws", n_draws)
    level = check_number("level", level, minimum=0.0, maximum=1.0)
    shares = [
        check_number("strengths", value, minimum=0.0, maximum=1.0)
        for value in check_items("strengths", strengths, "a sequence of numbers")
    ]
    size = _check_size(size)
    seed = check_count("seed", seed, minimum=0)
    planted: Any = plant
    if isinstance(plant, str):
        planted = _PLANTS[check_choice("plant", plant, list(_PLANTS))]
    elif not callable(plant):
        fail("plant", "a name or a function", plant, error=TypeError)
    rates: dict[str, list[float]] = {}
    for index, strength in enumerate((0.0, *shares)):
        counts: dict[str, int] = {}
        for group, start in enumerate(range(0, n_heads, _GROUP)):
            rng = stream(seed, index, group)
            n_group = min(_GROUP, n_heads - start)
            arrays, ids = _random_heads(rng, size, n_group)
            if strength > 0:
                arrays = planted(*arrays, ids, strength, rng)
            probed = head_probe(
                *arrays,
                statistics=[measure],
                token_ids=ids,
                n_draws=n_draws,
                seed=int(rng.integers(2**31)),
            ).statistics[measure.name]
            for null, p_values in probed.p_value.items():
                # Slack for p-values that equal the level, such as 5/100.
                rejected = int(np.sum(p_values <= level + 1e-12))
                counts[null] = counts.get(null, 0) + rejected
        for null, count in counts.items():
            rates.setdefault(null, []).append(count / n_heads)
    return Calibration(
        measure.name,
        np.array(shares),
        {null: by_strength[0] for null, by_strength in rates.items()},
        {null: np.array(by_strength[1:]) for null, by_strength in rates.items()},
        level,
        n_heads,
    )


Arrays = tuple[FloatArray, FloatArray, FloatArray]


def _check_size(size: object) -> tuple[int, int, int]:
    contract = "three integers: sequences, tokens and width"
    items = check_items("size", size, contract)
    if len(items) != 3:
        fail("size", contract, Got(f"{len(items)} of them"))
    numbers = [check_count("size", item) for item in items]
    if math.prod(numbers) * _GROUP > MAX_WORK:
        got = Got(" x ".join(map(str, numbers)))
        fail("size", f"of at most {MAX_WORK // _GROUP} numbers", got)
    return numbers[0], numbers[1], numbers[2]


def _random_heads(
    rng: np.random.Generator, size: tuple[int, int, int], n_heads: int
) -> tuple[Arrays, NDArray[np.int64]]:
    """Return Gaussian heads, and token ids of which the second half repeats."""
    n_sequences, n_tokens, width = size
    q, k, v = rng.standard_normal((3, n_sequences, n_heads, n_tokens, width))
    # Two equal halves: every token of the second half has an earlier copy.
    half = np.array(
        [rng.permutation(n_tokens)[: -(-n_tokens // 2)] for _ in range(n_sequences)]
    )
    return (q, k, v), np.concatenate([half, half], axis=1)[:, :n_tokens]


def _kernel_pca(
    q: FloatArray,
    k: FloatArray,
    v: FloatArray,
    ids: NDArray[np.int64],
    strength: float,
    rng: np.random.Generator,
) -> Arrays:
    values = kernel_pca_values(kernel_pca(k), v.shape[-1])
    spread = values.std(axis=-2, keepdims=True)
    planted = values / np.where(spread > 0, spread, 1.0)
    return q, k, np.sqrt(strength) * planted + np.sqrt(1 - strength) * v


def _to(targets: Callable[[FloatArray, NDArray[np.int64]], FloatArray]) -> Any:
    """Return a planting in which queries point to target keys."""

    def planted(
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        ids: NDArray[np.int64],
        strength: float,
        rng: np.random.Generator,
    ) -> Arrays:
        aim = _GAIN * targets(k, ids)
        return np.sqrt(strength) * aim + np.sqrt(1 - strength) * q, k, v

    return planted


def _embedded(shift: int) -> Callable[..., Arrays]:
    """Return a planting in which keys and queries embed token ids.

    A key embeds the token `shift` places before it, a query its own token, so that it
    attends to copies of its token (0) or to the tokens that follow them (1).
    """

    def planted(
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        ids: NDArray[np.int64],
        strength: float,
        rng: np.random.Generator,
    ) -> Arrays:
        # One embedding for all heads, as in a model.
        table = rng.standard_normal((int(ids.max()) + 1, k.shape[-1]))
        vectors = table[ids][:, None]
        before = np.roll(vectors, shift, axis=2)
        keys = np.sqrt(strength) * before + np.sqrt(1 - strength) * k
        return np.sqrt(strength) * _GAIN * vectors + np.sqrt(1 - strength) * q, keys, v

    return planted


_PLANTS: dict[str, Any] = {
    "kernel_pca": _kernel_pca,
    "previous_token": _to(lambda keys, ids: np.roll(keys, 1, axis=2)),
    "first_token": _to(lambda keys, ids: np.broadcast_to(keys[:, :, :1], keys.shape)),
    "self": _to(lambda keys, ids: keys),
    "duplicate_token": _embedded(0),
    "induction": _embedded(1),
}


def planted_heads(
    n_sequences: int,
    n_heads: int,
    *,
    n_tokens: int = 32,
    d_head: int = 16,
    strength: float = 1.0,
    is_mixed: bool = False,
    seed: int = 0,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Draw heads whose values are a mixture of kernel PCA and noise.

    Queries and keys are standard Gaussian. With unit-variance columns of the
    kernel-PCA values :math:`\hat V` and of Gaussian noise :math:`E`,

    .. math:: V = \sqrt{s}\, \hat V + \sqrt{1 - s}\, E .

    Parameters
    ----------
    n_sequences, n_heads, n_tokens, d_head
        Sizes.
    strength
        :math:`s`: with 1, values are kernel PCA up to the scale of columns (positive
        control); with 0, they are independent of the keys (negative control).
    is_mixed
        Whether a random rotation per head mixes the columns. Then single columns are
        not eigenvectors, but they span the principal subspace.
    seed
        Seed.

    Returns
    -------
    queries, keys, values
        (sequences, heads, tokens, d_head) each.

    Examples
    --------
    >>> [x.shape for x in planted_heads(2, 3, n_tokens=12, d_head=4)]
    [(2, 3, 12, 4), (2, 3, 12, 4), (2, 3, 12, 4)]
    """
    shape = (
        check_count("n_sequences", n_sequences),
        check_count("n_heads", n_heads),
        check_count("n_tokens", n_tokens, minimum=3),
        check_count("d_head", d_head),
    )
    if math.prod(shape) > MAX_WORK:
        got = Got(" x ".join(map(str, shape)))
        contract = f"such that the heads have at most {MAX_WORK} numbers"
        fail("n_sequences", contract, got)
    check_flag("is_mixed", is_mixed)
    share = check_number("strength", strength, minimum=0.0, maximum=1.0)
    rng = stream(check_count("seed", seed, minimum=0))
    queries, keys, noise = rng.standard_normal((3, *shape))
    values = kernel_pca_values(kernel_pca(keys), shape[3])
    # Columns of unit variance, so that `strength` is a share of variance.
    spread = values.std(axis=-2, keepdims=True)
    values = values / np.where(spread > 0, spread, 1.0)
    if is_mixed:
        rotations, _ = np.linalg.qr(rng.standard_normal((shape[1], shape[3], shape[3])))
        values = values @ rotations
    return queries, keys, np.sqrt(share) * values + np.sqrt(1 - share) * noise
