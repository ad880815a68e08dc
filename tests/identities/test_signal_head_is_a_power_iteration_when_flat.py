r"""As :math:`\beta \to 0` the head's gradient is :math:`2 \beta^2 \hat C^2 q`.

:math:`o = \bar x + \beta \hat C q + O(\beta^2)` and the gradient is
:math:`2 \beta \hat C_p\, o`: for centred tokens a flat head is a power iteration with
the squared covariance, so it is PCA.
"""

import numpy as np
import pytest

from eigenheads.functional import signal_output_gradient


@pytest.fixture
def setting(rng):
    tokens, query = rng.standard_normal((40, 6)), rng.standard_normal(6)
    tokens[:, 0] *= 2
    return tokens - tokens.mean(axis=0), query / np.linalg.norm(query)


def relative_gap(tokens, query, beta):
    covariance = tokens.T @ tokens / len(tokens)
    limit = covariance @ covariance @ query
    gradient = signal_output_gradient(tokens, query, inverse_temperature=beta)
    return np.linalg.norm(gradient / (2 * beta**2) - limit) / np.linalg.norm(limit)


def test_gap_falls_like_the_sharpness(setting):
    gaps = [relative_gap(*setting, beta) for beta in (1e-3, 1e-4)]
    assert gaps[0] < 0.1
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.1)


def test_gap_falls_like_its_square_for_symmetric_tokens(setting):
    tokens, query = setting
    both = np.concatenate([tokens, -tokens])
    gaps = [relative_gap(both, query, beta) for beta in (1e-2, 1e-3)]
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.1)


def test_centring_is_needed(setting):
    tokens, query = setting
    assert relative_gap(tokens + 1.0, query, 1e-4) > 1


def test_iteration_ends_at_the_top_eigenvector(setting):
    tokens, query = setting
    for _ in range(200):
        query = signal_output_gradient(tokens, query, inverse_temperature=1e-6)
        query /= np.linalg.norm(query)
    top = np.linalg.eigh(tokens.T @ tokens)[1][:, -1]
    assert abs(query @ top) == pytest.approx(1, abs=1e-6)
