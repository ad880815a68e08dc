r"""Choose the penalty of a single-location fit from the data, by cross-validation.

The candidates are the head with several penalties, and mean pooling (the head with a
key of zero): the average of ridge regressions with several penalties, on standardised
features and on features in their own units, weighted by their out-of-fold likelihood.
Out-of-fold outputs :math:`f` of a candidate are shrunk towards the best constant
:math:`b`,

.. math::

    f \mapsto b + c (f - b), \qquad 0 \le c \le 1,

and the candidate of least out-of-fold loss is fitted to all bags. A scale of zero
predicts the mean. Since the head is linear in its values, the scale is absorbed by
values and intercept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._fit import (
    add_heads,
    choose_key_length,
    find_directions,
    hold_to_attended,
    is_held,
    make_sparse,
    profile_directions,
    refine,
    screen_starts,
)
from eigenheads.estimators._location._head import head_outputs
from eigenheads.estimators._location._losses import SQUARED
from eigenheads.estimators._location._mean_pooling import (
    fit_mean_pooling,
    mean_bags,
    mean_outputs,
    pooling_alphas,
)
from eigenheads.estimators._location._problem import (
    FEW_BAGS,
    LabelledBags,
    LocationData,
    data_in_memory,
    fold_of_bag,
)
from eigenheads.estimators._location._state import FitState

# Penalties to try. Each path begins with its first entry, from screened starts, and
# continues from solution to solution. Two paths begin with a moderate penalty, whose
# landscape is smooth, but which is not so strong that the key collapses to zero. The
# last begins with a small one, at which weak differences between tokens can be found.
_PATHS = {
    "numbers": ((0.05, 0.2), (0.05, 1e-2, 1e-3, 3e-5), (3e-5,)),
    "classes": ((0.03, 0.1, 0.3), (0.03, 1e-2, 1e-3), (1e-2,)),
}
# Bags from which on heads without radius try the last path. With up to 400 bags of
# numbers it made no difference.
_WEAK_FROM = {"numbers": 1000, "classes": FEW_BAGS}
# With fewer different bags the choice would be noise: the first penalty is taken.
_FEWEST_BAGS = 10
# The choice is made on at most this many numbers, or this many bags per feature.
_MOST_NUMBERS = 2**22
_BAGS_PER_FEATURE = 20
# The scale of outputs is zero up to this t², and reduced by (this / t²)² above. Without
# any law, 60 bags of 10 to 300 features had a t² above 16 in 3 of 215 draws for
# attention (largest 23), and above 8 in 6 for mean pooling (largest 11).
_CAUTION = {"mean": 8.0, "attention": 20.0}
# Outputs that fit best if they are shrunk by more than this are those of an overfit.
_LEAST_SCALE = 0.5
# Fits to a fold need not be exact.
_FOLD_TOLERANCE, _FOLD_ITERATIONS = 30.0, 100
# Of the path that begins with a small penalty, folds try only the best starts.
_FOLD_STARTS = 2
# After a third of the bags, or this many, heads are left out that are no better than
# the mean, or worse than the best candidate by several standard errors, with the better
# of two scales.
_ENOUGH_SEEN = 48
_CLEARLY = 1.5
_SCALES = (0.5, 1.0)

Paths: TypeAlias = tuple[tuple[float, ...], ...]


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
    """The best candidate, the constant that outputs are shrunk to, all candidates.

    `pooling` has the penalties of mean pooling by path, and their weights.
    """

    best: Candidate
    constant: FloatArray
    candidates: list[Candidate]
    pooling: dict[tuple[float, int], float] = field(default_factory=dict)


def choose_penalty(state: FitState) -> PenaltyChoice:
    """Compare the candidates on held-out bags.

    Parameters
    ----------
    state
        After the stages that do not depend on the penalty. Whitening uses all bags,
        but no targets; everything else is fitted to the other folds only.
    """
    sample = _sample(state.data)
    member, n_groups = fold_of_bag(sample)
    constant = _best_constant(sample, state)
    if n_groups < _FEWEST_BAGS:
        first = _paths(state)[0][0]
        return PenaltyChoice(Candidate("attention", first), constant, [])
    penalties = pooling_alphas(sample, state)
    heads, whitened = _in_whitened_tokens(state, sample)
    pooled = replace(sample, bags=mean_bags(sample.bags))
    outputs: dict[Candidate, FloatArray] = {}
    constants = np.zeros((len(member), state.data.n_outputs))
    paths, n_folds = _paths(state), int(member.max()) + 1
    for fold in range(n_folds):
        seen = member < fold
        if np.count_nonzero(seen) >= min(len(member) / 3, _ENOUGH_SEEN):
            paths = _promising(paths, outputs, seen, state, sample, constants)
        inside, others = np.flatnonzero(member == fold), np.flatnonzero(member != fold)
        constants[inside] = _best_constant(pooled.take(others), state)
        found = chain(
            _head_outputs(
                _on_fold(heads, whitened.take(others)),
                paths,
                whitened.take(inside).bags,
            ),
            _pooled_outputs(
                _on_fold(state, pooled.take(others)),
                penalties,
                pooled.take(inside).bags,
            ),
        )
        for candidate, some in found:
            kept = outputs.setdefault(candidate, np.zeros(constants.shape))
            kept[inside] = some - constants[inside]
    pooling = _average_pooling(outputs, state, sample, constants)
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
    best = _best(scored, losses, sample.weights)
    return PenaltyChoice(best, constant, scored, pooling)


def _average_pooling(
    outputs: dict[Candidate, FloatArray],
    state: FitState,
    sample: LabelledBags,
    constants: FloatArray,
) -> dict[tuple[float, int], float]:
    """Replace the candidates of mean pooling by their average; return its weights.

    An average depends less on chance than the best of ten similar candidates.
    """
    means = [candidate for candidate in outputs if candidate.pooling == "mean"]
    if not means:
        return {}
    n = _size(sample)
    kind = state.settings.kind
    total = [
        float(
            np.average(
                kind.per_bag(constants + outputs[candidate], sample.targets),
                weights=sample.weights,
            )
        )
        for candidate in means
    ]
    deviance = np.array([kind.deviance(loss, n) for loss in total])
    weights = np.exp(0.5 * (deviance.min() - deviance))
    weights /= weights.sum()
    heaviest = means[int(weights.argmax())]
    average = sum(w * outputs[c] for w, c in zip(weights, means, strict=True))
    for candidate in means:
        del outputs[candidate]
    outputs[heaviest] = np.asarray(average)
    return {(c.alpha, c.path): float(w) for c, w in zip(means, weights, strict=True)}


def _size(sample: LabelledBags) -> float:
    return max(float(sample.weights.sum()), float(len(sample.weights)))


def _best(
    candidates: list[Candidate], losses: list[FloatArray], weights: FloatArray
) -> Candidate:
    """Return the best candidate, or a simpler one that is hardly worse.

    A difference below its standard error says little. So attention must beat mean
    pooling by one, and for few bags a larger penalty within one of the best is taken.
    """

    def is_clearly_better(one: int, other: int) -> bool:
        gain = losses[other] - losses[one]
        mean = float(np.average(gain, weights=weights))
        variance = float(np.average((gain - mean) ** 2, weights=weights))
        n = max(float(weights.sum()), float(len(weights)))
        return mean > np.sqrt(variance / n)

    ranked = sorted(range(len(candidates)), key=lambda i: -candidates[i].score)
    best = ranked[0]
    means = [i for i in ranked if candidates[i].pooling == "mean"]
    if candidates[best].pooling == "mean" or candidates[best].scale == 0:
        return candidates[best]
    if means and not is_clearly_better(best, means[0]):
        return candidates[means[0]]
    if len(weights) >= FEW_BAGS:
        return candidates[best]
    similar = [
        i
        for i in ranked
        if candidates[i].pooling == "attention"
        and candidates[i].scale > 0
        and not is_clearly_better(best, i)
    ]
    return candidates[max(similar, key=lambda i: candidates[i].alpha)]


def fit_chosen(state: FitState, choice: PenaltyChoice) -> FitState:
    """Fit all bags with the chosen candidate, along the path that led to it."""
    chosen = choice.best
    if chosen.pooling == "mean" or chosen.scale == 0:
        return fit_averaged_pooling(state, choice)
    path = _paths(state)[chosen.path]
    found = begin_path(state, path[0])
    for alpha in path[1 : path.index(chosen.alpha) + 1]:
        found = continue_path(found, alpha)
    return finish(found)


def fit_averaged_pooling(state: FitState, choice: PenaltyChoice) -> FitState:
    """Return the average of the fits of mean pooling, in standardised features."""
    weights = choice.pooling or {(choice.best.alpha, 0): 1.0}
    average, (flat,) = fit_mean_pooling(state, (choice.best.alpha,), 0)
    settings = replace(state.settings, alpha=choice.best.alpha)
    average, flat = replace(average, settings=settings), 0.0 * flat
    for path in (0, 1):
        alphas = tuple(alpha for alpha, index in weights if index == path)
        if not alphas:
            continue
        found, flats = fit_mean_pooling(state, alphas, path)
        for alpha, one in zip(alphas, flats, strict=True):
            rows, intercepts = found.objective().split(one)
            # From the scale of this path to that of the average; centres are equal.
            rows = rows * average.coordinates.scale / found.coordinates.scale
            parts = np.concatenate([rows.ravel(), intercepts])
            flat += weights[alpha, path] * parts
    pooled = replace(average, data=average.data.mapped(mean_bags))
    return replace(average, flat=flat, value=float(pooled.objective()(flat)[0]))


def begin_path(state: FitState, alpha: float, n_starts: int | None = None) -> FitState:
    """Fit the head from the best of screened starts."""
    state = replace(state, settings=replace(state.settings, alpha=alpha))
    if not state.profiles:
        state = profile_directions(find_directions(state))
    return add_heads(hold_to_attended(refine(screen_starts(state, n_starts))))


def continue_path(state: FitState, alpha: float) -> FitState:
    """Fit the head with another penalty, starting at the present solution."""
    settings = replace(state.settings, alpha=alpha)
    state = replace(state, settings=settings, attended=None)
    return hold_to_attended(state) if is_held(state) else refine(state)


def finish(state: FitState) -> FitState:
    """Apply the stages that a path does not continue from."""
    return choose_key_length(make_sparse(state))


def _best_constant(batch: LabelledBags, state: FitState) -> FloatArray:
    """Return the constant outputs of least loss; zero without intercept."""
    if not state.settings.has_intercept:
        return np.zeros(state.data.n_outputs)
    kind = state.settings.kind
    return kind.constant(batch.targets, batch.weights, state.data.n_outputs)


def _paths(state: FitState) -> Paths:
    name = "numbers" if state.settings.kind == SQUARED else "classes"
    # Few bags show weak differences of radii, but not of scores.
    is_short = state.data.n_bags < _WEAK_FROM[name] and state.precision is None
    return _PATHS[name][:-1] if is_short else _PATHS[name]


def _sample(data: LocationData) -> LabelledBags:
    """Return the bags on which the choice is made, evenly spaced over all."""
    per_bag = data.n_tokens * data.n_features / data.n_bags
    return data.sample(
        max(int(_MOST_NUMBERS / per_bag), _BAGS_PER_FEATURE * data.n_features)
    )


def _on_fold(state: FitState, training: LabelledBags) -> FitState:
    settings = replace(
        state.settings,
        tol=_FOLD_TOLERANCE * state.settings.tol,
        max_iter=min(_FOLD_ITERATIONS, state.settings.max_iter),
    )
    data = data_in_memory(training)
    return replace(state, data=data, settings=settings, report=_silent)


def _promising(
    paths: Paths,
    outputs: dict[Candidate, FloatArray],
    seen: NDArray[np.bool_],
    state: FitState,
    sample: LabelledBags,
    constants: FloatArray,
) -> Paths:
    """Return the paths up to the last head that may still be chosen.

    It must be better than the constant, and not worse than the best candidate by
    several standard errors of the mean difference of losses, bag by bag. Heads that are
    left out are removed from the outputs.
    """
    weights, targets = sample.weights[seen], sample.targets[seen]
    shares, n = weights / weights.sum(), max(float(weights.sum()), float(len(weights)))

    def losses(candidate: Candidate) -> FloatArray:
        moved, kind = outputs[candidate][seen], state.settings.kind
        tried = [kind.per_bag(constants[seen] + c * moved, targets) for c in _SCALES]
        return min(tried, key=lambda some: float(shares @ some))

    found = {candidate: losses(candidate) for candidate in outputs}
    best = min(found.values(), key=lambda some: float(shares @ some))
    constant = float(shares @ state.settings.kind.per_bag(constants[seen], targets))
    if not any(candidate.pooling == "mean" for candidate in outputs):
        constant = np.inf  # one candidate must be left

    def is_promising(candidate: Candidate) -> bool:
        excess = found[candidate] - best
        mean = float(shares @ excess)
        error = float(np.sqrt(shares @ (excess - mean) ** 2 / n))
        is_useful = float(shares @ found[candidate]) < constant
        return is_useful and mean <= _CLEARLY * error

    left = [c for c in outputs if c.pooling == "attention" and is_promising(c)]
    kept = []
    for index, path in enumerate(paths):
        places = [path.index(c.alpha) for c in left if c.path == index]
        kept.append(path[: max(places, default=-1) + 1])
    # A path that begins as an earlier one continues from its first head.
    for path in [path for path in kept if path]:
        first = next(i for i, other in enumerate(paths) if other[:1] == path[:1])
        kept[first] = kept[first] or path[:1]
    for candidate in [c for c in outputs if c.pooling == "attention"]:
        if candidate.alpha not in kept[candidate.path]:
            del outputs[candidate]
    return tuple(kept)


def _head_outputs(
    state: FitState, paths: Paths, held_out: Bags
) -> Iterator[tuple[Candidate, FloatArray]]:
    """Yield the heads of all paths, and their outputs on the bags of a fold."""
    for candidate, found in _heads(state, paths):
        yield candidate, _outputs_of(found, held_out)


def _pooled_outputs(
    state: FitState, penalties: Paths, held_out: Bags
) -> Iterator[tuple[Candidate, FloatArray]]:
    """Yield mean pooling per penalty, and its outputs on the means of a fold."""
    if not state.settings.has_relative_weights:  # a key of zero is no mean
        return
    for index, alphas in enumerate(penalties):
        pooled, flats = fit_mean_pooling(state, alphas, index)
        for alpha, flat in zip(alphas, flats, strict=True):
            yield Candidate("mean", alpha, index), mean_outputs(pooled, flat, held_out)


def _in_whitened_tokens(
    state: FitState, sample: LabelledBags
) -> tuple[FitState, LabelledBags]:
    """Whiten the tokens once, which otherwise happens in every evaluation.

    Not with an L1 penalty, which is one on the features as given, nor for the sigmoid
    head, whose last feature is constant.
    """
    settings = state.settings
    if settings.l1_ratio > 0 or settings.head == "sigmoid":
        return state, sample
    whitened = replace(sample, bags=state.coordinates.whitened(sample.bags))
    return replace(
        state,
        whitening=state.whitening.of_whitened_tokens(),
        coordinates=state.coordinates.of_whitened_tokens(),
    ), whitened


def _heads(state: FitState, paths: Paths) -> Iterator[tuple[Candidate, FitState]]:
    """Yield the heads of all paths, fitted to the training bags of a fold."""
    if not any(paths):
        return
    begun: dict[float, FitState] = {}
    state = profile_directions(find_directions(state))
    for index, path in enumerate(paths):
        if not path:
            continue
        if path[0] not in begun:
            n_starts = None if index == 0 else _FOLD_STARTS
            begun[path[0]] = begin_path(state, path[0], n_starts)
            yield Candidate("attention", path[0], index), finish(begun[path[0]])
        found = begun[path[0]]
        for alpha in path[1:]:
            found = continue_path(found, alpha)
            yield Candidate("attention", alpha, index), finish(found)


def _outputs_of(state: FitState, bags: Bags) -> FloatArray:
    rows, intercepts = state.objective().raw(state.flat)
    outputs = head_outputs(bags, rows, intercepts, head=state.settings.head)
    return np.asarray(outputs, dtype=np.float64)


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
        return state.settings.kind.per_bag(outputs, sample.targets)

    def loss(scale: float) -> float:
        return float(weights @ losses(scale))

    constant = loss(0.0)
    best_scale, least = 1.0, loss(1.0)
    if candidate.pooling == "attention" and state.settings.head != "logsumexp":
        found = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded")
        best_scale, least = float(found.x), float(found.fun)
    if not constant > least or best_scale < _LEAST_SCALE:
        return replace(candidate, scale=0.0, score=0.0), losses(0.0)
    # Twice the gain in log likelihood is t² for the hypothesis that the scale is zero.
    # Under it t² is twice a χ² variable for a linear smoother, because each pair of
    # bags enters t twice. A head has more freedom: a pattern that fits all bags by
    # chance is found again whichever fold is left out. So outputs that could be noise
    # are left out, and clear ones hardly shrunk.
    n, kind = _size(sample), state.settings.kind
    caution = _CAUTION[candidate.pooling]
    squared_t = kind.deviance(constant, n) - kind.deviance(least, n)
    scale = best_scale * max(0.0, 1 - (caution / float(squared_t)) ** 2)
    if state.settings.head == "logsumexp":  # not linear in its value: all or nothing
        scale = float(scale > 0)
    score = 1 - loss(scale) / constant
    return replace(candidate, scale=scale, score=score), losses(scale)


def _silent(message: str) -> None:
    del message
