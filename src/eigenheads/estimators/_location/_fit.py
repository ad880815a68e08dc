"""Stages of a fit, from the starts to the finished heads, and the list of all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult
from scipy.sparse.linalg import LinearOperator, eigsh

from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import SQUARED, columns
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import LabelledBags, data_in_memory
from eigenheads.estimators._location._head import (
    attention_weights,
    head_outputs,
    log_mean_exp,
    minimise,
    minimise_sparse,
)
from eigenheads.estimators._location._prepare import (
    FitState,
    HeadStart,
    add_constant,
    add_radius,
    standardise,
    weighted_gram,
    whiten,
)

# Above this width a full eigendecomposition costs more than two eigenvectors.
_WIDE = 200
# Standard deviations of the scores that a start may have.
_INVERSE_TEMPERATURES = (1.5, 5.0)
# Shares of tokens that a sigmoid start leaves out.
_LEVELS = (0.5, 0.8, 0.95)
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


# --- Starts: keys from moments and spectra of the tokens, with best values -----------


def find_starts(state: FitState) -> FitState:
    r"""Compute candidate keys from moments, and the best values for each.

    With whitened tokens :math:`x` and centred responses :math:`y`, ``moments`` is the
    mean of :math:`y \, (x \cdot v) \, x` where :math:`v` is the regression of
    :math:`y` on the sum of a bag; ``spectral`` are sum and difference of the extreme
    eigenvectors of the mean of :math:`y \, x x^\top`, which under single-location
    regression is proportional to :math:`k v^\top + v k^\top`; ``principal`` is the
    direction of largest pooled variance; ``size`` is the mean of :math:`\lVert x
    \rVert^2 x`, because deciding tokens may be longer or shorter, and only tried
    alone; ``value`` is :math:`v` itself, because the
    deciding token may be the one with the largest readout; ``radius`` is the radius
    alone.
    """
    if state.given or state.profiles:
        return state
    directions = _directions(state)
    if state.radius is not None:
        for candidates in directions.values():
            for direction in candidates:
                direction[-1] = 0.0
        last = np.eye(1, state.data.n_features, state.data.n_features - 1)[0]
        directions["radius"] = [last]
    return replace(state, profiles=_profiles(state, directions))


def _directions(state: FitState) -> dict[str, list[FloatArray]]:
    data, d = state.data, state.data.n_features
    is_wide = d > _WIDE and not data.is_stream
    equations, matrices = Equations(data.n_outputs), list[Any]()
    for part in data.read():
        bags = part.bags
        sums = bags.sums(bags.tokens).astype(np.float64)
        equations.add(sums, part.responses, part.weights)
    values = equations.ridge(equations.mean_square()).T
    moment, sized = np.zeros(d), np.zeros(d)
    if not is_wide:
        matrices = [np.zeros((d, d)) for _ in range(data.n_outputs)]
    for part in data.read():
        tokens = part.bags.tokens
        pulls = part.bags.spread(part.weights[:, None] * part.responses)
        pull = (pulls * part.bags.products(values)).sum(axis=1)
        moment += pull.astype(tokens.dtype) @ tokens
        sizes = part.bags.spread(part.weights) * (tokens**2).sum(axis=1)
        sized += sizes.astype(tokens.dtype) @ tokens
        if is_wide:
            matrices = [_moment_product(tokens, pull) for pull in pulls.T]
        else:
            for matrix, pull in zip(matrices, pulls.T, strict=True):
                matrix += weighted_gram(tokens, pull)
    directions = {"moments": [moment], "spectral": list(_spectral(matrices))}
    if state.principal is not None:
        directions["principal"] = [state.principal.copy()]
    directions["size"], directions["value"] = [sized], list(values)
    return directions


def _moment_product(tokens: NDArray[Any], pull: FloatArray) -> LinearOperator:
    """Return the moment matrix as products with a vector: two passes each."""
    d = tokens.shape[1]

    def product(vector: FloatArray) -> FloatArray:
        pulled = pull * (tokens @ vector.ravel().astype(tokens.dtype))
        return np.asarray(pulled.astype(tokens.dtype) @ tokens, dtype=np.float64)

    return LinearOperator((d, d), matvec=product, dtype=np.float64)


def _spectral(matrices: list[Any]) -> Iterator[FloatArray]:
    for matrix in matrices:
        if matrix.shape[0] > _WIDE:  # only the two extreme eigenvectors are needed
            start = np.ones(matrix.shape[0])
            _, vectors = eigsh(matrix, k=2, which="BE", v0=start, tol=1e-3)
        else:
            _, vectors = np.linalg.eigh(matrix)
        yield vectors[:, -1] + vectors[:, 0]
        yield vectors[:, -1] - vectors[:, 0]


def _profiles(
    state: FitState, directions: dict[str, list[FloatArray]]
) -> list[HeadStart]:
    """Return every direction, sign and length of the key, with its best values.

    Given a key the values are a ridge regression on the attended tokens.
    """
    screen, head, profiles = state.data.screen(), state.settings.head, list[HeadStart]()
    for name, candidates in directions.items():
        for direction in candidates:
            length = float(np.linalg.norm(direction))
            unit = direction / length if length > 0 else direction
            scores = screen.bags.products(unit[None])[:, 0]
            if head == "logsumexp":
                profiles += _tied_profiles(name, screen, unit, scores)
                continue
            for factor, shift in _lengths(name, scores, head):
                key = factor * unit
                if shift:  # the last feature of a sigmoid head is constant
                    key = key - factor * shift * _constant_direction(state)
                moved = factor * (scores - shift)
                weights = attention_weights(screen.bags, moved, head=head)
                attended = screen.bags.pooled(weights)
                if state.radius is not None:
                    attended[:, -1] = 0.0
                values, error = _best_values(attended, screen)
                profiles.append(HeadStart(name, error, factor**2, key, values))
    return profiles


def _best_values(
    attended: FloatArray, screen: LabelledBags
) -> tuple[FloatArray, float]:
    equations = Equations(screen.responses.shape[1])
    equations.add(attended, screen.responses, screen.weights)
    values = equations.ridge(equations.mean_square())
    squares = ((screen.responses - attended @ values) ** 2).sum(axis=1)
    return values.T, 0.5 * float(np.average(squares, weights=screen.weights))


def _lengths(name: str, scores: FloatArray, head: str) -> list[tuple[float, float]]:
    """Return the factors and shifts of scores to try."""
    if head == "sigmoid":
        # A token counts if its score is above a quantile.
        spread = float(scores.std()) or 1.0
        return [
            (sign * size / spread, float(np.quantile(sign * scores, level)) * sign)
            for sign in (1.0, -1.0)
            for size in _INVERSE_TEMPERATURES
            for level in _LEVELS
        ]
    signs = (1.0,) if head == "erf" else (1.0, -1.0)  # erf is odd
    factors = [sign * size for sign in signs for size in _INVERSE_TEMPERATURES]
    if name == "value" and head != "erf":
        factors.append(0.0)  # the mean of the bag
    return [(factor, 0.0) for factor in factors]


def _constant_direction(state: FitState) -> FloatArray:
    """Return the coordinates of the last feature, which is one for every token."""
    last = np.eye(1, state.data.n_features, state.data.n_features - 1)[0]
    if state.coordinates.whitening is None:
        return last
    return np.asarray(np.linalg.solve(state.coordinates.whitening, last))


def _tied_profiles(
    name: str, screen: LabelledBags, unit: FloatArray, scores: FloatArray
) -> Iterator[HeadStart]:
    """Yield starts of the log-sum-exp head, whose value is its key.

    The output must rise with the readout of a token, so a falling fit does not count.
    """
    response = screen.responses[:, 0] - np.average(
        screen.responses[:, 0], weights=screen.weights
    )
    for factor in [sign * size for sign in (1, -1) for size in _INVERSE_TEMPERATURES]:
        outputs = log_mean_exp(screen.bags, factor * scores)
        outputs = outputs - np.average(outputs, weights=screen.weights)
        square = float(np.average(outputs**2, weights=screen.weights)) or 1.0
        slope = float(np.average(outputs * response, weights=screen.weights)) / square
        residuals = response - max(slope, 0.0) * outputs
        error = 0.5 * float(np.average(residuals**2, weights=screen.weights))
        yield HeadStart(name, error, 0.0, 0 * unit, (factor * unit)[None])


def best_starts(state: FitState) -> dict[str, FloatArray]:
    """Return, for each name, the direction, sign and length of the key of least error.

    The penalty breaks ties: where the key does not matter, it is zero. The least error
    is first.
    """
    best, alpha = dict[str, FloatArray](), state.settings.alpha
    screened = [start for start in state.profiles if start.name != "size"]
    ranked = screened or state.profiles
    for start in sorted(ranked, key=lambda s: s.error + 0.5 * alpha * s.square):
        flat = np.concatenate([start.key, start.values.ravel()])
        best.setdefault(start.name, flat)
    return best


class Equations:
    """Normal equations of ridge regressions whose rows come batch by batch.

    Few rows are kept as they are, and solved by a matrix with one row per bag.
    """

    def __init__(self, n_outputs: int) -> None:
        self._rows: list[FloatArray] = []
        self._aims: list[FloatArray] = []
        self._gram: Any = None
        self._cross: Any = np.zeros((0, n_outputs))
        self._weight = 0.0

    def add(self, rows: FloatArray, aims: FloatArray, weights: FloatArray) -> None:
        """Add some rows."""
        roots = np.sqrt(weights)[:, None]
        self._rows.append(roots * rows)
        self._aims.append(roots * aims)
        self._weight += float(weights.sum())
        if sum(map(len, self._rows)) > rows.shape[1]:
            self._fold()

    def _fold(self) -> None:
        table, aims = np.concatenate(self._rows), np.concatenate(self._aims)
        gram, cross = table.T @ table, table.T @ aims
        self._gram = gram if self._gram is None else self._gram + gram
        self._cross = cross if not len(self._cross) else self._cross + cross
        self._rows, self._aims = [], []

    def mean_square(self) -> float:
        """Return the sum of squares per unit of weight; 1 if all are zero."""
        total = sum(float((rows**2).sum()) for rows in self._rows)
        if self._gram is not None:
            total += float(np.trace(self._gram))
        return total / self._weight or 1.0

    def ridge(self, amount: float) -> FloatArray:
        """Return the coefficients, one column per aim."""
        if self._gram is None:
            table, aims = np.concatenate(self._rows), np.concatenate(self._aims)
            gram = table @ table.T
            gram.flat[:: len(gram) + 1] += amount
            return np.asarray(table.T @ np.linalg.solve(gram, aims))
        if self._rows:
            self._fold()
        gram = self._gram.copy()
        gram.flat[:: len(gram) + 1] += amount
        return np.asarray(np.linalg.solve(gram, self._cross))


# --- From a start to the minimum -----------------------------------------------------


def screen_starts(state: FitState) -> FitState:
    """Compare the starts after a few iterations on some bags; keep the best.

    Given solutions are compared as they are.
    """
    state = replace(state, attended=None, n_iter=0)
    if state.given:
        objective = replace(state, n_heads=state.settings.n_heads).loss()
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
    objective = state.loss(data_in_memory(screen))
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
        attended = np.zeros(state.data.n_features)
        for batch in state.data.read():
            scores = batch.bags.products(key[None])[:, 0]
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
    objective = state.loss()
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
    is_relative = settings.head in ("softmax", "radial")
    if settings.kind != SQUARED or not (is_simple and is_relative):
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
        scores = batch.bags.products(key[None])[:, 0]
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
    objective, settings, flat = state.loss(), state.settings, state.flat
    data, n_iter = state.data, 0
    is_small = data.n_tokens * data.n_features <= _FEW_NUMBERS and not data.is_stream
    margin = _ROUGH_MARGIN if is_rough else max(0.0, _MARGIN - np.log(tol))
    for _ in range(0 if is_small else _ROUNDS):
        keys = objective.split(flat)[0][objective.keys]
        attentive = data.attentive(keys, margin, head=settings.head)
        if attentive is None:
            break
        small = state.loss(attentive)
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


# Every fit runs these stages, in this order. A stage that does not apply returns its
# argument. The first four do not depend on the penalty, and are run once for all.
STAGES: tuple[Callable[[FitState], FitState], ...] = (
    standardise,
    add_constant,
    whiten,
    add_radius,
    find_starts,
    screen_starts,
    refine,
    hold_to_attended,
    add_heads,
    make_sparse,
    choose_key_length,
)
_FIRST_OF_PENALTY = STAGES.index(find_starts)


def prepare_tokens(state: FitState) -> FitState:
    """Run the stages that do not depend on the penalty."""
    for stage in STAGES[:_FIRST_OF_PENALTY]:
        state = stage(state)
    return state


def fit_heads(state: FitState) -> FitState:
    """Run the other stages."""
    for stage in STAGES[_FIRST_OF_PENALTY:]:
        state = stage(state)
    return state


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
    precision: FloatArray | None = None
    objective: float = np.nan
    n_iter: int = 1
    converged: bool = True
    start: str = "none"

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
