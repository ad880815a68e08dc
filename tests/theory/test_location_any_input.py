"""Whatever the arguments: a finite result, or one sentence that names the function."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenheads import theory

junk = st.sampled_from([None, "x", math.nan, math.inf, [], [[0.1], [0.2, 0.3]], 1j, {}])


def mostly(good):
    """Draw nonsense once in a while."""
    return st.integers(0, 9).flatmap(lambda i: junk if i == 0 else good)


cosine = mostly(st.floats(-1.01, 1.01) | st.lists(st.floats(-1, 1), max_size=3))
any_float = mostly(st.floats(allow_nan=True, allow_infinity=True))
positive = mostly(st.floats(0, 1e60))
count = mostly(st.integers(-1, 10**15) | st.floats(0, 1e60))
law = {"d": count, "n_tokens": count, "gamma": positive}
sharp = {"inverse_temperature": positive}
noise = {"noise": positive | any_float}
orders = dict.fromkeys(["kappa", "nu", "theta", "eta", "rho"], cosine)

FUNCTIONS = {
    "location_risk": {**orders, **law, **sharp, **noise},
    "location_risk_gradient": {**orders, **law, **sharp, **noise},
    "location_oracle_risk": {**law, **sharp, **noise},
    "location_field": {"kappa": cosine, "nu": cosine, **law, **sharp},
    "location_fixed_points": {**law, **sharp},
    "location_null_risk": {"gamma": positive, **noise},
    "location_linear_risk": {"n_tokens": count, "gamma": positive, **noise},
    "location_descent": {
        "start": mostly(st.lists(st.floats(-0.6, 0.6), min_size=5, max_size=5)),
        **law,
        **sharp,
        "step_size": positive,
        "n_steps": mostly(st.integers(-1, 20)),
        "record_every": mostly(st.integers(-1, 20)),
    },
    "location_flow": {
        "start": mostly(st.lists(st.floats(-1, 1), min_size=2, max_size=2)),
        "d": mostly(st.integers(0, 10**6)),
        "n_tokens": count,
        "gamma": mostly(st.floats(0, 10)),
        "inverse_temperature": mostly(st.floats(0, 10)),
        "duration": mostly(st.floats(0, 10)),
        "n_records": mostly(st.integers(0, 5)),
    },
    "location_bayes_risk": {
        **law,
        **noise,
        "n_tokens": mostly(st.integers(-1, 20)),
        "n_samples": mostly(st.integers(-1, 20)),
        "rng": st.just(np.random.default_rng(0)) | junk,
    },
}


def numbers(result):
    if isinstance(result, theory.FixedPoint):
        return result.eigenvalues
    if isinstance(result, theory.BayesRisk):
        return result.estimate, result.standard_error
    if isinstance(result, tuple):
        return np.concatenate([np.ravel(numbers(part)) for part in result])
    if isinstance(result, np.ndarray):
        return result
    return np.concatenate([np.ravel(curve) for curve in result.values()])


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_result_or_a_sentence(name, data):
    arguments = data.draw(st.fixed_dictionaries(FUNCTIONS[name]))
    positional = ["kappa", "nu", "theta", "eta", "rho", "start"]
    first = [arguments.pop(key) for key in positional if key in arguments]
    try:
        result = getattr(theory, name)(*first, **arguments)
    except (TypeError, ValueError) as error:
        assert str(error).startswith(f"{name}: `")
        assert " must be " in str(error)
    else:
        assert np.isfinite(numbers(result)).all()


def test_oracle_speaks_as_the_risk():
    with pytest.raises(ValueError, match="location_oracle_risk: `d` must be from 2"):
        theory.location_oracle_risk(d=1, n_tokens=1, gamma=1, inverse_temperature=1)
