"""Stages of a fit that depend on the penalty: from the starts to the finished heads."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import LabelledBags, data_in_memory
from eigenheads.estimators._location._head import (
    SQUARED,
    attention_weights,
    columns,
    head_outputs,
    token_products,
)
from eigenheads.estimators._location._starts import Equations, best_starts, find_starts
from eigenheads.estimators._location._state import (
    FitState,
    PenalisedLoss,
    Stage,
    minimise,
    minimise_sparse,
)

# Screening: all starts get the first number of iterations, the best two the second.
_SCREEN_ITERATIONS = (5, 10)
# A weight below the tolerance divided by the exponential of this does not count.
_MARGIN = 3.0
# Scores this far below the largest of a bag do not matter for a rough minimum: 100 such
# tokens together have a tenth of its weight.
_ROUGH_MARGIN = 7.0
# Number of times that attended tokens are gathered before all tokens are read, and
# numbers below which gathering takes longer than reading all.
_ROUNDS, _FEW_NUMBERS = 3, 100_000
# Lengths of the key to try, as multiples of the one that the optimiser reached.
_LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# `alpha` at which the prior variance of the scores is one.
_UNIT_ALPHA = 3e-5
_TINY = np.finfo(float).tiny


def screen_starts(state: FitState) -> FitState:
    """Compare the starts after a few iterations on some bags; keep the best.

    Given solutions are compared as they are.
    """
    state = replace(state, attended=None, n_iter=0)
    if state.given:
        objective = PenalisedLoss(replace(state, n_heads=state.settings.n_heads))
        best = state.given[0]
        if len(state.given) > 1:
            best = min(state.given, key=lambda flat: objective(flat)[0])
        n_heads = state.settings.n_heads
        return replace(state, flat=best, start="given", n_heads=n_heads)
    state = replace(state, n_heads=1)
    none = np.zeros(state.data.n_outputs)
    starts = {
        name: np.concatenate([flat, none]) for name, flat in best_starts(state).items()
    }
    return _best_screened(state, state.data.screen(), starts)


def _best_screened(
    state: FitState, screen: LabelledBags, starts: dict[str, FloatArray]
) -> FitState:
    settings = state.settings
    objective = PenalisedLoss(replace(state, data=data_in_memory(screen)))
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


def refine(state: FitState) -> FitState:
    """Minimise the penalised loss over all bags."""
    # If a stage with the attended mean follows, this one needs only be good enough to
    # tell which tokens are attended to.
    tol = state.settings.tol * (10 if state.is_held else 1)
    return state.after(_minimise_attentively(state, tol, is_rough=state.is_held))


def hold_to_attended(state: FitState) -> FitState:
    r"""Minimise again with the coherence penalty, which steadies the key.

    For tokens with an elliptical law, selection along :math:`k` moves the mean by a
    multiple of :math:`\Sigma k`, so that the mean attended token shows the key. It is a
    mean over all bags, so it varies less than a key that the targets alone determine.
    """
    if not state.is_held:
        return state
    units = []
    for key in state.rows[:: 1 + state.data.n_outputs]:
        attended = np.zeros(state.n_columns)
        for batch in state.data.read():
            scores = token_products(batch.bags, key[None])[:, 0]
            weights = attention_weights(batch.bags, scores, head=state.settings.head)
            weights = weights * batch.bags.spread(batch.weights)
            attended += weights.astype(batch.bags.tokens.dtype) @ batch.bags.tokens
        if state.radius is not None:
            attended[-1] = 0.0
        if state.to_key is not None:
            width = len(state.to_key)
            attended[:width] = state.to_key @ attended[:width]
        length = float(np.linalg.norm(attended)) / state.data.weight
        if length <= 1e-8:
            return state
        units.append(attended / np.linalg.norm(attended))
    state = replace(state, attended=np.stack(units))
    return state.after(_minimise_attentively(state, state.settings.tol))


def add_heads(state: FitState) -> FitState:
    """Add heads one by one, each started on what the others leave unexplained."""
    while state.n_heads < state.settings.n_heads:
        state = hold_to_attended(refine(_with_next_head(state)))
    return replace(state, minimum=state.flat)


def _with_next_head(state: FitState) -> FitState:
    settings, rows, intercepts = state.settings, state.rows, state.intercepts

    def unexplained(batch: LabelledBags) -> LabelledBags:
        outputs = head_outputs(batch.bags, rows, len(intercepts), head=settings.head)
        residuals = settings.kind.residuals(outputs + intercepts, batch.targets)
        return replace(batch, responses=residuals)

    data = state.data.changed(unexplained)
    remainder = find_starts(replace(state, data=data, profiles=[], given=()))
    starts = {
        name: np.concatenate([rows.ravel(), flat, intercepts])
        for name, flat in best_starts(remainder).items()
    }
    # The profiles of the first head are kept for other penalties.
    more = replace(state, n_heads=state.n_heads + 1, attended=None)
    return _best_screened(more, state.data.screen(), starts)


def make_sparse(state: FitState) -> FitState:
    """L1 penalty: minimise in standardised features, in which it is separable."""
    if not state.is_sparse:
        return state
    whitening = state.coordinates.whitening
    if whitening is not None:
        if state.radius is not None:
            whitening = np.pad(whitening, ((0, 1), (0, 1)))
            whitening[-1, -1] = 1.0
        inverse = np.linalg.inv(whitening)
        metric = inverse @ inverse
        flat = np.concatenate([(state.rows @ whitening).ravel(), state.intercepts])
        attended = state.attended
        if attended is not None:
            attended = attended @ whitening @ metric

        def unwhitened(bags: Bags) -> Bags:
            tokens = bags.tokens @ inverse.astype(bags.tokens.dtype)
            return replace(bags, tokens=tokens)

        state = replace(
            state,
            data=state.data.mapped(unwhitened),
            coordinates=replace(state.coordinates, whitening=None),
            metric=metric,
            unwhitened=unwhitened,
            flat=flat,
            attended=attended,
        )
    settings = state.settings
    objective = PenalisedLoss(state)
    return state.after(
        minimise_sparse(
            objective, state.flat, max_iter=settings.max_iter, tol=settings.tol
        )
    )


def choose_key_length(state: FitState) -> FitState:
    r"""Regression: keep the direction of the key and choose its length.

    Along its length the loss is so flat, and a fixed penalty so strong if there is
    little noise, that the optimiser stops early: a softmax then still leaks to tokens
    that it could tell apart. The length minimises
    :math:`n m \log(\text{loss}) + \lVert k \rVert^2 / 2` for n bags, m outputs and the
    key in whitened coordinates, as if the noise had an unknown variance and the scores
    of pooled tokens prior variance one; `alpha` scales the second term. Given the key,
    the value is a ridge regression.
    """
    settings, n_outputs = state.settings, state.data.n_outputs
    state.report(
        f"refined {state.start}: objective {state.value:.6g} after "
        f"{state.n_iter} iterations"
    )
    is_simple = state.n_heads == 1 and not state.is_sparse
    if settings.kind != SQUARED or not is_simple or not settings.has_relative_weights:
        return state
    key = state.rows[0]
    strength = settings.alpha / (_UNIT_ALPHA * state.data.size)
    prior = 0.5 * strength * float(key @ key)
    best = np.inf, 1.0, state.flat[len(key) :], state.value
    # The criterion falls, then rises: stop at the first length that does not improve.
    for factor in _LENGTHS:
        loss, values = _values_of_key(state, factor * key)
        cost = n_outputs * np.log(loss + _TINY) + factor**2 * prior
        if cost >= best[0]:
            break
        best = cost, factor, values, loss
    _, factor, values, loss = best
    norm = float(np.linalg.norm(key))
    state.report(f"length of the key: {factor * norm:.4g} instead of {norm:.4g}")
    flat = np.concatenate([factor * key, values])
    # The reported objective has no coherence term: the direction is fixed.
    coefficients = flat[:-n_outputs]
    value = loss + 0.5 * settings.alpha * float(coefficients @ coefficients)
    return replace(state, flat=flat, value=value)


def _values_of_key(state: FitState, key: FloatArray) -> tuple[float, FloatArray]:
    """Return the loss of the best values for a key, and values and intercepts."""
    tables, targets, weights = [], [], []
    for batch in state.data.read():
        scores = token_products(batch.bags, key[None])[:, 0]
        shares = attention_weights(batch.bags, scores, head=state.settings.head)
        tables.append(batch.bags.pooled(shares))
        targets.append(columns(batch.targets))
        weights.append(batch.weights / state.data.weight)
    table, aims, share = map(np.concatenate, (tables, targets, weights))
    if state.radius is not None:
        table[:, -1] = 0.0
    center, middle = share @ table, share @ aims
    if not state.settings.has_intercept:
        center, middle = 0.0 * center, 0.0 * middle
    equations = Equations(state.data.n_outputs)
    equations.add(table - center, aims - middle, share)
    # The floor gives columns of zeros the coefficient zero.
    floor = 1e-12 * equations.mean_square()
    values = equations.ridge(state.settings.alpha + floor)
    intercepts = middle - center @ values
    errors = aims - table @ values - intercepts
    loss = 0.5 * float(share @ (errors**2).sum(axis=1))
    return loss, np.concatenate([values.T.ravel(), intercepts])


def _minimise_attentively(
    state: FitState, tol: float, *, is_rough: bool = False
) -> OptimizeResult:
    """Minimise over the tokens that count, until the others change nothing.

    Most tokens of a long bag have a weight that no sum notices. The minimum over the
    others is that over all if there the two gradients differ by less than `tol`. If
    they do not, tokens are chosen again; after some rounds all tokens are read. With
    `is_rough`, one round over fewer tokens is enough.
    """
    objective, settings, flat = PenalisedLoss(state), state.settings, state.flat
    data, n_iter = state.data, 0
    is_small = data.n_tokens * data.n_features <= _FEW_NUMBERS and not data.is_stream
    margin = _ROUGH_MARGIN if is_rough else max(0.0, _MARGIN - np.log(tol))
    for _ in range(0 if is_small else _ROUNDS):
        keys = objective.split(flat)[0][objective.keys]
        attentive = data.attentive(keys, margin, head=settings.head)
        if attentive is None:
            break
        small = PenalisedLoss(replace(state, data=attentive))
        result = minimise(small, flat, max_iter=settings.max_iter - n_iter, tol=tol)
        n_iter += int(result.nit)
        flat = result.x
        value, gradient = objective(flat)
        agrees = is_rough or np.abs(gradient - result.jac).max() <= tol
        if agrees or n_iter >= settings.max_iter:
            result.fun, result.nit = value, n_iter
            return result
    result = minimise(objective, flat, max_iter=settings.max_iter - n_iter, tol=tol)
    result.nit += n_iter
    return result


OPTIMISATION: tuple[Stage, ...] = (
    find_starts,
    screen_starts,
    refine,
    hold_to_attended,
    add_heads,
    make_sparse,
    choose_key_length,
)


@dataclass(frozen=True)
class HeadSolution:
    """One head (or several that are added) in the features as given.

    `rows` has for each head its key and its values. The radial head has one more
    column, the coefficient of the radius, and the sigmoid head one for its constant.
    """

    head: str
    rows: FloatArray
    intercepts: FloatArray
    center: FloatArray
    precision: FloatArray | None
    objective: float
    n_iter: int
    converged: bool
    start: str

    def with_outputs(self, places: NDArray[np.int64], n_heads: int) -> "HeadSolution":
        """Return the solution with outputs moved to other places, and all heads."""
        n_outputs = len(self.intercepts)
        rows = self.rows.reshape(-1, 1 + n_outputs, self.rows.shape[1])
        ordered = np.zeros((max(n_heads, len(rows)), *rows.shape[1:]))
        ordered[: len(rows), 0] = rows[:, 0]
        ordered[: len(rows), 1 + places] = rows[:, 1:]
        intercepts = np.empty(n_outputs)
        intercepts[places] = self.intercepts
        return replace(
            self, rows=ordered.reshape(-1, rows.shape[2]), intercepts=intercepts
        )


def solution_of(state: FitState) -> HeadSolution:
    """Return the solution in the features as given."""
    coordinates, rows, n_outputs = state.coordinates, state.rows, state.data.n_outputs
    radius = None
    if state.radius is not None:
        rows, radius = rows[:, :-1], rows[:, -1:] / state.radius[1]
    rows = coordinates.raw(rows)
    is_value = np.arange(len(rows)) % (1 + n_outputs) > 0
    moved = (rows[is_value][:, : len(coordinates.mean)] @ coordinates.mean).reshape(
        -1, n_outputs
    )
    if radius is not None:
        rows = np.hstack([rows, radius])
    return HeadSolution(
        head=state.settings.head,
        rows=rows,
        intercepts=state.intercepts - moved.sum(axis=0),
        center=coordinates.mean,
        precision=None if radius is None else coordinates.precision(),
        objective=state.value,
        n_iter=max(state.n_iter, 1),
        converged=state.converged,
        start=state.start,
    )
