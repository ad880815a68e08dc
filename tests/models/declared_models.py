"""Models that several tests use; small, because each shape compiles once."""

import math

import numpy as np
from scipy.special import erf, expit

from eigenheads.models import Model, Token, mixture, one_of, softmax


def location(X, w, u, g, p):
    """Single-location regression with an erf head."""
    T = np.sum(erf(p.inverse_temperature * (X @ w.k)) * (X @ w.v))
    return (T - X[0] @ u.value - p.noise * g[0]) ** 2


def softmax_location(X, w, u, g, p):
    return (softmax(X @ w.k) @ (X @ w.v) - X[0] @ u.value - p.noise * g[0]) ** 2


def two_heads(X, w, u, g, p):
    v = X @ w.v
    T = (softmax(X @ w.k1) @ v + softmax(X @ w.k2) @ v) / 2
    return (T - X[0] @ u.value - p.noise * g[0]) ** 2


def clustering(X, w, u, g, p):
    a, b = X @ w.m0, X @ w.m1
    e = X[0] - p.inverse_temperature * ((a[0] * a + b[0] * b) @ X)
    return e @ e


def pca(X, w, u, g, p):
    s = X @ w.mu
    e = X[0] - softmax(p.inverse_temperature * s[0] * s) @ X
    return e @ e


def signal(X, w, u, g, p):
    o = softmax(p.inverse_temperature * (X @ w.q)) @ X
    return -(o @ o)


def sparse_token(X, w, u, g, p):
    """Logistic loss of a label, with a bias."""
    score = softmax(p.beta * (X @ w.q)) @ (X @ w.w) + p.bias
    return np.log1p(np.exp(-g.label * score))


def deep(X, w, u, g, p):
    """Two layers with tied rank-one weights and a skip connection."""

    def net(first, second):
        z = X @ first
        Y = softmax(z[:, None] * z[None, :]) @ X + X
        z = Y @ second
        return softmax(np.outer(z, z), axis=-1)

    return np.sum((net(w.a, w.b) - net(u.c, u.e)) ** 2)


def token_loop(X, w, u, g, p):
    """A Python loop over the tokens."""
    return sum(p.scale**i * (x @ w.k - x @ u.key) ** 2 for i, x in enumerate(X))


def positional(X, w, u, g, p):
    """Attention between two tokens with a constant positional target."""
    z = X @ w.w + np.array([0.5, -0.5])
    A = softmax(z[:, None] * z[None, :])
    return np.sqrt(np.sum((A - np.array([[0.9, 0.1], [0.1, 0.9]])) ** 2) + 1e-12)


def patchwork(X, w, u, g, p):
    """A little of everything: slices, masks, penalties, minima, powers."""
    a, b = X @ w.a, X[1:] @ w.b
    n = len(a)
    mask = np.arange(n) < g.length
    weights = softmax(np.where(mask, a, -np.inf))
    o = weights[1:] @ X[1:] - 0.5 * np.mean(X, axis=0)
    tail = np.maximum(b, 0.0) @ np.tanh(a[1:]) + np.min(b**2) + np.max(np.abs(a))
    smooth = np.logaddexp(0.0, a[-1]) + expit(a[0]) * np.sqrt(1.0 + b[0] ** 2)
    other = np.clip(np.sin(a[0]), -0.5, 0.5) + np.cos(b[1]) + np.arctan(a[1]) ** 3
    penalty = (w.a @ w.b) ** 2 + w.b @ w.b + (w.a @ u.x) * 0.3
    return o @ o + tail + smooth + other + penalty + np.sum((1.0 + a**2) ** 1.5)


def sqrt_half(d):
    return math.sqrt(d / 2)


def location_model(n_tokens=3, *, gamma=0.5, **parameters):
    return Model(
        location,
        weights={"k": "sphere", "v": "sphere"},
        planted=("key", "value"),
        tokens=[Token(mean={"key": sqrt_half}, scale=gamma), Token(n_tokens - 1)],
        normals=1,
        parameters={"inverse_temperature": 0.6, "noise": 0.2} | parameters,
    )


def two_heads_model():
    return Model(
        two_heads,
        weights={"k1": "free", "k2": "free", "v": "sphere"},
        planted=("key1", "key2", "value"),
        tokens=[Token(mean=one_of("key1", "key2", amplitude=2.0)), Token(2)],
        normals=1,
        parameters={"noise": 0.1},
    )


def clustering_model():
    return Model(
        clustering,
        weights={"m0": "sphere", "m1": "sphere"},
        planted=("c0", "c1"),
        tokens=Token(4, mean=mixture("c0", "c1"), scale=0.9),
        parameters={"inverse_temperature": 0.08},
    )
