"""Starts of declared models: what is not given follows from the rest."""

import numpy as np
import pytest

from eigenheads.models import Model, Token, signs, simulate
from eigenheads.models._start import check_start, overlap_matrices


def pair_loss(X, w, u, g, p):
    return (X[0] @ w.k - X[0] @ u.key) ** 2 + (X[0] @ w.q) ** 2


def pair_model(kind="sphere"):
    weights = {"q": kind, "k": kind}
    return Model(pair_loss, weights=weights, planted=("key",), tokens=Token())


def overlaps(model, start):
    """Return the overlaps of a start, from its rows in the frame."""
    (row,) = check_start(model, start, 1)
    return row[:, 0], row @ row.T


def test_weights_overlap_as_their_planted_parts_do():
    """Two weights along the key have the product of their overlaps, not 0."""
    planted, gram = overlaps(pair_model(), {"q.key": 0.9, "k.key": 0.9})
    assert planted == pytest.approx([0.9, 0.9])
    assert gram == pytest.approx(np.array([[1.0, 0.81], [0.81, 1.0]]))
    # What is given stays.
    _, gram = overlaps(pair_model(), {"q.key": 0.9, "k.key": 0.9, "q.k": 0.7})
    assert gram[0, 1] == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"k.key": 1.2}, "Squared overlaps of k add up to 1.44, more than k.k = 1."),
        (
            {"q.key": 0.9, "k.key": 0.9, "q.k": 0.0},
            "The others allow q.k from 0.62 to 1.",
        ),
    ],
)
def test_the_impossible_pair_is_named(start, sentence):
    with pytest.raises(ValueError, match="overlaps that vectors can have") as error:
        check_start(pair_model(), start, 1)
    assert sentence in " ".join(str(error.value).split())


def test_matrices_of_a_start():
    values = {"q.key": 0.1, "k.key": 0.2, "q.k": 0.3}
    arrays = {name: np.array([value]) for name, value in values.items()}
    planted, gram = overlap_matrices(pair_model(), arrays)
    assert planted.tolist() == [[[0.1], [0.2]]]
    assert gram.tolist() == [[[1.0, 0.3], [0.3, 1.0]]]


def test_defaults_are_one_run_and_about_a_hundred_records():
    options = {"d": 50, "step_size": 0.01}
    paths = simulate(pair_model(), n_steps=1000, **options)
    assert paths["k.key"].shape == (1, 101)
    assert paths.steps[-1] == 1000
    same = simulate(
        pair_model(), n_steps=1000, n_runs=1, record_every=10, seed=0, **options
    )
    assert np.array_equal(paths["k.key"], same["k.key"])
    assert simulate(pair_model(), n_steps=7, **options)["k.key"].shape == (1, 8)
    assert simulate(pair_model(), n_steps=1009, **options).steps[-1] == 1001


def test_laws_that_were_not_called_are_refused():
    with pytest.raises(ValueError, match=r"Call it: signs\("):
        Token(mean={"key": signs})
    with pytest.raises(ValueError, match=r"Call it, such as signs\(\)"):
        Model(
            pair_loss,
            weights={"q": "free", "k": "free"},
            planted=("key",),
            tokens=Token(),
            latents={"sign": signs},
        )
