import numpy as np
import pytest
from scipy import stats

from eigenheads._rng import gaussian_length
from eigenheads.models._vectors import chi

FALSE_ALARM = 1e-4


@pytest.mark.parametrize("draw", [chi, gaussian_length])
@pytest.mark.parametrize("dof", [0.5, 1.0, 2.0, 7.0, 1e3, 1e9, 1e12])
def test_squared_length_has_a_gamma_law(rng, dof, draw):
    squares = np.array([draw(rng, dof) ** 2 for _ in range(4000)])
    # At dof = 1e12 the spread is 1.4e6: one part in 1e6 of the mean, 1e-10 rounding.
    assert stats.kstest(squares, stats.chi2(dof).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("draw", [chi, gaussian_length])
@pytest.mark.parametrize("dof", [0.0, -1.0, -7.0])
def test_length_without_degrees_of_freedom_is_zero_and_draws_nothing(dof, draw):
    rng, untouched = np.random.default_rng(1), np.random.default_rng(1)
    assert draw(rng, dof) == 0.0
    assert rng.random() == untouched.random()


@pytest.mark.parametrize("dof", [np.nan, np.inf, -np.inf])
def test_degrees_of_freedom_are_finite(rng, dof):
    with pytest.raises(ValueError, match="chi: `dof` must be a finite number; got nan"):
        chi(rng, dof)
