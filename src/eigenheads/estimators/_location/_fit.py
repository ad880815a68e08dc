"""Fit the single-location head: a list of stages, each a map from state to state."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from scipy.optimize import OptimizeResult

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import (
    RELATIVE,
    head_outputs,
    token_scores,
)
from eigenheads.estimators._location._losses import SQUARED, columns
from eigenheads.estimators._location._minimise import minimise, minimise_sparse
from eigenheads.estimators._location._objective import (
    PenalisedLoss,
    default_shrinkage,
    pooled_whitening,
    radius_moments,
    squared_radii,
    token_span,
)
from eigenheads.estimators._location._problem import LabelledBags, data_in_memory
from eigenheads.estimators._location._starts import (
    attended_features,
    best_starts,
    key_directions,
    solve_positive,
    stacked_ridge,
    start_profiles,
)
from eigenheads.estimators._location._state import FitState, Stage

# Screening: all starts get the first number of iterations, the best two the second.
_SCREEN_ITERATIONS = (5, 10)
# A weight below the tolerance divided by the exponential of this does not count.
_MARGIN = 3.0
# Scores this far below the largest of a bag do not matter for a rough minimum: 100 such
# tokens together have a tenth of its weight.
_ROUGH_MARGIN = 7.0
# Number of times that attended tokens are gathered before all tokens are read.
_ROUNDS = 3
# Lengths of the key to try, as multiples of the one that the optimiser reached.
# Those of a group are computed together; the first two usually decide.
_LENGTHS = ((1.0, 1.5), (2.0, 3.0), (4.0, 6.0), (8.0, 12.0), (16.0,))
# `alpha` at which the prior variance of the scores is one.
_UNIT_ALPHA = 3e-5
_TINY = np.finfo(float).tiny


def add_constant(state: FitState) -> FitState:
    """Sigmoid head: give every token a feature that is one.

    Its coefficient in the key is the threshold of the weights, that in the value lets
    the head count tokens.
    """
    if state.settings.head != "sigmoid":
        return state

    def with_one(bags: Bags) -> Bags:
        ones = np.ones((len(bags.tokens), 1), dtype=bags.tokens.dtype)
        return replace(bags, tokens=np.hstack([bags.tokens, ones]))

    directions = np.pad(state.random_directions, ((0, 0), (0, 1)))
    data = replace(state.data.mapped(with_one), n_features=state.data.n_features + 1)
    return replace(state, data=data, random_directions=directions)


def reduce_features(state: FitState) -> FitState:
    """More features than tokens: fit in the span of the tokens, with equal result.

    Not for the radial head, whose radius has a part outside the span, nor for an L1
    penalty, which is one on the features as given.
    """
    data, settings = state.data, state.settings
    if data.is_stream or data.n_features <= data.n_tokens:
        return state
    if settings.head in ("radial", "sigmoid") or settings.l1_ratio > 0:
        return state
    (batch,) = data.read()
    center = settings.head in RELATIVE and settings.has_intercept
    span = token_span(batch, center=center)
    if not len(span.variances):  # no feature varies
        return state

    def reduced(bags: Bags) -> Bags:
        tokens = np.ascontiguousarray(span.coordinates, dtype=bags.tokens.dtype)
        return replace(bags, tokens=tokens)

    width = len(span.variances)
    return replace(
        state,
        data=replace(data.mapped(reduced), n_features=width),
        random_directions=state.random_directions[:, :width],
        span=span,
    )


def whiten_tokens(state: FitState) -> FitState:
    """Find coordinates in which the loss is well conditioned for any units."""
    settings, data, span = state.settings, state.data, state.span
    shrinkage = settings.shrinkage
    if shrinkage is None:
        width = data.n_features if span is None else len(span.scale)
        shrinkage = default_shrinkage(width, data.size)
    if span is not None:
        whitening = span.whitening(shrinkage)
    else:
        center = settings.head in RELATIVE and settings.has_intercept
        whitening = pooled_whitening(data, center=center, shrinkage=shrinkage)
    return replace(
        state, whitening=whitening, coordinates=whitening, shrinkage=shrinkage
    )


def add_radius(state: FitState) -> FitState:
    """Radial head: give every token minus half its squared radius, for scores only."""
    if state.settings.head != "radial":
        return state
    whitening, precision = state.whitening, state.whitening.precision()

    def with_radii(bags: Bags) -> Bags:
        radii = squared_radii(bags.tokens, whitening.mean, precision)
        radii *= -0.5
        return replace(bags, radii=radii)

    data = state.data.mapped(with_radii)
    coordinates = whitening.with_column(*radius_moments(data), state.shrinkage)
    return replace(state, data=data, coordinates=coordinates, precision=precision)


def find_directions(state: FitState) -> FitState:
    """Compute candidate keys from moments, and append the random ones.

    For the radial head they get an entry of zero for the radius, and one more key is
    the radius alone.
    """
    directions = key_directions(state.data, state.whitening)
    for index, direction in enumerate(state.random_directions):
        directions[f"random {index}"] = [direction]
    if state.precision is not None:
        directions = {
            name: [np.append(direction, 0.0) for direction in some]
            for name, some in directions.items()
        }
        directions["radius"] = [
            np.eye(1, state.data.n_features + 1, state.data.n_features)[0]
        ]
    return replace(state, directions=directions)


def profile_directions(state: FitState) -> FitState:
    """Compute the best values for every direction, sign and length of the key."""
    profiles = start_profiles(
        state.directions, state.data.screen(), state.coordinates, state.settings.head
    )
    return replace(state, profiles=profiles)


def screen_starts(state: FitState, n_starts: int | None = None) -> FitState:
    """Compare the starts after a few iterations on some bags; keep the best.

    With `n_starts`, only so many are compared, those whose values fit best.
    """
    starts = {
        start.name: np.concatenate(
            [start.key, start.values.ravel(), np.zeros(state.data.n_outputs)]
        )
        for start in best_starts(state.profiles, state.settings.alpha)[:n_starts]
    }
    return _best_screened(state, state.data.screen(), starts)


def _best_screened(
    state: FitState, screen: LabelledBags, starts: dict[str, FloatArray]
) -> FitState:
    settings = state.settings
    objective = replace(state, data=data_in_memory(screen)).objective()
    rounds = _SCREEN_ITERATIONS if len(starts) > 2 else _SCREEN_ITERATIONS[1:]
    for iterations in rounds:
        max_iter = min(iterations, settings.max_iter)
        results = {
            name: minimise(objective, flat, max_iter=max_iter, tol=settings.tol)
            for name, flat in starts.items()
        }
        for name, result in results.items():
            state.report(f"start {name}: objective {result.fun:.6g}")
        ranked = sorted(results, key=lambda name: float(results[name].fun))
        starts = {name: results[name].x for name in ranked[:2]}
    return replace(state, flat=results[ranked[0]].x, start=ranked[0])


def add_heads(state: FitState) -> FitState:
    """Add heads one by one, each started on what the others leave unexplained."""
    while state.n_heads < state.settings.n_heads:
        state = hold_to_attended(refine(_with_next_head(state)))
    return state


def _with_next_head(state: FitState) -> FitState:
    objective, settings = state.objective(), state.settings
    raw, intercepts = objective.raw(state.flat)

    def unexplained(batch: LabelledBags) -> LabelledBags:
        outputs = np.asarray(
            head_outputs(batch.bags, raw, intercepts, head=settings.head), np.float64
        )
        return replace(batch, responses=settings.kind.residuals(outputs, batch.targets))

    rest = find_directions(replace(state, data=state.data.changed(unexplained)))
    rest = profile_directions(rest)
    rows, own = objective.split(state.flat)
    starts = {
        start.name: np.concatenate([rows.ravel(), start.key, start.values.ravel(), own])
        for start in best_starts(rest.profiles, settings.alpha)
    }
    # The directions of the first head are kept for the next path.
    more = replace(state, n_heads=state.n_heads + 1, attended=None)
    return _best_screened(more, rest.data.screen(), starts)


def refine(state: FitState) -> FitState:
    """Minimise the penalised loss over all bags."""
    # If a stage with the attended mean follows, this one needs only be good enough to
    # tell which tokens are attended to.
    is_rough = is_held(state)
    tol = state.settings.tol * (10 if is_rough else 1)
    return state.after(_minimise_attentively(state, tol, is_rough=is_rough))


def hold_to_attended(state: FitState) -> FitState:
    r"""Minimise again with the coherence penalty, which steadies the key.

    For tokens with an elliptical law the mean attended token, whitened, has the
    direction of the key: selection along :math:`k` moves the mean by a multiple of
    :math:`\Sigma k`. It is a mean over all bags, so it varies less than a key that the
    targets alone determine.
    """
    if not is_held(state):
        return state
    objective, coordinates = state.objective(), state.coordinates
    raw, units = objective.raw(state.flat)[0], []
    for key in objective.keys:
        total, weight = objective.loss.attended(raw[key])
        mean = np.zeros(len(coordinates.mean))  # the entry of the radius stays zero
        mean[: len(total)] = total - weight * coordinates.mean[: len(total)]
        attended = coordinates.pulled_back(mean)
        length = float(np.linalg.norm(attended))
        if length <= 1e-8:
            return state
        units.append(attended / length)
    state = replace(state, attended=np.stack(units))
    return state.after(_minimise_attentively(state, state.settings.tol))


def is_held(state: FitState) -> bool:
    """Return whether the coherence penalty applies."""
    return state.settings.coherence > 0 and state.settings.head not in (
        "sigmoid",
        "logsumexp",
    )


def make_sparse(state: FitState) -> FitState:
    """L1 penalty: minimise in standardised features, in which it is separable."""
    if not state.is_sparse:
        return state
    coordinates, attended = state.coordinates, state.attended
    rows, intercepts = state.objective().split(state.flat)
    flat = np.concatenate([coordinates.standardised(rows).ravel(), intercepts])
    plain = coordinates.without_whitening()
    if attended is not None:
        attended = plain.measured(coordinates.standardised(attended))
    state = replace(state, coordinates=plain, attended=attended)
    settings = state.settings
    objective = PenalisedLoss(state.data, settings, plain, attended, state.n_heads)
    return state.after(
        minimise_sparse(objective, flat, max_iter=settings.max_iter, tol=settings.tol)
    )


def choose_key_length(state: FitState) -> FitState:
    r"""Regression: keep the direction of the key and choose its length.

    Along its length the loss is so flat, and a fixed penalty so strong if there is
    little noise, that the optimiser stops early: a softmax then still leaks to tokens
    that it could tell apart. The length minimises
    :math:`n \log(\text{loss}) + \lVert k \rVert_W^2 / 2`, as if the noise had an
    unknown variance and the scores of pooled tokens prior variance one; `alpha` scales
    the second term. Given the key, the value is a ridge regression.
    """
    settings = state.settings
    state.report(
        f"refined {state.start}: objective {state.value:.6g} after "
        f"{state.n_iter} iterations"
    )
    if settings.kind != SQUARED or state.is_sparse or state.n_heads > 1:
        return state
    if not settings.has_relative_weights:
        return state
    objective = state.objective()
    rows, _ = objective.split(state.flat)
    key, n_outputs = objective.raw(state.flat)[0][0], state.data.n_outputs
    strength = settings.alpha / (_UNIT_ALPHA * state.data.size)
    length = 0.5 * strength * float(rows[0] @ rows[0])
    best = np.inf, 1.0, rows[1:].ravel(), state.value
    # The criterion falls, then rises: stop at the first length that does not improve.
    for factor, loss, fitted in _values_of_lengths(state, key):
        cost = n_outputs * np.log(loss + _TINY) + factor**2 * length
        if cost >= best[0]:
            break
        best = cost, factor, fitted, loss
    _, factor, fitted, loss = best
    flat = np.concatenate([factor * rows[0], fitted])
    norm = float(np.linalg.norm(rows[0]))
    state.report(f"length of the key: {factor * norm:.4g} instead of {norm:.4g}")
    # The reported objective has no coherence term: the direction is fixed.
    coefficients = flat[:-n_outputs]
    value = loss + 0.5 * settings.alpha * float(coefficients @ coefficients)
    return replace(state, flat=flat, value=value)


# The fit, from data to coefficients: first the stages that do not depend on the
# penalty, then the optimiser. Each stage is described in its docstring; those that do
# not apply (no radius, no L1 penalty, …) return their argument.
PREPARATION: tuple[Stage, ...] = (
    add_constant,
    reduce_features,
    whiten_tokens,
    add_radius,
)
OPTIMISATION: tuple[Stage, ...] = (
    find_directions,
    profile_directions,
    screen_starts,
    refine,
    hold_to_attended,
    add_heads,
    make_sparse,
    choose_key_length,
)


def _minimise_attentively(
    state: FitState, tol: float, *, is_rough: bool = False
) -> OptimizeResult:
    """Minimise over the tokens that count, until the others change nothing.

    Most tokens of a long bag have a weight that no sum notices. The minimum over the
    rest is that over all if there the two gradients differ by less than `tol`. If they
    do not, tokens are chosen again; after some rounds all tokens are read. With
    `is_rough`, one round over fewer tokens is enough.
    """
    objective, settings, flat = state.objective(), state.settings, state.flat
    n_iter = 0
    # To gather tokens takes longer than to read all of few.
    n_rounds = _ROUNDS if objective.compiled_arguments() is None else 0
    margin = _ROUGH_MARGIN if is_rough else max(0.0, _MARGIN - np.log(tol))
    for _ in range(n_rounds):
        keys = objective.raw(flat)[0][objective.keys]
        some = state.data.attentive(keys, margin, head=settings.head)
        if some is None:
            break
        small = replace(state, data=some).objective()
        result = minimise(small, flat, max_iter=settings.max_iter - n_iter, tol=tol)
        n_iter += int(result.nit)
        flat = result.x
        with objective.loss.threads():
            value, gradient = objective(flat)
        agrees = is_rough or np.abs(gradient - result.jac).max() <= tol
        if agrees or n_iter >= settings.max_iter:
            result.fun, result.nit = value, n_iter
            return result
    result = minimise(objective, flat, max_iter=settings.max_iter - n_iter, tol=tol)
    result.nit += n_iter
    return result


def _values_of_lengths(
    state: FitState, key: FloatArray
) -> Iterator[tuple[float, float, FloatArray]]:
    """Yield lengths of the key, the loss of the best values, values and intercepts."""
    if not state.data.is_stream:
        yield from _values_in_memory(state, key)
        return
    for factor, gram in _grams_of_lengths(state, key).items():
        yield factor, *_ridge(gram, state.settings.alpha, state.data.n_outputs)


def _values_in_memory(
    state: FitState, key: FloatArray
) -> Iterator[tuple[float, float, FloatArray]]:
    """Yield the same for bags in memory, without lengths that nobody asks for."""
    (batch,) = state.data.read()
    bags, settings = batch.bags, state.settings
    scores = token_scores(bags, key).astype(np.float64)
    shares, targets = batch.weights / state.data.weight, columns(batch.targets)
    roots, is_centred = np.sqrt(shares)[:, None], float(settings.has_intercept)
    middle = is_centred * (shares @ targets)
    aims = roots * (targets - middle)
    for some in _LENGTHS:
        factors = np.array(some)
        moved = factors[:, None] * scores
        rows = attended_features(bags, moved, state.coordinates, settings.head)
        centers = is_centred * (shares @ rows)
        rows -= centers[:, None]
        rows *= roots
        # The floor gives columns of zeros the coefficient zero.
        floor = 1e-12 * np.einsum("kij,kij->k", rows, rows) + _TINY
        values = stacked_ridge(rows, aims, settings.alpha + floor)
        errors = aims - rows @ values
        losses = 0.5 * np.einsum("kij,kij->k", errors, errors)
        intercepts = middle - (centers[:, None] @ values)[:, 0]
        slopes = values.transpose(0, 2, 1).reshape(len(factors), -1)
        found = np.hstack([slopes, intercepts])
        yield from zip(factors.tolist(), losses.tolist(), found, strict=True)


def _grams_of_lengths(state: FitState, key: FloatArray) -> dict[float, FloatArray]:
    """Return mean products of attended tokens, a one and the target, in one pass."""
    coordinates, settings = state.coordinates, state.settings
    size = len(coordinates.mean) + 1 + state.data.n_outputs
    grams = {factor: np.zeros((size, size)) for factor in chain(*_LENGTHS)}
    for batch in state.data.read():
        bags = batch.bags
        scores = token_scores(bags, key).astype(np.float64)
        ones = np.full(len(bags), float(settings.has_intercept))
        shares = (batch.weights / state.data.weight)[:, None]
        for factor, gram in grams.items():
            moved = factor * scores[None]
            (features,) = attended_features(bags, moved, coordinates, settings.head)
            table = np.column_stack([features, ones, columns(batch.targets)])
            gram += (table * shares).T @ table
    return grams


def _ridge(gram: FloatArray, alpha: float, n_outputs: int) -> tuple[float, FloatArray]:
    """Return penalised loss and coefficients: values, then intercepts.

    The last columns are a one, whose coefficient is not shrunk, and the targets.
    """
    size = len(gram) - n_outputs
    matrix = gram[:size, :size].copy()
    # The floor gives columns of zeros the coefficient zero.
    floor = 1e-12 * np.trace(matrix) or 1.0
    matrix.flat[:: size + 1] += floor
    matrix.flat[: -1 : size + 1] += alpha
    fitted = solve_positive(matrix, gram[:size, size:])
    residual = np.vstack([-fitted, np.eye(n_outputs)])
    loss = 0.5 * float(np.einsum("ij,ik,kj->", residual, gram, residual))
    return max(loss, 0.0), np.concatenate([fitted[:-1].T.ravel(), fitted[-1]])
