"""Models that the benchmark of declared models trains.

A module of its own, so that their first use in a new process imports no more than a
script that declares a model.
"""

import math

import numpy as np
from scipy.special import erf

from eigenheads.models import Model, Token, mixture, softmax

# Share of the positional part in the target of `transition`.
SHARE = 0.5


def location(X, w, u, g, p):
    T = np.sum(erf(p.inverse_temperature * (X @ w.k)) * (X @ w.v))
    return (T - X[0] @ u.value - p.noise * g[0]) ** 2


def transition(X, w, u, g, p):
    """Attention with a positional and a semantic solution (Arnaboldi et al., 2025)."""
    z, y = X @ w.student, X @ u.teacher
    A, Y = softmax(z[:, None] * z), softmax(y[:, None] * y)
    P = 0.5 + p.contrast * np.array([[1.0, -1.0], [-1.0, 1.0]])
    return np.sqrt(np.sum((A - (1.0 - p.share) * Y - p.share * P) ** 2))


def transition_model() -> Model:
    """Return the model of the authors' positional-semantic-transition-d1000.yaml."""
    return Model(
        transition,
        weights={"student": "sphere"},
        planted=("teacher", "position"),
        tokens=[Token(mean={"position": 1.0}), Token(mean={"position": -1.0})],
        parameters={"contrast": 0.5 * math.tanh(1.0), "share": SHARE},
    )


def location_model(n_tokens: int) -> Model:
    return Model(
        location,
        weights={"k": "sphere", "v": "sphere"},
        planted=("key", "value"),
        tokens=[
            Token(mean={"key": lambda d: math.sqrt(d / 2)}, scale=math.sqrt(0.5)),
            Token(n_tokens - 1),
        ],
        normals=1,
        parameters={"inverse_temperature": 1.0, "noise": 0.1},
    )


def clustering(X, w, u, g, p):
    a, b = X @ w.m0, X @ w.m1
    e = X[0] - p.inverse_temperature * ((a[0] * a + b[0] * b) @ X)
    return e @ e


def clustering_model(n_tokens: int) -> Model:
    """Return a model whose loss takes products of token combinations."""
    return Model(
        clustering,
        weights={"m0": "sphere", "m1": "sphere"},
        planted=("c0", "c1"),
        tokens=Token(n_tokens, mean=mixture("c0", "c1"), scale=0.9),
        parameters={"inverse_temperature": 0.08},
    )


def signal(X, w, u, g, p):
    o = softmax(p.inverse_temperature * (X @ w.q)) @ X
    return -(o @ o)


def signal_model(n_tokens: int) -> Model:
    return Model(
        signal,
        weights={"q": "sphere"},
        planted=("signal",),
        tokens=[Token(mean={"signal": 1.0}), Token(n_tokens - 1)],
        parameters={"inverse_temperature": 1.0},
    )
