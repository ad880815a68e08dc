r"""Choose the penalty of a single-location fit from the data, by cross-validation.

The candidates are the head with several penalties, and mean pooling (the head with a
key of zero) with several penalties. Out-of-fold outputs :math:`f` of a candidate are
shrunk towards the best constant :math:`b`,

.. math::

    f \mapsto b + c (f - b), \qquad 0 \le c \le 1,

and the candidate of least out-of-fold loss is fitted to all bags. A scale of zero
predicts the mean. Since the head is linear in its values, the scale is absorbed by
values and intercept.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._fit import (
    FitState,
    choose_key_length,
    find_directions,
    hold_to_attended,
    make_sparse,
    refine,
    screen_starts,
)
from eigenheads.estimators._location._head import (
    LOGISTIC,
    SQUARED,
    attended_readouts,
    attention_weights,
    pool_tokens,
    token_scores,
)
from eigenheads.estimators._location._objective import minimise
from eigenheads.estimators._location._problem import (
    LabelledBags,
    LocationData,
    data_in_memory,
)

# Penalties to try. Each path begins with its first entry, from screened starts, and
# continues from solution to solution. Two paths begin with a moderate penalty, whose
# landscape is smooth, but which is not so strong that the key collapses to zero. The
# last begins with a small one, at which weak differences between tokens can be found.
_PATHS = {
    "numbers": ((0.05, 0.2), (0.05, 1e-2, 1e-3, 3e-5), (3e-5,)),
    "classes": ((0.03, 0.1, 0.3), (0.03, 1e-2, 1e-3), (1e-2,)),
}
# Penalties of mean pooling, in units of the variance of pooled tokens.
_POOLING = (0.01, 0.1, 0.3, 1.0, 3.0)
# Ten folds for few bags, whose number decides whether the head is found; else five.
_FEW_BAGS = 200
# With fewer different bags the choice would be noise: the first penalty is taken.
_FEWEST_BAGS = 10
# The choice is made on at most this many numbers, or this many bags per feature.
_MOST_NUMBERS = 2**22
_BAGS_PER_FEATURE = 20
# Multiple of 1/t² by which the scale of outputs is reduced.
_CAUTION = 4.0
# Fits to a fold need not be exact.
_FOLD_TOLERANCE, _FOLD_ITERATIONS = 10.0, 100


@dataclass(frozen=True)
class Candidate:
    """A model to choose from, and its out-of-fold score.

    `score` is the share of the loss of the best constant that the candidate removes,
    after its outputs are multiplied by `scale`; for squared loss it is :math:`R^2`.
    """

    pooling: str
    alpha: float
    path: int = 0
    scale: float = 1.0
    score: float = np.nan


@dataclass(frozen=True)
class PenaltyChoice:
    """The best candidate, the constant that outputs are shrunk to, all candidates."""

    best: Candidate
    constant: FloatArray
    candidates: list[Candidate]


def choose_penalty(state: FitState) -> PenaltyChoice:
    """Compare the candidates on held-out bags.

    Parameters
    ----------
    state
        After the stages that do not depend on the penalty. Whitening uses all bags,
        but no targets; everything else is fitted to the other folds only.
    """
    sample = _sample(state.data)
    member, n_groups = _fold_of_bag(sample)
    constant = _best_constant(sample, state)
    if n_groups < _FEWEST_BAGS:
        first = _paths(state)[0][0]
        return PenaltyChoice(Candidate("attention", first), constant, [])
    variance = _pooled_variance(sample, state)
    outputs: dict[Candidate, FloatArray] = {}
    constants = np.zeros((len(member), state.data.n_outputs))
    for fold in range(int(member.max()) + 1):
        inside = np.flatnonzero(member == fold)
        training = sample.take(np.flatnonzero(member != fold))
        held_out = sample.take(inside).bags
        constants[inside] = _best_constant(training, state)
        for candidate, found in _candidates(_on_fold(state, training), variance):
            kept = outputs.setdefault(candidate, np.zeros(constants.shape))
            bags = mean_bags(held_out) if candidate.pooling == "mean" else held_out
            kept[inside] = _head_outputs(found, bags) - constants[inside]
    scored, losses = [], []
    for candidate, moved in outputs.items():
        one, its_losses = _scored(candidate, state, sample, constants, moved)
        scored.append(one)
        losses.append(its_losses)
    for one in scored:
        state.report(
            f"{one.pooling} pooling, alpha {one.alpha:.3g}: out-of-fold score "
            f"{one.score:.4f} with scale {one.scale:.3f}"
        )
    return PenaltyChoice(_best(scored, losses, sample.weights), constant, scored)


def _best(
    candidates: list[Candidate], losses: list[FloatArray], weights: FloatArray
) -> Candidate:
    """Return the best candidate; attention must beat mean pooling by a standard error.

    With few bags a difference below its standard error says nothing, and mean pooling
    has fewer parameters.
    """
    ranked = sorted(range(len(candidates)), key=lambda i: -candidates[i].score)
    best = ranked[0]
    means = [i for i in ranked if candidates[i].pooling == "mean"]
    if candidates[best].pooling == "mean" or not means:
        return candidates[best]
    gain = losses[means[0]] - losses[best]
    mean = float(np.average(gain, weights=weights))
    variance = float(np.average((gain - mean) ** 2, weights=weights))
    n = max(float(weights.sum()), float(len(weights)))
    return candidates[means[0] if mean < np.sqrt(variance / n) else best]


def fit_chosen(state: FitState, chosen: Candidate) -> FitState:
    """Fit all bags with the chosen candidate, along the path that led to it."""
    if chosen.pooling == "mean" or chosen.scale == 0:
        settings = replace(state.settings, alpha=chosen.alpha)
        return fit_mean_pooling(replace(state, settings=settings))
    path = _paths(state)[chosen.path]
    found = begin_path(state, path[0])
    for alpha in path[1 : path.index(chosen.alpha) + 1]:
        found = continue_path(found, alpha)
    return finish(found)


def begin_path(state: FitState, alpha: float) -> FitState:
    """Fit the head from screened starts."""
    state = replace(state, settings=replace(state.settings, alpha=alpha))
    return hold_to_attended(refine(screen_starts(find_directions(state))))


def continue_path(state: FitState, alpha: float) -> FitState:
    """Fit the head with another penalty, starting at the present solution."""
    settings = replace(state.settings, alpha=alpha)
    return hold_to_attended(replace(state, settings=settings, attended=None))


def finish(state: FitState) -> FitState:
    """Apply the stages that a path does not continue from."""
    return choose_key_length(make_sparse(state))


def fit_mean_pooling(state: FitState) -> FitState:
    """Fit the values with a key of zero: every token has the same weight."""
    size = (1 + state.data.n_outputs) * len(state.coordinates.mean)
    # Standardised features: small eigenvalues of the few pooled tokens are noise.
    plain = replace(state.coordinates, whitening=None, metric=None)
    state = replace(state, coordinates=plain, attended=None)
    pooled = replace(state, data=state.data.mapped(mean_bags))
    settings = state.settings
    result = minimise(
        pooled.objective(),
        np.zeros(size + state.data.n_outputs),
        max_iter=settings.max_iter,
        tol=settings.tol,
    )
    result.x[: len(plain.mean)] = 0.0  # the key, which is zero up to rounding
    return replace(state.after(result), start="mean")


def _best_constant(batch: LabelledBags, state: FitState) -> FloatArray:
    """Return the constant outputs of least loss; zero without intercept."""
    if not state.settings.has_intercept:
        return np.zeros(state.data.n_outputs)
    if state.settings.kind == SQUARED:
        return np.average(batch.targets[:, None], weights=batch.weights, axis=0)
    n_classes = max(2, state.data.n_outputs)
    codes = batch.targets.astype(np.int64)
    counts = np.bincount(codes, batch.weights, n_classes) + 0.5  # no class at minus ∞
    logits = np.log(counts / counts.sum())
    if state.settings.kind == LOGISTIC:
        return logits[1:] - logits[:1]
    return np.asarray(logits)


def mean_bags(bags: Bags) -> Bags:
    """Return bags of one token, the mean of the bag; its radius is not used."""
    weights = np.repeat(1.0 / bags.lengths, bags.lengths)
    means = pool_tokens(bags.tokens, bags.offsets, weights)
    radii = None if bags.radii is None else np.zeros(len(bags))
    return Bags(means, np.arange(len(bags) + 1), radii)


def _paths(state: FitState) -> tuple[tuple[float, ...], ...]:
    return _PATHS["numbers" if state.settings.kind == SQUARED else "classes"]


def _sample(data: LocationData) -> LabelledBags:
    """Return the bags on which the choice is made, evenly spaced over all."""
    per_bag = data.n_tokens * data.n_features / data.n_bags
    return data.sample(
        max(int(_MOST_NUMBERS / per_bag), _BAGS_PER_FEATURE * data.n_features)
    )


def _fold_of_bag(batch: LabelledBags) -> tuple[NDArray[np.int64], int]:
    """Return the fold of each bag, and the number of different bags.

    Equal bags are in one fold, so that repetitions count as weights do. Sorted by
    target and content, consecutive bags are in different folds; so folds have similar
    targets and do not depend on the order in which bags are given.
    """
    digests = [
        hashlib.blake2b(
            np.ascontiguousarray(tokens).tobytes(), digest_size=8
        ).hexdigest()
        for tokens in batch.bags.split(batch.bags.tokens)
    ]
    keys = np.rec.fromarrays([batch.targets, np.array(digests)])
    unique, group = np.unique(keys, return_inverse=True)
    n_folds = 10 if len(unique) < _FEW_BAGS else 5
    return group.ravel() % n_folds, len(unique)


def _on_fold(state: FitState, training: LabelledBags) -> FitState:
    settings = replace(
        state.settings,
        tol=_FOLD_TOLERANCE * state.settings.tol,
        max_iter=min(_FOLD_ITERATIONS, state.settings.max_iter),
    )
    data = data_in_memory(training)
    return replace(state, data=data, settings=settings, report=_silent)


def _candidates(
    state: FitState, variance: float
) -> Iterator[tuple[Candidate, FitState]]:
    """Yield every candidate fitted to the training bags of a fold."""
    begun: dict[float, FitState] = {}
    for index, path in enumerate(_paths(state)):
        if path[0] not in begun:
            begun[path[0]] = begin_path(state, path[0])
            yield Candidate("attention", path[0], index), finish(begun[path[0]])
        found = begun[path[0]]
        for alpha in path[1:]:
            found = continue_path(found, alpha)
            yield Candidate("attention", alpha, index), finish(found)
    if state.settings.head == "erf":  # its weights do not sum to one
        return
    for factor in _POOLING:
        settings = replace(state.settings, alpha=factor * variance)
        found = fit_mean_pooling(replace(state, settings=settings))
        yield Candidate("mean", settings.alpha), found


def _pooled_variance(batch: LabelledBags, state: FitState) -> float:
    """Return the mean variance of pooled tokens in standardised features."""
    pooled = mean_bags(batch.bags).tokens - state.whitening.mean
    return float(np.mean((pooled / state.whitening.scale) ** 2))


def _head_outputs(state: FitState, bags: Bags) -> FloatArray:
    rows, intercepts = state.objective().raw(state.flat)
    scores = token_scores(bags, rows[0])
    weights = attention_weights(bags, scores, head=state.settings.head)
    values = rows[1:, : bags.tokens.shape[1]]
    return attended_readouts(bags, weights, values) + intercepts


def _scored(
    candidate: Candidate,
    state: FitState,
    sample: LabelledBags,
    constants: FloatArray,
    moved: FloatArray,
) -> tuple[Candidate, FloatArray]:
    """Return the candidate with its best scale and score, and its losses."""
    weights = sample.weights / sample.weights.sum()

    def losses(scale: float) -> FloatArray:
        outputs = constants + scale * moved
        return _losses(outputs, sample.targets, state.settings.kind)

    def loss(scale: float) -> float:
        return float(weights @ losses(scale))

    least = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded")
    constant = loss(0.0)
    if not constant > least.fun:
        return replace(candidate, scale=0.0, score=0.0), losses(0.0)
    # Twice the gain in log likelihood is t² for the hypothesis that the scale is zero.
    # The scale is multiplied by 1 - 4/t², in the manner of James and Stein, so that
    # outputs that could be noise do little harm. The factor is 2 for a linear smoother,
    # because each pair of bags enters t twice, times 2 for the choice among candidates.
    n = max(float(sample.weights.sum()), float(len(sample.weights)))
    if state.settings.kind == SQUARED:
        squared_t = n * np.log(constant / max(least.fun, 1e-300))
    else:
        squared_t = 2 * n * (constant - least.fun)
    scale = float(least.x) * max(0.0, 1 - _CAUTION / float(squared_t))
    score = 1 - loss(scale) / constant
    return replace(candidate, scale=scale, score=score), losses(scale)


def _losses(outputs: FloatArray, targets: FloatArray, kind: int) -> FloatArray:
    """Return the loss of each bag, as the compiled loss does."""
    if kind == SQUARED:
        return 0.5 * (outputs[:, 0] - targets) ** 2
    if kind == LOGISTIC:
        return np.asarray(np.logaddexp(0.0, (1 - 2 * targets) * outputs[:, 0]))
    codes = targets.astype(np.int64)
    logs = log_softmax(outputs, axis=1)
    return np.asarray(-logs[np.arange(len(codes)), codes])


def _silent(message: str) -> None:
    del message
