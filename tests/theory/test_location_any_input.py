"""Whatever the arguments: a finite result, or one sentence that names its owner."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenheads import theory
from eigenheads.datasets import SingleLocation

junk = st.sampled_from([None, "x", math.nan, math.inf, [], [[0.1], [0.2, 0.3]], 1j, {}])


def mostly(good):
    """Draw nonsense once in a while."""
    return st.integers(0, 9).flatmap(lambda i: junk if i == 0 else good)


cosine = mostly(st.floats(-1.01, 1.01) | st.lists(st.floats(-1, 1), max_size=3))
any_float = mostly(st.floats(allow_nan=True, allow_infinity=True))
positive = mostly(st.floats(0, 1e60))
count = mostly(st.integers(-1, 10**15) | st.floats(0, 1e60))
LAW = {"d": count, "n_tokens": count, "gamma": positive, "noise": positive | any_float}
SMALL_LAW = LAW | {"n_tokens": mostly(st.integers(-1, 20))}
orders = dict.fromkeys(["kappa", "nu", "theta", "eta", "rho"], cosine)


def landscape(law, inverse_temperature):
    return theory.LocationLandscape(law, inverse_temperature=inverse_temperature)


# Function of a law and arguments; law; arguments.
CALLS = {
    "risk": (
        lambda law, scale, **order: landscape(law, scale).risk(**order),
        LAW,
        {"scale": positive, **orders},
    ),
    "gradient": (
        lambda law, scale, **order: landscape(law, scale).gradient(**order),
        LAW,
        {"scale": positive, **orders},
    ),
    "oracle": (
        lambda law, scale: landscape(law, scale).oracle_risk(),
        LAW,
        {"scale": positive},
    ),
    "velocity": (
        lambda law, scale, **at: landscape(law, scale).velocity(**at),
        LAW,
        {"scale": positive, "kappa": cosine, "nu": cosine},
    ),
    "fixed points": (
        lambda law, scale: landscape(law, scale).fixed_points(),
        LAW,
        {"scale": positive},
    ),
    "flow": (
        lambda law, scale, **options: landscape(law, scale).flow(**options),
        LAW | {"d": mostly(st.integers(0, 10**6)), "gamma": mostly(st.floats(0, 10))},
        {
            "scale": mostly(st.floats(0, 10)),
            "start": mostly(st.lists(st.floats(-1, 1), min_size=2, max_size=2)),
            "duration": mostly(st.floats(0, 10)),
            "n_records": mostly(st.integers(0, 5)),
        },
    ),
    "baselines": (theory.location_baselines, LAW, {}),
    "descent": (
        theory.location_descent,
        LAW,
        {
            "start": mostly(st.lists(st.floats(-0.6, 0.6), min_size=5, max_size=5)),
            "inverse_temperature": positive,
            "step_size": positive,
            "n_steps": mostly(st.integers(-1, 20)),
            "record_every": mostly(st.integers(-1, 20)),
        },
    ),
    "Bayes risk": (
        theory.location_bayes_risk,
        SMALL_LAW,
        {
            "n_samples": mostly(st.integers(-1, 20)),
            "rng": st.just(np.random.default_rng(0)) | junk,
        },
    ),
}
OWNERS = ("SingleLocation", "LocationLandscape", "location_")


def numbers(result):
    if isinstance(result, theory.LocationFixedPoint):
        return result.eigenvalues
    if isinstance(result, theory.BayesRisk):
        return result.estimate, result.standard_error
    if isinstance(result, tuple):
        return np.concatenate([np.ravel(numbers(part)) for part in result])
    if isinstance(result, np.ndarray | float):
        return result
    return np.concatenate([np.ravel(curve) for curve in result.values()])


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_result_or_a_sentence(name, data):
    call, law, options = CALLS[name]
    fields, arguments = data.draw(
        st.tuples(st.fixed_dictionaries(law), st.fixed_dictionaries(options))
    )
    try:
        result = call(SingleLocation(**fields), **arguments)
    except (TypeError, ValueError) as error:
        assert str(error).startswith(OWNERS)
        assert " must be " in str(error)
    else:
        assert np.isfinite(numbers(result)).all()


def test_another_law_is_refused():
    with pytest.raises(TypeError, match="`law` must be a SingleLocation; got 80"):
        landscape(80, 1.0)
