"""Declared models of the page's systems, with its order of the overlaps."""

import math

from eigenheads.models import Model, Token, gaussian, softmax

N_TOKENS = 5


def softmax_location(X, w, u, g, p):
    output = softmax(p.scale * (X @ w.k)) @ (X @ w.v)
    return (output - X[0] @ u.value - p.noise * g[0]) ** 2


def two_heads(X, w, u, g, p):
    total = softmax(p.scale * (X @ w.k)) + softmax(p.scale * (X @ w.v))
    output = sum(total[i] * g[i] for i in range(N_TOKENS))
    return (output - g[0] - g[1] - p.noise * g[N_TOKENS]) ** 2


def declared(loss):
    """Return the model whose overlaps have the order of the page."""
    if loss is two_heads:
        first = [Token(mean={"key": 4.0}), Token(mean={"value": 4.0})]
        tokens, normals = [*first, Token(N_TOKENS - 2)], N_TOKENS + 1
    else:
        first = Token(mean={"key": lambda d: math.sqrt(d / 2)}, scale=math.sqrt(0.5))
        tokens, normals = [first, Token(N_TOKENS - 1)], 1
    return Model(
        loss,
        weights={"k": "sphere", "v": "sphere"},
        planted=("key", "value"),
        tokens=tokens,
        normals=normals,
    )


ORDER = ("k.key", "v.value", "v.key", "k.value", "k.v")


def pca_head(X, w, u, g, p):
    """Squared error of the query's reconstruction."""
    fields = X @ w.mu
    error = X[0] - softmax(fields[0] * fields) @ X
    return error @ error


def declared_pca(leading, bulk, n_tokens):
    """Return the head on tokens with two leading eigenvalues; the others are `bulk`."""
    extra = [gaussian(math.sqrt(value - bulk)) for value in leading]
    return Model(
        pca_head,
        weights={"mu": "free"},
        planted=("u1", "u2"),
        tokens=Token(
            n_tokens,
            mean=dict(zip(("u1", "u2"), extra, strict=True)),
            scale=math.sqrt(bulk),
        ),
    )
