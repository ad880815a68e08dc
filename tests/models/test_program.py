"""A traced loss has the value and the gradient of the loss on real vectors.

The generated source is run as plain Python here: nothing is compiled.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import gammaln
from tests.models import declared_models as losses

from eigenheads.models import Model, Token, choice, signs, softmax
from eigenheads.models._emit import Sizes
from eigenheads.models._program import Program

D = 9


def fast_softmax(logits, out, scratch):
    out[:] = softmax(logits)


def value_and_gradient(program, X, W, U, latents, parameters):
    """Return loss and gradient by the generated code, on real vectors."""
    sizes = Sizes(program.n_tokens)
    lines = program.lines(sizes)
    r, p, n = len(W), len(U), len(X)
    names = {
        "math": math,
        "np": np,
        "fast_softmax": fast_softmax,
        "n_tokens": n,
        "sizes": sizes.values,
        "fields": W @ X.T,
        "tokens": U @ X.T,
        "latents": latents,
        "parameters": parameters,
        "constants": program.constants,
        "overlaps": np.hstack([W @ U.T, W @ W.T]),
        "work": [np.full(shape, np.nan) for shape in lines.shapes],
        "slopes": np.full((r, n), np.nan),
        "overlap_slopes": np.zeros((r, p + r)),
        "combinations": np.full((program.n_combinations, n), np.nan),
    }
    head = [*sizes.lines(), *lines.names]
    exec("\n".join([*head, *lines.combinations]), names)
    outputs = names["combinations"] @ X
    names |= {"meetings": outputs @ X.T, "products": outputs @ outputs.T}
    exec("\n".join([*head, *lines.gradient, f"value = {lines.value}"]), names)
    among = names["overlap_slopes"][:, p:]
    gradient = names["slopes"] @ X + names["overlap_slopes"][:, :p] @ U
    return names["value"], gradient + (among + among.T) @ W


CASES = {
    "location": (losses.location, "k v", "key value", 4, 0),
    "softmax_location": (losses.softmax_location, "k v", "key value", 5, 0),
    "two_heads": (losses.two_heads, "k1 k2 v", "key1 key2 value", 4, 0),
    "clustering": (losses.clustering, "m0 m1", "c0 c1", 5, 1),
    "pca": (losses.pca, "mu", "u1", 5, 1),
    "pca, long": (losses.pca, "mu", "u1", 40, 1),
    "signal, long": (losses.signal, "q", "u", 33, 1),
    "sparse_token": (losses.sparse_token, "q w", "xi", 4, 0),
    "deep": (losses.deep, "a b", "c e", 3, 0),
    "loop over tokens": (losses.token_loop, "k", "key", 4, 0),
    "positional": (losses.positional, "w", "", 2, 0),
    "patchwork": (losses.patchwork, "a b", "x", 5, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_traced_gradient_is_that_of_real_vectors(rng, name):
    loss, weights, planted, n_tokens, n_combinations = CASES[name]
    weights, planted = weights.split(), planted.split()
    program = Program(
        loss,
        n_tokens=n_tokens,
        weights=weights,
        planted=planted,
        normals=1,
        latents=("label", "length"),
    )
    assert program.n_combinations == n_combinations
    X = rng.standard_normal((n_tokens, D))
    W = 0.5 * rng.standard_normal((len(weights), D))
    U = np.linalg.qr(rng.standard_normal((D, max(1, len(planted)))))[0].T[
        : len(planted)
    ]
    latents = np.array([0.3, -1.0, 4.0])
    parameters = rng.uniform(0.5, 1.0, len(program.parameters))

    class Latents(SimpleNamespace):
        def __getitem__(self, index):
            return latents[index]

    def real(W):
        return loss(
            X,
            SimpleNamespace(**dict(zip(weights, W, strict=True))),
            SimpleNamespace(**dict(zip(planted, U, strict=True))),
            Latents(label=-1.0, length=4.0),
            SimpleNamespace(**dict(zip(program.parameters, parameters, strict=True))),
        )

    value, gradient = value_and_gradient(program, X, W, U, latents, parameters)
    assert value == pytest.approx(real(W), rel=1e-10)
    steps = 1e-5 * np.eye(W.size).reshape(-1, *W.shape)
    differences = [(real(W + step) - real(W - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient.ravel(), differences, rtol=1e-6, atol=1e-8)


def test_equal_subexpressions_are_computed_once():
    def loss(X, w, u, g, p):
        return np.sum(np.exp(X @ w.k)) + np.sum(np.exp(X @ w.k)) ** 2

    program = Program(loss, n_tokens=3, weights=("k",), planted=())
    assert "\n".join(program.lines(Sizes(3)).gradient).count("math.exp") == 1


def test_elementwise_operations_share_a_loop():
    program = Program(
        losses.location,
        n_tokens=7,
        weights=("k", "v"),
        planted=("a", "value"),
        normals=1,
    )
    source = "\n".join(program.lines(Sizes(7)).gradient)
    # One loop until the sum is known, one for the derivatives.
    assert source.count("for i in range(n_tokens)") == 2


def test_long_loops_are_refused_and_constants_may_be_nan():
    with pytest.raises(ValueError, match="a Python loop over 65 entries"):
        model_of(lambda X, w, u, g, p: sum(x @ w.k for x in X), tokens=Token(65))
    # NaN differs from itself, but not from call to call.
    model_of(lambda X, w, u, g, p: np.nan * (X[0] @ w.k))


def test_number_of_tokens_is_not_part_of_the_source():
    assert losses.location_model(5).source == losses.location_model(9).source

    def loss(X, w, u, g, p):
        a = X @ w.k
        return np.mean(a[1:] ** 2) + a[-1] * np.max(a[:-2])

    two = [Model(loss, weights={"k": "free"}, tokens=Token(n)) for n in (6, 9)]
    assert two[0].source == two[1].source
    assert list(two[0].sizes) != list(two[1].sizes)


def long_loss(X, w, u, g, p):
    total = X[0] @ w.k
    for index in range(10**6):
        total = total * 0.999 + float(index)
    return total


def model_of(loss, **options):
    setting = {
        "weights": {"k": "free"},
        "planted": ("key",),
        "tokens": Token(3),
    }
    return Model(loss, **(setting | options))


REFUSED = {
    "branch": (
        lambda X, w, u, g, p: 1.0 if (X @ w.k)[0] > 0 else (X @ w.k)[1],
        r"got a branch on a value .* Write np.where",
    ),
    "unknown function": (
        lambda X, w, u, g, p: np.sum(np.arccosh(X @ w.k)),
        r"got np.arccosh, which has no compiled form. Known: exp,",
    ),
    "unknown array function": (
        lambda X, w, u, g, p: np.sum(np.cumsum(X @ w.k)),
        r"got np.cumsum, which has no compiled form. Known: exp,",
    ),
    "math function": (
        lambda X, w, u, g, p: math.exp((X @ w.k)[0]),
        r"got a conversion to a plain number .* np.exp instead of math.exp",
    ),
    "token lengths": (
        lambda X, w, u, g, p: np.sum(np.linalg.norm(X, axis=1) * (X @ w.k)),
        r"X\[0\] @ X\[0\] for the length of a token",
    ),
    "entries": (
        lambda X, w, u, g, p: np.sum(X * X) + np.sum(X @ w.k),
        r"on the entries of vectors of R\^d",
    ),
    "second round": (
        lambda X, w, u, g, p: np.sum(X @ (softmax(X @ w.k) @ X)),
        r"got X @ \(a combination of tokens\)",
    ),
    "array": (lambda X, w, u, g, p: X @ w.k, r"got a loss of shape \(3,\)"),
    "vector": (lambda X, w, u, g, p: (X @ w.k) @ X, r"returns a vector"),
    "nothing": (lambda X, w, u, g, p: None, r"returns None"),
    "unused weight": (lambda X, w, u, g, p: 1.0, r"does not depend on w.k"),
    "unknown name": (
        lambda X, w, u, g, p: X[0] @ w.q,
        r"got w.q. Declared in `weights`: k",
    ),
    "undeclared normal": (
        lambda X, w, u, g, p: X[0] @ w.k - g[0],
        r"Declare normals=1",
    ),
    "shapes": (
        lambda X, w, u, g, p: np.sum((X @ w.k) * np.ones(4)),
        r"shapes \(3,\) and \(4,\)",
    ),
    "assignment": (
        lambda X, w, u, g, p: (X @ w.k).__setitem__(0, 1.0),
        r"got an assignment to entries",
    ),
    "entry of a weight": (lambda X, w, u, g, p: w.k[0], r"got an index on the entries"),
    "all pairs": (lambda X, w, u, g, p: np.sum(X @ X.T), r"all pairs of tokens"),
    "missing token": (lambda X, w, u, g, p: X[7] @ w.k, r"got X\[7\] of 3 tokens"),
    "undeclared latent": (
        lambda X, w, u, g, p: g.label * (X[0] @ w.k),
        r"got g.label. Declared in `latents`: none.",
    ),
    "function of SciPy": (
        lambda X, w, u, g, p: gammaln((X[0] @ w.k) ** 2),
        r"got gammaln, which has no compiled form",
    ),
    "arithmetic on weights": (
        lambda X, w, u, g, p: X[0] @ (w.k - u.key),
        r"got arithmetic on w or u. Take inner products first",
    ),
    "token minus weight": (
        lambda X, w, u, g, p: np.linalg.norm(X[0] - w.k),
        r"Multiply out: \(x - w\) @ \(x - w\)",
    ),
    "random number": (
        lambda X, w, u, g, p: X[0] @ w.k + np.random.default_rng().normal(),
        r"differs from call to call. Declare random numbers: normals=1",
    ),
    "random array": (
        lambda X, w, u, g, p: (X @ w.k) @ np.random.default_rng().normal(size=3),
        r"differs from call to call",
    ),
    "mistake": (lambda X, w, u, g, p: (X @ w.k)[7], r"IndexError: index 7"),
    "a million operations": (
        long_loss,
        r"got more than 5000 operations\. Use array operations instead of Python loops",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_refused_in_a_sentence(name):
    loss, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence) as caught:
        model_of(loss)
    assert str(caught.value).startswith("Model: `loss` must be a function that can be ")
    assert "\n" not in str(caught.value)


def test_the_last_operations_are_counted_too(monkeypatch):
    model = losses.location_model()
    count = len(model._program.graph.nodes)
    monkeypatch.setattr("eigenheads.models._graph.MAX_OPERATIONS", count)
    with pytest.raises(ValueError, match=r"^Model: `loss` must be .* operations\. Use"):
        _ = model.source


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weights": {}}, "`weights` must be a mapping of names"),
        ({"weights": {"k": "ball"}}, "`weights` must be one of 'sphere', 'free'"),
        ({"planted": ("k",)}, "`planted` must be names that differ"),
        ({"planted": "key"}, "`planted` must be a sequence of names"),
        ({"tokens": []}, "`tokens` must be one or more Token"),
        ({"tokens": Token(mean={"kay": 1.0})}, "Did you mean 'key'"),
        ({"latents": {"label": 1.0}}, "`latents` must be made of signs"),
        ({"parameters": {"beta": 1.0}}, "`parameters` must be one of"),
        ({"draw": lambda rng: None}, "Decorate it with numba.njit"),
        ({"normals": -1}, "`normals` must be an integer from 0"),
    ],
)
def test_bad_declarations_get_a_sentence(options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        model_of(lambda X, w, u, g, p: p.alpha * (X[0] @ w.k) ** 2, **options)


def test_bad_token_laws_get_a_sentence():
    with pytest.raises(ValueError, match="`n` must be an integer >= 0"):
        Token(-1)
    with pytest.raises(ValueError, match="`tokens` must be at least one token"):
        model_of(lambda X, w, u, g, p: 0.0, tokens=[Token(0), Token(0)])
    with pytest.raises(ValueError, match="made of finite numbers"):
        Token(scale=math.nan)
    with pytest.raises(ValueError, match="numbers with sum 1"):
        choice(1.0, 2.0, probabilities=(0.5, 0.4))
    with pytest.raises(TypeError, match="`mean` must be a mapping"):
        Token(mean=signs())


def test_names_of_overlaps_and_parameters():
    model = losses.two_heads_model()
    assert model.parameters == ("noise",)
    assert "k1.k1" in model.overlaps  # a free weight has a length
    assert "v.v" not in model.overlaps
    assert "two_heads" in repr(model)
