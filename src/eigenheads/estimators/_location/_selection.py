r"""Choose the penalty of a single-location fit from the data, by cross-validation.

The candidates are the head with several penalties, and mean pooling (the head with a
key of zero): the average of ridge regressions with several penalties, on standardised
features and on features in their own units, weighted by a power of their out-of-fold
likelihood.
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
from eigenheads.estimators._location._held_out import Candidate, HeldOut
from eigenheads.estimators._location._losses import SQUARED
from eigenheads.estimators._location._mean_pooling import (
    fit_mean_pooling,
    left_out_outputs,
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
# The scale of outputs is zero up to this t², and reduced by the share (this / t²) of it
# above. A compromise, chosen on splits with 60 bags: larger numbers lose more to ridge
# regression where a law holds, smaller ones lose more to the mean where none does
# (docs/benchmarks/bags.md).
_CAUTION = {"mean": 3.0, "attention": 10.0}
# Power of the out-of-fold likelihood in the weights of the average of mean pooling. A
# higher one trusts the penalty that had the best luck on few bags.
_TEMPER = 0.4
# Outputs that fit best if they are shrunk by more than this are those of an overfit.
_LEAST_SCALE = 0.5
# Fits to a fold need not be exact.
_FOLD_TOLERANCE, _FOLD_ITERATIONS = 30.0, 100
# Losses from two starts that are closer than this are those of one minimum.
_CLEARLY_LESS = 0.99
# Of the path that begins with a small penalty, folds try only the best starts.
_FOLD_STARTS = 2
# After a third of the bags, or this many, heads are left out, judged by the better of
# two scales, that are worse than the best candidate by several standard errors, or have
# gained less than their share of what it takes to be trusted in the end.
_ENOUGH_SEEN = 48
_CLEARLY = 1.5
_SCALES = (0.5, 1.0)
# After half of few bags the choice is settled if a head has gained this multiple of
# what it takes, and leads mean pooling by so many standard errors.
_SETTLED, _LEAD = 8.0, 3.0

Paths: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PenaltyChoice:
    """The best candidate, the constant that outputs are shrunk to, all candidates.

    `pooling` has the penalties of mean pooling by path, and their weights; `solutions`
    are those of the best candidate on the folds, if it is a head.
    """

    best: Candidate
    constant: FloatArray
    candidates: list[Candidate]
    pooling: dict[tuple[float, int], float] = field(default_factory=dict)
    solutions: list[FloatArray] = field(default_factory=list)


def choose_penalty(state: FitState) -> PenaltyChoice:
    """Compare the candidates on held-out bags.

    Parameters
    ----------
    state
        After the stages that do not depend on the penalty. Whitening uses all bags,
        but no targets; everything else is fitted to the other folds only.
    """
    sample = _sample(state.data)
    member, number = fold_of_bag(sample)
    constant = _best_constant(sample, state)
    if number.max() + 1 < _FEWEST_BAGS:
        first = _paths(state)[0][0]
        return PenaltyChoice(Candidate("attention", first), constant, [])
    held = _hold_out(state, sample, member, number)
    pooling = _average_pooling(held)
    found = [_scored(candidate, held) for candidate in held.outputs]
    for one, _ in found:
        state.report(
            f"{one.pooling} pooling, alpha {one.alpha:.3g}: out-of-fold score "
            f"{one.score:.4f} with scale {one.scale:.3f}"
        )
    best = _best(found, held)
    return PenaltyChoice(
        best,
        constant,
        [one for one, _ in found],
        pooling,
        held.solutions.get(best.name, []),
    )


def _hold_out(
    state: FitState,
    sample: LabelledBags,
    member: NDArray[np.int64],
    number: NDArray[np.int64],
) -> HeldOut:
    """Fit the candidates to all folds but one, in turn.

    Mean pooling of numbers leaves out one bag at a time instead, if no folds are given:
    it costs less than ten fits, and the outcome does not depend on how folds are made.
    """
    penalties = pooling_alphas(sample, state)
    heads, whitened = _in_whitened_tokens(state, sample)
    pooled = replace(sample, bags=mean_bags(sample.bags))
    constants = np.zeros((len(member), state.data.n_outputs))
    held = HeldOut(state.settings, sample, constants, {})
    paths = _paths(state)
    left = _all_heads(paths)
    left_out = _left_out_outputs(state, pooled, penalties, number)
    for fold in range(int(member.max()) + 1):
        seen = np.flatnonzero(member < fold)
        if len(seen) >= min(len(member) / 3, _ENOUGH_SEEN):
            so_far = held.take(seen)
            left = _promising(so_far, len(member))
            for dropped in set(held.of("attention")).difference(left):
                del held.outputs[dropped]
            if _is_settled(so_far, left, len(member)):
                return held.take(seen)
        inside, others = np.flatnonzero(member == fold), np.flatnonzero(member != fold)
        constants[inside] = _best_constant(pooled.take(others), state)
        held_out = whitened.take(inside).bags
        found = dict[Candidate, FloatArray]()
        for head, one in _heads(_on_fold(heads, whitened.take(others)), paths, left):
            held.solutions.setdefault(head.name, []).append(one.flat)
            found[head] = _outputs_of(finish(one), held_out)
        if left_out:
            found |= {one: some[inside] for one, some in left_out.items()}
        else:
            fold_state = _on_fold(state, pooled.take(others))
            found |= _pooled_outputs(fold_state, penalties, pooled.take(inside).bags)
        for candidate, some in found.items():
            kept = held.outputs.setdefault(candidate, np.zeros(constants.shape))
            kept[inside] = some - constants[inside]
    return held


def _average_pooling(held: HeldOut) -> dict[tuple[float, int], float]:
    """Replace the candidates of mean pooling by their average; return its weights.

    An average depends less on chance than the best of ten similar candidates.
    """
    means, outputs = held.of("mean"), held.outputs
    if not means:
        return {}
    gains = np.array([held.gain(held.mean(held.losses(one, 1.0))) for one in means])
    weights = np.exp(0.5 * _TEMPER * (gains - gains.max()))
    weights /= weights.sum()
    average = sum(w * outputs.pop(c) for w, c in zip(weights, means, strict=True))
    outputs[means[int(weights.argmax())]] = np.asarray(average)
    return {(c.alpha, c.path): float(w) for c, w in zip(means, weights, strict=True)}


def _best(found: list[tuple[Candidate, FloatArray]], held: HeldOut) -> Candidate:
    """Return the best candidate, or a simpler one that is hardly worse.

    A difference below its standard error says little. So attention must beat mean
    pooling by one, and for few bags a larger penalty within one of the best is taken.
    """
    ranked = sorted(found, key=lambda pair: -pair[0].score)
    best, losses = ranked[0]

    def is_similar(others: FloatArray) -> bool:
        return held.mean(others - losses) <= held.error(others - losses)

    if best.pooling == "mean" or best.scale == 0:
        return best
    means = [pair for pair in ranked if pair[0].pooling == "mean"]
    if means and is_similar(means[0][1]):
        return means[0][0]
    if len(held.sample.weights) >= FEW_BAGS:
        return best
    similar = [
        one
        for one, others in ranked
        if one.pooling == "attention" and one.scale > 0 and is_similar(others)
    ]
    return max(similar, key=lambda one: one.alpha)


def fit_chosen(state: FitState, choice: PenaltyChoice) -> FitState:
    """Fit all bags with the chosen candidate, along the path that led to it.

    The path may end in a worse minimum than on the folds. So solutions of the folds are
    starts, too, and the one whose penalised loss is clearly less is kept.
    """
    chosen = choice.best
    if chosen.pooling == "mean" or chosen.scale == 0:
        return fit_averaged_pooling(state, choice)
    path = _paths(state)[chosen.path]
    found = begin_path(state, path[0])
    for alpha in path[1 : path.index(chosen.alpha) + 1]:
        found = continue_path(found, alpha)
    other = _from_folds(found, choice.solutions)
    return finish(other if other.value < _CLEARLY_LESS * found.value else found)


def _from_folds(state: FitState, solutions: list[FloatArray]) -> FitState:
    """Fit the head from the solution of the folds that suits all bags best.

    To save time with many bags, only if it suits them better than the state does.
    """
    begun = replace(state, attended=None, start="fold")
    objective = begun.objective()
    with objective.loss.threads():
        own, *losses = (float(objective(one)[0]) for one in [state.flat, *solutions])
    best = int(np.argmin(losses)) if losses else 0
    is_few = state.data.n_bags < FEW_BAGS
    if not losses or not (is_few or losses[best] < _CLEARLY_LESS * own):
        return state
    return hold_to_attended(refine(replace(begun, flat=solutions[best])))


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
    n_bags = state.data.n_bags
    is_short = n_bags < _WEAK_FROM[name] and state.precision is None
    paths = _PATHS[name][:-1] if is_short else _PATHS[name]
    if state.settings.kind == SQUARED and _may_interpolate(state):
        return paths[:1]
    return paths


def _may_interpolate(state: FitState) -> bool:
    """Return whether values with a small penalty nearly interpolate few numbers.

    Out-of-fold errors then vary so much that they are useless, as with mean pooling.
    """
    few, width = state.data.n_bags, state.data.n_features
    return few < FEW_BAGS and 2 * width > few and state.precision is None


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


def _least_losses(held: HeldOut) -> dict[Candidate, FloatArray]:
    """Return the losses of each candidate with the better of two scales."""
    return {
        one: min((held.losses(one, scale) for scale in _SCALES), key=held.mean)
        for one in held.outputs
    }


def _promising(held: HeldOut, n_bags: int) -> list[Candidate]:
    """Return the heads that may still be chosen, after some of the bags.

    For few bags a simpler candidate is chosen unless another is clearly better. So a
    head is left out there that is behind mean pooling, or behind a larger penalty.
    """
    losses = _least_losses(held)
    means = {one: held.mean(some) for one, some in losses.items()}
    best = losses[min(means, key=lambda one: means[one])]
    least = _CAUTION["attention"] * len(best) / n_bags

    def is_promising(one: Candidate) -> bool:
        excess = losses[one] - best
        if held.mean(excess) > _CLEARLY * held.error(excess):
            return False
        # Without mean pooling one candidate must be left.
        return held.gain(means[one]) > least or not held.of("mean")

    def is_ahead(one: Candidate) -> bool:
        simpler = [other for other in left if other.alpha > one.alpha]
        return all(means[one] < means[other] for other in simpler + held.of("mean"))

    left = [one for one in held.of("attention") if is_promising(one)]
    return left if n_bags >= FEW_BAGS else [one for one in left if is_ahead(one)]


def _is_settled(held: HeldOut, left: list[Candidate], n_bags: int) -> bool:
    """Return whether some of few bags are enough to choose among the heads left."""
    is_half = 2 * len(held.sample.weights) >= n_bags
    if not left or not is_half or n_bags >= FEW_BAGS or held.sample.folds is not None:
        return False
    losses = _least_losses(held)
    best = min((losses[one] for one in left), key=held.mean)
    if held.gain(held.mean(best)) < _SETTLED * _CAUTION["attention"]:
        return False
    leads = [losses[one] - best for one in held.of("mean")]
    return all(held.mean(lead) > _LEAD * held.error(lead) for lead in leads)


def _left_out_outputs(
    state: FitState, pooled: LabelledBags, penalties: Paths, number: NDArray[np.int64]
) -> dict[Candidate, FloatArray]:
    """Return mean pooling per penalty on each bag, fitted to the others.

    Nothing if that needs fits of its own: for classes, and for given folds.
    """
    is_linear = state.settings.kind == SQUARED and state.settings.has_relative_weights
    if not is_linear or pooled.folds is not None:
        return {}
    state = replace(state, data=data_in_memory(pooled))
    return {
        Candidate("mean", alpha, index): outputs
        for index, alphas in enumerate(penalties)
        for alpha, outputs in zip(
            alphas, left_out_outputs(state, alphas, index, number), strict=True
        )
    }


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


def _all_heads(paths: Paths) -> list[Candidate]:
    """Return the heads of all paths; those with which several begin, once."""
    firsts = [path[0] for path in paths]
    return [
        Candidate("attention", alpha, index)
        for index, path in enumerate(paths)
        for alpha in path
        if alpha != path[0] or firsts.index(alpha) == index
    ]


def _heads(
    state: FitState, paths: Paths, left: list[Candidate]
) -> Iterator[tuple[Candidate, FitState]]:
    """Yield the heads that are left, fitted to the training bags of a fold."""
    if not left:
        return
    begun: dict[float, FitState] = {}
    state = profile_directions(find_directions(state))
    for index, path in enumerate(paths):
        wanted = {head.alpha: head for head in left if head.path == index}
        if not wanted:
            continue
        if path[0] not in begun:
            n_starts = None if path[0] == paths[0][0] else _FOLD_STARTS
            begun[path[0]] = begin_path(state, path[0], n_starts)
        found = begun[path[0]]
        for alpha in path[: max(map(path.index, wanted)) + 1]:
            if alpha != path[0]:
                found = continue_path(found, alpha)
            if alpha in wanted:
                yield wanted[alpha], found


def _outputs_of(state: FitState, bags: Bags) -> FloatArray:
    rows, intercepts = state.objective().raw(state.flat)
    outputs = head_outputs(bags, rows, intercepts, head=state.settings.head)
    return np.asarray(outputs, dtype=np.float64)


def _scored(candidate: Candidate, held: HeldOut) -> tuple[Candidate, FloatArray]:
    """Return the candidate with its best scale and score, and its losses."""

    def loss(scale: float) -> float:
        return held.mean(held.losses(candidate, scale))

    constant, is_whole = loss(0.0), held.settings.head == "logsumexp"
    best_scale, least = 1.0, loss(1.0)
    if candidate.pooling == "attention" and not is_whole:
        found = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded")
        best_scale, least = float(found.x), float(found.fun)
    if not constant > least or best_scale < _LEAST_SCALE:
        return replace(candidate, scale=0.0, score=0.0), held.losses(candidate, 0.0)
    # Twice the gain in log likelihood is t² for the hypothesis that the scale is zero.
    # Under it t² is twice a χ² variable for a linear smoother, because each pair of
    # bags enters t twice. A head has more freedom: a pattern that fits all bags by
    # chance is found again whichever fold is left out. So outputs that could be noise
    # are left out, and clear ones hardly shrunk.
    caution = _CAUTION[candidate.pooling]
    scale = best_scale * max(0.0, 1 - caution / held.gain(least))
    if is_whole:  # not linear in its value: all or nothing
        scale = float(scale > 0)
    score = 1 - loss(scale) / constant
    return replace(candidate, scale=scale, score=score), held.losses(candidate, scale)


def _silent(message: str) -> None:
    del message
