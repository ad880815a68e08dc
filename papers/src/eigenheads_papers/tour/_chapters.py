"""Chapters of the tour that need only the core; all numbers are measured."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenheads.datasets import SignalTokens
from eigenheads.estimators import (
    AttentionPCA,
    RobustPCA,
    SignalDirection,
    SingleLocationClassifier,
)
from eigenheads.extend import FloatArray, generator
from eigenheads.functional import (
    attention_pursuit,
    kernel_pca,
    kernel_pca_values,
)
from eigenheads.probes import kernel_pca_probe, planted_heads, q_values

_N_FRAMES = 10
# Corruption of keys in the chapter on pursuit: share of entries, and size.
_SHARE_HIT, _HIT = 0.05, 10.0


def digit_streams(n_train: int = 2000, n_test: int = 1000) -> Iterator[str]:
    """Fit streams of handwritten digits, and compare with a baseline."""
    rng = generator(0)
    images, digits = load_digits(return_X_y=True)
    # Streams for the fit and for the test are made from different images.
    half = rng.permutation(len(digits)) < len(digits) // 2
    bags, labels, _ = _streams(images[half], digits[half], n_train, rng)
    test_streams, truths, places = _streams(images[~half], digits[~half], n_test, rng)
    yield (
        f"Streams of {_N_FRAMES} handwritten digits; one frame is a 3 or an 8 and "
        "gives the label. The fit does not know which."
    )
    model = SingleLocationClassifier().fit(bags, labels)
    located = np.mean(np.asarray(model.locate(test_streams)) == places)
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    plain.fit(bags.mean(axis=1), labels)
    yield (
        f"SingleLocationClassifier, fitted to {n_train} streams: accuracy "
        f"{model.score(test_streams, truths):.3f} on {n_test} streams of other images;"
    )
    yield (
        f"its attention finds the deciding frame in {located:.1%} of them "
        f"(chance: {1 / _N_FRAMES:.0%})."
    )
    gain = model.score(test_streams, truths) - plain.score(
        test_streams.mean(axis=1), truths
    )
    yield (
        "Logistic regression on the mean frame: accuracy "
        f"{plain.score(test_streams.mean(axis=1), truths):.3f}."
    )
    yield (
        f"Conclusion: the head gains {100 * gain:.0f} points on the mean, because the "
        "mean of ten frames hides the one that matters."
        if gain > 0.02
        else "Conclusion: on these data the mean of the frames is as good as the head."
    )


def rare_tokens(n_rare: int = 12, n_other: int = 5988) -> Iterator[str]:
    """Find the direction of a few tokens, and compare with the first component."""
    law = SignalTokens(d=50, n_informative=n_rare, n_nuisance=n_other, strength=1.0)
    tokens, signs = law.sample(1, generator(0))
    is_rare = signs[0] != 0
    model = SignalDirection(1, random_state=0).fit(tokens[0])
    ours = abs(float(model.directions_[0] @ law.direction))
    first = PCA(1, random_state=0).fit(tokens[0]).components_[0]
    theirs = abs(float(first @ law.direction))
    called = model.predict(tokens[0])
    yield (
        f"{n_rare} of {len(is_rare)} tokens in {law.d} dimensions share a direction. "
        f"Cosine with it: SignalDirection {ours:.2f}, first component of PCA "
        f"{theirs:.2f}."
    )
    yield (
        f"SignalDirection marks {called[is_rare].sum()} of the {n_rare} tokens and "
        f"{called[~is_rare].mean():.1%} of the others."
    )
    yield (
        "Conclusion: variance is the wrong measure of rare tokens; softmax gives the "
        "few strong ones a large weight."
        if ours > theirs + 0.05
        else "Conclusion: here the rare tokens are strong enough for PCA."
    )


def learned_components(n_components: int = 8) -> Iterator[str]:
    """Train a head on images of digits, and compare its subspace with PCA."""
    images = load_digits().data
    model = AttentionPCA(n_components, random_state=0).fit(images)
    exact = PCA(n_components).fit(images)
    share = model.explained_variance_.sum() / exact.explained_variance_.sum()
    yield (
        f"A head of rank {n_components}, trained to reconstruct images of digits: its "
        f"directions explain {100 * share:.3f} % of the variance that those of PCA do."
    )
    yield (
        "Conclusion: such a head is a PCA that reads batches. For data in memory "
        "plain PCA is faster and exact."
        if share > 0.99
        else "Conclusion: this training has not reached the principal components."
    )


def kernel_facts(n_permutations: int = 99) -> Iterator[str]:
    """Show that a head can be kernel PCA, and that the probe detects it."""
    rng = generator(0)
    keys, queries = rng.standard_normal((2, 12, 2))
    values = kernel_pca_values(kernel_pca(keys), 3)
    # The sign of an axis is free.
    outputs = np.abs(softmax_head(queries, keys, values))
    gap = np.abs(outputs - np.abs(_projections(queries, keys, 3))).max()
    yield (
        "A head with kernel-PCA values projects queries on the axes of its keys; "
        f"largest difference from an SVD of explicit features: {gap:.0e}."
    )
    n = 64
    keys = rng.standard_normal((n, 16))
    centred = kernel_pca(keys - keys.mean(axis=0))
    # This bounds the trace, and so every eigenvalue, for keys of mean zero.
    bound = n * (4 * (n - 1)) ** (-(n - 1) / n)
    yield (
        f"Largest eigenvalue of {n} keys: {centred.eigenvalues[0]:.4f}; "
        f"the bound for keys of mean zero: {bound:.4f}."
    )
    for strength, name in (
        (1.0, "with kernel-PCA values"),
        (0.0, "with random values"),
    ):
        heads = planted_heads(2, 8, strength=strength, seed=0)
        result = kernel_pca_probe(*heads, n_permutations=n_permutations)
        captured = result.statistics["captured_variance"]
        n_heads = np.sum(q_values(captured.p_value["permuted_tokens"]) <= 0.05)
        yield (
            f"Probe of 8 heads {name}: {n_heads} stand out (q ≤ 0.05), "
            f"mean captured variance {captured.observed.mean():.3f}."
        )
    yield (
        "Conclusion: a head can be kernel PCA exactly. Whether a trained head is, is a "
        "question of data, which the probe answers with a test."
    )


def pursuit_facts() -> Iterator[str]:
    """Show the entries that the pursuit flags in clean and in corrupted keys."""
    rng = generator(0)
    n, d = 64, 16
    clean = rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)) / np.sqrt(3)
    clean += 0.1 * rng.standard_normal((n, d))
    is_hit = rng.random((n, d)) < _SHARE_HIT
    keys = np.where(is_hit, clean + rng.choice([-_HIT, _HIT], (n, d)), clean)
    before, after = (attention_pursuit(x, clean) for x in (clean, keys))
    flagged = after.sparse != 0
    yield (
        f"Attention pursuit flags {np.mean(before.sparse != 0):.1%} of the entries of "
        f"clean keys. If {is_hit.mean():.1%} of the entries are corrupted,"
    )
    yield (
        f"it flags {flagged[is_hit].mean():.1%} of the corrupted and "
        f"{flagged[~is_hit].mean():.1%} of the other entries."
    )
    # The same comparison for plain attention: corrupted keys against clean ones.
    plain = _moved(softmax_head(keys, keys, clean), softmax_head(clean, clean, clean))
    layer = _moved(after.output, before.output)
    # Robust PCA of the keys first, then plain attention.
    repaired = np.asarray(RobustPCA().fit(keys).low_rank_, dtype=np.float64)
    cleaned = _moved(
        softmax_head(repaired, repaired, clean), softmax_head(clean, clean, clean)
    )
    yield (
        f"The corruption changes the output of plain attention by {plain:.2f} of its "
        f"norm, that of the layer by {layer:.2f}, and that of plain attention after "
        f"RobustPCA of the keys by {cleaned:.2f}."
    )
    if layer > plain:
        yield (
            "Why the layer is worse: it has a softmax where robust PCA thresholds "
            "singular values, so that it attends more sharply to what is left in the "
            "keys, and its multiplier has the wrong sign (docs/papers/rpc_sign.md)."
        )
    yield (
        "Conclusion: to remove errors from keys, use RobustPCA or screen_tokens, not "
        "this layer."
        if cleaned < min(plain, layer)
        else "Conclusion: none of the three removes these errors from the keys."
    )


def softmax_head(
    queries: FloatArray, keys: FloatArray, values: FloatArray
) -> FloatArray:
    """Return the output of a softmax head."""
    scores = queries @ keys.T / np.sqrt(keys.shape[1])
    mixed: FloatArray = softmax(scores, axis=-1) @ values
    return mixed


def _streams(
    images: FloatArray, digits: FloatArray, n: int, rng: np.random.Generator
) -> tuple[FloatArray, NDArray[np.bool_], NDArray[np.int64]]:
    """Return bags of frames, labels (an 8 or not), and places of the deciding frame."""
    # Only a 3 or an 8 decides; frames of all other digits are fillers.
    decides = np.isin(digits, (3, 8))
    frames = rng.choice(np.flatnonzero(~decides), (n, _N_FRAMES))
    places = rng.integers(_N_FRAMES, size=n)
    chosen = rng.choice(np.flatnonzero(decides), n)
    # The deciding frame replaces a filler at a random place.
    frames[np.arange(n), places] = chosen
    return images[frames], digits[chosen] == 8, places


def _projections(queries: FloatArray, keys: FloatArray, n_axes: int) -> FloatArray:
    """Project explicit features of queries on the principal axes of those of keys."""
    of_keys, of_queries = _features(keys), _features(queries)
    # Softmax divides by the sum over keys, so kernel PCA uses these scaled features.
    total = of_keys.sum(axis=0)
    of_keys = of_keys / (of_keys @ total)[:, None]
    of_queries = of_queries / (of_queries @ total)[:, None]
    _, _, axes = np.linalg.svd(of_keys - of_keys.mean(axis=0), full_matrices=False)
    projected: FloatArray = of_queries @ axes[:n_axes].T
    return projected


def _features(points: FloatArray) -> FloatArray:
    """Return coordinates whose inner product is exp(x·y/√2), for points of the plane.

    There is one coordinate per monomial of the Taylor series, up to degree 60.
    """
    # With this factor the inner product of two points is divided by √2.
    x, y = 2**-0.25 * points.T
    columns = [
        x**j * y ** (m - j) / math.sqrt(math.factorial(j) * math.factorial(m - j))
        for m in range(61)
        for j in range(m + 1)
    ]
    return np.stack(columns, axis=1)


def _moved(after: FloatArray, before: FloatArray) -> float:
    return float(np.linalg.norm(after - before) / np.linalg.norm(before))
