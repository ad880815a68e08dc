"""The covariance probe: its numbers against plain matrices, nulls and bad input."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads._parallel import threads
from eigenheads._rng import stream
from eigenheads.probes import covariance_probe
from eigenheads.probes._covariance import (
    LayerForms,
    covariance_statistics,
    symmetric_form,
)
from eigenheads.probes._nulls import (
    NULL_TEXTS,
    PERMUTATIONS,
    ROTATIONS,
    frames,
    permutations,
)

D, WIDTH, HEADS = 10, 3, 2


@pytest.fixture
def layer(rng):
    tokens = rng.standard_normal((4, 12, D)) @ rng.standard_normal((D, D))
    w = rng.standard_normal((4, HEADS, WIDTH, D))
    return {
        "tokens": tokens,
        "w_query": w[0],
        "w_key": w[1],
        "w_value": w[2],
        "w_output": np.swapaxes(w[3], 1, 2),
    }


def plain(tokens, w_query, w_key, w_value, w_output, k=WIDTH, turn=None):
    """One head, from dense matrices; `turn` rotates the query-key and OV forms."""
    rows = tokens.reshape(-1, D)
    covariance = np.cov(rows.T)
    qk, ov = w_query.T @ w_key, w_output @ w_value
    s, t = (qk + qk.T) / 2, (ov + ov.T) / 2
    turned = s if turn is None else turn @ s @ turn.T
    other = t if turn is None else turn @ t @ turn.T

    def top(matrix, order):
        values, vectors = np.linalg.eigh(matrix)
        return vectors[:, np.argsort(-order(values))[:k]]

    def cosine(a, b):
        return (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)

    def overlap(a, b):
        return np.linalg.norm(a.T @ b) ** 2 / k

    def entropy(matrix):
        p = np.linalg.svd(matrix, compute_uv=False)
        p = p[p > 1e-12 * p[0]] / p.sum()
        return np.exp(-(p * np.log(p)).sum())

    levels = np.linalg.eigvalsh(covariance)
    leading = top(turned, np.asarray)
    return {
        "qk_covariance_cosine": cosine(turned, covariance),
        "qk_covariance_overlap": overlap(leading, top(covariance, np.asarray)),
        "qk_ov_cosine": cosine(turned, t),
        "qk_ov_overlap": overlap(leading, top(t, np.abs)),
        "ov_covariance_cosine": cosine(other, covariance),
        "qk_rank": entropy(qk),
        "ov_rank": entropy(ov),
        "token_rank": levels.sum() ** 2 / (levels**2).sum(),
    }


def of_head(layer, head):
    return {n: x if n == "tokens" else x[head] for n, x in layer.items()}


def test_observed_is_the_definition(layer):
    result = covariance_probe(**layer, n_permutations=0)
    for head in range(HEADS):
        for name, expected in plain(**of_head(layer, head)).items():
            found = result.statistics[name].observed[head]
            assert_allclose(found, expected, rtol=1e-9, err_msg=name)


def test_permuted_coordinates_are_permuted_forms(layer):
    result = covariance_probe(**layer, n_permutations=5, seed=4)
    orders = permutations(stream(4, PERMUTATIONS), 5, D)[1:]
    for head in range(HEADS):
        for draw in range(5):
            turn = np.eye(D)[orders[draw]]
            expected = plain(**of_head(layer, head), turn=turn)
            for name, x in expected.items():
                null = result.statistics[name].nulls.get("permuted_coordinates")
                if null is not None:
                    assert_allclose(null[head, draw], x, rtol=1e-8, err_msg=name)


def test_rotated_forms_have_a_uniform_frame_of_eigenvectors(layer):
    """Rebuild the rotated form from the drawn frame and measure it densely."""
    result = covariance_probe(**layer, n_permutations=5, seed=4)
    drawn = frames(stream(4, ROTATIONS), 5, D, 2 * WIDTH)
    covariance = np.cov(layer["tokens"].reshape(-1, D).T)
    form = symmetric_form(layer["w_query"], layer["w_key"])
    for head in range(HEADS):
        for draw in range(5):
            s = (drawn[draw] * form.eigenvalues[head]) @ drawn[draw].T
            cosine = (s * covariance).sum() / np.linalg.norm(s)
            cosine /= np.linalg.norm(covariance)
            null = result.statistics["qk_covariance_cosine"].nulls["rotated"]
            assert_allclose(null[head, draw], cosine, rtol=1e-9)


def test_one_head_alone_has_the_same_numbers(layer):
    whole = covariance_probe(**layer, n_permutations=19, seed=2)
    part = {n: x if n == "tokens" else x[1:] for n, x in layer.items()}
    with threads(1):
        alone = covariance_probe(**part, n_permutations=19, seed=2)
    for name, statistic in whole.statistics.items():
        other = alone.statistics[name]
        assert_allclose(statistic.observed[1:], other.observed, rtol=1e-12)
        for null, draws in statistic.nulls.items():
            assert_allclose(draws[1:], other.nulls[null], rtol=1e-10)


def test_padding_is_left_out(layer):
    mask = np.arange(12) < np.array([12, 5, 1, 0])[:, None]
    dirty = layer | {"tokens": np.where(mask[..., None], layer["tokens"], np.nan)}
    found = covariance_probe(**dirty, mask=mask, n_permutations=0)
    rows = layer["tokens"][mask]
    clean = covariance_probe(**(layer | {"tokens": rows[None]}), n_permutations=0)
    for name in found.statistics:
        a, b = (r.statistics[name].observed for r in (found, clean))
        assert_allclose(a, b, rtol=1e-12)


def test_values_and_outputs_are_optional(layer):
    few = {n: layer[n] for n in ("tokens", "w_query", "w_key")}
    result = covariance_probe(**few, n_permutations=19, untrained=[few])
    assert list(result.statistics) == [
        "qk_covariance_cosine",
        "qk_covariance_overlap",
        "qk_rank",
        "token_rank",
    ]
    assert result.statistics["qk_rank"].nulls["untrained"].shape == (HEADS, HEADS)


def test_every_null_has_a_line_of_its_own(layer):
    """Shifted coordinates are another null than permuted tokens: another family."""
    result = covariance_probe(**layer, n_permutations=19, untrained=[layer])
    nulls = {null for one in result.statistics.values() for null in one.nulls}
    assert nulls <= set(NULL_TEXTS)
    assert set(result.statistics["token_rank"].nulls) == {"shifted_tokens", "untrained"}


def test_the_tokens_of_an_untrained_model_are_one_draw(layer):
    """Its heads share them: as many equal draws would make a p-value too small."""
    result = covariance_probe(**layer, n_permutations=0, untrained=[layer, layer])
    drawn = {x: s.nulls["untrained"].shape[1] for x, s in result.statistics.items()}
    assert drawn.pop("token_rank") == 2
    assert set(drawn.values()) == {2 * HEADS}


def test_wide_heads_on_a_narrow_stream(rng):
    """2 x width above d_model: the frame is the whole space."""
    w = rng.standard_normal((2, 1, 5, 6))
    result = covariance_probe(
        rng.standard_normal((2, 20, 6)), *w, n_components=6, n_permutations=19
    )
    assert_allclose(result.statistics["qk_covariance_overlap"].observed, 1)


def test_rank_one_form_of_a_principal_direction(rng):
    """w = the top eigenvector: overlap 1, rank 1."""
    tokens = rng.standard_normal((3, 40, 5)) * np.array([3, 1, 1, 1, 1])
    _, vectors = np.linalg.eigh(np.cov(tokens.reshape(-1, 5).T))
    w = vectors[:, -1][None, None]
    layer = LayerForms.of(tokens.reshape(-1, 5), symmetric_form(w, w), None, 1)
    found = covariance_statistics(layer)
    assert_allclose(found["qk_covariance_overlap"], 1)
    assert_allclose(found["qk_rank"], 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tokens": np.zeros((4, D))}, "`tokens` must be of shape"),
        ({"w_query": np.zeros((2, 3, D + 1))}, "`w_query` must be of shape"),
        ({"w_key": np.zeros((2, 4, D))}, "`w_key` must be of shape"),
        ({"w_output": None}, "`w_output` must be given with its counterpart"),
        ({"w_output": np.zeros((2, 3, D))}, "`w_output` must be of shape"),
        ({"w_value": np.zeros((1, 3, D)), "w_output": np.zeros((1, D, 3))}, "2 heads"),
        ({"n_components": 7}, "`n_components` must be an integer from 1 to 6"),
        ({"mask": np.zeros((4, 12))}, "`mask` must be two real tokens or more"),
        ({"untrained": [{"tokens": 1}]}, "`untrained` must be"),
    ],
)
def test_says_what_is_wrong(layer, change, match):
    with pytest.raises(ValueError, match=match):
        covariance_probe(**(layer | change))
