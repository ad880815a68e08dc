"""The certificate of a head: bounds hold, an attack reaches what it says it reaches."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.theory import head_certificate


def clipped(x, radius):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return x * np.minimum(1.0, radius / norm)


def head(q, k, v, found):
    """Return a head with the clipping of a certificate, by the definition."""
    k = clipped(k, found.key_norm)
    v = found.value_center + clipped(v - found.value_center, found.value_radius)
    scores = q @ k.T * q.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def draw(rng, n=24, d=6):
    return rng.standard_normal((3, n, d))


def test_outputs_are_those_of_the_head_and_nothing_is_clipped_by_default(rng):
    q, k, v = draw(rng)
    found = head_certificate(q, k, v)
    assert_allclose(found.outputs, head(q, k, v, found), atol=1e-12)
    weights = np.exp(q @ k.T / np.sqrt(6))
    weights /= weights.sum(-1, keepdims=True)
    assert_allclose(found.outputs, weights @ v, atol=1e-12)


@pytest.mark.parametrize("m", [1, 3, 6])
@pytest.mark.parametrize("quantile", [0.5, 1.0])
def test_no_replacement_exceeds_the_bound_and_one_attains_what_is_said(
    rng, m, quantile
):
    for _ in range(20):
        q, k, v = draw(rng)
        norms = np.linalg.norm(k, axis=-1), np.linalg.norm(v, axis=-1)
        kappa, radius = (np.quantile(norm, quantile) for norm in norms)
        found = head_certificate(
            q, k, v, counts=[m], key_norm=kappa, value_radius=radius,
            value_center=np.zeros(6),
        )  # fmt: skip
        before = head(q, k, v, found)
        # The attack of the certificate on one row, done by hand.
        row = int(rng.integers(len(q)))
        scores = clipped(k, kappa) @ q[row]
        hit = np.argsort(-scores)[:m]
        kept = np.setdiff1d(np.arange(len(k)), hit)
        weights = np.exp(scores[kept] / np.sqrt(6))
        mean = weights @ clipped(v, radius)[kept] / weights.sum()
        away = (1 - found.replaced_mass[row, 0]) * mean - before[row]
        worse_k, worse_v = k.copy(), v.copy()
        worse_k[hit], worse_v[hit] = 1e6 * q[row], 1e6 * away
        moved = np.linalg.norm(head(q, worse_k, worse_v, found) - before, axis=-1)
        assert_allclose(moved[row], found.attained[row, 0], rtol=1e-9)
        assert (moved <= found.bounds[:, 0] * (1 + 1e-12)).all()
        # Other tokens, other contents.
        hit = rng.permutation(len(k))[:m]
        worse_k[hit], worse_v[hit] = 30 * rng.standard_normal((2, m, 6))
        worse = k.copy(), v.copy()
        worse[0][hit], worse[1][hit] = worse_k[hit], worse_v[hit]
        moved = np.linalg.norm(head(q, *worse, found) - before, axis=-1)
        assert (moved <= found.bounds[:, 0] * (1 + 1e-12)).all()
        assert (found.tightness <= 1 + 1e-12).all()


def test_breakdown_is_where_replaced_tokens_can_get_half_of_the_weight(rng):
    q, k, v = draw(rng)
    found = head_certificate(0.1 * q, k, v, counts=range(1, 25))
    inside = found.replaced_mass < 0.5
    assert_allclose(found.breakdown, inside.sum(-1))
    assert (np.diff(found.replaced_mass, axis=-1) >= 0).all()
    # A flat head of 24 tokens gives m of them the weight m / 24.
    flat = head_certificate(1e-9 * q, k, v, counts=[1])
    assert (flat.breakdown == 11).all()
    assert_allclose(flat.replaced_mass, 1 / 24, rtol=1e-6)
    # A sharp head breaks with one token.
    assert (head_certificate(50 * q, k, v, counts=[1]).breakdown == 0).all()


def test_masks_and_further_axes(rng):
    q, k, v = rng.standard_normal((3, 2, 4, 10, 6))
    seen = np.tri(10, dtype=bool)
    found = head_certificate(q, k, v, counts=[1, 2], visible=seen)
    assert found.bounds.shape == (2, 4, 10, 2)
    one = head_certificate(
        q[1, 2, 6:7], k[1, 2, :7], v[1, 2, :7], counts=[1, 2],
        key_norm=found.key_norm, value_radius=found.value_radius,
        value_center=found.value_center,
    )  # fmt: skip
    assert_allclose(found.bounds[1, 2, 6], one.bounds[0], rtol=1e-10)
    assert_allclose(found.attained[1, 2, 6], one.attained[0], rtol=1e-10)
    # The first token sees itself alone: whoever replaces it decides.
    assert_allclose(found.replaced_mass[..., 0, :], 1.0)
    assert "Breakdown number" in str(found)


def test_wrong_arguments_are_refused(rng):
    q, k, v = draw(rng)
    for match, change in {
        "keys": {"keys": k[:, :4]},
        "values": {"values": v[:5]},
        "1 to 24": {"counts": [25]},
        "at least one visible": {"visible": np.zeros((24, 24), dtype=bool)},
        "value_center": {"value_center": np.zeros(3)},
        "key_norm": {"key_norm": -1.0},
    }.items():
        given = {"queries": q, "keys": k, "values": v, **change}
        with pytest.raises((ValueError, TypeError), match=match):
            head_certificate(**given)
