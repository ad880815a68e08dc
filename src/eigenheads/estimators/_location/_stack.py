r"""Choose among heads, mean pooling and constants: stacking by a non-negative garrote.

Candidates are heads and mean pooling (the head with a key of zero), each on the
features and on their feature maps and with several penalties. Their outputs
:math:`f_m` on bags that were left out of the fit are added,

.. math::

    b + \sum_m w_m f_m, \qquad w_m \ge 0,

with the weights that minimise minus the log likelihood of the targets plus
:math:`\sum_m \lambda_m w_m + \tfrac12 \sum_m w_m^2` (Breiman 1995, 1996). Weights of
zero predict the mean; candidates that are equally good share their weight.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import SQUARED, AbstractLoss, columns
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import (
    HeadSettings,
    LabelledBags,
    data_in_memory,
    fold_of_bag,
    targets_alone,
)
from eigenheads.estimators._location._fit import (
    Equations,
    HeadSolution,
    fit_heads,
    solution_of,
)
from eigenheads.estimators._location._head import PenalisedLoss, head_outputs, minimise
from eigenheads.estimators._location._prepare import FitState

# Penalties of heads: the first from screened starts, each other one from the solution
# of the one before it in its row.
_PENALTIES = {
    "numbers": ((0.05, 0.2), (0.05, 1e-2, 1e-3, 3e-5)),
    "classes": ((0.03, 0.3), (0.03, 3e-3)),
}
# Weak differences of spread are found with a small penalty only.
_WEAK_START = {"numbers": ((3e-5,),), "classes": ((1e-2,),)}
# Penalties of mean pooling, in units of the mean variance of pooled features.
_POOLING = (0.03, 0.3, 3.0, 30.0)
# With fewer different bags the choice would be noise: the first penalty is taken.
_FEWEST_BAGS = 10
# The choice is made on at most this many numbers, but not on fewer bags than these.
_MOST_NUMBERS, _ENOUGH_BAGS, _BAGS_PER_FEATURE = 2**21, 300, 20
# Prices of the weights, in units of log likelihood. A head costs more: a pattern that
# fits all bags by chance is found again whichever fold is left out.
_PRICES = {"mean": 2.0, "attention": 6.0}
# Outputs are enlarged at most by this factor.
_LARGEST = 4.0
# Fits to a fold need not be exact.
_FOLD_TOLERANCE, _FOLD_ITERATIONS = 10.0, 100
# A smaller share of the weights is not worth a fit to all bags.
_LEAST_SHARE = 0.02


@dataclass(frozen=True)
class Candidate:
    """A fit to choose, its out-of-fold score and its weight.

    `view` counts the feature maps; `start` is that of a head: the best of all by the
    targets, or one that needs no targets. `score` is the share of the loss of the best
    constant that the candidate removes by itself; for squared loss it is :math:`R^2`.
    `share` is the part of the spread of the outputs that is its own.
    """

    view: int
    pooling: str
    head: str
    sign: float
    alpha: float
    start: str = "screened"
    score: float = np.nan
    weight: float = 0.0
    share: float = 0.0

    def describe(self) -> str:
        """Return what is fitted, in words."""
        kind = "mean pooling" if self.pooling == "mean" else f"{self.head} head"
        sign = " of the other class" if self.sign < 0 else ""
        return f"map {self.view}, {kind}{sign}, alpha {self.alpha:.3g}"


@dataclass(frozen=True)
class View:
    """Bags in the features of one map: the fit of heads, and pooled tokens.

    Parameters
    ----------
    state
        After the stages that do not depend on the penalty.
    heads
        Names of heads, and signs of their outputs.
    plain
        After the features were standardised.
    """

    state: FitState
    heads: tuple[tuple[str, float], ...]
    plain: FitState

    @cached_property
    def means(self) -> FloatArray:
        """Mean token of each bag, standardised."""
        parts = [batch.bags.means() for batch in self.plain.data.read()]
        return np.concatenate(parts)


@dataclass(frozen=True)
class Stack:
    """Chosen candidates with their weights, and their solutions on each fold.

    Their outputs, relative to the constant of least loss, are added to `intercepts`.
    `members` are those that are fitted to all bags.
    """

    intercepts: FloatArray
    constant: FloatArray
    candidates: list[Candidate]
    solutions: list[list[FloatArray]]
    score: float = 0.0
    members: list[tuple[Candidate, HeadSolution]] = field(default_factory=list)


def choose(views: list[View]) -> Stack:
    """Return the weights of the candidates, without their fits to all bags."""
    samples = _samples(views)
    settings, first = views[0].state.settings, samples[0]
    # Folds are read off plain tokens: whitened, equal bags may differ in last digits.
    member, n_different = fold_of_bag(views[0].plain.data.sample(len(first.bags)))
    if n_different < _FEWEST_BAGS or int(member.max()) < 1:
        return one_head(views, _penalties(settings)[0][0])
    n_outputs = views[0].state.data.n_outputs
    outputs = dict[Candidate, FloatArray]()
    solutions = dict[Candidate, list[FloatArray]]()
    constants = np.zeros((len(member), n_outputs))
    for fold in range(int(member.max()) + 1):
        inside, others = np.flatnonzero(member == fold), np.flatnonzero(member != fold)
        constants[inside] = _constant(first.take(others), views[0].state)
        for index, (view, sample) in enumerate(zip(views, samples, strict=True)):
            for candidate, flat, held_out in _fold_fits(
                index, view, sample, inside, others
            ):
                solutions.setdefault(candidate, []).append(flat)
                table = outputs.setdefault(candidate, np.zeros(constants.shape))
                table[inside] = held_out - constants[inside]
    return _weighted(outputs, constants, first, views[0].state, solutions)


def one_head(views: list[View], alpha: float) -> Stack:
    """Return a single head with a given penalty."""
    head, sign = views[0].heads[0]
    only = Candidate(0, "attention", head, sign, alpha, weight=1.0, share=1.0)
    none = np.zeros(views[0].state.data.n_outputs)
    return Stack(none, none, [only], [[]])


def fit_stack(views: list[View], stack: Stack) -> Stack:
    """Fit the chosen candidates to all bags, from their solutions on the folds."""
    members = []
    for candidate, given in zip(stack.candidates, stack.solutions, strict=True):
        if candidate.weight <= 0:
            continue
        view = views[candidate.view]
        if candidate.pooling == "mean":
            solution = _pooled_solution(view, candidate.alpha)
        else:
            state = _of_head(view.state, candidate.head, candidate.sign)
            state = replace(state.with_alpha(candidate.alpha), given=tuple(given))
            solution = solution_of(fit_heads(state))
        members.append((candidate, solution))
    if not members:
        head = views[0].heads[0][0]
        constant = Candidate(0, "none", head, sign=1.0, alpha=np.nan)
        members = [(constant, _zero_solution(views[0]))]
    return replace(stack, members=members)


def _zero_solution(view: View) -> HeadSolution:
    """Return a head of zeros, for a constant output."""
    state, width = view.state, len(view.state.coordinates.mean)
    head, n_outputs = state.settings.head, state.data.n_outputs
    n_columns = width + (head in ("radial", "sigmoid"))
    return HeadSolution(
        head=head,
        rows=np.zeros((1 + n_outputs, n_columns)),
        intercepts=np.zeros(n_outputs),
        center=np.zeros(width),
        precision=state.coordinates.precision() if head == "radial" else None,
    )


def _samples(views: list[View]) -> list[LabelledBags]:
    """Return the bags on which the choice is made, the same of all views."""
    data = views[0].state.data
    widest = max(view.state.data.n_features for view in views)
    enough = int(_MOST_NUMBERS * data.n_bags / (data.n_tokens * widest))
    enough = max(enough, _ENOUGH_BAGS, _BAGS_PER_FEATURE * data.n_features)
    return [view.state.data.sample(enough) for view in views]


def _penalties(settings: HeadSettings) -> tuple[tuple[float, ...], ...]:
    name = "numbers" if settings.kind == SQUARED else "classes"
    weak = _WEAK_START[name] if settings.head == "radial" else ()
    return _PENALTIES[name] + weak


def _constant(batch: LabelledBags, state: FitState) -> FloatArray:
    """Return the constant outputs of least loss; zero without intercept."""
    n_outputs = state.data.n_outputs
    if not state.settings.has_intercept:
        return np.zeros(n_outputs)
    return state.settings.kind.constant(batch.targets, batch.weights, n_outputs)


def _of_head(state: FitState, head: str, sign: float) -> FitState:
    """Return the state for a head; a negative sign exchanges the two classes."""
    state = replace(state, settings=replace(state.settings, head=head))
    if sign > 0:
        return state

    def exchanged(batch: LabelledBags) -> LabelledBags:
        return replace(batch, targets=1 - batch.targets, responses=-batch.responses)

    return replace(state, data=state.data.changed(exchanged))


def _fold_fits(
    index: int,
    view: View,
    sample: LabelledBags,
    inside: NDArray[np.int64],
    others: NDArray[np.int64],
) -> Iterator[tuple[Candidate, FloatArray, FloatArray]]:
    """Yield candidates of a view, fitted to some bags, and outputs on the others."""
    settings = replace(
        view.state.settings,
        tol=_FOLD_TOLERANCE * view.state.settings.tol,
        max_iter=min(_FOLD_ITERATIONS, view.state.settings.max_iter),
    )
    state = replace(
        view.state,
        data=data_in_memory(sample.take(others)),
        settings=settings,
        report=lambda _: None,
    )
    held_out = sample.take(inside).bags
    for head, sign in view.heads:
        for start, fit in _heads(index, _of_head(state, head, sign)):
            alpha = fit.settings.alpha
            candidate = Candidate(index, "attention", head, sign, alpha, start)
            yield candidate, fit.minimum, sign * _outputs(fit, held_out)
    rows = view.means[view.state.data.sampled(len(sample.bags))]
    alphas = _pooling_alphas(rows, sample.weights, settings.kind)
    fits = _pooled_fits(view.state, sample.take(others), rows[others], alphas)
    for alpha, values, intercepts in fits:
        candidate = Candidate(index, "mean", "softmax", 1.0, alpha)
        yield candidate, values, rows[inside] @ values.T + intercepts


def _heads(index: int, state: FitState) -> Iterator[tuple[str, FitState]]:
    """Yield the head with every penalty, each started at the one before in its row.

    A few numbers in many features can be fitted from any start, so that the best of
    them says little. So for numbers, on the features as given, heads that start at
    directions that need no targets are candidates, too, each with two penalties.
    """
    first: FitState | None = None
    for path in _penalties(state.settings):
        given: tuple[FloatArray, ...] = ()
        for alpha in path:
            if first is not None and alpha == first.settings.alpha:
                given = (first.minimum,)  # with which several rows begin
                continue
            fit = fit_heads(replace(state.with_alpha(alpha), given=given))
            first, given = first or fit, (fit.minimum,)
            yield "screened", fit
    if first is None or index > 0 or state.settings.kind != SQUARED:
        return
    for name in ("principal", "size"):
        starts = [start for start in first.profiles if start.name == name]
        given = ()
        for alpha in _PENALTIES["numbers"][-1][:2] if starts else ():
            here = replace(state.with_alpha(alpha), given=given, profiles=starts)
            yield name, (fit := fit_heads(here))
            given = (fit.minimum,)


def _outputs(fit: FitState, bags: Bags) -> FloatArray:
    """Return the outputs of a fit on bags in the coordinates before it."""
    if fit.metric is not None and fit.unwhitened is not None:
        bags = fit.unwhitened(bags)
    n_outputs, head = fit.data.n_outputs, fit.settings.head
    return head_outputs(bags, fit.rows, n_outputs, head=head) + fit.intercepts


# --- Mean pooling: the head with a key of zero --------------------------------------


def _pooling_alphas(
    rows: FloatArray, weights: FloatArray, kind: AbstractLoss
) -> tuple[float, ...]:
    """Return the penalties of mean pooling.

    A regression of numbers with nearly as many effective parameters as bags nearly
    interpolates; its cross-validated error then varies so much that it is useless. So
    at most half as many are allowed.
    """
    shares = weights / weights.sum()
    centred = np.sqrt(shares)[:, None] * (rows - shares @ rows)
    variance = float((centred**2).sum()) / rows.shape[1] or 1.0
    alphas = [factor * variance for factor in _POOLING]
    if kind != SQUARED:
        return tuple(alphas)
    is_wide = len(rows) < rows.shape[1]
    gram = centred @ centred.T if is_wide else centred.T @ centred
    spectrum = np.maximum(np.linalg.eigvalsh(gram), 0.0)
    most = len(np.unique(rows, axis=0)) / 2
    few = [a for a in alphas if float(np.sum(spectrum / (spectrum + a))) <= most]
    return tuple(few) or (alphas[-1],)


def _pooled_fits(
    state: FitState, batch: LabelledBags, rows: FloatArray, alphas: tuple[float, ...]
) -> Iterator[tuple[float, FloatArray, FloatArray]]:
    """Yield penalty, values and intercepts of regressions on mean tokens."""
    settings, n_outputs = state.settings, state.data.n_outputs
    shares = batch.weights / batch.weights.sum()
    center = shares @ rows if settings.has_intercept else np.zeros(rows.shape[1])
    centred, targets = rows - center, columns(batch.targets)
    if settings.kind == SQUARED:
        middle = shares @ targets if settings.has_intercept else np.zeros(n_outputs)
        equations = Equations(n_outputs)
        equations.add(centred, targets - middle, shares)
        for alpha in alphas:
            values = equations.ridge(alpha + 1e-12).T
            yield alpha, values, middle - values @ center
        return
    # A bag of one token has one weight, whatever the key is: it stays zero.
    bags = Bags(centred, np.arange(len(rows) + 1))
    data = data_in_memory(replace(batch, bags=bags))
    d = rows.shape[1]
    flat = np.zeros((1 + n_outputs) * d + n_outputs)
    flat[-n_outputs:] = _constant(batch, state)
    for alpha in sorted(alphas, reverse=True):
        ridge = replace(settings, head="softmax", alpha=alpha, l1_ratio=0.0)
        flat = minimise(PenalisedLoss(data, ridge), flat, max_iter=200, tol=1e-6).x
        values = flat[d:-n_outputs].reshape(n_outputs, d)
        yield alpha, values, flat[-n_outputs:] - values @ center


def _pooled_solution(view: View, alpha: float) -> HeadSolution:
    """Return mean pooling of all bags as a head with a key of zero."""
    state, rows = view.state, view.means
    batch = targets_alone(state.data)
    ((_, values, intercepts),) = _pooled_fits(state, batch, rows, (alpha,))
    coordinates = view.plain.coordinates
    zero = np.zeros((1, values.shape[1]))
    raw = coordinates.raw(np.concatenate([zero, values]))
    return HeadSolution(
        head="softmax",
        rows=raw,
        intercepts=intercepts - raw[1:] @ coordinates.mean,
        center=coordinates.mean,
        start="mean",
    )


# --- The garrote --------------------------------------------------------------------


def _weighted(
    outputs: dict[Candidate, FloatArray],
    constants: FloatArray,
    sample: LabelledBags,
    state: FitState,
    solutions: dict[Candidate, list[FloatArray]],
) -> Stack:
    """Return the candidates with their weights, by their outputs on held-out bags."""
    kind, has_intercept = state.settings.kind, state.settings.has_intercept
    candidates = list(outputs)

    def mean_loss(added: FloatArray) -> float:
        losses = kind.per_bag(constants + added, sample.targets)
        return float(np.average(losses, weights=sample.weights))

    # The garrote is applied to outputs of the best size, so that prices are comparable.
    sizes = np.array([_best_size(mean_loss, outputs[one]) for one in candidates])
    tables = sizes[:, None, None] * np.stack(list(outputs.values()))
    prices = np.array([_PRICES[candidate.pooling] for candidate in candidates])
    weights = sample.weights * max(1.0, len(sample.weights) / sample.weights.sum())
    n_outputs, targets = constants.shape[1], sample.targets

    none, unit = mean_loss(0.0 * constants) or 1.0, 1.0
    found, shift = np.zeros(len(candidates)), np.zeros(n_outputs)
    # Noise of unknown variance: its estimate and the weights take turns.
    for _ in range(5 if kind == SQUARED else 1):
        if kind == SQUARED:
            added = np.tensordot(found, tables, axes=1) + shift
            unit = max(2 * mean_loss(added) / n_outputs, 1e-12)
        found, shift = _garrote(
            tables, constants, targets, weights / unit, prices, kind, has_intercept
        )
    found[found < _LEAST_SHARE * found.sum()] = 0.0
    squares = ((tables - tables.mean(axis=1, keepdims=True)) ** 2).sum(axis=2)
    spread = found * np.sqrt(np.average(squares, weights=weights, axis=1))
    shares = spread / (spread.sum() or 1.0)
    added = np.tensordot(found, tables, axes=1) + shift
    chosen = []
    for index, candidate in enumerate(candidates):
        one = replace(
            candidate,
            score=1 - mean_loss(tables[index]) / none,
            weight=float(found[index] * sizes[index]),
            share=float(shares[index]),
        )
        chosen.append(one)
        state.report(
            f"{one.describe()}: out-of-fold score {one.score:.4f}, "
            f"weight {one.weight:.3f}"
        )
    constant = _constant(sample, state)
    score = 1 - mean_loss(added) / none
    return Stack(constant + shift, constant, chosen, list(solutions.values()), score)


def _best_size(mean_loss: Callable[[FloatArray], float], table: FloatArray) -> float:
    """Return the factor from 0 to 4 of least loss."""
    result = minimize_scalar(
        lambda size: mean_loss(size * table), bounds=(0.0, _LARGEST), method="bounded"
    )
    return float(result.x) if result.fun < mean_loss(0.0 * table) else 0.0


def _garrote(
    tables: FloatArray,
    constants: FloatArray,
    targets: FloatArray,
    weights: FloatArray,
    prices: FloatArray,
    kind: AbstractLoss,
    has_intercept: bool,
) -> tuple[FloatArray, FloatArray]:
    """Return non-negative weights, and what is added to the constants."""
    n, n_outputs = len(tables), constants.shape[1]

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        found, shift = flat[:n], flat[n:]
        outputs = constants + np.tensordot(found, tables, axes=1) + shift
        slopes = -weights[:, None] * kind.residuals(outputs, targets)
        value = float(weights @ kind.per_bag(outputs, targets))
        value += float(prices @ found + 0.5 * found @ found)
        by_found = np.tensordot(tables, slopes, axes=([1, 2], [0, 1])) + prices + found
        return value, np.concatenate([by_found, slopes.sum(axis=0) * has_intercept])

    bounds = [(0.0, None)] * n + [(None, None)] * n_outputs
    options = {"maxiter": 500, "gtol": 1e-8, "ftol": 1e-13}
    start = np.zeros(n + n_outputs)
    result = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return result.x[:n], result.x[n:]
