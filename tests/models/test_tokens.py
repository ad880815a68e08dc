"""Laws of tokens: source code and NumPy draw the same law, with the stated moments."""

import math

import numpy as np
import pytest
from scipy import stats

from eigenheads.models import (
    Token,
    choice,
    chosen_by,
    gaussian,
    mixture,
    multiple_of,
    one_of,
    signs,
)
from eigenheads.models import _kernels as kernels
from eigenheads.models._emit import Sizes
from eigenheads.models._tokens import LawSource, TokenLaw

FALSE_ALARM = 1e-4
D = 5

LAWS = {
    "fixed": [Token(2, mean={"a": 1.5, "b": math.sqrt}, scale=0.5), Token()],
    "signs": [Token(3, mean={"a": signs(2.0)})],
    "gaussian": [Token(2, mean={"b": gaussian(1.5)}, scale=choice(0.5, 2.0))],
    "choice": [
        Token(2, mean={"a": choice(0.0, 1.0, 3.0, probabilities=(0.2, 0.5, 0.3))})
    ],
    "latent": [Token(2, mean={"a": multiple_of("label", 2.0)}), Token()],
    "mixture": [Token(3, mean=mixture("a", "b", amplitude=2.0))],
    "one_of": [
        Token(2, mean=one_of("a", "b", amplitude=2.0, probabilities=(0.3, 0.7)))
    ],
    "tilted": [Token(), Token(3, scale=0.8, first=chosen_by("b", 2.0))],
}


def law_of(name):
    return TokenLaw(tuple(LAWS[name]), ("a", "b"), 1, {"label": signs()})


def generated(law, rng, n):
    """Return planted coordinates and latents, drawn by the source code in Python."""
    sizes = Sizes(law.n_tokens)
    source = LawSource(law, sizes)
    fixed, draw = (
        "\n".join([*sizes.lines(), *lines]) for lines in (source.fixed(), source.draw())
    )
    names = {
        "drawn_index": kernels.drawn_index.py_func,
        "tilted_index": kernels.tilted_index.py_func,
        "sizes": sizes.values,
        "law": source.numbers(D),
        "mean": np.zeros((2, law.n_tokens)),
        "scale": np.ones(law.n_tokens),
        "n_tokens": law.n_tokens,
        "n_axes": 3,
        "rng": rng,
    }
    exec(fixed, names)
    rows, code = [], compile(draw, "<draw>", "exec")
    for _ in range(n):
        names |= {"tokens": np.empty((3, law.n_tokens)), "latents": np.zeros(2)}
        exec(code, names)
        rows.append(np.concatenate([names["tokens"].ravel(), names["latents"]]))
    return np.array(rows)


def sampled(law, rng, n):
    rows = []
    for _ in range(n):
        tokens, latents = law.sample(rng, D)
        rows.append(np.concatenate([tokens[:, :3].T.ravel(), latents]))
    return np.array(rows)


def features(rows):
    """Coordinates and their products with the first: joint laws, too."""
    return np.hstack([rows, rows * rows[:, :1], rows**2])


@pytest.mark.parametrize("name", LAWS)
def test_source_and_numpy_draw_the_same_law(rng, name):
    law = law_of(name)
    ours, theirs = (
        features(generated(law, rng, 1500)),
        features(sampled(law, rng, 1500)),
    )
    p_values = [
        stats.ks_2samp(one, other, method="asymp").pvalue
        for one, other in zip(ours.T, theirs.T, strict=True)
    ]
    assert min(p_values) * len(p_values) > FALSE_ALARM


def test_moments_are_those_stated(rng):
    rows = sampled(law_of("signs"), rng, 4000)[:, :3]
    assert np.mean(rows**2) == pytest.approx(5.0, abs=0.4)  # amplitude² + 1
    law = law_of("one_of")
    tokens = np.array([law.sample(rng, D)[0] for _ in range(4000)])
    # Both tokens lie along one direction: E x₁ₐ x₂ₐ = 4 · 0.3.
    product = tokens[:, 0, 0] * tokens[:, 1, 0]
    assert product.mean() == pytest.approx(1.2, abs=5 * product.std() / 4000**0.5)


def test_tilted_token_has_the_tilted_mean(rng):
    # Two tokens with odds e^{sx} : e^{sy}: the first has mean E[(x - y) tanh(…)/2].
    law = TokenLaw((Token(2, first=chosen_by("a", 2.0)),), ("a",), 0, {})
    first = np.array([law.sample(rng, 3)[0][0, 0] for _ in range(6000)])
    difference = math.sqrt(2) * np.random.default_rng(1).standard_normal(200_000)
    expected = np.mean(difference * np.tanh(difference)) / 2
    assert first.mean() == pytest.approx(expected, abs=5 * first.std() / 6000**0.5)
