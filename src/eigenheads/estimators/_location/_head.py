"""The single-location head on ragged bags: weights, outputs, penalised loss, gradient.

On bags of one length this is :func:`eigenheads.functional.location_predictor`. All
tokens are read by products of matrices, and sums over the tokens of a bag are segment
sums, so that NumPy does one evaluation in two passes over the tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize
from scipy.special import erf, expit

from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import AbstractLoss
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import HeadSettings, LocationData

HEADS = ("softmax", "radial", "erf", "sigmoid", "logsumexp")
# Heads whose weights sum to one in each bag: only their outputs move with the tokens.
RELATIVE = ("softmax", "radial", "logsumexp")
# Pairs of steps and gradients that L-BFGS keeps.
_MEMORY = 20


# --- Weights and outputs ------------------------------------------------------------


def attention_weights(
    bags: Bags, scores: NDArray[Any], *, head: str
) -> NDArray[np.floating]:
    r"""Return the weight of each token in its bag.

    .. math::

        p_l = \frac{e^{s_l}}{\sum_m e^{s_m}} \ (\text{softmax}), \qquad
        p_l = \operatorname{erf}(s_l) \ (\text{erf}), \qquad
        p_l = \frac{1}{1 + e^{-s_l}} \ (\text{sigmoid}).

    Examples
    --------
    >>> bags = Bags(np.zeros((3, 1)), np.array([0, 2, 3]))
    >>> attention_weights(bags, np.array([5.0, 5.0, 1.0]), head="softmax")
    array([0.5, 0.5, 1. ])
    """
    if head == "erf":
        return np.asarray(erf(scores))
    if head == "sigmoid":
        return np.asarray(expit(scores))
    weights = np.exp(scores - bags.spread(bags.largest(scores)))
    weights /= bags.spread(bags.sums(weights))
    return np.asarray(weights)


def log_mean_exp(bags: Bags, scores: NDArray[Any]) -> NDArray[np.floating]:
    r"""Return :math:`\log \frac1L \sum_l e^{s_l}` of each bag."""
    tops = bags.largest(scores)
    powers = np.exp(scores - bags.spread(tops))
    return np.asarray(tops + np.log(bags.sums(powers) / bags.lengths))


def head_outputs(
    bags: Bags, rows: NDArray[Any], n_outputs: int, *, head: str
) -> FloatArray:
    """Return the outputs of all heads together, one row per bag.

    `rows` has, for each head, its key and then one value per output. The head
    ``logsumexp`` reads the value only: its output is the logarithm of the mean
    exponential of the readouts.
    """
    heads = _forward(bags, bags.products(rows), n_outputs, head)
    return np.asarray(sum(part for _, _, part in heads))


def _forward(
    bags: Bags, products: FloatArray, n_outputs: int, head: str
) -> list[tuple[FloatArray, NDArray[Any], NDArray[Any]]]:
    """Return readouts and weights of the tokens, and outputs of the bags, per head."""
    heads = []
    for base in range(0, products.shape[1], 1 + n_outputs):
        readouts = products[:, base + 1 : base + 1 + n_outputs]
        if head == "logsumexp":
            weights = attention_weights(bags, readouts[:, 0], head=head)
            part = log_mean_exp(bags, readouts[:, 0])[:, None]
        else:
            weights = attention_weights(bags, products[:, base], head=head)
            part = bags.sums(weights[:, None] * readouts)
        heads.append((readouts, weights, part))
    return heads


def deciding_tokens(
    bags: Bags, scores: NDArray[Any], *, head: str
) -> NDArray[np.int64]:
    """Return the index, within each bag, of the token with the largest weight.

    For ``erf``, largest in absolute value. The index is read from the scores, because
    distinct large scores share the weight 1 in floating point. Ties go to the first
    token.
    """
    size = np.abs(scores) if head == "erf" else scores
    is_peak = size == bags.spread(bags.largest(size))
    rows = np.where(is_peak, np.arange(len(size)), len(size))
    return np.minimum.reduceat(rows, bags.starts) - bags.starts


def head_loss(
    bags: Bags,
    targets: FloatArray,
    shares: FloatArray,
    rows: FloatArray,
    intercepts: FloatArray,
    *,
    head: str,
    kind: AbstractLoss,
) -> tuple[float, FloatArray, FloatArray]:
    r"""Return the loss of the heads together, and its gradients by rows and intercepts.

    Parameters
    ----------
    bags, targets
        Data.
    shares
        Weight of each bag in the mean of the losses.
    rows, intercepts
        For each head its key, then its values; added constants.
    head, kind
        Weights of the tokens, and loss of the outputs.
    """
    products, n_outputs = bags.products(rows), len(intercepts)
    heads = _forward(bags, products, n_outputs, head)
    outputs = sum(part for _, _, part in heads) + intercepts
    loss = float(shares @ kind.per_bag(outputs, targets))
    # Backward: from the outputs to scores and readouts, then to keys and values.
    slopes = -shares[:, None] * kind.residuals(outputs, targets)
    spread, pulls = bags.spread(slopes), np.zeros(products.shape)
    for index, (readouts, weights, part) in enumerate(heads):
        base = index * (1 + n_outputs)
        pulls[:, base + 1 : base + 1 + n_outputs] = weights[:, None] * spread
        if head == "logsumexp":
            continue
        pull = (spread * readouts).sum(axis=1)
        if head == "erf":
            pull *= 2 / np.sqrt(np.pi) * np.exp(-(products[:, base] ** 2))
        elif head == "sigmoid":
            pull *= weights * (1 - weights)
        else:
            pull -= bags.spread((slopes * part).sum(axis=1))
            pull *= weights
        pulls[:, base] = pull
    dtype = bags.tokens.dtype
    by_rows = (bags.tokens.T @ pulls.astype(dtype, copy=False)).T
    return loss, np.asarray(by_rows, dtype=np.float64), slopes.sum(axis=0)


# --- Penalised loss ------------------------------------------------------------------


class PenalisedLoss:
    r"""Penalised loss as a function of one flat vector of coordinates.

    .. math::

        \text{mean loss} + \alpha \sum_{u \in \{k, v_1, \dots\}}
        \Bigl( \tfrac{1 - r}{2} \lVert u \rVert^2 + r \lVert D u \rVert_1 \Bigr)
        + \tfrac{(1 - r) c}{2} \bigl( \lVert k \rVert^2 - (k \cdot t)^2 \bigr)

    with :math:`D` the pooled scale of the features, norms and products in the metric,
    :math:`r` the `l1_ratio`, :math:`c` the `coherence` and :math:`t` the unit vector
    `attended` of each key, without which the last term is left out. The L1 norm is
    added by :func:`minimise_sparse`. For ``head="radial"`` the last coordinate is that
    of the radius: values do not read it, and the last term does not include it.
    """

    def __init__(
        self,
        data: LocationData,
        settings: HeadSettings,
        *,
        n_heads: int = 1,
        metric: FloatArray | None = None,
        attended: FloatArray | None = None,
    ) -> None:
        self.data, self.settings, self.metric = data, settings, metric
        self.attended = attended
        per_head = 1 + data.n_outputs
        self.shape = (n_heads * per_head, data.n_features)
        self.keys = np.arange(0, self.shape[0], per_head)
        self.values = np.flatnonzero(np.arange(self.shape[0]) % per_head)

    def split(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return keys and values as rows, and the intercepts."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size:]

    def __call__(self, flat: FloatArray) -> tuple[float, FloatArray]:
        """Return value and gradient, in one pass over the data."""
        settings, value = self.settings, 0.0
        rows, intercepts = self.split(flat)
        by_rows, by_intercepts = np.zeros(rows.shape), np.zeros(intercepts.shape)
        for batch in self.data.read():
            shares = batch.weights / self.data.weight
            part, part_rows, part_intercepts = head_loss(
                batch.bags,
                batch.targets,
                shares,
                rows,
                intercepts,
                head=settings.head,
                kind=settings.kind,
            )
            value += part
            by_rows += part_rows
            by_intercepts += part_intercepts
        measured = rows if self.metric is None else rows @ self.metric
        ridge = settings.alpha * (1 - settings.l1_ratio)
        value += 0.5 * ridge * float((measured * rows).sum())
        by_rows += ridge * measured
        if self.attended is not None:
            coherence = settings.coherence * (1 - settings.l1_ratio)
            for key, mean in zip(self.keys, self.attended, strict=True):
                off = measured[key] - (rows[key] @ mean) * mean
                if settings.head == "radial":
                    off[-1] = 0.0
                value += 0.5 * coherence * float(rows[key] @ off)
                by_rows[key] += coherence * off
        if settings.head == "radial":
            by_rows[self.values, -1] = 0.0
        if settings.head == "logsumexp":
            by_rows[self.keys] = rows[self.keys]  # not read: they stay zero
        if not settings.has_intercept:
            by_intercepts[:] = 0.0
        return value, np.concatenate([by_rows.ravel(), by_intercepts])


def minimise(
    objective: PenalisedLoss, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS."""
    options = _options(max_iter, tol)
    return minimize(objective, flat, jac=True, method="L-BFGS-B", options=options)


def minimise_sparse(
    objective: PenalisedLoss, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS-B on positive and negative parts, so that zeros are exact."""
    size = objective.shape[0] * objective.shape[1]
    lasso = objective.settings.alpha * objective.settings.l1_ratio

    def from_parts(parts: FloatArray) -> FloatArray:
        return np.concatenate(
            [parts[:size] - parts[size : 2 * size], parts[2 * size :]]
        )

    def value_and_gradient(parts: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(from_parts(parts))
        value += lasso * float(parts[: 2 * size].sum())
        by = gradient[:size]
        return value, np.concatenate([by + lasso, lasso - by, gradient[size:]])

    signed = [np.maximum(flat[:size], 0), np.maximum(-flat[:size], 0), flat[size:]]
    result = minimize(
        value_and_gradient,
        np.concatenate(signed),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (2 * size) + [(None, None)] * (len(flat) - size),
        options=_options(max_iter, tol),
    )
    result.x = from_parts(result.x)
    return result


def _options(max_iter: int, tol: float) -> dict[str, float]:
    return {
        "maxiter": max_iter,
        "maxfun": 4 * max_iter + 20,
        "maxcor": _MEMORY,
        "gtol": tol,
        "ftol": tol * 1e-3,
    }
